//! Raw → checked. Every check notes what it finds and goes on, so that one run shows everything.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::FenceConfig;
use crate::config::LedgerConfig;
use drivers::cluster::kafka::ClusterConfig;
use drivers::health_signal::kafka_probe;
use drivers::tls::TlsConfig;
use kubernetes::KubernetesTaintConfig;
use recovery::model::{BrokerId, Endpoint, HostName, Standby, Topology, human};
use recovery::policy::{Mode, Policy};

use crate::access::{self, AccessConfig};

use super::brokers::Brokers;
use super::document::Document;
use super::problem::Problem;
use super::raw::{Raw, RawAgent};
use super::{BrokerHostConfig, Config, Written, fences, shape};

/// The kernel takes no longer path for a socket (`sun_path`, with its closing zero).
const SOCKET_PATH_LIMIT: usize = 107;

/// The shortest interval of the daemon's own checks.
const SHORTEST_ROUND: Duration = Duration::from_secs(1);

/// Checks the whole file.
///
/// # Errors
/// Every problem.
pub(super) fn check(path: &Path, text: &str) -> Result<Config, Vec<Problem>> {
    let mut check = Check::of(text)?;
    let mode: Option<Mode> = check.doc.read("mode");
    let (agent, cluster) = (check.agent(), check.cluster());
    let (standby, policy, ledger) = (check.standby(), check.policy(mode), check.ledger());
    let Fenced { ladders, names, nodes, machines, taints } = check.fenced();
    let brokers = check.brokers();
    check.homes_can_be_fenced(&brokers.homes, &names, &taints, mode);
    check.exports_cover(&brokers, &ladders, agent.as_ref(), mode);
    check.ledger_is_elsewhere(ledger.as_ref(), &brokers);
    let broker_host = check.broker_host(agent.as_ref(), &brokers, &taints);
    let (peers, canaries) = (check.peers(agent.as_ref()), check.canaries(policy.as_ref()));
    let own_addresses = check.own_addresses(&brokers, &peers);
    let ontap_clients = check.ontap_clients(policy.as_ref(), &brokers.drivers);
    let ec2_status = check.ec2_status(&ladders);
    let (kubernetes_node, kubernetes_pod) = check.kubernetes(&ladders, &brokers, &taints, mode);
    let Check { doc, warnings, unfit } = check;
    let problems = doc.into_problems();
    if !problems.is_empty() {
        return Err(problems);
    }
    // Whatever is missing has been noted, so that this is reached with everything there.
    let (Some(agent), Some(policy), Some(cluster), Some(ledger), Some(broker_host)) =
        (agent, policy, cluster, ledger, broker_host)
    else {
        return Err(problems);
    };
    let Some(listen) = agent.listen else { return Err(problems) };
    let Brokers { brokers, drivers, .. } = brokers;
    let topology = Topology {
        here: agent.here,
        known: brokers.keys().copied().collect(),
        brokers,
        fences: names,
        machines,
        unlocked: fences::unlocked(&ladders),
        outlive: fences::outlive(&ladders),
        wandering: fences::wandering(&taints),
        reschedules: broker_host.reschedules(),
        controllers_known: !cluster.controllers.is_empty(),
        zookeeper: cluster.zookeeper.is_some(),
        standby,
        peers: peers.iter().map(|peer| HostName(peer.host.clone())).collect(),
    };
    Ok(Config {
        path: path.to_owned(),
        written: Written::of(text),
        state_dir: agent.state_dir,
        listen,
        tls: agent.tls,
        access: agent.access,
        socket: agent.socket,
        check_every: agent.check_every,
        topology,
        policy,
        cluster,
        ledger,
        fences: ladders,
        nodes,
        taints,
        broker_host,
        brokers: drivers,
        own_addresses,
        peers,
        canaries,
        ontap_clients,
        ec2_status,
        kubernetes_node,
        kubernetes_pod,
        warnings,
        unfit,
    })
}

/// The `[agent]` section.
pub(super) struct Agent {
    pub(super) here: HostName,
    pub(super) state_dir: PathBuf,
    pub(super) listen: Option<SocketAddr>,
    pub(super) tls: Option<TlsConfig>,
    pub(super) access: Vec<AccessConfig>,
    pub(super) socket: PathBuf,
    pub(super) check_every: Duration,
}

/// The fences of hosts and of nodes, with the names of their drivers, and which hosts are in Kubernetes.
struct Fenced {
    ladders: BTreeMap<HostName, Vec<FenceConfig>>,
    names: BTreeMap<HostName, Vec<String>>,
    nodes: BTreeMap<String, Vec<FenceConfig>>,
    machines: BTreeMap<String, Vec<String>>,
    taints: BTreeMap<HostName, KubernetesTaintConfig>,
}

pub(super) struct Check<'t> {
    pub(super) doc: Document<'t>,
    pub(super) warnings: Vec<Problem>,
    /// The warnings about what would be unsafe to act with.
    pub(super) unfit: Vec<Problem>,
}

impl<'t> Check<'t> {
    /// Of a file whose keys are known and have values of their kinds; what is wrong so far is noted.
    fn of(text: &'t str) -> Result<Self, Vec<Problem>> {
        let mut doc = Document::parse(text)?;
        shape::check(&mut doc, &schemars::schema_for!(Raw));
        Ok(Self { doc, warnings: Vec::new(), unfit: Vec::new() })
    }
}

impl Check<'_> {
    /// What a driver says about its section: each text is `key: what is wrong`. The key may also be one of a
    /// section around it, such as the broker's `log_dirs`. All that is said of one key is one problem.
    pub(super) fn driver(&mut self, section: &str, said: Vec<String>) {
        let mut by_place: Vec<(String, Vec<String>)> = Vec::new();
        for text in said {
            let (place, reason) = match text.split_once(": ") {
                Some((key, reason)) if !key.contains(' ') => (self.place(section, key), reason.to_owned()),
                _ => (section.to_owned(), text),
            };
            match by_place.iter_mut().find(|(known, _)| *known == place) {
                Some((_, reasons)) => reasons.push(reason),
                None => by_place.push((place, vec![reason])),
            }
        }
        for (place, reasons) in by_place {
            self.doc.problem(&place, reasons.join("; "), "");
        }
    }

    /// Where `key` stands: in the section, or in one around it.
    fn place(&self, section: &str, key: &str) -> String {
        let around =
            std::iter::successors(Some(section), |inner| inner.rsplit_once('.').map(|(outer, _)| outer));
        let mut places = around.map(|outer| format!("{outer}.{key}")).chain([key.to_owned()]);
        places
            .find(|place| self.doc.has(place))
            .unwrap_or_else(|| format!("{section}.{}", key.trim_start_matches(&format!("{section}."))))
    }

    pub(super) fn absolute(&mut self, key: &str, path: &Path) {
        if !path.is_absolute() {
            self.doc.problem(key, "is not an absolute path", "begin it with `/`");
        }
    }

    pub(super) fn endpoint(&mut self, key: &str, text: &str) -> Option<Endpoint> {
        text.parse().map_err(|error| self.doc.problem(key, format!("{error}"), "")).ok()
    }

    /// Host names stand in the ledger, in its paths and in what fences are told.
    pub(super) fn host_name(&mut self, key: &str, name: &str) {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if name.is_empty() || !name.chars().all(plain) || name.starts_with('.') {
            self.doc.problem(key, "is not a host name", "use letters, digits, `-`, `_` and `.`");
        }
    }

    fn agent(&mut self) -> Option<Agent> {
        let agent: RawAgent = self.doc.read("agent")?;
        self.host_name("agent.host", &agent.host);
        self.absolute("agent.state_dir", &agent.state_dir);
        let listen = agent.listen.parse().ok();
        if listen.is_none() {
            self.doc.problem("agent.listen", "is not address:port", "write it as \"127.0.0.1:9095\"");
        }
        let key = if agent.socket.is_some() { "agent.socket" } else { "agent.state_dir" };
        let socket = agent.socket.unwrap_or_else(|| agent.state_dir.join("agent.sock"));
        self.absolute(key, &socket);
        if socket.as_os_str().len() > SOCKET_PATH_LIMIT {
            let reason = format!("makes a socket's path longer than {SOCKET_PATH_LIMIT} bytes");
            self.doc.problem(key, reason, "set agent.socket to a shorter path, such as /run/understudy.sock");
        }
        if agent.check_every < SHORTEST_ROUND {
            let remedy = "each round logs in to every fence device: set it to minutes";
            self.doc.problem("agent.check_every", "is shorter than 1s", remedy);
        }
        let RawAgent { host, state_dir, check_every, tls, access, .. } = agent;
        self.driver("agent.tls", tls.as_ref().map(TlsConfig::problems).unwrap_or_default());
        for (i, problem) in access::problems(&access) {
            self.driver(&format!("agent.access[{i}]"), vec![problem]);
        }
        if tls.is_none() && !access.is_empty() {
            let remedy = "add [agent.tls], or give orders as root on the Unix socket, which takes no section";
            self.doc.problem("agent.access", "grants nothing without TLS", remedy);
        }
        Some(Agent { here: HostName(host), state_dir, listen, tls, access, socket, check_every })
    }

    fn cluster(&mut self) -> Option<ClusterConfig> {
        let cluster: ClusterConfig = self.doc.read("cluster")?;
        self.driver("cluster", cluster.problems());
        Some(cluster)
    }

    fn standby(&mut self) -> Standby {
        let standby: Standby = self.doc.read("standby").unwrap_or_default();
        if standby.max_brokers == 0 {
            let remedy = "set it to 1 or more; `mode = \"observe\"` is for an agent that only watches";
            self.doc.problem("standby.max_brokers", "would never allow a takeover", remedy);
        }
        standby
    }

    fn policy(&mut self, mode: Option<Mode>) -> Option<Policy> {
        let raw: Policy = self.doc.read("policy").unwrap_or_default();
        self.long_enough("host_down_after", raw.host_down_after, kafka_probe::PERIOD * 3, "three probes");
        self.long_enough("hung_after", raw.hung_after, raw.host_down_after, "host_down_after");
        self.long_enough(
            "process_down_after",
            raw.process_down_after,
            raw.host_down_after,
            "host_down_after",
        );
        let one_fetch = Duration::from_millis(500);
        let fetch = "the longest silence of a live broker";
        self.long_enough("controller_silent_for", raw.controller_silent_for, one_fetch, fetch);
        // What a look saw is news until the next one has ended, and the slowest signals may take a second for
        // each.
        let two = Duration::from_secs(2);
        self.long_enough("stale_after", raw.stale_after, two, "two looks of the slowest signal");
        let beats = recovery::execute::HEARTBEAT * 3;
        self.long_enough(
            "claim_silent_after",
            raw.claim_silent_after,
            beats,
            "three of a claimant's heartbeats",
        );
        // Probes of one that hangs, and of one whose host is off, fail seconds apart by themselves.
        let seconds = Duration::from_secs(10);
        let seen = "what lies between the first looks that see one failure";
        self.long_enough("mass_failure_window", raw.mass_failure_window, seconds, seen);
        let registers = Duration::from_secs(60);
        let what = "Kafka waits for its controllers";
        self.long_enough("rejoin_patience", raw.rejoin_patience, registers, what);
        let never = [
            ("max_brokers_down", raw.max_brokers_down),
            ("max_percent_down", usize::from(raw.max_percent_down)),
            ("takeovers_per_broker", raw.takeovers_per_broker),
            ("takeovers_per_cluster", raw.takeovers_per_cluster),
        ];
        for (name, _) in never.iter().filter(|(_, value)| *value == 0) {
            let key = format!("policy.{name}");
            self.doc.problem(&key, "would never allow a takeover", "set it to 1 or more");
        }
        Some(Policy { mode: mode?, ..raw })
    }

    fn long_enough(&mut self, name: &str, value: Duration, least: Duration, what: &str) {
        if value < least {
            let reason = format!("is shorter than {what} ({})", human(least));
            let least = humantime::format_duration(least);
            self.doc.problem(&format!("policy.{name}"), reason, format!("set it to \"{least}\" or more"));
        }
    }

    fn ledger(&mut self) -> Option<LedgerConfig> {
        let ledger: LedgerConfig = self.doc.read("ledger")?;
        if let Err(said) = ledger.open() {
            self.driver("ledger", said);
        }
        Some(ledger)
    }

    /// A guarded broker that carries the ledger waits, after a loss of power, for the ledger that waits for
    /// it.
    fn ledger_is_elsewhere(&mut self, ledger: Option<&LedgerConfig>, brokers: &Brokers) {
        let ledger = match ledger {
            Some(LedgerConfig::Kafka(ledger)) => ledger,
            Some(LedgerConfig::File(ledger)) => return self.ledger_is_no_log_dir(&ledger.dir, brokers),
            _ => return,
        };
        let guarded = |endpoint: &Endpoint| brokers.brokers.values().find(|b| b.listener == *endpoint);
        let own: Vec<BrokerId> =
            ledger.bootstrap.iter().filter_map(guarded).map(|broker| broker.id).collect();
        if own.is_empty() {
            return;
        }
        let named = own.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let reason = format!(
            "names broker {named}, which is guarded with this ledger: after a loss of power of all brokers none \
             could start, \
             for guard reads the ledger first, and that needs two of its replicas"
        );
        let remedy = "keep the topic in another cluster, or on brokers that are not guarded, and name those; or \
                      use the \
                      driver `file` or `etcd`";
        self.doc.problem("ledger.bootstrap", reason, remedy);
    }

    /// Kafka takes a directory there for one of its own, and a fence of that broker's storage cuts the ledger off, too.
    fn ledger_is_no_log_dir(&mut self, ledger: &Path, brokers: &Brokers) {
        for broker in brokers.brokers.values() {
            let near = broker.log_dirs.iter().find(|dir| ledger.starts_with(dir) || dir.starts_with(ledger));
            if let Some(dir) = near {
                let reason = format!(
                    "and {}, a log dir of broker {}, are one in the other: what is done to that broker's storage would be done \
                     to the ledger",
                    dir.display(),
                    broker.id
                );
                self.doc.problem(
                    "ledger.dir",
                    reason,
                    "keep the ledger in a directory, best an export, of its own",
                );
            }
        }
    }

    /// The hosts and nodes that can be fenced.
    fn fenced(&mut self) -> Fenced {
        let (ladders, names) = self.hosts();
        let (nodes, machines) = self.nodes();
        self.fences_are_apart();
        let taints = self.taints(&nodes);
        Fenced { ladders, names, nodes, machines, taints }
    }

    fn hosts(&mut self) -> (BTreeMap<HostName, Vec<FenceConfig>>, BTreeMap<HostName, Vec<String>>) {
        let (mut fences, mut names) = (BTreeMap::new(), BTreeMap::new());
        for i in 0..self.doc.len("host") {
            let key = format!("host[{i}].name");
            let (ladder, drivers) = self.ladder(&format!("host[{i}].fence"));
            let Some(name): Option<String> = self.doc.read(&key) else { continue };
            self.host_name(&key, &name);
            let name = HostName(name);
            names.insert(name.clone(), drivers);
            if fences.insert(name, ladder).is_some() {
                let remedy = "one [[host]] section a host; several [[host.fence]] are tried in order";
                self.doc.problem(&key, "has a section already", remedy);
            }
        }
        (fences, names)
    }

    pub(super) fn ladder(&mut self, key: &str) -> (Vec<FenceConfig>, Vec<String>) {
        let (mut ladder, mut drivers) = (Vec::new(), Vec::new());
        for i in 0..self.doc.len(key) {
            let section = format!("{key}[{i}]");
            // One that cannot be read counts as there: that it is missing would be wrong.
            drivers.push(section.clone());
            let Some(fence): Option<FenceConfig> = self.doc.read(&section) else { continue };
            match fence.clone().build() {
                Ok(driver) => drivers[i] = driver.name().to_owned(),
                Err(said) => self.driver(&section, said),
            }
            ladder.push(fence);
        }
        (ladder, drivers)
    }

    fn broker_host(
        &mut self,
        agent: Option<&Agent>,
        all: &Brokers,
        taints: &BTreeMap<HostName, KubernetesTaintConfig>,
    ) -> Option<BrokerHostConfig> {
        let config: BrokerHostConfig = self.doc.read("broker_host")?;
        let Agent { here, state_dir, .. } = agent?;
        if config.reschedules() {
            self.are_pods(all, taints);
        }
        let identities = super::identities(&all.brokers, &all.drivers);
        let (pods, at) = (super::pods(&all.brokers, taints), (here.clone(), state_dir.clone()));
        let said = config.clone().build(at, identities, pods);
        for text in said.err().into_iter().flatten() {
            // What it says of one broker begins with "broker 1: ".
            let of = text.strip_prefix("broker ").and_then(|rest| rest.split_once(": "));
            let of = of.and_then(|(id, rest)| Some((all.sections.get(&BrokerId(id.parse().ok()?))?, rest)));
            match of {
                Some((section, rest)) => self.driver(section, vec![rest.to_owned()]),
                None => self.driver("broker_host", vec![text]),
            }
        }
        Some(config)
    }
}
