//! Making, changing and deleting volumes.

use serde_json::{Value, json};

use super::created;
use super::volume::{PATH, Volume, VolumeStyle};
use crate::body::Body;
use crate::client::Client;
use crate::error::{Error, Request, Result};
use crate::job::after_change;
use crate::query::Query;
use crate::send::{Ask, Repeat};

/// A volume to make. What is `None` or empty is left to ONTAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVolume {
    /// The SVM's name.
    pub svm: String,
    /// Its name, at most 203 characters (197 of a FlexGroup).
    pub name: String,
    /// Where it lies: one aggregate for a FlexVol, one or more for a FlexGroup.
    pub aggregates: Vec<String>,
    /// Bytes, at least 20 MB, or 200 MB for each constituent.
    pub size_bytes: Option<u64>,
    /// FlexVol or FlexGroup. By default several aggregates make a FlexGroup.
    pub style: Option<VolumeStyle>,
    /// How many constituents on each aggregate; makes it a FlexGroup.
    pub constituents_per_aggregate: Option<u32>,
    /// Where to mount it in the SVM, for instance `/kafka01`.
    pub junction: Option<String>,
    /// Who may reach it.
    pub export_policy: Option<String>,
    /// `unix`, `ntfs`, `mixed` or `unified`.
    pub security_style: Option<String>,
    /// The mode of its root, its octal digits written as a decimal number: 755.
    pub unix_permissions: Option<u32>,
    /// When to take snapshots of it; `none` for never. ONTAP's default: `default`.
    pub snapshot_policy: Option<String>,
    /// Percent of it that are kept for snapshots, at most 90.
    pub snapshot_reserve_percent: Option<u32>,
    /// `none` for a thin one, or `volume`. ONTAP's default: `volume`.
    pub guarantee: Option<String>,
    /// `inline`, `background`, `both` or `none`.
    pub dedupe: Option<String>,
    /// Words as for `dedupe`.
    pub compression: Option<String>,
    /// A note.
    pub comment: Option<String>,
}

impl NewVolume {
    /// A volume with everything else left to ONTAP.
    pub fn new(svm: impl Into<String>, name: impl Into<String>, aggregate: impl Into<String>) -> Self {
        Self {
            svm: svm.into(),
            name: name.into(),
            aggregates: vec![aggregate.into()],
            size_bytes: None,
            style: None,
            constituents_per_aggregate: None,
            junction: None,
            export_policy: None,
            security_style: None,
            unix_permissions: None,
            snapshot_policy: None,
            snapshot_reserve_percent: None,
            guarantee: None,
            dedupe: None,
            compression: None,
            comment: None,
        }
    }

    fn body(&self) -> Value {
        let aggregates: Vec<_> = self.aggregates.iter().map(|name| json!({ "name": name })).collect();
        Body::new()
            .set("svm.name", Some(self.svm.as_str()))
            .set("name", Some(self.name.as_str()))
            .set("aggregates", Some(aggregates))
            .set("size", self.size_bytes)
            .set("style", self.style.as_ref().map(VolumeStyle::as_str))
            .set("constituents_per_aggregate", self.constituents_per_aggregate)
            .set("nas.path", self.junction.as_deref())
            .set("nas.export_policy.name", self.export_policy.as_deref())
            .set("nas.security_style", self.security_style.as_deref())
            .set("nas.unix_permissions", self.unix_permissions)
            .set("snapshot_policy.name", self.snapshot_policy.as_deref())
            .set("space.snapshot.reserve_percent", self.snapshot_reserve_percent)
            .set("guarantee.type", self.guarantee.as_deref())
            .set("efficiency.dedupe", self.dedupe.as_deref())
            .set("efficiency.compression", self.compression.as_deref())
            .set("comment", self.comment.as_deref())
            .into()
    }
}

/// What to set in a volume; `None` is left as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeChange<'a> {
    /// Bytes.
    pub size_bytes: Option<u64>,
    /// Where to mount it in the SVM; empty: nowhere.
    pub junction: Option<&'a str>,
    /// Who may reach it.
    pub export_policy: Option<&'a str>,
    /// `online` or `offline`, which also unmounts it.
    pub state: Option<&'a str>,
    /// The mode of its root, its octal digits written as a decimal number: 755.
    pub unix_permissions: Option<u32>,
    /// When to take snapshots of it.
    pub snapshot_policy: Option<&'a str>,
    /// Percent of it that are kept for snapshots.
    pub snapshot_reserve_percent: Option<u32>,
    /// `inline`, `background`, `both` or `none`.
    pub dedupe: Option<&'a str>,
    /// Words as for `dedupe`.
    pub compression: Option<&'a str>,
    /// A note.
    pub comment: Option<&'a str>,
}

impl VolumeChange<'_> {
    fn body(&self) -> Body {
        Body::new()
            .set("size", self.size_bytes)
            .set("nas.path", self.junction)
            .set("nas.export_policy.name", self.export_policy)
            .set("state", self.state)
            .set("nas.unix_permissions", self.unix_permissions)
            .set("snapshot_policy.name", self.snapshot_policy)
            .set("space.snapshot.reserve_percent", self.snapshot_reserve_percent)
            .set("efficiency.dedupe", self.dedupe)
            .set("efficiency.compression", self.compression)
            .set("comment", self.comment)
    }

    /// Says what of the things that others rely on is not so. Sizes are rounded by ONTAP, and not compared.
    fn contradiction(&self, volume: &Volume) -> Option<String> {
        let has = volume.nas.junction.as_deref().unwrap_or_default();
        if self.junction.is_some_and(|junction| junction != has) {
            return Some(format!("the volume is mounted at `{has}`"));
        }
        let has = volume.nas.export_policy.name.as_deref().unwrap_or_default();
        if self.export_policy.is_some_and(|policy| policy != has) {
            return Some(format!("the volume's export policy is `{has}`"));
        }
        None
    }
}

impl Client {
    /// Makes a volume, and returns it as read back. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::is_duplicate`] if there is one of this name.
    pub async fn create_volume(&self, new: &NewVolume) -> Result<Volume> {
        let call = self.call();
        let ask = Ask::post(self.url(PATH, &Query::new())?, new.body());
        let request = ask.request();
        call.change(ask).await?;
        let found = call.volume(&new.svm, &new.name).await.map_err(after_change(request.clone()))?;
        created(request, found)
    }

    /// Changes a volume, and returns it as read back. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::Usage`] if there is nothing to change; [`Error::NotApplied`] if
    /// ONTAP said that it was done, and junction or export policy read back otherwise.
    pub async fn update_volume(&self, volume_uuid: &str, change: &VolumeChange<'_>) -> Result<Volume> {
        let body = change.body();
        if body.is_empty() {
            return Err(Error::usage("there is nothing to change in the volume"));
        }
        let url = self.url(&[PATH, &[volume_uuid]].concat(), &Query::new())?;
        let ask = Ask::patch(url, body.into(), Repeat::Safe);
        let (call, request): (_, Request) = (self.call(), ask.request());
        call.change(ask).await?;
        let volume = call.volume_by_key(volume_uuid).await.map_err(after_change(request.clone()))?;
        match change.contradiction(&volume) {
            Some(what) => Err(Error::NotApplied { request, what }),
            None => Ok(volume),
        }
    }

    /// Deletes a volume; `Ok` also if there is none. Unmount it first. For some hours ONTAP keeps it where
    /// its support can bring it back. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`].
    pub async fn delete_volume(&self, volume_uuid: &str) -> Result<()> {
        self.call().remove(&[PATH, &[volume_uuid]].concat()).await
    }
}
