//! One fake World behind every port: stateful, with faults to switch on, and with the promises checked at
//! every act. Time is tokio's, so that a test with a paused clock runs in no time.

mod ledger;
mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use recovery::event::Event;
use recovery::journal::EpochJournal;
use recovery::model::{
    Broker, BrokerId, Epoch, Grace, HostName, Locks, Moment, Now, Orders, Standby, Topology,
};
use recovery::policy::{Mode, Policy};
use recovery::ports::{Clock, EventSink, HostLock, Ports, StepError};

/// The broker that every scenario is about.
pub const BROKER: BrokerId = BrokerId(1);
/// The session timeout of the simulated controller (Kafka's default).
const SESSION: Duration = Duration::from_secs(9);
/// From Kafka's start to its registration, in the simulation.
const BOOT: Duration = Duration::from_secs(2);
/// From the registration to the unfencing, and from there to the full ISR, in the simulation.
const CATCH_UP: Duration = Duration::from_secs(1);
/// Partitions with a replica on the broker.
const PARTITIONS: usize = 10;

/// A switch in the world: what goes wrong at a step, by the step's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A definite no.
    Refuse,
    /// Nobody knows.
    Unconfirmed,
    /// A newer epoch is in force.
    Supersede,
}

/// Where the agent "dies", counted in ledger writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// Right after the n-th write is durable.
    After(usize),
    /// Right before the n-th write would be.
    Before(usize),
}

/// What is really so.
#[derive(Debug, Default)]
pub struct Truth {
    /// When the old broker process died; `None` while it lives.
    pub died_at: Option<Moment>,
    /// When a Kafka process of the broker was started on the standby, and whether it runs.
    pub started_at: Option<Moment>,
    /// The epoch it was started for.
    pub started_epoch: Epoch,
    /// Kafka on the standby ended by itself.
    pub exited: bool,
    /// How many of the next starts end by themselves.
    pub starts_that_end: usize,
    /// Kafka on the standby hangs: it runs, and neither reads nor registers.
    pub hangs: bool,
    /// Bytes that Kafka on the standby reads in a second before it registers, and how many there are: its
    /// logs.
    pub loads: (u64, u64),
    /// So many partitions never join.
    pub cannot_join: usize,
    /// Bytes that the partitions out of ISR get nearer in a second.
    pub catches_up: u64,
    /// What the cluster advertises for the broker leads nowhere.
    pub advertises_elsewhere: bool,
    /// Until when the metadata quorum has no leader.
    pub no_quorum_until: Option<Moment>,
    /// Hosts that are powered off.
    pub fenced: BTreeSet<HostName>,
    /// Hosts that may be on another machine than their proofs are of.
    pub moved: BTreeSet<HostName>,
    /// Whether the standby has the address.
    pub address_here: bool,
    /// How long the storage keeps the dead owner's lock: its lease.
    pub lease: Duration,
    /// Why the storage may grant no lock for a while.
    pub grace: Option<Grace>,
    /// Somebody holds the lock for ever.
    pub lock_stays: bool,
    /// The storage was told to break the dead owner's lock.
    pub lock_broken: bool,
    /// Until when the old host answers for the address: it lives, and only its storage is denied.
    pub answers_arp_until: Option<Moment>,
    /// Whether the standby defends the address.
    pub defended: bool,
    /// Whether the standby has the storage.
    pub storage_here: bool,
    /// The new incarnation has lost its registration, and serves on.
    pub registration_lost: bool,
    /// How often Kafka was killed.
    pub kills: usize,
    /// When the registration was removed.
    pub unregistered_at: Option<Moment>,
    /// Whether the agent is cut off from the cluster.
    pub cut_off: bool,
    /// Whether the network between the agent and this broker alone is down.
    pub broker_unreachable: bool,
    /// Partitions of the broker that nobody else has a replica of.
    pub alone: usize,
    /// Other brokers that are dead.
    pub others_dead: BTreeSet<BrokerId>,
    /// Whether the ledger is down.
    pub ledger_down: bool,
    /// The ledger write, counted as in `writes`, that takes so long, and how long.
    pub slow_write: Option<(usize, Duration)>,
    /// How long writing the configuration takes.
    pub render_takes: Duration,
    /// Faults by step name.
    pub faults: BTreeMap<&'static str, Fault>,
    /// Where the agent dies.
    pub crash: Option<Crash>,
    /// Journals that were read from the ledger so far.
    pub journals_read: usize,
    /// Ledger writes so far.
    pub writes: usize,
    /// How often Kafka was started.
    pub starts: usize,
    /// How often `UnregisterBroker` was sent.
    pub unregister_sent: usize,
    /// Broken promises.
    pub violations: Vec<String>,
    /// Everything that was said.
    pub events: Vec<Event>,
    pub(crate) journals: BTreeMap<BrokerId, Vec<EpochJournal>>,
    /// What was kept in the ledger beside the journals, by broker.
    pub remembered: Vec<(BrokerId, Event)>,
    /// The order book.
    pub orders: Orders,
    /// The ledger's cells, by name.
    pub cells: BTreeMap<String, recovery::ports::Cell>,
    pub(crate) locked: BTreeSet<BrokerId>,
}

/// The handle: cheap to clone, all clones are the same world.
#[derive(Clone)]
pub struct World {
    truth: Arc<Mutex<Truth>>,
    begun: tokio::time::Instant,
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// A healthy cluster of three brokers, and a standby.
    #[must_use]
    pub fn new() -> Self {
        Self { truth: Arc::default(), begun: tokio::time::Instant::now() }
    }

    /// What is really so, to look at and to change.
    pub fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the broker's host.
    pub fn kill(&self) {
        let now = self.now().mono;
        self.truth().died_at.get_or_insert(now);
    }

    /// Every port, all onto this world.
    #[must_use]
    pub fn ports(&self) -> Ports {
        let world = Arc::new(self.clone());
        Ports {
            fences: BTreeMap::from([("kafka-1".into(), world.clone() as _)]),
            storage: BTreeMap::from([(BROKER, Arc::new(ports::FakeStorage(self.clone())) as _)]),
            addresses: BTreeMap::from([(BROKER, Arc::new(ports::FakeAddress(self.clone())) as _)]),
            broker_host: world.clone(),
            cluster: world.clone(),
            ledger: world.clone(),
            host_lock: world.clone(),
            clock: world.clone(),
            events: world,
        }
    }

    /// The standby's view of what is configured.
    #[must_use]
    pub fn topology() -> Topology {
        let broker = Broker {
            id: BROKER,
            home: "kafka-1".into(),
            listener: recovery::model::Endpoint { host: "10.0.0.1".to_owned(), port: 9092 },
            log_dirs: vec!["/mnt/kafka/broker1".into()],
            address: Some("10.0.0.1/24".to_owned()),
            followed_later: false,
            racks: Vec::new(),
            locks: Locks::default(),
            admission: Vec::new(),
        };
        Topology {
            here: "standby-1".into(),
            brokers: BTreeMap::from([(BROKER, broker)]),
            fences: BTreeMap::from([("kafka-1".into(), vec!["switch".to_owned()])]),
            machines: BTreeMap::new(),
            unlocked: BTreeSet::new(),
            outlive: BTreeSet::new(),
            wandering: BTreeSet::new(),
            reschedules: false,
            controllers_known: true,
            zookeeper: false,
            known: BTreeSet::from([BrokerId(1), BrokerId(2), BrokerId(3)]),
            standby: Standby::default(),
            peers: BTreeSet::new(),
        }
    }

    /// The defaults, in mode auto.
    #[must_use]
    pub fn policy() -> Policy {
        Policy { mode: Mode::Auto, ..Policy::default() }
    }

    pub(crate) fn fault(&self, step: &'static str) -> Result<(), StepError> {
        let action = format!("do {step}");
        match self.truth().faults.get(step) {
            None => Ok(()),
            Some(Fault::Refuse) => {
                Err(StepError::Refused { driver: "fake", action, why: "switched on by the test".to_owned() })
            }
            Some(Fault::Unconfirmed) => {
                Err(StepError::Unconfirmed { driver: "fake", action, limit: Duration::from_secs(1) })
            }
            Some(Fault::Supersede) => Err(StepError::Superseded { ours: Epoch(1), theirs: Epoch(2) }),
        }
    }
}

impl Truth {
    /// Whether the dead owner's lock is still held.
    pub fn locked(&self, now: Moment) -> bool {
        let ended = self.died_at.is_some_and(|at| now >= Moment(at.0 + self.lease));
        self.lock_stays || !(ended || self.lock_broken)
    }

    /// When the old registration went.
    fn gone_at(&self) -> Option<Moment> {
        let expired = self.died_at.map(|at| Moment(at.0 + SESSION));
        [self.unregistered_at, expired].into_iter().flatten().min()
    }

    /// When the new incarnation is registered, unfenced and everywhere in ISR.
    fn unfenced_at(&self) -> Option<Moment> {
        let started = self.started_at.filter(|_| !self.exited && !self.hangs)?;
        let (rate, bytes) = self.loads;
        let loads = Duration::from_secs(bytes / rate.max(1));
        let registered = (started.0 + BOOT + loads).max(self.gone_at()?.0);
        let registered = registered.max(self.no_quorum_until.unwrap_or_default().0);
        Some(Moment(registered + CATCH_UP))
    }

    pub(crate) fn standing(&self, now: Moment) -> recovery::ports::Standing {
        let gone = self.gone_at().is_some_and(|at| now >= at);
        let unfenced = self.unfenced_at().is_some_and(|at| now >= at);
        let caught_up = self.unfenced_at().is_some_and(|at| now.0 >= at.0 + CATCH_UP);
        let lost = self.registration_lost;
        let in_isr = match (gone, unfenced, caught_up) {
            _ if lost => 0,
            (_, _, true) => PARTITIONS - self.cannot_join,
            (false, ..) => PARTITIONS,
            (true, true, false) => PARTITIONS / 2,
            (true, false, _) => 0,
        };
        recovery::ports::Standing {
            listed: !lost && (!gone || unfenced),
            replicas: PARTITIONS,
            in_isr,
            leads: 0,
            alone: self.alone,
            answers: self.answers(now),
            advertised: Some(recovery::ports::Advertised {
                at: recovery::model::Endpoint { host: "10.0.0.1".to_owned(), port: 9092 },
                fails: self.advertises_elsewhere.then(|| "nobody answers there".to_owned()),
                reached_by: BTreeSet::from([HostName::from("kafka-3")]),
            }),
            via: BrokerId(2),
        }
    }

    /// Whether its listener answers.
    #[must_use]
    pub fn answers(&self, now: Moment) -> bool {
        self.died_at.is_none() || self.unfenced_at().is_some_and(|at| now >= at)
    }
}

impl HostLock for World {
    fn try_lock(&self, broker: BrokerId) -> Result<Box<dyn Send>, StepError> {
        if !self.truth().locked.insert(broker) {
            let (action, why) = ("lock".to_owned(), "locked already".to_owned());
            return Err(StepError::Refused { driver: "fake", action, why });
        }
        Ok(Box::new(Unlock(self.clone(), broker)))
    }
}

struct Unlock(World, BrokerId);

impl Drop for Unlock {
    fn drop(&mut self) {
        self.0.truth().locked.remove(&self.1);
    }
}

#[async_trait]
impl Clock for World {
    fn now(&self) -> Now {
        let mono = self.begun.elapsed();
        let wall = Timestamp::UNIX_EPOCH.checked_add(mono).unwrap_or(Timestamp::MAX);
        Now { mono: Moment(mono), wall }
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

impl EventSink for World {
    fn emit(&self, event: &Event) {
        self.truth().events.push(event.clone());
    }
}
