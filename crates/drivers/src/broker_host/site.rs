//! What is kept of one broker on this host: `<state_dir>/broker-N/`.
//!
//! Both drivers write the first and hold the second; the rest belongs to `process`.
//!
//! | file | what |
//! |---|---|
//! | `server.properties` | what Kafka is started with |
//! | `start.lock` | held by an agent while it starts or stops Kafka |
//! | `process.json` | the last Kafka started here |
//! | `kafka.out` | its standard output and error |
//! | `alive.lock` | the broker's right on this host: held by Kafka itself, and by every child of it, for as long as they live |

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, fchmod, fchown, flock};
use rustix::io::Errno;
use rustix::process::Gid;
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::proc::{self, Holder, ProcessId};
use super::telling::telling;
use recovery::model::{BrokerId, Epoch};

/// How often a lock that is held is tried again.
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// Bytes of Kafka's output that are looked at for what goes into a message.
const TAIL_BYTES: u64 = 64 * 1024;

/// The last Kafka that was started here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// The epoch it was started for.
    pub(super) epoch: Epoch,
    /// The boot it was started in: process numbers mean nothing in another one.
    pub(super) boot_id: String,
    /// The process; `None` while it is being started.
    pub(super) process: Option<ProcessId>,
    /// What was run.
    pub(super) command: Vec<String>,
    /// The proof that was shown.
    pub(super) proof: String,
    /// Where its output begins in `kafka.out`, in bytes.
    pub(super) output_from: u64,
}

/// The directory of one broker.
#[derive(Debug, Clone)]
pub(super) struct Site {
    broker: BrokerId,
    dir: PathBuf,
}

impl Site {
    pub(super) fn new(state_dir: &Path, broker: BrokerId) -> Self {
        Self { broker, dir: state_dir.join(format!("broker-{broker}")) }
    }

    /// What Kafka is started with.
    pub(super) fn properties(&self) -> PathBuf {
        self.dir.join("server.properties")
    }

    /// Where Kafka's output goes.
    pub(super) fn output(&self) -> PathBuf {
        self.dir.join("kafka.out")
    }

    /// Makes the directory. Kafka's user must be able to pass through it.
    pub(super) fn create(&self) -> Result<(), Problem> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.dir);
        made.map_err(Problem::io(format!("creating {}", self.dir.display())))
    }

    /// The last Kafka that was started here, if any.
    pub(super) fn record(&self) -> Result<Option<Record>, Problem> {
        let path = self.record_path();
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Problem::io(format!("reading {}", path.display()))(error)),
        };
        serde_json::from_slice(&content).map(Some).map_err(|error| {
            Problem::Refused(format!(
                "{path} is damaged ({error}): make sure that no Kafka of broker {broker} runs on this host, \
                 then remove the file",
                path = path.display(),
                broker = self.broker,
            ))
        })
    }

    /// Keeps the record durably.
    pub(super) fn keep(&self, record: &Record) -> Result<(), Problem> {
        let path = self.record_path();
        let content = serde_json::to_vec_pretty(record).map_err(Problem::io(path.display().to_string()))?;
        write_durably(&path, &content, None)
    }

    /// Forgets the record: Kafka was stopped on request.
    pub(super) fn forget(&self) -> Result<(), Problem> {
        let path = self.record_path();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Problem::io(format!("removing {}", path.display()))(error))
            }
            _ => sync_dir(&self.dir),
        }
    }

    fn record_path(&self) -> PathBuf {
        self.dir.join("process.json")
    }

    /// Keeps every other agent process on this host from starting or stopping this broker.
    pub(super) fn lock_start(&self, patience: Duration) -> Result<File, Problem> {
        let path = self.dir.join("start.lock");
        lock(&path, FlockOperation::NonBlockingLockExclusive, patience)?.ok_or_else(|| {
            Problem::Refused(format!(
                "another agent process on this host is starting or stopping broker {}: it holds {}; \
                 wait for it, or find it with `fuser -v {1}`",
                self.broker,
                path.display()
            ))
        })
    }

    /// The lock that a new Kafka inherits, or `None` if a Kafka has it: also one whose lock file somebody has
    /// deleted meanwhile, behind which there is a new one.
    pub(super) fn lock_alive(&self, patience: Duration) -> Result<Option<File>, Problem> {
        let begun = Instant::now();
        let Some(file) = lock(&self.alive_path(), FlockOperation::NonBlockingLockExclusive, patience)? else {
            return Ok(None);
        };
        while !proc::holders(&BTreeSet::from([self.deleted_alive_path()]), &[])?.is_empty() {
            if begun.elapsed() >= patience {
                return Ok(None);
            }
            thread::sleep(RETRY_EVERY);
        }
        Ok(Some(file))
    }

    /// What the kernel calls the lock file after it was deleted.
    fn deleted_alive_path(&self) -> PathBuf {
        let path = self.alive_path();
        let mut name = path.canonicalize().unwrap_or(path).into_os_string();
        name.push(" (deleted)");
        name.into()
    }

    /// Whether a process that was started as this broker, or a child of one, still lives.
    pub(super) fn is_held(&self) -> Result<bool, Problem> {
        if !self.dir.exists() {
            return Ok(false);
        }
        // Shared, so that two who look at the same time do not take each other for Kafka.
        let lock = lock(&self.alive_path(), FlockOperation::NonBlockingLockShared, Duration::ZERO)?;
        Ok(lock.is_none())
    }

    /// Who has the right, as far as it can be seen. This reads the open files of every process.
    pub(super) fn holders(&self) -> Result<Vec<Holder>, Problem> {
        let path = self.alive_path();
        let path = path.canonicalize().unwrap_or(path);
        proc::holders(&BTreeSet::from([path, self.deleted_alive_path()]), &[])
    }

    /// The same in words.
    pub(super) fn holder_in_words(&self) -> String {
        match &self.holders().unwrap_or_default()[..] {
            [] => format!("a process that `fuser -v {}` shows", self.alive_path().display()),
            all => all.iter().map(|holder| holder.text.as_str()).collect::<Vec<_>>().join("; "),
        }
    }

    /// The lock file that Kafka holds.
    pub(super) fn alive_path(&self) -> PathBuf {
        self.dir.join("alive.lock")
    }

    /// What Kafka printed last, from byte `from` of its output on: see [`telling`].
    pub(super) fn last_lines(&self, from: u64) -> Result<String, Problem> {
        let path = self.output();
        let read = || {
            let mut file = File::open(&path)?;
            let end = file.metadata()?.len();
            file.seek(SeekFrom::Start(from.max(end.saturating_sub(TAIL_BYTES))))?;
            let mut content = Vec::new();
            file.take(TAIL_BYTES).read_to_end(&mut content)?;
            Ok::<_, std::io::Error>(content)
        };
        let content = read().map_err(Problem::io(format!("reading {}", path.display())))?;
        let text = String::from_utf8_lossy(&content);
        Ok(telling(&text))
    }
}

/// Takes a lock that goes with the open file: a child that inherits the file holds it too, and it ends
/// with the last of them.
fn lock(path: &Path, operation: FlockOperation, patience: Duration) -> Result<Option<File>, Problem> {
    let open = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    let file = open.map_err(Problem::io(format!("opening {}", path.display())))?;
    let begun = Instant::now();
    loop {
        match flock(&file, operation) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::WOULDBLOCK) if begun.elapsed() >= patience => return Ok(None),
            Err(Errno::WOULDBLOCK) => thread::sleep(RETRY_EVERY),
            Err(error) => return Err(Problem::io(format!("locking {}", path.display()))(error)),
        }
    }
}

/// Writes a file that is either the old or the new one after a crash. `group` may read it.
pub(super) fn write_durably(path: &Path, content: &[u8], group: Option<Gid>) -> Result<(), Problem> {
    let tmp = path.with_extension("tmp");
    let write = || {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&tmp)?;
        // An earlier crash may have left the file, with other rights.
        let mode =
            if group.is_some() { Mode::RUSR | Mode::WUSR | Mode::RGRP } else { Mode::RUSR | Mode::WUSR };
        fchown(&file, None, group)?;
        fchmod(&file, mode)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&tmp, path)
    };
    write().map_err(Problem::io(format!("writing {}", path.display())))?;
    path.parent().map_or(Ok(()), sync_dir)
}

fn sync_dir(dir: &Path) -> Result<(), Problem> {
    let sync = File::open(dir).and_then(|dir| dir.sync_all());
    sync.map_err(Problem::io(format!("syncing {}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> (tempfile::TempDir, Site) {
        let dir = tempfile::tempdir().unwrap();
        let site = Site::new(dir.path(), BrokerId(1));
        site.create().unwrap();
        (dir, site)
    }

    #[test]
    fn a_record_is_read_back_and_forgotten() {
        let (_dir, site) = site();
        assert_eq!(site.record().unwrap(), None);
        let record = Record {
            epoch: Epoch(3),
            boot_id: "b".into(),
            process: Some(ProcessId { pid: 7, start_ticks: 9 }),
            command: vec!["kafka".into()],
            proof: "off".into(),
            output_from: 5,
        };
        site.keep(&record).unwrap();
        assert_eq!(site.record().unwrap(), Some(record));
        site.forget().unwrap();
        site.forget().unwrap();
        assert_eq!(site.record().unwrap(), None);
    }

    #[test]
    fn a_damaged_record_says_what_to_do() {
        let (_dir, site) = site();
        fs::write(site.record_path(), "{\"epoch\":").unwrap();
        let error = site.record().unwrap_err().to_string();
        assert!(error.contains("process.json is damaged") && error.contains("remove the file"), "{error}");
    }

    #[test]
    fn the_alive_lock_is_seen_while_it_is_held() {
        let (_dir, site) = site();
        let held = site.lock_alive(Duration::ZERO).unwrap().unwrap();
        assert!(site.is_held().unwrap());
        assert!(site.lock_alive(Duration::ZERO).unwrap().is_none());
        drop(held);
        assert!(!site.is_held().unwrap());
    }

    #[test]
    fn a_right_whose_file_was_deleted_is_still_one() {
        let (_dir, site) = site();
        let held = site.lock_alive(Duration::ZERO).unwrap().unwrap();
        fs::remove_file(site.alive_path()).unwrap();
        assert!(site.lock_alive(Duration::ZERO).unwrap().is_none());
        let us = std::process::id().to_string();
        assert!(site.holder_in_words().contains(&us), "{}", site.holder_in_words());
        drop(held);
        assert!(site.lock_alive(Duration::ZERO).unwrap().is_some());
    }

    #[test]
    fn last_lines_are_those_of_the_last_start() {
        let (_dir, site) = site();
        fs::write(site.output(), "old\nnew 1\n\nnew 2\n").unwrap();
        assert_eq!(site.last_lines(4).unwrap(), "new 1\nnew 2");
        let many: String = (0..1000).map(|n| format!("line {n} {}\n", "x".repeat(40))).collect();
        fs::write(site.output(), many).unwrap();
        let lines = site.last_lines(0).unwrap();
        assert_eq!(lines.lines().count(), crate::broker_host::telling::LAST);
        assert!(lines.lines().last().unwrap().starts_with("line 999"), "{lines}");
    }
}
