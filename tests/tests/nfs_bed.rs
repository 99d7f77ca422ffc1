//! The NFS tier's own parts: guests, their links, their disks, the server's rules and locks, and every fault.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::nfs::{Export, Guest, GuestSpec, NfsBed, NfsServer};
use e2e::{Lab, eventually, story};

const SOON: Duration = Duration::from_secs(30);
const SMALL: GuestSpec = GuestSpec { memory_mib: 300, client_id: None };

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

/// Holds a lock of the file in the background, as Kafka does of `.lock`.
const HOLD: &str = "setsid flock --exclusive /mnt/.lock sleep infinity >/dev/null 2>&1 </dev/null &";

/// Waits until `locked` says whether the server holds a lock on the volume.
fn wait_locked(server: &NfsServer, locked: bool) -> Result<()> {
    eventually(&format!("the server's lock to be {locked}"), SOON, || {
        let held = server.locks(".lock")?;
        ensure!(held.is_empty() != locked, "{held:?}");
        Ok(())
    })
}

/// Two guests that may mount the volume `v` and have.
fn two_guests(lab: &Lab) -> Result<(NfsBed, [std::sync::Arc<Guest>; 2], std::sync::Arc<NfsServer>)> {
    let bed = NfsBed::open(lab)?;
    let server = bed.server(lab, vec![Export::to("v", &["10.77.0.111", "10.77.0.112"])])?;
    let begin = Instant::now();
    let guests = [
        bed.prepare_guest("g1", "10.77.0.111", &SMALL)?,
        bed.prepare_guest("g2", "10.77.0.112", &SMALL)?,
    ];
    guests.iter().try_for_each(|guest| guest.power_on())?;
    guests.iter().try_for_each(|guest| guest.wait_up())?;
    lab.note(format!("two guests are up after {:.1} s", seconds(begin)));
    for guest in &guests {
        let begin = Instant::now();
        guest.mount_nfs(&server.source("v"), "/mnt", "")?;
        lab.note(format!("{} has mounted after {:.2} s", guest.name(), seconds(begin)));
    }
    Ok((bed, guests, server))
}

#[test]
fn a_guest_is_a_machine_and_its_server_decides_who_writes() {
    story("a_guest_is_a_machine_and_its_server_decides_who_writes", |lab| {
        let (_bed, [first, second], server) = two_guests(lab)?;
        ensure!(first.sh("cat /proc/1/comm")?.trim() == "systemd");
        ensure!(first.sh("hostname")?.trim() == "g1" && second.sh("hostname")?.trim() == "g2");
        ensure!(first.sh("cat /etc/machine-id")? != second.sh("cat /etc/machine-id")?);
        let id = "cat /sys/module/nfs/parameters/nfs4_unique_id";
        ensure!(first.sh(id)?.trim() == "10.77.0.111" && second.sh(id)?.trim() == "10.77.0.112");
        let mounted = first.sh("grep ' /mnt nfs4 ' /proc/mounts")?;
        ensure!(mounted.contains("vers=4.1") && mounted.contains("local_lock=none"), "{mounted}");
        first.sh("echo seen >/mnt/file && sync /mnt/file")?;
        ensure!(second.sh("cat /mnt/file")? == "seen\n");
        ensure!(server.connected()?.len() == 2, "{:?}", server.connected()?);

        first.sh(HOLD)?;
        wait_locked(&server, true)?;
        // A fence alone does not free the lock of a client that lives.
        let begin = Instant::now();
        server.let_in("v", &BTreeSet::from(["10.77.0.112".to_owned()]))?;
        lab.note(format!("the server has taken g1 out of the rule after {:.3} s", seconds(begin)));
        let refused = first.run(&["sh", "-c", "echo late >/mnt/file"])?;
        ensure!(refused.code != 0 && refused.stderr.contains("Permission denied"), "{refused:?}");
        second.sh("echo own >/mnt/file && sync /mnt/file")?;
        ensure!(second.run(&["flock", "--nonblock", "/mnt/.lock", "true"])?.code != 0);
        take_lock(lab, &second, &server, "10.77.0.111")
    });
}

/// Frees what `holder` holds at the server, and has `next` take it, before any lease ends.
fn take_lock(lab: &Lab, next: &Guest, server: &NfsServer, holder: &str) -> Result<()> {
    let begin = Instant::now();
    server.release(holder)?;
    wait_locked(server, false)?;
    lab.note(format!("the server has freed the lock of {holder} after {:.3} s", seconds(begin)));
    let taken = next.run(&["flock", "--exclusive", "/mnt/.lock", "true"])?;
    let took = seconds(begin);
    ensure!(taken.code == 0, "{taken:?}");
    lab.note(format!("{} has taken the lock after {took:.2} s", next.name()));
    ensure!(took < 12.0, "it took {took:.1} s, as long as without the release");
    Ok(())
}

#[test]
fn a_crashed_guest_leaves_its_lock_and_its_disk() {
    story("a_crashed_guest_leaves_its_lock_and_its_disk", |lab| {
        let (_bed, [first, second], server) = two_guests(lab)?;
        first.write("/var/lib/kept", "on the disk")?;
        let boot = first.read("/proc/sys/kernel/random/boot_id")?;
        first.sh(HOLD)?;
        wait_locked(&server, true)?;
        let begin = Instant::now();
        first.crash()?;
        lab.note(format!("g1 is dead after {:.3} s", seconds(begin)));
        ensure!(!first.is_on() && first.run(&["true"]).is_err());
        ensure!(server.locks(".lock")?.len() == 1, "its lock went with it");
        take_lock(lab, &second, &server, "10.77.0.111")?;

        let begin = Instant::now();
        first.boot()?;
        lab.note(format!("g1 is up again after {:.1} s", seconds(begin)));
        ensure!(first.read("/var/lib/kept")? == "on the disk");
        ensure!(first.read("/proc/sys/kernel/random/boot_id")? != boot);
        ensure!(first.run(&["mountpoint", "/mnt"])?.code != 0, "a mount outlived its kernel");
        Ok(())
    });
}

#[test]
fn a_guest_is_cut_off_and_frozen_and_comes_back() {
    story("a_guest_is_cut_off_and_frozen_and_comes_back", |lab| {
        let (_bed, [first, second], server) = two_guests(lab)?;
        let reach = |guest: &Guest| guest.run(&["timeout", "2", "bash", "-c", "</dev/tcp/10.77.0.250/2049"]);
        ensure!(reach(&first)?.code == 0);
        first.cut()?;
        ensure!(reach(&first)?.code != 0, "it is not cut off");
        ensure!(reach(&second)?.code == 0, "the other one is");
        // It hangs, in the kernel; the management link says so.
        first.sh("setsid sh -c 'echo late >/mnt/late' >/dev/null 2>&1 </dev/null &")?;
        let waiting = "ps -eo stat,args | grep '^D.*[e]cho late'";
        eventually("a write to hang", SOON, || first.sh(waiting))?;
        first.heal()?;
        eventually("the write to go through", Duration::from_secs(90), || second.sh("cat /mnt/late"))?;
        ensure!(reach(&first)?.code == 0);

        first.sh("echo 0 >/var/tick; setsid sh -c 'while :; do date +%s.%N >/var/tick; sleep 0.2; done' >/dev/null 2>&1 </dev/null &")?;
        first.freeze()?;
        let quick = Duration::from_secs(1);
        ensure!(first.run_within(quick, &["true"]).is_err(), "it answers although it is frozen");
        first.thaw()?;
        let before = first.read("/var/tick")?;
        eventually("its processes to go on", SOON, || {
            ensure!(first.read("/var/tick")? != before, "they do not");
            Ok(())
        })?;
        first.sh("echo thawed >/mnt/thawed && sync /mnt/thawed")?;

        stalls_and_restarts(lab, &first, &second, &server)
    });
}

fn stalls_and_restarts(lab: &Lab, first: &Guest, second: &Guest, server: &NfsServer) -> Result<()> {
    server.stall()?;
    let stalled = Instant::now();
    second.sh("setsid sh -c 'echo through >/mnt/through; sync /mnt/through; echo done >/var/through' >/dev/null 2>&1 </dev/null &")?;
    // The fault itself: a server that is silent for so long.
    thread::sleep(Duration::from_secs(3));
    ensure!(second.run(&["test", "-e", "/var/through"])?.code != 0, "a stalled server answers");
    server.resume()?;
    eventually("the write to go through", SOON, || second.read("/var/through"))?;
    lab.note(format!("a write went through {:.1} s after the server stalled", seconds(stalled)));

    first.sh(HOLD)?;
    wait_locked(server, true)?;
    let begin = Instant::now();
    server.restart()?;
    // Its clients reclaim what they had.
    wait_locked(server, true)?;
    lab.note(format!("the server has restarted, and the lock was reclaimed after {:.1} s", seconds(begin)));
    ensure!(second.run(&["flock", "--nonblock", "/mnt/.lock", "true"])?.code != 0);
    Ok(())
}
