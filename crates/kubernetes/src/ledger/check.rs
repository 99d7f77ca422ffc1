//! Whether the ledger can be relied on: rights, definitions, and a write that is read back.

use std::time::Instant;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use recovery::ports::Note;
use serde_json::Value;

use super::names::Names;
use super::{Stop, cell, unavailable};
use crate::client::{Asking, Ours};
use crate::crd::{GROUP, INSTALL, LedgerCell, LedgerIndex, LedgerJournal, VERSION, definitions};
use crate::fault::Fault;

/// The verbs of every kind; `list` besides, of journals alone.
const VERBS: [&str; 3] = ["get", "create", "update"];

pub(super) async fn check(asking: &Asking<'_>, names: &Names) -> Result<Note, Stop> {
    rights(asking).await?;
    understood(asking).await?;
    let begun = Instant::now();
    cell::probe(asking, names).await?;
    let (took, namespace) = (begun.elapsed().as_millis(), asking.namespace().await?);
    let text = format!("Kubernetes, namespace {namespace}: written and read back in {took} ms");
    Ok(Note::new(text).with("probe_ms", took))
}

/// Whether these credentials may do all that the ledger does.
async fn rights(asking: &Asking<'_>) -> Result<(), Stop> {
    let namespace = asking.namespace().await?;
    let mut missing = Vec::new();
    let kinds = [plural::<LedgerJournal>(), plural::<LedgerIndex>(), plural::<LedgerCell>()];
    let mut wanted: Vec<(&str, &str)> =
        kinds.iter().flat_map(|kind| VERBS.map(|verb| (verb, kind.as_str()))).collect();
    wanted.push(("list", &kinds[0]));
    for (verb, kind) in wanted {
        let attributes = ResourceAttributes {
            group: Some(GROUP.to_owned()),
            namespace: Some(namespace.clone()),
            resource: Some(kind.to_owned()),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec =
            SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..Default::default() };
        let answer = asking.review(&review).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(format!("{verb} {kind}.{GROUP}"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let why = format!(
        "these credentials may not {} in namespace {namespace}: bind the role of deploy/kubernetes/ledger-rbac.yaml to \
         them",
        missing.join(", ")
    );
    Err(unavailable("use the ledger in Kubernetes", why).into())
}

fn plural<K: Ours>() -> String {
    K::plural(&()).into_owned()
}

/// Whether the cluster's definitions say all that this program relies on.
async fn understood(asking: &Asking<'_>) -> Result<(), Stop> {
    let path = format!("/openapi/v3/apis/{GROUP}/{VERSION}");
    let served: Value = match asking.page(&path).await {
        Ok(served) => served,
        Err(fault @ Fault::Said { .. }) if fault.code() == 404 => {
            return Err(not_served(asking).await?.into());
        }
        Err(fault) => return Err(fault.into()),
    };
    let schemas = served["components"]["schemas"].as_object();
    for definition in definitions() {
        let (kind, plural) = (&definition.spec.names.kind, &definition.spec.names.plural);
        let theirs = schemas.and_then(|schemas| schemas.values().find(|schema| is_of(schema, kind)));
        let Some(theirs) = theirs else {
            return Err(skew(&format!("know no {plural}.{GROUP}")).into());
        };
        let ours = definition.spec.versions.first().and_then(|version| version.schema.as_ref());
        let ours = ours.and_then(|schema| serde_json::to_value(&schema.open_api_v3_schema).ok());
        let ours = ours.unwrap_or_default();
        if let Some(lack) = lack(&ours["properties"]["spec"], &theirs["properties"]["spec"], "spec") {
            return Err(skew(&format!("of {plural}.{GROUP} lack {lack}")).into());
        }
    }
    Ok(())
}

fn skew(what: &str) -> recovery::ports::LedgerError {
    let why = format!(
        "the cluster's definitions {what}, which this understudy relies on: bring them up to date by `{INSTALL}`"
    );
    unavailable("use the ledger in Kubernetes", why)
}

/// The group is missing, or it is there in other versions.
async fn not_served(asking: &Asking<'_>) -> Result<recovery::ports::LedgerError, Stop> {
    let group: Option<Value> = match asking.page(&format!("/apis/{GROUP}")).await {
        Ok(group) => Some(group),
        Err(fault) if fault.code() == 404 => None,
        Err(fault) => return Err(fault.into()),
    };
    let versions: Vec<String> = group
        .iter()
        .flat_map(|group| group["versions"].as_array().into_iter().flatten())
        .filter_map(|version| version["version"].as_str().map(str::to_owned))
        .collect();
    if !versions.is_empty() && !versions.iter().any(|version| version == VERSION) {
        return Ok(skew(&format!("have {GROUP} in {} and not in {VERSION}", versions.join(", "))));
    }
    let why = format!("the cluster has no definitions of {GROUP}/{VERSION}: install them by `{INSTALL}`");
    Ok(unavailable("use the ledger in Kubernetes", why))
}

fn is_of(schema: &Value, kind: &str) -> bool {
    let kinds = schema["x-kubernetes-group-version-kind"].as_array().into_iter().flatten();
    kinds.clone().any(|of| of["kind"] == kind && of["group"] == GROUP && of["version"] == VERSION)
}

/// The first member or rule of `ours` that `theirs` does not have.
fn lack(ours: &Value, theirs: &Value, path: &str) -> Option<String> {
    for (name, member) in ours["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match theirs["properties"].get(name) {
            None => return Some(format!("the field {path}")),
            Some(theirs) => {
                if let Some(lack) = lack(member, theirs, &path) {
                    return Some(lack);
                }
            }
        }
    }
    let rules = |schema: &Value| -> Vec<Value> {
        schema["x-kubernetes-validations"].as_array().cloned().unwrap_or_default()
    };
    let theirs = rules(theirs);
    let missing =
        rules(ours).into_iter().find(|ours| theirs.iter().all(|rule| rule["rule"] != ours["rule"]))?;
    Some(format!("the rule of {path} that {}", missing["message"].as_str().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_field_or_rule_that_is_missing_is_named() {
        let ours = json!({"properties": {
            "of": {"properties": {"epoch": {}}},
            "log": {"x-kubernetes-validations": [{"rule": "a", "message": "it never shrinks"}]},
        }});
        assert_eq!(lack(&ours, &ours, "spec"), None);
        let mut theirs = ours.clone();
        theirs["properties"]["log"] = json!({});
        assert_eq!(lack(&ours, &theirs, "spec").unwrap(), "the rule of spec.log that it never shrinks");
        theirs["properties"]["of"] = json!({"properties": {"other": {}}});
        assert!(
            ["the field spec.of.epoch", "the rule of spec.log that it never shrinks"]
                .contains(&lack(&ours, &theirs, "spec").unwrap().as_str())
        );
    }
}
