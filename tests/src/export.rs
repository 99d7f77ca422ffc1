//! Storage that can stall and be denied: a shared directory that one host has mounted through a FUSE daemon
//! of its own. The daemon is outside of the host, as a file server is: it works on while the host's processes
//! are frozen.
//!
//! A stopped daemon is a server that does not answer: whoever touches a file waits, in the kernel. A dead one
//! is a server that has thrown the client out: every open file of the host fails for good, which the kernel
//! sees to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal};

use crate::eventually;
use crate::process::signal_if_alive;

/// How the shared storage comes to a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Storage {
    /// By a bind mount: fast, and always there.
    #[default]
    Bind,
    /// Through a daemon: slower, and it can stall and be denied.
    Fuse,
}

/// A directory that is mounted on one host through a daemon.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) target: String,
    daemon: Child,
    pid: Pid,
}

impl Export {
    /// Mounts `source` (of the sandbox) at `target` in the host whose first process is `init`. The target
    /// must exist.
    pub(crate) fn mount(init: Pid, source: &Path, target: &str) -> Result<Self> {
        let init = init.as_raw_nonzero();
        // In the foreground, and several threads: one fsync must not hold up all the others.
        let mut daemon = Command::new("nsenter")
            .args(["--target", &init.to_string(), "--mount", "--", "bindfs", "-f", "--multithreaded"])
            .arg(source)
            .arg(target)
            .stdin(Stdio::null())
            .spawn()
            .context("cannot run nsenter (package util-linux)")?;
        let mounts = PathBuf::from(format!("/proc/{init}/mountinfo"));
        eventually(&format!("{target} to be mounted"), Duration::from_secs(10), || {
            if let Some(status) = daemon.try_wait()? {
                return Ok(Err(status));
            }
            ensure!(is_mounted(&mounts, target)?, "it is not");
            Ok(Ok(()))
        })?
        .or_else(|status| bail!("bindfs (package bindfs) ended at once ({status}); is there a /dev/fuse?"))?;
        let pid = i32::try_from(daemon.id()).ok().and_then(Pid::from_raw).context("no process id")?;
        Ok(Self { target: target.to_owned(), daemon, pid })
    }

    /// Sends the daemon `signal`: `STOP` stalls, `CONT` ends the stall.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        signal_if_alive(self.pid, signal)
    }

    /// Kills the daemon. The mount stays, and every use of it fails.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.daemon.kill()?;
        self.daemon.wait()?;
        Ok(())
    }

    /// Whether the daemon is there, stalled or not.
    pub(crate) fn is_served(&mut self) -> Result<bool> {
        Ok(self.daemon.try_wait()?.is_none())
    }
}

fn is_mounted(mountinfo: &Path, target: &str) -> Result<bool> {
    let text = fs::read_to_string(mountinfo)?;
    Ok(text.lines().any(|line| line.split(' ').nth(4) == Some(target) && line.contains(" - fuse")))
}
