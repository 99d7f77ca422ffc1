//! Whether the storage of brokers can be written to: a small file, written and synced by a disposable
//! process.
//!
//! A process, because a write to a storage that stalls cannot be taken back, and what cannot be killed either
//! must not be a thread of the agent's runtime. A plain thread waits for the process and reaps it, however
//! late. As long as one hangs in a directory no second one is started there, so that a dead server costs one
//! process.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::command::{ending, last_words};
use crate::off_path::{OffPathError, off_path};
use recovery::model::{BrokerId, CanaryOutcome, Evidence, Fact, HostName, Moment, human};
use recovery::ports::{Clock, HealthSignal, chain};

const SIGNAL: &str = "storage_canary";

/// A place on the storage of brokers where this host writes a small file again and again, to know whether the
/// storage can be written to.
///
/// While it cannot, its brokers are not taken over: a standby on the same storage would fare no better.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CanaryConfig {
    /// An absolute path on that storage, mounted on this host at all times. It is never created: name a
    /// directory below the mount point rather than the mount point itself, so that it is missing while
    /// nothing is mounted. Only `.understudy-canary-HOST` is ever written there. Not a log dir of Kafka.
    pub dir: PathBuf,
    /// The node ids of the guarded brokers whose log dirs are on that storage; all guarded ones when left
    /// out.
    #[serde(default)]
    pub brokers: Vec<i32>,
    /// The time from one write to the next.
    #[serde(default = "default_period", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub period: Duration,
    /// A write that takes longer counts as stalled. One write and the next must fit into
    /// `policy.stale_after`.
    #[serde(default = "default_deadline", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub deadline: Duration,
}

fn default_period() -> Duration {
    Duration::from_secs(1)
}

fn default_deadline() -> Duration {
    Duration::from_millis(1_500)
}

impl CanaryConfig {
    /// Everything that is wrong with it, as `key: what is wrong and what to do`. `guarded` are the brokers of
    /// this host; evidence counts for `stale_after`.
    #[must_use]
    pub fn problems(&self, guarded: &BTreeSet<BrokerId>, stale_after: Duration) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.dir.is_absolute() {
            problems.push("dir: is not an absolute path; begin it with `/`".to_owned());
        }
        for id in self.brokers.iter().filter(|id| !guarded.contains(&BrokerId(**id))) {
            problems.push(format!(
                "brokers: broker {id} is not guarded by this host; add its [[broker]] section"
            ));
        }
        for (key, value) in [("period", self.period), ("deadline", self.deadline)] {
            if value.is_zero() {
                problems.push(format!("{key}: must be longer than zero"));
            }
        }
        // A write is known when it is over, and dated by when it began: this is how old the last one may
        // become before the next one is known.
        let oldest = self.period.max(self.deadline) + self.deadline;
        if oldest > stale_after {
            problems.push(format!(
                "deadline: a slow write and the next one take {}, and what is older than policy.stale_after ({}) \
                 counts as not seen; shorten `deadline` or `period`, or raise policy.stale_after",
                human(oldest),
                human(stale_after)
            ));
        }
        problems
    }

    /// Makes the signal. The writing process is `writer`, called as `writer canary --dir DIR --host HOST`; it
    /// must do what [`write`] does, and exit with 0 only if that succeeds.
    #[must_use]
    pub fn build(self, here: HostName, guarded: &BTreeSet<BrokerId>, writer: PathBuf) -> StorageCanary {
        let named: BTreeSet<BrokerId> = self.brokers.into_iter().map(BrokerId).collect();
        let brokers = if named.is_empty() { guarded.clone() } else { named };
        let Self { dir, period, deadline, .. } = self;
        StorageCanary { here, dir, brokers, period, deadline, writer }
    }
}

/// Why the canary's file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum CanaryError {
    /// The directory is not there.
    #[error("{} does not exist: is its storage mounted?", dir.display())]
    Missing {
        /// The directory.
        dir: PathBuf,
    },
    /// The storage said no.
    #[error("{} could not be written", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Writes the canary's file into `dir` and waits until it is on stable storage. May hang for ever: this is
/// for the disposable process.
///
/// # Errors
/// A definite no of the storage.
pub fn write(dir: &Path, here: &HostName) -> Result<(), CanaryError> {
    let path = dir.join(format!(".understudy-canary-{here}"));
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => CanaryError::Missing { dir: dir.to_owned() },
        _ => CanaryError::Refused { path: path.clone(), source },
    };
    // A link in its place would lead the write to somebody else's file.
    let mut file = OpenOptions::new();
    file.write(true).create(true).truncate(true).mode(0o644).custom_flags(libc::O_NOFOLLOW);
    let mut file = file.open(&path).map_err(failed)?;
    let text = format!("understudy on {here} tests here whether this storage can be written to\n");
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

/// The signal; see [`CanaryConfig`].
#[derive(Debug)]
pub struct StorageCanary {
    here: HostName,
    dir: PathBuf,
    brokers: BTreeSet<BrokerId>,
    period: Duration,
    deadline: Duration,
    writer: PathBuf,
}

#[async_trait]
impl HealthSignal for StorageCanary {
    fn name(&self) -> &'static str {
        SIGNAL
    }

    fn period(&self) -> Duration {
        self.period
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let begun = clock.now().mono;
        let look = Look::default();
        let (command, watched) = (self.command(), look.0.clone());
        let what = format!("writing a canary in {}", self.dir.display());
        let wrote = off_path(&what, self.deadline, move || run(command, &watched)).await;
        let (at, outcome) = match wrote {
            Ok(Ok(output)) => (begun, outcome(&output)),
            // That it has not come back is seen now, and not when it began.
            Err(OffPathError::Hung { .. } | OffPathError::StillHung { .. }) => {
                (clock.now().mono, CanaryOutcome::Stalled)
            }
            // A process that could not be started says nothing about the storage.
            Ok(Err(error)) => return self.blind(begun, &error),
            Err(error) => return self.blind(begun, &error),
        };
        let (canary, brokers) = (self.dir.display().to_string(), self.brokers.clone());
        vec![Evidence { signal: SIGNAL, at, fact: Fact::Storage { canary, brokers, outcome } }]
    }
}

impl StorageCanary {
    /// The agent's environment may hold secrets, and its working directory may be on the storage: the process
    /// gets neither.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.writer);
        command.arg("canary").arg("--dir").arg(&self.dir).arg("--host").arg(&self.here.0);
        command.env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn blind(&self, at: Moment, error: &dyn std::error::Error) -> Vec<Evidence> {
        let why = format!("no canary could be sent to {}: {}", self.dir.display(), chain(error));
        vec![Evidence { signal: SIGNAL, at, fact: Fact::Blind { why } }]
    }
}

fn outcome(output: &Output) -> CanaryOutcome {
    if output.status.success() {
        return CanaryOutcome::Wrote;
    }
    let said = last_words(&String::from_utf8_lossy(&output.stderr));
    let said = said.strip_prefix("error: ").unwrap_or(&said);
    let why = if said.is_empty() { ending(output.status) } else { said.to_owned() };
    CanaryOutcome::Failed { why }
}

/// Runs the process to its end, however far away that is. Until then it can be killed through `watched`.
fn run(mut command: Command, watched: &Mutex<Watched>) -> io::Result<Output> {
    // Not under the lock: starting a program may hang as well.
    let child = command.spawn()?;
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        lock(watched).running(pid);
        // It is not reaped by this, so that its number stays its own until nobody can kill it any more.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let waited = retry_on_intr(|| waitid(WaitId::Pid(pid), ended));
        lock(watched).pid = None;
        waited?;
    }
    child.wait_with_output()
}

/// The process, from its start until it is reaped.
#[derive(Debug, Default)]
struct Watched {
    pid: Option<Pid>,
    given_up: bool,
}

impl Watched {
    fn running(&mut self, pid: Pid) {
        self.pid = Some(pid);
        self.kill_if_given_up();
    }

    fn kill_if_given_up(&mut self) {
        if let Some(pid) = self.pid.filter(|_| self.given_up) {
            // It may just have ended; it is not reaped, so that nobody else is hit.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn lock(watched: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the process up when the look at it is over. Most storages let a process go that is killed: it then
/// does not hang on a mount that was meanwhile replaced. One that hangs in the kernel is left behind.
#[derive(Default)]
struct Look(Arc<Mutex<Watched>>);

impl Drop for Look {
    fn drop(&mut self) {
        let mut watched = lock(&self.0);
        watched.given_up = true;
        watched.kill_if_given_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    const LONG: Duration = Duration::from_secs(20);

    /// A canary in `dir` whose writer is a shell script: it sees DIR as `$3` and HOST as `$5`.
    fn canary(dir: &Path, script: &str, deadline: Duration) -> StorageCanary {
        use std::os::unix::fs::PermissionsExt;
        let writer = dir.join("writer");
        std::fs::write(&writer, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&writer, std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = CanaryConfig { dir: dir.to_owned(), brokers: vec![], period: deadline, deadline };
        config.build("standby-1".into(), &BTreeSet::from([BrokerId(1), BrokerId(2)]), writer)
    }

    async fn fact(canary: &StorageCanary) -> Fact {
        let mut evidence = canary.look(&SystemClock).await;
        assert_eq!(evidence.len(), 1);
        evidence.remove(0).fact
    }

    async fn look(canary: &StorageCanary) -> CanaryOutcome {
        match fact(canary).await {
            Fact::Storage { outcome, .. } => outcome,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_writer_is_told_where_and_every_broker_is_meant() {
        let dir = tempfile::tempdir().unwrap();
        let script = format!("[ \"$*\" = 'canary --dir {} --host standby-1' ]", dir.path().display());
        let canary = canary(dir.path(), &script, LONG);
        let Fact::Storage { canary, brokers, outcome } = fact(&canary).await else { panic!("no fact") };
        assert_eq!((canary.as_str(), outcome), (dir.path().to_str().unwrap(), CanaryOutcome::Wrote));
        assert_eq!(brokers, BTreeSet::from([BrokerId(1), BrokerId(2)]));
    }

    #[tokio::test]
    async fn what_the_writer_said_is_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let script = "echo error: read-only file system >&2; exit 1";
        let outcome = look(&canary(dir.path(), script, LONG)).await;
        assert_eq!(outcome, CanaryOutcome::Failed { why: "read-only file system".to_owned() });
        let outcome = look(&canary(dir.path(), "exit 3", LONG)).await;
        assert_eq!(outcome, CanaryOutcome::Failed { why: "exit code 3".to_owned() });
    }

    #[tokio::test]
    async fn one_that_hangs_is_killed_at_its_deadline_and_reaped() {
        let dir = tempfile::tempdir().unwrap();
        let script = "echo $$ >> \"$3/pids\"; exec sleep 1000";
        let canary = canary(dir.path(), script, Duration::from_millis(300));
        let before = SystemClock.now().mono;
        let evidence = canary.look(&SystemClock).await.remove(0);
        assert!(
            matches!(evidence.fact, Fact::Storage { outcome: CanaryOutcome::Stalled, .. }),
            "{evidence:?}"
        );
        assert!(evidence.at.since(before) >= canary.deadline, "a stall is dated by when it was seen");
        let pids = std::fs::read_to_string(dir.path().join("pids")).unwrap();
        assert_eq!(pids.lines().count(), 1);
        let process = Path::new("/proc").join(pids.trim());
        let begun = std::time::Instant::now();
        while process.exists() {
            assert!(begun.elapsed() < LONG, "process {} was not killed and reaped", pids.trim());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_writer_that_cannot_be_started_says_nothing_about_the_storage() {
        let dir = tempfile::tempdir().unwrap();
        let mut canary = canary(dir.path(), "", LONG);
        canary.writer = dir.path().join("gone");
        let Fact::Blind { why } = fact(&canary).await else { panic!("a fact") };
        assert!(why.contains("No such file"), "{why}");
    }

    #[test]
    fn the_file_is_written_over_and_nothing_else_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            write(dir.path(), &"standby-1".into()).unwrap();
        }
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [".understudy-canary-standby-1"]);

        let precious = dir.path().join("precious");
        std::fs::write(&precious, "data").unwrap();
        std::os::unix::fs::symlink(&precious, dir.path().join(".understudy-canary-standby-2")).unwrap();
        assert!(matches!(write(dir.path(), &"standby-2".into()), Err(CanaryError::Refused { .. })));
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "data");
    }

    #[test]
    fn a_directory_that_is_not_there_is_not_made() {
        let dir = tempfile::tempdir().unwrap().path().join("mount/canary");
        let error = write(&dir, &"standby-1".into()).unwrap_err();
        assert!(error.to_string().ends_with("does not exist: is its storage mounted?"), "{error}");
        assert!(!dir.exists());
    }

    #[test]
    fn every_bad_value_is_told() {
        let guarded = BTreeSet::from([BrokerId(1)]);
        let problems = |text: &str| {
            let config: CanaryConfig = toml::from_str(text).unwrap();
            let problems = config.problems(&guarded, Duration::from_secs(3));
            problems.iter().map(|p| p.split(':').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert!(problems("dir = \"/mnt/a\"").is_empty(), "the defaults fit each other");
        assert!(problems("dir = \"/mnt/a\"\nperiod = \"2s\"\ndeadline = \"1s\"").is_empty());
        assert_eq!(problems("dir = \"a\"\nbrokers = [1, 7]"), ["dir", "brokers"]);
        assert_eq!(problems("dir = \"/a\"\nperiod = \"0s\"\ndeadline = \"0s\""), ["period", "deadline"]);
        assert_eq!(problems("dir = \"/a\"\ndeadline = \"2s\""), ["deadline"], "2 s and 2 s");
        assert_eq!(problems("dir = \"/a\"\nperiod = \"2s\""), ["deadline"], "2 s and 1.5 s");
    }
}
