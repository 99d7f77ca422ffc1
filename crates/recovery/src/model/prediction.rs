//! What a takeover is expected to take.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Phase, human};

/// What a takeover is expected to take, said before it begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// By phase, in order, up to the last partition back in ISR.
    pub parts: Vec<Part>,
    /// What the broker reads of its logs before it serves, as part of [`Phase::Rejoin`]; `None` if it never
    /// told.
    pub log_scan: Option<LogScan>,
    /// The same for a restart where the broker was, from the fault on; for people to compare.
    pub in_place: Part,
}

/// Reading what was not flushed when the broker died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogScan {
    /// How much.
    pub bytes: u64,
    /// How long that takes.
    pub takes: Duration,
}

/// One phase of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The phase.
    pub phase: Phase,
    /// How long it is expected to take.
    pub takes: Duration,
    /// What that rests on.
    pub basis: Basis,
}

/// What an expectation rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "basis", rename_all = "snake_case")]
pub enum Basis {
    /// It is over already, or has taken this long so far.
    SoFar,
    /// The median of what it took before.
    Median {
        /// How often.
        of: usize,
    },
    /// Nothing like it is in the ledger yet.
    Assumed,
}

impl Prediction {
    /// What is over of it already.
    #[must_use]
    pub fn so_far(&self) -> Duration {
        self.parts.iter().filter(|part| part.basis == Basis::SoFar).map(|part| part.takes).sum()
    }

    /// From the fault to the last partition back in ISR.
    #[must_use]
    pub fn time_to_isr(&self) -> Duration {
        self.parts.iter().map(|part| part.takes).sum()
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SoFar => f.write_str("so far"),
            Self::Median { of: 1 } => f.write_str("as the last time"),
            Self::Median { of } => write!(f, "median of the last {of}"),
            Self::Assumed => f.write_str("assumed, nothing like it is in the ledger"),
        }
    }
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", human(self.time_to_isr()))?;
        for (index, together) in self.parts.chunk_by(|a, b| a.basis == b.basis).enumerate() {
            let parts = together.iter().map(|part| format!("{} {}", part.phase, human(part.takes)));
            let parts = parts.collect::<Vec<_>>().join(", ");
            let between = if index == 0 { ": " } else { "; " };
            write!(f, "{between}{parts} ({})", together[0].basis)?;
        }
        if let Some(LogScan { bytes, takes }) = self.log_scan {
            write!(f, "; of it {} to read {} MB of logs", human(takes), bytes / 1_000_000)?;
        }
        Ok(())
    }
}
