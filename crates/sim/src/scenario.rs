//! What a run is made of: a cluster, and what goes wrong in it and when. Plain data, so that it can be
//! shrunk.

use std::fmt;

/// Simulated milliseconds since the run began.
pub type Ms = u64;

/// Everything but the latencies, which come from the seed as well.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Brokers, each on a home host of its own: hosts `0..brokers`.
    pub brokers: usize,
    /// Standbys: hosts `brokers..brokers + standbys`.
    pub standbys: usize,
    /// Whether agents run on the home hosts too.
    pub home_agents: bool,
    /// Whether a supervisor on a broker's home starts a Kafka that ended by itself again.
    pub supervised: bool,
    /// How long the storage keeps the locks of a host that lost its power; 0: they end with it.
    pub lease: Ms,
    /// Whether packets follow an address only some time after it was moved, and until when they do not follow at all.
    pub follows_from: Option<Ms>,
    /// Whether the last of several standbys has a copy of the first home's configuration, and says its name.
    pub twin: bool,
    /// How many brokers one standby may own.
    pub max_brokers: usize,
    /// Whether agents act by themselves, or wait for an approval.
    pub approve: bool,
    /// What fences each host.
    pub fences: Vec<FenceKind>,
    /// How fast each host's monotonic clock runs, in thousandths too much or too little.
    pub drift: Vec<i64>,
    /// What happens.
    pub events: Vec<Timed>,
    /// A bug planted on purpose, to see that it is found.
    pub bug: Option<Bug>,
}

impl Scenario {
    /// How many hosts there are.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.brokers + self.standbys
    }

    /// The host that says another one's name, that of host 0.
    #[must_use]
    pub fn twin(&self) -> Option<usize> {
        (self.twin && self.home_agents && self.standbys > 1).then(|| self.hosts() - 1)
    }

    /// When the last fault that ends by itself has ended, or the last one has begun.
    #[must_use]
    pub fn healed_at(&self) -> Ms {
        let ended = self.events.iter().map(|event| event.at + event.lasts);
        ended.chain(self.follows_from).max().unwrap_or_default()
    }

    /// A host's name.
    #[must_use]
    pub fn name(&self, host: usize) -> String {
        if host < self.brokers {
            format!("kafka-{}", host + 1)
        } else {
            format!("standby-{}", host - self.brokers + 1)
        }
    }
}

/// What a fence does to a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceKind {
    /// Switches it off.
    Power,
    /// Denies it the storage; everything else of it goes on.
    Storage,
}

/// A bug planted in the world, for the simulation to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Bug {
    /// Fences give proofs of what they did not do.
    EmptyProof,
    /// The ledger lets an epoch be claimed twice.
    DoubleClaim,
    /// The ledger's readings do not name the frozen claimant among the possible writers.
    ForgottenWriter,
    /// The ledger accepts writes of old epochs.
    OldEpochWrites,
    /// Agents are told that the first broker is dead, whatever is true.
    FalseAlarm,
    /// Agents never act.
    Paralysis,
    /// A Kafka that has not opened its log dirs yet is seen by nobody on its host, and no agent is patient
    /// with a boot.
    BlindToBoots,
    /// Nobody looks whether another host answers for an address, and no owner defends its own.
    AddressUndefended,
    /// The ledger's readings do not say that a host was fenced.
    ForgottenFence,
    /// An agent's clock does not count the time in which it stood still, so that no decision grows old.
    OldDecision,
    /// The ledger's readings do not say that a takeover removed the registration itself.
    OwnRemovalIsStop,
    /// Agents take it for a clean stop that a broker was listed as long as it answered, however long nobody
    /// looked since.
    BlindStop,
    /// The ledger takes an append into a journal that has gone on since it was asked for.
    BlindAppend,
    /// Nobody asks the storage for the lock that a dead host left.
    LocksUnasked,
    /// Whatever is found where the ledger should be is the ledger.
    AnyLedger,
    /// Whatever machine says a host's name is that host.
    AnyMachine,
    /// Whoever is down counts as having failed together with whoever fails later, however much later.
    EndlessWindow,
    /// Nobody is patient with a boot.
    NoBootPatience,
    /// A Kafka that hangs is taken for one that has ended.
    HungIsGone,
}

/// Something that happens.
#[derive(Debug, Clone)]
pub struct Timed {
    /// When.
    pub at: Ms,
    /// After how long it ends by itself; 0: it does not, or there is nothing to end.
    pub lasts: Ms,
    /// What.
    pub what: Fault,
}

/// A place in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// A host.
    Host(usize),
    /// The controllers.
    Controllers,
    /// The ledger.
    Ledger,
    /// The fence devices.
    Devices,
}

/// How a fence device fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// It does as it is told, after seconds.
    Slow,
    /// It does as it is told, and answers too late.
    Mute,
    /// It says "done" and does nothing.
    Lies,
    /// It says no.
    Refuses,
    /// It does as it is told and cannot say in what state the host is.
    Unknown,
}

/// How the ledger fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerFault {
    /// Nothing works.
    Down,
    /// Writes take seconds.
    Slow,
    /// Writes are done, and not confirmed.
    LostAcks,
    /// Writes fail, and land seconds later.
    Late,
    /// Reads show what was so seconds ago.
    Stale,
}

/// What stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frozen {
    /// Everything on the host.
    Host,
    /// The agent only.
    Agent,
}

/// What an agent's death is timed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// It dies before the write is durable.
    Before,
    /// It dies right after.
    After,
}

/// What goes wrong, and what people do. Hosts and brokers are indices.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The host loses its power; if it lasts, it starts again then.
    HostDies(usize),
    /// The host stands still; its clocks go on.
    Freezes(usize, Frozen),
    /// The host stands still at its n-th act from now on, for that long.
    FreezesAtAct(usize, Frozen, u64, Ms),
    /// Kafka is stopped by a signal and carries on later.
    KafkaFreezes(usize),
    /// Kafka ends by itself.
    KafkaCrashes(usize),
    /// Kafka accepts and does not answer.
    KafkaHangs(usize),
    /// Somebody stops Kafka cleanly.
    KafkaStops(usize),
    /// The registration of a broker goes, whatever the broker does: a request came late, or a person sent it.
    /// Made by tests only, as yet.
    Unregistered(usize),
    /// So many of Kafka's next starts end before it registers.
    StartsFail(usize, u64),
    /// So many of Kafka's next starts hang before it registers.
    StartsHang(usize, u64),
    /// Kafka's next starts take that much longer.
    SlowRecovery(usize, Ms),
    /// Packets from one place to another are lost.
    Cut(Node, Node),
    /// A host reaches nobody, and nobody reaches it.
    Isolated(usize),
    /// The storage does not answer a host, or any.
    StorageStalls(Option<usize>),
    /// The ledger fails, for one host or for all.
    LedgerFails(LedgerFault, Option<usize>),
    /// The ledger's storage is not mounted on a host: an empty directory is there.
    LedgerMissing(usize),
    /// A host's fence device fails.
    FenceFails(usize, Device),
    /// An agent dies at its n-th ledger write from now on, and is started again.
    AgentCrashes(usize, u64, Write),
    /// An agent is killed, and started again.
    AgentKilled(usize),
    /// A host's wall clock jumps by so many seconds.
    WallJumps(usize, i64),
    /// Another controller becomes the active one.
    ControllerMoves,
    /// The controllers lose their majority, and with it their leader.
    QuorumLost,
    /// A person pauses takeovers of a broker.
    Pause(usize),
    /// A person resumes them all.
    Resume,
    /// A person acknowledges what was wrong.
    Ack,
    /// A person approves a takeover of a broker.
    Approve(usize),
    /// A person orders a broker to be moved to a host.
    Switchover(usize, usize),
}

impl Fault {
    /// What it needs to be there: the highest host index it names.
    #[must_use]
    pub fn highest_host(&self) -> Option<usize> {
        let of = |node: &Node| match node {
            Node::Host(host) => Some(*host),
            _ => None,
        };
        match self {
            Self::HostDies(h)
            | Self::Freezes(h, _)
            | Self::FreezesAtAct(h, ..)
            | Self::Isolated(h)
            | Self::FenceFails(h, _)
            | Self::LedgerMissing(h)
            | Self::AgentCrashes(h, ..)
            | Self::AgentKilled(h)
            | Self::WallJumps(h, _)
            | Self::Switchover(_, h) => Some(*h),
            Self::Cut(a, b) => of(a).max(of(b)),
            Self::StorageStalls(h) | Self::LedgerFails(_, h) => *h,
            _ => None,
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, brokers, standbys, max_brokers, lease, .. } = self;
        write!(f, "seed {seed}: {brokers} brokers, {standbys} standbys of up to {max_brokers}")?;
        let agents = if self.home_agents { ", agents on every host" } else { "" };
        let units = if self.supervised { ", supervised" } else { "" };
        let twin = if self.twin().is_some() { ", the last host says that it is the first" } else { "" };
        let mode = if self.approve { ", mode approve" } else { "" };
        let follows = self.follows_from.map(|from| format!(", packets follow addresses from {from} ms on"));
        let follows = follows.unwrap_or_default();
        writeln!(f, "{agents}{units}{twin}{mode}{follows}, leases of {lease} ms")?;
        for host in 0..self.hosts() {
            let (fence, drift) = (self.fences[host], self.drift[host]);
            writeln!(f, "  host {host} is {}, fence {fence:?}, clock {drift:+} ‰", self.name(host))?;
        }
        for Timed { at, lasts, what } in &self.events {
            write!(f, "  {:>6.2} s  {what:?}", *at as f64 / 1000.0)?;
            writeln!(f, "{}", if *lasts > 0 { format!(" for {lasts} ms") } else { String::new() })?;
        }
        Ok(())
    }
}
