//! Mirrors of volumes. Ask the cluster that holds the destination.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use crate::client::{Call, Client};
use crate::error::{Error, Result};
use crate::job::after_change;
use crate::query::Query;
use crate::send::{Ask, Repeat};
use crate::value::{self, Reference, open_enum};

open_enum! {
    /// How a mirror is.
    MirrorState {
        /// Broken: the destination can be written.
        BrokenOff = "broken_off",
        /// Halted.
        Paused = "paused",
        /// Follows the source.
        Snapmirrored = "snapmirrored",
        /// Has never been filled.
        Uninitialized = "uninitialized",
        /// Holds what the source holds.
        InSync = "in_sync",
        /// Should, and does not.
        OutOfSync = "out_of_sync",
        /// Comes nearer to it.
        Synchronizing = "synchronizing",
        /// Its FlexGroup grows.
        Expanding = "expanding",
        /// Its FlexGroup shrinks.
        Shrinking = "shrinking",
    }
}

open_enum! {
    /// How the last transfer went.
    TransferState {
        /// Ended early; the next one goes on from there.
        Aborted = "aborted",
        /// Failed.
        Failed = "failed",
        /// Ended early; the next one starts anew.
        HardAborted = "hard_aborted",
        /// Waits.
        Queued = "queued",
        /// Done.
        Success = "success",
        /// Under way.
        Transferring = "transferring",
    }
}

/// One end of a mirror.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct MirrorEnd {
    /// `<SVM>:<volume>`, or `<SVM>:` of a whole SVM.
    #[serde(default, deserialize_with = "value::text")]
    pub path: Option<String>,
    /// Its SVM.
    #[serde(default, deserialize_with = "value::part")]
    pub svm: Reference,
    /// Its cluster, if it is another one.
    #[serde(default, deserialize_with = "value::part")]
    pub cluster: Reference,
}

/// The last transfer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MirrorTransfer {
    /// How it went.
    #[serde(default)]
    pub state: Option<TransferState>,
    /// Bytes.
    #[serde(default, deserialize_with = "value::number")]
    pub bytes_transferred: Option<u64>,
    /// When it ended.
    #[serde(default, deserialize_with = "value::timestamp")]
    pub end_time: Option<Timestamp>,
}

/// Why a mirror is not well.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
struct Reason {
    #[serde(default, deserialize_with = "value::text")]
    message: Option<String>,
}

/// A mirror.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SnapMirror {
    /// Its key.
    #[serde(deserialize_with = "value::key")]
    pub uuid: String,
    /// Where it comes from.
    #[serde(default, deserialize_with = "value::part")]
    pub source: MirrorEnd,
    /// Where it goes.
    #[serde(default, deserialize_with = "value::part")]
    pub destination: MirrorEnd,
    /// How it is.
    #[serde(default)]
    pub state: Option<MirrorState>,
    /// Whether it is well.
    #[serde(default, deserialize_with = "value::flag")]
    pub healthy: Option<bool>,
    #[serde(default, deserialize_with = "value::list")]
    unhealthy_reason: Vec<Reason>,
    /// How old the newest snapshot at the destination is. `None`: nothing was transferred yet, or not known.
    #[serde(default, rename = "lag_time", deserialize_with = "value::duration")]
    pub lag: Option<Duration>,
    /// Its policy.
    #[serde(default, deserialize_with = "value::part")]
    pub policy: Reference,
    /// The last transfer.
    #[serde(default)]
    pub transfer: Option<MirrorTransfer>,
}

impl SnapMirror {
    /// Why it is not well.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        self.unhealthy_reason.iter().filter_map(|reason| reason.message.as_deref())
    }
}

/// Which mirrors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MirrorQuery<'a> {
    /// `<SVM>:<volume>` that they come from.
    pub source: Option<&'a str>,
    /// `<SVM>:<volume>` that they go to.
    pub destination: Option<&'a str>,
}

const PATH: &[&str] = &["snapmirror", "relationships"];
const FIELDS: &[&str] = &[
    "uuid",
    "source",
    "destination",
    "state",
    "healthy",
    "unhealthy_reason",
    "lag_time",
    "policy",
    "transfer",
];

impl Client {
    /// The mirrors that match, of which this cluster holds the destination. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`].
    pub async fn snapmirrors(&self, which: &MirrorQuery<'_>) -> Result<Vec<SnapMirror>> {
        let query =
            Query::new().maybe("source.path", which.source)?.maybe("destination.path", which.destination)?;
        self.call().list(PATH, query.fields(FIELDS)).await
    }

    /// One mirror. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`].
    pub async fn snapmirror(&self, uuid: &str) -> Result<SnapMirror> {
        self.call().snapmirror(uuid).await
    }

    /// Breaks a mirror, so that its destination can be written, and returns it as read back. The destination
    /// still needs a junction, and the settings of the command line are its own. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::is_in_use`] while a transfer is under way: halt it first
    /// ([`pause_snapmirror`](Self::pause_snapmirror)); [`Error::NotApplied`] if it is not broken when read
    /// back.
    pub async fn break_snapmirror(&self, uuid: &str) -> Result<SnapMirror> {
        self.call().set_mirror(uuid, &MirrorState::BrokenOff, &[MirrorState::BrokenOff]).await
    }

    /// Halts a mirror: no transfer begins any more. ONTAP 9.6.
    ///
    /// # Errors
    /// As for [`break_snapmirror`](Self::break_snapmirror).
    pub async fn pause_snapmirror(&self, uuid: &str) -> Result<SnapMirror> {
        self.call().set_mirror(uuid, &MirrorState::Paused, &[MirrorState::Paused]).await
    }

    /// Lets a mirror that was halted or broken follow its source again. **What was written to a broken
    /// mirror's destination since is lost.** ONTAP 9.6.
    ///
    /// # Errors
    /// As for [`break_snapmirror`](Self::break_snapmirror).
    pub async fn resync_snapmirror(&self, uuid: &str) -> Result<SnapMirror> {
        use MirrorState::{InSync, OutOfSync, Snapmirrored, Synchronizing};
        // A synchronous one comes back through states of its own.
        let then = [Snapmirrored, InSync, OutOfSync, Synchronizing];
        self.call().set_mirror(uuid, &Snapmirrored, &then).await
    }
}

impl Call<'_> {
    async fn snapmirror(&self, uuid: &str) -> Result<SnapMirror> {
        self.get(&[PATH, &[uuid]].concat(), Query::new().fields(FIELDS)).await
    }

    async fn set_mirror(&self, uuid: &str, to: &MirrorState, then: &[MirrorState]) -> Result<SnapMirror> {
        let url = self.client.url(&[PATH, &[uuid]].concat(), &Query::new())?;
        let ask = Ask::patch(url, json!({ "state": to.as_str() }), Repeat::Safe);
        let request = ask.request();
        self.change(ask).await?;
        let mirror = self.snapmirror(uuid).await.map_err(after_change(request.clone()))?;
        if mirror.state.as_ref().is_some_and(|state| then.contains(state)) {
            return Ok(mirror);
        }
        let state = mirror.state.as_ref().map_or("not told", MirrorState::as_str);
        Err(Error::NotApplied { request, what: format!("the mirror's state is {state}") })
    }
}
