//! Calls on a mount that may be dead, each in a disposable process: this program itself, as
//! `understudy storage-probe`.
//!
//! A call that waits for a dead server cannot be taken back. A process that makes it can be left behind, by
//! its deadline, without keeping a thread of the agent.

pub(super) mod lock;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{statvfs, syncfs};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

use crate::command::{CommandError, ending, last_words, run};
use recovery::model::HostName;
use recovery::ports::Note;

/// What the process is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeAct {
    /// Ask the server something that no cache answers.
    Look,
    /// Have everything written that the file system still holds in memory.
    Flush,
    /// Find out what becomes of a file that is unlinked while it is open.
    Unlink,
    /// Ask who holds Kafka's lock.
    Lock,
}

impl ProbeAct {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Look, Self::Flush, Self::Unlink, Self::Lock];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Flush => "flush",
            Self::Unlink => "unlink",
            Self::Lock => "lock",
        }
    }
}

/// Does `act` in `dir`, and returns what to print. May hang for ever: this is for the disposable process.
///
/// # Errors
/// What the file system said.
pub fn act(act: ProbeAct, dir: &Path, here: &HostName) -> io::Result<String> {
    match act {
        // Attributes and names may come from a cache; free space does not.
        ProbeAct::Look => statvfs(dir).map(|_| String::new()).map_err(Into::into),
        ProbeAct::Flush => {
            become_owner_of(dir)?;
            syncfs(File::open(dir)?).map(|()| String::new()).map_err(Into::into)
        }
        ProbeAct::Unlink => {
            become_owner_of(dir)?;
            Ok(try_unlink(dir, here, &|path| fs::remove_file(path))?.line())
        }
        ProbeAct::Lock => {
            become_owner_of(dir)?;
            lock::holder(dir)
        }
    }
}

/// NFS servers commonly map root to nobody, and what is tried must be what Kafka's user may do.
fn become_owner_of(dir: &Path) -> io::Result<()> {
    let owner = fs::metadata(dir)?;
    if geteuid().is_root() && owner.uid() != 0 {
        set_thread_groups(&[])?;
        set_thread_gid(Gid::from_raw(owner.gid()))?;
        set_thread_uid(Uid::from_raw(owner.uid()))?;
    }
    Ok(())
}

/// What became of a file that was unlinked while it was open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Unlinked {
    /// The name that it has now, if it was renamed instead.
    renamed_to: Option<String>,
    /// Whether its directory could be removed while it was open; `None` if no directory could be made.
    removable: Option<bool>,
}

impl Unlinked {
    const YES: &'static str = "silly_rename=yes";
    const NO: &'static str = "silly_rename=no";

    fn line(&self) -> String {
        // A directory that is not empty after its only file was unlinked has it still, under whatever name.
        let silly = self.renamed_to.is_some() || self.removable == Some(false);
        let name = self.renamed_to.as_deref().unwrap_or("none");
        let removable = self.removable.map_or("not tried", |yes| if yes { "yes" } else { "no" });
        format!("{} renamed_to={name} removable={removable}", if silly { Self::YES } else { Self::NO })
    }
}

/// What the file says. A file of any other content is not ours, and stays.
const CONTENT: &[u8] = b"understudy tests here what becomes of a file that is unlinked while it is open\n";

/// Makes a file, unlinks it while it is open, looks for it, and leaves nothing.
///
/// It works beside the log dir, in a directory of its own, where it may make one. In the log dir itself it
/// never makes a directory: Kafka takes every directory there for a partition, and does not start if one was
/// left behind.
fn try_unlink(
    log_dir: &Path,
    here: &HostName,
    remove: &dyn Fn(&Path) -> io::Result<()>,
) -> io::Result<Unlinked> {
    let name = format!(".understudy-unlink-{here}");
    let beside = log_dir.parent().filter(|parent| same_file_system(parent, log_dir));
    let own = beside.map(|parent| parent.join(&name)).filter(|own| make_own(own).is_ok());
    let dir = own.as_deref().unwrap_or(log_dir);
    let path = dir.join(&name);
    clean(dir, &path)?;
    let mut file = OpenOptions::new();
    // A link in its place would lead to somebody else's file.
    file.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut file = file.open(&path)?;
    let found = (|| {
        file.write_all(CONTENT)?;
        file.sync_all()?;
        let inode = file.metadata()?.ino();
        remove(&path)?;
        let renamed_to = renamed(dir, inode)?;
        let removable = own.as_deref().map(fs::remove_dir).transpose();
        let removable = match removable {
            Ok(tried) => tried.map(|()| true),
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
                Some(false)
            }
            Err(error) => return Err(error),
        };
        Ok(Unlinked { renamed_to, removable })
    })();
    drop(file);
    // The client removes what it renamed when the last one closes it.
    let cleaned = if dir.exists() { clean(dir, &path) } else { Ok(()) };
    if let Some(own) = own.as_deref().filter(|own| own.exists()) {
        fs::remove_dir(own)?;
    }
    cleaned.and(found)
}

fn same_file_system(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| fs::symlink_metadata(path).map(|meta| meta.dev()).ok();
    device(one).is_some() && device(one) == device(other)
}

/// A directory of our own, new or from a probe that was killed.
fn make_own(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && fs::symlink_metadata(path)?.is_dir() => {
            Ok(())
        }
        made => made,
    }
}

fn silly_names(dir: &Path) -> io::Result<Vec<fs::DirEntry>> {
    let entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    Ok(entries
        .into_iter()
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b".nfs"))
        .collect())
}

/// The `.nfs…` name in `dir` that this very file has now.
fn renamed(dir: &Path, inode: u64) -> io::Result<Option<String>> {
    for entry in silly_names(dir)? {
        match fs::symlink_metadata(entry.path()) {
            Ok(meta) if meta.ino() == inode => {
                return Ok(Some(entry.file_name().to_string_lossy().into_owned()));
            }
            Ok(_) => {}
            // Somebody else's, which was just closed.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Removes what this probe, or one that was killed, left in `dir`. Nothing else: of `.nfs…` names only those
/// with our content.
fn clean(dir: &Path, path: &Path) -> io::Result<()> {
    let left = silly_names(dir)?.into_iter().map(|entry| entry.path()).chain([path.to_owned()]);
    for file in left.filter(|file| is_ours(file)) {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn is_ours(path: &Path) -> bool {
    let Ok(meta) = fs::symlink_metadata(path) else { return false };
    // An empty one was killed between making and writing it; only under our own name it is ours.
    let named = !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".nfs"));
    let length = u64::try_from(CONTENT.len()).unwrap_or(u64::MAX);
    meta.is_file()
        && (named && meta.len() == 0
            || meta.len() == length && fs::read(path).is_ok_and(|found| found == CONTENT))
}

/// Why nothing is known.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// The file system gave a definite no.
    #[error("{0}")]
    Said(String),
    /// It gave no answer. The process is killed, or left behind if it hangs in the kernel.
    #[error("there was no answer within {0:?}")]
    Silent(Duration),
    /// The process could not be started: nothing is known of the file system.
    #[error("the probing process could not be started")]
    NotStarted(#[source] CommandError),
}

/// Sends out the processes.
#[derive(Debug, Clone)]
pub(super) struct Prober {
    /// This program, or what does as it does.
    pub(super) program: PathBuf,
    /// How long one may take.
    pub(super) limit: Duration,
}

impl Prober {
    pub(super) async fn send(&self, act: ProbeAct, dir: &Path) -> Result<String, ProbeError> {
        let arguments = ["storage-probe".as_ref(), act.name().as_ref(), "--dir".as_ref(), dir.as_os_str()];
        match run(&self.program, &arguments, b"", self.limit).await {
            Ok(ended) if ended.status.success() => Ok(ended.stdout.trim().to_owned()),
            Ok(ended) => {
                let said = last_words(&ended.stderr);
                let said = said.strip_prefix("error: ").unwrap_or(&said).to_owned();
                Err(ProbeError::Said(if said.is_empty() { ending(ended.status) } else { said }))
            }
            Err(CommandError::TimedOut { limit, .. }) => Err(ProbeError::Silent(limit)),
            Err(error) => Err(ProbeError::NotStarted(error)),
        }
    }

    /// What becomes of open files that are unlinked in each of `log_dirs`, and what that means for Kafka.
    pub(super) async fn unlinks(&self, log_dirs: &[PathBuf]) -> Note {
        let looks = log_dirs.iter().map(|dir| async move { (dir, self.send(ProbeAct::Unlink, dir).await) });
        let mut note = Note::default();
        for (dir, found) in futures_util::future::join_all(looks).await {
            let (verdict, text) = judge(dir, found);
            note = note.with(&format!("silly_rename {}", dir.display()), verdict);
            note = note.and(if verdict == "no" { Note::new(text) } else { Note::warning(text) });
        }
        note
    }
}

/// `yes`, `no` or `unknown`, and words for it.
fn judge(dir: &Path, found: Result<String, ProbeError>) -> (&'static str, String) {
    let dir = dir.display();
    match found {
        Ok(line) if line.starts_with(Unlinked::NO) => {
            ("no", format!("{dir}: a file that is unlinked while open is gone (no silly rename)"))
        }
        Ok(line) if line.starts_with(Unlinked::YES) => (
            "yes",
            format!(
                "{dir}: a file that is unlinked while open stays, as `.nfs…` (silly rename; {line}), and its \
                 directory cannot be removed. Deleting a topic or moving a partition away can take the log dir offline, \
                 or end the broker. Both ends must be able to do better: NFSv4.1 and a server that keeps unlinked files \
                 (ONTAP 9.12.1 and `volume modify -is-preserve-unlink-enabled true`), and a client that lets it (RHEL \
                 8.7, 9.1, or a kernel of 2022 and later)"
            ),
        ),
        Ok(line) => ("unknown", format!("{dir}: the probe for silly renames said `{}`", last_words(&line))),
        Err(error) => {
            let why = recovery::ports::chain(&error);
            (
                "unknown",
                format!("{dir}: it could not be tried what becomes of open files that are unlinked: {why}"),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostName {
        "standby-1".into()
    }

    /// As an NFS client does it that has to keep the file.
    fn silly(path: &Path) -> io::Result<()> {
        fs::rename(path, path.with_file_name(".nfs000000000000002a00000001"))
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_local_file_system_lets_go_and_nothing_is_left() {
        let root = tempfile::tempdir().unwrap();
        let log_dir = root.path().join("data");
        fs::create_dir(&log_dir).unwrap();
        let line = act(ProbeAct::Unlink, &log_dir, &host()).unwrap();
        assert_eq!(line, "silly_rename=no renamed_to=none removable=yes");
        assert_eq!((names(root.path()), names(&log_dir)), (vec!["data".to_owned()], vec![]));
        act(ProbeAct::Look, &log_dir, &host()).unwrap();
        act(ProbeAct::Flush, &log_dir, &host()).unwrap();
        assert!(act(ProbeAct::Look, &log_dir.join("gone"), &host()).is_err());
    }

    #[test]
    fn a_silly_rename_is_told_and_cleaned_away() {
        let root = tempfile::tempdir().unwrap();
        let log_dir = root.path().join("data");
        fs::create_dir(&log_dir).unwrap();
        fs::write(root.path().join(".nfs01"), "another's").unwrap();
        let found = try_unlink(&log_dir, &host(), &silly).unwrap();
        assert_eq!(found.renamed_to.as_deref(), Some(".nfs000000000000002a00000001"));
        assert_eq!(found.removable, Some(false));
        assert!(found.line().starts_with(Unlinked::YES));
        assert_eq!(names(root.path()), [".nfs01", "data"]);
        assert!(names(&log_dir).is_empty());
    }

    #[test]
    fn in_a_log_dir_that_is_a_mount_root_no_directory_is_made() {
        // /proc is another file system than its parent, as a mount root is; here the parent cannot be
        // written.
        assert!(!same_file_system(Path::new("/"), Path::new("/proc")));
        let root = tempfile::tempdir().unwrap();
        let log_dir = root.path().join("data");
        fs::create_dir(&log_dir).unwrap();
        // A file in the directory's place, so that none can be made.
        fs::write(root.path().join(".understudy-unlink-standby-1"), "").unwrap();
        let seen = std::cell::RefCell::new(Vec::new());
        let remove = |path: &Path| {
            seen.borrow_mut()
                .extend(fs::read_dir(&log_dir)?.map(|e| e.unwrap().metadata().unwrap().is_dir()));
            silly(path)
        };
        fs::write(log_dir.join(".nfs02"), "another's").unwrap();
        let found = try_unlink(&log_dir, &host(), &remove).unwrap();
        assert_eq!(*seen.borrow(), [false, false], "only files");
        assert_eq!((found.renamed_to.is_some(), found.removable), (true, None));
        assert!(found.line().starts_with(Unlinked::YES));
        assert_eq!(names(&log_dir), [".nfs02"]);
        let found = try_unlink(&log_dir, &host(), &|path| fs::remove_file(path)).unwrap();
        assert_eq!(found.line(), "silly_rename=no renamed_to=none removable=not tried");
    }

    #[test]
    fn what_a_killed_probe_left_is_cleaned_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let log_dir = root.path().join("data");
        let own = root.path().join(".understudy-unlink-standby-1");
        fs::create_dir(&log_dir).unwrap();
        fs::create_dir(&own).unwrap();
        fs::write(own.join(".understudy-unlink-standby-1"), CONTENT).unwrap();
        fs::write(own.join(".nfs07"), CONTENT).unwrap();
        try_unlink(&log_dir, &host(), &|path| fs::remove_file(path)).unwrap();
        assert_eq!(names(root.path()), ["data"]);
        // A precious file under our name is not ours.
        fs::create_dir(&own).unwrap();
        fs::write(own.join(".understudy-unlink-standby-1"), "precious").unwrap();
        assert!(try_unlink(&log_dir, &host(), &|path| fs::remove_file(path)).is_err());
        assert_eq!(fs::read(own.join(".understudy-unlink-standby-1")).unwrap(), b"precious");
    }

    #[test]
    fn every_answer_has_its_words() {
        let dir = Path::new("/mnt/a");
        assert_eq!(judge(dir, Ok("silly_rename=no renamed_to=none removable=yes".into())).0, "no");
        let (verdict, text) = judge(dir, Ok(format!("{} renamed_to=.nfs1 removable=no", Unlinked::YES)));
        assert!(verdict == "yes" && text.contains("is-preserve-unlink-enabled"), "{text}");
        for unknown in [Ok("hello".to_owned()), Err(ProbeError::Silent(Duration::from_secs(1)))] {
            let (verdict, text) = judge(dir, unknown);
            assert!(verdict == "unknown" && text.starts_with("/mnt/a: "), "{text}");
        }
    }

    #[tokio::test]
    async fn a_process_that_does_not_come_back_is_given_up() {
        let script = |text: &str| {
            use std::os::unix::fs::PermissionsExt;
            let dir = tempfile::tempdir().unwrap();
            let program = dir.path().join("program");
            fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            (dir, program)
        };
        let send = |program: PathBuf, limit| async move {
            Prober { program, limit }.send(ProbeAct::Look, Path::new("/mnt/a")).await
        };
        let long = Duration::from_secs(20);
        let (_dir, program) = script("exec sleep 1000");
        let error = send(program, Duration::from_millis(100)).await.unwrap_err();
        assert!(matches!(error, ProbeError::Silent(_)), "{error}");
        let (_dir, program) = script("[ \"$*\" = 'storage-probe look --dir /mnt/a' ] && echo fine");
        assert_eq!(send(program, long).await.unwrap(), "fine");
        let (_dir, program) = script("echo 'error: Stale file handle' >&2; exit 1");
        assert_eq!(send(program, long).await.unwrap_err().to_string(), "Stale file handle");
        assert!(matches!(send("/gone".into(), long).await.unwrap_err(), ProbeError::NotStarted(_)));
    }
}
