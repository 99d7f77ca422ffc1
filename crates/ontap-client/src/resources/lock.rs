//! Locks that clients hold on files. An NFSv4 open shows as `share_level`, a byte range lock as `byte_range`.

use std::net::IpAddr;

use serde::Deserialize;

use super::interface::IpAddress;
use super::is_constituent;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::query::Query;
use crate::send::Ask;
use crate::value::{self, Reference, open_enum};

open_enum! {
    /// By which protocol a lock is held. NFSv4.2 has no word of its own.
    LockProtocol {
        /// SMB.
        Cifs = "cifs",
        /// FlexCache.
        Fcache = "fcache",
        /// NFSv4.0.
        Nfsv4 = "nfsv4",
        /// NFSv4.1.
        Nfsv41 = "nfsv4.1",
        /// HTTP.
        Http = "http",
        /// NFSv3.
        Nlm = "nlm",
        /// ONTAP itself.
        Crposix = "crposix",
    }
}

open_enum! {
    /// What is locked.
    LockKind {
        /// A range of bytes.
        ByteRange = "byte_range",
        /// The file is open.
        ShareLevel = "share_level",
        /// An opportunistic lock of SMB.
        OpLock = "op_lock",
        /// The client may act for the server.
        Delegation = "delegation",
    }
}

open_enum! {
    /// How far a lock is.
    LockState {
        /// Held.
        Granted = "granted",
        /// Being called back.
        Revoking = "revoking",
        /// Changed.
        Adjusted = "adjusted",
        /// Not given.
        Denied = "denied",
        /// Part of another one.
        Subsumed = "subsumed",
        /// No longer there.
        Gone = "gone",
        /// Not in use.
        Unused = "unused",
        /// Waits for another one.
        Waiting = "waiting",
        /// Waited for too long.
        Timeout = "timeout",
    }
}

/// A lock of a range of bytes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ByteLock {
    /// Its first byte.
    #[serde(default, rename = "offset", deserialize_with = "value::number")]
    pub offset_bytes: Option<u64>,
    /// How many bytes.
    #[serde(default, rename = "length", deserialize_with = "value::number")]
    pub length_bytes: Option<u64>,
    /// Whether nobody else may have it.
    #[serde(default, deserialize_with = "value::flag")]
    pub exclusive: Option<bool>,
    /// Whether it binds those who do not ask for it.
    #[serde(default, deserialize_with = "value::flag")]
    pub mandatory: Option<bool>,
}

/// An open file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ShareLock {
    /// For what, and what it denies to others, for instance `read_write_deny_none`.
    #[serde(default, deserialize_with = "value::text")]
    pub mode: Option<String>,
    /// Whether it gives way to others.
    #[serde(default, deserialize_with = "value::flag")]
    pub soft: Option<bool>,
}

/// The LIF that a lock came through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct LockInterface {
    /// Its name.
    #[serde(default, deserialize_with = "value::text")]
    pub name: Option<String>,
    /// Its UUID.
    #[serde(default, deserialize_with = "value::text")]
    pub uuid: Option<String>,
    /// Its address.
    #[serde(default, deserialize_with = "value::part")]
    pub ip: IpAddress,
}

/// A lock.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Lock {
    /// Its key.
    #[serde(deserialize_with = "value::key")]
    pub uuid: String,
    /// The SVM.
    #[serde(default, deserialize_with = "value::part")]
    pub svm: Reference,
    /// The volume.
    #[serde(default, deserialize_with = "value::part")]
    pub volume: Reference,
    /// The node.
    #[serde(default, deserialize_with = "value::part")]
    pub node: Reference,
    /// The LIF.
    #[serde(default, deserialize_with = "value::part")]
    pub interface: LockInterface,
    /// Who holds it: the address that its mount uses. ONTAP's own documents say that it cannot show this of
    /// NFSv4 (`nfs-admin/display-locks-task`, where the column reads `-`), so ask [`Lock::client`] for it.
    #[serde(default, deserialize_with = "value::text")]
    pub client_address: Option<String>,
    /// By which protocol.
    #[serde(default)]
    pub protocol: Option<LockProtocol>,
    /// What is locked.
    #[serde(default, rename = "type")]
    pub kind: Option<LockKind>,
    /// How far it is.
    #[serde(default)]
    pub state: Option<LockState>,
    /// The file, from the SVM's root on.
    #[serde(default, deserialize_with = "value::text")]
    pub path: Option<String>,
    /// What the client calls itself.
    #[serde(default, deserialize_with = "value::text")]
    pub owner_id: Option<String>,
    /// `read` or `write`, of a delegation.
    #[serde(default, deserialize_with = "value::text")]
    pub delegation: Option<String>,
    /// Of a byte range.
    #[serde(default)]
    pub byte_lock: Option<ByteLock>,
    /// Of an open file.
    #[serde(default)]
    pub share_lock: Option<ShareLock>,
    /// Whether it is on a constituent of a FlexGroup.
    #[serde(default, deserialize_with = "value::flag")]
    pub constituent: Option<bool>,
}

impl Lock {
    /// Who holds it, where ONTAP says so. `None`: it may be anybody's.
    #[must_use]
    pub fn client(&self) -> Option<IpAddr> {
        let address = self.client_address.as_deref()?.trim().parse::<IpAddr>().ok()?;
        Some(address.to_canonical()).filter(|address| !address.is_unspecified())
    }
}

/// Which locks. The more is said, the less ONTAP has to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockQuery<'a> {
    /// The SVM's name.
    pub svm: &'a str,
    /// The volumes' names; empty: all. Locks in a FlexGroup may carry its own name or that of a constituent,
    /// so both are asked for; whoever reads them goes by [`is_constituent`](super::is_constituent).
    pub volumes: &'a [&'a str],
    /// The IP address of who holds them, in any spelling. ONTAP may not know it: whoever has to see all locks
    /// of a client asks without it.
    pub client_address: Option<&'a str>,
    /// By which protocol.
    pub protocol: Option<&'a LockProtocol>,
}

impl<'a> LockQuery<'a> {
    /// All locks in an SVM.
    #[must_use]
    pub fn in_svm(svm: &'a str) -> Self {
        Self { svm, volumes: &[], client_address: None, protocol: None }
    }

    fn query(&self) -> Result<Query> {
        Query::new()
            .equal("svm.name", self.svm)?
            .of_volumes("volume.name", self.volumes)?
            .maybe_address("client_address", self.client_address)?
            .maybe("protocol", self.protocol.map(LockProtocol::as_str))
    }
}

const PATH: &[&str] = &["protocols", "locks"];

/// An address of 2 kB: servers take 8 kB and more.
const UUIDS_IN_A_REQUEST: usize = 50;

const FIELDS: &[&str] = &[
    "uuid",
    "svm",
    "volume",
    "node",
    "interface",
    "client_address",
    "protocol",
    "type",
    "state",
    "path",
    "owner_id",
    "delegation",
    "byte_lock",
    "share_lock",
    "constituent",
];

impl Client {
    /// The locks that match. ONTAP 9.10.1.
    ///
    /// That there are none proves something only if the SVM and the volume are there by these names, and the
    /// address is the one that the mount uses: ONTAP does not say that a name matches nothing. So look both
    /// up first.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::Usage`] if the client's address is none; [`Error::Decode`] if a
    /// lock of another SVM or volume is shown.
    pub async fn locks(&self, which: &LockQuery<'_>) -> Result<Vec<Lock>> {
        let query = which.query()?.fields(FIELDS);
        let request = Ask::get(self.url(PATH, &query)?).request();
        let locks = self.call().list_of_svm(PATH, query, which.svm, |lock: &Lock| &lock.svm).await?;
        let asked = |name: &str| which.volumes.iter().any(|of| *of == name || is_constituent(of, name));
        let mut names = locks.iter().filter_map(|lock| lock.volume.name.as_deref());
        match names.find(|name| !which.volumes.is_empty() && !asked(name)) {
            Some(name) => {
                Err(Error::Decode { request, what: format!("a lock in {name}, which was not asked for") })
            }
            None => Ok(locks),
        }
    }

    /// Breaks these locks of an SVM, and no others, and says how many ONTAP counted: so many in a request as
    /// an address holds. `Ok` also for those that are gone. Their holder is not asked and not told: see to it
    /// first that it cannot take them again. ONTAP 9.10.1; needs what the command line calls advanced
    /// privilege.
    ///
    /// # Errors
    /// As [`break_locks`](Self::break_locks).
    pub async fn break_these_locks(&self, svm: &str, uuids: &[&str]) -> Result<u64> {
        let call = self.call();
        let mut broken = 0;
        for some in uuids.chunks(UUIDS_IN_A_REQUEST) {
            let query = Query::new().equal("svm.name", svm)?.any_of("uuid", some)?;
            broken += call.delete_matching(PATH, query).await?;
        }
        Ok(broken)
    }

    /// Breaks all locks that match, and says how many ONTAP counted. If ONTAP stops at one that has gone by
    /// itself, it goes on until none is left or the time is up. Read them again afterwards: a holder that is
    /// not fenced takes them again. ONTAP 9.10.1; needs what the command line calls advanced privilege.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::Partial`] if some could not be broken; [`Error::Unconfirmed`]
    /// also for a refusal that may be about one lock after others were broken; [`Error::Usage`] if neither a
    /// volume nor a client is named, since that would break the locks of everyone in the SVM.
    pub async fn break_locks(&self, which: &LockQuery<'_>) -> Result<u64> {
        if which.volumes.is_empty() && which.client_address.is_none() {
            return Err(Error::usage("name a volume or a client: these would be the locks of everyone"));
        }
        self.call().delete_matching(PATH, which.query()?).await
    }
}
