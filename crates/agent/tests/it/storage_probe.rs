//! The probing process is the agent's own binary, as `check` and the storage drivers send it out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use drivers::storage::StorageConfig;

const PROGRAM: &str = env!("CARGO_BIN_EXE_understudy");

fn probe(act: &str, dir: &Path) -> Output {
    // Without a configuration: that may be on the very storage that hangs.
    let mut command = Command::new(PROGRAM);
    command.args(["storage-probe", act, "--dir"]).arg(dir).env("UNDERSTUDY_CONFIG", "/gone");
    command.output().unwrap()
}

#[test]
fn each_act_answers_by_its_exit_code_and_says_why_not() {
    let dir = tempfile::tempdir().unwrap();
    for act in ["look", "flush", "unlink", "lock"] {
        let good = probe(act, dir.path());
        assert!(good.status.success(), "{act}: {}", String::from_utf8_lossy(&good.stderr));
        let bad = probe(act, &dir.path().join("gone"));
        let said = String::from_utf8_lossy(&bad.stderr).into_owned();
        assert!(!bad.status.success() && said.contains("No such file"), "{act}: {said}");
    }
    assert_eq!(probe("format", dir.path()).status.code(), Some(2));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "something was left");
}

#[tokio::test]
async fn a_driver_asks_through_it_what_becomes_of_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let log_dir = dir.path().join("data");
    fs::create_dir(&log_dir).unwrap();
    let config: StorageConfig = toml::from_str("driver = \"mounted\"\nrequire_mount = false").unwrap();
    let dirs: Vec<PathBuf> = vec![log_dir.clone()];
    let storage = config.build(dirs, Path::new(PROGRAM)).unwrap();
    let note = storage.unlinks().await.unwrap();
    assert_eq!(note.details[&format!("silly_rename {}", log_dir.display())], "no", "{}", note.text);
    fs::remove_dir(&log_dir).unwrap();
    assert!(storage.unlinks().await.is_err(), "nothing is tried where no log dir is");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_driver_asks_through_it_who_holds_kafkas_lock() {
    let dir = tempfile::tempdir().unwrap();
    let config: StorageConfig = toml::from_str("driver = \"mounted\"\nrequire_mount = false").unwrap();
    let storage = config.build(vec![dir.path().to_owned()], Path::new(PROGRAM)).unwrap();
    assert_eq!(storage.locks().await.unwrap(), [], "there is no lock file");
    let path = dir.path().join(".lock");
    let file = fs::File::create(&path).unwrap();
    assert_eq!(storage.locks().await.unwrap(), []);
    // Java's `FileChannel.tryLock` is this lock.
    rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let held = storage.locks().await.unwrap();
    let by = format!("process {} of this host", std::process::id());
    assert_eq!(held.iter().map(|lock| (&lock.path, &lock.by)).collect::<Vec<_>>(), [(&path, &by)]);
    drop(file);
    assert_eq!(storage.locks().await.unwrap(), []);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else was made");
}
