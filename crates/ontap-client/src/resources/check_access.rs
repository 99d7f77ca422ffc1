//! What ONTAP's own evaluation of the export rules says of one client, by the passthrough.

use std::net::IpAddr;

use serde::Deserialize;

use super::cli::path;
use crate::client::Client;
use crate::error::Result;
use crate::query::Query;
use crate::value;

/// One component of the path to a volume, with what the rules there give a client.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PathAccess {
    /// The path so far, such as `/` or `/kafka01`.
    #[serde(default, deserialize_with = "value::text")]
    pub path: Option<String>,
    /// The export policy that decides there.
    #[serde(default, deserialize_with = "value::text")]
    pub policy: Option<String>,
    /// The volume or qtree whose policy it is.
    #[serde(default, deserialize_with = "value::text")]
    pub policy_owner: Option<String>,
    /// The rule that matched; 0: none.
    #[serde(default, deserialize_with = "value::number")]
    pub rule_index: Option<u64>,
    /// `denied`, `read` or `read_write`.
    #[serde(default, deserialize_with = "value::text")]
    pub access: Option<String>,
}

impl PathAccess {
    /// Whether ONTAP says that the client is not let in here. What it does not say is no such word.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.access.as_deref().is_some_and(|word| word.eq_ignore_ascii_case("denied"))
    }
}

const COMMAND: &str = "vserver export-policy check-access";
const FIELDS: &[&str] = &["path", "policy", "policy-owner", "rule-index", "access"];

impl Client {
    /// What the export rules give a client that writes to a volume by NFSv4 with Unix credentials, component
    /// by component of the path (`vserver export-policy check-access`). It is the rules that are evaluated,
    /// not what a node remembers of them.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error); [`Error::is_not_visible`](crate::Error::is_not_visible) if
    /// the account may not ask.
    pub async fn check_access(&self, svm: &str, volume: &str, client: IpAddr) -> Result<Vec<PathAccess>> {
        let query = Query::new()
            .equal("vserver", svm)?
            .equal("volume", volume)?
            .maybe_address("client-ip", Some(&client.to_string()))?
            .equal("authentication-method", "sys")?
            .equal("protocol", "nfs4")?
            .equal("access-type", "read-write")?;
        self.call().list_plain(&path(COMMAND), query.fields(FIELDS)).await
    }
}
