//! The configuration as it is typed. Doc comments here, and in the drivers' own sections, are the reference
//! page.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use aws::Ec2StatusConfig;

use crate::access::AccessConfig;
use crate::config::AddressConfig;
use crate::config::BrokerHostConfig;
use crate::config::FenceConfig;
use crate::config::LedgerConfig;
use drivers::cluster::kafka::ClusterConfig;
use drivers::health_signal::peer::PeerConfig;
use drivers::health_signal::storage_canary::CanaryConfig;
use drivers::tls::TlsConfig;
use kubernetes::{KubernetesNodeConfig, KubernetesPodConfig, KubernetesTaintConfig};
use ontap::clients::OntapClientsConfig;
use ontap::storage::StorageConfig;
use recovery::model::Standby;
use recovery::policy::{Mode, Policy};
use schemars::{JsonSchema, Schema, json_schema};
use serde::Deserialize;

/// One file, in TOML, for one standby host. Every problem in it is reported at once, and nothing is started
/// before there is none. An unknown key is a problem.
///
/// `deploy/examples` has complete files. Durations are text such as `"500ms"`, `"20s"` or `"2m"`.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, rename = "Configuration")]
#[expect(dead_code, reason = "describes the file for the schema; each section is read by itself")]
pub(crate) struct Raw {
    /// What the agent may do by itself: `observe` watches and reports what it would have done, `approve`
    /// waits for `understudy approve`, `auto` takes over. There is no default: somebody types it.
    #[schemars(schema_with = "mode")]
    mode: Mode,
    /// This agent.
    agent: RawAgent,
    /// The Kafka cluster.
    cluster: ClusterConfig,
    /// How long what must be seen before the agent acts.
    #[schemars(default)]
    policy: Policy,
    /// How this host stands among the standbys.
    #[schemars(default)]
    standby: Standby,
    /// The shared, durable record of owners, epochs and takeovers.
    ledger: LedgerConfig,
    /// A host that can be fenced: the home of a broker, or a standby. One section a host.
    #[schemars(default)]
    host: Vec<RawHost>,
    /// A node of Kubernetes that can be fenced, and with it the pods on it that are hosts: each `[host.kubernetes]`
    /// without a `node`. One section a node.
    #[schemars(default)]
    node: Vec<RawNode>,
    /// How Kafka is run on this host.
    broker_host: BrokerHostConfig,
    /// A broker that this host may take over. One section a broker.
    #[schemars(default)]
    broker: Vec<RawBroker>,
    #[schemars(default)]
    peer: Vec<PeerConfig>,
    #[schemars(default)]
    canary: Vec<CanaryConfig>,
    ontap_clients: Option<OntapClientsConfig>,
    ec2_status: Option<Ec2StatusConfig>,
    kubernetes_node: Option<KubernetesNodeConfig>,
    kubernetes_pod: Option<KubernetesPodConfig>,
}

fn mode(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["observe", "approve", "auto"] })
}

/// This agent.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawAgent {
    /// This machine's name in the ledger. It must differ on every machine, and stay the same on this one. The
    /// first machine that says a name has it; another one is refused (`name_taken`).
    pub(crate) host: String,
    /// A local directory for small files: which machine this is (`instance`), which ledger it knows
    /// (`ledger.json`), which Kafka was started here, its configuration, its output. Do not copy it to
    /// another machine.
    #[serde(default = "state_dir")]
    pub(crate) state_dir: PathBuf,
    /// Where the agent answers `/livez`, `/readyz`, `/metrics`, `/v1/status` and, for its peers, `/v1/view`,
    /// `/v1/clients` and `/v1/reach/N`, as address:port. By itself it has no authentication: keep it on the loopback
    /// address or on a management network. Peers cannot reach the loopback address. `/v1/clients`, which
    /// names who is connected to brokers here, and `/v1/reach/N`, which dials broker N where the cluster
    /// advertises it, are given only to the addresses in `url` of each `[[peer]]`. `[agent.tls]` encrypts it and asks who
    /// reads; `[[agent.access]]` then has orders taken there.
    #[serde(default = "listen")]
    pub(crate) listen: String,
    /// How often the daemon checks by itself what `understudy check` looks at and disturbs nobody: fence
    /// devices, storage, addresses, Kafka's template, class data, the ledger, peers, certificates. It begins
    /// at its start, and at each reload. A standby whose check fails goes last.
    #[serde(default = "check_every", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) check_every: Duration,
    /// The Unix socket where root may also give orders (pause, resume, ack, approve, switchover) and reload, besides
    /// reading the same pages. `agent.sock` in `state_dir`, if it is not given.
    #[serde(default)]
    pub(crate) socket: Option<PathBuf>,
    #[serde(default)]
    pub(crate) tls: Option<TlsConfig>,
    #[serde(default)]
    #[schemars(default)]
    pub(crate) access: Vec<AccessConfig>,
}

pub(super) fn state_dir() -> PathBuf {
    "/var/lib/understudy".into()
}

fn check_every() -> Duration {
    Duration::from_secs(300)
}

fn listen() -> String {
    "127.0.0.1:9095".to_owned()
}

/// A host that can be fenced.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "describes the section for the schema; each key is read by itself")]
struct RawHost {
    /// Its name in the ledger: `agent.host` of the agent there, or the `home` of a broker.
    name: String,
    /// An address of the host itself, which no broker takes along when it moves. After a device has said that the host
    /// is off, it is dialled there: an answer contradicts the device, and nothing is started. By default that of the
    /// `[[peer]]` there.
    address: Option<String>,
    /// How to make it impossible for the host to write. Several sections are a ladder: they are tried in this order
    /// until one is proven, and a power fence that still reads on is switched off too. Devices that must all be
    /// proven, such as the outlets of two power supplies, are one section with `driver = "all_of"`.
    #[schemars(default)]
    fence: Vec<FenceConfig>,
    kubernetes: Option<KubernetesTaintConfig>,
}

/// A node of Kubernetes that can be fenced.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "describes the section for the schema; each key is read by itself")]
struct RawNode {
    /// Its name, as `kubectl get nodes` lists it.
    name: String,
    /// How to stop the node, with every pod on it: a ladder as for a host. A fence that leaves it running, such as one of
    /// storage alone, is refused.
    fence: Vec<FenceConfig>,
}

/// A broker that this host may take over.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "describes the section for the schema; each key is read by itself")]
struct RawBroker {
    /// Its node id (`node.id`, or `broker.id` before KRaft).
    id: i32,
    /// The host that owns it until the ledger says otherwise. It needs a `[[host]]` section with a fence.
    home: String,
    /// Where clients reach it, as host:port. The address moves with the broker.
    listener: String,
    /// Its log dirs, as they are mounted on this host. Absolute paths. None with `[broker_host] driver =
    /// "rescheduling"`.
    #[schemars(default)]
    log_dirs: Vec<PathBuf>,
    /// The racks or availability zones that its standby should be in, best first. Any, if there are none.
    #[schemars(default)]
    racks: Vec<String>,
    /// How its address moves here. Without it nothing is moved: something else must lead clients here.
    address: Option<AddressConfig>,
    /// How its log dirs come here. None with `[broker_host] driver = "rescheduling"`: they are the pod's.
    storage: Option<StorageConfig>,
    /// What differs from the template of `server.properties`, by Kafka's own names.
    #[schemars(default)]
    properties: BTreeMap<String, String>,
}
