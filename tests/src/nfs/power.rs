//! A guest while it has power: its kernel, which is a process here, and what stands for its processes.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};

use crate::eventually;
use crate::machine::siblings;
use crate::process::{child_of, signal_if_alive, state_of, tail};

/// The processes of a running guest. They are in a process namespace of their own, so that none is forgotten
/// and all die with the first.
#[derive(Debug)]
pub(super) struct Power {
    unshare: Child,
    kernel: Pid,
}

impl Power {
    /// Starts `kernel` with `arguments`; what it prints is appended to `console`.
    pub(super) fn on(kernel: &Path, arguments: &[String], console: &Path) -> Result<Self> {
        let output = OpenOptions::new().create(true).append(true).open(console)?;
        let mut unshare = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child=SIGKILL"])
            .arg(kernel)
            .args(arguments)
            // Where it makes the file that is its memory.
            .env("TMPDIR", "/dev/shm")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("cannot run unshare (package util-linux)")?;
        let kernel = eventually("the guest's kernel to start", Duration::from_secs(10), || {
            if let Some(status) = unshare.try_wait()? {
                return Ok(Err(status));
            }
            child_of(unshare.id())?.context("no process yet").map(Ok)
        })?;
        match kernel {
            Ok(kernel) => Ok(Self { unshare, kernel }),
            Err(status) => anyhow::bail!("it ended at once ({status}): {}", tail(console, 500)),
        }
    }

    /// Whether its kernel has not ended.
    pub(super) fn is_on(&mut self) -> Result<bool> {
        Ok(self.unshare.try_wait()?.is_none())
    }

    /// Every process dies at once; returns when all are dead.
    pub(super) fn off(mut self) -> Result<()> {
        signal_if_alive(self.kernel, Signal::KILL)?;
        self.unshare.wait()?;
        Ok(())
    }

    /// Stops every process, the kernel first: what the others want then, they wait for.
    pub(super) fn freeze(&self) -> Result<()> {
        signal_if_alive(self.kernel, Signal::STOP)?;
        for pid in siblings(self.kernel)? {
            signal_if_alive(pid, Signal::STOP)?;
        }
        eventually("every process of the guest to stand still", Duration::from_secs(10), || {
            let still = |pid: &Pid| matches!(state_of(*pid), Some('T' | 't' | 'Z') | None);
            let moving = siblings(self.kernel)?.into_iter().find(|pid| !still(pid));
            ensure!(moving.is_none(), "{moving:?} does not");
            Ok(())
        })
    }

    /// Lets them go on, the kernel last.
    pub(super) fn thaw(&self) -> Result<()> {
        let others = siblings(self.kernel)?.into_iter().filter(|pid| *pid != self.kernel);
        others.chain([self.kernel]).try_for_each(|pid| signal_if_alive(pid, Signal::CONT))
    }
}
