//! What goes wrong below the port, before it is known which act it spoils.

use std::io;
use std::time::Duration;

use secrets::Secrets;

use crate::off_path::OffPathError;
use recovery::model::Epoch;
use recovery::ports::StepError;

/// Why something did not work on this host.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    /// What was found is not what must be; says what to do about it.
    #[error("{0}")]
    Refused(String),
    /// A call to the operating system failed.
    #[error("{what}")]
    Io {
        /// What was attempted, on which path or process.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// It was begun, and its end was not seen in time.
    #[error("no confirmation within {limit:?}: {what}")]
    Unconfirmed {
        /// What is still missing.
        what: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// A newer epoch was here.
    #[error("epoch {theirs} is newer than {ours}")]
    Superseded {
        /// The epoch of the request.
        ours: Epoch,
        /// The newer one.
        theirs: Epoch,
    },
}

impl Problem {
    /// For `map_err` on calls to the operating system.
    pub(super) fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |error| Self::Io { what, source: error.into() }
    }

    /// The same without these secrets.
    pub(super) fn without(self, secrets: Secrets) -> Self {
        match self {
            Self::Refused(why) => Self::Refused(secrets.redact(&why)),
            Self::Io { what, source } => Self::Io { what: secrets.redact(&what), source },
            Self::Unconfirmed { what, limit } => Self::Unconfirmed { what: secrets.redact(&what), limit },
            superseded @ Self::Superseded { .. } => superseded,
        }
    }

    /// The error of the port, once the act is known.
    pub(super) fn into_step(self, driver: &'static str, action: &str) -> StepError {
        let action = action.to_owned();
        match self {
            Self::Refused(why) => StepError::Refused { driver, action, why },
            Self::Unconfirmed { what, limit } => {
                StepError::Unconfirmed { driver, action: format!("{action} ({what})"), limit }
            }
            Self::Superseded { ours, theirs } => StepError::Superseded { ours, theirs },
            Self::Io { .. } => StepError::Failed { driver, action, source: self.into() },
        }
    }
}

/// A call that never came back leaves the act unconfirmed; nobody knows what it did.
pub(super) fn off_path_error(driver: &'static str, error: OffPathError, action: &str) -> StepError {
    match error {
        OffPathError::Hung { what, limit } => {
            StepError::Unconfirmed { driver, action: format!("{action} ({what} hangs)"), limit }
        }
        other => StepError::Failed { driver, action: action.to_owned(), source: other.into() },
    }
}
