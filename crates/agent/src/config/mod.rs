//! The configuration: one TOML file, read and checked as a whole before anything starts.

mod address;
mod broker_host;
mod brokers;
mod check;
mod difference;
mod document;
mod exports;
mod fence;
mod fences;
mod ledger;
mod problem;
mod raw;
mod reference;
mod shape;
mod signals;
mod small;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws::Ec2StatusConfig;
use drivers::broker_host::BrokerIdentity;
use drivers::broker_host::class_data::ClassData;
use drivers::cluster::kafka::ClusterConfig;
use drivers::health_signal::peer::PeerConfig;
use drivers::health_signal::storage_canary::CanaryConfig;
use drivers::tls::TlsConfig;
use kubernetes::{KubernetesNodeConfig, KubernetesPodConfig, KubernetesTaintConfig};
use ontap::clients::OntapClientsConfig;
use ontap::storage::StorageConfig;
use recovery::model::{Broker, BrokerId, HostName, Topology};
use recovery::policy::Policy;

use crate::access::AccessConfig;

pub use address::AddressConfig;
pub use broker_host::BrokerHostConfig;
pub use difference::{Difference, Written};
pub use fence::FenceConfig;
pub(crate) use fences::outlive;
pub use ledger::LedgerConfig;
pub use problem::{ConfigError, Problem};
pub use reference::{Reference, reference};
pub use small::Small;

/// The checked configuration: what is in it fits together.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file.
    pub path: PathBuf,
    /// What is written in it.
    pub written: Written,
    /// A local directory for small files.
    pub state_dir: PathBuf,
    /// Where the agent answers.
    pub listen: SocketAddr,
    /// The Unix socket where root gives orders.
    pub socket: PathBuf,
    /// How often the daemon goes through the checks.
    pub check_every: Duration,
    /// What deciding and planning need.
    pub topology: Topology,
    /// When the agent may act.
    pub policy: Policy,
    /// The Kafka cluster.
    pub cluster: ClusterConfig,
    /// The ledger.
    pub ledger: LedgerConfig,
    /// The fences of every host, in order.
    pub fences: BTreeMap<HostName, Vec<FenceConfig>>,
    /// The fences of every node of Kubernetes that has some, in order.
    pub nodes: BTreeMap<String, Vec<FenceConfig>>,
    /// The hosts that are in Kubernetes: nodes, which are tainted when they are fenced, and pods.
    pub taints: BTreeMap<HostName, KubernetesTaintConfig>,
    /// How Kafka is run here.
    pub broker_host: BrokerHostConfig,
    /// The drivers of every guarded broker.
    pub brokers: BTreeMap<BrokerId, BrokerConfig>,
    /// Addresses that hosts have for themselves.
    pub own_addresses: BTreeMap<HostName, IpAddr>,
    /// How its own pages are secured, and what it shows to peers.
    pub tls: Option<TlsConfig>,
    /// Who may ask over the network, and for what.
    pub access: Vec<AccessConfig>,
    /// The agents that are asked what they see.
    pub peers: Vec<PeerConfig>,
    /// Where this host tries to write.
    pub canaries: Vec<CanaryConfig>,
    /// How the storage's own counters are watched, if at all.
    pub ontap_clients: Option<OntapClientsConfig>,
    /// What EC2 says of the instances of hosts.
    pub ec2_status: Option<Ec2StatusConfig>,
    /// What a Kubernetes cluster says of the nodes of hosts.
    pub kubernetes_node: Option<KubernetesNodeConfig>,
    /// What a Kubernetes cluster says of brokers' own pods.
    pub kubernetes_pod: Option<KubernetesPodConfig>,
    /// What is allowed and probably not meant.
    pub warnings: Vec<Problem>,
    /// Those of them with which nobody may act, in whatever mode.
    pub unfit: Vec<Problem>,
}

/// The drivers of one guarded broker.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// How its address moves here.
    pub address: Option<AddressConfig>,
    /// How its log dirs come here; `None` where they stay with its host, which is a pod.
    pub storage: Option<StorageConfig>,
    /// What differs from the template, by Kafka's own names.
    pub properties: BTreeMap<String, String>,
}

impl Config {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// Every problem in it, at once.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        Self::parse(path, &text)
    }

    /// Checks `text`, the contents of the file at `path`.
    ///
    /// # Errors
    /// Every problem in it, at once.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        check::check(path, text).map_err(|problems| ConfigError::new(path, problems))
    }

    /// The pods that the homes of brokers are, by `[host.kubernetes]`.
    pub(crate) fn pods(&self) -> BTreeMap<BrokerId, String> {
        pods(&self.topology.brokers, &self.taints)
    }

    /// The brokers whose own pod this is: nothing but this agent starts their Kafka.
    pub(crate) fn own_in_this_pod(&self) -> Vec<BrokerId> {
        let in_a_pod = matches!(self.broker_host, BrokerHostConfig::Kubernetes(_));
        let own =
            self.topology.brokers.values().filter(|broker| in_a_pod && broker.home == self.topology.here);
        own.map(|broker| broker.id).collect()
    }

    /// The class-data archive of this host's Kafka.
    #[must_use]
    pub fn class_data(&self) -> ClassData {
        self.broker_host.class_data(&self.state_dir, self.topology.brokers.keys().copied().collect())
    }
}

fn pods(
    brokers: &BTreeMap<BrokerId, Broker>,
    taints: &BTreeMap<HostName, KubernetesTaintConfig>,
) -> BTreeMap<BrokerId, String> {
    let pod = |home: &HostName| taints.get(home)?.pod.clone();
    brokers.iter().filter_map(|(id, broker)| Some((*id, pod(&broker.home)?))).collect()
}

/// What makes a Kafka process one of `brokers`.
pub(crate) fn identities(
    brokers: &BTreeMap<BrokerId, Broker>,
    drivers: &BTreeMap<BrokerId, BrokerConfig>,
) -> Vec<BrokerIdentity> {
    let properties = |id| drivers.get(id).map(|driver| driver.properties.clone()).unwrap_or_default();
    brokers.iter().map(|(id, broker)| BrokerIdentity::of(broker, properties(id))).collect()
}
