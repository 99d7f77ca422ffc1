//! Who holds Kafka's `.lock`? Asked, never taken: a lock that is tried for a moment is one that Kafka may
//! meet.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use futures_util::future::join_all;

use super::{ProbeAct, ProbeError, Prober};
use recovery::model::HeldLock;
use recovery::ports::StepError;

/// Kafka locks this file in every log dir that it works on: the whole of it, by `FileChannel.tryLock`, a
/// POSIX lock.
const KAFKA_LOCK: &str = ".lock";

const FREE: &str = "free";
const HELD_BY: &str = "held by ";

/// What is printed of the lock in `dir`. Over NFS the kernel asks the server, unless it knows a holder on
/// this host itself.
pub(super) fn holder(dir: &Path) -> io::Result<String> {
    let mut open = OpenOptions::new();
    // Opened anew each time: what the client remembers of an earlier look does not count. A link would lead
    // elsewhere.
    open.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let file = match open.open(dir.join(KAFKA_LOCK)) {
        // A broker that has never run here, or a directory that is none of Kafka's: the next step says which.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return std::fs::metadata(dir).map(|_| FREE.to_owned());
        }
        opened => opened?,
    };
    Ok(match in_the_way(&file)? {
        None => FREE.to_owned(),
        // The kernel tells the processes of this host by their numbers.
        Some(pid) if pid > 0 => format!("{HELD_BY}process {pid} of this host"),
        Some(_) => format!("{HELD_BY}a client of the storage"),
    })
}

/// The process that keeps a write lock on the whole file from being granted, as `F_GETLK` tells it.
#[expect(unsafe_code, reason = "rustix takes the -1 of an open file description's lock for a defect")]
fn in_the_way(file: &File) -> io::Result<Option<i32>> {
    // SAFETY: all of its fields are integers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open for as long as `file` lives, and `lock` is a whole `flock` to read and
    // write.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok((lock.l_type != libc::F_UNLCK as libc::c_short).then_some(lock.l_pid))
}

impl Prober {
    /// Which locks of `log_dirs` are held, asked side by side.
    pub(in super::super) async fn locks(
        &self,
        driver: &'static str,
        log_dirs: &[PathBuf],
    ) -> Result<Vec<HeldLock>, StepError> {
        let looks = log_dirs.iter().map(|dir| async move { (dir, self.send(ProbeAct::Lock, dir).await) });
        let mut held = Vec::new();
        for (dir, said) in join_all(looks).await {
            let path = dir.join(KAFKA_LOCK);
            let action = format!("ask who holds {}", path.display());
            let said = said.map_err(|error| match error {
                ProbeError::Said(why) => StepError::Refused { driver, action: action.clone(), why },
                ProbeError::Silent(limit) => StepError::Unconfirmed { driver, action: action.clone(), limit },
                error @ ProbeError::NotStarted(_) => {
                    StepError::Failed { driver, action: action.clone(), source: error.into() }
                }
            })?;
            match said.strip_prefix(HELD_BY) {
                Some(by) => held.push(HeldLock { path, by: by.to_owned() }),
                None if said == FREE => {}
                None => {
                    let why = format!("the probe said `{said}`");
                    return Err(StepError::Refused { driver, action, why });
                }
            }
        }
        Ok(held)
    }
}

#[cfg(test)]
mod tests;
