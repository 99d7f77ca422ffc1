//! Qtrees: directories at the top of a volume that may have an export policy of their own.

use serde::Deserialize;

use super::Visibility;
use crate::client::Client;
use crate::error::Result;
use crate::query::Query;
use crate::value::{self, Reference};

/// A qtree.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Qtree {
    /// Its number in the volume. 0: all of the volume that is in no other.
    #[serde(default, deserialize_with = "value::number")]
    pub id: Option<u64>,
    /// Its name. Empty: all of the volume that is in no other.
    #[serde(default, deserialize_with = "value::text")]
    pub name: Option<String>,
    /// Its SVM.
    #[serde(default, deserialize_with = "value::part")]
    pub svm: Reference,
    /// The volume that it is in.
    #[serde(default, deserialize_with = "value::part")]
    pub volume: Reference,
    /// The export policy that decides over it, its own or the volume's. Without a name: not told.
    #[serde(default, deserialize_with = "value::part")]
    pub export_policy: Reference,
}

impl Qtree {
    /// Whether it is all of the volume that is in no other.
    #[must_use]
    pub fn is_the_volume(&self) -> bool {
        self.id == Some(0)
    }
}

impl Client {
    /// The qtrees of these volumes of an SVM. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error), but that the account may not see them.
    pub async fn qtrees(&self, svm: &str, volumes: &[&str]) -> Result<Visibility<Vec<Qtree>>> {
        let query = Query::new().equal("svm.name", svm)?.any_of("volume.name", volumes)?;
        let query = query.fields(&["id", "name", "svm.name", "volume.name", "export_policy.name"]);
        let path = &["storage", "qtrees"];
        Visibility::of(self.call().list_of_svm(path, query, svm, |qtree: &Qtree| &qtree.svm).await)
    }
}
