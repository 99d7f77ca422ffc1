//! What a signal says, and when it looked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{BrokerId, Checked, Endpoint, Epoch, HostName, LedgerStanding, Moment, Orders, PartitionView};

/// One dated statement of one signal. `at` is when the look *began*, so that ages err on the old side.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// The signal that looked.
    pub signal: &'static str,
    /// When the look began.
    pub at: Moment,
    /// What it saw.
    pub fact: Fact,
}

/// What a signal can say.
#[derive(Debug, Clone)]
pub enum Fact {
    /// A fresh connection to a broker's own listener.
    Probe {
        /// The broker that was asked.
        broker: BrokerId,
        /// What came of it.
        outcome: ProbeOutcome,
    },
    /// The broker list as one broker tells it. A dead broker stays in it until the controller fences it.
    Listed {
        /// The brokers, and where they are reached.
        brokers: BTreeMap<BrokerId, Endpoint>,
    },
    /// Whether a broker that is not in the list is registered all the same, fenced, as other brokers tell it.
    /// Said only where these tell one from the other.
    Registration {
        /// The broker.
        broker: BrokerId,
        /// Whether the controller has a registration of it.
        registered: bool,
    },
    /// Replicas and ISR of every partition.
    Partitions(Arc<PartitionView>),
    /// When each broker last fetched the metadata log, as the active controller tells it.
    Quorum(QuorumView),
    /// The ledger's present state of every guarded broker, and the order book.
    Ledger(LedgerReading),
    /// Whether this host can write to a storage that brokers depend on.
    Storage {
        /// The canary's name: a path, mostly.
        canary: String,
        /// The brokers whose log dirs are on that storage.
        brokers: BTreeSet<BrokerId>,
        /// What came of it.
        outcome: CanaryOutcome,
    },
    /// How a broker's volumes are used, as the storage itself counts. For people: no decision rests on it.
    Volumes {
        /// The broker.
        broker: BrokerId,
        /// What was counted.
        usage: VolumeUse,
    },
    /// What a crash of a broker now would make its next start read through. For predictions: no decision
    /// rests on it.
    Logs {
        /// The broker.
        broker: BrokerId,
        /// Its logs.
        tail: LogTail,
    },
    /// What another agent sees.
    Peer(PeerView),
    /// What the daemon on this host has seen, told to a command beside it: what it remembers, and no witness.
    Daemon(PeerView),
    /// What a platform under a host, such as EC2 or a Kubernetes cluster, says of its machine: a witness of the host's
    /// death where it is off. It tells it late, so all else only supports.
    Machine {
        /// The host.
        host: HostName,
        /// What it says.
        state: MachineState,
        /// For how long that counts, unless the next one comes before.
        counts_for: Duration,
    },
    /// Where a host is, against where its fences act: told of hosts that may be on another machine from one moment to
    /// the next, such as a pod.
    Place {
        /// The host.
        host: HostName,
        /// Where it is.
        place: Place,
        /// For how long that counts, unless the next one comes before.
        counts_for: Duration,
    },
    /// What somebody says of a broker, for people: it decides nothing.
    Remark {
        /// The broker.
        broker: BrokerId,
        /// Who says what, in one line.
        says: String,
        /// For how long that counts, unless the next one comes before.
        counts_for: Duration,
    },
    /// Whether a broker's address is on this host.
    Address {
        /// The broker.
        broker: BrokerId,
        /// Whether it is.
        here: bool,
    },
    /// What the broker's process on this host does.
    Local {
        /// The broker.
        broker: BrokerId,
        /// Its process.
        process: LocalProcess,
    },
    /// A ledger answers, and this agent must not use it: nothing in it counts.
    Distrusted {
        /// The kind.
        distrust: Distrust,
        /// What was expected, what was found where, and what to do.
        why: String,
    },
    /// What one check of what a takeover here needs found: it orders standbys, and is no reason to act.
    Checked {
        /// What was found.
        found: Checked,
        /// For how long it counts, unless the next one comes before.
        counts_for: Duration,
    },
    /// The signal looked and could not see.
    Blind {
        /// Why, as an error chain.
        why: String,
    },
}

/// What came of one fresh TCP connection and `ApiVersions` request to a broker's listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "probe", rename_all = "snake_case")]
pub enum ProbeOutcome {
    /// The broker answered.
    Answered,
    /// The host answered that nothing listens: the host lives, the broker process does not accept.
    Refused,
    /// The connection opened and no answer came in time: a hung process.
    Silent,
    /// No connection: the host, or the network to it, is gone.
    Unreachable,
}

impl ProbeOutcome {
    /// The word used in messages.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Answered => "answers",
            Self::Refused => "refuses connections",
            Self::Silent => "accepts connections and does not answer",
            Self::Unreachable => "cannot be reached",
        }
    }
}

/// The active controller's account of who fetches the metadata log (`DescribeQuorum`, Kafka 3.3 on).
///
/// Every live KRaft broker fetches at least twice a second, so a broker's silence here is a second
/// witness, from another vantage point than ours, long before the session times out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuorumView {
    /// Node id of the active controller.
    pub leader: i32,
    /// Its epoch. A new leader has not heard anybody yet.
    pub leader_epoch: i32,
    /// Age of each node's last fetch, by the controller's own clock.
    pub silence: BTreeMap<BrokerId, Duration>,
}

/// Why a ledger that answers is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distrust {
    /// Nobody ever initialised it: an empty directory, or a new topic.
    LedgerUnknown,
    /// It is not the ledger that this host has used before.
    LedgerForeign,
    /// Another machine is registered under this host's name.
    NameTaken,
    /// A broker's home is registered as another host than the configuration says.
    WrongHome,
    /// A newer understudy has written something that this one cannot read.
    LedgerNewer,
    /// It has an older epoch than this host has seen.
    LedgerWentBack,
}

impl Distrust {
    /// Every one.
    pub const ALL: [Self; 6] = [
        Self::LedgerUnknown,
        Self::LedgerForeign,
        Self::NameTaken,
        Self::WrongHome,
        Self::LedgerNewer,
        Self::LedgerWentBack,
    ];

    /// The metric label, and the heading in the runbook.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::LedgerUnknown => "ledger_unknown",
            Self::LedgerForeign => "ledger_foreign",
            Self::NameTaken => "name_taken",
            Self::WrongHome => "wrong_home",
            Self::LedgerNewer => "ledger_newer",
            Self::LedgerWentBack => "ledger_went_back",
        }
    }
}

/// Why a broker's journals cannot be read, though the ledger can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    /// They hold something that nobody can have written.
    Damaged(String),
    /// A newer understudy has written them.
    Newer(String),
}

/// One reading of the whole ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerReading {
    /// Where each guarded broker stands.
    pub brokers: BTreeMap<BrokerId, LedgerStanding>,
    /// Brokers whose journals cannot be read, with the reason.
    pub unread: BTreeMap<BrokerId, Unread>,
    /// Every host that may run one of the other brokers which the cluster lists, where the ledger knows.
    pub others: BTreeMap<BrokerId, BTreeSet<HostName>>,
    /// The order book.
    pub orders: Arc<Orders>,
}

/// What came of one write and fsync in a disposable process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "canary", rename_all = "snake_case")]
pub enum CanaryOutcome {
    /// It is on stable storage.
    Wrote,
    /// Nothing came back within the deadline: the storage stalls.
    Stalled,
    /// A definite error, such as "read-only file system".
    Failed {
        /// The error.
        why: String,
    },
}

/// How a broker's volumes are used, as the storage itself counts. `None`: not known, or not yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeUse {
    /// For how long no operation was counted in any of them.
    pub quiet: Option<Duration>,
    /// For how long no write was.
    pub unwritten: Option<Duration>,
    /// For how long the client that used them last has been idle. The storage may tell it late.
    pub client_idle: Option<Duration>,
    /// Nothing was written for longer than a live Kafka leaves out, while volumes of other brokers are
    /// written to: the client stopped, not the storage.
    pub stopped: bool,
    /// For how long it may grant no new lock, since it moved.
    #[serde(default)]
    pub grace: Option<Duration>,
}

/// What Kafka reads through when it starts after a crash: of every replica what it has not flushed, which is
/// its newest segment, as Kafka flushes one when it begins the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogTail {
    /// Replicas on the broker.
    pub replicas: usize,
    /// Bytes in their newest segments, at most: a replica that is smaller than a segment counts as it is.
    pub bytes: u64,
    /// The same if every newest segment were full.
    pub at_most: u64,
}

impl LogTail {
    /// Kafka's default for `segment.bytes`.
    pub const SEGMENT: u64 = 1 << 30;

    /// How long Kafka reads through `bytes` with `threads` threads, one for each log dir by Kafka's default:
    /// 0.85 processor seconds a gigabyte (measured on 4.3.1, page cache warm), and no quicker from storage.
    #[must_use]
    pub fn scan(bytes: u64, threads: usize) -> Duration {
        // A second for a gigabyte would be a nanosecond for a byte.
        Duration::from_nanos(bytes / 100 * 85) / u32::try_from(threads.max(1)).unwrap_or(u32::MAX)
    }
}

/// What the platform under a host says of its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "machine", rename_all = "snake_case")]
pub enum MachineState {
    /// It runs, and nothing speaks against it.
    Runs,
    /// It runs, and the platform's own checks of it fail, or it is to be retired: that only supports.
    Ails {
        /// What is wrong, in one line.
        why: String,
    },
    /// It starts or stops, or the platform does not hear it: it may run.
    Changes {
        /// The platform's word for it.
        to: String,
    },
    /// It is off, or is no more: strong evidence that the host is dead, and no proof.
    Off {
        /// The platform's word for it.
        state: String,
    },
}

impl fmt::Display for MachineState {
    /// Completes "the machine of kafka-1 …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs => f.write_str("runs"),
            Self::Ails { why } => write!(f, "runs; {why}"),
            Self::Changes { to: state } | Self::Off { state } => write!(f, "is {state}"),
        }
    }
}

/// Where a host is that is not bound to one machine, against the machine that its fences act on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "place", rename_all = "snake_case")]
pub enum Place {
    /// On the machine that its fences act on.
    AtItsFence {
        /// Where that is, in one line.
        says: String,
        /// The machine, where the fences follow the host: they are the machine's then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on: Option<Machine>,
    },
    /// On another machine: whatever its fences prove, they prove of the wrong one.
    Astray {
        /// Where it is, where its fences act, and what to do.
        says: String,
        /// The machine, where its fences follow it and it is another doubt that keeps them from being believed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on: Option<Machine>,
    },
    /// Nobody could see it.
    Unseen {
        /// Why, and what to do.
        says: String,
    },
}

impl Place {
    /// The whole of it, for people.
    #[must_use]
    pub fn says(&self) -> &str {
        let (Self::AtItsFence { says, .. } | Self::Astray { says, .. } | Self::Unseen { says }) = self;
        says
    }
}

/// The machine that a host is on which goes from one to the other, as a pod does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name, such as that of a node of Kubernetes.
    pub name: String,
    /// Which one it is of all that ever had the host's name, such as the uid of a pod.
    pub guest: String,
}

/// What the process of a broker does on the host that looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalProcess {
    /// None is there, and none was expected.
    Absent,
    /// It runs.
    Running,
    /// It ended by itself.
    Exited,
}

/// What an agent tells its peers: what it sees, and how it stands as a standby. Served at `/v1/view`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerView {
    /// The host of the agent that speaks.
    pub host: HostName,
    /// What its own probes of each broker came to. Only fresh ones.
    pub brokers: BTreeMap<BrokerId, PeerSaw>,
    /// Brokers whose storage it cannot write to, by its own canaries.
    #[serde(default)]
    pub stalled: BTreeSet<BrokerId>,
    /// The processes of brokers on its host.
    #[serde(default)]
    pub local: BTreeMap<BrokerId, LocalProcess>,
    /// How it stands as a standby; `None` if it guards nothing.
    #[serde(default)]
    pub candidate: Option<Candidate>,
    /// Who its NFS client is to servers; `None` if none is loaded. Only for `check`: no decision looks at it.
    #[serde(default)]
    pub nfs_client: Option<NfsClientId>,
}

/// Who a host's NFS client is to servers. Its address has no part in that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfsClientId {
    /// What the administrator made it unique by; empty if nothing.
    pub uniquifier: String,
    /// The host's name, as the kernel has it.
    pub node: String,
}

impl NfsClientId {
    /// The string by which servers know it over NFSv4.1.
    #[must_use]
    pub fn owner(&self) -> String {
        let slash = if self.uniquifier.is_empty() { "" } else { "/" };
        format!("Linux NFSv4.1 {}{slash}{}", self.uniquifier, self.node)
    }
}

/// What a peer's own probes of one broker came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSaw {
    /// Its freshest probe.
    #[serde(flatten)]
    pub outcome: ProbeOutcome,
    /// For how long it has come out the same.
    pub lasting: Duration,
    /// How long ago it last had an answer; `None` if it never had one, or does not say.
    #[serde(default)]
    pub answered: Option<Duration>,
    /// Whether it saw the broker stop cleanly: by its own looks alone, and without a hole between them.
    #[serde(default)]
    pub stopped: bool,
    /// The newest epoch after whose end it saw the broker well: what it saw of its going came after that.
    #[serde(default)]
    pub well_in: Option<Epoch>,
}

/// A host that could take brokers over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its rank: the lower goes first.
    pub rank: u32,
    /// Its rack or availability zone.
    #[serde(default)]
    pub rack: Option<String>,
    /// The brokers that it may take over.
    pub serves: BTreeSet<BrokerId>,
    /// The brokers that it owns already, or is taking over.
    pub carries: BTreeSet<BrokerId>,
    /// How many brokers it may own at once.
    pub limit: usize,
    /// Why it could not take anything over now; `None` if it could.
    #[serde(default)]
    pub unfit: Option<String>,
    /// The brokers whose takeover by it would fail, with the check that says so: it goes last for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_ready: BTreeMap<BrokerId, String>,
}
