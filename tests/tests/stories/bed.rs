//! The bed itself must be trusted before what is tested on it is: its hosts die when told to, nothing
//! outlives a story, and its judge finds what is wrong.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::history::{Acked, RecordId, WriteSpec};
use e2e::kafka::ClusterSpec;
use e2e::scenario::PATIENCE;
use e2e::{Host, LOG_DIRS, Lab, Mode, Outlet, Output, Storage, eventually, story};

/// A link that has just come up takes a moment until it carries anything.
fn reached(from: &Host, to: &Host) -> Result<()> {
    eventually(&format!("{} to reach {}", from.name(), to.name()), PATIENCE, || {
        ensure!(from.reaches(to.address()), "no answer");
        Ok(())
    })
}

#[test]
fn hosts_can_be_cut_frozen_and_switched_off() {
    story("hosts_can_be_cut_frozen_and_switched_off", |lab| {
        let one = lab.host("one", "10.77.0.11")?;
        let other = lab.host("other", "10.77.0.12")?;
        assert!(lab.host("third", "10.77.0.12").is_err(), "an address is taken twice");
        reached(&one, &other)?;

        one.cut()?;
        assert!(!one.reaches(other.address()));
        assert!(!other.reaches(one.address()));
        one.heal()?;
        reached(&one, &other)?;

        // A counter on the shared storage shows whether the host's processes run.
        let disk = lab.shared("disk")?;
        one.bind(&disk, "/srv/disk")?;
        let count = "while true; do echo >>/srv/disk/count; echo >>/srv/local/count; sleep 0.02; done";
        let counter = one.spawn("counter", &["sh", "-c", count])?;
        let length = || fs::metadata(disk.join("count")).map_or(0, |file| file.len());
        let goes_on =
            |from: u64| {
                eventually("the counter to go on", PATIENCE, || {
                    if length() > from { Ok(()) } else { Err(length()) }
                })
            };
        goes_on(0)?;
        one.freeze()?;
        let frozen = length();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(length(), frozen);
        reached(&one, &other).context("the kernel of a frozen host answers")?;
        assert!(counter.is_running());
        one.thaw()?;
        goes_on(frozen)?;
        one.freeze()?;

        one.power_off()?;
        assert!(!one.is_on() && !counter.is_running());
        assert!(!other.reaches(one.address()));
        assert!(one.spawn("nothing", &["true"]).is_err());
        let dead = length();
        assert!(one.local().join("count").exists(), "the local disk is gone");
        one.power_off()?;
        one.power_on()?;
        reached(&other, &one)?;
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(length(), dead, "a process came back with the power");
        let mounted = one.run(&["cat", "/srv/disk/count", "/srv/local/count"])?;
        assert_eq!((mounted.code, mounted.stdout.is_empty()), (0, false), "{mounted:?}");
        Ok(())
    });
}

#[test]
fn processes_are_reaped_killed_and_waited_for() {
    story("processes_are_reaped_killed_and_waited_for", |lab| {
        let host = lab.host("one", "10.77.0.11")?;
        let sleeper = host.spawn("sleeper", &["sleep", "1000"])?;
        sleeper.kill()?;
        assert!(!sleeper.is_running());
        assert!(host.spawn("nothing", &["/no/such/program"]).is_err());
        let code = host.run(&["sh", "-c", "echo out; echo err >&2; exit 3"])?;
        assert_eq!(code, Output { code: 3, stdout: "out\n".into(), stderr: "err\n".into() });

        // An orphan ends up with the host's first process, which must not keep it as a zombie.
        host.run(&["sh", "-c", "(setsid sleep 0.1 &)"])?;
        eventually("the orphan to be reaped", PATIENCE, || {
            let listed = host.run(&["ls", "/proc"])?;
            let count = listed.stdout.lines().filter(|entry| entry.parse::<u32>().is_ok()).count();
            // Its first process, timeout and ls.
            if count <= 3 { Ok(()) } else { Err(anyhow::anyhow!("{count} processes")) }
        })
    });
}

#[test]
fn the_fence_agent_drives_the_switch() {
    story("the_fence_agent_drives_the_switch", |lab| {
        let standby = lab.host("standby", "10.77.0.19")?;
        let broker = lab.host("broker", "10.77.0.11")?;
        let victim = broker.spawn("victim", &["sleep", "1000"])?;
        let switch = lab.switch();
        let fence = |action: &str| -> Result<Output> {
            let (agent, address) = (e2e::agent::fence_lab()?, switch.address());
            let (ip, port) = (address.ip(), address.port());
            let options = format!("action={action}\\nip={ip}\\nipport={port}\\nplug=broker\\n");
            let line = format!("printf '{options}' | timeout 1 {}", agent.display());
            standby.run(&["sh", "-c", &line])
        };

        assert!(fence("metadata")?.stdout.contains("<action name=\"off\""));
        assert_eq!((fence("monitor")?.code, fence("status")?.code), (0, 0));

        switch.set_mode("broker", Mode::Refuse);
        let refused = fence("off")?;
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("locked"), "{refused:?}");
        switch.set_mode("broker", Mode::Lie);
        assert_eq!((fence("off")?.code, fence("status")?.code), (0, 0));
        switch.set_mode("broker", Mode::Hang);
        assert_eq!((fence("off")?.code, fence("status")?.code), (124, 124));
        assert!(victim.is_running(), "no fence has succeeded yet");

        switch.set_mode("broker", Mode::Works);
        assert_eq!((fence("off")?.code, fence("status")?.code), (0, 2));
        assert!(!victim.is_running() && !standby.reaches(broker.address()));
        switch.set_mode("broker", Mode::Unknown);
        let unknown = fence("status")?;
        assert_eq!(unknown.code, 1, "{unknown:?}");
        switch.set_mode("broker", Mode::Works);
        assert_eq!((fence("on")?.code, fence("status")?.code), (0, 0));
        assert_eq!(switch.count("off", "broker"), 4);

        // The rack's network is as good as any: who is cut off cannot fence.
        standby.cut()?;
        assert_eq!(fence("off")?.code, 124);
        assert!(broker.is_on());
        Ok(())
    });
}

/// A host's storage through a daemon: it stalls, and it is taken away from a host that lives, for good.
#[test]
fn storage_stalls_and_is_denied() {
    story("storage_stalls_and_is_denied", |lab| {
        let host = lab.host("one", "10.77.0.11")?;
        let other = lab.host("other", "10.77.0.12")?;
        let disk = lab.shared("disk")?;
        host.mount(Storage::Fuse, &disk, "/srv/kafka/disk")?;
        host.mount(Storage::Fuse, &lab.shared("ledger")?, "/srv/ledger")?;
        other.mount(Storage::Fuse, &disk, "/srv/kafka/disk")?;
        // It is open all the time, as a broker's segments are.
        let count = "exec 3>>/srv/kafka/disk/count; while echo >&3; do sleep 0.02; done; sleep 1000";
        let counter = host.spawn("counter", &["sh", "-c", count])?;
        let length = || fs::metadata(disk.join("count")).map_or(0, |file| file.len());
        let goes_on =
            |from: u64| {
                eventually("the counter to go on", PATIENCE, || {
                    if length() > from { Ok(()) } else { Err(length()) }
                })
            };
        goes_on(0)?;
        host.stall(LOG_DIRS)?;
        let stalled = length() + 1;
        std::thread::sleep(Duration::from_millis(200));
        assert!(length() <= stalled, "the storage did not stall");
        assert!(host.run(&["touch", "/srv/ledger/x"])?.code == 0, "the ledger stalled too");
        assert!(other.run(&["touch", "/srv/kafka/disk/x"])?.code == 0, "another host stalled too");
        host.resume(LOG_DIRS)?;
        goes_on(stalled)?;
        assert!(host.stall("/srv/nothing").is_err());

        // Stalled or frozen, it is fenced all the same; and it stays so when everything goes on.
        host.stall(LOG_DIRS)?;
        host.freeze()?;
        let switch = lab.switch();
        let fence = |action: &str, outlet: Outlet| -> Result<i32> {
            let (agent, address) = (e2e::agent::fence_lab()?, switch.address());
            let (ip, port, plug) = (address.ip(), address.port(), outlet.plug("one"));
            let options = format!("action={action}\\nip={ip}\\nipport={port}\\nplug={plug}\\n");
            let line = format!("printf '{options}' | timeout 5 {}", agent.display());
            Ok(other.run(&["sh", "-c", &line])?.code)
        };
        assert_eq!(fence("status", Outlet::Isolation)?, 0);
        assert_eq!((fence("off", Outlet::Storage)?, fence("status", Outlet::Storage)?), (0, 2));
        assert_eq!(fence("status", Outlet::Isolation)?, 0, "it still has its link");
        assert_eq!((fence("off", Outlet::Isolation)?, fence("status", Outlet::Isolation)?), (0, 2));
        assert!(!other.reaches(host.address()));
        let fenced = length();
        host.thaw()?;
        assert!(counter.is_running());
        let refused = host.run(&["touch", "/srv/kafka/disk/y"])?;
        assert!(refused.code != 0 && refused.stderr.contains("not connected"), "{refused:?}");
        assert!(host.run(&["touch", "/srv/ledger/y"])?.code == 0, "the ledger is on other storage");
        // Not a restart either brings it back.
        host.power_off()?;
        host.power_on()?;
        assert_eq!(fence("status", Outlet::Storage)?, 2);
        assert!(host.run(&["ls", "/srv/kafka/disk"])?.code != 0);
        assert_eq!(length(), fenced, "something was written after the fence");

        assert_eq!((fence("on", Outlet::Isolation)?, fence("status", Outlet::Isolation)?), (0, 0));
        assert_eq!(host.run(&["cat", "/srv/kafka/disk/count"])?.code, 0);
        reached(&other, &host)?;
        // A host that dies with its storage stalled dies all the same.
        host.stall(LOG_DIRS)?;
        host.spawn("waits", &["touch", "/srv/kafka/disk/z"])?;
        host.power_off()
    });
}

#[test]
fn nothing_is_left_behind() {
    // Both stories run a process with a name of its own, in a host, and one with a link in the hub.
    let marker = format!("31536{:05}", std::process::id());
    for (told, kill) in [("panics_with_a_process_running", false), ("waits_to_be_killed", true)] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([&e2e::test_path(told).unwrap(), "--exact", "--ignored", "--nocapture"])
            .env("BED_MARKER", &marker)
            .env("UNDERSTUDY_ARTIFACTS", std::env::temp_dir().join(format!("bed-{marker}")))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if kill {
            eventually("the story's process", PATIENCE, || {
                if running(&marker).is_empty() { Err("it does not run") } else { Ok(()) }
            })
            .unwrap();
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        eventually("every process to be gone", PATIENCE, || {
            let left = running(&marker);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .unwrap();
        let own = fs::read_to_string("/proc/self/net/dev").unwrap();
        assert!(!own.contains("kbr") && !own.contains("v-one"), "{own}");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains("/srv"), "{mounts}");
        if !kill {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.contains("deliberately"), "{stderr}");
            assert!(stderr.contains("everything it left is in"), "{stderr}");
            let folder = std::env::temp_dir().join(format!("bed-{marker}/panics_with_a_process_running"));
            let log = fs::read_to_string(folder.join("logs/one-sleeper.log")).unwrap();
            assert_eq!(log, "going to sleep\n");
        }
        fs::remove_dir_all(std::env::temp_dir().join(format!("bed-{marker}"))).unwrap();
    }
}

#[test]
#[ignore = "fails by design; told by nothing_is_left_behind"]
fn panics_with_a_process_running() {
    story("panics_with_a_process_running", |lab| {
        sleep_with_marker(lab)?;
        panic!("deliberately");
    });
}

#[test]
#[ignore = "never ends; told by nothing_is_left_behind"]
fn waits_to_be_killed() {
    story("waits_to_be_killed", |lab| {
        sleep_with_marker(lab)?;
        loop {
            std::thread::park();
        }
    });
}

fn sleep_with_marker(lab: &Lab) -> Result<()> {
    let host = lab.host("one", "10.77.0.11")?;
    let marker = std::env::var("BED_MARKER").context("only to be told by nothing_is_left_behind")?;
    let line = format!("echo going to sleep; exec sleep {marker}");
    let process = host.spawn("sleeper", &["sh", "-c", &line])?;
    eventually("the log", PATIENCE, || {
        let log = fs::read_to_string(process.log())?;
        ensure!(!log.is_empty(), "an empty log");
        Ok(())
    })
}

/// The processes of this machine whose command line names `marker`.
fn running(marker: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let mut line = String::new();
        if let Ok(mut file) = fs::File::open(entry.path().join("cmdline"))
            && file.read_to_string(&mut line).is_ok()
            && line.contains(&format!("sleep\0{marker}"))
        {
            found.push(line.replace('\0', " "));
        }
    }
    found
}

/// What an operator does today: the dead broker's address and log dir move to another host by hand.
#[test]
fn a_takeover_by_hand_loses_nothing() {
    story("a_takeover_by_hand_loses_nothing", |lab| {
        let cluster = lab.kafka(ClusterSpec::default())?;
        let standby = lab.host("sb", "10.77.0.19")?;
        e2e::standby::equip(lab, &cluster, &standby, Storage::Bind)?;
        fits_the_example(&e2e::standby::config(lab, &cluster, &standby)?)?;
        cluster.create_topic("orders", 50, 3, 2)?;
        let writer = cluster.write(WriteSpec::steady("orders", 50, 500))?;
        let group = cluster.read_in_group("orders", "audit")?;
        eventually("acknowledged records", PATIENCE, || {
            if writer.acked() > 1000 && group.read() > 500 { Ok(()) } else { Err(writer.acked()) }
        })?;
        let first = group.stop()?;

        let broker = cluster.broker(1)?;
        let watch = cluster.watch(1);
        watch.wait("to be in sync", PATIENCE, e2e::kafka::Standing::is_complete)?;
        let fault = Instant::now();
        broker.home()?.power_off()?;
        lab.note("broker 1 has lost power");
        standby.add_address("10.77.0.11/24")?;
        lab.forget_neighbour(Ipv4Addr::new(10, 77, 0, 11).into())?;
        broker.start_on(&standby)?;
        let rejoin = watch.wait_rejoined(fault, PATIENCE)?;
        lab.note(format!("{rejoin:.1?}"));

        let group = cluster.read_in_group("orders", "audit")?;
        let before = writer.acked();
        eventually("the group and the writer to go on", PATIENCE, || {
            let (acked, read) = (writer.acked(), group.read());
            if acked > before + 1000 && read + first.read() > acked - 500 { Ok(()) } else { Err(read) }
        })?;
        let history = writer.stop()?;
        first.then(group.stop()?).ensure_continuous()?;
        assert_eq!(history.failed, []);
        lab.note(format!(
            "longest wait {:.1?}, longest gap {:.1?}",
            history.longest_wait(),
            history.longest_gap()
        ));
        let verdict = cluster.verify(&[&history])?;
        lab.note(verdict.to_string());
        cluster.wait_complete(PATIENCE)?;
        verdict.ensure_clean()
    });
}

/// The configuration that stories start from has only keys that the example explains.
fn fits_the_example(config: &toml::Table) -> Result<()> {
    let example: toml::Table = toml::from_str(include_str!("../../../deploy/examples/standby.toml"))?;
    let (ours, theirs) = (key_paths("", &config.clone().into()), key_paths("", &example.into()));
    // The fence agent's options are its own, and only the bed's storage is local.
    let own = |path: &&String| path.contains(".options.") || *path == ".broker.storage.local";
    let foreign: Vec<_> = ours.difference(&theirs).filter(|path| !own(path)).collect();
    assert!(foreign.is_empty() && ours.contains(".broker.address.interface"), "{foreign:?} of {ours:?}");
    ensure!(toml::from_str::<toml::Table>(&config.to_string())? == *config, "it is not read as written");
    Ok(())
}

fn key_paths(prefix: &str, value: &toml::Value) -> BTreeSet<String> {
    match value {
        toml::Value::Table(table) => {
            table.iter().flat_map(|(key, value)| key_paths(&format!("{prefix}.{key}"), value)).collect()
        }
        toml::Value::Array(items) => items.iter().flat_map(|item| key_paths(prefix, item)).collect(),
        _ => BTreeSet::from([prefix.to_owned()]),
    }
}

/// The judge, on a real log: each fault is made for real, by a second producer or in the history.
#[test]
fn the_verifier_catches_faults() {
    story("the_verifier_catches_faults", |lab| {
        let spec = ClusterSpec { brokers: 1, ..ClusterSpec::default() };
        let cluster = lab.kafka(spec)?;
        cluster.create_topic("orders", 2, 1, 1)?;
        let writer = cluster.write(WriteSpec::steady("orders", 2, 200))?;
        eventually("some records", PATIENCE, || match writer.acked() {
            0..100 => Err(writer.acked()),
            _ => Ok(()),
        })?;
        let history = writer.stop()?;
        let bootstrap = cluster.bootstrap();
        cluster.verify(&[&history])?.ensure_clean()?;

        let mut claimed = history.clone();
        let last = *claimed.acked.last().context("nothing was acknowledged")?;
        let id = RecordId { sequence: history.sent, ..last.id };
        claimed.acked.push(Acked { id, offset: last.offset.map(|offset| offset + 1), ..last });
        claimed.sent += 1;
        let verdict = cluster.verify(&[&claimed])?;
        assert_eq!((verdict.lost(), verdict.violations.len()), (1, 1), "{verdict}");

        let mut fewer = history.clone();
        fewer.sent -= 1;
        complains(&cluster.verify(&[&fewer])?.to_string(), &["never sent"]);

        // The first record once more, at the end: a duplicate, and out of order.
        let first = history.acked.iter().find(|acked| acked.id.sequence == 0);
        let first = first.context("the first record was not acknowledged")?;
        produce(&cluster.bootstrap(), "orders", first.partition, &first.id.to_string())?;
        complains(&cluster.verify(&[&history])?.to_string(), &["duplicated", "out of order"]);

        // Swapped: two records of one partition whose places in the log were exchanged on the way.
        cluster.create_topic("swapped", 1, 1, 1)?;
        let mut swapped = history.clone();
        swapped.topic = "swapped".to_owned();
        swapped.acked.truncate(3);
        for (place, sequence) in [0, 2, 1].into_iter().enumerate() {
            let id = RecordId { sequence, ..last.id };
            produce(&bootstrap, "swapped", 0, &id.to_string())?;
            swapped.acked[place] = Acked { id, partition: 0, offset: Some(i64::try_from(place)?), ..last };
        }
        complains(&cluster.verify(&[&swapped])?.to_string(), &["out of order"]);
        Ok(())
    });
}

fn complains(verdict: &str, about: &[&str]) {
    for fault in about {
        assert!(verdict.contains(fault), "the verdict does not say {fault:?}: {verdict}");
    }
}

fn produce(bootstrap: &str, topic: &str, partition: i32, value: &str) -> Result<()> {
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
    let mut config = rdkafka::ClientConfig::new();
    let producer: BaseProducer = config.set("bootstrap.servers", bootstrap).create()?;
    let record = BaseRecord::<(), str>::to(topic).payload(value).partition(partition);
    producer.send(record).map_err(|(error, _)| error)?;
    Ok(producer.flush(Duration::from_secs(10))?)
}

/// Bulk for measurements: what `load` promises is on every broker's disk.
#[test]
fn a_load_is_on_every_broker() {
    story("a_load_is_on_every_broker", |lab| {
        let cluster = lab.kafka(ClusterSpec::default())?;
        cluster.create_topic("bulk", 10, 3, 2)?;
        let begin = Instant::now();
        cluster.load("bulk", 10, 200 << 20)?;
        lab.note(format!("200 MiB a broker loaded in {:.1} s", begin.elapsed().as_secs_f64()));
        for broker in cluster.brokers() {
            eventually("the bytes to be on disk", PATIENCE, || {
                let size = size_of(&broker.log_dir().to_owned(), "bulk-")?;
                ensure!(size >= 200 << 20, "broker {} has {size} bytes", broker.id());
                Ok(())
            })?;
        }
        Ok(())
    });
}

/// Bytes in the segments of the partitions whose directory begins with `prefix`.
fn size_of(log_dir: &PathBuf, prefix: &str) -> Result<u64> {
    let mut size = 0;
    for partition in fs::read_dir(log_dir)?.flatten() {
        if partition.file_name().to_string_lossy().starts_with(prefix) {
            for file in fs::read_dir(partition.path())?.flatten() {
                if file.path().extension().is_some_and(|extension| extension == "log") {
                    size += file.metadata()?.len();
                }
            }
        }
    }
    Ok(size)
}

/// The agent's own HTTP client and command line are tried on stand-ins: any server, any program.
#[test]
fn an_agents_pages_and_commands_are_read() {
    story("an_agents_pages_and_commands_are_read", |lab| {
        let host = lab.host("sb", "10.77.0.19")?;
        let listener = host.within_network(|| Ok(std::net::TcpListener::bind("127.0.0.1:9095")?))?;
        let server = std::thread::spawn(move || -> Result<()> {
            let (mut connection, _) = listener.accept()?;
            let mut request = [0; 512];
            let length = connection.read(&mut request)?;
            ensure!(request[..length].starts_with(b"GET /metrics HTTP/1.0\r\n"));
            let body = "# TYPE up gauge\nup{broker=\"1\"} 1.5\n";
            write!(connection, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n{body}")?;
            Ok(())
        });
        // The program only has to run; its pages are those of the server above.
        let program = host.local().join("program");
        fs::write(&program, "#!/bin/sh\necho \"$@\"; [ \"$3\" = run ] && exec sleep 1000; exit 4\n")?;
        let mut permissions = fs::metadata(&program)?.permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        fs::set_permissions(&program, permissions)?;
        let agent = lab.agent_of(&program, &host, "mode = \"observe\"\n")?;
        assert_eq!(agent.metric("up{broker=\"1\"}")?, Some(1.5));
        server.join().unwrap()?;
        let status = agent.cli(&["status", "--output", "json"])?;
        assert_eq!(status.code, 4);
        assert!(status.stdout.ends_with("status --output json\n"), "{status:?}");
        agent.kill()?;
        assert!(!agent.running()?.is_running());
        agent.start()
    });
}
