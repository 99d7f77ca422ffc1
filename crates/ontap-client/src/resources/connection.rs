//! TCP connections to LIFs, as the command line shows them. ONTAP takes the picture anew every 30 s.

use serde::Deserialize;

use super::Visibility;
use super::cli::path;
use crate::client::Client;
use crate::error::Result;
use crate::query::Query;
use crate::value;

/// A connection.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ActiveConnection {
    /// The node.
    #[serde(default, deserialize_with = "value::text")]
    pub node: Option<String>,
    /// The SVM.
    #[serde(default, deserialize_with = "value::text")]
    pub vserver: Option<String>,
    /// Its number on its node.
    #[serde(default, deserialize_with = "value::text")]
    pub cid: Option<String>,
    /// The LIF's name.
    #[serde(default, deserialize_with = "value::text")]
    pub lif_name: Option<String>,
    /// The LIF's address.
    #[serde(default, deserialize_with = "value::text")]
    pub local_address: Option<String>,
    /// The LIF's port.
    #[serde(default, deserialize_with = "value::number")]
    pub local_port: Option<u16>,
    /// The client's address.
    #[serde(default, deserialize_with = "value::text")]
    pub remote_ip: Option<String>,
    /// The client's port.
    #[serde(default, deserialize_with = "value::number")]
    pub remote_port: Option<u16>,
    /// `tcp` or `udp`.
    #[serde(default, deserialize_with = "value::text")]
    pub proto: Option<String>,
    /// What is served, for instance `nfs`.
    #[serde(default, deserialize_with = "value::text")]
    pub service: Option<String>,
}

/// Which connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionQuery<'a> {
    /// The SVM's name.
    pub svm: &'a str,
    /// The client's IP address, in any spelling.
    pub remote_ip: Option<&'a str>,
    /// What is served, for instance `nfs*`, in ONTAP's query language.
    pub service: Option<&'a str>,
}

/// Not `remote-host`, for which ONTAP would ask the DNS about every client.
const FIELDS: &[&str] =
    &["lif-name", "local-address", "local-port", "remote-ip", "remote-port", "proto", "service"];

impl Client {
    /// The connections that match. ONTAP 9.6, by the passthrough to the command line; the account's role
    /// needs `/api/private/cli/network/connections`.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error); [`Error::Usage`](crate::Error::Usage) if the client's
    /// address is none.
    pub async fn active_connections(
        &self,
        which: &ConnectionQuery<'_>,
    ) -> Result<Visibility<Vec<ActiveConnection>>> {
        let mut query =
            Query::new().equal("vserver", which.svm)?.maybe_address("remote-ip", which.remote_ip)?;
        if let Some(service) = which.service {
            query = query.raw("service", service);
        }
        let found = self.call().list_plain(&path("network connections active"), query.fields(FIELDS)).await;
        Visibility::of(found)
    }
}
