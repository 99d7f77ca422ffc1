use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock, flock};

use super::*;
use crate::storage::probe::act;

const HOLDS: &str = "UNDERSTUDY_TEST_HOLDS";

/// Not a test by itself: what [`another_process`] runs. Kafka's lock is taken as Kafka does it, and held
/// until it is killed.
#[test]
fn a_process_that_holds_a_lock() {
    let Some(path) = std::env::var_os(HOLDS) else { return };
    let file = OpenOptions::new().write(true).open(path).unwrap();
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    io::stdout().write_all(b"\nheld\n").unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

/// A process other than ours that holds a POSIX lock on `path`.
fn another_process(path: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "storage::probe::lock::tests::a_process_that_holds_a_lock", "--nocapture"]);
    let mut child = command.env(HOLDS, path).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "held"), "the other process has no lock");
    child
}

fn asked(dir: &Path) -> String {
    act(ProbeAct::Lock, dir, &"standby-1".into()).unwrap()
}

#[test]
fn the_lock_of_another_process_is_seen_and_its_end_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(KAFKA_LOCK);
    fs::write(&path, "").unwrap();
    assert_eq!(asked(dir.path()), "free");
    let mut kafka = another_process(&path);
    for _ in 0..3 {
        // Asking takes nothing and frees nothing.
        assert_eq!(asked(dir.path()), format!("held by process {} of this host", kafka.id()));
    }
    kafka.kill().unwrap();
    kafka.wait().unwrap();
    assert_eq!(asked(dir.path()), "free");
    assert!(fs::read(&path).unwrap().is_empty());
}

#[test]
fn a_holder_without_a_process_here_is_a_client_of_the_storage() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join(KAFKA_LOCK)).unwrap();
    // As NFS servers lock for their clients.
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    #[allow(unsafe_code)]
    // SAFETY: the descriptor is open, and `lock` is a whole `flock` to read.
    let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    assert_eq!(taken, 0);
    assert_eq!(asked(dir.path()), "held by a client of the storage");
}

#[test]
fn what_does_not_keep_kafka_out_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(asked(dir.path()), "free", "a log dir without a lock file");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "none is made");
    let file = File::create(dir.path().join(KAFKA_LOCK)).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(asked(dir.path()), "free", "BSD's lock is of another kind");
}

#[test]
fn what_cannot_be_asked_is_no_free_lock() {
    let dir = tempfile::tempdir().unwrap();
    let here = "standby-1".into();
    assert!(act(ProbeAct::Lock, &dir.path().join("gone"), &here).is_err());
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join(KAFKA_LOCK)).unwrap();
    assert!(act(ProbeAct::Lock, dir.path(), &here).is_err(), "a link leads elsewhere");
}

#[tokio::test]
async fn the_drivers_ask_in_a_process_and_believe_nothing_else() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let ask = async |script: &str, limit| {
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let dirs = ["/mnt/a".into(), "/mnt/b".into()];
        Prober { program: program.clone(), limit }.locks("nfs", &dirs).await
    };
    let long = Duration::from_secs(20);
    let held = ask("case $4 in */a) echo held by a client of the storage;; *) echo free;; esac", long).await;
    let held = held.unwrap();
    assert_eq!(held, [HeldLock { path: "/mnt/a/.lock".into(), by: "a client of the storage".to_owned() }]);
    assert!(ask("echo free", long).await.unwrap().is_empty());
    for (script, limit, kind) in [
        ("echo", long, "refused"),
        ("echo 'error: Permission denied' >&2; exit 1", long, "refused"),
        ("exec sleep 1000", Duration::from_millis(200), "unconfirmed"),
    ] {
        assert_eq!(ask(script, limit).await.unwrap_err().kind(), kind, "{script}");
    }
}
