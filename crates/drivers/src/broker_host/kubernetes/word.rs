//! What the sidecar and the entry point say to each other: one request and one reply a connection, each a line of
//! JSON.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::super::BrokerIdentity;
use recovery::model::{BrokerId, Epoch, HostName};
use recovery::ports::{BoxError, Note, ProcessState, StepError, chain};

/// Counts the changes of what is said. Both ends have the same program, unless somebody replaced one of them.
pub(super) const PROTOCOL: u32 = 1;

/// Longer than any request or reply, in bytes.
pub(super) const LONGEST: u64 = 1 << 20;

/// Where the entry point listens.
pub(super) fn socket(dir: &Path) -> PathBuf {
    dir.join("enter.sock")
}

/// Time since boot, which containers of one machine share, in nanoseconds. It counts while the machine sleeps.
pub(super) fn since_boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let part = |part: i64| u64::try_from(part).unwrap_or_default();
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// The moment `within` from now.
pub(super) fn due(within: Duration) -> u64 {
    since_boot().saturating_add(u64::try_from(within.as_nanos()).unwrap_or(u64::MAX))
}

/// What is first looked at of a request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) protocol: u32,
}

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) protocol: u32,
    /// The moment from which it counts no more.
    pub(super) until: u64,
    pub(super) setting: Setting,
    pub(super) act: Act,
}

/// What the sidecar is configured with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Setting {
    pub(super) here: HostName,
    pub(super) template: PathBuf,
    pub(super) timeout: Duration,
    pub(super) brokers: Vec<BrokerIdentity>,
    pub(super) at_once: usize,
}

/// What is asked for: the acts of the port, and their arguments.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case")]
pub(super) enum Act {
    Render {
        broker: BrokerId,
        epoch: Epoch,
    },
    Verify {
        broker: BrokerId,
        cluster_id: Option<String>,
    },
    Start {
        broker: BrokerId,
        epoch: Epoch,
        /// The proofs, in words: the sidecar has looked at them.
        proof: String,
    },
    State {
        broker: BrokerId,
    },
    BytesRead {
        pid: i32,
    },
    Stop {
        broker: BrokerId,
        limit: Duration,
    },
    Kill {
        broker: BrokerId,
        pid: i32,
        /// The life of the entry point in which this process was seen: another one counts from 1 again.
        life: String,
        limit: Duration,
    },
    EndFenced {
        broker: BrokerId,
        limit: Duration,
    },
    ProveStopped {
        broker: BrokerId,
        epoch: Epoch,
    },
    Check {
        broker: BrokerId,
    },
}

/// A reply.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    /// Names this life of the entry point.
    pub(super) life: String,
    pub(super) said: Result<Told, Failure>,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    Note(Note),
    State(ProcessState),
    Read(Option<u64>),
    Checks(Vec<Result<Note, Failure>>),
}

/// A [`StepError`], but for its driver: to the sidecar that is its own.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Failure {
    Refused { action: String, why: String },
    Failed { action: String, why: String },
    Unconfirmed { action: String, limit: Duration },
    Superseded { ours: Epoch, theirs: Epoch },
}

impl Failure {
    pub(super) fn refused(action: &str, why: impl Into<String>) -> Self {
        Self::Refused { action: action.to_owned(), why: why.into() }
    }

    pub(super) fn into_step(self, driver: &'static str) -> StepError {
        match self {
            Self::Refused { action, why } => StepError::Refused { driver, action, why },
            Self::Failed { action, why } => StepError::Failed { driver, action, source: BoxError::from(why) },
            Self::Unconfirmed { action, limit } => StepError::Unconfirmed { driver, action, limit },
            Self::Superseded { ours, theirs } => StepError::Superseded { ours, theirs },
        }
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Refused { action, why, .. } => Self::Refused { action, why: in_a_pod(&why) },
            StepError::Failed { action, source, .. } => {
                Self::Failed { action, why: in_a_pod(&chain(&*source)) }
            }
            StepError::Unconfirmed { action, limit, .. } => Self::Unconfirmed { action, limit },
            StepError::Superseded { ours, theirs } => Self::Superseded { ours, theirs },
        }
    }
}

/// The same advice for a pod, where Kafka's command and environment are the container's.
pub(super) fn in_a_pod(text: &str) -> String {
    text.replace("broker_host.command", "the command after `understudy enter … --`")
        .replace("[broker_host.environment]", "the container's `env`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_the_same_at_the_other_end_but_for_its_driver() {
        let errors = [
            StepError::Refused {
                driver: "process",
                action: "a".into(),
                why: "correct broker_host.command".into(),
            },
            StepError::Failed { driver: "process", action: "b".into(), source: BoxError::from("no space") },
            StepError::Unconfirmed { driver: "process", action: "c".into(), limit: Duration::from_secs(3) },
            StepError::Superseded { ours: Epoch(1), theirs: Epoch(2) },
        ];
        let told: Vec<String> = errors
            .map(|error| {
                let line = serde_json::to_string(&Failure::from(error)).unwrap();
                chain(&serde_json::from_str::<Failure>(&line).unwrap().into_step("kubernetes"))
            })
            .to_vec();
        assert_eq!(told[0], "kubernetes could not a: correct the command after `understudy enter … --`");
        assert_eq!(told[1], "kubernetes could not b: no space");
        assert_eq!(told[2], "kubernetes got no confirmation within 3s that it could c");
        assert_eq!(told[3], "epoch 1 is superseded by epoch 2");
    }

    #[test]
    fn a_moment_passes() {
        let before = since_boot();
        assert!(due(Duration::from_secs(1)) > before && due(Duration::ZERO) >= before);
        assert_eq!(due(Duration::MAX), u64::MAX);
    }
}
