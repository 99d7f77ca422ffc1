//! Counters that only grow.

use jiff::Timestamp;
use serde::Deserialize;

use crate::client::Client;
use crate::error::Result;
use crate::query::Query;
use crate::value;

/// A figure by kind of operation. Its unit is that of the field it is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Rates {
    /// Reads.
    #[serde(default, deserialize_with = "value::number")]
    pub read: Option<u64>,
    /// Writes.
    #[serde(default, deserialize_with = "value::number")]
    pub write: Option<u64>,
    /// All else, such as metadata.
    #[serde(default, deserialize_with = "value::number")]
    pub other: Option<u64>,
    /// All together.
    #[serde(default, deserialize_with = "value::number")]
    pub total: Option<u64>,
}

/// Counters since the node started. Two readings are needed to say anything.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Counters {
    /// When they were read.
    #[serde(default, deserialize_with = "value::timestamp")]
    pub timestamp: Option<Timestamp>,
    /// `ok`, or why they are not whole.
    #[serde(default, deserialize_with = "value::text")]
    pub status: Option<String>,
    /// Operations.
    #[serde(default, rename = "iops_raw", deserialize_with = "value::part")]
    pub operations: Rates,
}

/// A volume's counters, with its name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct VolumeCounters {
    /// The volume's key.
    #[serde(deserialize_with = "value::key")]
    pub uuid: String,
    /// Its name, one of a kind in its SVM.
    #[serde(deserialize_with = "value::key")]
    pub name: String,
    /// What was counted. `None`: ONTAP does not tell.
    #[serde(default)]
    pub statistics: Option<Counters>,
}

/// What is asked for when operations are counted: bytes and latencies cost ONTAP more, and say nothing more.
const OPERATIONS: &[&str] =
    &["uuid", "name", "statistics.timestamp", "statistics.status", "statistics.iops_raw"];

impl Client {
    /// The operations counted in these volumes of an SVM, all in one request. A volume that is not there is
    /// left out. ONTAP 9.7.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error); [`Error::Usage`](crate::Error::Usage) if no volume is
    /// named.
    pub async fn counters_of(&self, svm: &str, volumes: &[&str]) -> Result<Vec<VolumeCounters>> {
        let query = Query::new().equal("svm.name", svm)?.any_of("name", volumes)?.fields(OPERATIONS);
        self.call().list(&["storage", "volumes"], query).await
    }
}
