//! A process that was started inside a host.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::eventually;

/// A process in a host's namespaces. It lives until it ends, is killed, or its host loses power; dropping
/// this leaves it alone.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    pid: Pid,
    /// `nsenter`, which waits for the process outside of its host and ends as it does.
    entry: Mutex<Child>,
}

impl Process {
    /// Runs `command`, an `nsenter` into a host, with its output appended to `log`.
    pub(crate) fn start(name: &str, mut command: Command, log: PathBuf) -> Result<Self> {
        let output = OpenOptions::new().create(true).append(true).open(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut entry = command.spawn().context("cannot run nsenter (package util-linux)")?;
        let pid = eventually(&format!("process {name} to start"), Duration::from_secs(10), || {
            if let Some(status) = entry.try_wait()? {
                return Ok(Err(status));
            }
            let pid = child_of(entry.id())?.context("no process yet")?;
            let program = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))?;
            // Until it has become the program it may yet turn out that there is no such program.
            ensure!(program.trim() != "nsenter", "it is still nsenter");
            Ok(Ok(pid))
        })?;
        match pid {
            Ok(pid) => Ok(Self { name: name.to_owned(), log, pid, entry: Mutex::new(entry) }),
            Err(status) => bail!("{name} ended at once ({status}):\n{}", tail(&log, 2000)),
        }
    }

    /// Its name in logs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its output goes.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of its output, for a message.
    #[must_use]
    pub fn last_words(&self) -> String {
        tail(&self.log, 1500)
    }

    /// Its process id as the sandbox sees it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Whether it has not ended. A frozen process is running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        state_of(self.pid).is_some_and(|state| state != 'Z')
    }

    /// `kill -9`, and waits for the end. No error if it has already ended.
    ///
    /// # Errors
    /// When it survives, which a process in uninterruptible sleep does.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.wait(Duration::from_secs(20)).map(drop)
    }

    /// Sends `signal`. No error if it has already ended.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        signal_if_alive(self.pid, signal)
    }

    /// Waits at most `limit` for the end, and says how it ended.
    ///
    /// # Errors
    /// When it runs on.
    pub fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        eventually(&format!("process {} to end", self.name), limit, || {
            if self.is_running() { Err("it is running") } else { Ok(()) }
        })?;
        let mut entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        // `nsenter` stops itself when its child is stopped, and would then not notice its end.
        if let Some(pid) = i32::try_from(entry.id()).ok().and_then(Pid::from_raw) {
            signal_if_alive(pid, Signal::CONT)?;
        }
        Ok(entry.wait()?)
    }
}

pub(crate) fn signal_if_alive(pid: Pid, signal: Signal) -> Result<()> {
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot send {signal:?} to process {pid:?}")),
    }
}

/// Whether the command line of a process has all of `words`, each the whole of an argument or the end of a path.
pub(crate) fn has_words(pid: Pid, words: &[&str]) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let line: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let is_given =
        |word: &str| line.iter().any(|given| given == word || given.ends_with(&format!("/{word}")));
    words.iter().all(|word| is_given(word))
}

/// The only child of the process `parent`, once there is one.
pub(crate) fn child_of(parent: u32) -> Result<Option<Pid>> {
    let file = format!("/proc/{parent}/task/{parent}/children");
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if Path::new(&format!("/proc/{parent}")).exists() => {
            return Err(error).with_context(|| format!("cannot read {file} (kernel without PROC_CHILDREN?)"));
        }
        Err(_) => return Ok(None),
    };
    Ok(text.split_whitespace().next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw))
}

/// The process state letter of `/proc/PID/stat`; `None` when there is no such process.
pub(crate) fn state_of(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may itself hold anything.
    stat.rsplit(") ").next()?.chars().next()
}

/// The last `bytes` of a log, or an empty text.
pub(crate) fn tail(log: &Path, bytes: usize) -> String {
    let mut text = Vec::new();
    if let Ok(mut file) = File::open(log) {
        // A log that cannot be read has nothing to add to a message.
        let _ = file.read_to_end(&mut text);
    }
    let from = text.len().saturating_sub(bytes);
    String::from_utf8_lossy(text.get(from..).unwrap_or_default()).into_owned()
}
