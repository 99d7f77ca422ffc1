//! Storage virtual machines.

use serde::Deserialize;

use crate::client::Client;
use crate::error::Result;
use crate::query::Query;
use crate::value::{self, Reference, open_enum};

open_enum! {
    /// Whether an SVM serves.
    SvmState {
        /// Comes up.
        Starting = "starting",
        /// Serves.
        Running = "running",
        /// Goes down.
        Stopping = "stopping",
        /// Does not serve.
        Stopped = "stopped",
        /// Is being removed.
        Deleting = "deleting",
        /// Is being made.
        Initializing = "initializing",
    }
}

/// A storage virtual machine.
#[derive(Debug, Clone, Deserialize)]
pub struct Svm {
    /// Its key.
    #[serde(deserialize_with = "value::key")]
    pub uuid: String,
    /// Its name.
    #[serde(deserialize_with = "value::key")]
    pub name: String,
    /// Whether it serves.
    #[serde(default)]
    pub state: Option<SvmState>,
    /// Its part, for instance `default` or `dp_destination`. ONTAP 9.6.
    #[serde(default, deserialize_with = "value::text")]
    pub subtype: Option<String>,
    /// The aggregates that it may use.
    #[serde(default, deserialize_with = "value::list")]
    pub aggregates: Vec<Reference>,
}

const FIELDS: &[&str] = &["uuid", "name", "state", "subtype", "aggregates"];

impl Client {
    /// All SVMs. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn svms(&self) -> Result<Vec<Svm>> {
        self.call().list(&["svm", "svms"], Query::new().fields(FIELDS)).await
    }

    /// The SVM of this name. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn svm(&self, name: &str) -> Result<Option<Svm>> {
        let query = Query::new().equal("name", name)?.fields(FIELDS);
        self.call().find(&["svm", "svms"], query).await
    }
}
