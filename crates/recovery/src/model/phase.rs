//! The phases of a takeover.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The phases of a takeover, in order. Every phase has a duration in the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// From the fault to the claim.
    Detect,
    /// Winning the next epoch in the ledger.
    Claim,
    /// Making it impossible for the old owner to write.
    Fence,
    /// Reading back that it is.
    Prove,
    /// Storage and address on this host.
    Prepare,
    /// Is this really the broker we mean to start?
    Verify,
    /// Freeing the broker's registration and starting Kafka.
    Start,
    /// Until every partition is back in ISR.
    Rejoin,
    /// Preferred leaders back.
    Settle,
}

impl Phase {
    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Detect => "detect",
            Self::Claim => "claim",
            Self::Fence => "fence",
            Self::Prove => "prove",
            Self::Prepare => "prepare",
            Self::Verify => "verify",
            Self::Start => "start",
            Self::Rejoin => "rejoin",
            Self::Settle => "settle",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}
