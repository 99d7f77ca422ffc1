//! Snapshots of a volume.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::created;
use crate::client::{Call, Client};
use crate::error::Result;
use crate::job::after_change;
use crate::query::Query;
use crate::send::Ask;
use crate::value::{self, open_enum};

open_enum! {
    /// Whether a FlexGroup's snapshot can be used; a FlexVol's has none.
    SnapshotState {
        /// It can.
        Valid = "valid",
        /// Some constituents lack it.
        Partial = "partial",
        /// It cannot.
        Invalid = "invalid",
        /// Cannot be found out now. The word is ONTAP's own.
        NotKnown = "unknown",
        /// From before the volume became a FlexGroup.
        PreConversion = "pre_conversion",
    }
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Snapshot {
    /// Its key.
    #[serde(deserialize_with = "value::key")]
    pub uuid: String,
    /// Its name.
    #[serde(deserialize_with = "value::key")]
    pub name: String,
    /// When it was taken.
    #[serde(default, deserialize_with = "value::timestamp")]
    pub create_time: Option<Timestamp>,
    /// When it may be deleted.
    #[serde(default, deserialize_with = "value::timestamp")]
    pub expiry_time: Option<Timestamp>,
    /// What was noted on it.
    #[serde(default, deserialize_with = "value::text")]
    pub comment: Option<String>,
    /// Whether a FlexGroup's one can be used.
    #[serde(default)]
    pub state: Option<SnapshotState>,
    /// What SnapMirror goes by.
    #[serde(default, deserialize_with = "value::text")]
    pub snapmirror_label: Option<String>,
    /// Who needs it, for instance `snapmirror` or `volume_clone`.
    #[serde(default, deserialize_with = "value::list")]
    pub owners: Vec<String>,
}

impl Snapshot {
    /// Whether a volume can be brought back to it.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.state.as_ref().is_none_or(|state| *state == SnapshotState::Valid)
    }
}

/// A snapshot to take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewSnapshot {
    /// Its name, one of a kind in its volume.
    pub name: String,
    /// A note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Before which it may not be deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiry_time: Option<Timestamp>,
    /// What SnapMirror goes by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapmirror_label: Option<String>,
}

impl NewSnapshot {
    /// A snapshot of this name and nothing else.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), comment: None, expiry_time: None, snapmirror_label: None }
    }
}

const FIELDS: &[&str] =
    &["uuid", "name", "create_time", "expiry_time", "comment", "state", "snapmirror_label", "owners"];

fn path(volume_uuid: &str) -> [&str; 4] {
    ["storage", "volumes", volume_uuid, "snapshots"]
}

impl Client {
    /// The snapshots of a volume. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn snapshots(&self, volume_uuid: &str) -> Result<Vec<Snapshot>> {
        self.call().list(&path(volume_uuid), Query::new().fields(FIELDS)).await
    }

    /// The snapshot of this name. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn snapshot(&self, volume_uuid: &str, name: &str) -> Result<Option<Snapshot>> {
        self.call().snapshot(volume_uuid, name).await
    }

    /// Takes a snapshot, and returns it as read back. Of a FlexGroup, see to it that it
    /// [`is_usable`](Snapshot::is_usable). ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn create_snapshot(&self, volume_uuid: &str, new: &NewSnapshot) -> Result<Snapshot> {
        let call = self.call();
        let ask = Ask::post(self.url(&path(volume_uuid), &Query::new())?, json!(new));
        let request = ask.request();
        call.change(ask).await?;
        let found = call.snapshot(volume_uuid, &new.name).await.map_err(after_change(request.clone()))?;
        created(request, found)
    }

    /// Deletes a snapshot; `Ok` also if there is none. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error); code 1638555 if it is locked or has not expired.
    pub async fn delete_snapshot(&self, volume_uuid: &str, uuid: &str) -> Result<()> {
        let path = [&path(volume_uuid)[..], &[uuid]].concat();
        self.call().remove(&path).await
    }
}

impl Call<'_> {
    async fn snapshot(&self, volume_uuid: &str, name: &str) -> Result<Option<Snapshot>> {
        self.find(&path(volume_uuid), Query::new().equal("name", name)?.fields(FIELDS)).await
    }
}
