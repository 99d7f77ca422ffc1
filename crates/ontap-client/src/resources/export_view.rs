//! Who may reach which volume, of a whole SVM in two requests: for those who have to know it soon.

use serde::Deserialize;

use super::export::ExportRule;
use super::volume::{VolumeNas, VolumeState};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::query::Query;
use crate::send::Ask;
use crate::value;

/// How a volume is exported.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct VolumeExport {
    /// Its key.
    #[serde(deserialize_with = "value::key")]
    pub uuid: String,
    /// Its name, one of a kind in its SVM.
    #[serde(deserialize_with = "value::key")]
    pub name: String,
    /// Whether it can be used.
    #[serde(default)]
    pub state: Option<VolumeState>,
    /// Its junction and its export policy; nothing else of it is asked for.
    #[serde(default, deserialize_with = "value::part")]
    pub nas: VolumeNas,
}

/// An export policy with its rules.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PolicyRules {
    /// Its key: a number, not a UUID.
    #[serde(deserialize_with = "value::key_number")]
    pub id: u64,
    /// Its name, one of a kind in its SVM.
    #[serde(deserialize_with = "value::key")]
    pub name: String,
    /// Its rules in the order in which they are asked.
    #[serde(default, deserialize_with = "value::list")]
    pub rules: Vec<ExportRule>,
    /// Whether rules beyond the 500th are missing here. ONTAP 9.18; such a policy is never handed out.
    #[serde(default, deserialize_with = "value::flag")]
    are_rules_truncated: Option<bool>,
}

const POLICIES: &[&str] = &["protocols", "nfs", "export-policies"];

impl Client {
    /// How the volumes of an SVM are exported. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`].
    pub async fn volume_exports(&self, svm: &str) -> Result<Vec<VolumeExport>> {
        let query = Query::new().equal("svm.name", svm)?;
        let fields = ["uuid", "name", "state", "nas.path", "nas.export_policy"];
        self.call().list(super::volume::PATH, query.fields(&fields)).await
    }

    /// The export policies of an SVM with their rules. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::Partial`] if ONTAP has cut off the rules of one: then read them
    /// by [`Client::export_rules`].
    pub async fn export_policy_rules(&self, svm: &str) -> Result<Vec<PolicyRules>> {
        let query = Query::new().equal("svm.name", svm)?;
        // Not known before 9.18, which `ignore_unknown_fields` is for.
        let query = query.fields(&["id", "name", "rules", "are_rules_truncated"]);
        let request = Ask::get(self.url(POLICIES, &query)?).request();
        let mut policies: Vec<PolicyRules> = self.call().list(POLICIES, query).await?;
        if let Some(cut) = policies.iter().find(|policy| policy.are_rules_truncated == Some(true)) {
            let why = format!("the rules of policy {} are cut off", cut.name);
            return Err(Error::Partial { request, got: cut.rules.len(), why });
        }
        for policy in &mut policies {
            policy.rules.sort_by_key(|rule| rule.index);
        }
        Ok(policies)
    }
}
