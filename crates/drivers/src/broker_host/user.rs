//! Acting as the user that Kafka runs as.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

use super::problem::Problem;

/// A user with all its groups, looked up once: a takeover must not wait for a directory server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    /// Its name.
    pub(super) name: String,
    uid: Uid,
    /// Its primary group.
    pub(super) gid: Gid,
    groups: Vec<Gid>,
}

impl User {
    /// Looks a user up, wherever the system keeps its users.
    pub(super) fn look_up(name: &str) -> Result<Self, String> {
        let uid = Uid::from_raw(ask_id("-u", name)?.first().copied().ok_or("`id -u` printed nothing")?);
        let gid = Gid::from_raw(ask_id("-g", name)?.first().copied().ok_or("`id -g` printed nothing")?);
        let groups = ask_id("-G", name)?.into_iter().map(Gid::from_raw).collect();
        if !geteuid().is_root() && geteuid() != uid {
            return Err(format!("only root can run Kafka as `{name}`: run the agent as root or as `{name}`"));
        }
        Ok(Self { name: name.to_owned(), uid, gid, groups })
    }

    /// Gives the user a file or directory.
    pub(super) fn own(&self, path: &Path) -> io::Result<()> {
        if !geteuid().is_root() {
            return Ok(());
        }
        std::os::unix::fs::chown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
    }

    /// Whether this is the user's number.
    pub(super) fn is(&self, uid: u32) -> bool {
        self.uid.as_raw() == uid
    }

    /// Makes the calling thread this user, for good. In a freshly forked child that is the process.
    pub(super) fn become_user(&self) -> io::Result<()> {
        if !geteuid().is_root() {
            return Ok(());
        }
        set_thread_groups(&self.groups)?;
        set_thread_gid(self.gid)?;
        set_thread_uid(self.uid)?;
        Ok(())
    }
}

/// Runs `f` with the rights of `user`, where there is one.
///
/// NFS servers commonly map root to nobody, so what root sees says nothing about what Kafka will see.
pub(super) fn as_user<T: Send>(user: Option<&User>, f: impl FnOnce() -> T + Send) -> Result<T, Problem> {
    let Some(user) = user else { return Ok(f()) };
    // Linux keeps credentials by thread. This one ends with them.
    let run = move || user.become_user().map(|()| f());
    let result = thread::scope(|scope| scope.spawn(run).join());
    match result {
        Ok(result) => result.map_err(Problem::io(format!("becoming user {}", user.name))),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// What `id` prints: it asks every source of users the system is set up with, as no file does.
fn ask_id(flag: &str, name: &str) -> Result<Vec<u32>, String> {
    let output = Command::new("id")
        .args([flag, "--", name])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run `id {flag} {name}`: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("no such user on this host: {}", stderr.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers = text.split_whitespace().map(str::parse).collect::<Result<_, _>>();
    numbers.map_err(|_| format!("`id {flag} {name}` printed {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_user_is_refused() {
        let error = User::look_up("no-such-user-here").unwrap_err();
        assert!(error.contains("no such user"), "{error}");
    }

    #[test]
    fn another_user_acts_on_one_thread_only() {
        if !geteuid().is_root() {
            return;
        }
        let nobody = User::look_up("nobody").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let made = as_user(Some(&nobody), || std::fs::write(&file, "x").map_err(|e| e.kind())).unwrap();
        assert_eq!(made, Err(io::ErrorKind::PermissionDenied));
        as_user(None, || std::fs::write(&file, "x")).unwrap().unwrap();
        std::fs::write(&file, "y").unwrap();
        assert!(geteuid().is_root());
    }
}
