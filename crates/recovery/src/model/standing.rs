//! Where a broker stands in the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Acked, Epoch, HostName, Orders, Phase, human};

/// The detail of a note by which a step says that it put something here that was not here before. What was
/// here already is not taken away when the broker cannot be started again where it was.
pub const PLACED: &str = "placed";

/// The step that fails where packets do not come to the new owner: it has stopped its Kafka then.
pub const CONFIRM_ADDRESS: &str = "confirm_address";

/// The ledger's last word on one broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerStanding {
    /// The newest epoch; 0 before the first takeover.
    pub epoch: Epoch,
    /// The host that owns the broker.
    pub owner: HostName,
    /// What became of the newest epoch; `None` before the first takeover.
    pub state: Option<EpochState>,
    /// Every host that may write to the log dirs, the owner included: the claimant of an epoch that was never
    /// ended may yet act. A takeover fences them all.
    pub writers: BTreeSet<HostName>,
    /// Records in the newest epoch's journal. While it grows, its claimant lives.
    pub records: u64,
    /// The epochs so far, oldest first.
    pub attempts: Vec<Attempt>,
    /// Why the newest epoch's journal makes no sense, if it does not: nobody can carry it on.
    pub nonsense: Option<String>,
    /// The newest `UnregisterBroker` that was begun since the broker was last recovered. What is missing from
    /// the broker list since then is missing by our own hand.
    #[serde(default)]
    pub removed: Option<Removal>,
    /// The fault of the oldest takeover since the broker was last recovered.
    #[serde(default)]
    pub fault_at: Option<Timestamp>,
    /// Hosts that a takeover of this broker has fenced, each with the last time. A recovery there takes it
    /// out; whether it has rejoined since stands in the order book: [`Self::fenced_here`].
    #[serde(default)]
    pub fenced: BTreeMap<HostName, FencedIn>,
}

/// A registration that was, or may have been, removed by a takeover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Its epoch.
    pub epoch: Epoch,
    /// When the request was begun.
    pub at: Timestamp,
}

/// The last fence of a host for one broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FencedIn {
    /// The epoch that fenced it.
    pub epoch: Epoch,
    /// When the fence was confirmed.
    pub at: Timestamp,
    /// Whether that epoch has read back that the host cannot write.
    pub proven: bool,
}

impl LedgerStanding {
    /// A broker that was never taken over: its home owns it.
    #[must_use]
    pub fn untouched(home: HostName) -> Self {
        Self {
            epoch: Epoch::default(),
            writers: BTreeSet::from([home.clone()]),
            owner: home,
            state: None,
            records: 0,
            attempts: Vec::new(),
            nonsense: None,
            removed: None,
            fault_at: None,
            fenced: BTreeMap::new(),
        }
    }

    /// The fence of `host`, if neither a recovery there nor a rejoin shows that it is gone.
    #[must_use]
    pub fn fenced_here(&self, host: &HostName, orders: &Orders) -> Option<FencedIn> {
        let rejoined = orders.rejoined().get(host).copied();
        self.fenced.get(host).copied().filter(|fence| rejoined.is_none_or(|rejoined| rejoined <= fence.at))
    }

    /// The epoch by which `host` is out: it proved that the host cannot write, nobody has lifted that since,
    /// and another host owns the broker, or that very epoch is still under way. What is left of the broker
    /// there is only in the way.
    #[must_use]
    pub fn out(&self, host: &HostName, orders: &Orders) -> Option<Epoch> {
        let fence = self.fenced_here(host, orders).filter(|fence| fence.proven)?;
        let open_by = match &self.state {
            Some(EpochState::Open { by, .. }) => Some(by),
            _ => None,
        };
        let under_way = open_by.is_some() && fence.epoch == self.epoch;
        let out = open_by != Some(host) && (self.owner != *host || under_way);
        out.then_some(fence.epoch)
    }

    /// The newest epoch that recovered the broker.
    #[must_use]
    pub fn recovered_in(&self) -> Option<Epoch> {
        let mut ended = self.attempts.iter().rev();
        ended.find(|attempt| attempt.ended.as_deref() == Some("recovered")).map(|attempt| attempt.epoch)
    }

    /// The first attempt since the broker was last recovered, and not `acked`, that ended badly: what is
    /// wrong, which a later one by another host may hide.
    #[must_use]
    pub fn first_failure(&self, acked: Option<Acked>) -> Option<&Attempt> {
        let since =
            self.attempts.iter().rev().take_while(|attempt| attempt.ended.as_deref() != Some("recovered"));
        let fresh = since.filter(|attempt| !acked.is_some_and(|acked| acked.covers(attempt)));
        fresh.filter(|attempt| attempt.cause != Cause::Planned && attempt.why.is_some()).last()
    }

    /// The hosts that have tried and abandoned since the broker was last recovered, and not `acked`.
    #[must_use]
    pub fn gave_up(&self, acked: Option<Acked>) -> BTreeSet<&HostName> {
        let since =
            self.attempts.iter().rev().take_while(|attempt| attempt.ended.as_deref() != Some("recovered"));
        let fresh = since.filter(|attempt| !acked.is_some_and(|acked| acked.covers(attempt)));
        // A switchover that came to nothing says little about the host, and restarts in place have their own
        // count.
        let tried = fresh.filter(|attempt| attempt.cause != Cause::Planned && !attempt.in_place);
        tried
            .filter(|attempt| attempt.ended.as_deref() == Some("abandoned"))
            .map(|attempt| &attempt.by)
            .collect()
    }
}

/// Who or what asked for an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// An agent decided it.
    Automatic,
    /// A person ran `understudy failover`.
    Manual,
    /// A switchover: both hosts are well.
    Planned,
}

/// One epoch, as the budgets count it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The epoch.
    pub epoch: Epoch,
    /// When it was claimed.
    pub at: Timestamp,
    /// The host that claimed it.
    pub by: HostName,
    /// Who or what asked for it.
    pub cause: Cause,
    /// Whether the broker was restarted on the host that owned it.
    pub in_place: bool,
    /// The label of its outcome; `None` while it is open.
    pub ended: Option<String>,
    /// When that was written; `None` while it is open.
    #[serde(default)]
    pub ended_at: Option<Timestamp>,
    /// The step that it failed at and why, if it was abandoned or is stuck.
    #[serde(default)]
    pub why: Option<String>,
    /// Its time-to-ISR, if it recovered.
    pub time_to_isr: Option<Duration>,
    /// How long each phase took, if it recovered.
    #[serde(default)]
    pub phases: BTreeMap<Phase, Duration>,
}

impl Attempt {
    /// Whether it uses up the budgets: an automatic takeover after `since` that touched something. Restarts
    /// in place have a limit of their own, what people ask for has none, and `acked` clears what went before
    /// it.
    #[must_use]
    pub fn counts(&self, since: Timestamp, acked: Option<Acked>) -> bool {
        let automatic = self.cause == Cause::Automatic && !self.in_place;
        let untouched = self.ended.as_deref() == Some("withdrawn");
        automatic && !untouched && self.at > since && !acked.is_some_and(|acked| acked.covers(self))
    }
}

/// An open epoch, as a would-be successor saw it. The claim is refused if it has gone on since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Succession {
    /// The open epoch.
    pub epoch: Epoch,
    /// Records in its journal.
    pub records: u64,
}

/// What became of an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum EpochState {
    /// A takeover is under way.
    Open {
        /// The host that claimed it.
        by: HostName,
        /// Whether a step has begun, so that the world may have changed.
        touched: bool,
        /// Who or what asked for it.
        cause: Cause,
    },
    /// It ended.
    Ended {
        /// The host that claimed it.
        by: HostName,
        /// How.
        outcome: Outcome,
    },
}

/// How a takeover ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Every partition of the broker is back in ISR.
    Recovered {
        /// From the fault to the last partition back in ISR.
        time_to_isr: Duration,
        /// What was left undone without harm, such as preferred leaders not given back.
        remarks: Vec<String>,
    },
    /// Undone as far as is safe. Another host may try at the next epoch.
    Abandoned {
        /// The step that failed.
        at: String,
        /// Why, as an error chain.
        why: String,
        /// What stays in force on purpose, such as the fence.
        kept: Vec<String>,
    },
    /// Neither forward nor back: needs a person. Never retried by itself.
    Stuck {
        /// The step that failed.
        at: String,
        /// Why, as an error chain.
        why: String,
    },
    /// Given up before anything was touched, because the broker came back.
    Withdrawn {
        /// Why.
        why: String,
    },
}

impl Outcome {
    /// The step that failed and why, if one did.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        match self {
            Self::Abandoned { at, why, .. } | Self::Stuck { at, why } => Some(format!("{at}: {why}")),
            Self::Recovered { .. } | Self::Withdrawn { .. } => None,
        }
    }

    /// The metric label.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Recovered { .. } => "recovered",
            Self::Abandoned { .. } => "abandoned",
            Self::Stuck { .. } => "stuck",
            Self::Withdrawn { .. } => "withdrawn",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recovered { time_to_isr, remarks } => {
                write!(f, "recovered, time-to-ISR {}", human(*time_to_isr))?;
                remarks.iter().try_for_each(|r| write!(f, "; {r}"))
            }
            Self::Abandoned { at, why, kept } => {
                write!(f, "abandoned at {at}: {why}")?;
                kept.iter().try_for_each(|k| write!(f, "; kept: {k}"))
            }
            Self::Stuck { at, why } => write!(f, "stuck at {at}: {why}"),
            Self::Withdrawn { why } => write!(f, "withdrawn before anything was touched: {why}"),
        }
    }
}
