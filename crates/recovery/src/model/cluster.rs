//! What the cluster tells of a broker.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{BrokerId, Endpoint, HostName};

/// What came of `UnregisterBroker`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "unregistered", rename_all = "snake_case")]
pub enum Unregistered {
    /// The controller removed the registration, or there was none: the broker is gone from the cluster.
    Gone,
    /// Not sent, because a condition of the rule no longer held.
    NotSent {
        /// The condition.
        why: String,
    },
    /// The controller gave a definite no.
    Refused {
        /// Its error code and message.
        why: String,
    },
    /// Sent, and no answer came: never sent again.
    NoAnswer {
        /// What happened.
        why: String,
    },
}

/// One look at a broker through a surviving one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Whether the surviving broker lists it (registered and not fenced).
    pub listed: bool,
    /// Partitions that should have a replica on it.
    pub replicas: usize,
    /// Those of them that have it in ISR.
    pub in_isr: usize,
    /// Those of them that it leads.
    pub leads: usize,
    /// Those of them of which nobody else has a replica.
    pub alone: usize,
    /// Whether its own listener answers `ApiVersions`.
    pub answers: bool,
    /// Where the cluster sends clients to it. Looked at only once it is listed, answers and is in every ISR;
    /// `None` before that.
    pub advertised: Option<Advertised>,
    /// The broker that was asked.
    pub via: BrokerId,
}

/// What the cluster tells clients of where a broker is, as that was dialled from here and from the peers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advertised {
    /// The address, on the listener by which the surviving broker was asked.
    pub at: Endpoint,
    /// Why it does not lead to the broker, and from which host if not from here; `None` if it does.
    pub fails: Option<String>,
    /// The other hosts from which it leads to the broker. The peers are asked only once it does from here;
    /// those that do not tell are in neither.
    #[serde(default)]
    pub reached_by: BTreeSet<HostName>,
}

/// Whether what the cluster advertises for a broker leads to it from one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reach", rename_all = "snake_case")]
pub enum Reach {
    /// The broker answers there.
    Reached {
        /// The address that was dialled.
        at: Endpoint,
    },
    /// It does not.
    Unreached {
        /// The address that was dialled.
        at: Endpoint,
        /// What happened.
        why: String,
    },
    /// Nobody knows: nothing was dialled.
    Untold {
        /// Why.
        why: String,
    },
}
