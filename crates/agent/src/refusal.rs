//! Why a command did not do what it was asked to: typed, and each with its section in the runbook.

use std::fmt;

use recovery::model::Distrust;
use serde::{Deserialize, Serialize};

/// The page with a section for each of them, under its label.
pub const RUNBOOK: &str = "docs/runbooks/planned-work.md";

/// What stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// A takeover of the broker is under way.
    EpochOpen,
    /// The broker is paused.
    Paused,
    /// The host owns the broker already.
    OwnsAlready,
    /// Another host than the owner may be writing to the log dirs.
    OtherWriter,
    /// Nobody took the order up before it expired.
    NotTakenUp,
    /// Another claim came before the switchover: the order is void.
    OrderVoid,
    /// The broker belongs to another host.
    NotOwner,
    /// This host was fenced, and nobody has lifted that.
    FencedHere,
    /// The ledger cannot be read.
    LedgerUnreadable,
    /// Where the ledger must be there is none.
    LedgerUnknown,
    /// There is another ledger than the one that this host knows.
    LedgerForeign,
    /// Another machine has this host's name in the ledger.
    NameTaken,
    /// Another host is registered as the home of the broker.
    WrongHome,
    /// A newer understudy has written something to the ledger that this one cannot read.
    LedgerNewer,
    /// The ledger has an older epoch than this host has seen.
    LedgerWentBack,
    /// An unfinished takeover of this host may still be writing.
    StillWriter,
    /// Kafka of a broker that is not this host's runs here.
    KafkaRuns,
    /// The address of a broker that is not this host's is here.
    AddressHere,
    /// This host could not take a broker over.
    NotReady,
    /// The fence of this host could not be lifted.
    FenceStays,
    /// A changed key is in force from the start of the agent on.
    NeedsRestart,
}

impl Refusal {
    /// Every one.
    pub const ALL: [Self; 21] = [
        Self::EpochOpen,
        Self::Paused,
        Self::OwnsAlready,
        Self::OtherWriter,
        Self::NotTakenUp,
        Self::OrderVoid,
        Self::NotOwner,
        Self::FencedHere,
        Self::LedgerUnreadable,
        Self::LedgerUnknown,
        Self::LedgerForeign,
        Self::NameTaken,
        Self::WrongHome,
        Self::LedgerNewer,
        Self::LedgerWentBack,
        Self::StillWriter,
        Self::KafkaRuns,
        Self::AddressHere,
        Self::NotReady,
        Self::FenceStays,
        Self::NeedsRestart,
    ];

    /// The heading of its section in the runbook.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::EpochOpen => "epoch_open",
            Self::Paused => "paused",
            Self::OwnsAlready => "owns_already",
            Self::OtherWriter => "other_writer",
            Self::NotTakenUp => "not_taken_up",
            Self::OrderVoid => "order_void",
            Self::NotOwner => "not_owner",
            Self::FencedHere => "fenced_here",
            Self::LedgerUnreadable => "ledger_unreadable",
            Self::LedgerUnknown => Distrust::LedgerUnknown.label(),
            Self::LedgerForeign => Distrust::LedgerForeign.label(),
            Self::NameTaken => Distrust::NameTaken.label(),
            Self::WrongHome => Distrust::WrongHome.label(),
            Self::LedgerNewer => Distrust::LedgerNewer.label(),
            Self::LedgerWentBack => Distrust::LedgerWentBack.label(),
            Self::StillWriter => "still_writer",
            Self::KafkaRuns => "kafka_runs",
            Self::AddressHere => "address_here",
            Self::NotReady => "not_ready",
            Self::FenceStays => "fence_stays",
            Self::NeedsRestart => "needs_restart",
        }
    }

    /// With the facts of the case: what is wrong, and what to do.
    pub(crate) fn because(self, why: impl Into<String>) -> Refused {
        Refused { refused: self, why: why.into(), runbook: format!("{RUNBOOK}#{}", self.label()) }
    }
}

impl From<Distrust> for Refusal {
    fn from(distrust: Distrust) -> Self {
        match distrust {
            Distrust::LedgerUnknown => Self::LedgerUnknown,
            Distrust::LedgerForeign => Self::LedgerForeign,
            Distrust::NameTaken => Self::NameTaken,
            Distrust::WrongHome => Self::WrongHome,
            Distrust::LedgerNewer => Self::LedgerNewer,
            Distrust::LedgerWentBack => Self::LedgerWentBack,
        }
    }
}

/// A refusal, with the facts of the case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    /// What stands in the way.
    pub(crate) refused: Refusal,
    /// What is wrong, and what to do.
    pub(crate) why: String,
    /// Where to read on.
    pub(crate) runbook: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nsee: {}", self.why, self.runbook)
    }
}

impl std::error::Error for Refused {}
