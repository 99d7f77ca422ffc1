//! `flock` in the agent's local state directory: one takeover of a broker at a time on this host.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use recovery::model::BrokerId;
use recovery::ports::{HostLock, StepError};

const DRIVER: &str = "host_lock";

/// Locks `<state_dir>/broker-N/takeover.lock`. The kernel frees it when the process ends, however it ends.
#[derive(Debug, Clone)]
pub struct FlockHostLock {
    state_dir: PathBuf,
}

impl FlockHostLock {
    /// Locks below `state_dir`, a local directory.
    #[must_use]
    pub fn new(state_dir: PathBuf) -> Self {
        Self { state_dir }
    }
}

impl HostLock for FlockHostLock {
    fn try_lock(&self, broker: BrokerId) -> Result<Box<dyn Send>, StepError> {
        let dir = self.state_dir.join(format!("broker-{broker}"));
        let path = dir.join("takeover.lock");
        let action = || format!("lock {}", path.display());
        let failed =
            |e: std::io::Error| StepError::Failed { driver: DRIVER, action: action(), source: e.into() };
        fs::create_dir_all(&dir).map_err(failed)?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                note_holder(&mut file).map_err(failed)?;
                Ok(Box::new(file))
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                file.read_to_string(&mut pid).map_err(failed)?;
                let why = format!("process {} holds it; wait for it, or end it", pid.trim());
                Err(StepError::Refused { driver: DRIVER, action: action(), why })
            }
            Err(errno) => Err(failed(errno.into())),
        }
    }
}

/// The first of `brokers` whose lock in `state_dir` some process holds. Looks without taking it, which could
/// make a takeover find it taken.
///
/// # Errors
/// When the kernel's list of locks cannot be read.
pub(crate) fn held(state_dir: &Path, brokers: &[BrokerId]) -> Result<Option<BrokerId>, StepError> {
    let list = "/proc/locks";
    let locks = fs::read_to_string(list).map_err(|error| StepError::Failed {
        driver: DRIVER,
        action: format!("read {list}"),
        source: error.into(),
    })?;
    // "1: FLOCK  ADVISORY  WRITE 4242 08:01:12345 0 EOF". The device is not compared: a file system may tell
    // another one to stat(2), and to hold back for a stranger's lock once in a while does no harm.
    let inodes: BTreeSet<u64> = locks
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(1) == Some(&"FLOCK"))
        .filter_map(|words| words.get(5)?.rsplit(':').next()?.parse().ok())
        .collect();
    let inode = |broker: &BrokerId| {
        let path = state_dir.join(format!("broker-{broker}")).join("takeover.lock");
        fs::metadata(path).ok().map(|file| file.ino())
    };
    Ok(brokers.iter().find(|broker| inode(broker).is_some_and(|inode| inodes.contains(&inode))).copied())
}

/// For the message that the next one gets.
fn note_holder(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_holds_it_and_gets_it_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let lock = FlockHostLock::new(dir.path().to_owned());
        let held = lock.try_lock(BrokerId(1)).unwrap();
        let Err(error) = lock.try_lock(BrokerId(1)) else { panic!("locked twice") };
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        let _other = lock.try_lock(BrokerId(2)).unwrap();
        let brokers = [BrokerId(3), BrokerId(1)];
        assert_eq!(super::held(dir.path(), &brokers).unwrap(), Some(BrokerId(1)));
        drop(held);
        assert_eq!(super::held(dir.path(), &brokers).unwrap(), None);
        lock.try_lock(BrokerId(1)).map(drop).unwrap();
    }
}
