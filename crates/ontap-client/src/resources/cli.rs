//! The passthrough to the command line, for what REST does not have. Its use is reported to the vendor
//! (AutoSupport), and each command needs its own entry in the account's role, `/api/private/cli/<words>`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::client::{Call, Client};
use crate::error::{Error, Result};
use crate::job::after_change;
use crate::query::Query;
use crate::send::{Ask, Repeat};
use crate::value;

/// Which commands may be used.
#[derive(Debug, Clone, Copy)]
pub(super) enum Privilege {
    /// Those for every day.
    Admin,
    /// Those that may do harm.
    Advanced,
}

impl Privilege {
    pub(super) fn on(self, query: Query) -> Query {
        match self {
            Self::Admin => query,
            Self::Advanced => query.raw("privilege_level", "advanced"),
        }
    }
}

/// `volume show` is `volume`; `vserver export-policy cache flush` is itself.
pub(super) fn path(command: &str) -> Vec<&str> {
    ["private", "cli"].into_iter().chain(command.split_whitespace()).collect()
}

impl Client {
    /// Whether ONTAP keeps a file that is deleted while a client has it open, so that the client need not
    /// rename it to `.nfs…` instead. `None`: ONTAP does not say. Asked as admin first, and then with advanced
    /// privilege, since which one is needed differs. ONTAP 9.12.1, by the passthrough.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::NothingMatched`] if there is no such volume.
    pub async fn preserve_unlink(&self, svm: &str, volume: &str) -> Result<Option<bool>> {
        self.call().preserve_unlink(svm, volume).await
    }

    /// As [`preserve_unlink`](Self::preserve_unlink), of every volume of an SVM in one request, by the
    /// volumes' names. ONTAP 9.12.1, by the passthrough.
    ///
    /// # Errors
    /// As every call, see [`Error`].
    pub async fn preserve_unlinks(&self, svm: &str) -> Result<BTreeMap<String, Option<bool>>> {
        let query = Query::new().equal("vserver", svm)?;
        let found: Vec<PreserveUnlinkOf> = self.call().show_preserve_unlink(query).await?;
        Ok(found.into_iter().map(|row| (row.volume, row.is_preserve_unlink_enabled)).collect())
    }

    /// Sets [`preserve_unlink`](Self::preserve_unlink), and reads it back. Tried as admin first, and then
    /// with advanced privilege, since which one is needed differs. ONTAP 9.12.1, by the passthrough.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::NotApplied`] if ONTAP said that it was done and it was not.
    pub async fn set_preserve_unlink(&self, svm: &str, volume: &str, on: bool) -> Result<()> {
        let body = serde_json::json!({ "is-preserve-unlink-enabled": on });
        let ask = |privilege: Privilege| -> Result<Ask> {
            let query = privilege.on(Query::new().equal("vserver", svm)?.equal("volume", volume)?);
            Ok(Ask::patch(self.url(&path("volume"), &query)?, body.clone(), Repeat::Safe))
        };
        let (call, first) = (self.call(), ask(Privilege::Admin)?);
        let request = first.request();
        if let Err(error) = call.cli_modify(first).await {
            // What may be in force already must not be forgotten over a second answer.
            if !wants_privilege(&error) || error.is_unconfirmed() {
                return Err(error);
            }
            // If that fails too, the second answer is the one about the parameter, which admin may not even
            // see.
            call.cli_modify(ask(Privilege::Advanced)?).await?;
        }
        let is = call.preserve_unlink(svm, volume).await.map_err(after_change(request.clone()))?;
        if is == Some(on) {
            return Ok(());
        }
        let what = format!("is-preserve-unlink-enabled of {volume} reads {is:?}");
        Err(Error::NotApplied { request, what })
    }
}

/// How many objects a command was about; 0: nothing matched.
#[derive(Debug, Default, Deserialize)]
struct Done {
    #[serde(default, deserialize_with = "value::number")]
    num_records: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct PreserveUnlink {
    #[serde(default, deserialize_with = "value::flag")]
    is_preserve_unlink_enabled: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct PreserveUnlinkOf {
    #[serde(deserialize_with = "value::key")]
    volume: String,
    #[serde(default, deserialize_with = "value::flag")]
    is_preserve_unlink_enabled: Option<bool>,
}

/// Whether more privilege may help: what a level does not offer, it refuses as unknown or as denied.
pub(super) fn wants_privilege(error: &Error) -> bool {
    // The passthrough may refuse with a good status, too.
    error.is_permission() || error.refusal().is_some_and(|refusal| matches!(refusal.status, 200 | 400))
}

impl Call<'_> {
    /// Changes what a command names, and follows its job.
    async fn cli_modify(&self, ask: Ask) -> Result<()> {
        let answer = self.change(ask).await?;
        let Done { num_records } = if answer.body.is_null() { Done::default() } else { answer.read()? };
        if num_records == Some(0) {
            return Err(answer.ending(Error::NothingMatched { request: answer.request.clone() }));
        }
        Ok(())
    }

    async fn preserve_unlink(&self, svm: &str, volume: &str) -> Result<Option<bool>> {
        let query = Query::new().equal("vserver", svm)?.equal("volume", volume)?;
        let request = Ask::get(self.client.url(&path("volume"), &query)?).request();
        let found: Vec<PreserveUnlink> = self.show_preserve_unlink(query).await?;
        match found.as_slice() {
            [] => Err(Error::NothingMatched { request }),
            [one] => Ok(one.is_preserve_unlink_enabled),
            more => Err(Error::Decode { request, what: format!("{} volumes of one name", more.len()) }),
        }
    }

    /// As admin first, and then with advanced privilege.
    async fn show_preserve_unlink<T: DeserializeOwned>(&self, query: Query) -> Result<Vec<T>> {
        let query = query.fields(&["is-preserve-unlink-enabled"]);
        match self.list_plain(&path("volume"), query.clone()).await {
            Err(error) if wants_privilege(&error) => {
                self.list_plain(&path("volume"), Privilege::Advanced.on(query)).await
            }
            found => found,
        }
    }
}
