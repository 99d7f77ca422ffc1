//! Volumes, as they are read. What changes them is in `volume_change`.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::client::{Call, Client};
use crate::error::Result;
use crate::query::Query;
use crate::value::{self, Reference, open_enum};

open_enum! {
    /// Whether a volume can be used.
    VolumeState {
        /// It can.
        Online = "online",
        /// It cannot.
        Offline = "offline",
        /// Only by ONTAP.
        Restricted = "restricted",
        /// It is broken.
        Error = "error",
        /// Its constituents differ.
        Mixed = "mixed",
    }
}

open_enum! {
    /// What a volume is made of.
    VolumeStyle {
        /// One piece.
        FlexVol = "flexvol",
        /// Many constituents.
        FlexGroup = "flexgroup",
        /// One of them.
        FlexGroupConstituent = "flexgroup_constituent",
    }
}

/// How clients see a volume. All of it is expensive to ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct VolumeNas {
    /// Where it is mounted in the SVM. `None`: nowhere.
    #[serde(default, rename = "path", deserialize_with = "value::text")]
    pub junction: Option<String>,
    /// Who may reach it.
    #[serde(default, deserialize_with = "value::part")]
    pub export_policy: Reference,
    /// `unix`, `ntfs`, `mixed` or `unified`.
    #[serde(default, deserialize_with = "value::text")]
    pub security_style: Option<String>,
    /// The mode of its root, its octal digits written as a decimal number: 755.
    #[serde(default, deserialize_with = "value::number")]
    pub unix_permissions: Option<u32>,
}

/// Space for snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct SnapshotSpace {
    /// Percent of the volume that are kept for them.
    #[serde(default, deserialize_with = "value::number")]
    pub reserve_percent: Option<u32>,
    /// Bytes that they use.
    #[serde(default, rename = "used", deserialize_with = "value::number")]
    pub used_bytes: Option<u64>,
}

/// Space as clients count it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct LogicalSpace {
    /// Bytes in all.
    #[serde(default, rename = "used", deserialize_with = "value::number")]
    pub used_bytes: Option<u64>,
    /// Bytes without snapshots.
    #[serde(default, rename = "used_by_afs", deserialize_with = "value::number")]
    pub used_by_afs_bytes: Option<u64>,
}

/// The space of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct VolumeSpace {
    /// Bytes in all, those for snapshots included.
    #[serde(default, rename = "size", deserialize_with = "value::number")]
    pub size_bytes: Option<u64>,
    /// Bytes that are free.
    #[serde(default, rename = "available", deserialize_with = "value::number")]
    pub available_bytes: Option<u64>,
    /// Bytes in use.
    #[serde(default, rename = "used", deserialize_with = "value::number")]
    pub used_bytes: Option<u64>,
    /// Bytes for files: all but those for snapshots. ONTAP 9.9.
    #[serde(default, rename = "afs_total", deserialize_with = "value::number")]
    pub afs_total_bytes: Option<u64>,
    /// Percent in use. ONTAP 9.9.
    #[serde(default, deserialize_with = "value::number")]
    pub percent_used: Option<u32>,
    /// Bytes on the disks. ONTAP 9.10.
    #[serde(default, rename = "physical_used", deserialize_with = "value::number")]
    pub physical_used_bytes: Option<u64>,
    /// Bytes that it takes of its aggregate.
    #[serde(default, rename = "footprint", deserialize_with = "value::number")]
    pub footprint_bytes: Option<u64>,
    /// As clients count it.
    #[serde(default, deserialize_with = "value::part")]
    pub logical_space: LogicalSpace,
    /// For snapshots.
    #[serde(default, deserialize_with = "value::part")]
    pub snapshot: SnapshotSpace,
}

/// Whether and how a volume saves space.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct VolumeEfficiency {
    /// `inline`, `background`, `both`, `none` or `mixed`.
    #[serde(default, deserialize_with = "value::text")]
    pub dedupe: Option<String>,
    /// Words as for `dedupe`.
    #[serde(default, deserialize_with = "value::text")]
    pub compression: Option<String>,
    /// `inline`, `none` or `mixed`.
    #[serde(default, deserialize_with = "value::text")]
    pub compaction: Option<String>,
    /// `default` or `efficient`, on drives that have the choice. ONTAP 9.10.
    #[serde(default, deserialize_with = "value::text")]
    pub storage_efficiency_mode: Option<String>,
    /// Logical bytes for each physical one. ONTAP 9.11.
    #[serde(default, deserialize_with = "value::number")]
    pub ratio: Option<f64>,
}

/// Where a FlexClone comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct VolumeClone {
    /// Whether it is one.
    #[serde(default, deserialize_with = "value::flag")]
    pub is_flexclone: Option<bool>,
    /// The volume.
    #[serde(default, deserialize_with = "value::part")]
    pub parent_volume: Reference,
    /// Its snapshot.
    #[serde(default, deserialize_with = "value::part")]
    pub parent_snapshot: Reference,
    /// Whether it is being made independent.
    #[serde(default, deserialize_with = "value::flag")]
    pub split_initiated: Option<bool>,
    /// How far that is.
    #[serde(default, deserialize_with = "value::number")]
    pub split_complete_percent: Option<u32>,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Volume {
    /// Its key.
    #[serde(deserialize_with = "value::key")]
    pub uuid: String,
    /// Its name, one of a kind in its SVM.
    #[serde(deserialize_with = "value::key")]
    pub name: String,
    /// Its SVM.
    #[serde(default, deserialize_with = "value::part")]
    pub svm: Reference,
    /// Whether it can be used.
    #[serde(default)]
    pub state: Option<VolumeState>,
    /// What it is made of.
    #[serde(default)]
    pub style: Option<VolumeStyle>,
    /// `rw`, `dp` (a mirror) or `ls`.
    #[serde(default, rename = "type", deserialize_with = "value::text")]
    pub kind: Option<String>,
    /// Bytes in all.
    #[serde(default, rename = "size", deserialize_with = "value::number")]
    pub size_bytes: Option<u64>,
    /// Where it lies.
    #[serde(default, deserialize_with = "value::list")]
    pub aggregates: Vec<Reference>,
    /// How clients see it.
    #[serde(default, deserialize_with = "value::part")]
    pub nas: VolumeNas,
    /// Its space.
    #[serde(default, deserialize_with = "value::part")]
    pub space: VolumeSpace,
    /// Whether and how it saves space.
    #[serde(default)]
    pub efficiency: Option<VolumeEfficiency>,
    /// When snapshots are taken of it.
    #[serde(default, deserialize_with = "value::part")]
    pub snapshot_policy: Reference,
    /// Where it comes from.
    #[serde(default)]
    pub clone: Option<VolumeClone>,
    /// What was noted on it.
    #[serde(default, deserialize_with = "value::text")]
    pub comment: Option<String>,
}

/// Which volumes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeQuery<'a> {
    /// The SVM's name.
    pub svm: Option<&'a str>,
    /// The volume's name.
    pub name: Option<&'a str>,
    /// The name of the export policy that they use, to find who shares it.
    pub export_policy: Option<&'a str>,
    /// Where they are mounted in the SVM.
    pub junction: Option<&'a str>,
}

pub(super) const PATH: &[&str] = &["storage", "volumes"];

/// Those that are expensive are named one by one, since `*` leaves them out.
const FIELDS: &[&str] = &[
    "uuid",
    "name",
    "svm",
    "state",
    "style",
    "type",
    "size",
    "aggregates",
    "nas.path",
    "nas.export_policy",
    "nas.security_style",
    "nas.unix_permissions",
    "space.size",
    "space.available",
    "space.used",
    "space.afs_total",
    "space.percent_used",
    "space.physical_used",
    "space.footprint",
    "space.logical_space.used",
    "space.logical_space.used_by_afs",
    "space.snapshot.reserve_percent",
    "space.snapshot.used",
    "efficiency.dedupe",
    "efficiency.compression",
    "efficiency.compaction",
    "efficiency.storage_efficiency_mode",
    "efficiency.ratio",
    "snapshot_policy",
    "clone",
    "comment",
];

impl Client {
    /// The volumes that match. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn volumes(&self, which: &VolumeQuery<'_>) -> Result<Vec<Volume>> {
        let query = Query::new()
            .maybe("svm.name", which.svm)?
            .maybe("name", which.name)?
            .maybe("nas.export_policy.name", which.export_policy)?
            .maybe("nas.path", which.junction)?;
        self.call().list(PATH, query.fields(FIELDS)).await
    }

    /// The aggregates that these volumes of an SVM lie on, all in one request. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error); [`Error::Usage`](crate::Error::Usage) if no volume is
    /// named.
    pub async fn aggregates_of(&self, svm: &str, volumes: &[&str]) -> Result<BTreeSet<String>> {
        let query = Query::new().equal("svm.name", svm)?.any_of("name", volumes)?;
        let query = query.fields(&["uuid", "name", "aggregates.name"]);
        let volumes: Vec<Volume> = self.call().list(PATH, query).await?;
        let all = volumes.into_iter().flat_map(|volume| volume.aggregates);
        Ok(all.filter_map(|aggregate| aggregate.name).collect())
    }

    /// The volume of this name. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn volume(&self, svm: &str, name: &str) -> Result<Option<Volume>> {
        self.call().volume(svm, name).await
    }
}

impl Call<'_> {
    pub(super) async fn volume(&self, svm: &str, name: &str) -> Result<Option<Volume>> {
        let query = Query::new().equal("svm.name", svm)?.equal("name", name)?;
        self.find(PATH, query.fields(FIELDS)).await
    }

    pub(super) async fn volume_by_key(&self, uuid: &str) -> Result<Volume> {
        self.get(&[PATH, &[uuid]].concat(), Query::new().fields(FIELDS)).await
    }
}
