//! A host while it has power: its namespaces, its processes and what is mounted in it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;

use crate::eventually;
use crate::export::{Export, Storage};
use crate::host::Output;
use crate::process::{Process, child_of};

/// Below this, every host has the log dirs of brokers and controllers.
pub const LOG_DIRS: &str = "/srv/kafka";

/// What is mounted on a host, as its `/etc/fstab` would say.
#[derive(Debug, Clone)]
pub(crate) struct Mount {
    pub(crate) source: PathBuf,
    pub(crate) target: String,
    pub(crate) storage: Storage,
}

/// The machine itself.
#[derive(Debug)]
pub(crate) struct Machine {
    /// `unshare`, which waits for the host's first process.
    pub(crate) unshare: Child,
    /// The host's process 1, as the sandbox sees it. It only reaps orphans.
    pub(crate) init: Pid,
    pub(crate) processes: Vec<Arc<Process>>,
    pub(crate) exports: Vec<Export>,
}

impl Machine {
    pub(crate) fn boot(log: &Path) -> Result<Self> {
        let unshare = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"])
            // Who ignores SIGCHLD has the kernel reap its children: all that process 1 is for here.
            .args(["env", "--ignore-signal=CHLD", "sleep", "infinity"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(log)?)
            .spawn()?;
        let init = eventually("the host's first process", Duration::from_secs(10), || {
            let init = child_of(unshare.id())?.context("no process yet")?;
            let name = fs::read_to_string(format!("/proc/{}/comm", init.as_raw_nonzero()))?;
            // Only then are its namespaces and its /proc complete.
            ensure!(name.trim() == "sleep", "it is still {}", name.trim());
            Ok(init)
        })?;
        Ok(Self { unshare, init, processes: Vec::new(), exports: Vec::new() })
    }

    /// A command that runs in this machine, with little of our environment.
    pub(crate) fn enter<S: AsRef<std::ffi::OsStr>>(&self, command: &[S]) -> Command {
        let mut entry = Command::new("nsenter");
        entry
            .args(["--target", &self.init.as_raw_nonzero().to_string()])
            .args(["--net", "--mount", "--pid", "--"])
            .args(command)
            .env_clear();
        for variable in ["PATH", "HOME", "LANG", "JAVA_HOME", "RUST_BACKTRACE", "RUST_LOG"] {
            if let Some(value) = std::env::var_os(variable) {
                entry.env(variable, value);
            }
        }
        entry
    }

    pub(crate) fn run(&self, command: &[&str]) -> Result<()> {
        let output = output(self.enter(command))?;
        ensure!(output.code == 0, "{command:?} failed ({}): {}", output.code, output.stderr.trim());
        Ok(())
    }

    pub(crate) fn bind(&self, source: &Path, target: &str) -> Result<()> {
        let source = source.to_str().context("a path that is not UTF-8")?;
        self.run(&["mkdir", "-p", target])?;
        self.run(&["mount", "--bind", source, target])
    }

    /// Mounts it; what the file server denies is not mounted.
    pub(crate) fn mount(&mut self, mount: &Mount, denied: bool) -> Result<()> {
        match mount.storage {
            Storage::Bind => self.bind(&mount.source, &mount.target),
            Storage::Fuse if denied && is_log_dir(&mount.target) => Ok(()),
            Storage::Fuse => {
                self.run(&["mkdir", "-p", &mount.target])?;
                self.exports.push(Export::mount(self.init, &mount.source, &mount.target)?);
                Ok(())
            }
        }
    }

    /// Every process of the machine but its first.
    pub(crate) fn pids(&self) -> Result<Vec<Pid>> {
        Ok(siblings(self.init)?.into_iter().filter(|pid| *pid != self.init).collect())
    }
}

/// Every process of the process namespace that `of` is in, `of` among them.
pub(crate) fn siblings(of: Pid) -> Result<Vec<Pid>> {
    let namespace_of = |pid: Pid| fs::read_link(format!("/proc/{}/ns/pid", pid.as_raw_nonzero()));
    let own = namespace_of(of)?;
    let all = fs::read_dir("/proc")?
        .filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?));
    Ok(all.filter(|pid| namespace_of(*pid).is_ok_and(|other| other == own)).collect())
}

/// What a storage fence takes away. The ledger is on other storage.
pub(crate) fn is_log_dir(target: &str) -> bool {
    Path::new(target).starts_with(LOG_DIRS)
}

/// Runs an `nsenter` to its end.
pub(crate) fn output(mut entry: Command) -> Result<Output> {
    output_of(&entry.stdin(Stdio::null()).output().context("cannot run nsenter (package util-linux)")?)
}

/// What a process that has ended said.
pub(crate) fn output_of(output: &std::process::Output) -> Result<Output> {
    use std::os::unix::process::ExitStatusExt;
    let code = output.status.code().or_else(|| output.status.signal().map(|signal| 128 + signal));
    Ok(Output {
        code: code.context("a process ended without a status")?,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
