//! What most stories begin with: three brokers under load, a standby with an agent's configuration, and the
//! verdict at the end.

mod setup;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use toml::Table;

use crate::agent::Agent;
use crate::ec2::Ec2;
use crate::ec2::zones::{OTHER_ZONE, ZONE};
use crate::history::{GroupLog, GroupReader, History, WriteSpec, Writer};
use crate::host::{Host, Output};
use crate::kafka::{Cluster, Rejoin, Standing};
use crate::ontap::Ontap;
use crate::unjudged::SetUp;
use crate::{Fault, Lab, eventually, standby};

pub use setup::Setup;

/// The topic all stories write to: 50 partitions, three replicas, two of them needed.
pub const TOPIC: &str = "orders";
/// Its partitions.
pub const PARTITIONS: i32 = 50;
/// The broker that everything happens to.
pub const VICTIM: i32 = 1;

/// Of a record that is written only to be there, in bytes.
const LOADED_SIZE: usize = 64 << 10;

/// How long a story waits for what is to happen. It happens sooner, by a lot; but a busy machine is no
/// failure.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A cluster under load with its standbys. No agent is started yet.
pub struct Scenario<'a> {
    /// The story's lab.
    pub lab: &'a Lab,
    /// Three brokers and a controller.
    pub cluster: Cluster,
    /// The host that takes over, or the first of them.
    pub standby: Arc<Host>,
    /// Its agent.
    pub agent: Arc<Agent>,
    /// The agents of all standbys, by rank; the first is `agent`.
    pub standbys: Vec<Arc<Agent>>,
    /// The agents at the brokers' homes.
    pub at_home: Vec<Arc<Agent>>,
    /// The storage system, if the setup asks for one.
    pub ontap: Option<Ontap>,
    /// The cloud, if the setup asks for one.
    pub ec2: Option<Ec2>,
    /// The directory of the ledger `file`, as this process sees it.
    pub ledger: PathBuf,
    writer: Writer,
    begins_anew: bool,
    /// What was written besides, to be there.
    loaded: Option<History>,
    group: Option<GroupReader>,
    log: GroupLog,
}

/// What a story ends with.
#[derive(Debug)]
pub struct End {
    /// What the writer was told.
    pub history: History,
    /// Records acknowledged and not in the log: always 0 if no error was returned.
    pub lost: usize,
    /// What the group read, and when.
    pub read: GroupLog,
}

impl<'a> Scenario<'a> {
    /// Brings everything up and waits until records flow.
    ///
    /// # Errors
    /// When something does not come up.
    pub fn begin(lab: &'a Lab, setup: &Setup) -> Result<Self> {
        Self::begin_after(lab, setup, |_| Ok(()))
    }

    /// [`Scenario::begin`], with something to be done before anything is written.
    ///
    /// # Errors
    /// When something does not come up, and what `prepare` returns.
    pub fn begin_after(
        lab: &'a Lab,
        setup: &Setup,
        prepare: impl FnOnce(&Cluster) -> Result<()>,
    ) -> Result<Self> {
        Self::bring_up(lab, setup, prepare).context(SetUp)
    }

    fn bring_up(lab: &'a Lab, setup: &Setup, prepare: impl FnOnce(&Cluster) -> Result<()>) -> Result<Self> {
        let cluster = lab.kafka(setup.cluster.clone())?;
        let ledger = lab.kept("ledger")?;
        let ontap = setup.ontap.map(|_| Ontap::start(lab, &cluster)).transpose()?;
        let ec2 = setup.ec2.map(|_| Ec2::start(lab)).transpose()?;
        let (standbys, at_home) = agents(lab, &cluster, setup, (ontap.as_ref(), ec2.as_ref()))?;
        let replicas = i32::from(setup.cluster.brokers.min(3));
        cluster.create_topic(TOPIC, PARTITIONS, replicas, (replicas - 1).max(1))?;
        prepare(&cluster)?;
        if setup.rights && cluster.secured().is_ok() {
            cluster.allow_agent()?;
        }
        let agent = Arc::clone(standbys.first().context("a scenario without a standby")?);
        let standby = Arc::clone(agent.host());
        let load = WriteSpec::steady(TOPIC, PARTITIONS, setup.rate);
        let Setup { socket_timeout_ms, begins_anew, .. } = *setup;
        let writer = cluster.write(WriteSpec { socket_timeout_ms, begins_anew, ..load })?;
        let group = Some(cluster.read_in_group(TOPIC, "audit")?);
        let log = GroupLog::default();
        let scenario = Self {
            lab,
            cluster,
            standby,
            agent,
            standbys,
            at_home,
            ontap,
            ec2,
            ledger,
            writer,
            begins_anew,
            loaded: None,
            group,
            log,
        };
        scenario.flows(1000)?;
        // Partitions are new. One that is slow to begin with would be taken for one that a fault stopped.
        eventually("every partition to take records", PATIENCE, || {
            let partitions = scenario.writer.acked_by_partition().len();
            ensure!(partitions == PARTITIONS.unsigned_abs() as usize, "{partitions} of {PARTITIONS}");
            Ok(())
        })?;
        Ok(scenario)
    }

    /// Starts every agent's daemon and waits until they see everything.
    ///
    /// # Errors
    /// When one ends or is not ready in time.
    pub fn start_agents(&self) -> Result<()> {
        let all = || self.standbys.iter().chain(&self.at_home);
        all().try_for_each(|agent| agent.start())?;
        all().try_for_each(|agent| agent.wait_ready(PATIENCE))
    }

    /// Does `fault`, and leaves it so.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn strike(&self, fault: &Fault) -> Result<()> {
        fault.strike(self.lab)
    }

    /// The victim's home host.
    ///
    /// # Errors
    /// Never, in a scenario.
    pub fn victim(&self) -> Result<&Arc<Host>> {
        self.cluster.broker(VICTIM)?.home()
    }

    /// Writes so many bytes beside the load, in large records and as fast as they are taken. They are judged
    /// with the rest.
    ///
    /// # Errors
    /// When that takes longer than [`PATIENCE`], or was done before.
    pub fn load(&mut self, bytes: u64) -> Result<()> {
        ensure!(self.loaded.is_none(), "this scenario was loaded before");
        let spec = WriteSpec { rate: None, size: LOADED_SIZE, ..WriteSpec::steady(TOPIC, PARTITIONS, 0) };
        let writer = self.cluster.write(spec)?;
        eventually("the load to be written", PATIENCE, || {
            let written = writer.acked() * LOADED_SIZE;
            ensure!(written as u64 >= bytes, "{} MiB of {}", written >> 20, bytes >> 20);
            Ok(())
        })?;
        self.loaded = Some(writer.stop()?);
        Ok(())
    }

    /// Waits until the writer has had `more` acknowledgements from now on, and the group reads them.
    ///
    /// # Errors
    /// When that takes longer than [`PATIENCE`].
    pub fn flows(&self, more: usize) -> Result<()> {
        let before = self.writer.acked();
        let read = || self.log.read() + self.group.as_ref().map_or(0, GroupReader::read);
        eventually("records to flow", PATIENCE, || {
            let loaded = self.loaded.as_ref().map_or(0, |history| history.acked.len());
            let (acked, read) = (self.writer.acked(), read().saturating_sub(loaded));
            ensure!(acked >= before + more, "{} records acknowledged since", acked - before);
            ensure!(read + 1000 >= acked, "{acked} records acknowledged, {read} read by the group");
            Ok(())
        })
    }

    /// How many records were acknowledged so far.
    #[must_use]
    pub fn acked(&self) -> usize {
        self.writer.acked()
    }

    /// Another member takes up the group's work, from the committed offsets.
    ///
    /// # Errors
    /// When the last commit fails, or the new member cannot be made.
    pub fn change_group_member(&mut self) -> Result<()> {
        if let Some(group) = self.group.take() {
            self.log = std::mem::take(&mut self.log).then(group.stop()?);
        }
        self.group = Some(self.cluster.read_in_group(TOPIC, "audit")?);
        Ok(())
    }

    /// Does `fault`, and waits until the victim was gone and is back in every ISR.
    ///
    /// # Errors
    /// When the fault cannot be made, or the broker is not back in `limit`.
    pub fn recovered_after(&self, limit: Duration, fault: impl FnOnce() -> Result<()>) -> Result<Rejoin> {
        let watch = self.cluster.watch(VICTIM);
        watch.wait("to be in sync", PATIENCE, Standing::is_complete)?;
        let at = Instant::now();
        fault()?;
        let rejoin = watch.wait_rejoined(at, limit)?;
        self.lab.note(format!("broker {VICTIM}: {rejoin:.1?} s after the fault"));
        Ok(rejoin)
    }

    /// Ends the load and judges it: nothing acknowledged is missing, doubled or out of order, and the group
    /// neither skipped a record nor read a committed one again.
    ///
    /// # Errors
    /// The verdict, if it is not clean.
    pub fn verdict(mut self) -> Result<End> {
        // What was lost is a verdict, also where records do not flow because of it.
        let flows = self.flows(1000);
        let history = self.writer.stop()?;
        if let Some(group) = self.group.take() {
            self.log = self.log.then(group.stop()?);
        }
        self.log.ensure_continuous()?;
        let histories: Vec<&History> = self.loaded.iter().chain([&history]).collect();
        for history in &histories {
            ensure!(
                self.begins_anew || history.failed.is_empty(),
                "the producer gave up on {:?}",
                history.failed
            );
        }
        let (verdict, flows) = match (self.cluster.verify(&histories), flows) {
            // What cannot be read judges nothing.
            (Err(_), Err(waited)) => return Err(waited),
            (verdict, flows) => (verdict?, flows),
        };
        self.lab.note(format!("{verdict}; longest wait {:.1?}", history.longest_wait()));
        verdict.ensure_clean()?;
        flows?;
        Ok(End { lost: verdict.lost(), history, read: self.log })
    }

    /// The files of the victim's epochs in the ledger: one a takeover.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn epochs(&self) -> Result<Vec<String>> {
        let dir = self.ledger.join(format!("broker-{VICTIM}"));
        if !dir.exists() {
            return Ok(Vec::new());
        }
        let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names: Vec<String> = names.collect::<Result<_>>()?;
        Ok(names.into_iter().filter(|name| name.starts_with("epoch-")).collect())
    }

    /// The journal of the victim's first epoch as text; empty before the claim.
    #[must_use]
    pub fn journal(&self) -> String {
        self.journal_of(1)
    }

    /// The journal of one of the victim's epochs as text; empty before the claim.
    #[must_use]
    pub fn journal_of(&self, epoch: u32) -> String {
        let path = self.ledger.join(format!("broker-{VICTIM}/epoch-{epoch}.journal"));
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Waits until the journal of an epoch says all of `words`.
    ///
    /// # Errors
    /// When it does not in `limit`; with the journal.
    pub fn journal_says(&self, epoch: u32, words: &[&str], limit: Duration) -> Result<()> {
        eventually(&format!("epoch {epoch} to say {words:?}"), limit, || {
            let journal = self.journal_of(epoch);
            ensure!(words.iter().all(|word| journal.contains(word)), "{journal}");
            Ok(())
        })
    }

    /// No host was switched off, no epoch claimed, no Kafka started on the standby, no address moved.
    ///
    /// # Errors
    /// What was done all the same.
    pub fn ensure_untouched(&self) -> Result<()> {
        let fenced: Vec<String> =
            self.lab.switch().requests().into_iter().filter(|request| request.starts_with("off ")).collect();
        ensure!(fenced.is_empty(), "a host was fenced: {fenced:?}");
        let epochs = self.epochs()?;
        ensure!(epochs.is_empty(), "takeovers were claimed: {epochs:?}");
        self.ensure_not_started()
    }

    /// No Kafka runs on any standby that has power, and no address was moved to it.
    ///
    /// # Errors
    /// What is there all the same.
    pub fn ensure_not_started(&self) -> Result<()> {
        for host in self.standbys.iter().map(|agent| agent.host()).filter(|host| host.is_on()) {
            let (name, kafkas) = (host.name(), host.processes(&["kafka.Kafka"])?);
            ensure!(kafkas.is_empty(), "Kafka runs on {name}: {kafkas:?}");
            let addresses = host.addresses()?;
            ensure!(addresses.len() == 1, "{name} has the addresses {addresses:?}");
        }
        Ok(())
    }

    /// The hosts with power on which Kafka runs as the victim, frozen or not; one that runs twice is named
    /// twice.
    ///
    /// # Errors
    /// When a host cannot be looked at.
    pub fn running_on(&self) -> Result<Vec<String>> {
        let (at_home, moved) =
            (format!("b{VICTIM}.properties"), format!("broker-{VICTIM}/server.properties"));
        let mut found = Vec::new();
        for (name, host) in self.lab.hosts().into_iter().filter(|(_, host)| host.is_on()) {
            for file in [&at_home, &moved] {
                found.extend(host.processes(&["kafka.Kafka", file])?.iter().map(|_| name.clone()));
            }
        }
        Ok(found)
    }

    /// Exactly one Kafka runs as the victim, on `host`.
    ///
    /// # Errors
    /// Where it runs instead.
    pub fn ensure_runs_on(&self, host: &str) -> Result<()> {
        let running = self.running_on()?;
        ensure!(running == [host], "broker {VICTIM} runs on {running:?}, not on {host}");
        Ok(())
    }

    /// The process ids of Kafka on the standby, by its kernel.
    ///
    /// # Errors
    /// When the standby cannot be asked.
    pub fn kafkas(&self) -> Result<Vec<String>> {
        // `[k]` keeps the search from finding itself.
        let find = "grep -l '[k]afka.Kafka' /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3";
        let found = self.standby.run(&["sh", "-c", find])?;
        Ok(found.stdout.split_whitespace().map(str::to_owned).collect())
    }

    /// Runs an agent's command and expects its exit code.
    ///
    /// # Errors
    /// When it is another; with everything it said.
    pub fn cli(&self, arguments: &[&str], code: i32) -> Result<Output> {
        self.cli_of(&self.agent, arguments, code)
    }

    /// [`Scenario::cli`] on the host of another agent.
    ///
    /// # Errors
    /// When it is another; with everything it said.
    pub fn cli_of(&self, agent: &Agent, arguments: &[&str], code: i32) -> Result<Output> {
        let output = agent.cli(arguments)?;
        let said = format!("{}\n{}", output.stdout, output.stderr);
        let name = format!("cli-{}.txt", arguments.first().unwrap_or(&"none"));
        fs::write(self.lab.artifacts().join(name), &said)?;
        ensure!(
            output.code == code,
            "`understudy {}` exits with {}:\n{said}",
            arguments.join(" "),
            output.code
        );
        Ok(output)
    }

    /// The victim's part of `/v1/status`.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn status(&self) -> Result<serde_json::Value> {
        self.status_of(&self.agent)
    }

    /// The victim's part of an agent's `/v1/status`.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn status_of(&self, agent: &Agent) -> Result<serde_json::Value> {
        let status = agent.status()?;
        let brokers = status["brokers"].as_array().context("no brokers in /v1/status")?;
        let found = brokers.iter().find(|broker| broker["id"] == VICTIM);
        found.cloned().with_context(|| format!("no broker {VICTIM} in {status}"))
    }

    /// Waits until the daemon's decision on the victim is `decision`.
    ///
    /// # Errors
    /// When it is not in `limit`; says what it is.
    pub fn decided(&self, decision: &str, limit: Duration) -> Result<serde_json::Value> {
        self.decided_by(&self.agent, decision, limit)
    }

    /// Waits until an agent's decision on the victim is `decision`.
    ///
    /// # Errors
    /// When it is not in `limit`; says what it is.
    pub fn decided_by(&self, agent: &Agent, decision: &str, limit: Duration) -> Result<serde_json::Value> {
        eventually(&format!("the decision {decision} on {}", agent.host().name()), limit, || {
            let status = self.status_of(agent)?;
            ensure!(status["decision"]["decision"] == decision, "{status}");
            Ok(status)
        })
    }

    /// Waits until an agent holds for `reason`, by its label.
    ///
    /// # Errors
    /// When it does not in `limit`; says what it decides.
    pub fn held_by(&self, agent: &Agent, reason: &str, limit: Duration) -> Result<serde_json::Value> {
        eventually(&format!("{} to hold: {reason}", agent.host().name()), limit, || {
            let status = self.status_of(agent)?;
            let decision = &status["decision"];
            let reasons = decision["reasons"].as_array().cloned().unwrap_or_default();
            let held = decision["decision"] == "hold" && reasons.iter().any(|held| held["reason"] == reason);
            ensure!(held, "{decision}");
            Ok(status)
        })
    }
}

type Agents = Vec<Arc<Agent>>;

/// The agents of all standbys, by rank, and of the brokers' homes, with their configurations.
fn agents(
    lab: &Lab,
    cluster: &Cluster,
    setup: &Setup,
    (ontap, ec2): (Option<&Ontap>, Option<&Ec2>),
) -> Result<(Agents, Agents)> {
    let mut standbys = Vec::new();
    for n in 1..=setup.standbys {
        let zone = if setup.cluster.zones { OTHER_ZONE } else { ZONE };
        let host = lab.host(&format!("standby-{n}"), &zone.address(30 + n).to_string())?;
        ontap.map_or(Ok(()), |ontap| ontap.plug_in(&host))?;
        ec2.map_or(Ok(()), |ec2| ec2.plug_in(&host))?;
        standby::equip(lab, cluster, &host, setup.ledger)?;
        standbys.push(host);
    }
    let mut homes = Vec::new();
    for id in setup.at_home {
        let home = Arc::clone(cluster.broker(*id)?.home()?);
        standby::equip_home(lab, cluster, &home, setup.ledger)?;
        homes.push(home);
    }
    let all: Vec<Arc<Host>> = standbys.iter().chain(&homes).cloned().collect();
    let agent = |host: &Arc<Host>, change: &dyn Fn(&mut Table)| {
        let mut config = standby::config(lab, cluster, host)?;
        config.insert("mode".to_owned(), setup.mode.into());
        for (key, value) in setup.policy {
            let number = value.parse::<i64>().map(toml::Value::from);
            standby::set(&mut config, "policy", key, number.unwrap_or_else(|_| (*value).into()));
        }
        if !setup.controllers.is_empty() {
            standby::set(&mut config, "cluster", "controllers", setup.controllers.clone());
        }
        standby::fence_by(lab, &mut config, setup.fence, setup.then_switched_off && ontap.is_none())?;
        if let (Some(ec2), Some(timeout)) = (ec2, setup.ec2) {
            ec2.configure(&mut config, host, timeout);
        }
        if let (Some(ontap), Some(timeout)) = (ontap, setup.ontap) {
            ontap.configure(&mut config, host, timeout, setup.then_switched_off)?;
            ec2.map_or(Ok(()), |ec2| ec2.find_storage(&mut config))?;
        }
        if setup.peers {
            let others = all.iter().filter(|other| other.name() != host.name());
            standby::ask_peers(&mut config, others.map(Arc::as_ref));
        }
        standby::render_otherwise(&mut config, VICTIM, setup.properties);
        if setup.canary {
            standby::keep_canary(&mut config, cluster);
        }
        change(&mut config);
        lab.idle_agent(host, &config.to_string())
    };
    let ranked = |(rank, host): (i64, &Arc<Host>)| {
        agent(host, &|config| standby::set(config, "standby", "rank", 10 * rank))
    };
    let at_home = homes.iter().zip(setup.at_home);
    Ok((
        (1..).zip(&standbys).map(ranked).collect::<Result<_>>()?,
        at_home
            .map(|(home, id)| agent(home, &|config| standby::serve_only(config, *id)))
            .collect::<Result<_>>()?,
    ))
}

/// Every regular file below `dir` with its size and content: to show that nothing was written.
///
/// # Errors
/// When one cannot be read.
pub fn contents(dir: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else {
                let bytes = fs::read(&path)?;
                found.insert(path, bytes);
            }
        }
    }
    Ok(found)
}
