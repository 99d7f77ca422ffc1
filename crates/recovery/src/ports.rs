//! The world, behind few traits. A driver is one file in `drivers`.
//!
//! Contract of every port:
//! - an act is an *ensure*: repeating it is harmless;
//! - `Ok` means confirmed by reading back, never "request accepted";
//! - a call returns: whatever may hang has a deadline inside the driver;
//! - no file system call on a path that may be dead runs on the caller's thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::event::Event;
use crate::journal::{Claim, Entry, EpochJournal, Record, Refused};
use crate::model::{
    BrokerId, Distrust, Epoch, Evidence, Grace, HeldLock, HostName, Machine, Now, Order, Orders,
    PartitionView,
};

/// What the ports take and tell.
pub use crate::model::{Advertised, Cell, Note, ProcessState, Proof, Reach, Standing, Unregistered};

/// A cause of an error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Why a step did not happen. Says only its own layer: causes are in `source()`.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The other side said no, or what was read back is not what must be.
    #[error("{driver} could not {action}: {why}")]
    Refused {
        /// The driver.
        driver: &'static str,
        /// What was attempted.
        action: String,
        /// What is wrong, and what to do about it.
        why: String,
    },
    /// The attempt itself failed.
    #[error("{driver} could not {action}")]
    Failed {
        /// The driver.
        driver: &'static str,
        /// What was attempted.
        action: String,
        /// The cause.
        source: BoxError,
    },
    /// Nobody knows what came of it.
    #[error("{driver} got no confirmation within {limit:?} that it could {action}")]
    Unconfirmed {
        /// The driver.
        driver: &'static str,
        /// What was attempted.
        action: String,
        /// The deadline.
        limit: Duration,
    },
    /// A newer epoch exists: this run is over and undoes nothing.
    #[error("epoch {ours} is superseded by epoch {theirs}")]
    Superseded {
        /// The epoch of this run.
        ours: Epoch,
        /// The newer one.
        theirs: Epoch,
    },
}

impl StepError {
    /// The metric label.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::Failed { .. } => "failed",
            Self::Unconfirmed { .. } => "unconfirmed",
            Self::Superseded { .. } => "superseded",
        }
    }
}

/// An error and its causes in one line, for logs and the journal.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// A dated look at the cluster. Runs off the decision path, on its own task.
#[async_trait]
pub trait HealthSignal: Send + Sync {
    /// The signal's name in messages and metrics.
    fn name(&self) -> &'static str;
    /// How often to look while all is well.
    fn period(&self) -> Duration;
    /// How often to look while a guarded broker does not answer; the first time as soon as that begins. `None`: as
    /// often as else.
    fn period_on_suspicion(&self) -> Option<Duration> {
        None
    }
    /// Looks once, within the driver's deadline. What could not be seen is said as `Fact::Blind`.
    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence>;
}

/// The detail of a proof that says why the host may be on another machine than what was proven is of. A new incarnation
/// of its broker may run there: nothing is done to what that has in common with the old one.
pub const MOVED: &str = "moved";

/// Makes it impossible for a host to write.
#[async_trait]
pub trait Fence: Send + Sync {
    /// The driver's name, as in the configuration.
    fn name(&self) -> &str;
    /// Fences `host`, and waits until the fence device confirms it.
    async fn fence(&self, host: &HostName, epoch: Epoch) -> Result<Note, StepError>;
    /// Reads back, anew, that `host` is fenced. Anything but a clear yes is an error.
    async fn prove(&self, host: &HostName, epoch: Epoch) -> Result<Proof, StepError>;
    /// Lifts the fence, and waits until the fence device confirms it. Only `understudy rejoin` asks for it,
    /// after the host has been checked.
    async fn lift(&self, host: &HostName) -> Result<Note, StepError>;
    /// Whether the device answers at all, for `check`. Changes nothing.
    async fn check(&self, host: &HostName) -> Result<Note, StepError>;
    /// The same, of each fence that it is made of, by its name.
    async fn checks(&self, host: &HostName) -> Vec<(String, Result<Note, StepError>)> {
        vec![(self.name().to_owned(), self.check(host).await)]
    }
    /// Believes no word of the fence that [`Self::checks`] names `rung` until it reads on: it read off while the host
    /// lived, as `why` tells.
    fn disbelieve(&self, _rung: &str, _why: &str) {}
    /// The fence of the machine that the host was on when a takeover was planned, where that is what fences the host.
    /// `moves`: the plan has the host made anew on another machine, and starts nothing else, so that what is proven of
    /// this one holds though the host is on another by then, or nobody can tell; the proof says so as [`MOVED`].
    /// `None`: it has fences of its own, or no such machine is known here.
    fn on(&self, _machine: &Machine, _moves: bool) -> Option<Arc<dyn Fence>> {
        None
    }
    /// Whether the host has power, as this fence reads it now. `None`: it cannot tell, or is no power fence.
    async fn has_power(&self, _host: &HostName) -> Option<bool> {
        None
    }
    /// Whether this fence, once proven, leaves the host running: it cuts it off its storage or network, and no more.
    fn leaves_running(&self) -> bool {
        false
    }
    /// Confirms that `host` itself does not run: a fence that leaves it running is followed by the next one
    /// that does not. An error says what is missing.
    async fn finish(&self, host: &HostName, epoch: Epoch) -> Result<Note, StepError> {
        if self.leaves_running() {
            let (action, why) = (format!("stop {host}"), "it denies the storage, and no more".to_owned());
            return Err(StepError::Refused { driver: "fence", action, why });
        }
        match self.prove(host, epoch).await {
            Ok(proof) => Ok(proof.note),
            Err(_) => {
                self.fence(host, epoch).await?;
                Ok(self.prove(host, epoch).await?.note)
            }
        }
    }
}

/// Has a broker's log dirs on this host.
#[async_trait]
pub trait Storage: Send + Sync {
    /// The driver's name.
    fn name(&self) -> &'static str;
    /// Ensures that the log dirs are there, and that they are what is configured. Writes nothing.
    async fn attach(&self, epoch: Epoch) -> Result<Note, StepError>;
    /// Undoes `attach`. `Ok` also means that nothing which this host has not written yet comes to the log
    /// dirs later.
    async fn release(&self) -> Result<Note, StepError>;
    /// Takes off what is still mounted of the log dirs, and lets nobody in or out. For `rejoin`: while this
    /// host's fence stands, what it has not written yet goes nowhere.
    async fn withdraw(&self) -> Result<Note, StepError>;
    /// Which of the log dirs' locks are held, asked anew of the storage. Takes none, and makes no file: one
    /// that is not there is free. An error: nobody knows, for instance because the server answers nobody in
    /// its grace period.
    async fn locks(&self) -> Result<Vec<HeldLock>, StepError>;
    /// Whether the storage has moved, so that it may grant nobody a lock for a while. `None`: it does not say
    /// so.
    async fn grace(&self) -> Option<Grace> {
        None
    }
    /// Breaks the locks that are held in the log dirs, once every possible writer is proven unable to write.
    /// Asked only of storage that can, see [`crate::model::Locks::broken`].
    async fn break_locks(&self) -> Result<Note, StepError>;
    /// Whether a takeover could attach, for `check`. Changes nothing.
    async fn check(&self) -> Result<Note, StepError>;
    /// What becomes of a file in the log dirs that is unlinked while it is open, for `check`. Asked on the
    /// broker's owner only: it writes a small file, and removes it.
    async fn unlinks(&self) -> Result<Note, StepError>;
}

/// Has a broker's address on this host.
#[async_trait]
pub trait Address: Send + Sync {
    /// The driver's name.
    fn name(&self) -> &'static str;
    /// Ensures that the address is on this host and that the neighbours know, or have been told by whoever
    /// decides on it. The note says [`PLACED`](crate::model::PLACED) if it was not here before.
    async fn acquire(&self, epoch: Epoch) -> Result<Note, StepError>;
    /// Waits until packets for the address come to this host and to no other, where [`Self::acquire`] cannot
    /// tell. Changes nothing.
    async fn confirm(&self) -> Result<Note, StepError> {
        Ok(Note::new("it was confirmed when it was moved"))
    }
    /// Once the address is here, resets what connections clients still have to its last owner, as far as they
    /// are known. One to this host goes on.
    async fn reset_clients(&self) -> Result<Note, StepError>;
    /// Undoes `acquire`, and ends the defence.
    async fn release(&self) -> Result<Note, StepError>;
    /// Whether the address is on this host.
    async fn here(&self) -> Result<bool, StepError>;
    /// The hardware address of another host on the link that says it has the address; `None` if none does.
    async fn holder(&self) -> Result<Option<String>, StepError>;
    /// Goes on, in the background and until [`Self::release`], to answer everybody else who says to have the
    /// address by telling the neighbours again that it is here. Repeating it is harmless. Only the owner's
    /// agent asks for it.
    async fn defend(&self) -> Result<(), StepError>;
    /// Whether a takeover could move the address here, for `check`. Changes nothing.
    async fn check(&self) -> Result<Note, StepError>;
}

/// Runs a broker on this host.
#[async_trait]
pub trait BrokerHost: Send + Sync {
    /// The driver's name.
    fn name(&self) -> &'static str;
    /// Writes the configuration Kafka will be started with.
    async fn render(&self, broker: BrokerId, epoch: Epoch) -> Result<Note, StepError>;
    /// Compares every log dir's cluster id, node id and directory id with what they must be. Writes nothing.
    ///
    /// `cluster_id` is what the cluster itself says, where known.
    async fn verify(&self, broker: BrokerId, cluster_id: Option<&str>) -> Result<Note, StepError>;
    /// Ensures that the broker runs: starts it once, or adopts the one that runs. `proofs`: one for every
    /// host that may have been writing; at least one.
    async fn start(&self, broker: BrokerId, epoch: Epoch, proofs: &[Proof]) -> Result<Note, StepError>;
    /// Has the broker's host, which is a pod, made anew by its own controller on another machine than `from`, and waits
    /// until that is done; it is no error if somebody else has. `proofs` as for [`Self::start`]. Only the driver of such
    /// hosts can.
    async fn reschedule(
        &self,
        broker: BrokerId,
        _from: &Machine,
        _proofs: &[Proof],
    ) -> Result<Note, StepError> {
        let action = format!("have the host of broker {broker} made anew");
        let why = "Kafka is run on this very host".to_owned();
        Err(StepError::Refused { driver: "understudy", action, why })
    }
    /// What the broker's process does now.
    async fn state(&self, broker: BrokerId) -> Result<ProcessState, StepError>;
    /// How many bytes the broker's process `pid` has read since its start, from files and from the network: a
    /// Kafka that loads its logs shows nothing else. `None` where that cannot be seen.
    async fn bytes_read(&self, broker: BrokerId, pid: i32) -> Option<u64>;
    /// Stops the broker cleanly (SIGTERM) and waits until it is gone. Never kills.
    async fn stop(&self, broker: BrokerId, limit: Duration) -> Result<Note, StepError>;
    /// Ends Kafka by SIGKILL, if the broker's process is still the very one that [`Self::state`] called
    /// `pid`, and waits until nothing of it is left. Only for a broker that serves without a registration: it
    /// does not end by itself, nor when it is asked to (measured on 3.9.2 and 4.3.1).
    async fn kill(&self, broker: BrokerId, pid: i32, limit: Duration) -> Result<Note, StepError>;
    /// Ends by SIGKILL the very processes that are seen to run this broker on this host, whoever started
    /// them, and waits until nothing of them is left. Only for a host that is proven unable to write to the
    /// broker's log dirs, and is not to have it back.
    async fn end_fenced(&self, broker: BrokerId, limit: Duration) -> Result<Note, StepError>;
    /// Proves that no Kafka of this broker runs on this host, but for one that this very epoch started.
    async fn prove_stopped(&self, broker: BrokerId, epoch: Epoch) -> Result<Proof, StepError>;
    /// Whether a takeover could start the broker here, for `check`. Changes nothing but scratch files.
    async fn check(&self, broker: BrokerId) -> Vec<Result<Note, StepError>>;
}

/// What only the cluster itself can say or do.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// The cluster's id, from a surviving broker.
    async fn id(&self) -> Result<String, StepError>;
    /// How `broker` stands, told by a broker other than it.
    async fn standing(&self, broker: BrokerId) -> Result<Standing, StepError>;
    /// Whether what the cluster advertises for `broker` leads to it from this host, for a peer that asks. It
    /// dials what a surviving broker says, and nothing that the peer names.
    async fn reach(&self, broker: BrokerId) -> Reach;
    /// Whether the controller has a registration of `broker`, fenced or not, as most of those that were asked
    /// of the other brokers tell it, and none of them otherwise. An error if that cannot be known.
    async fn registered(&self, broker: BrokerId) -> Result<bool, StepError>;
    /// Confirms that the metadata quorum has a leader that answers. An error says why none was found.
    async fn quorum(&self) -> Result<(), StepError>;
    /// How many bytes `broker` lacks in the partitions that have it out of ISR, beside their leaders' logs.
    async fn behind(&self, broker: BrokerId) -> Result<u64, StepError>;
    /// Every partition's replicas and ISR.
    async fn partitions(&self) -> Result<PartitionView, StepError>;
    /// Removes the registration of a dead broker: one request, to the active controller's own listener, only
    /// if the broker is still registered and unfenced and all of `sharing` are up.
    async fn unregister(&self, broker: BrokerId, sharing: &BTreeSet<BrokerId>) -> Unregistered;
    /// Gives `broker` the partitions back that it prefers to lead and is in sync for, in batches.
    async fn elect_preferred(&self, broker: BrokerId) -> Result<Note, StepError>;
}

/// Why the ledger did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Somebody else won the epoch.
    #[error("epoch {epoch} of broker {broker} is taken by {by}")]
    Taken {
        /// The broker.
        broker: BrokerId,
        /// The epoch that was to be claimed.
        epoch: Epoch,
        /// The host that has it.
        by: HostName,
    },
    /// A newer epoch exists: the writer is stale.
    #[error("epoch {ours} of broker {broker} is superseded by epoch {theirs}")]
    Superseded {
        /// The broker.
        broker: BrokerId,
        /// The writer's epoch.
        ours: Epoch,
        /// The newest one.
        theirs: Epoch,
    },
    /// A record cannot be what was written. Nothing is guessed; a person looks at the file.
    #[error("{place} is damaged: {why}")]
    Damaged {
        /// Where, as a path and line or a key.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// A ledger answers, and this agent must not use it.
    #[error("{why}")]
    Distrusted {
        /// The kind.
        distrust: Distrust,
        /// What was expected, what was found where, and what to do.
        why: String,
    },
    /// The ledger cannot be reached, or did not confirm in time.
    #[error("the ledger could not {action}")]
    Unavailable {
        /// What was attempted.
        action: String,
        /// The cause.
        source: BoxError,
    },
}

impl LedgerError {
    /// What a claim or an append for `broker` comes to that the rules refuse.
    #[must_use]
    pub fn refused(broker: BrokerId, refused: Refused) -> Self {
        let action = match &refused {
            Refused::Taken { epoch, by } => return Self::Taken { broker, epoch: *epoch, by: by.clone() },
            Refused::Superseded { ours, theirs } => {
                return Self::Superseded { broker, ours: *ours, theirs: *theirs };
            }
            Refused::NotDue { epoch, .. } => format!("claim epoch {epoch} of broker {broker}"),
            Refused::NeverClaimed { epoch } | Refused::Ended { epoch } => {
                format!("add to epoch {epoch} of broker {broker}")
            }
        };
        Self::Unavailable { action, source: refused.into() }
    }
}

/// The shared, durable record of owners, epochs and what was done.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// The driver's name.
    fn name(&self) -> &'static str;
    /// Returns once everything that anybody was told is written before this call is in what this ledger reads
    /// after it. Reading alone promises less: a member of a quorum that was cut off or frozen may believe for
    /// a while that it still leads, and tell an old state. Decisions may do with that, because the claim
    /// finds out. Whoever acts on what was read alone (`guard`, `rejoin`, a host that hands over) asks for
    /// this first.
    async fn sync(&self) -> Result<(), LedgerError>;
    /// The newest epoch of a broker with its journal; `None` before the first takeover.
    async fn latest(&self, broker: BrokerId) -> Result<Option<EpochJournal>, LedgerError>;
    /// The number of the newest epoch of each of `brokers`, 0 for one that has none, asked of the ledger
    /// itself and as sure as [`Self::latest`]. An epoch that has ended is not written again, so whoever knows
    /// that need not read its journal for as long as its number is the newest. A broker that is not among the
    /// answers has to be read: the ledger tells no number without reading all, or what it holds of that broker
    /// is not in order.
    async fn newest_epochs(
        &self,
        _brokers: &BTreeSet<BrokerId>,
    ) -> Result<BTreeMap<BrokerId, Epoch>, LedgerError> {
        Ok(BTreeMap::new())
    }
    /// Every epoch of a broker, oldest first.
    async fn all(&self, broker: BrokerId) -> Result<Vec<EpochJournal>, LedgerError>;
    /// Wins `claim.plan.epoch`, by compare-and-set on the newest epoch, or says who has it. The claim becomes
    /// the first record of the epoch's journal, in one piece with the winning. An epoch that is open may only
    /// be followed as [`may_claim`](crate::journal::may_claim) says.
    async fn claim(&self, claim: &Claim) -> Result<Record, LedgerError>;
    /// Adds entries to an epoch's journal, durably and in order, as [`may_append`](crate::journal::may_append)
    /// says.
    async fn append(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        at: Timestamp,
        by: &HostName,
        entries: &[Entry],
    ) -> Result<Vec<Record>, LedgerError>;
    /// Keeps a decision (a hold above all) with its evidence, apart from the takeovers.
    async fn remember(&self, broker: BrokerId, event: &Event) -> Result<(), LedgerError>;
    /// The decisions kept, oldest first.
    async fn remembered(&self, broker: BrokerId) -> Result<Vec<Event>, LedgerError>;
    /// Adds to the order book, durably.
    async fn order(&self, order: &Order) -> Result<(), LedgerError>;
    /// The order book, oldest first.
    async fn orders(&self) -> Result<Orders, LedgerError>;
    /// What a cell holds; `None` if nothing was ever written to it.
    async fn cell(&self, name: &str) -> Result<Option<Cell>, LedgerError>;
    /// Writes a cell, durably, if its newest version is the one before `cell.version`. Returns what the cell
    /// holds then: `cell`, or what somebody else wrote first.
    async fn set_cell(&self, name: &str, cell: &Cell) -> Result<Cell, LedgerError>;
    /// Whether the ledger can be read and written, for `check`.
    async fn check(&self) -> Result<Note, LedgerError>;
}

/// Time. The core gets it as data; only `execute`, `cycle` and the drivers ask for it.
#[async_trait]
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Now;
    /// Returns after `duration`.
    async fn sleep(&self, duration: Duration);
}

/// Where events go: log, metrics, stream. Never fails and never blocks.
pub trait EventSink: Send + Sync {
    /// Takes one event.
    fn emit(&self, event: &Event);

    /// A decision about every broker was made anew, which took this long: a measure, and no event.
    fn ticked(&self, _took: Duration) {}
}

/// One takeover of a broker at a time on this host, whatever the number of processes.
pub trait HostLock: Send + Sync {
    /// Takes the lock until the guard is dropped (or the process ends), or says who has it.
    fn try_lock(&self, broker: BrokerId) -> Result<Box<dyn Send>, StepError>;
}

/// Everything that execution may touch.
#[derive(Clone)]
pub struct Ports {
    /// One ladder of fences for every host that can be fenced.
    pub fences: BTreeMap<HostName, Arc<dyn Fence>>,
    /// The storage of every guarded broker.
    pub storage: BTreeMap<BrokerId, Arc<dyn Storage>>,
    /// The address of every guarded broker whose address moves.
    pub addresses: BTreeMap<BrokerId, Arc<dyn Address>>,
    /// Runs brokers on this host.
    pub broker_host: Arc<dyn BrokerHost>,
    /// The cluster.
    pub cluster: Arc<dyn Cluster>,
    /// The ledger.
    pub ledger: Arc<dyn Ledger>,
    /// One takeover at a time on this host.
    pub host_lock: Arc<dyn HostLock>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where events go.
    pub events: Arc<dyn EventSink>,
}
