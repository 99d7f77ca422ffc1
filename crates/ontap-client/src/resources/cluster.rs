//! The cluster, its release, and its nodes with their state in the HA pair.

use std::fmt;

use serde::Deserialize;

use super::Visibility;
use crate::client::Client;
use crate::error::Result;
use crate::query::Query;
use crate::value::{self, Reference, open_enum};

/// A release of ONTAP, for instance 9.17.1. Ordered by age.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Version {
    /// The first number; absent is 0.
    #[serde(default, deserialize_with = "count")]
    pub generation: u32,
    /// The second number.
    #[serde(default, deserialize_with = "count")]
    pub major: u32,
    /// The third number.
    #[serde(default, deserialize_with = "count")]
    pub minor: u32,
    /// The whole text, as `NetApp Release 9.17.1P1: …`.
    #[serde(default, deserialize_with = "value::text")]
    pub full: Option<String>,
}

fn count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(value::number(deserializer)?.unwrap_or_default())
}

impl Version {
    /// Whether it is this release or a newer one.
    #[must_use]
    pub fn is_at_least(&self, generation: u32, major: u32, minor: u32) -> bool {
        (self.generation, self.major, self.minor) >= (generation, major, minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.generation, self.major, self.minor)
    }
}

/// The cluster.
#[derive(Debug, Clone, Deserialize)]
pub struct Cluster {
    /// Its name.
    #[serde(default, deserialize_with = "value::text")]
    pub name: Option<String>,
    /// Its key.
    #[serde(default, deserialize_with = "value::text")]
    pub uuid: Option<String>,
    /// Its release.
    #[serde(default, deserialize_with = "value::part")]
    pub version: Version,
}

open_enum! {
    /// How a node is.
    NodeState {
        /// Works.
        Up = "up",
        /// Starts.
        Booting = "booting",
        /// Is down, and its partner has not taken over.
        Down = "down",
        /// Its partner serves its storage.
        TakenOver = "taken_over",
        /// Is back, and its partner still serves its storage.
        WaitingForGiveback = "waiting_for_giveback",
        /// Works with failures.
        Degraded = "degraded",
    }
}

open_enum! {
    /// How far a takeover of the partner is.
    TakeoverState {
        /// Cannot be done.
        NotPossible = "not_possible",
        /// None.
        NotAttempted = "not_attempted",
        /// Done: this node serves its partner's storage.
        InTakeover = "in_takeover",
        /// Under way.
        InProgress = "in_progress",
        /// Failed.
        Failed = "failed",
    }
}

open_enum! {
    /// How far giving back is.
    GivebackState {
        /// There is nothing to give back.
        NothingToGiveback = "nothing_to_giveback",
        /// Not tried.
        NotAttempted = "not_attempted",
        /// Under way.
        InProgress = "in_progress",
        /// Failed.
        Failed = "failed",
    }
}

/// Why a takeover failed.
#[derive(Debug, Clone, Deserialize)]
pub struct TakeoverFailure {
    /// ONTAP's code.
    #[serde(default, deserialize_with = "value::number")]
    pub code: Option<i64>,
    /// ONTAP's message.
    #[serde(default, deserialize_with = "value::text")]
    pub message: Option<String>,
}

/// A takeover of the partner.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Takeover {
    /// How far it is.
    #[serde(default)]
    pub state: Option<TakeoverState>,
    /// Why it failed.
    #[serde(default)]
    pub failure: Option<TakeoverFailure>,
}

/// Giving storage back.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Giveback {
    /// How far it is.
    #[serde(default)]
    pub state: Option<GivebackState>,
}

/// The link between the two nodes.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Interconnect {
    /// `up` or `down`.
    #[serde(default, deserialize_with = "value::text")]
    pub state: Option<String>,
}

/// Whether the partner could take over now.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct TakeoverCheck {
    /// Whether it could.
    #[serde(default, deserialize_with = "value::flag")]
    pub takeover_possible: Option<bool>,
    /// Why it could not.
    #[serde(default, deserialize_with = "value::list")]
    pub reasons: Vec<String>,
}

/// A node's place in its HA pair.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Ha {
    /// Whether failover is on.
    #[serde(default, deserialize_with = "value::flag")]
    pub enabled: Option<bool>,
    /// Whether storage goes back by itself.
    #[serde(default, deserialize_with = "value::flag")]
    pub auto_giveback: Option<bool>,
    /// The other nodes of the pair.
    #[serde(default, deserialize_with = "value::list")]
    pub partners: Vec<Reference>,
    /// A takeover of the partner.
    #[serde(default, deserialize_with = "value::part")]
    pub takeover: Takeover,
    /// Giving storage back.
    #[serde(default, deserialize_with = "value::part")]
    pub giveback: Giveback,
    /// The link between the two. ONTAP 9.11.
    #[serde(default, deserialize_with = "value::part")]
    pub interconnect: Interconnect,
    /// Whether the partner could take over now. ONTAP 9.14.
    #[serde(default)]
    pub takeover_check: Option<TakeoverCheck>,
}

/// A node.
#[derive(Debug, Clone, Deserialize)]
pub struct Node {
    /// Its key.
    #[serde(deserialize_with = "value::key")]
    pub uuid: String,
    /// Its name.
    #[serde(deserialize_with = "value::key")]
    pub name: String,
    /// How it is.
    #[serde(default)]
    pub state: Option<NodeState>,
    /// Whether it is a member: `available`, `joining` or `member`.
    #[serde(default, deserialize_with = "value::text")]
    pub membership: Option<String>,
    /// Seconds since it started.
    #[serde(default, rename = "uptime", deserialize_with = "value::number")]
    pub uptime_secs: Option<u64>,
    /// Its release.
    #[serde(default)]
    pub version: Option<Version>,
    /// Its place in its HA pair. `None`: not visible, as on FSx for ONTAP, or no pair.
    #[serde(default)]
    pub ha: Option<Ha>,
}

const NODE: &[&str] = &["uuid", "name", "state", "membership", "uptime", "version", "ha"];

impl Client {
    /// The cluster and its release. ONTAP 9.6; with an SVM's account only from 9.12.1 on.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn cluster(&self) -> Result<Cluster> {
        self.call().get(&["cluster"], Query::new().fields(&["name", "uuid", "version"])).await
    }

    /// The nodes and their state in the HA pair. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn nodes(&self) -> Result<Visibility<Vec<Node>>> {
        Visibility::of(self.call().list(&["cluster", "nodes"], Query::new().fields(NODE)).await)
    }
}
