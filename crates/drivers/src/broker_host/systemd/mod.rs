//! `systemd`: runs Kafka as a unit of systemd, asked for over D-Bus.
//!
//! What counts is what systemd says of a job's end and of the unit, and what `/proc` shows: never the exit
//! code of a command. Deliberately absent: any signal of our own, except to a Kafka that serves without a
//! registration, and any start that goes against a stop that somebody else has ordered.

mod act;
mod bus;
mod check;
pub(super) mod class_data;
mod drop_in;
mod guard_reads;
mod kill;
mod needs;
mod sandbox;
mod unit;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;

use super::class_data::{ClassDataUse, Shelf};
use super::common::{Common, Section};
use super::problem::Problem;
use super::{BROKER, GuardReads, RunHere, proc};
use crate::off_path::{OffPathError, off_path};
use bus::Bus;
use recovery::model::{BrokerId, Epoch, HostName};
use recovery::ports::{BrokerHost, Note, ProcessState, Proof, StepError};

const DRIVER: &str = "systemd";

/// Where drop-ins go that the next boot forgets.
const RUN_DIR: &str = "/run/systemd/system";

/// How Kafka is run on this host by the `systemd` driver.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SystemdConfig {
    /// The unit that runs Kafka, such as `kafka@{broker}.service`. `{broker}` stands for the broker's id;
    /// with several brokers it must be there. Its `ExecStart=` must use `${UNDERSTUDY_PROPERTIES}`, the path
    /// of the rendered `server.properties`; `deploy/systemd` has one.
    pub unit: String,
    /// The `server.properties` of this host. Node id, log dirs and the addresses of its listeners become the
    /// broker's; a listener at loopback, or at an address of its own, stays as it is. docs/server-properties.md
    /// has every key.
    pub template: PathBuf,
    /// Environment of Kafka, such as `KAFKA_HEAP_OPTS`, beside what the unit gives it. `{broker}` in a value
    /// stands for the broker's id, as in `JMX_PORT = "999{broker}"`: two Kafkas of one host cannot have the same
    /// port. Everybody on this host
    /// can read it: secrets belong into an `EnvironmentFile=` of the unit, which also wins over what is named
    /// here.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The user that Kafka runs as: the same as `User=` of the unit. It must be the owner of the log dirs, and
    /// have the same number on every host.
    #[serde(default)]
    pub user: Option<String>,
    /// Whether a class-data archive of Kafka's classes is made and used, with which Java starts it in less
    /// time: `auto`, `manual` (only `understudy warm` makes one) or `off`. It is made by
    /// `understudy-warm.service` (in `deploy/systemd`), which runs what `ExecStart=` of `unit` says once with
    /// a configuration of its own, at the lowest priority. Where one is used, Java takes keys in PEM in with
    /// fewer rounds (`-Dkeystore.pkcs12.keyPbeIterationCount=1000`); and where this host has at most two
    /// processors besides, its second compiler is told to wait longer (`-XX:Tier4…`).
    #[serde(default)]
    pub class_data: ClassDataUse,
    /// How long a look at files, or an answer of systemd, may take. Storage that takes longer counts as dead.
    #[serde(default = "ten_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// How long the start of the unit may take, from its condition until systemd calls it started. With
    /// `Type=exec`, as in `deploy/systemd`, Kafka's own start is not part of it.
    #[serde(default = "two_minutes", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub start_timeout: Duration,
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

fn two_minutes() -> Duration {
    Duration::from_secs(120)
}

impl SystemdConfig {
    /// Where the archive of this Kafka is kept.
    pub(super) fn shelf(&self, state_dir: &Path) -> Shelf {
        Shelf::new(state_dir, self.class_data, std::slice::from_ref(&self.unit), &self.environment)
    }
}

/// Runs brokers on this host as units.
pub struct Systemd {
    common: Arc<Common>,
    shelf: Shelf,
    bus: Bus,
    /// The unit's name, with the placeholder.
    unit: String,
    run_dir: PathBuf,
    timeout: Duration,
    start_timeout: Duration,
    guard_reads: Option<GuardReads>,
    /// The last words of each broker's last run, by the run: asking the journal is not cheap.
    last_words: Mutex<BTreeMap<BrokerId, (String, String)>>,
}

impl Systemd {
    /// Makes the driver from its section; `state_dir` is local and absolute, `here` is this host.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration, as `key: what is wrong and what to do`.
    pub fn new(
        config: SystemdConfig,
        here: HostName,
        state_dir: PathBuf,
        brokers: impl Into<RunHere>,
    ) -> Result<Self, Vec<String>> {
        let brokers = brokers.into();
        let problems = check::config(&config, brokers.brokers.len());
        let section = Section {
            template: &config.template,
            environment: &config.environment,
            user: config.user.as_deref(),
            timeout: config.timeout,
        };
        let guard_reads = brokers.guard_reads.clone();
        let common = Common::new(DRIVER, section, (here, state_dir), brokers, problems)?;
        Ok(Self {
            shelf: config.shelf(&common.state_dir),
            common: Arc::new(common),
            bus: Bus::new(None),
            unit: config.unit,
            run_dir: RUN_DIR.into(),
            timeout: config.timeout,
            start_timeout: config.start_timeout,
            guard_reads,
            last_words: Mutex::default(),
        })
    }

    /// The broker's unit.
    fn unit(&self, broker: BrokerId) -> Result<String, Problem> {
        self.common.broker(broker)?;
        Ok(self.unit.replace(BROKER, &broker.to_string()))
    }

    /// Looks at files away from the caller's thread, within `limit`. `what` names the look, and is its key.
    async fn files<T: Send + 'static>(
        &self,
        what: &str,
        limit: Duration,
        f: impl FnOnce(&Common) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let common = Arc::clone(&self.common);
        match off_path(what, limit, move || f(&common).map_err(|problem| common.hide(problem))).await {
            Ok(result) => result,
            Err(OffPathError::Hung { what, limit }) => {
                Err(Problem::Unconfirmed { what: format!("{what} hangs"), limit })
            }
            Err(error) => Err(Problem::Io { what: what.to_owned(), source: std::io::Error::other(error) }),
        }
    }
}

#[async_trait]
impl BrokerHost for Systemd {
    fn name(&self) -> &'static str {
        DRIVER
    }

    async fn render(&self, broker: BrokerId, epoch: Epoch) -> Result<Note, StepError> {
        let action = format!("render server.properties of broker {broker}");
        self.render_for_unit(broker, epoch).await.map_err(|problem| problem.into_step(DRIVER, &action))
    }

    async fn verify(&self, broker: BrokerId, cluster_id: Option<&str>) -> Result<Note, StepError> {
        let action = format!("verify the log dirs of broker {broker}");
        let cluster_id = cluster_id.map(str::to_owned);
        let verify =
            self.files(&action, self.timeout, move |common| common.verify(broker, cluster_id.as_deref()));
        verify.await.map_err(|problem| problem.into_step(DRIVER, &action))
    }

    async fn start(&self, broker: BrokerId, epoch: Epoch, proofs: &[Proof]) -> Result<Note, StepError> {
        let action = format!("start Kafka as broker {broker}");
        self.start_unit(broker, epoch, proofs).await.map_err(|problem| problem.into_step(DRIVER, &action))
    }

    async fn state(&self, broker: BrokerId) -> Result<ProcessState, StepError> {
        let action = format!("look at the unit of broker {broker}");
        self.state_of_unit(broker).await.map_err(|problem| problem.into_step(DRIVER, &action))
    }

    async fn bytes_read(&self, _broker: BrokerId, pid: i32) -> Option<u64> {
        off_path("what Kafka has read", self.timeout, move || proc::bytes_read(pid)).await.ok().flatten()
    }

    async fn stop(&self, broker: BrokerId, limit: Duration) -> Result<Note, StepError> {
        let action = format!("stop Kafka of broker {broker}");
        self.stop_unit(broker, limit).await.map_err(|problem| problem.into_step(DRIVER, &action))
    }

    async fn kill(&self, broker: BrokerId, pid: i32, limit: Duration) -> Result<Note, StepError> {
        let action = format!("kill Kafka of broker {broker}");
        self.kill_unit(broker, pid, limit).await.map_err(|problem| problem.into_step(DRIVER, &action))
    }

    async fn end_fenced(&self, broker: BrokerId, limit: Duration) -> Result<Note, StepError> {
        let action = format!("end the Kafka of broker {broker}, which cannot write");
        self.end_unit(broker, limit).await.map_err(|problem| problem.into_step(DRIVER, &action))
    }

    async fn prove_stopped(&self, broker: BrokerId, epoch: Epoch) -> Result<Proof, StepError> {
        let action = format!("prove that no Kafka of broker {broker} runs on this host");
        self.prove_unit_stopped(broker, epoch).await.map_err(|problem| problem.into_step(DRIVER, &action))
    }

    async fn check(&self, broker: BrokerId) -> Vec<Result<Note, StepError>> {
        self.look_around(broker).await
    }
}
