//! `process`: runs Kafka as a process of its own session that outlives the agent.
//!
//! Deliberately absent: any signal but SIGTERM, except to a Kafka that serves without a registration; any
//! write to a log dir before it has been found to be the broker's, and any way to start a second Kafka while
//! one of the same broker may live here.

mod check;
mod child;
mod foreign;
mod launch;
mod program;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;

use super::RunHere;
use super::class_data::{AtStart, ClassDataUse, Recipe, Shelf};
use super::common::{Common, Section, told};
use super::end_fenced::end_fenced;
use super::problem::{Problem, off_path_error};
use super::proc::{self, ProcessId};
use super::user::User;
use crate::off_path::off_path;
pub(super) use child::{Leave, UNKNOWN_STATUS};
use launch::Launch;
pub(super) use launch::UNRECORDED;
pub(super) use launch::is_executable;
use recovery::model::{BrokerId, Epoch, HostName};
use recovery::ports::{BrokerHost, Note, ProcessState, Proof, StepError};

const DRIVER: &str = "process";

/// How Kafka is run on this host by the `process` driver.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessConfig {
    /// What is run, and its arguments; the first is an absolute path. `{properties}` stands for the path of
    /// the rendered `server.properties`. It must stay in the foreground, as `kafka-server-start.sh` does
    /// without `-daemon`.
    pub command: Vec<String>,
    /// What stops a Kafka here that this agent did not start, and keeps it stopped: a program by its absolute
    /// path, and its arguments, such as `["/usr/local/sbin/stop-kafka", "{broker}"]`. `{broker}` stands for
    /// the broker's id; with several brokers an argument must have it. It is run when a person moves the
    /// broker away by `understudy switchover`; without it such a move is refused. Kafka's own
    /// `kafka-server-stop.sh` ends every Kafka of the host, unless it is told `--node-id={broker}` (from Kafka
    /// 3.7 on). Not for a unit of systemd: with one, use `driver = "systemd"`.
    #[serde(default)]
    pub stop_command: Vec<String>,
    /// The `server.properties` of this host. Node id, log dirs and the addresses of its listeners become the
    /// broker's; a listener at loopback, or at an address of its own, stays as it is. docs/server-properties.md
    /// has every key.
    pub template: PathBuf,
    /// Environment of Kafka, such as `KAFKA_HEAP_OPTS`. `{broker}` in a value stands for the broker's id, as in
    /// `JMX_PORT = "999{broker}"`: two Kafkas of one host cannot have the same port. Of the agent's own environment Kafka gets only
    /// `PATH`, `JAVA_HOME`, `LANG`, `LC_ALL`, `TZ` and `HOME`: the rest may hold secrets.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The user that Kafka runs as; without it the agent's own. It must be the owner of the log dirs, and have
    /// the same number on every host.
    #[serde(default)]
    pub user: Option<String>,
    /// Whether a class-data archive of Kafka's classes is made and used, with which Java starts it in less
    /// time: `auto`, `manual` (only `understudy warm` makes one) or `off`. It is made by running `command`
    /// once with a configuration of its own, at the lowest priority. Where one is used, Java takes keys in PEM
    /// in with fewer rounds (`-Dkeystore.pkcs12.keyPbeIterationCount=1000`); and where this host has at most
    /// two processors besides, its second compiler is told to wait longer (`-XX:Tier4…`).
    #[serde(default)]
    pub class_data: ClassDataUse,
    /// How long a look at files, or starting the process, may take. Storage that takes longer counts as dead.
    #[serde(default = "ten_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

impl ProcessConfig {
    /// Where the archive of this Kafka is kept.
    pub(super) fn shelf(&self, state_dir: &Path) -> Shelf {
        Shelf::new(state_dir, self.class_data, &self.command, &self.environment)
    }

    /// How Kafka is started here as this broker.
    pub(super) fn recipe(&self, broker: BrokerId) -> Result<Recipe, Problem> {
        let user = self.user.as_deref().map(User::look_up).transpose();
        let user = user.map_err(|why| Problem::Refused(format!("broker_host.user: {why}")))?;
        let (command, environment) = (self.command.clone(), self.environment.clone());
        let launch = Launch { command, environment, inherits: false };
        let launch = launch.for_broker(broker);
        let text = |value: OsString| value.to_string_lossy().into_owned();
        let environment = launch.environment(user.as_ref()).into_iter();
        let environment = environment.map(|(name, value)| (text(name), text(value))).collect();
        Ok(Recipe {
            command: self.command.clone(),
            environment,
            user,
            from: "broker_host.command".to_owned(),
        })
    }
}

/// Runs brokers on this host as processes.
pub struct Process {
    inner: Arc<Inner>,
    timeout: Duration,
}

/// What the calls share that run away from the caller's thread.
struct Inner {
    common: Common,
    launch: Launch,
    stop_command: Vec<String>,
    shelf: Shelf,
    /// Exit status of the last Kafka of each broker, where we were its parent.
    ended: Mutex<BTreeMap<BrokerId, (ProcessId, String)>>,
    /// Who has the right of a broker and was not started by this agent, as it was seen last.
    strangers: Mutex<BTreeMap<BrokerId, ProcessId>>,
}

impl Process {
    /// Makes the driver from its section; `state_dir` is local and absolute, `here` is this host.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration, as `key: what is wrong and what to do`.
    pub fn new(
        config: ProcessConfig,
        here: HostName,
        state_dir: PathBuf,
        brokers: impl Into<RunHere>,
    ) -> Result<Self, Vec<String>> {
        Self::with(config, (here, state_dir), brokers.into(), false)
    }

    /// The same; whether Kafka `inherits` environment and output from this process.
    pub(super) fn with(
        config: ProcessConfig,
        (here, state_dir): (HostName, PathBuf),
        brokers: RunHere,
        inherits: bool,
    ) -> Result<Self, Vec<String>> {
        let problems = check::config(&config, brokers.brokers.len());
        let section = Section {
            template: &config.template,
            environment: &config.environment,
            user: config.user.as_deref(),
            timeout: config.timeout,
        };
        let common = Common::new(DRIVER, section, (here, state_dir), brokers, problems)?;
        let shelf = config.shelf(&common.state_dir);
        let launch = Launch { command: config.command, environment: config.environment, inherits };
        let inner = Inner {
            common,
            launch,
            stop_command: config.stop_command,
            shelf,
            ended: Mutex::default(),
            strangers: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner), timeout: config.timeout })
    }

    /// Starts Kafka by the word of whoever has seen the `proof`, unless `still` says in the last moment that the
    /// word counts no more.
    pub(super) async fn start_by_word(
        &self,
        (broker, epoch): (BrokerId, Epoch),
        proof: String,
        still: impl Fn() -> Result<(), Problem> + Send + 'static,
    ) -> Result<Note, StepError> {
        let action = format!("start Kafka as broker {broker}");
        let start = move |inner: &Inner| inner.start(broker, epoch, &Leave { proof, still: &still }, None);
        self.run(action, self.timeout, start).await
    }

    /// The brokers that may be started here.
    pub(super) fn brokers(&self) -> Vec<BrokerId> {
        self.inner.common.brokers.keys().copied().collect()
    }

    /// Asks how a child has ended, if it was a broker's, and keeps that. Returns whose it was, and how it ended.
    pub(super) fn take_up(&self, id: ProcessId) -> Option<(BrokerId, String)> {
        self.inner.take_up(id)
    }

    /// Runs `f` away from the caller's thread, within `limit`. `action` completes "could not …".
    async fn run<T: Send + 'static>(
        &self,
        action: String,
        limit: Duration,
        f: impl FnOnce(&Inner) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, StepError> {
        let inner = Arc::clone(&self.inner);
        let result =
            off_path(&action, limit, move || f(&inner).map_err(|problem| inner.common.hide(problem))).await;
        let result = result.map_err(|error| off_path_error(DRIVER, error, &action))?;
        result.map_err(|problem| problem.into_step(DRIVER, &action))
    }
}

#[async_trait]
impl BrokerHost for Process {
    fn name(&self) -> &'static str {
        DRIVER
    }

    async fn render(&self, broker: BrokerId, epoch: Epoch) -> Result<Note, StepError> {
        let action = format!("render server.properties of broker {broker}");
        self.run(action, self.timeout, move |inner| inner.common.render(broker, epoch)).await
    }

    async fn verify(&self, broker: BrokerId, cluster_id: Option<&str>) -> Result<Note, StepError> {
        let action = format!("verify the log dirs of broker {broker}");
        let cluster_id = cluster_id.map(str::to_owned);
        let verify = move |inner: &Inner| inner.common.verify(broker, cluster_id.as_deref());
        self.run(action, self.timeout, verify).await
    }

    async fn start(&self, broker: BrokerId, epoch: Epoch, proofs: &[Proof]) -> Result<Note, StepError> {
        let action = format!("start Kafka as broker {broker}");
        let proofs = proofs.to_vec();
        // Now, and not when the configuration was rendered: what Java is started with must fit now.
        let AtStart { archive, says } = self.inner.shelf.at_start().await;
        let start = move |inner: &Inner| {
            inner.common.check_proofs(&proofs)?;
            let leave = Leave { proof: told(&proofs), still: &|| Ok(()) };
            inner.start(broker, epoch, &leave, archive.as_deref())
        };
        Ok(self.run(action, self.timeout, start).await?.with("class_data", says))
    }

    async fn state(&self, broker: BrokerId) -> Result<ProcessState, StepError> {
        let action = format!("look at the process of broker {broker}");
        self.run(action, self.timeout, move |inner| inner.state(broker)).await
    }

    async fn bytes_read(&self, _broker: BrokerId, pid: i32) -> Option<u64> {
        off_path("what Kafka has read", self.timeout, move || proc::bytes_read(pid)).await.ok().flatten()
    }

    async fn stop(&self, broker: BrokerId, limit: Duration) -> Result<Note, StepError> {
        let action = format!("stop Kafka of broker {broker}");
        let begun = Instant::now();
        // `limit` is for Kafka; the looks at files around it have their own.
        let within = limit + self.timeout;
        let ours = self.run(action.clone(), within, move |inner| inner.stop(broker, limit)).await?;
        let others = self.run(action.clone(), self.timeout, move |inner| inner.others(broker)).await?;
        if others.is_empty() {
            return Ok(ours);
        }
        let left = limit.saturating_sub(begun.elapsed());
        let said = foreign::run(&self.inner.stop_command, (broker, &others), &action, left).await?;
        let left = limit.saturating_sub(begun.elapsed());
        self.run(action, within, move |inner| inner.await_end(broker, others, left)).await?;
        Ok(said)
    }

    async fn kill(&self, broker: BrokerId, pid: i32, limit: Duration) -> Result<Note, StepError> {
        let action = format!("kill Kafka of broker {broker}");
        self.run(action, limit + self.timeout, move |inner| inner.kill(broker, pid, limit)).await
    }

    async fn end_fenced(&self, broker: BrokerId, limit: Duration) -> Result<Note, StepError> {
        let action = format!("end the Kafka of broker {broker}, which cannot write");
        self.run(action, limit + self.timeout, move |inner| end_fenced(&inner.common, broker, limit)).await
    }

    async fn prove_stopped(&self, broker: BrokerId, epoch: Epoch) -> Result<Proof, StepError> {
        let action = format!("prove that no Kafka of broker {broker} runs on this host");
        self.run(action, self.timeout, move |inner| inner.prove_stopped(broker, epoch)).await
    }

    async fn check(&self, broker: BrokerId) -> Vec<Result<Note, StepError>> {
        let mut results = Vec::new();
        for (action, look) in check::looks(&self.inner, broker) {
            let action = format!("{action} of broker {broker}");
            results.push(self.run(action, self.timeout, move |inner| look(inner, broker)).await);
        }
        results
    }
}
