//! The objects of ONTAP, one file for each kind. All calls are methods of [`Client`](crate::Client).

mod aggregate;
mod cli;
mod cluster;
mod connection;
mod export;
mod export_view;
mod interface;
mod lock;
mod metrics;
mod nfs;
mod nfs_client;
mod snapmirror;
mod snapshot;
mod svm;
mod volume;
mod volume_change;

pub use aggregate::{Aggregate, AggregateSpace, BlockStorage, Efficiency};
pub use cli::{CliDone, Privilege};
pub use cluster::{
    Cluster, Giveback, GivebackState, Ha, Interconnect, Node, NodeState, Takeover, TakeoverCheck,
    TakeoverFailure, TakeoverState, Version,
};
pub use connection::{ActiveConnection, ConnectionQuery};
pub use export::{ClientMatch, ExportPolicy, ExportRule, NewExportRule};
pub use export_view::{PolicyRules, VolumeExport};
pub use interface::{Interface, InterfaceQuery, IpAddress, LinkState, Location};
pub use lock::{ByteLock, Lock, LockInterface, LockKind, LockProtocol, LockQuery, LockState, ShareLock};
pub use metrics::{Counters, Interval, Latency, MetricsOf, Rates, Sample, VolumeCounters};
pub use nfs::{AccessCache, NfsChange, NfsProtocol, NfsService, NfsState, NfsTransport, NfsV41Features};
pub use nfs_client::{NfsClient, NfsClientQuery, NfsClientSettings, NfsVersion};
pub use snapmirror::{MirrorEnd, MirrorQuery, MirrorState, MirrorTransfer, SnapMirror, TransferState};
pub use snapshot::{NewSnapshot, Snapshot, SnapshotState};
pub use svm::{Svm, SvmState};
pub use volume::{
    LogicalSpace, SnapshotSpace, Volume, VolumeClone, VolumeEfficiency, VolumeNas, VolumeQuery, VolumeSpace,
    VolumeState, VolumeStyle,
};
pub use volume_change::{NewClone, NewVolume, VolumeChange};

use crate::error::{Error, Result};

/// What an account or platform may not offer: FSx for ONTAP shows no aggregates, nodes and HA, and a role may
/// hide anything. That is an answer, not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Visibility<T> {
    /// What is there.
    Visible(T),
    /// It cannot be seen from here.
    NotVisible {
        /// What ONTAP said.
        why: String,
    },
}

impl<T> Visibility<T> {
    /// What is there, if it can be seen.
    pub fn visible(self) -> Option<T> {
        match self {
            Self::Visible(value) => Some(value),
            Self::NotVisible { .. } => None,
        }
    }

    fn of(outcome: Result<T>) -> Result<Self> {
        match outcome {
            Err(error) if error.is_not_visible() => Ok(Self::NotVisible { why: error.to_string() }),
            outcome => outcome.map(Self::Visible),
        }
    }
}

/// The object that was created: ONTAP said that it is there, so not finding it is a contradiction.
fn created<T>(request: crate::error::Request, found: Option<T>) -> Result<T> {
    found.ok_or_else(|| Error::NotApplied { request, what: "it is not there when read back".to_owned() })
}
