//! Exit codes: what a script learns without reading the text.

use std::process::ExitCode;

use recovery::model::Outcome;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// Done, or nothing to report.
    Done = 0,
    /// It was tried and failed.
    Failed = 1,
    /// Wrong usage or configuration: nothing was tried.
    Usage = 2,
    /// The policy, or an objection, holds it back.
    Held = 3,
    /// Stuck: needs a person.
    Stuck = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<&Outcome> for Exit {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Recovered { .. } | Outcome::Withdrawn { .. } => Self::Done,
            Outcome::Abandoned { .. } => Self::Failed,
            Outcome::Stuck { .. } => Self::Stuck,
        }
    }
}
