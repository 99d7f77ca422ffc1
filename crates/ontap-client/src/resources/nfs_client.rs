//! Who has been using NFS, as ONTAP remembers it.

use std::time::Duration;

use serde::Deserialize;

use crate::client::Client;
use crate::error::Result;
use crate::query::Query;
use crate::value::{self, Reference, open_enum};

open_enum! {
    /// By which version of NFS.
    NfsVersion {
        /// Not told.
        Nfs = "nfs",
        /// NFSv3.
        Nfs3 = "nfs3",
        /// NFSv4.0.
        Nfs4 = "nfs4",
        /// NFSv4.1.
        Nfs41 = "nfs4.1",
        /// NFSv4.2.
        Nfs42 = "nfs4.2",
    }
}

/// A client, on one LIF, with one volume. It stays here for up to two days after its last operation,
/// unmounted or not: go by [`idle`](Self::idle), not by its being here.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NfsClient {
    /// The SVM.
    #[serde(default, deserialize_with = "value::part")]
    pub svm: Reference,
    /// The node.
    #[serde(default, deserialize_with = "value::part")]
    pub node: Reference,
    /// The volume.
    #[serde(default, deserialize_with = "value::part")]
    pub volume: Reference,
    /// The address that its mount uses.
    #[serde(default, deserialize_with = "value::text")]
    pub client_ip: Option<String>,
    /// The LIF's address.
    #[serde(default, deserialize_with = "value::text")]
    pub server_ip: Option<String>,
    /// By which version of NFS.
    #[serde(default)]
    pub protocol: Option<NfsVersion>,
    /// The export policy that it came by. ONTAP 9.9.
    #[serde(default, deserialize_with = "value::part")]
    pub export_policy: Reference,
    /// How long it has done nothing. `None`: not known.
    #[serde(default, rename = "idle_duration", deserialize_with = "value::duration")]
    pub idle: Option<Duration>,
    /// Requests that this node answered from its own volumes.
    #[serde(default, rename = "local_request_count", deserialize_with = "value::number")]
    pub local_requests: Option<u64>,
    /// Requests that it passed on to other nodes.
    #[serde(default, rename = "remote_request_count", deserialize_with = "value::number")]
    pub remote_requests: Option<u64>,
}

/// How ONTAP remembers clients.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NfsClientSettings {
    /// How long it remembers one that does nothing. ONTAP's default: 48 h.
    #[serde(default, rename = "client_retention_interval", deserialize_with = "value::duration")]
    pub retention: Option<Duration>,
    /// How often it writes down what it remembers: 1 to 8 h, by the vendor's own model, and read-only.
    #[serde(default, rename = "update_interval", deserialize_with = "value::duration")]
    pub update: Option<Duration>,
    /// Whether a client is forgotten as soon as its connection is closed.
    #[serde(default, rename = "enable_nfs_clients_deletion", deserialize_with = "value::flag")]
    pub forgets_closed: Option<bool>,
}

/// Which clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NfsClientQuery<'a> {
    /// The SVM's name.
    pub svm: &'a str,
    /// The volume's name.
    pub volume: Option<&'a str>,
    /// The IP address that its mount uses, in any spelling.
    pub client_ip: Option<&'a str>,
}

const PATH: &[&str] = &["protocols", "nfs", "connected-clients"];

const FIELDS: &[&str] = &[
    "svm",
    "node",
    "server_ip",
    "client_ip",
    "volume.name",
    "volume.uuid",
    "protocol",
    "export_policy.name",
    "idle_duration",
    "local_request_count",
    "remote_request_count",
];

impl Client {
    /// Who has been using NFS. ONTAP 9.7. That nobody matches proves something only if the SVM and the volume
    /// are there by these names.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error); [`Error::Usage`](crate::Error::Usage) if the client's
    /// address is none.
    pub async fn nfs_clients(&self, which: &NfsClientQuery<'_>) -> Result<Vec<NfsClient>> {
        let query = Query::new()
            .equal("svm.name", which.svm)?
            .maybe("volume.name", which.volume)?
            .maybe_address("client_ip", which.client_ip)?;
        self.call().list_of_svm(PATH, query.fields(FIELDS), which.svm, |client: &NfsClient| &client.svm).await
    }

    /// Who has been using these volumes, or constituents of theirs, in one request. ONTAP 9.7.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error); [`Error::Usage`](crate::Error::Usage) if a name cannot be
    /// asked for.
    pub async fn nfs_clients_of(&self, svm: &str, volumes: &[&str]) -> Result<Vec<NfsClient>> {
        let query = Query::new().equal("svm.name", svm)?.of_volumes("volume.name", volumes)?;
        self.call().list_of_svm(PATH, query.fields(FIELDS), svm, |client: &NfsClient| &client.svm).await
    }

    /// How ONTAP remembers clients. ONTAP 9.12.1.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn nfs_client_settings(&self) -> Result<NfsClientSettings> {
        self.call().get(&["protocols", "nfs", "connected-client-settings"], Query::new()).await
    }
}
