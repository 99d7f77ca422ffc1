//! Figures over time, and counters that only grow.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;

use crate::client::Client;
use crate::error::Result;
use crate::query::Query;
use crate::value;

/// Of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsOf<'a> {
    /// The cluster.
    Cluster,
    /// The node with this UUID.
    Node(&'a str),
    /// The aggregate with this UUID.
    Aggregate(&'a str),
    /// The volume with this UUID.
    Volume(&'a str),
    /// The LIF with this UUID.
    Interface(&'a str),
    /// The NFS service of the SVM with this UUID.
    Nfs(&'a str),
}

impl<'a> MetricsOf<'a> {
    fn path(self) -> Vec<&'a str> {
        match self {
            Self::Cluster => vec!["cluster", "metrics"],
            Self::Node(uuid) => vec!["cluster", "nodes", uuid, "metrics"],
            Self::Aggregate(uuid) => vec!["storage", "aggregates", uuid, "metrics"],
            Self::Volume(uuid) => vec!["storage", "volumes", uuid, "metrics"],
            Self::Interface(uuid) => vec!["network", "ip", "interfaces", uuid, "metrics"],
            Self::Nfs(svm) => vec!["protocols", "nfs", "services", svm, "metrics"],
        }
    }
}

/// How far back. The further, the coarser.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Interval {
    /// An hour, every 15 s.
    #[default]
    Hour,
    /// A day, every 5 min.
    Day,
    /// A week, every 30 min.
    Week,
    /// A month, every 2 h.
    Month,
    /// A year, every day.
    Year,
}

impl Interval {
    fn word(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::Day => "1d",
            Self::Week => "1w",
            Self::Month => "1m",
            Self::Year => "1y",
        }
    }
}

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

/// Microseconds by kind of operation.
pub type Latency = Rates;

/// The figures of one span of time.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Sample {
    /// Its end.
    #[serde(default, deserialize_with = "value::timestamp")]
    pub timestamp: Option<Timestamp>,
    /// How long it is.
    #[serde(default, deserialize_with = "value::duration")]
    pub duration: Option<Duration>,
    /// `ok`, or why the figures are not whole, for instance `partial_no_data` or `negative_delta`.
    #[serde(default, deserialize_with = "value::text")]
    pub status: Option<String>,
    /// Mean latency, in microseconds.
    #[serde(default, rename = "latency", deserialize_with = "value::part")]
    pub latency_us: Latency,
    /// Operations in a second.
    #[serde(default, deserialize_with = "value::part")]
    pub iops: Rates,
    /// Bytes in a second.
    #[serde(default, deserialize_with = "value::part")]
    pub throughput: Rates,
    /// The same for NFSv4.1 alone, in figures of an NFS service.
    #[serde(default)]
    pub v41: Option<Box<Sample>>,
}

impl Sample {
    /// Whether ONTAP vouches for the figures.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.status.as_deref() == Some("ok")
    }
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
    /// Bytes.
    #[serde(default, rename = "throughput_raw", deserialize_with = "value::part")]
    pub bytes: Rates,
    /// Microseconds that all operations took together.
    #[serde(default, rename = "latency_raw", deserialize_with = "value::part")]
    pub latency_us: Latency,
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

#[derive(Debug, Deserialize)]
struct WithCounters {
    #[serde(default)]
    statistics: Option<Counters>,
}

impl Client {
    /// Figures over time, the newest first as ONTAP sends them. ONTAP 9.6 to 9.8, depending on what they are
    /// of.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn metrics(&self, of: MetricsOf<'_>, interval: Interval) -> Result<Vec<Sample>> {
        let query = Query::new().raw("interval", interval.word()).fields(&["*"]);
        self.call().list(&of.path(), query).await
    }

    /// The counters of a volume; `None` if ONTAP does not tell them. ONTAP 9.7.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn volume_counters(&self, volume_uuid: &str) -> Result<Option<Counters>> {
        let query = Query::new().fields(&["statistics"]);
        let volume: WithCounters = self.call().get(&["storage", "volumes", volume_uuid], query).await?;
        Ok(volume.statistics)
    }

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
