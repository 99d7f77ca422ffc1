//! The configuration as it is typed. Doc comments here, and in the drivers' own sections, are the reference
//! page.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use recovery::drivers::address::AddressConfig;
use recovery::drivers::broker_host::BrokerHostConfig;
use recovery::drivers::cluster::kafka::ClusterConfig;
use recovery::drivers::fence::FenceConfig;
use recovery::drivers::health_signal::ontap_clients::OntapClientsConfig;
use recovery::drivers::health_signal::peer::PeerConfig;
use recovery::drivers::health_signal::storage_canary::CanaryConfig;
use recovery::drivers::ledger::LedgerConfig;
use recovery::drivers::storage::StorageConfig;
use recovery::policy::Mode;
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
    /// waits for `understudy failover`, `auto` takes over. There is no default: somebody types it.
    #[schemars(schema_with = "mode")]
    mode: Mode,
    /// This agent.
    agent: RawAgent,
    /// The Kafka cluster.
    cluster: ClusterConfig,
    /// How long what must be seen before the agent acts.
    #[schemars(default)]
    policy: RawPolicy,
    /// How this host stands among the standbys.
    #[schemars(default)]
    standby: RawStandby,
    /// The shared, durable record of owners, epochs and takeovers.
    ledger: LedgerConfig,
    /// A host that can be fenced: the home of a broker, or a standby. One section a host.
    #[schemars(default)]
    host: Vec<RawHost>,
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
    /// Where the agent answers `/livez`, `/readyz`, `/metrics`, `/v1/status` and, for its peers, `/v1/view`
    /// and `/v1/clients`, as address:port. It has no authentication: keep it on the loopback address or on a
    /// management network. Peers cannot reach the loopback address. `/v1/clients`, which names who is
    /// connected to brokers here, is given only to the addresses in `url` of each `[[peer]]`.
    #[serde(default = "listen")]
    pub(crate) listen: String,
    /// The Unix socket where root may also give orders (pause, resume, ack, approve), besides reading the
    /// same pages. `agent.sock` in `state_dir`, if it is not given.
    #[serde(default)]
    pub(crate) socket: Option<PathBuf>,
}

pub(super) fn state_dir() -> PathBuf {
    "/var/lib/understudy".into()
}

fn listen() -> String {
    "127.0.0.1:9095".to_owned()
}

/// When the agent may act. The defaults suit a cluster on one site.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPolicy {
    /// A broker whose host cannot be reached is taken over after this long; with what a first and a last
    /// probe take, that is about half a second later. At least three probes (750 ms), so that one lost packet
    /// does not look like a dead host. Longer than a host may stand still without being dead, such as a
    /// virtual machine that is moved.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) host_down_after: Duration,
    /// A broker that accepts connections and does not answer is taken over after this long. Longer than the
    /// longest pause (garbage collection, storage) that the brokers get over by themselves. Where a takeover
    /// is expected to take longer than this (as the last ones did, or with much to read of the logs), it is
    /// waited for as long as that, but never for more than three times this.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) hung_after: Duration,
    /// A broker that refuses connections while its host lives is taken over after this long. Longer than a
    /// restart of Kafka on its own host takes. Stretched as `hung_after` is.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) process_down_after: Duration,
    /// The active controller counts as a witness against a broker once it has heard nothing of it for this
    /// long. A live KRaft broker is heard at least every 500 ms.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) controller_silent_for: Duration,
    /// If more brokers than this do not answer at once, nothing is taken over: that is a rack, a network or
    /// the storage, not a host.
    pub(crate) max_brokers_down: usize,
    /// If more than this share of all brokers does not answer at once, in percent, nothing is taken over,
    /// whatever their number.
    pub(crate) max_percent_down: u8,
    /// Evidence older than this counts as not seen.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) stale_after: Duration,
    /// A claimant that has written nothing to its takeover's journal for this long may be succeeded by
    /// another standby, which fences it as well. A claimant at work writes every 3 s.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) claim_silent_after: Duration,
    /// A broker that runs on this host and whose process ended is started again here after this long.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) restart_after: Duration,
    /// A broker of this host that has not answered since this agent began may be booting, and is not taken
    /// for one that ended: whoever else starts it here, such as its unit, has this long. Longer than a boot
    /// takes until Kafka is executed, and shorter than `process_down_after`, by which others take the broker
    /// over.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) boot_patience: Duration,
    /// How many restarts in place within `restart_window` before other standbys take the broker over.
    pub(crate) restart_tries: usize,
    /// The window of `restart_tries`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) restart_window: Duration,
    /// How many takeovers of one broker within `budget_window` are decided without a person. When they are
    /// spent, the agents hold until `understudy ack`. What people ask for does not count.
    pub(crate) takeovers_per_broker: usize,
    /// The same for all guarded brokers together.
    pub(crate) takeovers_per_cluster: usize,
    /// The window of both budgets.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) budget_window: Duration,
    /// How long a better standby has, once a takeover is due, before the next one steps in.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) step_in_after: Duration,
}

impl Default for RawPolicy {
    fn default() -> Self {
        Self {
            host_down_after: Duration::from_millis(1_500),
            hung_after: Duration::from_secs(30),
            process_down_after: Duration::from_secs(60),
            controller_silent_for: Duration::from_secs(1),
            max_brokers_down: 1,
            max_percent_down: 50,
            stale_after: Duration::from_secs(3),
            claim_silent_after: Duration::from_secs(15),
            restart_after: Duration::from_millis(500),
            boot_patience: Duration::from_secs(30),
            restart_tries: 2,
            restart_window: Duration::from_secs(600),
            takeovers_per_broker: 3,
            takeovers_per_cluster: 5,
            budget_window: Duration::from_secs(3600),
            step_in_after: Duration::from_secs(5),
        }
    }
}

/// How this host stands among the standbys that guard the same brokers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawStandby {
    /// The standby with the lowest rank goes first. Of equals, the one whose name sorts first.
    pub(crate) rank: u32,
    /// The rack or availability zone of this host, as a broker's `racks` name it.
    pub(crate) rack: Option<String>,
    /// How many of the guarded brokers this host may own at once.
    pub(crate) max_brokers: usize,
}

impl Default for RawStandby {
    fn default() -> Self {
        Self { rank: 100, rack: None, max_brokers: 1 }
    }
}

/// A host that can be fenced.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "describes the section for the schema; each key is read by itself")]
struct RawHost {
    /// Its name in the ledger: `agent.host` of the agent there, or the `home` of a broker.
    name: String,
    /// How to make it impossible for the host to write. Tried in this order until one is proven.
    #[schemars(default)]
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
    /// Its log dirs, as they are mounted on this host. Absolute paths.
    log_dirs: Vec<PathBuf>,
    /// The racks or availability zones that its standby should be in, best first. Any, if there are none.
    #[schemars(default)]
    racks: Vec<String>,
    /// How its address moves here. Without it nothing is moved: something else must lead clients here.
    address: Option<AddressConfig>,
    /// How its log dirs come here.
    storage: StorageConfig,
    /// What differs from the template of `server.properties`, by Kafka's own names.
    #[schemars(default)]
    properties: BTreeMap<String, String>,
}
