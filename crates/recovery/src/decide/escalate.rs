//! Why a person is needed.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::{Epoch, HostName};

/// Why a person is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum EscalateReason {
    /// The last takeover ended neither forward nor back.
    Stuck {
        /// Its epoch.
        epoch: Epoch,
        /// The step.
        at: String,
        /// What is missing.
        why: String,
    },
    /// Every standby has tried and could not.
    AbandonedByAll {
        /// Those that tried.
        hosts: BTreeSet<HostName>,
        /// The newest epoch.
        epoch: Epoch,
        /// How it ended.
        why: String,
        /// The first of them that failed, where that is another one: with its epoch, its host and why.
        #[serde(default)]
        first: Option<String>,
    },
    /// The broker is owned by this host, and starting it again here is no way out.
    DownHere {
        /// What is wrong with it.
        symptom: String,
    },
    /// The broker runs on this host and serves, and the controller has no registration of it.
    Unregistered {
        /// Why it is not started again by itself.
        why: String,
    },
}

impl EscalateReason {
    /// The label in metrics, and the section of the runbook.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Stuck { .. } => "stuck",
            Self::AbandonedByAll { .. } => "abandoned_by_all",
            Self::DownHere { .. } => "down_here",
            Self::Unregistered { .. } => "unregistered",
        }
    }
}

impl fmt::Display for EscalateReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stuck { epoch, at, why } => {
                write!(f, "takeover epoch {epoch} is stuck at {at}: {why}; then run `understudy ack`")
            }
            Self::AbandonedByAll { hosts, epoch, why, first } => {
                let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
                let first = first.as_ref().map(|first| format!("first in {first}; ")).unwrap_or_default();
                write!(
                    f,
                    "no standby is left: {} tried ({first}last in epoch {epoch}: {why}); repair one, then run \
                     `understudy ack`",
                    hosts.join(", ")
                )
            }
            Self::DownHere { symptom } => write!(f, "the broker is owned by this host and {symptom}"),
            Self::Unregistered { why } => write!(
                f,
                "the broker serves without a registration, so that no partition can have it in sync, and only `kill -9` and a \
                 start heal that: {why}"
            ),
        }
    }
}
