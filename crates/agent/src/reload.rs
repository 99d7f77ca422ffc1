//! A changed configuration, while the agent runs: the file is checked whole, the drivers are made, and only then the
//! decision loop is given them. It takes them once no work of this agent is running.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use recovery::event::{Event, What};
use recovery::model::BrokerId;
use recovery::ports::EventSink;
use recovery::status::Status;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::config::{Config, ConfigError, Difference};
use crate::refusal::{Refusal, Refused};
use crate::setup::Setup;
use crate::world::Lasting;

/// A reload that takes longer waits for work of the agent.
const SOON: Duration = Duration::from_secs(1);

/// What is asked for.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ask {
    /// Only to be told what is different.
    pub(crate) dry_run: bool,
    /// How long the answer may wait for the end of work of the agent.
    pub(crate) wait_secs: u64,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) file: PathBuf,
    pub(crate) differences: Vec<Difference>,
    pub(crate) became: Became,
}

/// What became of the differences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Became {
    /// There are none, or nobody wanted them applied.
    Nothing,
    /// They are in force, since then.
    Applied(Timestamp),
    /// They will be, once the agent's work has ended: takeovers of these brokers, as far as it is that.
    WaitsFor(Vec<BrokerId>),
    /// A later reload has taken their place.
    Superseded,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        if self.differences.is_empty() {
            return write!(f, "{file} says what is in force: nothing to reload");
        }
        writeln!(f, "{file} differs from what was in force:")?;
        self.differences.iter().try_for_each(|difference| writeln!(f, "  {difference}"))?;
        match &self.became {
            Became::Nothing => write!(f, "nothing was applied (--dry-run)"),
            Became::Applied(at) => write!(f, "applied at {at:.0}"),
            Became::Superseded => write!(f, "not applied: a later reload took its place"),
            Became::WaitsFor(brokers) => {
                let names: Vec<String> = brokers.iter().map(ToString::to_string).collect();
                let work = match names.as_slice() {
                    [] => "work of this agent".to_owned(),
                    names => format!("takeover of broker {}", names.join(" and ")),
                };
                write!(f, "waits until the {work} has ended, and is applied then")
            }
        }
    }
}

/// Why nothing was reloaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotReloaded {
    /// The file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A key that takes a restart.
    #[error("{}", .0.why)]
    Refused(Refused),
    /// A driver.
    #[error("nothing was reloaded: {0:#}")]
    Failed(anyhow::Error),
}

/// What the decision loop goes on with.
pub(crate) struct Next {
    pub(crate) setup: Setup,
    by: String,
    differences: Vec<Difference>,
    applied: oneshot::Sender<Timestamp>,
}

impl Next {
    /// As an event.
    pub(crate) fn told(&self) -> What {
        let differences = self.differences.iter().map(ToString::to_string).collect();
        What::Reloaded { by: self.by.clone(), differences }
    }
}

/// Where reloads are asked for, and taken up.
pub(crate) struct Reloads {
    in_force: Mutex<Arc<Config>>,
    lasting: Lasting,
    events: Arc<dyn EventSink>,
    status: watch::Receiver<Status>,
    /// One file is looked at after the other, so that the newest is what waits.
    turn: tokio::sync::Mutex<()>,
    waiting: Mutex<Option<Next>>,
    put: Notify,
}

impl Reloads {
    /// Of an agent in which `config` is in force.
    pub(crate) fn new(
        config: Arc<Config>,
        lasting: Lasting,
        events: Arc<dyn EventSink>,
        status: watch::Receiver<Status>,
    ) -> Arc<Self> {
        let (turn, waiting, put) = (tokio::sync::Mutex::default(), Mutex::default(), Notify::new());
        Arc::new(Self { in_force: Mutex::new(config), lasting, events, status, turn, waiting, put })
    }

    /// Checks the file, has what is different in it put into force unless this is a dry run, and tells what became of
    /// it in time. A reload that waits gives way to this one.
    ///
    /// # Errors
    /// When the file, a changed key or a driver stands in the way: what is in force stays so.
    pub(crate) async fn ask(self: &Arc<Self>, by: String, ask: Ask) -> Result<Report, NotReloaded> {
        let turn = self.turn.lock().await;
        let this = self.clone();
        let looked = spawn_blocking(move || this.look(ask.dry_run)).await;
        let looked = looked.unwrap_or_else(|panicked| Err(NotReloaded::Failed(panicked.into())));
        if let (Err(why), false) = (&looked, ask.dry_run) {
            self.tell(&by, why);
            // The file does not say any more what waits.
            *lock(&self.waiting) = None;
        }
        let (differences, setup) = looked?;
        let file = lock(&self.in_force).path.clone();
        if !ask.dry_run && setup.is_none() {
            tracing::info!(by, "nothing to reload: the file says what is in force");
            *lock(&self.waiting) = None;
        }
        let Some(setup) = setup else { return Ok(Report { file, differences, became: Became::Nothing }) };
        let (applied, is_applied) = oneshot::channel();
        *lock(&self.waiting) = Some(Next { setup, by, differences: differences.clone(), applied });
        self.put.notify_one();
        drop(turn);
        let wait = Duration::from_secs(ask.wait_secs).max(SOON);
        let became = match timeout(wait, is_applied).await {
            Ok(applied) => applied.map_or(Became::Superseded, Became::Applied),
            Err(_) => {
                let brokers = self.status.borrow().brokers.clone();
                let taken = brokers.into_iter().filter(|broker| broker.takeover.is_some());
                Became::WaitsFor(taken.map(|broker| broker.id).collect())
            }
        };
        Ok(Report { file, differences, became })
    }

    /// What is different in the file, and what is to be put into force for it.
    fn look(&self, dry_run: bool) -> Result<(Vec<Difference>, Option<Setup>), NotReloaded> {
        let before = lock(&self.in_force).clone();
        let config = Config::load(&before.path)?;
        let differences = before.written.differences(&config.written);
        if differences.iter().any(|difference| difference.fixed) {
            return Err(NotReloaded::Refused(needs_restart(&differences)));
        }
        if dry_run || differences.is_empty() {
            return Ok((differences, None));
        }
        let setup = Setup::of(config, self.events.clone(), &self.lasting);
        Ok((differences, Some(setup.map_err(NotReloaded::Failed)?)))
    }

    fn tell(&self, by: &str, why: &NotReloaded) {
        let (at, host) = (Timestamp::now(), lock(&self.in_force).topology.here.clone());
        let what = What::NotReloaded { by: by.to_owned(), why: why.to_string() };
        self.events.emit(&Event { at, host, broker: None, epoch: None, what });
    }

    /// What waits, once something does.
    pub(crate) async fn next(&self) -> Next {
        loop {
            if let Some(next) = lock(&self.waiting).take() {
                return next;
            }
            self.put.notified().await;
        }
    }

    /// `next` is in force now. Its setup.
    pub(crate) fn applied(&self, next: Next) -> Setup {
        *lock(&self.in_force) = next.setup.config.clone();
        // Who asked may have left.
        let _ = next.applied.send(Timestamp::now());
        next.setup
    }
}

fn needs_restart(differences: &[Difference]) -> Refused {
    let fixed = differences.iter().filter(|difference| difference.fixed);
    let fixed: Vec<String> = fixed.map(ToString::to_string).collect();
    let verb = if fixed.len() == 1 { "takes" } else { "take" };
    Refusal::NeedsRestart.because(format!(
        "{} {verb} a restart of the agent, so nothing was reloaded: run `systemctl restart understudy`, or take the \
         change back",
        fixed.join("; ")
    ))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use recovery::cycle::Cycle;

    use super::*;
    use crate::telemetry::LogSink;

    #[tokio::test]
    async fn of_reloads_that_wait_the_newest_file_is_applied() {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples/standby.toml");
        let (example, dir) = (fs::read_to_string(example).unwrap(), tempfile::tempdir().unwrap());
        let file = dir.path().join("understudy.toml");
        let write = |limit: &str| {
            let text = example.replace("hung_after = \"30s\"", &format!("hung_after = \"{limit}\""));
            fs::write(&file, text).unwrap();
        };
        write("30s");
        let config = Config::load(&file).unwrap();
        let status =
            Cycle::new(fakes::World::topology(), fakes::World::policy(), fakes::World::new().ports()).1;
        let lasting = Lasting::of(&config).unwrap();
        let reloads = Reloads::new(Arc::new(config), lasting, Arc::new(LogSink::default()), status);
        let ask = |wait_secs| {
            let reloads = reloads.clone();
            async move { reloads.ask("ada".to_owned(), Ask { wait_secs, dry_run: false }).await.unwrap().became }
        };
        write("31s");
        let first = tokio::spawn(ask(600));
        while lock(&reloads.waiting).is_none() {
            assert!(!first.is_finished(), "{:?}", first.await);
            tokio::task::yield_now().await;
        }
        write("32s");
        assert_eq!(ask(0).await, Became::WaitsFor(Vec::new()));
        assert_eq!(first.await.unwrap(), Became::Superseded);
        let next = reloads.next().await;
        assert_eq!(next.setup.config.policy.hung_after, Duration::from_secs(32));
        reloads.applied(next);

        write("33s");
        ask(0).await;
        write("32s");
        assert_eq!(ask(0).await, Became::Nothing);
        assert!(lock(&reloads.waiting).is_none(), "the file was put back");
    }
}
