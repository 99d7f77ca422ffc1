//! The objects of ONTAP, one file for each kind. All calls are methods of [`Client`](crate::Client).

mod access_cache;
mod aggregate;
mod check_access;
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
mod qtree;
mod snapshot;
mod svm;
mod volume;
mod volume_change;

use serde::de::DeserializeOwned;

use crate::client::Call;
use crate::error::{Error, Result};
use crate::query::Query;
use crate::send::Ask;
use crate::value::Reference;

pub use access_cache::{Cached, FlushAnswer, Polarity};
pub use aggregate::{Aggregate, AggregateSpace, BlockStorage, Efficiency};
pub use check_access::PathAccess;
pub use cluster::{
    Cluster, Giveback, GivebackState, Ha, Interconnect, Node, NodeState, Takeover, TakeoverCheck,
    TakeoverFailure, TakeoverState, Version,
};
pub use connection::{ActiveConnection, ConnectionQuery};
pub use export::{ClientMatch, ExportPolicy, ExportRule, NewExportRule};
pub use export_view::{PolicyRules, VolumeExport};
pub use interface::{Interface, InterfaceQuery, IpAddress, LinkState, Location};
pub use lock::{ByteLock, Lock, LockInterface, LockKind, LockProtocol, LockQuery, LockState, ShareLock};
pub use metrics::{Counters, Rates, VolumeCounters};
pub use nfs::{AccessCache, NfsProtocol, NfsService, NfsState, NfsTransport, NfsV41Features};
pub use nfs_client::{NfsClient, NfsClientQuery, NfsClientSettings, NfsVersion};
pub use qtree::Qtree;
pub use snapshot::{NewSnapshot, Snapshot, SnapshotState};
pub use svm::{Svm, SvmState};
pub use volume::{
    LogicalSpace, SnapshotSpace, Volume, VolumeClone, VolumeEfficiency, VolumeNas, VolumeQuery, VolumeSpace,
    VolumeState, VolumeStyle,
};
pub use volume_change::{NewVolume, VolumeChange};

/// Whether `name` can be a constituent of the FlexGroup `of`: `NAME__0001`, as ONTAP writes them, or
/// `NAME_0001`, as one page of its documents does. A volume of its own may have such a name too: whoever has
/// the list of volumes, in which constituents are not, looks there first.
#[must_use]
pub fn is_constituent(of: &str, name: &str) -> bool {
    let number = |digits: &str| digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let rest = name.strip_prefix(of).and_then(|rest| rest.strip_prefix('_'));
    rest.is_some_and(|rest| number(rest) || rest.strip_prefix('_').is_some_and(number))
}

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

impl Call<'_> {
    /// All records of a list that was asked of one SVM. One of another SVM shows that something else was
    /// answered than was asked, and then what is missing is not known to be missing.
    async fn list_of_svm<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: Query,
        svm: &str,
        of: impl Fn(&T) -> &Reference,
    ) -> Result<Vec<T>> {
        let request = Ask::get(self.client.url(path, &query)?).request();
        let rows: Vec<T> = self.list(path, query).await?;
        match rows.iter().find_map(|row| of_another(svm, of(row))) {
            Some(what) => Err(Error::Decode { request, what }),
            None => Ok(rows),
        }
    }
}

/// What is wrong with a record that says that it is of another SVM.
fn of_another(svm: &str, is: &Reference) -> Option<String> {
    let name = is.name.as_deref().filter(|name| *name != svm)?;
    Some(format!("a record of {name}, where {svm} was asked for"))
}

/// The object that was created: ONTAP said that it is there, so not finding it is a contradiction.
fn created<T>(request: crate::error::Request, found: Option<T>) -> Result<T> {
    found.ok_or_else(|| Error::NotApplied { request, what: "it is not there when read back".to_owned() })
}
