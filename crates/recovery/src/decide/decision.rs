//! What can be decided about a broker, and every reason not to act. Plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::escalate::EscalateReason;
use super::hold::HoldReason;
use crate::model::{BrokerId, Cause, Epoch, HostName, Machine, Succession};

/// What to do about one broker now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum Decision {
    /// It answers.
    Healthy,
    /// Something is wrong, and not for long enough to act.
    Suspect {
        /// What is wrong, and until when we wait.
        clue: String,
    },
    /// It looks dead, and we do not act.
    Hold {
        /// Why not. Never empty.
        reasons: Vec<HoldReason>,
    },
    /// Take it over.
    TakeOver(Takeover),
    /// Its process is gone from this host, which owns it: start it again here.
    RestartInPlace(Takeover),
    /// A person asked for the broker to move here, and it is well.
    SwitchOver(Takeover),
    /// Another host takes the broker over from this one, as planned: stop and release it here.
    HandOver {
        /// The epoch of the switchover.
        epoch: Epoch,
        /// The host that takes it.
        to: HostName,
    },
    /// This host is fenced and another one has the broker, or is about to: end what is left of it here, and
    /// give its address up.
    StandDown {
        /// The epoch that proved that this host cannot write.
        epoch: Epoch,
    },
    /// Carry on with the takeover that this host has begun.
    Resume {
        /// Its epoch.
        epoch: Epoch,
    },
    /// Give up the claim of this host: nothing was touched yet and the broker lives.
    Withdraw {
        /// Its epoch.
        epoch: Epoch,
    },
    /// A person is needed.
    Escalate {
        /// Why. Never empty.
        reasons: Vec<EscalateReason>,
    },
}

/// A takeover that was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Takeover {
    /// The broker.
    pub broker: BrokerId,
    /// Its present owner, by the ledger.
    pub from: HostName,
    /// The host that takes over.
    pub to: HostName,
    /// The newest epoch; the claim must win the next one.
    pub epoch: Epoch,
    /// Who or what asks for it.
    pub cause: Cause,
    /// The open epoch of a silent claimant that it takes over from.
    pub succeeds: Option<Succession>,
    /// Every host that may be writing to the log dirs.
    pub writers: BTreeSet<HostName>,
    /// The machines of those that are fenced with the machine that they are on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub machines: BTreeMap<HostName, Machine>,
    /// When the fault happened: the last time the broker was seen well.
    pub fault_at: Timestamp,
    /// The evidence, as sentences.
    pub because: Vec<String>,
    /// Its process runs on the host that takes over, without a registration: it is killed first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unregistered: bool,
}

impl Decision {
    /// Every label that there is.
    pub const LABELS: [&'static str; 11] = [
        "healthy",
        "suspect",
        "hold",
        "take_over",
        "restart_in_place",
        "switch_over",
        "hand_over",
        "stand_down",
        "resume",
        "withdraw",
        "escalate",
    ];

    /// The metric label: always one of [`Decision::LABELS`].
    #[must_use]
    pub fn label(&self) -> &'static str {
        let index = match self {
            Self::Healthy => 0,
            Self::Suspect { .. } => 1,
            Self::Hold { .. } => 2,
            Self::TakeOver(_) => 3,
            Self::RestartInPlace(_) => 4,
            Self::SwitchOver(_) => 5,
            Self::HandOver { .. } => 6,
            Self::StandDown { .. } => 7,
            Self::Resume { .. } => 8,
            Self::Withdraw { .. } => 9,
            Self::Escalate { .. } => 10,
        };
        Self::LABELS[index]
    }

    /// Whether somebody should be told at once.
    #[must_use]
    pub fn pages(&self) -> bool {
        match self {
            Self::Escalate { .. } => true,
            Self::Hold { reasons } => reasons.iter().any(HoldReason::pages),
            _ => false,
        }
    }

    /// Whether two decisions are the same but for numbers that move by themselves.
    #[must_use]
    pub fn same_kind(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Hold { reasons: a }, Self::Hold { reasons: b }) => {
                a.iter().map(HoldReason::label).eq(b.iter().map(HoldReason::label))
            }
            (Self::Escalate { reasons: a }, Self::Escalate { reasons: b }) => a == b,
            _ => self.label() == other.label(),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Healthy => write!(f, "healthy"),
            Self::Suspect { clue } => write!(f, "suspect: {clue}"),
            Self::Hold { reasons } => write!(f, "hold: {}", join(reasons)),
            Self::TakeOver(t) => write!(f, "take over from {} to {}", t.from, t.to),
            Self::RestartInPlace(t) => write!(f, "restart it on {}", t.to),
            Self::SwitchOver(t) => write!(f, "switch over from {} to {}", t.from, t.to),
            Self::HandOver { epoch, to } => write!(f, "hand it over to {to} (epoch {epoch})"),
            Self::StandDown { epoch } => {
                write!(f, "end it here and give its address up: this host was fenced in epoch {epoch}")
            }
            Self::Resume { epoch } => write!(f, "resume the takeover of epoch {epoch}"),
            Self::Withdraw { epoch } => write!(f, "withdraw the claim of epoch {epoch}"),
            Self::Escalate { reasons } => write!(f, "needs a person: {}", join(reasons)),
        }
    }
}

fn join<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}
