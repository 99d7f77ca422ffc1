//! The canary on a real file system that stalls: FUSE, whose server is stopped. The writing process is the
//! agent's own binary, as in the daemon.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use drivers::clock::SystemClock;
use drivers::health_signal::storage_canary::{CanaryConfig, StorageCanary};
use recovery::model::{BrokerId, CanaryOutcome, Fact};
use recovery::ports::HealthSignal;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const MARK: &str = "UNDERSTUDY_TEST_NAMESPACES";
const DEADLINE: Duration = Duration::from_secs(1);
/// For what comes as soon as it can on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// Runs the test named `name` in a mount and process namespace of its own: what it mounts and starts ends
/// with it.
fn in_namespaces(name: &str, test: impl FnOnce()) {
    if env::var_os(MARK).is_some() {
        return test();
    }
    assert!(
        Path::new("/dev/fuse").exists(),
        "/dev/fuse is missing: run `modprobe fuse`; in a container, start it with `--device /dev/fuse --privileged`"
    );
    let bindfs = Command::new("bindfs").arg("--version").stdout(Stdio::null()).status();
    assert!(bindfs.is_ok(), "bindfs is missing: apt-get install bindfs");
    let mut unshare =
        vec!["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"];
    if !rustix::process::geteuid().is_root() {
        unshare.extend(["--user", "--map-root-user"]);
    }
    let probe = Command::new("unshare").args(&unshare).arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: {name}: this user may not make namespaces; run the tests as root");
        return;
    }
    let mut again = Command::new("unshare");
    again.args(&unshare).arg(env::current_exe().unwrap()).args([
        "--exact",
        &format!("canary::{name}"),
        "--nocapture",
    ]);
    let output = again.env(MARK, "1").output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "in the namespaces:\n{said}");
}

/// A storage that can be made to stall.
struct Storage {
    dir: TempDir,
    server: Option<Child>,
}

impl Storage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("disk/canary")).unwrap();
        fs::create_dir(dir.path().join("mount")).unwrap();
        Self { dir, server: None }
    }

    async fn mount(&mut self, options: &[&str]) {
        let (disk, mount) = (self.dir.path().join("disk"), self.dir.path().join("mount"));
        let before = fs::metadata(&mount).unwrap().dev();
        self.server =
            Some(Command::new("bindfs").arg("-f").args(options).args([&disk, &mount]).spawn().unwrap());
        until("bindfs has mounted", || fs::metadata(&mount).unwrap().dev() != before).await;
    }

    /// What waits for a server that is gone gets an error.
    fn unmount(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        let mount = self.dir.path().join("mount");
        assert!(Command::new("umount").arg("--lazy").arg(mount).status().unwrap().success());
    }

    async fn send(&self, signal: Signal) {
        let id = i32::try_from(self.server.as_ref().unwrap().id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
        if signal == Signal::STOP {
            until("bindfs has stopped", || state(id) == Some('T')).await;
        }
    }

    /// Where the canary writes.
    fn canary_dir(&self) -> PathBuf {
        self.dir.path().join("mount/canary")
    }

    fn canary(&self) -> StorageCanary {
        let (dir, period, deadline) = (self.canary_dir(), Duration::from_millis(200), DEADLINE);
        let config = CanaryConfig { dir, brokers: vec![1], period, deadline };
        let writer = PathBuf::from(env!("CARGO_BIN_EXE_understudy"));
        config.build("standby-1".into(), &BTreeSet::from([BrokerId(1)]), writer)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.unmount();
        }
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The fields of `/proc/PID/stat` after the name: the state first, then the parent.
fn stat(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

fn state(pid: i32) -> Option<char> {
    stat(pid)?.first()?.chars().next()
}

/// The writing processes of this one that were not reaped yet.
fn canaries() -> Vec<i32> {
    let us = std::process::id().to_string();
    let pids = fs::read_dir("/proc").unwrap();
    let pids = pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok());
    let ours = |pid: &i32| stat(*pid).is_some_and(|stat| stat[1] == us);
    let name = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    pids.filter(ours).filter(|pid| name(*pid).trim() == "understudy").collect()
}

async fn look(canary: &StorageCanary) -> CanaryOutcome {
    let begun = Instant::now();
    let mut evidence = canary.look(&SystemClock).await;
    assert!(begun.elapsed() < DEADLINE * 2, "a look took {:?}", begun.elapsed());
    match evidence.pop().unwrap().fact {
        Fact::Storage { outcome, .. } => outcome,
        other => panic!("{other:?}"),
    }
}

/// Runs the future on one thread, and says for how long at most nothing else could run on it.
fn on_one_thread(test: impl Future<Output = ()>) -> Duration {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let longest = Cell::new(Duration::ZERO);
    let ticks = async {
        loop {
            let begun = Instant::now();
            tokio::time::sleep(Duration::from_millis(10)).await;
            longest.set(longest.get().max(begun.elapsed()));
        }
    };
    runtime.block_on(async {
        tokio::select! {
            () = test => {}
            () = ticks => {}
        }
    });
    let begun = Instant::now();
    drop(runtime);
    assert!(begun.elapsed() < DEADLINE, "the end of the runtime waits for the storage");
    longest.get()
}

#[test]
fn a_storage_that_stalls_is_seen_and_so_is_its_return() {
    in_namespaces("a_storage_that_stalls_is_seen_and_so_is_its_return", || {
        let mut storage = Storage::new();
        let canary = storage.canary();
        let stood_still = on_one_thread(async {
            let CanaryOutcome::Failed { why } = look(&canary).await else { panic!("nothing is mounted") };
            let dir = storage.canary_dir();
            assert_eq!(why, format!("{} does not exist: is its storage mounted?", dir.display()));
            assert!(!dir.exists(), "it was made on the local disk");

            storage.mount(&[]).await;
            assert_eq!(look(&canary).await, CanaryOutcome::Wrote);
            assert!(storage.dir.path().join("disk/canary/.understudy-canary-standby-1").exists());
            storage.send(Signal::STOP).await;
            for _ in 0..3 {
                assert_eq!(look(&canary).await, CanaryOutcome::Stalled);
                until("it was killed and reaped", || canaries().is_empty()).await;
            }
            storage.send(Signal::CONT).await;
            let begun = Instant::now();
            while look(&canary).await != CanaryOutcome::Wrote {
                assert!(begun.elapsed() < LONG, "it is not seen that the storage is back");
            }
            until("every canary is reaped", || canaries().is_empty()).await;
        });
        assert!(stood_still < DEADLINE, "the runtime stood still for {stood_still:?}");
    });
}

#[test]
fn a_process_that_cannot_be_killed_stays_the_only_one() {
    in_namespaces("a_process_that_cannot_be_killed_stays_the_only_one", || {
        let mut storage = Storage::new();
        let canary = storage.canary();
        // Ten bytes a second: the server has taken the write and answers seconds later. Until then the writer
        // hangs in the kernel and cannot be killed.
        let stood_still = on_one_thread(async {
            storage.mount(&["--write-rate=10"]).await;
            assert_eq!(look(&canary).await, CanaryOutcome::Stalled);
            storage.send(Signal::STOP).await;
            let hanging = canaries();
            assert_eq!(hanging.len(), 1);
            // It was sent SIGKILL, looks up for a moment, and lives.
            until("the writer hangs in the kernel", || state(hanging[0]) == Some('D')).await;
            for _ in 0..5 {
                let begun = Instant::now();
                assert_eq!(look(&canary).await, CanaryOutcome::Stalled);
                assert!(begun.elapsed() < DEADLINE / 2, "no second one is waited for");
                assert_eq!(canaries(), hanging);
            }
        });
        assert!(stood_still < DEADLINE, "the runtime stood still for {stood_still:?}");

        // The storage comes back as another mount: the writer on the old one is let go, and does not count
        // any more.
        storage.unmount();
        on_one_thread(async {
            storage.mount(&[]).await;
            let begun = Instant::now();
            while look(&canary).await != CanaryOutcome::Wrote {
                assert!(begun.elapsed() < LONG, "it is not seen that the storage is back");
            }
            until("every canary is reaped", || canaries().is_empty()).await;
        });
    });
}
