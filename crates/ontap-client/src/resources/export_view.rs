//! Who may reach which volume, of a whole SVM in two requests: for those who have to know it soon.

use serde::Deserialize;
use serde_json::Value;

use super::export::ExportRule;
use super::volume::{VolumeNas, VolumeState};
use crate::client::Client;
use crate::error::Result;
use crate::query::Query;
use crate::value::{self, Reference};

/// How a volume is exported.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct VolumeExport {
    /// Its key.
    #[serde(deserialize_with = "value::key")]
    pub uuid: String,
    /// Its name, one of a kind in its SVM.
    #[serde(deserialize_with = "value::key")]
    pub name: String,
    /// Its SVM.
    #[serde(default, deserialize_with = "value::part")]
    pub svm: Reference,
    /// Whether it can be used.
    #[serde(default)]
    pub state: Option<VolumeState>,
    /// Its junction and its export policy; nothing else of it is asked for.
    #[serde(default, deserialize_with = "value::part")]
    pub nas: VolumeNas,
}

/// An export policy with its rules.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Sent")]
pub struct PolicyRules {
    /// Its key: a number, not a UUID.
    pub id: u64,
    /// Its name, one of a kind in its SVM.
    pub name: String,
    /// Its SVM.
    pub svm: Reference,
    /// Its rules in the order in which they are asked; or why they are not known: one of them cannot be
    /// understood (a rule without `index`, a client without `match`), or ONTAP has cut off those beyond the
    /// 500th. That says nothing about other policies.
    pub rules: Result<Vec<ExportRule>, String>,
}

/// As ONTAP sends it.
#[derive(Debug, Deserialize)]
struct Sent {
    #[serde(deserialize_with = "value::key_number")]
    id: u64,
    #[serde(deserialize_with = "value::key")]
    name: String,
    #[serde(default, deserialize_with = "value::part")]
    svm: Reference,
    #[serde(default, deserialize_with = "value::list")]
    rules: Vec<Value>,
    /// ONTAP 9.18.
    #[serde(default, deserialize_with = "value::flag")]
    are_rules_truncated: Option<bool>,
}

impl From<Sent> for PolicyRules {
    fn from(sent: Sent) -> Self {
        let Sent { id, name, svm, rules, are_rules_truncated } = sent;
        let read = |rule: Value| {
            ExportRule::deserialize(rule).map_err(|why| format!("a rule is not understood: {why}"))
        };
        let mut rules: Result<Vec<_>, _> = rules.into_iter().map(read).collect();
        if are_rules_truncated == Some(true) {
            rules = Err("ONTAP has cut off its rules".to_owned());
        }
        if let Ok(rules) = &mut rules {
            rules.sort_by_key(|rule| rule.index);
        }
        Self { id, name, svm, rules }
    }
}

const POLICIES: &[&str] = &["protocols", "nfs", "export-policies"];

impl Client {
    /// How the volumes of an SVM are exported. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn volume_exports(&self, svm: &str) -> Result<Vec<VolumeExport>> {
        let query = Query::new().equal("svm.name", svm)?;
        let fields = ["uuid", "name", "svm.name", "state", "nas.path", "nas.export_policy"];
        let path = super::volume::PATH;
        self.call().list_of_svm(path, query.fields(&fields), svm, |one: &VolumeExport| &one.svm).await
    }

    /// The export policies of an SVM with their rules. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`](crate::Error).
    pub async fn export_policy_rules(&self, svm: &str) -> Result<Vec<PolicyRules>> {
        let query = Query::new().equal("svm.name", svm)?;
        // Not known before 9.18, which `ignore_unknown_fields` is for.
        let query = query.fields(&["id", "name", "svm.name", "rules", "are_rules_truncated"]);
        self.call().list_of_svm(POLICIES, query, svm, |policy: &PolicyRules| &policy.svm).await
    }
}
