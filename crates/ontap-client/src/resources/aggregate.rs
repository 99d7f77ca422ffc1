//! Aggregates: where volumes lie, how full they are, and what efficiency saves there.

use serde::Deserialize;

use super::Visibility;
use crate::client::Client;
use crate::error::Result;
use crate::query::Query;
use crate::value::{self, Reference};

/// What efficiency saves.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Efficiency {
    /// Bytes as clients count them.
    #[serde(default, rename = "logical_used", deserialize_with = "value::number")]
    pub logical_used_bytes: Option<u64>,
    /// Logical bytes for each physical one.
    #[serde(default, deserialize_with = "value::number")]
    pub ratio: Option<f64>,
}

impl Efficiency {
    /// Bytes on the disks, which follow from the ratio.
    #[must_use]
    pub fn physical_used_bytes(&self) -> Option<u64> {
        let (logical, ratio) = (self.logical_used_bytes?, self.ratio.filter(|ratio| *ratio > 0.0)?);
        // A float is exact to some 9 petabytes, and the ratio is rounded anyway.
        Some((logical as f64 / ratio).round() as u64)
    }
}

/// Blocks of an aggregate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct BlockStorage {
    /// Bytes in all.
    #[serde(default, rename = "size", deserialize_with = "value::number")]
    pub size_bytes: Option<u64>,
    /// Bytes that are free.
    #[serde(default, rename = "available", deserialize_with = "value::number")]
    pub available_bytes: Option<u64>,
    /// Bytes in use or promised.
    #[serde(default, rename = "used", deserialize_with = "value::number")]
    pub used_bytes: Option<u64>,
    /// Bytes that hold data.
    #[serde(default, rename = "physical_used", deserialize_with = "value::number")]
    pub physical_used_bytes: Option<u64>,
}

/// The space of an aggregate.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct AggregateSpace {
    /// Its blocks.
    #[serde(default, deserialize_with = "value::part")]
    pub block_storage: BlockStorage,
    /// What efficiency saves, snapshots and clones counted in.
    #[serde(default)]
    pub efficiency: Option<Efficiency>,
}

/// An aggregate.
#[derive(Debug, Clone, Deserialize)]
pub struct Aggregate {
    /// Its key.
    #[serde(deserialize_with = "value::key")]
    pub uuid: String,
    /// Its name.
    #[serde(deserialize_with = "value::key")]
    pub name: String,
    /// `online`, `offline` and others.
    #[serde(default, deserialize_with = "value::text")]
    pub state: Option<String>,
    /// The node that serves it now.
    #[serde(default, deserialize_with = "value::part")]
    pub node: Reference,
    /// The node that it belongs to.
    #[serde(default, deserialize_with = "value::part")]
    pub home_node: Reference,
    /// Its space.
    #[serde(default, deserialize_with = "value::part")]
    pub space: AggregateSpace,
}

const FIELDS: &[&str] =
    &["uuid", "name", "state", "node", "home_node", "space.block_storage", "space.efficiency"];

impl Client {
    /// All aggregates. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn aggregates(&self) -> Result<Visibility<Vec<Aggregate>>> {
        Visibility::of(self.call().list(&["storage", "aggregates"], Query::new().fields(FIELDS)).await)
    }
}
