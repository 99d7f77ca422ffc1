//! Looks at a log dir: does it exist, and on what mount does it lie?

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::mountinfo::{Mount, Mounts};
use crate::off_path::{OffPathError, off_path};
use kafka::meta_properties::FILE_NAME;
use recovery::ports::BoxError;

/// What is wrong with a log dir.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogDirError {
    #[error("{} does not exist: is its storage mounted?", dir.display())]
    Missing { dir: PathBuf },
    #[error("{} is not a directory", dir.display())]
    NotADirectory { dir: PathBuf },
    #[error("{} could not be looked at", dir.display())]
    Unreadable { dir: PathBuf, source: BoxError },
    #[error("what is mounted on this host could not be read")]
    Mountinfo(#[source] io::Error),
    #[error("no mount of this host covers {}", dir.display())]
    NoMount { dir: PathBuf },
}

impl LogDirError {
    /// Whether the attempt itself failed, so that nothing is known of the log dir.
    pub(super) fn is_failure(&self) -> bool {
        matches!(self, Self::Unreadable { .. } | Self::Mountinfo(_))
    }
}

/// The mount a log dir lies on, having looked that the log dir is there. Writes nothing.
pub(super) async fn look(dir: &Path, limit: Duration) -> Result<Mount, LogDirError> {
    let unreadable = |source| LogDirError::Unreadable { dir: dir.to_owned(), source };
    let path = dir.to_owned();
    let resolve = move || -> io::Result<(PathBuf, bool)> {
        let real = fs::canonicalize(path)?;
        let is_dir = fs::metadata(&real)?.is_dir();
        Ok((real, is_dir))
    };
    let found = off_path(&format!("looking at {}", dir.display()), limit, resolve).await;
    let (real, is_dir) = match found.map_err(|e: OffPathError| unreadable(e.into()))? {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(LogDirError::Missing { dir: dir.to_owned() });
        }
        Err(e) => return Err(unreadable(e.into())),
    };
    if !is_dir {
        return Err(LogDirError::NotADirectory { dir: dir.to_owned() });
    }
    // Read after the look, which may have made an automounter mount it.
    let mounts = Mounts::read().map_err(LogDirError::Mountinfo)?;
    mounts.covering(&real).cloned().ok_or_else(|| LogDirError::NoMount { dir: dir.to_owned() })
}

/// Whether a broker's log dir was ever formatted. One that may not be looked into is left to whoever may.
pub(super) async fn has_meta(dir: &Path, limit: Duration) -> Result<bool, LogDirError> {
    let path = dir.join(FILE_NAME);
    let found = off_path(&format!("looking at {}", path.display()), limit, move || fs::metadata(path)).await;
    let found = found.map_err(|e| LogDirError::Unreadable { dir: dir.to_owned(), source: e.into() })?;
    Ok(!found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound))
}

/// What is wrong with the log dirs as they are configured, as `key: what is wrong`.
pub(super) fn problems(log_dirs: &[PathBuf]) -> Vec<String> {
    let relative = log_dirs.iter().filter(|dir| !dir.is_absolute());
    let mut problems: Vec<String> =
        relative.map(|dir| format!("log_dirs: {} is not an absolute path", dir.display())).collect();
    if log_dirs.is_empty() {
        problems.push("log_dirs: there is none".to_owned());
    }
    problems
}
