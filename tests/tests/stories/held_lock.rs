//! The storage keeps the lock of a host that has died, as an NFS server does until its lease is over. A Kafka
//! that is started then ends at once; the takeover waits, says for what, and starts it once.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{eventually, story};
use rustix::fs::{FlockOperation, fcntl_lock};

/// How long the lock outlives its host.
const LEASE: Duration = Duration::from_secs(20);

/// Takes Kafka's lock as soon as its host is dead, in the stead of a server that holds it for that host.
fn in_its_stead(log_dir: &Path) -> Result<File> {
    let file = OpenOptions::new().write(true).open(log_dir.join(".lock"))?;
    eventually("the dead host's lock", PATIENCE, || {
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)
    })?;
    Ok(file)
}

/// Until the lease is over: the takeover says what it waits for, and no Kafka is started.
fn held(scenario: &Scenario<'_>, died: Instant) -> Result<()> {
    let says = || -> Result<String> {
        let status = scenario.status()?;
        let waits = status["takeover"]["rejoining"].as_str().context("it waits for nothing")?.to_owned();
        ensure!(waits.contains("/.lock is held by a client of the storage"), "{waits}");
        ensure!(waits.contains("at most"), "{waits}");
        Ok(waits)
    };
    eventually("the takeover to say that it waits", LEASE, says)?;
    while died.elapsed() < LEASE {
        let kafkas = scenario.kafkas()?;
        ensure!(kafkas.is_empty(), "Kafka was started while its lock is held: {kafkas:?}");
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

#[test]
fn a_dead_hosts_lock_is_waited_for() {
    story("a_dead_hosts_lock_is_waited_for", |lab| {
        let scenario = Scenario::begin(lab, &Setup::default())?;
        scenario.start_agents()?;
        let log_dir = scenario.cluster.broker(VICTIM)?.log_dir().to_owned();
        let victim = scenario.victim()?.clone();
        let rejoin = scenario.recovered_after(LEASE + PATIENCE, || {
            victim.power_off()?;
            let died = Instant::now();
            let lock = in_its_stead(&log_dir)?;
            let held = held(&scenario, died);
            drop(lock);
            held
        })?;
        ensure!(rejoin.all_in_sync > LEASE.as_secs_f64(), "{rejoin:?}");
        scenario.decided("healthy", PATIENCE)?;
        ensure!(scenario.epochs()?.len() == 1, "one fault, one takeover: {:?}", scenario.epochs()?);
        ensure!(scenario.kafkas()?.len() == 1, "one Kafka on the standby");
        let history = scenario.cli(&["history", "--broker", "1"], 0)?.stdout;
        for word in ["await_locks: done", "nobody holds a lock any more", "recovered"] {
            ensure!(history.contains(word), "`history` does not mention {word}:\n{history}");
        }
        let starts = history.matches("start_broker: done").count();
        ensure!(starts == 1, "Kafka was started {starts} times:\n{history}");
        scenario.verdict()?;
        Ok(())
    });
}
