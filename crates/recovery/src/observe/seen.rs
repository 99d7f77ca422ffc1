//! What is known at one moment: the observation that decisions are made from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::Outage;
use crate::departure::LastWell;
use crate::model::{
    Broker, BrokerId, Check, CheckSeen, Distrust, Epoch, EpochState, HostName, LedgerStanding, LocalProcess,
    LogTail, MachineState, Moment, Now, Orders, PartitionView, PeerView, Place, ProbeOutcome, Unread,
    VolumeUse,
};

/// What is known of one broker at one moment. `None` always means: nothing fresh is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// The freshest probe.
    pub probe: Option<ProbeSeen>,
    /// Whether a surviving broker lists it.
    pub listed: Option<bool>,
    /// For how long the active controller has heard nothing of it.
    pub controller_silence: Option<Duration>,
    /// Its process on this host was seen to run and then to have ended by itself, and looks begun since show
    /// that it is still in the broker list, as a clean stop would not leave it, and that the controller has
    /// heard nothing of it since but what its last fetch explains: no other process of it lives.
    pub crashed: bool,
    /// This agent saw it stop cleanly: looks without a hole between them saw it answer and be listed, and
    /// then off the broker list by the time it stopped answering. A broker that dies stays listed until its
    /// session expires.
    pub left_first: bool,
    /// Another agent that saw so.
    pub stop_told: Option<HostName>,
    /// It does not answer, and this agent has never seen it in the broker list: it went before this agent
    /// watched.
    pub never_listed: bool,
    /// The newest epoch after whose end this agent saw it answer and be listed.
    pub well_in: Option<Epoch>,
    /// When anybody last saw it well.
    pub last_well: Option<LastWell>,
    /// For how long the journal of its newest epoch has not grown, as far as it was read.
    pub claim_quiet: Option<Duration>,
    /// Its process on this host, and for how long it has been so.
    pub local: Option<(LocalProcess, Duration)>,
    /// Whether its address is on this host.
    pub address_here: Option<bool>,
    /// For how long other brokers have said, without a break, that it has no registration at all. `None` also
    /// where nobody tells that from one that is fenced.
    pub unregistered: Option<Duration>,
    /// Whether its storage can be written to, from here and from wherever an agent says.
    pub storage: Option<StorageSeen>,
    /// How long ago its storage was last seen to stall from here; `None` if it never was.
    pub since_stall: Option<Duration>,
    /// The present outage, or the last one in which it was away, and not this host cut off.
    pub outage: Option<Outage>,
    /// How its volumes are used, as the storage counts: no witness, for it may be told late.
    pub volumes: Option<VolumeUse>,
    /// What its next start would read through, as it said last: no witness.
    pub logs: Option<LogTail>,
    /// What is said of it besides, for people: no witness.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// Who could write to a broker's storage lately, and to whom a write did not come back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StorageSeen {
    /// Whether this host's canary came back; `None` without one.
    pub here: Option<bool>,
    /// Peers whose canary did not come back.
    pub stalled_at: BTreeSet<HostName>,
}

/// The freshest probe of a broker, and since when it has come out the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProbeSeen {
    /// What came of it.
    pub outcome: ProbeOutcome,
    /// For how long it has come out the same.
    pub lasting: Duration,
    /// For how long the broker has not answered, in whatever way.
    pub not_answering: Option<Duration>,
    /// The last time it answered.
    pub last_answer: Option<Moment>,
    /// The begin of the present run of failures.
    pub failing_since: Option<Moment>,
}

/// What the platform said of a host's machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineSeen {
    /// Its words.
    pub state: MachineState,
    /// How long ago it was asked.
    pub age: Duration,
}

impl MachineSeen {
    /// Whether it was off at some moment of the last `silence`: one that was off before may have been started since.
    #[must_use]
    pub fn off_within(&self, silence: Duration) -> bool {
        matches!(self.state, MachineState::Off { .. }) && self.age <= silence
    }
}

/// Everything known at one moment.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The moment.
    pub now: Now,
    /// Every broker that is configured or was ever listed.
    pub brokers: BTreeMap<BrokerId, Seen>,
    /// The ledger, if it was read lately.
    pub ledger: Option<LedgerSeen>,
    /// Why the ledger that answers is not used, and its words; `None` where it is, or none answers.
    pub distrusted: Option<(Distrust, String)>,
    /// Replicas and ISR, however old: they change little while nothing happens.
    pub partitions: Option<Arc<PartitionView>>,
    /// Whether a fresh broker list is at hand.
    pub metadata_fresh: bool,
    /// Whether the active controller answered lately.
    pub quorum_fresh: bool,
    /// What other agents said lately.
    pub peers: BTreeMap<HostName, PeerView>,
    /// Signals that cannot see, with the reason. One look that fails is no blindness while the last one that
    /// saw is fresh.
    pub blind: BTreeMap<&'static str, String>,
    /// What the platform under hosts says of their machines. One that is off is a witness of its host's death.
    pub machines: BTreeMap<HostName, MachineSeen>,
    /// Where hosts are that are not bound to one machine. One of them that is not there was not seen lately.
    pub places: BTreeMap<HostName, Place>,
    /// What the checks of this host found. One that is not there was not made lately: nothing is known.
    pub checks: BTreeMap<Check, CheckSeen>,
    /// Brokers that this agent is at work on: what it claims is in the ledger from its next reading on.
    pub working: BTreeSet<BrokerId>,
}

/// The ledger as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerSeen {
    /// When the reading began.
    pub at: Moment,
    /// The guarded brokers.
    pub brokers: BTreeMap<BrokerId, LedgerStanding>,
    /// Brokers whose journals cannot be read, with the reason.
    pub unread: BTreeMap<BrokerId, Unread>,
    /// Every host that may run one of the other brokers which the cluster lists, where the ledger knows.
    pub others: BTreeMap<BrokerId, BTreeSet<HostName>>,
    /// The order book.
    pub orders: Arc<Orders>,
}

impl Observation {
    /// Where a broker stands in the ledger, if it was read lately.
    #[must_use]
    pub fn standing(&self, broker: BrokerId) -> Option<&LedgerStanding> {
        self.ledger.as_ref()?.brokers.get(&broker)
    }

    /// The checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        let failed = self.checks.iter().filter(|(_, seen)| seen.found.failed());
        failed.map(|(check, _)| check)
    }

    /// Whether a takeover of `broker` by the host `here` needs what `check` looks at.
    #[must_use]
    pub fn concerns(&self, check: &Check, broker: &Broker, here: &HostName) -> bool {
        match check {
            // A takeover fences everybody else who may write.
            Check::Fence(host) if host == here => false,
            Check::Fence(host) => match self.standing(broker.id) {
                Some(standing) => standing.writers.contains(host),
                None => broker.home == *host,
            },
            // It goes without them.
            Check::Controller(_)
            | Check::Peer(_)
            | Check::Access
            | Check::ClassData
            | Check::ListenerCertificate(_) => false,
            check => check.broker().is_none_or(|about| about == broker.id),
        }
    }

    /// Whether the broker answered its last probe, which is fresh, and no other witness speaks against it.
    #[must_use]
    pub fn is_well(&self, broker: BrokerId) -> bool {
        self.brokers.get(&broker).is_some_and(|seen| seen.answers() && seen.listed != Some(false))
    }

    /// The brokers that freshly do not answer, whatever the kind.
    pub fn down(&self) -> impl Iterator<Item = BrokerId> {
        self.brokers.iter().filter(|(_, s)| s.probe.is_some() && !s.answers()).map(|(id, _)| *id)
    }

    /// How many of the brokers other than `broker` answer, and how many there are.
    #[must_use]
    pub fn others_answering(&self, broker: BrokerId) -> (usize, usize) {
        let others = self.brokers.iter().filter(|(id, _)| **id != broker);
        others.fold((0, 0), |(up, all), (_, seen)| (up + usize::from(seen.answers()), all + 1))
    }
}

impl Observation {
    /// The guarded brokers that this host, `here`, owns, or is about to own.
    #[must_use]
    pub fn carried(&self, here: &HostName) -> BTreeSet<BrokerId> {
        let ledger = self.ledger.iter().flat_map(|ledger| &ledger.brokers);
        let claims = |s: &LedgerStanding| matches!(&s.state, Some(EpochState::Open { by, .. }) if by == here);
        let carried = ledger.filter(|(_, standing)| standing.owner == *here || claims(standing));
        carried.map(|(id, _)| *id).chain(self.working.iter().copied()).collect()
    }
}

impl Seen {
    /// Whether the freshest probe was answered.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.probe.as_ref().is_some_and(|p| p.outcome == ProbeOutcome::Answered)
    }

    /// For how long it has not answered us.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.probe.as_ref().and_then(|probe| probe.not_answering).unwrap_or_default()
    }

    /// Whether only this host cannot reach it: every look of this outage found it unreachable, and the active
    /// controller, asked a moment ago, had heard it within `silent_for`, and well after the first of them.
    #[must_use]
    pub fn out_of_reach(&self, silent_for: Duration) -> bool {
        let unreachable =
            |p: &ProbeSeen| p.outcome == ProbeOutcome::Unreachable && p.not_answering == Some(p.lasting);
        let heard = self.outage.is_some_and(|out| out.until.is_none() && out.heard.is_some());
        let lives = self.controller_silence.is_some_and(|silence| silence < silent_for);
        heard && lives && self.probe.as_ref().is_some_and(unreachable)
    }
}
