//! The cluster as a port, and what it tells.

use std::collections::BTreeSet;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Note, StepError};
use crate::model::{BrokerId, Endpoint, HostName, PartitionView};

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

/// What only the cluster itself can say or do.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// The cluster's id, from a surviving broker.
    async fn id(&self) -> Result<String, StepError>;
    /// How `broker` stands, told by a broker other than it.
    async fn standing(&self, broker: BrokerId) -> Result<Standing, StepError>;
    /// Whether what the cluster advertises for `broker` leads to it from this host, for a peer that asks. It
    /// dials what a surviving broker says, and nothing that the peer names.
    async fn reach(&self, broker: BrokerId) -> Reach;
    /// Whether the controller has a registration of `broker`, fenced or not, as most of those that were asked
    /// of the other brokers tell it, and none of them otherwise. An error if that cannot be known.
    async fn registered(&self, broker: BrokerId) -> Result<bool, StepError>;
    /// Confirms that the metadata quorum has a leader that answers. An error says why none was found.
    async fn quorum(&self) -> Result<(), StepError>;
    /// How many bytes `broker` lacks in the partitions that have it out of ISR, beside their leaders' logs.
    async fn behind(&self, broker: BrokerId) -> Result<u64, StepError>;
    /// Every partition's replicas and ISR.
    async fn partitions(&self) -> Result<PartitionView, StepError>;
    /// Removes the registration of a dead broker: one request, to the active controller's own listener, only
    /// if the broker is still registered and unfenced and all of `sharing` are up.
    async fn unregister(&self, broker: BrokerId, sharing: &BTreeSet<BrokerId>) -> Unregistered;
    /// Gives `broker` the partitions back that it prefers to lead and is in sync for, in batches.
    async fn elect_preferred(&self, broker: BrokerId) -> Result<Note, StepError>;
}
