//! The commands of the passthrough that are about who gets in: the access cache of each node, and ONTAP's own
//! evaluation of the rules.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::access::{Access, evaluate, serving};
use super::cli::{is_privileged, plain_keys};
use super::ops::{Effect, Op};
use super::refusal::Refusal;
use super::shapes::Table;
use super::world::World;

/// `vserver export-policy cache flush`, which needs advanced privilege.
pub(super) fn flush_all(world: &mut World, op: &Op) -> Result<Effect, Refusal> {
    if !is_privileged(op) {
        let text = "\"cache flush\" is not a recognized command at this privilege level";
        return Err(Refusal::bad(262_179, text));
    }
    flush(world, op)
}

/// One node forgets the verdicts of one SVM, or one policy, or one client: then the rules as they are decide.
/// An order that names no node is carried out by the one that got it.
pub(super) fn flush(world: &mut World, op: &Op) -> Result<Effect, Refusal> {
    let body = plain_keys(&op.body);
    let svm = body["vserver"].as_str().ok_or_else(|| Refusal::missing("vserver"))?.to_owned();
    if world.find(Table::Svms, &[("name", &svm)]).is_none() {
        return Err(Refusal::bad(2_621_462, format!("SVM \"{svm}\" does not exist.")));
    }
    let first = world.rows(Table::Nodes).first().and_then(|node| node["name"].as_str()).unwrap_or_default();
    let node = body["node"].as_str().unwrap_or(first).to_owned();
    world.find(Table::Nodes, &[("name", &node)]).ok_or_else(Refusal::not_found)?;
    let policies: Vec<i64> = world
        .rows(Table::Policies)
        .iter()
        .filter(|row| {
            row["svm"]["name"] == svm && (body["policy"].is_null() || body["policy"] == row["name"])
        })
        .filter_map(|row| row["id"].as_i64())
        .collect();
    let address = body["address"].as_str();
    world.verdicts.retain(|(at, client, policy), _| {
        *at != node
            || !policies.contains(policy)
            || address.is_some_and(|address| address != client.to_string())
    });
    let rows = vec![json!({ "node": node, "vserver": svm })];
    Ok(Effect { rows, cli_output: Some(String::new()), next: None })
}

/// The value that a query asks for, without quotes.
fn asked<'o>(op: &'o Op, field: &str) -> Result<&'o str, Refusal> {
    let (_, text) =
        op.filters.iter().find(|(known, _)| known == field).ok_or_else(|| Refusal::missing(field))?;
    Ok(text.trim_matches('"'))
}

fn address(op: &Op, field: &str) -> Result<IpAddr, Refusal> {
    let text = asked(op, field)?;
    text.parse().map_err(|_| Refusal::invalid(field, &text.into()))
}

/// `access-cache show`: one entry, or "entry doesn't exist".
pub(super) fn entries(world: &World, op: &Op) -> Result<Vec<Value>, Refusal> {
    let (node, svm, policy) = (asked(op, "node")?, asked(op, "vserver")?, asked(op, "policy")?);
    let client = address(op, "address")?;
    let place = world.find(Table::Nodes, &[("name", node)]).ok_or_else(Refusal::not_found)?;
    if world.hidden_caches.contains(node) {
        return Err(Refusal::not_found());
    }
    if place["state"] != "up" {
        return Err(Refusal::new(500, 65_541, format!("RPC: Couldn't make connection to {node}")));
    }
    let found = world.find(Table::Policies, &[("svm.name", svm), ("name", policy)]);
    let id = found.and_then(|row| row["id"].as_i64()).ok_or_else(Refusal::not_found)?;
    let verdict = world.verdicts.get(&(node.to_owned(), client, id)).ok_or_else(Refusal::not_found)?;
    let denies = matches!(verdict.access, Access::Denied | Access::NotMounted);
    Ok(vec![json!({
        "node": node, "vserver": svm, "policy": policy, "address": client.to_string(),
        "polarity": if denies { "negative" } else { "positive" },
    })])
}

/// `check-access`: the root of the SVM, and the volume.
pub(super) fn evaluation(world: &World, op: &Op) -> Result<Vec<Value>, Refusal> {
    let (svm, volume, client) = (asked(op, "vserver")?, asked(op, "volume")?, address(op, "client_ip")?);
    for field in ["authentication_method", "protocol", "access_type"] {
        asked(op, field)?;
    }
    let row =
        world.find(Table::Volumes, &[("svm.name", svm), ("name", volume)]).ok_or_else(Refusal::not_found)?;
    let (index, access) = match (evaluate(world, client, volume), serving(world, client, volume)) {
        (Access::ReadWrite, index) => (index, "read_write"),
        (Access::ReadOnly, index) => (index, "read"),
        (Access::Denied | Access::NotMounted, _) => (0, "denied"),
    };
    let component = |path: &str, policy: &Value, owner: &str, index: i64, access: &str| {
        let mut shown = json!({
            "path": path, "policy": policy, "policy_owner": owner, "policy_owner_type": "volume",
            "rule_index": index, "access": access,
        });
        for (field, text) in &op.filters {
            shown[field] = text.trim_matches('"').into();
        }
        shown
    };
    Ok(vec![
        component("/", &json!("default"), &format!("{svm}_root"), 1, "read"),
        component(
            row["nas"]["path"].as_str().unwrap_or_default(),
            &row["nas"]["export_policy"]["name"],
            volume,
            index,
            access,
        ),
    ])
}
