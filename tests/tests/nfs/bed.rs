//! The NFS tier's own parts: guests, their links, their disks, the server's rules and locks, and every fault.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::history::WriteSpec;
use e2e::kafka::{Cluster, ClusterSpec};
use e2e::nfs::{Export, Guest, GuestAgent, GuestHome, GuestSpec, NfsBed, NfsOntap, NfsServer};
use e2e::{Lab, eventually, standby, story};
use fakes::ontap::Table;
use ontap_client::{Auth, Client, Fingerprint, LockQuery, Tls};
use tokio::runtime::Runtime;

const SOON: Duration = Duration::from_secs(60);
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
fn two_guests(lab: &Lab) -> Result<(NfsBed, [Arc<Guest>; 2], Arc<NfsServer>)> {
    let bed = NfsBed::open(lab)?;
    let server = bed.server(lab, vec![Export::to("v", &["10.77.0.111", "10.77.0.112"])])?;
    let begin = Instant::now();
    let guests =
        [bed.prepare_guest("g1", "10.77.0.111", &SMALL)?, bed.prepare_guest("g2", "10.77.0.112", &SMALL)?];
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

/// A client of the storage system's API, and the runtime to ask by it.
fn api(storage: &NfsOntap) -> Result<(Client, Runtime)> {
    let fake = storage.fake();
    let auth = Auth::Basic { user: "admin".to_owned(), password: "secret".to_owned().into() };
    let certificate = fake.certificate_der().context("no certificate")?;
    let tls = Tls::Pinned(Fingerprint::of(certificate));
    Ok((Client::builder(fake.url(), auth).tls(tls).build()?, Runtime::new()?))
}

#[test]
fn the_storage_system_speaks_for_the_server() {
    story("the_storage_system_speaks_for_the_server", |lab| {
        let (_bed, [first, second], server) = two_guests(lab)?;
        let storage = NfsOntap::start(lab, &server, &[("v", ("g1", first.address()))])?;
        storage.plug_in("g2", second.address())?;
        ensure!(storage.owners("v") == ["g1"], "{:?}", storage.owners("v"));
        ensure!(server.who_may_mount("v")? == BTreeSet::from(["10.77.0.111/32".to_owned()]));
        ensure!(second.run(&["sh", "-c", "echo no >/mnt/no"])?.code != 0, "g2 was not thrown out");

        // What the server has, the storage system shows.
        first.sh(HOLD)?;
        eventually("the lock to be shown", SOON, || {
            ensure!(storage.locks() == [("v/.lock".to_owned(), first.address())], "{:?}", storage.locks());
            Ok(())
        })?;
        let connected = [("volume.name", "v"), ("client_ip", "10.77.0.111")];
        let find = || storage.fake().world(|world| world.find(Table::ConnectedClients, &connected).is_some());
        eventually("the client to be shown", SOON, || if find() { Ok(()) } else { Err("it is not") })?;

        // A fence as the driver makes it: the rule, then the locks.
        let (client, runtime) = api(&storage)?;
        let policy = runtime.block_on(client.export_policy("svm1", "v"))?.context("no policy")?;
        let rule = runtime.block_on(client.export_rules(policy.id))?.remove(0);
        let begin = Instant::now();
        runtime.block_on(client.replace_clients(policy.id, &rule, &["10.77.0.112"]))?;
        let denied = seconds(begin);
        // It was answered, so it holds.
        let refused = first.run(&["sh", "-c", "echo late >/mnt/late"])?;
        ensure!(refused.stderr.contains("Permission denied"), "{refused:?}");
        ensure!(storage.locks().len() == 1, "a fence alone has freed the lock");
        let (address, begin) = (first.address().to_string(), Instant::now());
        // ONTAP does not say whose an NFSv4 lock is.
        let named = LockQuery { client_address: Some(&address), ..LockQuery::in_svm("svm1") };
        ensure!(runtime.block_on(client.locks(&named))?.is_empty());
        let query = LockQuery { volumes: &["v"], ..LockQuery::in_svm("svm1") };
        let broken = runtime.block_on(client.break_locks(&query))?;
        ensure!(broken == 1 && server.locks(".lock")?.is_empty(), "{broken} were broken");
        lab.note(format!("the rule took {denied:.3} s, breaking the lock {:.3} s", seconds(begin)));
        second.sh("echo own >/mnt/own && sync /mnt/own")?;
        second.sh("flock --exclusive /mnt/.lock true")?;
        lab.note(format!("g2 has the lock {:.2} s after it was broken", seconds(begin)));
        storage.ensure_one_owner_at_a_time()
    });
}

/// A second guest runs the agent as a unit, and the agent sees all that it is to watch.
fn a_standby_is_ready(lab: &Lab, bed: &NfsBed, cluster: &Cluster, server: &Arc<NfsServer>) -> Result<()> {
    let spec = GuestSpec { memory_mib: 500, client_id: None };
    let standby = bed.guest("standby-1", "10.77.0.31", &spec)?;
    let storage =
        NfsOntap::start(lab, server, &[("broker1", ("b1", cluster.broker(1)?.guest()?.address()))])?;
    storage.plug_in("standby-1", standby.address())?;
    let mut config = standby::guest_config(cluster, &standby, server, &storage, "30s")?;
    config.insert("mode".to_owned(), "observe".into());
    let begin = Instant::now();
    let agent = GuestAgent::install(&standby, server, cluster, &config.to_string())?;
    agent.start()?;
    agent.wait_ready(SOON)?;
    lab.note(format!("the agent in standby-1 is ready after {:.1} s", seconds(begin)));
    let status = agent.cli(&["status"])?;
    ensure!(status.code == 0 && status.stdout.contains("b1"), "{status:?}");
    standby.crash()
}

/// A broker in a guest, the others on namespace hosts, under load: the machine dies, and comes back.
#[test]
fn a_broker_runs_in_a_guest() {
    story("a_broker_runs_in_a_guest", |lab| {
        let bed = NfsBed::open(lab)?;
        let exports = vec![Export::to("broker1", &["10.77.0.111"]), Export::to_all("ledger")];
        let server = bed.server(lab, exports)?;
        let begin = Instant::now();
        let guest = bed.guest("b1", "10.77.0.111", &GuestSpec::default())?;
        lab.note(format!("b1 is up after {:.1} s", seconds(begin)));
        let home = GuestHome { guest: Arc::clone(&guest), server: Arc::clone(&server) };
        let guests = BTreeMap::from([(1, home)]);
        let cluster = lab.kafka(ClusterSpec { guests, ..ClusterSpec::default() })?;
        let started = guest.sh("systemctl show kafka@1.service --property=ActiveState --value")?;
        ensure!(started.trim() == "active", "{started}");
        lab.note(format!("memory of b1: {}", guest.sh("free -m | sed -n 2p")?.trim()));
        eventually("Kafka's lock on the server", SOON, || {
            let held = server.locks(".lock")?;
            ensure!(held.iter().any(|lock| lock.export == "broker1"), "{held:?}");
            Ok(())
        })?;

        a_standby_is_ready(lab, &bed, &cluster, &server)?;

        cluster.create_topic("t", 6, 3, 2)?;
        let writer = cluster.write(WriteSpec::steady("t", 6, 200))?;
        let flows = |count: usize| {
            eventually("records to be acknowledged", SOON, || {
                ensure!(writer.acked() >= count, "{}", writer.acked());
                Ok(())
            })
        };
        flows(500)?;
        let watch = cluster.watch(1);
        watch.wait("is complete", SOON, e2e::kafka::Standing::is_complete)?;
        let fault = Instant::now();
        guest.crash()?;
        watch.wait("is gone", Duration::from_secs(60), |standing| !standing.listed)?;
        guest.boot()?;
        lab.note(format!("b1 is up again {:.1} s after it died", seconds(fault)));
        // Its unit is enabled, so Kafka comes up with it.
        let rejoin = watch.wait_rejoined(fault, Duration::from_secs(150))?;
        lab.note(format!("broker 1 is back in every ISR after {:.1} s: {rejoin:?}", rejoin.all_in_sync));
        let history = writer.stop()?;
        let verdict = cluster.verify(&[&history])?;
        lab.note(verdict.to_string());
        verdict.ensure_clean()
    });
}
