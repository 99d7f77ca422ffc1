//! The configuration as it is typed. Doc comments here, and in the drivers' own sections, are the reference
//! page.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use aws::Ec2StatusConfig;

use crate::config::AddressConfig;
use crate::config::FenceConfig;
use drivers::broker_host::BrokerHostConfig;
use drivers::cluster::kafka::ClusterConfig;
use drivers::health_signal::peer::PeerConfig;
use drivers::health_signal::storage_canary::CanaryConfig;
use drivers::ledger::LedgerConfig;
use ontap::clients::OntapClientsConfig;
use ontap::storage::StorageConfig;
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
    /// waits for `understudy approve`, `auto` takes over. There is no default: somebody types it.
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
    ec2_status: Option<Ec2StatusConfig>,
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
    /// `/v1/clients` and `/v1/reach/N`, as address:port. It has no authentication: keep it on the loopback
    /// address or on a management network. Peers cannot reach the loopback address. `/v1/clients`, which
    /// names who is connected to brokers here, and `/v1/reach/N`, which dials broker N where the cluster
    /// advertises it, are given only to the addresses in `url` of each `[[peer]]`.
    #[serde(default = "listen")]
    pub(crate) listen: String,
    /// How often the daemon checks by itself what `understudy check` looks at and disturbs nobody: fence
    /// devices, storage, addresses, Kafka's template, class data, the ledger, peers, certificates. It begins
    /// at its start, as a changed configuration does. A standby whose check fails goes last.
    #[serde(default = "check_every", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) check_every: Duration,
    /// The Unix socket where root may also give orders (pause, resume, ack, approve), besides reading the
    /// same pages. `agent.sock` in `state_dir`, if it is not given.
    #[serde(default)]
    pub(crate) socket: Option<PathBuf>,
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
    /// If more brokers than this failed together and are down, none of them is taken over: that is a rack, a
    /// network or the storage, not a host. Brokers of one host count as one.
    pub(crate) max_brokers_down: usize,
    /// If more than this share of all brokers failed together and is down, in percent, none of them is taken
    /// over, whatever their number.
    pub(crate) max_percent_down: u8,
    /// Brokers that went within this long of each other failed together, and so did those that failed
    /// together with one of them. A broker that has been down for longer, was stopped on purpose, is paused,
    /// or waits for a person is in nobody's way. Longer than one cause takes from the first broker to the
    /// last: by its usual options (`timeo=600,retrans=2`) an NFS client calls a server dead after 180 s.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) mass_failure_window: Duration,
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
    /// for one that ended: whoever else starts it here, such as its unit, has this long. So has a Kafka that
    /// somebody else starts, from when the controller last heard it. Longer than a boot takes until Kafka is
    /// executed, and shorter than `process_down_after`, by which others take the broker over. After a mass
    /// failure, such as a loss of power, standbys give as long to whoever is late, from the last broker that
    /// came back on.
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
    /// The window of both budgets. For as long, an agent that was restarted goes by what was seen before a
    /// claim or a removal of the broker.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) budget_window: Duration,
    /// How long a better standby has, once a takeover is due, before the next one steps in.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) step_in_after: Duration,
    /// A broker that a takeover has started may show no progress for this long on its way back into every
    /// ISR. Progress is: its process reads (its logs), it registers, it is unfenced, it answers, a partition
    /// joins, or the bytes that are missing get fewer. Then the takeover ends with what is in the way. It
    /// ends as abandoned, so that another standby may try, if nothing of Kafka runs here any more; else it is
    /// stuck, and a person is called. Longer than Kafka waits for its controllers, which is 60 s
    /// (`initial.broker.registration.timeout.ms`). Where the agent may not read `/proc/PID/io` of Kafka,
    /// longer than its logs take to load.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub(crate) rejoin_patience: Duration,
    /// How often a takeover starts a Kafka again that ended by itself on that way. One that ended while the
    /// controllers had no leader is started again when they have one, and does not count.
    pub(crate) rejoin_restarts: usize,
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
            mass_failure_window: Duration::from_secs(300),
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
            rejoin_patience: Duration::from_secs(300),
            rejoin_restarts: 2,
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
    /// An address of the host itself, which no broker takes along when it moves. After a device has said that the host
    /// is off, it is dialled there: an answer contradicts the device, and nothing is started. By default that of the
    /// `[[peer]]` there.
    address: Option<String>,
    /// How to make it impossible for the host to write. Several sections are a ladder: they are tried in this order
    /// until one is proven, and a power fence that still reads on is switched off too. Devices that must all be
    /// proven, such as the outlets of two power supplies, are one section with `driver = "all_of"`.
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
