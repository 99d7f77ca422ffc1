//! The NFS service of an SVM.

use serde::Deserialize;

use super::{created, of_another};
use crate::body::Body;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::job::after_change;
use crate::query::Query;
use crate::send::{Ask, Repeat};
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

/// What to set in an NFS service; `None` is left as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NfsChange {
    /// Switches the service on or off.
    pub enabled: Option<bool>,
    /// NFSv3.
    pub v3_enabled: Option<bool>,
    /// NFSv4.0.
    pub v40_enabled: Option<bool>,
    /// NFSv4.1.
    pub v41_enabled: Option<bool>,
    /// pNFS. ONTAP 9.8.
    pub pnfs_enabled: Option<bool>,
    /// Seconds; at least 10 and less than the grace time. ONTAP 9.13.
    pub v4_lease_secs: Option<u32>,
    /// Seconds; more than the lease and at most 180. ONTAP 9.13.
    pub v4_grace_secs: Option<u32>,
    /// Bytes from 8192 to 1048576, a multiple of 4096. Mounts see it once they are mounted anew. ONTAP 9.11.
    pub tcp_max_transfer_bytes: Option<u32>,
    /// How long a node remembers that a client may access, in seconds. The shorter, the sooner a changed
    /// export rule bites, and the more often it is asked for. ONTAP 9.10.
    pub access_ttl_positive_secs: Option<u32>,
    /// How long a node remembers that a client may not access, in seconds. ONTAP 9.10.
    pub access_ttl_negative_secs: Option<u32>,
}

impl NfsChange {
    fn body(&self) -> Body {
        Body::new()
            .set("enabled", self.enabled)
            .set("protocol.v3_enabled", self.v3_enabled)
            .set("protocol.v40_enabled", self.v40_enabled)
            .set("protocol.v41_enabled", self.v41_enabled)
            .set("protocol.v41_features.pnfs_enabled", self.pnfs_enabled)
            .set("protocol.v4_lease_seconds", self.v4_lease_secs)
            .set("protocol.v4_grace_seconds", self.v4_grace_secs)
            .set("transport.tcp_max_transfer_size", self.tcp_max_transfer_bytes)
            .set("access_cache_config.ttl_positive", self.access_ttl_positive_secs)
            .set("access_cache_config.ttl_negative", self.access_ttl_negative_secs)
    }
}

impl NfsChange {
    /// The first field that is not as it was set.
    fn contradiction(&self, is: &NfsService) -> Option<&'static str> {
        fn differs<T: PartialEq>(set: Option<T>, is: Option<T>) -> bool {
            set.is_some() && is.is_some() && set != is
        }
        let cache = |ttl: fn(&AccessCache) -> Option<u64>| is.access_cache_config.as_ref().and_then(ttl);
        let (protocol, transport) = (&is.protocol, &is.transport);
        [
            ("enabled", differs(self.enabled, is.enabled)),
            ("v3_enabled", differs(self.v3_enabled, protocol.v3_enabled)),
            ("v40_enabled", differs(self.v40_enabled, protocol.v40_enabled)),
            ("v41_enabled", differs(self.v41_enabled, protocol.v41_enabled)),
            ("pnfs_enabled", differs(self.pnfs_enabled, protocol.v41_features.pnfs_enabled)),
            ("v4_lease_seconds", differs(self.v4_lease_secs, protocol.v4_lease_secs)),
            ("v4_grace_seconds", differs(self.v4_grace_secs, protocol.v4_grace_secs)),
            ("tcp_max_transfer_size", differs(self.tcp_max_transfer_bytes, transport.tcp_max_transfer_bytes)),
            (
                "ttl_positive",
                differs(self.access_ttl_positive_secs.map(u64::from), cache(|cache| cache.ttl_positive_secs)),
            ),
            (
                "ttl_negative",
                differs(self.access_ttl_negative_secs.map(u64::from), cache(|cache| cache.ttl_negative_secs)),
            ),
        ]
        .into_iter()
        .find_map(|(field, differs)| differs.then_some(field))
    }
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

    /// Makes an NFS service, and returns it as read back. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn create_nfs_service(&self, svm: &str, settings: &NfsChange) -> Result<NfsService> {
        let call = self.call();
        // Before anything is sent: a name that cannot be asked for could not be read back.
        let query = Query::new().equal("svm.name", svm)?.fields(FIELDS);
        let body = settings.body().set("svm.name", Some(svm));
        let ask = Ask::post(self.url(PATH, &Query::new())?, body.into());
        let request = ask.request();
        call.change(ask).await?;
        created(request.clone(), call.find(PATH, query).await.map_err(after_change(request))?)
    }

    /// Changes the NFS service of the SVM with this UUID, and reads it back. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::Usage`] if there is nothing to change; [`Error::NotApplied`] if
    /// ONTAP said that it was done, and something reads back otherwise. What ONTAP does not show is not
    /// compared.
    pub async fn update_nfs_service(&self, svm_uuid: &str, change: &NfsChange) -> Result<()> {
        let body = change.body();
        if body.is_empty() {
            return Err(Error::usage("there is nothing to change in the NFS service"));
        }
        let path = [PATH, &[svm_uuid]].concat();
        let ask = Ask::patch(self.url(&path, &Query::new())?, body.into(), Repeat::Safe);
        let (call, request) = (self.call(), ask.request());
        call.change(ask).await?;
        let query = Query::new().fields(FIELDS);
        let service: NfsService = call.get(&path, query).await.map_err(after_change(request.clone()))?;
        match change.contradiction(&service) {
            Some(field) => {
                Err(Error::NotApplied { request, what: format!("{field} reads back as another value") })
            }
            None => Ok(()),
        }
    }
}
