//! What a host keeps of itself and of its ledger, in its state directory. Local files, each in one piece.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process;

use jiff::Timestamp;

use recovery::known::{Identity, Machine, Met};
use recovery::model::{BrokerId, Epoch};
use recovery::ports::{LedgerError, chain};

/// A text that is like no other.
///
/// # Errors
/// When the kernel has no randomness to give.
pub fn random_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

/// The files.
#[derive(Debug, Clone)]
pub struct Local {
    dir: PathBuf,
}

impl Local {
    /// Those in `state_dir`.
    #[must_use]
    pub fn new(state_dir: PathBuf) -> Self {
        Self { dir: state_dir }
    }

    fn ledger(&self) -> PathBuf {
        self.dir.join("ledger.json")
    }

    fn epoch(&self, broker: BrokerId) -> PathBuf {
        self.dir.join(format!("epoch-{broker}"))
    }

    /// In one piece and on the disk. Without `anew` a file that is there stays.
    fn write(&self, path: &Path, text: &str, anew: bool) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let draft = self.dir.join(format!(".{name}-{}-{}", process::id(), random_id()?));
        let mut file = File::options().write(true).create_new(true).mode(0o644).open(&draft)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        let placed =
            written.and_then(|()| if anew { fs::rename(&draft, path) } else { fs::hard_link(&draft, path) });
        let _ = fs::remove_file(&draft);
        match placed {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) => File::open(&self.dir)?.sync_all(),
        }
    }
}

impl Machine for Local {
    fn met(&self) -> Result<Option<Met>, LedgerError> {
        let path = self.ledger();
        let Some(text) = read(&path)? else { return Ok(None) };
        let met = serde_json::from_str(&text).map_err(io::Error::from);
        met.map(Some).map_err(|error| local_error("understand", &path, &error))
    }

    fn meet(&self, identity: &Identity, place: &str) -> Result<(), LedgerError> {
        let met = Met { id: identity.id.clone(), since: Timestamp::now(), place: place.to_owned() };
        let (path, text) = (self.ledger(), serde_json::to_string(&met).unwrap_or_default());
        self.write(&path, &format!("{text}\n"), true).map_err(|error| local_error("write", &path, &error))
    }

    fn instance(&self) -> Result<Option<String>, LedgerError> {
        let path = self.dir.join("instance");
        match read(&path)?.map(|text| text.trim().to_owned()) {
            Some(text) if text.is_empty() => {
                Err(local_error("understand", &path, &io::Error::other("it is empty")))
            }
            instance => Ok(instance),
        }
    }

    fn ensure_instance(&self) -> Result<String, LedgerError> {
        if let Some(instance) = self.instance()? {
            return Ok(instance);
        }
        let path = self.dir.join("instance");
        let made = random_id().and_then(|id| self.write(&path, &format!("{id}\n"), false));
        made.map_err(|error| local_error("write", &path, &error))?;
        // Another process of this host may have been faster.
        let made = self.instance()?;
        made.ok_or_else(|| local_error("read back", &path, &ErrorKind::NotFound.into()))
    }

    fn newest_epoch(&self, broker: BrokerId) -> Result<Epoch, LedgerError> {
        let path = self.epoch(broker);
        let Some(text) = read(&path)? else { return Ok(Epoch::default()) };
        let number = text.trim().parse().map_err(io::Error::other);
        number.map(Epoch).map_err(|error| local_error("understand", &path, &error))
    }

    fn keep_epoch(&self, broker: BrokerId, epoch: Epoch) -> Result<(), LedgerError> {
        let path = self.epoch(broker);
        self.write(&path, &format!("{epoch}\n"), true).map_err(|error| local_error("write", &path, &error))
    }
}

fn read(path: &Path) -> Result<Option<String>, LedgerError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(local_error("read", path, &error)),
    }
}

/// What is said of a local file that cannot be used.
fn local_error(verb: &str, path: &Path, error: &io::Error) -> LedgerError {
    let why = format!("{}; see that `agent.state_dir` is this host's own, and writable", chain(error));
    LedgerError::Unavailable { action: format!("{verb} {}", path.display()), source: why.into() }
}

#[cfg(test)]
mod tests;
