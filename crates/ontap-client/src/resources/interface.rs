//! LIFs: the addresses that clients reach, and where they are.

use serde::Deserialize;

use crate::client::Client;
use crate::error::Result;
use crate::query::Query;
use crate::value::{self, Reference, open_enum};

open_enum! {
    /// Whether a LIF can be reached.
    LinkState {
        /// It can.
        Up = "up",
        /// It cannot.
        Down = "down",
    }
}

/// An address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct IpAddress {
    /// The address.
    #[serde(default, deserialize_with = "value::text")]
    pub address: Option<String>,
    /// Its mask, or the length of its prefix.
    #[serde(default, deserialize_with = "value::text")]
    pub netmask: Option<String>,
    /// `ipv4` or `ipv6`.
    #[serde(default, deserialize_with = "value::text")]
    pub family: Option<String>,
}

/// Where a LIF is, and where it belongs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Location {
    /// The node that it is on.
    #[serde(default, deserialize_with = "value::part")]
    pub node: Reference,
    /// The port that it is on.
    #[serde(default, deserialize_with = "value::part")]
    pub port: Reference,
    /// The node that it belongs to.
    #[serde(default, deserialize_with = "value::part")]
    pub home_node: Reference,
    /// The port that it belongs to.
    #[serde(default, deserialize_with = "value::part")]
    pub home_port: Reference,
    /// Whether it is where it belongs.
    #[serde(default, deserialize_with = "value::flag")]
    pub is_home: Option<bool>,
    /// Whether it goes back by itself.
    #[serde(default, deserialize_with = "value::flag")]
    pub auto_revert: Option<bool>,
    /// Where it may go.
    #[serde(default, deserialize_with = "value::text")]
    pub failover: Option<String>,
}

/// A LIF.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Interface {
    /// Its key.
    #[serde(deserialize_with = "value::key")]
    pub uuid: String,
    /// Its name.
    #[serde(deserialize_with = "value::key")]
    pub name: String,
    /// Its SVM, if it has one.
    #[serde(default, deserialize_with = "value::part")]
    pub svm: Reference,
    /// Its address.
    #[serde(default, deserialize_with = "value::part")]
    pub ip: IpAddress,
    /// Whether it is switched on.
    #[serde(default, deserialize_with = "value::flag")]
    pub enabled: Option<bool>,
    /// Whether it can be reached.
    #[serde(default)]
    pub state: Option<LinkState>,
    /// What it serves, for instance `data_nfs`.
    #[serde(default, deserialize_with = "value::list")]
    pub services: Vec<String>,
    /// The policy that says what it serves.
    #[serde(default, deserialize_with = "value::part")]
    pub service_policy: Reference,
    /// Where it is, and where it belongs.
    #[serde(default, deserialize_with = "value::part")]
    pub location: Location,
}

/// Which LIFs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterfaceQuery<'a> {
    /// The SVM's name.
    pub svm: Option<&'a str>,
    /// What they serve, for instance `data_nfs`.
    pub service: Option<&'a str>,
}

const PATH: &[&str] = &["network", "ip", "interfaces"];
const FIELDS: &[&str] =
    &["uuid", "name", "svm", "ip", "enabled", "state", "services", "service_policy", "location"];

impl Client {
    /// The LIFs that match. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn interfaces(&self, which: &InterfaceQuery<'_>) -> Result<Vec<Interface>> {
        let query = Query::new().maybe("svm.name", which.svm)?.maybe("services", which.service)?;
        let (call, query) = (self.call(), query.fields(FIELDS));
        match which.svm {
            Some(svm) => call.list_of_svm(PATH, query, svm, |lif: &Interface| &lif.svm).await,
            None => call.list(PATH, query).await,
        }
    }
}
