//! Where things lie in the ledger directory, and how a file gets there in one piece.
//!
//! ```text
//! <dir>/format                                  the version of this layout
//! <dir>/cell-<name>.<version>                   which ledger it is, who has a host's name, where a broker's home is
//! <dir>/orders-<host>.journal                   what people on <host> told all agents, and what its agent answered
//! <dir>/broker-<id>/epoch-<n>.journal           one takeover, the claim first
//! <dir>/broker-<id>/decisions-<host>.journal    what <host> decided, newest; .1.journal: what went before
//! ```
//!
//! Everything here blocks and may hang: it is called through `off_path` only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::turn::Turns;
use crate::bounded;
use recovery::format;
use recovery::model::{BrokerId, Epoch, HostName};
use recovery::ports::{BoxError, LedgerError};

/// The version of the layout that this program knows.
const FORMAT: u32 = 1;
const FORMAT_FILE: &str = "format";
const FORMAT_WORDS: &str = "understudy ledger format ";

/// A temporary file of this host is a leftover once it is this much older than the one just made. Both times
/// are the file server's, so that no clock of a host matters.
const LEFTOVER_AFTER: Duration = Duration::from_secs(3600);

/// The longest file that is read, in bytes. The journal of a takeover has some hundred lines, and decisions
/// are cut to much less than this.
pub(super) const LONGEST_FILE: u64 = 64 << 20;

pub(super) fn unavailable(action: String, source: impl Into<BoxError>) -> LedgerError {
    LedgerError::Unavailable { action, source: source.into() }
}

/// For `map_err`: an I/O error of doing `verb` to `path`.
pub(super) fn failed(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> LedgerError {
    let action = format!("{verb} {}", path.display());
    move |error| unavailable(action, error)
}

pub(super) fn damaged(place: impl Into<String>, why: impl Into<String>) -> LedgerError {
    LedgerError::Damaged { place: place.into(), why: why.into() }
}

/// The ledger directory.
#[derive(Debug)]
pub(super) struct Root {
    dir: PathBuf,
    /// Whether the format file was seen. If it is missing later, the directory is another one by now.
    seen: AtomicBool,
    turns: Turns,
}

impl Root {
    /// `patience`: how long a file may be waited for that cannot be opened yet.
    pub(super) fn new(dir: PathBuf, patience: Duration) -> Self {
        Self { dir, seen: AtomicBool::new(false), turns: Turns::new(patience) }
    }

    pub(super) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// What a file holds, read in its turn; `None` where there is none.
    pub(super) fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, LedgerError> {
        let _turn = self.turns.take(path)?;
        match bounded::read_file(path, LONGEST_FILE) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", path)(error)),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn broker_dir(&self, broker: BrokerId) -> PathBuf {
        self.dir.join(format!("broker-{broker}"))
    }

    /// Whether there is a ledger in the directory. It must be one that this program knows, or empty.
    pub(super) fn has_ledger(&self) -> Result<bool, LedgerError> {
        let path = self.dir.join(FORMAT_FILE);
        match self.read_format(&path)? {
            true => Ok(true),
            // Looked up again once the directory has been listed, for an NFS client remembers for a while
            // that a file was not there.
            false if self.lists_format()? => self.read_format(&path),
            false => Ok(false),
        }
    }

    fn read_format(&self, path: &Path) -> Result<bool, LedgerError> {
        let Some(bytes) = self.read(path)? else { return Ok(false) };
        known_format(path, &String::from_utf8_lossy(&bytes))?;
        self.seen.store(true, Ordering::Relaxed);
        Ok(true)
    }

    fn lists_format(&self) -> Result<bool, LedgerError> {
        let at = self.dir.display();
        let Some(names) = names(&self.dir)? else {
            let why = "there is no such directory: mount the shared storage. Make it by hand, on that storage, only where the cluster has no ledger yet";
            return Err(unavailable(format!("open {at}"), why));
        };
        if names.iter().any(|name| name == FORMAT_FILE) {
            return Ok(true);
        }
        if self.seen.load(Ordering::Relaxed) {
            let why = "the ledger was there and is gone: the shared storage is not mounted any more";
            return Err(unavailable(format!("read {at}"), why));
        }
        if names.iter().any(|name| name.starts_with("broker-")) {
            let why = "it has brokers and lacks the file `format`: restore that from a snapshot, or write \
                       the line `understudy ledger format 1` to it if only it was lost";
            return Err(damaged(at.to_string(), why));
        }
        Ok(false)
    }

    /// Ensures that there is a ledger and a directory for `broker` in it. The ledger directory itself is
    /// never created: where it is missing, the storage is most likely not mounted.
    pub(super) fn ensure_broker_dir(&self, broker: BrokerId) -> Result<PathBuf, LedgerError> {
        self.ensure()?;
        let dir = self.broker_dir(broker);
        match fs::create_dir(&dir) {
            Ok(()) => sync_dir(&self.dir)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("create", &dir)(error)),
        }
        Ok(dir)
    }

    /// Ensures that there is a ledger.
    pub(super) fn ensure(&self) -> Result<(), LedgerError> {
        if !self.has_ledger()? {
            let text = format!("{FORMAT_WORDS}{FORMAT}\n");
            publish(&self.dir, FORMAT_FILE, "format", text.as_bytes())?;
            self.has_ledger()?;
        }
        Ok(())
    }
}

fn known_format(path: &Path, text: &str) -> Result<(), LedgerError> {
    let number = text.strip_prefix(FORMAT_WORDS).and_then(|n| n.trim_end().parse::<u32>().ok());
    match number {
        Some(FORMAT) => Ok(()),
        Some(other) => {
            let why = format!("it has format {other}, and this understudy knows {FORMAT}");
            Err(format::newer(path.display().to_string(), why))
        }
        None => {
            let why = format!("it must be the line `{FORMAT_WORDS}{FORMAT}`: restore it from a snapshot");
            Err(damaged(path.display().to_string(), why))
        }
    }
}

/// The file of an epoch, within its broker's directory.
pub(super) fn epoch_file(epoch: Epoch) -> String {
    format!("epoch-{epoch}.journal")
}

fn epoch_of(name: &str) -> Option<Epoch> {
    let number = name.strip_prefix("epoch-")?.strip_suffix(".journal")?;
    let epoch = Epoch(number.parse().ok()?);
    (epoch_file(epoch) == name).then_some(epoch)
}

/// The newest decisions of `host`, and those before them.
pub(super) fn decision_files(host: &HostName) -> (String, String) {
    let host = file_name(&host.0);
    (format!("decisions-{host}.journal"), format!("decisions-{host}.1.journal"))
}

/// The orders that were given on `host`.
pub(super) fn orders_file(host: &HostName) -> String {
    format!("orders-{}.journal", file_name(&host.0))
}

/// Whether a file holds orders.
pub(super) fn is_orders(name: &str) -> bool {
    name.starts_with("orders-") && name.ends_with(".journal")
}

/// Whether a file holds decisions.
pub(super) fn is_decisions(name: &str) -> bool {
    name.starts_with("decisions-") && name.ends_with(".journal")
}

/// A host name as part of a file name: two names never become the same.
pub(in crate::ledger) fn file_name(name: &str) -> String {
    let mut safe = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => safe.push(char::from(byte)),
            // The dot is among them, so that no host's file looks like another host's older one.
            _ => safe.push_str(&format!("%{byte:02x}")),
        }
    }
    safe
}

/// The names in a directory as they are on the server now; `None` where there is no such directory.
pub(super) fn names(dir: &Path) -> Result<Option<Vec<String>>, LedgerError> {
    if !ask(dir)? {
        return Ok(None);
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        let name = entry.map_err(failed("list", dir))?.file_name();
        names.extend(name.into_string().ok());
    }
    Ok(Some(names))
}

/// Asks the server for a directory's attributes; whether there is such a directory.
///
/// An NFS client may answer from a listing that is a minute old, and would not see that another host has won
/// an epoch. By the attributes (NFSv4's change attribute among them, which never stands still as a time stamp
/// may) it drops an outdated listing, and what it remembers of names that were not there.
pub(super) fn ask(dir: &Path) -> Result<bool, LedgerError> {
    match statx(CWD, dir, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(error) => Err(failed("read", dir)(error.into())),
    }
}

/// Every epoch in a broker's directory, oldest first.
///
/// # Errors
/// When one is missing: epochs are counted without gaps.
pub(super) fn epochs(dir: &Path) -> Result<Vec<Epoch>, LedgerError> {
    let mut epochs: Vec<Epoch> = names(dir)?.unwrap_or_default().iter().filter_map(|n| epoch_of(n)).collect();
    epochs.sort_unstable();
    let Some(newest) = epochs.last() else { return Ok(epochs) };
    let all: Vec<Epoch> = (1..=newest.0).map(Epoch).collect();
    for missing in all.iter().filter(|epoch| epochs.binary_search(epoch).is_err()) {
        let path = dir.join(epoch_file(*missing));
        // A listing that is read while epochs are won may show the newer and not the older one.
        if !path.try_exists().map_err(failed("read", &path))? {
            let why = format!("it is missing, and epoch {newest} exists: restore it from a snapshot");
            return Err(damaged(path.display().to_string(), why));
        }
    }
    Ok(all)
}

/// Gives `dir/name` the content, in one piece, unless it exists. Returns whether we did.
///
/// The content is on stable storage before the name appears, and a name appears once: `link` is exclusive on
/// every file system, NFS included, where an exclusive create followed by a write would leave a moment, or
/// after a crash an eternity, with an empty file. `owner`, free of dots, names the temporary file.
pub(super) fn publish(dir: &Path, name: &str, owner: &str, content: &[u8]) -> Result<bool, LedgerError> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let (pid, n) = (process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
    let draft = dir.join(format!(".{owner}.{name}-{pid}-{n}.tmp"));
    let target = dir.join(name);
    let won = write_new(&draft, content).and_then(|()| link(&draft, &target));
    // What cannot be removed now is a leftover: ignored by everybody, removed by a later `clean`.
    let _ = fs::remove_file(&draft);
    let won = won.map_err(failed("create", &target))?;
    sync_dir(dir)?;
    Ok(won)
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn link(draft: &Path, target: &Path) -> io::Result<bool> {
    let Err(error) = fs::hard_link(draft, target) else { return Ok(true) };
    // An NFS server may have done it and its answer may be lost; the repeated request then fails with
    // "exists". The draft's second name tells.
    if linked(draft, target).unwrap_or(false) {
        return Ok(true);
    }
    if error.kind() == ErrorKind::AlreadyExists { Ok(false) } else { Err(error) }
}

fn linked(draft: &Path, target: &Path) -> io::Result<bool> {
    let look = |path| statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    let (ours, theirs) = (look(draft)?, look(target)?);
    Ok(ours.stx_nlink == 2 && ours.stx_ino == theirs.stx_ino)
}

/// Makes names that were added to or removed from a directory durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), LedgerError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(failed("make durable", dir))
}

/// Removes the temporary files that a crashed process of `owner` left. Never fails: they do no harm.
pub(super) fn clean(dir: &Path, owner: &str, newer: &Path) {
    let Ok(now) = fs::metadata(newer).map(|m| m.mtime()) else { return };
    let prefix = format!(".{owner}.");
    for name in names(dir).ok().flatten().unwrap_or_default() {
        let path = dir.join(&name);
        let ours = name.starts_with(&prefix) && name.ends_with(".tmp");
        let old = |m: fs::Metadata| now.saturating_sub(m.mtime()) > LEFTOVER_AFTER.as_secs() as i64;
        if ours && fs::symlink_metadata(&path).is_ok_and(old) {
            let _ = fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn only_canonical_names_are_epochs() {
        assert_eq!(epoch_of("epoch-12.journal"), Some(Epoch(12)));
        for name in [
            "epoch-012.journal",
            "epoch-+1.journal",
            "epoch-.journal",
            "epoch-1.journal~",
            ".epoch-1.journal",
        ] {
            assert_eq!(epoch_of(name), None, "{name}");
        }
    }

    #[test]
    fn host_names_never_meet_as_file_names() {
        let names = ["a", "a.1", "a%2e1", "../a", "A", "ä", "a b"];
        let files: std::collections::BTreeSet<String> = names.iter().map(|n| file_name(n)).collect();
        assert_eq!(files.len(), names.len(), "{files:?}");
        assert!(files.iter().all(|f| !f.contains(['/', '.'])), "{files:?}");
    }

    #[test]
    fn publishing_is_exclusive_and_leaves_no_draft() {
        let dir = tempfile::tempdir().unwrap();
        assert!(publish(dir.path(), "x", "h", b"first").unwrap());
        assert!(!publish(dir.path(), "x", "h", b"second").unwrap());
        assert_eq!(fs::read(dir.path().join("x")).unwrap(), b"first");
        assert_eq!(names(dir.path()).unwrap().unwrap(), ["x"]);
    }

    #[test]
    fn a_link_whose_answer_was_lost_counts_as_won() {
        let dir = tempfile::tempdir().unwrap();
        let (draft, target) = (dir.path().join("draft"), dir.path().join("target"));
        fs::write(&draft, b"x").unwrap();
        // The server did it; the client repeats the request and gets "exists".
        fs::hard_link(&draft, &target).unwrap();
        assert!(link(&draft, &target).unwrap());
        // A rival's file with two names is not ours.
        let rival = dir.path().join("rival");
        fs::write(&rival, b"y").unwrap();
        fs::hard_link(&rival, dir.path().join("rival-2")).unwrap();
        assert!(!link(&draft, &rival).unwrap());
    }

    #[test]
    fn leftovers_are_cleaned_by_their_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (old, young, foreign) = (path(".a.x-1-0.tmp"), path(".a.x-1-1.tmp"), path(".a-b.x-1-0.tmp"));
        let newer = path("epoch-1.journal");
        for file in [&old, &young, &foreign, &newer] {
            fs::write(file, b"").unwrap();
        }
        let long_ago = std::time::SystemTime::now() - 2 * LEFTOVER_AFTER;
        for file in [&old, &foreign] {
            File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
        }
        clean(dir.path(), "a", &newer);
        assert_eq!((old.exists(), young.exists(), foreign.exists()), (false, true, true));
    }

    #[test]
    fn a_gap_in_the_epochs_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        for epoch in [1, 3] {
            fs::write(dir.path().join(epoch_file(Epoch(epoch))), b"").unwrap();
        }
        let error = epochs(dir.path()).unwrap_err().to_string();
        assert!(error.contains("epoch-2.journal is damaged: it is missing"), "{error}");
    }

    #[test]
    fn a_newer_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FORMAT_FILE), "understudy ledger format 2\n").unwrap();
        let error = Root::new(dir.path().to_owned(), LONG).has_ledger().unwrap_err();
        assert!(recovery::ports::chain(&error).contains("upgrade this host"), "{error}");
    }

    #[test]
    fn a_ledger_that_vanishes_is_not_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path().to_owned(), LONG);
        assert!(!root.has_ledger().unwrap());
        root.ensure_broker_dir(BrokerId(1)).unwrap();
        // As when the file system is unmounted and the empty mount point shows.
        fs::remove_dir(root.broker_dir(BrokerId(1))).unwrap();
        fs::remove_file(dir.path().join(FORMAT_FILE)).unwrap();
        let error = root.has_ledger().unwrap_err();
        assert!(recovery::ports::chain(&error).contains("not mounted"), "{error}");
    }

    #[test]
    fn a_missing_directory_is_not_an_empty_ledger() {
        let dir = tempfile::tempdir().unwrap();
        let error = Root::new(dir.path().join("ledger"), LONG).has_ledger().unwrap_err();
        assert!(recovery::ports::chain(&error).contains("mount the shared storage"), "{error}");
    }
}
