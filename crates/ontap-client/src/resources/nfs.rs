//! The NFS service of an SVM.

use serde::Deserialize;

use super::of_another;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::query::Query;
use crate::send::Ask;
use crate::value::{self, Reference, open_enum};

open_enum! {
    /// Whether the service answers.
    NfsState {
        /// It does.
        Online = "online",
        /// It does not.
        Offline = "offline",
    }
}

/// What NFSv4.1 may do.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct NfsV41Features {
    /// Whether clients may hold layouts, and so reach a volume without its export rules being asked on the
    /// way that one thinks. ONTAP 9.8.
    #[serde(default, deserialize_with = "value::flag")]
    pub pnfs_enabled: Option<bool>,
    /// Whether clients may hold read delegations.
    #[serde(default, deserialize_with = "value::flag")]
    pub read_delegation_enabled: Option<bool>,
    /// Whether clients may hold write delegations.
    #[serde(default, deserialize_with = "value::flag")]
    pub write_delegation_enabled: Option<bool>,
    /// Whether clients are referred to other LIFs. Must be off for pNFS. ONTAP 9.13.
    #[serde(default, deserialize_with = "value::flag")]
    pub referrals_enabled: Option<bool>,
    /// Whether sessions may use several LIFs. ONTAP 9.12.
    #[serde(default, deserialize_with = "value::flag")]
    pub trunking_enabled: Option<bool>,
}

/// The versions of NFS and their times.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct NfsProtocol {
    /// NFSv3.
    #[serde(default, deserialize_with = "value::flag")]
    pub v3_enabled: Option<bool>,
    /// NFSv4.0.
    #[serde(default, deserialize_with = "value::flag")]
    pub v40_enabled: Option<bool>,
    /// NFSv4.1.
    #[serde(default, deserialize_with = "value::flag")]
    pub v41_enabled: Option<bool>,
    /// What NFSv4.1 may do.
    #[serde(default, deserialize_with = "value::part")]
    pub v41_features: NfsV41Features,
    /// The domain of NFSv4 user names.
    #[serde(default, deserialize_with = "value::text")]
    pub v4_id_domain: Option<String>,
    /// How long locks live without their client, in seconds. ONTAP's default: 30. ONTAP 9.13.
    #[serde(default, rename = "v4_lease_seconds", deserialize_with = "value::number")]
    pub v4_lease_secs: Option<u32>,
    /// How long clients may reclaim locks after a failover, in seconds. ONTAP's default: 45. ONTAP 9.13.
    #[serde(default, rename = "v4_grace_seconds", deserialize_with = "value::number")]
    pub v4_grace_secs: Option<u32>,
    /// Requests that a session may have under way. ONTAP 9.13.
    #[serde(default, deserialize_with = "value::number")]
    pub v4_session_slots: Option<u32>,
}

/// How NFS is carried.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct NfsTransport {
    /// Over TCP.
    #[serde(default, deserialize_with = "value::flag")]
    pub tcp_enabled: Option<bool>,
    /// The largest read or write, in bytes. ONTAP's default: 65536. ONTAP 9.11.
    #[serde(default, rename = "tcp_max_transfer_size", deserialize_with = "value::number")]
    pub tcp_max_transfer_bytes: Option<u32>,
}

/// How long a node remembers whether a client may access a policy's volumes, in seconds. The vendor's
/// documents do not agree on the defaults: read these, do not assume. ONTAP 9.10.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct AccessCache {
    /// That it may.
    #[serde(default, rename = "ttl_positive", deserialize_with = "value::number")]
    pub ttl_positive_secs: Option<u64>,
    /// That it may not.
    #[serde(default, rename = "ttl_negative", deserialize_with = "value::number")]
    pub ttl_negative_secs: Option<u64>,
    /// That it could not be found out.
    #[serde(default, rename = "ttl_failure", deserialize_with = "value::number")]
    pub ttl_failure_secs: Option<u64>,
    /// After how long without use it is forgotten.
    #[serde(default, rename = "harvest_timeout", deserialize_with = "value::number")]
    pub harvest_timeout_secs: Option<u64>,
}

/// The NFS service of an SVM.
#[derive(Debug, Clone, Deserialize)]
pub struct NfsService {
    /// The SVM.
    #[serde(default, deserialize_with = "value::part")]
    pub svm: Reference,
    /// Whether it is switched on.
    #[serde(default, deserialize_with = "value::flag")]
    pub enabled: Option<bool>,
    /// Whether it answers.
    #[serde(default)]
    pub state: Option<NfsState>,
    /// The versions of NFS and their times.
    #[serde(default, deserialize_with = "value::part")]
    pub protocol: NfsProtocol,
    /// How NFS is carried.
    #[serde(default, deserialize_with = "value::part")]
    pub transport: NfsTransport,
    /// What nodes remember about access.
    #[serde(default)]
    pub access_cache_config: Option<AccessCache>,
}

const PATH: &[&str] = &["protocols", "nfs", "services"];
const FIELDS: &[&str] = &["svm", "enabled", "state", "protocol", "transport", "access_cache_config"];

impl Client {
    /// The NFS service of an SVM; `None` if it has none. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn nfs_service(&self, svm: &str) -> Result<Option<NfsService>> {
        let query = Query::new().equal("svm.name", svm)?.fields(FIELDS);
        let request = Ask::get(self.url(PATH, &query)?).request();
        let found: Option<NfsService> = self.call().find(PATH, query).await?;
        match found.as_ref().and_then(|service| of_another(svm, &service.svm)) {
            Some(what) => Err(Error::Decode { request, what }),
            None => Ok(found),
        }
    }
}
