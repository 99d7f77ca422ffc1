//! What the stories on real NFS begin with: a broker at home in a guest, standbys in guests with the daemon
//! under systemd, and the storage system's export rules as the only fence.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;
use toml::{Table, Value, toml};

use super::install::ledger_of;
use super::kafka::{LEDGER_EXPORT, mount_at_boot};
use super::storage::SCRATCH;
use super::{Export, Guest, GuestAgent, GuestHome, GuestSpec, NfsBed, NfsOntap, NfsServer, classes};
use crate::history::{History, WriteSpec, Writer};
use crate::host::Output;
use crate::kafka::{Cluster, ClusterSpec, Rejoin, Standing};
use crate::ontap::volume;
use crate::scenario::{PATIENCE, TOPIC, VICTIM};
use crate::standby::{CANARY, fenced, guest_config, set};
use crate::{Lab, eventually};

/// The partitions of the topic that is written to all the time.
pub const PARTITIONS: i32 = 12;
/// Who holds a broker, and the file of the export that all canaries write to.
const CANARY_EXPORT: &str = "canary";
/// How long fence and grant may take together with waiting for the silence of a client.
const FENCE: &str = "30s";

/// What differs from story to story.
#[derive(Debug, Clone)]
pub struct NfsSetup {
    /// How many standbys there are; the first has the best rank.
    pub standbys: u8,
    /// Whether all agents keep a canary on the server.
    pub canary: bool,
    /// What differs in the brokers' properties.
    pub properties: &'static [(&'static str, &'static str)],
    /// Fences by the power switch and by nothing else, on a server that keeps a silent client's locks for so
    /// many seconds and lets every host in.
    pub power_and_lease: Option<u32>,
}

impl Default for NfsSetup {
    fn default() -> Self {
        Self { standbys: 1, canary: false, properties: &[], power_and_lease: None }
    }
}

/// Three brokers, the first at home in guest `b1`, under load; standbys in guests. No daemon is started yet.
pub struct NfsScenario<'a> {
    /// The story's lab.
    pub lab: &'a Lab,
    /// The NFS server.
    pub server: Arc<NfsServer>,
    /// The storage system that speaks for it.
    pub storage: NfsOntap,
    /// The cluster.
    pub cluster: Cluster,
    /// The victim's home, with an agent of its own.
    pub home: GuestAgent,
    /// The agents of the standbys, by rank.
    pub standbys: Vec<GuestAgent>,
    writer: Writer,
}

impl<'a> NfsScenario<'a> {
    /// Brings everything up and waits until records flow.
    ///
    /// # Errors
    /// When something does not come up.
    pub fn begin(lab: &'a Lab, setup: &NfsSetup) -> Result<Self> {
        let bed = NfsBed::open(lab)?;
        let [ledger, canaries] = [LEDGER_EXPORT, CANARY_EXPORT].map(Export::to_all);
        let server = match setup.power_and_lease {
            Some(lease) => {
                let exports = vec![Export::to_all(&volume(VICTIM)), ledger, canaries];
                bed.server_with_lease(lab, exports, lease)?
            }
            None => {
                let ruled = [Export::to(&volume(VICTIM), &[HOME]), Export::to::<&str>(SCRATCH, &[])];
                bed.server(lab, ruled.into_iter().chain([ledger, canaries]).collect())?
            }
        };
        let guests = boot(lab, &bed, setup)?;
        let (home, others) = guests.split_first().context("no guests")?;
        let at_home = GuestHome { guest: Arc::clone(home), server: Arc::clone(&server) };
        let at_home = BTreeMap::from([(VICTIM, at_home)]);
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let properties = setup.properties.iter().map(owned).collect();
        let cluster = lab.kafka(ClusterSpec { guests: at_home, properties, ..ClusterSpec::default() })?;
        let (volume, owner) = (volume(VICTIM), (home.name(), home.address()));
        let ruled = setup.power_and_lease.is_none().then_some((volume.as_str(), owner));
        let storage = NfsOntap::start(lab, &server, ruled.as_slice())?;
        guests.iter().try_for_each(|guest| storage.plug_in(guest.name(), guest.address()))?;
        guests.iter().for_each(|guest| lab.switch().plug_in(guest));

        let install = |(place, guest): (usize, &Arc<Guest>)| -> Result<GuestAgent> {
            let mut config = guest_config(&cluster, guest, &server, &storage, FENCE)?;
            set(&mut config, "standby", "rank", 10 * (i64::try_from(place)? + 1));
            if setup.power_and_lease.is_some() {
                fence_by_power(lab, &mut config, &storage.hosts())?;
            }
            if setup.canary {
                mount_at_boot(guest, &server, CANARY_EXPORT, CANARY)?;
                config.insert("canary".to_owned(), vec![canary()].into());
            }
            GuestAgent::install(guest, &server, &cluster, &config.to_string())
        };
        let mut agents: Vec<GuestAgent> =
            others.iter().chain([home]).enumerate().map(install).collect::<Result<_>>()?;
        let home = agents.pop().context("no agent at home")?;
        agents.iter().try_for_each(|agent| classes::make_ready(lab, &bed, agent, &cluster))?;
        cluster.create_topic(TOPIC, PARTITIONS, 3, 2)?;
        let writer = cluster.write(WriteSpec::steady(TOPIC, PARTITIONS, 300))?;
        let scenario = Self { lab, server, storage, cluster, home, standbys: agents, writer };
        scenario.flows(500)?;
        Ok(scenario)
    }

    /// Starts the daemons of the standbys, and waits until they see everything.
    ///
    /// # Errors
    /// When one ends or is not ready in time.
    pub fn start_agents(&self) -> Result<()> {
        self.standbys.iter().try_for_each(GuestAgent::start)?;
        self.standbys.iter().try_for_each(|agent| agent.wait_ready(PATIENCE))
    }

    /// The first standby's agent.
    #[must_use]
    pub fn agent(&self) -> &GuestAgent {
        &self.standbys[0]
    }

    /// Waits until the writer has had `more` acknowledgements from now on.
    ///
    /// # Errors
    /// When that takes longer than [`PATIENCE`].
    pub fn flows(&self, more: usize) -> Result<()> {
        let before = self.writer.acked();
        eventually("records to flow", PATIENCE, || {
            let acked = self.writer.acked();
            ensure!(acked >= before + more, "{} records acknowledged since", acked - before);
            Ok(())
        })
    }

    /// Does `fault`, and waits until the victim was gone and is back in every ISR.
    ///
    /// # Errors
    /// When the fault cannot be made, or the broker is not back in time.
    pub fn recovered_after(&self, fault: impl FnOnce() -> Result<()>) -> Result<Rejoin> {
        let watch = self.cluster.watch(VICTIM);
        watch.wait("to be in sync", PATIENCE, Standing::is_complete)?;
        let at = Instant::now();
        fault()?;
        let rejoin = watch.wait_rejoined(at, PATIENCE)?;
        self.lab.note(format!("broker {VICTIM}: {rejoin:.1?} s after the fault"));
        Ok(rejoin)
    }

    /// Waits until an agent's decision on the victim is `decision`.
    ///
    /// # Errors
    /// When it is not in [`PATIENCE`]; says what it is.
    pub fn decided(&self, agent: &GuestAgent, decision: &str) -> Result<Json> {
        let what = format!("the decision {decision} on {}", agent.guest().name());
        eventually(&what, PATIENCE, || {
            let found = decision_of(agent)?;
            ensure!(found["decision"] == decision, "{found}");
            Ok(found)
        })
        .inspect_err(|_| self.keep_what_hangs())
        .map_err(|error| match self.server.ensure_runs() {
            Ok(()) => error,
            Err(ended) => error.context(ended),
        })
    }

    /// Keeps with the artifacts what the guests' processes wait for in the kernel, and what their NFS clients
    /// wait for.
    fn keep_what_hangs(&self) {
        let script = "for t in /proc/[0-9]*/task/*; do s=$(cut -d' ' -f3 $t/stat); [ \"$s\" = D ] || continue; \
                      echo \"$t $(cat $t/comm) $(cat $t/wchan)\"; cat $t/stack; done; \
                      mount -t debugfs debugfs /sys/kernel/debug; cat /sys/kernel/debug/sunrpc/rpc_clnt/*/tasks; \
                      cat /proc/self/mountstats";
        for guest in
            self.standbys.iter().chain([&self.home]).map(GuestAgent::guest).filter(|guest| guest.is_on())
        {
            let said = guest.run_within(Duration::from_secs(20), &["sh", "-c", script]);
            let text =
                said.map_or_else(|error| format!("{error:#}"), |output| output.stdout + &output.stderr);
            // The story fails for another reason, which must come through.
            let _ = fs::write(self.lab.artifacts().join(format!("hangs-{}.txt", guest.name())), text);
        }
    }

    /// Every epoch of the victim that the ledger has.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn epochs(&self) -> Result<Vec<String>> {
        let dir = ledger_of(&self.server).join(format!("broker-{VICTIM}"));
        if !dir.exists() {
            return Ok(Vec::new());
        }
        let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names: Vec<String> = names.collect::<Result<_>>()?;
        Ok(names.into_iter().filter(|name| name.starts_with("epoch-")).collect())
    }

    /// What the ledger has of the victim's newest epoch, as it is written there.
    ///
    /// # Errors
    /// When there is none.
    pub fn journal(&self) -> Result<String> {
        let newest = self
            .epochs()?
            .into_iter()
            .max_by_key(|name| (name.len(), name.clone()))
            .context("no epoch in the ledger")?;
        let path = ledger_of(&self.server).join(format!("broker-{VICTIM}")).join(newest);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Runs an agent's command, keeps what it says with the artifacts, and expects its exit code.
    ///
    /// # Errors
    /// When it is another; with everything it said.
    pub fn cli(&self, agent: &GuestAgent, arguments: &[&str], code: i32) -> Result<Output> {
        let output = agent.cli(arguments)?;
        let said = format!("{}\n{}", output.stdout, output.stderr);
        let name = format!("cli-{}-{}.txt", agent.guest().name(), arguments.first().unwrap_or(&"none"));
        fs::write(self.lab.artifacts().join(name), &said)?;
        let words = arguments.join(" ");
        ensure!(output.code == code, "`understudy {words}` exits with {}:\n{said}", output.code);
        Ok(output)
    }

    /// What of `phases: …` the newest takeover's history says. The guest's journal is kept beside it, for its
    /// times.
    ///
    /// # Errors
    /// When there is none.
    pub fn note_phases(&self, agent: &GuestAgent) -> Result<String> {
        let history = self.cli(agent, &["history", "--broker", "1"], 0)?.stdout;
        let journal = agent.guest().sh("journalctl --boot --output=short-precise --no-pager --lines=2000")?;
        fs::write(self.lab.artifacts().join(format!("logs/{}-journal.log", agent.guest().name())), journal)?;
        let phases =
            history.lines().rfind(|line| line.contains("phases:")).context("no phases in `history`")?;
        self.lab.note(phases.trim());
        Ok(history)
    }

    /// Exactly one Kafka runs as the victim: in the guest of `agent`.
    ///
    /// # Errors
    /// Where it runs instead.
    pub fn ensure_runs_on(&self, agent: &GuestAgent) -> Result<()> {
        let all = self.standbys.iter().chain([&self.home]).map(GuestAgent::guest);
        let mut running = Vec::new();
        for guest in all.filter(|guest| guest.is_on()) {
            let kafkas = kafkas(guest)?;
            running.extend(kafkas.iter().map(|_| guest.name().to_owned()));
        }
        ensure!(running == [agent.guest().name()], "broker {VICTIM} runs on {running:?}");
        Ok(())
    }

    /// The storage lets one host in, and one Kafka runs as the victim where that host is; elsewhere a Kafka
    /// that stands still or cannot reach its storage does no harm.
    ///
    /// # Errors
    /// Who else is let in, or that nothing runs there.
    pub fn ensure_one_owner(&self, name: &str) -> Result<()> {
        let owners = self.storage.owners(&volume(VICTIM));
        ensure!(owners == [name], "{owners:?} are let in, not {name} alone");
        let found = self.standbys.iter().find(|agent| agent.guest().name() == name);
        let running = kafkas(found.with_context(|| format!("no standby {name}"))?.guest())?;
        ensure!(running.len() == 1, "on {name} run {running:?}");
        Ok(())
    }

    /// The end of a story whose old host lives: it cannot write, and there was one takeover; then the
    /// verdict.
    ///
    /// # Errors
    /// What is otherwise.
    pub fn stays_out(self) -> Result<()> {
        let home = self.home.guest();
        let victim = self.cluster.broker(VICTIM)?;
        let probe = format!("{}/probe", victim.mount_point());
        let refused = home.run_within(Duration::from_secs(20), &["touch", &probe])?;
        ensure!(refused.code != 0, "the old host can write");
        // Two hosts must not answer for one address.
        home.cut()?;
        self.lab.forget_neighbour(victim.address().ip())?;
        self.flows(500)?;
        ensure!(self.epochs()?.len() == 1, "one fault, one takeover");
        self.verdict().map(drop)
    }

    /// Ends the load and judges it: nothing acknowledged is missing, doubled or out of order; and the
    /// victim's segment files have the same bytes as those of the other brokers.
    ///
    /// # Errors
    /// The verdict, if it is not clean.
    pub fn verdict(self) -> Result<History> {
        self.flows(500)?;
        let history = self.writer.stop()?;
        ensure!(history.failed.is_empty(), "the producer gave up on {:?}", history.failed);
        self.cluster.wait_complete(PATIENCE)?;
        let verdict = self.cluster.verify(&[&history])?;
        self.lab.note(format!("{verdict}; longest wait {:.1?}", history.longest_wait()));
        verdict.ensure_clean()?;
        // What the owner's kernel has not yet sent is in no file of the server.
        for guest in
            self.standbys.iter().chain([&self.home]).map(GuestAgent::guest).filter(|guest| guest.is_on())
        {
            if !kafkas(guest)?.is_empty() {
                guest.sh("sync")?;
            }
        }
        for partition in 0..PARTITIONS {
            let of = |broker: i32| {
                segments(&self.cluster.broker(broker)?.log_dir().join(format!("{TOPIC}-{partition}")))
            };
            let (ours, theirs) = (of(VICTIM)?, of(2)?);
            ensure!(
                !ours.is_empty() && ours == theirs,
                "{TOPIC}-{partition} differs between brokers {VICTIM} and 2"
            );
        }
        self.storage.ensure_one_owner_at_a_time()?;
        Ok(history)
    }
}

/// The victim's home.
const HOME: &str = "10.77.0.111";

/// Boots the home and the standbys, beside each other.
fn boot(lab: &Lab, bed: &NfsBed, setup: &NfsSetup) -> Result<Vec<Arc<Guest>>> {
    let begin = Instant::now();
    let spec = GuestSpec::default();
    let mut guests = vec![bed.prepare_guest("b1", HOME, &spec)?];
    for n in 1..=setup.standbys {
        guests.push(bed.prepare_guest(&format!("standby-{n}"), &format!("10.77.0.{}", 130 + n), &spec)?);
    }
    guests.iter().try_for_each(|guest| guest.power_on())?;
    guests.iter().try_for_each(|guest| guest.wait_up())?;
    lab.note(format!("{} guests are up after {:.1} s", guests.len(), begin.elapsed().as_secs_f64()));
    Ok(guests)
}

/// Has the victim's log dir mounted from `source`.
pub fn mount_from(config: &mut Table, source: &str) {
    let brokers = config.get_mut("broker").and_then(Value::as_array_mut).into_iter().flatten();
    for broker in brokers.filter_map(|broker| broker.get_mut("storage")?.as_table_mut()) {
        let mounts = broker.get_mut("mount").and_then(Value::as_array_mut).into_iter().flatten();
        for mount in mounts.filter_map(Value::as_table_mut) {
            mount.insert("source".to_owned(), source.into());
        }
    }
}

/// In place of the storage's rules.
fn fence_by_power(lab: &Lab, config: &mut Table, hosts: &[String]) -> Result<()> {
    let fenced = hosts.iter().map(|name| fenced(lab, name)).collect::<Result<Vec<_>>>()?;
    config.insert("host".to_owned(), fenced.into());
    let brokers = config.get_mut("broker").and_then(Value::as_array_mut).into_iter().flatten();
    for storage in brokers.filter_map(|broker| broker.get_mut("storage")?.as_table_mut()) {
        storage.remove("grant");
    }
    Ok(())
}

fn canary() -> Table {
    let mut canary = toml! {
        period = "1s"
        deadline = "1s"
    };
    canary.insert("dir".to_owned(), CANARY.into());
    canary.insert("brokers".to_owned(), vec![i64::from(VICTIM)].into());
    canary
}

/// The process ids of Kafka in a guest, by its kernel.
///
/// # Errors
/// When it cannot be asked.
pub fn kafkas(guest: &Guest) -> Result<Vec<String>> {
    // `[k]` keeps the search from finding itself.
    let found =
        guest.run(&["sh", "-c", "grep -l '[k]afka.Kafka' /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3"])?;
    Ok(found.stdout.split_whitespace().map(str::to_owned).collect())
}

/// What an agent decides on the victim.
///
/// # Errors
/// When it does not answer.
pub fn decision_of(agent: &GuestAgent) -> Result<Json> {
    let (code, body) = agent.get("/v1/status")?;
    ensure!(code == 200, "/v1/status answers {code}: {body}");
    let status: Json = serde_json::from_str(&body)?;
    let brokers = status["brokers"].as_array().context("no brokers in /v1/status")?;
    let found = brokers.iter().find(|broker| broker["id"] == VICTIM);
    Ok(found.with_context(|| format!("no broker {VICTIM} in {status}"))?["decision"].clone())
}

/// The bytes of a partition's segments, in their order.
fn segments(dir: &Path) -> Result<Vec<u8>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "log"));
    files.sort();
    let mut bytes = Vec::new();
    for file in files {
        bytes.extend(fs::read(file)?);
    }
    Ok(bytes)
}
