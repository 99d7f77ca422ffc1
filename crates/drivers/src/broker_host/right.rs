//! The broker's right on a host: whoever starts Kafka takes it, and the Kafka process inherits it for life.
//! The kernel itself knows by it whether a Kafka of the broker lives here, from before its first instruction.
//!
//! It is a lock on `<state_dir>/broker-N/alive.lock` that belongs to the open file, so that no process number
//! and no look at `/proc` stands between two who start. Only a holder whose file somebody has deleted is looked
//! for there: behind it another lock can be taken.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};

use super::site::Site;
use super::user::User;
use recovery::model::BrokerId;

/// The right to run one broker's Kafka on this host.
#[derive(Debug)]
pub struct Right {
    lock: File,
}

/// Why the right was not given.
#[derive(Debug, thiserror::Error)]
pub enum RightError {
    /// Somebody else has it.
    #[error("{path} is held by {by}", path = path.display())]
    Held {
        /// The lock.
        path: PathBuf,
        /// Who, as far as it can be seen.
        by: String,
    },
    /// The lock could not be asked for.
    #[error("the right to run broker {broker} on this host could not be taken: {why}")]
    Failed {
        /// The broker.
        broker: BrokerId,
        /// What went wrong.
        why: String,
    },
}

impl Right {
    /// Takes the right for `broker`, waiting for at most `patience`. `state_dir` is the agent's.
    ///
    /// # Errors
    /// When somebody has it, or the lock cannot be asked for.
    pub fn take(state_dir: &Path, broker: BrokerId, patience: Duration) -> Result<Self, RightError> {
        let site = Site::new(state_dir, broker);
        let failed = |why: String| RightError::Failed { broker, why };
        site.create().map_err(|problem| failed(problem.to_string()))?;
        match site.lock_alive(patience).map_err(|problem| failed(problem.to_string()))? {
            Some(lock) => Ok(Self { lock }),
            None => Err(RightError::Held { by: site.holder_in_words(), path: site.alive_path() }),
        }
    }

    /// Becomes `command`, run by `user` if one is named, which holds the right from its first instruction on
    /// and for as long as anything of it lives. Returns only if that cannot be done.
    ///
    /// # Errors
    /// Always: why it cannot be done.
    pub fn become_kafka(self, command: &[String], user: Option<&str>) -> io::Error {
        let Some((program, arguments)) = command.split_first() else {
            return io::Error::new(io::ErrorKind::InvalidInput, "no command");
        };
        let user = match user.map(User::look_up).transpose() {
            Ok(user) => user,
            Err(why) => return io::Error::other(why),
        };
        if let Err(error) = fcntl_setfd(&self.lock, FdFlags::empty()) {
            return error.into();
        }
        // Credentials belong to the thread, and exec keeps those of the thread that calls it.
        if let Err(error) = user.as_ref().map_or(Ok(()), User::become_user) {
            return error;
        }
        Command::new(program).args(arguments).exec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROKER: BrokerId = BrokerId(1);

    #[test]
    fn the_right_is_one_and_the_holder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let right = Right::take(dir.path(), BROKER, Duration::ZERO).unwrap();
        let error = Right::take(dir.path(), BROKER, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains(&format!("held by {} (", std::process::id())), "{error}");
        assert!(Right::take(dir.path(), BrokerId(2), Duration::ZERO).is_ok());
        drop(right);
        assert!(Right::take(dir.path(), BROKER, Duration::ZERO).is_ok());
    }
}
