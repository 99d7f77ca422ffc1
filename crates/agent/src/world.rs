//! The configuration becomes drivers: the one place that knows which driver stands behind which port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use crate::config::{AddressConfig, FenceConfig};
use anyhow::{Context, anyhow, bail};
use drivers::broker_host::{GuardReads, RunHere};
use drivers::clients::KnownClients;
use drivers::clients::own::OwnClients;
use drivers::clock::SystemClock;
use drivers::cluster::kafka::KafkaCluster;
use drivers::fence::Ladder;
use drivers::health_signal::kafka_logs::KafkaLogs;
use drivers::health_signal::kafka_metadata::KafkaMetadata;
use drivers::health_signal::kafka_probe::KafkaProbe;
use drivers::health_signal::kafka_quorum::KafkaQuorum;
use drivers::health_signal::kafka_registration::KafkaRegistration;
use drivers::health_signal::local_address::LocalAddresses;
use drivers::health_signal::local_process::LocalProcesses;
use drivers::health_signal::peer::{Peer, PeerConfig};
use drivers::host_lock::FlockHostLock;
use drivers::machine::Local;
use drivers::storage::lease;
use drivers::tls::Tls;
use kafka::Dialers;
use kubernetes::{KubernetesTaintConfig, Places, Whereabouts};
use recovery::known::{KnownLedger, Member};
use recovery::ledger_signal::LedgerSignal;
use recovery::model::{BrokerId, Endpoint, HostName, LedgerStanding, Topology};
use recovery::policy::Policy;
use recovery::ports::{Address, BrokerHost, EventSink, Fence, HealthSignal, Ledger, Ports, Storage};
use tokio::sync::watch;

use crate::cli::DEFAULT_PATH;
use crate::config::{self, Config};

/// This program, even if it was replaced on disk by a newer one: it writes canaries and
/// probes mounts in processes of its own.
pub(crate) const OURSELVES: &str = "/proc/self/exe";

/// Everything a command needs of the world.
#[derive(Clone)]
pub(crate) struct World {
    /// What is configured.
    pub(crate) topology: Topology,
    /// When the agent may act.
    pub(crate) policy: Policy,
    /// The drivers.
    pub(crate) ports: Ports,
    /// What looks at the cluster.
    pub(crate) signals: Vec<Arc<dyn HealthSignal>>,
    /// The one of them that knows what brokers' logs weigh.
    pub(crate) logs: Arc<KafkaLogs>,
    /// Who is connected to brokers elsewhere, for the drivers of addresses.
    pub(crate) clients: Arc<KnownClients>,
}

/// What an agent has for as long as it runs, whatever is reloaded.
#[derive(Clone)]
pub(crate) struct Lasting {
    /// The driver of the ledger, which is not asked yet who it is.
    ledger: Arc<dyn Ledger>,
    clients: Arc<KnownClients>,
}

impl Lasting {
    /// By a configuration whose `[ledger]` stays.
    ///
    /// # Errors
    /// When the driver cannot be made.
    pub(crate) fn of(config: &Config) -> anyhow::Result<Self> {
        let ledger = config.ledger.open().map_err(bad("ledger"))?;
        Ok(Self { ledger, clients: Arc::default() })
    }
}

impl World {
    /// Makes the drivers. None of them acts before it is asked to.
    ///
    /// # Errors
    /// When a driver cannot be made. What the configuration alone shows has been found by its check.
    pub(crate) fn build(config: &Config, events: Arc<dyn EventSink>) -> anyhow::Result<Self> {
        Self::with(config, events, &Lasting::of(config)?, false)
    }

    /// The same for the daemon, which makes itself known in the ledger.
    ///
    /// # Errors
    /// When a driver cannot be made.
    pub(crate) fn of_the_agent(
        config: &Config,
        events: Arc<dyn EventSink>,
        lasting: &Lasting,
    ) -> anyhow::Result<Self> {
        Self::with(config, events, lasting, true)
    }

    fn with(
        config: &Config,
        events: Arc<dyn EventSink>,
        lasting: &Lasting,
        joins: bool,
    ) -> anyhow::Result<Self> {
        let mut topology = config.topology.clone();
        leases(config, &mut topology);
        // Some devices themselves say that they leave hosts running.
        let described = described(&config.fences);
        topology.outlive = config::outlive(&described);
        let nodes = nodes(config)?;
        let listeners: BTreeMap<BrokerId, Endpoint> =
            topology.brokers.iter().map(|(id, broker)| (*id, broker.listener.clone())).collect();
        // The very ones that are signals: those know which of them live.
        let peers: Vec<Arc<Peer>> = peers(config)?.into_iter().map(Arc::new).collect();
        let dialers = config.cluster.dialers();
        let cluster = KafkaCluster::new(dialers.clone(), config.cluster.clone(), listeners.clone())
            .map_err(bad("cluster"))?;
        let cluster = cluster.with_peers(peers.clone());
        let identities = config::identities(&topology.brokers, &config.brokers);
        let broker_host = config.broker_host.clone();
        let run_here = RunHere::from(identities).at_most(topology.at_once()).guarded(guard_reads(config));
        let at = (topology.here.clone(), config.state_dir.clone());
        let broker_host = broker_host.build(at, run_here, config.pods());
        let (ledger, clients) = (known(config, lasting, joins), lasting.clients.clone());
        let whereabouts = whereabouts(config);
        let ports = Ports {
            fences: fences(described, config, &whereabouts, &nodes)?,
            storage: storage(config)?,
            addresses: addresses(config, &clients)?,
            broker_host: broker_host.map_err(bad("broker_host"))?,
            cluster: Arc::new(cluster),
            ledger: ledger.clone(),
            host_lock: Arc::new(FlockHostLock::new(config.state_dir.clone())),
            clock: Arc::new(SystemClock),
            events,
        };
        let logs = KafkaLogs::new(dialers.brokers.clone(), listeners.clone());
        let mut signals = signals(config, &dialers, listeners, ledger, ports.broker_host.clone())?;
        signals.extend(peers.into_iter().map(|peer| peer as Arc<dyn HealthSignal>));
        signals.push(logs.clone());
        if !whereabouts.is_empty() {
            signals.push(Arc::new(Places::new(whereabouts.into_values().collect())));
        }
        signals.push(Arc::new(LocalAddresses::new(ports.addresses.clone())));
        Ok(Self { topology, policy: config.policy.clone(), ports, signals, logs, clients })
    }
}

/// Whether a guard that reads a file asks the ledger that this agent asks, and takes the same right.
fn guard_reads(config: &Config) -> GuardReads {
    let (own, state_dir, ledger) = (config.path.clone(), config.state_dir.clone(), config.ledger.clone());
    GuardReads::new(move |file| {
        let file = file.unwrap_or(Path::new(DEFAULT_PATH));
        let is_own = || Some(file.canonicalize().ok()? == own.canonicalize().ok()?);
        if is_own() == Some(true) {
            return None;
        }
        let (shown, own) = (file.display(), own.display());
        let differs = match Config::load(file) {
            Err(_) => {
                return Some(format!(
                    "reads {shown}, which is no configuration that it can use (`understudy --config {shown} check` says why), so Kafka \
                     would not start. Name {own} with --config, or mend that file"
                ));
            }
            Ok(other) if other.state_dir != state_dir => "agent.state_dir",
            // Neither shows a secret.
            Ok(other) if format!("{:?}", other.ledger) != format!("{ledger:?}") => "[ledger]",
            Ok(_) => return None,
        };
        Some(format!(
            "reads {shown}, where {differs} is not what it is in {own}: it would ask another ledger, or take another right, than this \
             agent. Name {own} with --config, or make the two agree"
        ))
    })
}

/// How long each broker's storage keeps a dead client's lock, where this host's kernel knows it.
fn leases(config: &Config, topology: &mut Topology) {
    for (id, broker) in &mut topology.brokers {
        let Some(storage) = config.brokers.get(id).and_then(|drivers| drivers.storage.as_ref()) else {
            continue;
        };
        // What is configured may not say that it is NFS.
        if let Some(lease) = lease::of(&broker.log_dirs, &storage.sources()) {
            (broker.locks.lease, broker.locks.told) = (Some(lease), true);
        }
    }
}

/// The ledger alone, for commands that only read it.
///
/// # Errors
/// When the driver cannot be made.
pub(crate) fn ledger(config: &Config) -> anyhow::Result<Arc<dyn Ledger>> {
    Ok(known(config, &Lasting::of(config)?, false))
}

fn known(config: &Config, lasting: &Lasting, joins: bool) -> Arc<dyn Ledger> {
    let homes = config.topology.brokers.iter().map(|(id, broker)| (*id, broker.home.clone())).collect();
    let (here, machine) = (config.topology.here.clone(), Arc::new(Local::new(config.state_dir.clone())));
    let who = Member { here, machine, homes, place: config.ledger.place(), joins };
    Arc::new(KnownLedger::new(lasting.ledger.clone(), who, Arc::new(SystemClock)))
}

/// Where a broker stands in the ledger; with its home as the owner before the first takeover.
///
/// # Errors
/// When the ledger cannot be read, or the broker is not guarded here.
pub(crate) async fn standing(
    ledger: &dyn Ledger,
    topology: &Topology,
    broker: BrokerId,
) -> anyhow::Result<LedgerStanding> {
    let home = topology.brokers.get(&broker).map(|b| b.home.clone());
    let home = home.with_context(|| format!("broker {broker} is not guarded by this host"))?;
    Ok(LedgerStanding::after(&home, &ledger.all(broker).await?))
}

fn described<K: Clone + Ord + Sync>(fences: &BTreeMap<K, Vec<FenceConfig>>) -> BTreeMap<K, Vec<FenceConfig>> {
    let described = |ladder: &Vec<FenceConfig>| ladder.iter().cloned().map(FenceConfig::described).collect();
    // Side by side: each asks a program, and may have to wait for it.
    thread::scope(|scope| {
        let asked: Vec<_> =
            fences.iter().map(|(host, ladder)| (host, scope.spawn(move || described(ladder)))).collect();
        let ladder = |(host, asked): (&K, thread::ScopedJoinHandle<'_, _>)| {
            (host.clone(), asked.join().unwrap_or_else(|_| fences[host].clone()))
        };
        asked.into_iter().map(ladder).collect()
    })
}

/// Where hosts are that are pods: for their fences, and for the signal that tells it.
fn whereabouts(config: &Config) -> BTreeMap<HostName, Arc<Whereabouts>> {
    let nodes = config.nodes.keys().cloned().collect();
    let of = |(host, taint): (&HostName, &KubernetesTaintConfig)| {
        Some((host.clone(), taint.whereabouts(host, &nodes)?))
    };
    config.taints.iter().filter_map(of).collect()
}

/// What fences the nodes that pods may be on.
fn nodes(config: &Config) -> anyhow::Result<BTreeMap<String, Arc<dyn Fence>>> {
    let nodes = described(&config.nodes).into_iter().map(|(node, ladder)| {
        if let Some(fence) = ladder.iter().find(|fence| fence.leaves_running()) {
            let driver = fence.clone().build().map(|fence| fence.name().to_owned()).unwrap_or_default();
            bail!("node.fence: {driver} leaves {node} running, as it says itself: name a fence that ends its power");
        }
        let rungs: Result<Vec<_>, _> = ladder.into_iter().map(FenceConfig::build).collect();
        let ladder: Arc<dyn Fence> = Arc::new(Ladder::new(rungs.map_err(bad("node.fence"))?));
        Ok((node, ladder))
    });
    nodes.collect()
}

fn fences(
    fences: BTreeMap<HostName, Vec<FenceConfig>>,
    config: &Config,
    whereabouts: &BTreeMap<HostName, Arc<Whereabouts>>,
    nodes: &BTreeMap<String, Arc<dyn Fence>>,
) -> anyhow::Result<BTreeMap<HostName, Arc<dyn Fence>>> {
    let ladders = fences.into_iter().map(|(host, ladder)| {
        let taint = config.taints.get(&host).cloned();
        let there = whereabouts.get(&host).cloned();
        if let (Some(taint), Some(there)) =
            (taint.clone().filter(|taint| taint.node.is_none()), there.clone())
        {
            let following = taint.follow(nodes, there).map_err(bad("host.kubernetes"))?;
            return Ok((host, Arc::new(following) as Arc<dyn Fence>));
        }
        let rungs: Result<Vec<_>, _> = ladder.into_iter().map(FenceConfig::build).collect();
        let own = config.own_addresses.get(&host).copied();
        let ladder = Ladder::new(rungs.map_err(bad("host.fence"))?).of_the_host_at(own);
        let mut ladder: Arc<dyn Fence> = Arc::new(ladder);
        if let Some(taint) = taint {
            ladder = Arc::new(taint.build(ladder, there).map_err(bad("host.kubernetes"))?);
        }
        Ok((host, ladder))
    });
    ladders.collect()
}

fn storage(config: &Config) -> anyhow::Result<BTreeMap<BrokerId, Arc<dyn Storage>>> {
    let storage = config.brokers.iter().filter_map(|(id, drivers)| Some((id, drivers.storage.clone()?)));
    let storage = storage.map(|(id, storage)| {
        let log_dirs = config.topology.brokers.get(id).map(|b| b.log_dirs.clone()).unwrap_or_default();
        Ok((
            *id,
            ontap::storage::build(storage, *id, log_dirs, Path::new(OURSELVES))
                .map_err(bad("broker.storage"))?,
        ))
    });
    storage.collect()
}

fn addresses(
    config: &Config,
    clients: &Arc<KnownClients>,
) -> anyhow::Result<BTreeMap<BrokerId, Arc<dyn Address>>> {
    let moved = config.brokers.iter().filter_map(|(id, drivers)| Some((id, drivers.address.clone()?)));
    let build = |id: BrokerId, address: AddressConfig| {
        address.build(clients.clone(), others(config, id)).map_err(bad("broker.address"))
    };
    moved.map(|(id, address)| Ok((*id, build(*id, address)?))).collect()
}

/// The listeners of other brokers than this one, as far as they are configured.
fn others(config: &Config, broker: BrokerId) -> Vec<Endpoint> {
    let listener = |id: &BrokerId| config.topology.brokers.get(id).map(|broker| &broker.listener);
    let configured = config.topology.brokers.keys().filter_map(listener).chain(&config.cluster.bootstrap);
    let others: BTreeSet<&Endpoint> = configured.filter(|other| Some(*other) != listener(&broker)).collect();
    others.into_iter().cloned().collect()
}

/// Who is connected to the guarded brokers here, for peers that are named by address.
pub(crate) fn own_clients(config: &Config) -> OwnClients {
    let moved = config.brokers.values().filter_map(|drivers| drivers.address.as_ref()?.ip());
    let listeners = config.topology.brokers.values().filter_map(|broker| broker.listener.host.parse().ok());
    let addresses = moved.chain(listeners).map(|ip: IpAddr| ip.to_canonical()).collect();
    let readers = config.peers.iter().filter_map(PeerConfig::address).collect();
    OwnClients::new(config.topology.here.clone(), addresses, readers)
}

fn signals(
    config: &Config,
    dialers: &Dialers,
    listeners: BTreeMap<BrokerId, Endpoint>,
    ledger: Arc<dyn Ledger>,
    broker_host: Arc<dyn BrokerHost>,
) -> anyhow::Result<Vec<Arc<dyn HealthSignal>>> {
    // The probe follows the broker list, so that brokers nobody configured count in the majority as well.
    let (say, listed) = watch::channel(BTreeMap::new());
    let homes = config.topology.brokers.iter().map(|(id, broker)| (*id, broker.home.clone())).collect();
    let bootstrap = &config.cluster.bootstrap;
    let metadata = KafkaMetadata::new(&dialers.brokers, bootstrap, say);
    let guarded: BTreeSet<BrokerId> = config.topology.brokers.keys().copied().collect();
    let mut signals: Vec<Arc<dyn HealthSignal>> = vec![
        Arc::new(metadata),
        Arc::new(KafkaProbe::new(dialers.brokers.clone(), listeners, listed.clone())),
        Arc::new(KafkaRegistration::new(
            dialers.clone(),
            guarded.clone(),
            config.cluster.controllers.clone(),
            listed.clone(),
        )),
        Arc::new(LedgerSignal::new(ledger, homes, listed)),
    ];
    // Pods of another controller run on other hosts.
    if !config.topology.reschedules {
        signals.push(Arc::new(LocalProcesses::new(broker_host, guarded.iter().copied().collect())));
    }
    // With ZooKeeper there is no metadata log that brokers fetch.
    if config.cluster.zookeeper.is_none() {
        signals.push(Arc::new(KafkaQuorum::new(dialers.clone(), &config.cluster.controllers, bootstrap)));
    }
    for canary in &config.canaries {
        let canary = canary.clone().build(config.topology.here.clone(), &guarded, OURSELVES.into());
        signals.push(Arc::new(canary));
    }
    if let Some(ec2) = config.ec2_status.clone() {
        signals.push(Arc::new(ec2.build().map_err(bad("ec2_status"))?));
    }
    if let Some(nodes) = config.kubernetes_node.clone() {
        signals.push(Arc::new(nodes.build().map_err(bad("kubernetes_node"))?));
    }
    if let Some(pods) = config.kubernetes_pod.clone() {
        signals.push(Arc::new(pods.build().map_err(bad("kubernetes_pod"))?));
    }
    if let Some(config_of) = &config.ontap_clients {
        let brokers = config.brokers.iter();
        let watched: Vec<_> = brokers
            .filter_map(|(id, drivers)| ontap::storage::watched(drivers.storage.as_ref()?, *id))
            .collect();
        let counted = config_of.build(&watched, &hosts(config)).map_err(bad("ontap_clients"))?;
        signals.extend(counted.into_iter().map(|signal| Arc::new(signal) as Arc<dyn HealthSignal>));
    }
    Ok(signals)
}

/// The other agents.
///
/// # Errors
/// When one cannot be asked.
pub(crate) fn peers(config: &Config) -> anyhow::Result<Vec<Peer>> {
    let tls = config.tls.clone().map(|tls| Arc::new(Tls::new(tls)));
    config.peers.iter().map(|peer| peer.build(tls.as_ref()).map_err(bad("peer"))).collect()
}

/// Whose an address is by which volumes are mounted, as the fences and grants have it.
fn hosts(config: &Config) -> BTreeMap<IpAddr, HostName> {
    let fenced = config.fences.iter().flat_map(|(host, ladder)| {
        ladder.iter().flat_map(FenceConfig::storage_addresses).map(move |address| (*address, host))
    });
    let storage = config.brokers.values().filter_map(|drivers| drivers.storage.as_ref());
    let grants = storage.flat_map(ontap::storage::addresses);
    let here = grants.map(|address| (address, &config.topology.here));
    fenced.chain(here).map(|(address, host)| (address.to_canonical(), host.clone())).collect()
}

/// What a driver found bad although the check of the configuration did not: both are told by the driver.
fn bad(section: &'static str) -> impl Fn(Vec<String>) -> anyhow::Error {
    move |said| anyhow!("{section}: {}", said.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_that_would_ask_another_ledger_is_told() {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples/standby.toml");
        let text = std::fs::read_to_string(&example).unwrap();
        let config = Config::load(&example).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let told = |text: &str| {
            let file = dir.path().join("guard.toml");
            std::fs::write(&file, text).unwrap();
            (guard_reads(&config).differs(Some(&file)), file)
        };
        assert_eq!(guard_reads(&config).differs(Some(&example)), None);
        assert_eq!(told(&text).0, None, "a copy asks the same");
        let ledger = text.replace("/mnt/understudy", "/mnt/other");
        assert_ne!(ledger, text);
        let (said, file) = told(&ledger);
        let said = said.unwrap();
        assert!(
            said.starts_with(&format!("reads {}, where [ledger] is not what it is in", file.display())),
            "{said}"
        );
        let (said, _) = told("[agent]\nhots = 1\n");
        assert!(said.unwrap().contains("is no configuration that it can use"));
    }
}
