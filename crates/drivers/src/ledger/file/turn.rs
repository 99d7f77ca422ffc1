//! Who may have a file of the ledger open now, and who may add to it.
//!
//! To an NFS server all opens of a file by one user of a host are one state, whose changes it counts, and its
//! client waits for a change that it has not heard of. nfs-ganesha (4.3 was seen to) may answer an OPEN that
//! meets the CLOSE of the same file with a state that it has just closed. Linux then waits for what never
//! comes: until five seconds after the *last other* open or close of that file by the same user. Beside
//! somebody who reads it each second that is for ever. So in a directory of the ledger this process has one
//! file open at a time: its calls never meet each other, and one that met another process's gets its five
//! seconds of quiet.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::geteuid;

use super::layout::unavailable;
use recovery::ports::LedgerError;

/// One turn for each directory. By directory, since a file is renamed within it while it is open.
#[derive(Debug)]
pub(super) struct Turns {
    /// How long a call waits for its turn.
    patience: Duration,
    taken: Mutex<BTreeMap<PathBuf, Taken>>,
    given_back: Condvar,
}

#[derive(Debug)]
struct Taken {
    file: PathBuf,
    at: Timestamp,
}

/// Until it is dropped, this process opens nothing else in the directory. Close the file first.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    dir: PathBuf,
}

impl Turns {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, taken: Mutex::default(), given_back: Condvar::new() }
    }

    /// Waits until `file` may be opened.
    ///
    /// # Errors
    /// `Unavailable`, with the file that was opened before and has not been closed since.
    pub(super) fn take(&self, file: &Path) -> Result<Turn<'_>, LedgerError> {
        let (dir, until) = (file.parent().unwrap_or(file), Instant::now() + self.patience);
        let mut taken = lock(&self.taken);
        while let Some(Taken { file: other, at }) = taken.get(dir) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = format!(
                    "{} has been open since {at:.0}, and one file in there is opened at a time: if that call does not \
                     return, the storage below it may be dead; check the mount and its server",
                    other.display()
                );
                return Err(unavailable(format!("open {}", file.display()), why));
            }
            let woken = self.given_back.wait_timeout(taken, left);
            taken = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        taken.insert(dir.to_owned(), Taken { file: file.to_owned(), at: Timestamp::now() });
        Ok(Turn { turns: self, dir: dir.to_owned() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.turns.taken).remove(&self.dir);
        self.turns.given_back.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics under this lock, and a map is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Until it is dropped, no other process of this host adds to the file; none, that is, of this network
/// namespace, which names of sockets belong to.
#[derive(Debug)]
pub(super) struct Alone {
    _socket: Option<OwnedFd>,
}

impl Alone {
    /// `None` while another process adds to the file.
    ///
    /// An abstract socket's name has one holder, and is free when that ends, however it ends. It is not
    /// `flock`: on NFS that is a lock at the server, which has to be given back with the file, and
    /// nfs-ganesha 4.3 crashes if it happens to do both at once (FREE_STATEID and CLOSE), for all its
    /// clients.
    ///
    /// # Errors
    /// When this host has no such sockets.
    pub(super) fn with(file: &File) -> io::Result<Option<Self>> {
        let known = file.metadata()?;
        let name = format!("understudy-ledger-{:x}-{:x}", known.dev(), known.ino());
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        let socket = unix_socket()?;
        match bind(&socket, &name) {
            Ok(()) => {
                // So that others can ask whose it is.
                listen(&socket, 1)?;
                Ok(Some(Self { _socket: Some(socket) }))
            }
            Err(Errno::ADDRINUSE) if is_a_strangers(&name)? => Ok(Some(Self { _socket: None })),
            Err(Errno::ADDRINUSE) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Whether the name is held by a user who has no business here: anybody can take a name.
fn is_a_strangers(name: &SocketAddrUnix) -> io::Result<bool> {
    let socket = unix_socket()?;
    if connect(&socket, name).is_err() {
        return Ok(false);
    }
    let holder = rustix::net::sockopt::socket_peercred(&socket)?.uid;
    Ok(!holder.is_root() && holder != geteuid())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use recovery::ports::chain;

    #[test]
    fn one_file_of_a_directory_is_open_at_a_time() {
        let turns = Turns::new(Duration::from_secs(20));
        let first = turns.take(Path::new("/l/broker-1/a")).unwrap();
        let _elsewhere = turns.take(Path::new("/l/broker-2/a")).unwrap();
        let (sender, order) = mpsc::channel();
        thread::scope(|scope| {
            let (turns, later) = (&turns, sender.clone());
            scope.spawn(move || {
                let _turn = turns.take(Path::new("/l/broker-1/b")).unwrap();
                later.send("second").unwrap();
            });
            sender.send("first").unwrap();
            drop(first);
        });
        assert_eq!(order.try_iter().collect::<Vec<_>>(), ["first", "second"]);
    }

    #[test]
    fn who_waits_in_vain_is_told_for_what() {
        let turns = Turns::new(Duration::from_millis(20));
        let hung = turns.take(Path::new("/l/broker-1/epoch-1.journal")).unwrap();
        let error = turns.take(Path::new("/l/broker-1/epoch-2.journal")).unwrap_err();
        assert!(matches!(error, LedgerError::Unavailable { .. }), "{error:?}");
        let text = chain(&error);
        assert!(text.contains("open /l/broker-1/epoch-2.journal"), "{text}");
        assert!(text.contains("/l/broker-1/epoch-1.journal has been open since 2"), "{text}");
        drop(hung);
        turns.take(Path::new("/l/broker-1/epoch-2.journal")).unwrap();
    }

    #[test]
    fn one_process_adds_to_a_file_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| File::create(dir.path().join(name)).unwrap());
        let alone = Alone::with(&a).unwrap().unwrap();
        assert!(Alone::with(&a).unwrap().is_none(), "two at once");
        assert!(Alone::with(&b).unwrap().is_some(), "another file");
        drop(alone);
        assert!(Alone::with(&a).unwrap().is_some(), "it is free again");
    }
}
