//! The custom resources of the ledger, as types. `deploy/kubernetes/crd.yaml` is made from them.
//!
//! What an agent must never do to the past is refused by the API server itself, whoever asks: the rules are in the
//! definitions, and the server evaluates them against the object that is there.

#![allow(clippy::duplicated_attributes, reason = "columns of one type are no duplicates")]

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The API group of all of them.
pub(crate) const GROUP: &str = "understudy.dev";
/// The version that this program reads and writes.
pub(crate) const VERSION: &str = "v1";
/// The label that says which ledger an object belongs to.
pub(crate) const LABEL: &str = "understudy.dev/ledger";
/// The label of what tells of a takeover: the broker's node id.
pub(crate) const OF_BROKER: &str = "understudy.dev/broker";
/// The command that installs them, or brings them up to date.
pub(crate) const INSTALL: &str = "understudy kubernetes crd | kubectl apply -f -";

/// One page of a journal: what was done in one takeover, or what people ordered.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "understudy.dev",
    version = "v1",
    kind = "LedgerJournal",
    plural = "ledgerjournals",
    namespaced,
    derive = "PartialEq",
    doc = "One page of a journal of Understudy's ledger: what was done in one takeover of a broker, or the order book.",
    printcolumn(name = "Broker", type_ = "integer", json_path = ".spec.of.broker"),
    printcolumn(name = "Epoch", type_ = "integer", json_path = ".spec.of.epoch"),
    printcolumn(name = "By", type_ = "string", json_path = ".spec.of.by"),
    printcolumn(name = "Page", type_ = "integer", json_path = ".spec.page"),
    printcolumn(name = "Closed", type_ = "string", json_path = ".spec.closed"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("self.of == oldSelf.of && self.page == oldSelf.page && self.first == oldSelf.first")
    .message("a page's broker, epoch, host and place never change"))]
#[x_kube(validation = Rule::new("self.log.startsWith(oldSelf.log)")
    .message("entries of a journal are never removed or changed"))]
#[x_kube(validation = Rule::new("!has(oldSelf.closed) || self == oldSelf")
    .message("a page that is closed never changes"))]
#[serde(rename_all = "camelCase")]
pub(crate) struct LedgerJournalSpec {
    /// The takeover that it tells of; empty for the order book.
    pub(crate) of: Takeover,
    /// Its place among the pages of the journal, from 0.
    #[schemars(range(min = 0))]
    pub(crate) page: i32,
    /// How many lines the pages before it have.
    #[schemars(range(min = 0))]
    pub(crate) first: i64,
    /// What was written, one line an append: a mark of whoever wrote it, and the records as JSON.
    #[schemars(length(max = 1_000_000))]
    pub(crate) log: String,
    /// Why nothing is added to this page any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) closed: Option<Closed>,
}

/// Which takeover a journal tells of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Takeover {
    /// The node id of the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) broker: Option<i32>,
    /// Which of its takeovers it is, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub(crate) epoch: Option<i64>,
    /// The host that claimed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub(crate) by: Option<String>,
}

/// Why nothing is added to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Closed {
    /// It is full: the next page goes on.
    Full,
    /// The takeover has ended.
    Ended,
    /// Its claimant was silent, and another host claims the next epoch.
    Succeeded,
}

/// The newest epoch of every broker.
#[derive(CustomResource, KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "understudy.dev",
    version = "v1",
    kind = "LedgerIndex",
    plural = "ledgerindexes",
    namespaced,
    derive = "PartialEq",
    doc = "The newest epoch of every broker in Understudy's ledger.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LedgerIndexSpec {
    /// The newest epoch of each broker that somebody set out to claim. It is written before the epoch is.
    #[schemars(extend("maxProperties" = 4000))]
    #[x_kube(validation = Rule::new("oldSelf.all(broker, broker in self && self[broker] >= oldSelf[broker])")
        .message("an epoch never goes down"))]
    pub(crate) begun: BTreeMap<String, i64>,
    /// The newest epoch of each broker that is known to be claimed.
    #[schemars(extend("maxProperties" = 4000))]
    #[x_kube(validation = Rule::new("oldSelf.all(broker, broker in self && self[broker] >= oldSelf[broker])")
        .message("an epoch never goes down"))]
    pub(crate) claimed: BTreeMap<String, i64>,
}

/// A small text that is replaced as a whole.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "understudy.dev",
    version = "v1",
    kind = "LedgerCell",
    plural = "ledgercells",
    namespaced,
    derive = "PartialEq",
    doc = "A small text in Understudy's ledger: which ledger it is, who has a host's name, what was decided lately.",
    printcolumn(name = "Version", type_ = "integer", json_path = ".spec.version"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("self == oldSelf || self.version == oldSelf.version + 1")
    .message("a cell is written one version at a time"))]
#[serde(rename_all = "camelCase")]
pub(crate) struct LedgerCellSpec {
    /// Counts what was written to it, from 1.
    #[schemars(range(min = 1))]
    pub(crate) version: i64,
    /// What it holds.
    #[schemars(length(max = 1_000_000))]
    pub(crate) text: String,
}

/// The definitions, as a cluster needs them before its first agent.
#[must_use]
pub(crate) fn definitions() -> Vec<CustomResourceDefinition> {
    vec![LedgerJournal::crd(), LedgerIndex::crd(), LedgerCell::crd()]
}

/// The definitions as YAML, for `kubectl apply -f -`.
///
/// # Errors
/// Never with the types as they are.
pub fn definitions_yaml() -> Result<String, String> {
    let one = |crd: &CustomResourceDefinition| {
        let crd = serde_json::to_value(crd).map_err(|error| error.to_string())?;
        serde_saphyr::to_string(&crd).map_err(|error| error.to_string())
    };
    let documents: Result<Vec<String>, String> = definitions().iter().map(one).collect();
    Ok(format!("---\n{}", documents?.join("---\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_for_people_and_for_helm_are_what_the_types_say() {
        let ours = definitions_yaml().unwrap();
        for file in ["kubernetes/crd.yaml", "helm/understudy/crds/understudy.dev.yaml"] {
            let file = format!("{}/../../deploy/{file}", env!("CARGO_MANIFEST_DIR"));
            if std::env::var_os("UPDATE_EXPECTED").is_some() {
                std::fs::write(&file, &ours).unwrap();
            }
            let theirs = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(theirs == ours, "{file} is old: run this test with UPDATE_EXPECTED=1");
        }
    }
}
