//! PATCH and DELETE: what each table allows, and what follows elsewhere.

use serde_json::{Value, json};

use super::create::{
    check_matches, check_service, check_volume, make_room, refresh_space, replace_rules, text_of,
};
use super::fields::{coerce, merge, remove};
use super::ops::Op;
use super::query;
use super::refusal::Refusal;
use super::shapes::Table;
use super::world::World;

/// Lays `op`'s body over the record at `at` and returns what it has become.
pub(super) fn change(world: &mut World, at: usize, op: &Op) -> Result<Value, Refusal> {
    let table = op.target.shape.table;
    let before = world.rows(table)[at].clone();
    let mut body = op.body.clone();
    coerce(&mut body, &before);
    let mut row = before.clone();
    match table {
        Table::Policies => policy(world, &before, &mut row, &mut body)?,
        Table::Rules => return rule(world, at, body, op),
        Table::Volumes => volume(world, &mut row, body, op)?,
        Table::NfsServices => {
            merge(&mut row, body);
            row["state"] = if row["enabled"] == false { "offline" } else { "online" }.into();
            check_service(&row)?;
        }
        Table::Interfaces => interface(world, &mut row, body)?,
        Table::Nodes => node(world, &mut row, body, op)?,
        Table::Snapmirror => snapmirror(&mut row, body)?,
        _ => merge(&mut row, body),
    }
    world.rows_mut(table)[at] = row.clone();
    Ok(row)
}

fn policy(world: &mut World, before: &Value, row: &mut Value, body: &mut Value) -> Result<(), Refusal> {
    replace_rules(world, before, body)?;
    remove(body, "rules");
    if let Some(name) = text_of(body, "name") {
        let id = before["id"].to_string();
        world.update(Table::Rules, &[("policy.id", &id)], json!({ "policy": { "name": name } }));
        let renamed = json!({ "nas": { "export_policy": { "name": name } } });
        world.update(Table::Volumes, &[("nas.export_policy.id", &id)], renamed);
    }
    merge(row, body.take());
    world.rules_changed(before["id"].as_i64().unwrap_or_default());
    Ok(())
}

fn rule(world: &mut World, at: usize, body: Value, op: &Op) -> Result<Value, Refusal> {
    for (field, code) in [("svm.name", 262_196), ("svm.uuid", 262_203)] {
        if !query::leaves(&body, field).is_empty() {
            return Err(Refusal::bad(code, format!("Field \"{field}\" cannot be set in this operation")));
        }
    }
    let mut row = world.rows(Table::Rules)[at].clone();
    merge(&mut row, body);
    if row["clients"].as_array().is_none_or(Vec::is_empty) {
        return Err(Refusal::missing("clients"));
    }
    check_matches(&row["clients"])?;
    let policy = row["policy"]["id"].clone();
    let index = op.option("new_index").map(str::parse::<i64>).transpose();
    let index = index.map_err(|_| Refusal::invalid("new_index", &op.option("new_index").into()))?;
    if let Some(index) = index.filter(|index| row["index"] != *index) {
        // Out of the way first, so that the others shift as if it were not there.
        world.rows_mut(Table::Rules)[at]["index"] = Value::Null;
        make_room(world, &policy, index);
        row["index"] = index.into();
    }
    world.rows_mut(Table::Rules)[at] = row.clone();
    world.rules_changed(policy.as_i64().unwrap_or_default());
    Ok(row)
}

fn volume(world: &World, row: &mut Value, body: Value, op: &Op) -> Result<(), Refusal> {
    let name = query::text(&row["name"]);
    if let Some(wanted) = op.option("restore_to.snapshot.name") {
        let place = [("volume.name", name.as_str()), ("name", wanted)];
        world.find(Table::Snapshots, &place).ok_or_else(Refusal::not_found)?;
    }
    if let Some(new) = text_of(&body, "name").filter(|new| *new != name)
        && world
            .find(Table::Volumes, &[("svm.name", &query::text(&row["svm"]["name"])), ("name", &new)])
            .is_some()
    {
        return Err(Refusal::bad(917_526, format!("Duplicate volume name \"{new}\".")));
    }
    if text_of(&body, "clone.split_initiated").is_some_and(|split| split == "true") {
        row["clone"] = json!({ "is_flexclone": false });
    } else {
        let policy = text_of(&body, "nas.export_policy.name");
        merge(row, body);
        if let Some(policy) = policy {
            row["nas"]["export_policy"] = json!({ "name": policy });
        }
    }
    if row["state"] != "online" {
        // What is offline leaves the namespace.
        remove(row, "nas.path");
    }
    check_volume(world, row)?;
    refresh_space(row);
    Ok(())
}

fn interface(world: &World, row: &mut Value, body: Value) -> Result<(), Refusal> {
    let node = text_of(&body, "location.node.name").or_else(|| text_of(&body, "location.port.node.name"));
    let home = text_of(&body, "location.is_home");
    merge(row, body);
    if home.as_deref() == Some("false") {
        return Err(Refusal::bad(1_967_389, "location.is_home can only be set to true."));
    }
    let target = match node {
        _ if home.is_some() => Some(row["location"]["home_node"].clone()),
        Some(node) if world.find(Table::Nodes, &[("name", &node)]).is_none() => {
            return Err(Refusal::bad(1_376_976, format!("Node \"{node}\" does not exist.")));
        }
        Some(node) => Some(world.reference(Table::Nodes, &node)),
        None => None,
    };
    if let Some(node) = target {
        row["location"]["port"]["node"] = json!({ "name": node["name"] });
        row["location"]["is_home"] = (node["name"] == row["location"]["home_node"]["name"]).into();
        row["location"]["node"] = node;
    }
    row["state"] = if row["enabled"] == false { "down" } else { "up" }.into();
    Ok(())
}

fn node(world: &mut World, row: &mut Value, body: Value, op: &Op) -> Result<(), Refusal> {
    merge(row, body);
    let Some(action) = op.option("action") else { return Ok(()) };
    row["state"] = match action {
        "shutdown" | "power_off" => "taken_over",
        "reboot" => "waiting_for_giveback",
        "giveback" | "power_on" => "up",
        action => return Err(Refusal::invalid("action", &action.into())),
    }
    .into();
    let own = json!({ "name": row["name"], "uuid": row["uuid"] });
    let partner = row["ha"]["partners"][0].clone();
    let host = if row["state"] == "up" || partner.is_null() { own.clone() } else { partner };
    host_storage_of(world, &own, &host);
    Ok(())
}

/// The aggregates and LIFs that are at home on `node` are served by `host` from now on.
fn host_storage_of(world: &mut World, node: &Value, host: &Value) {
    let at_home = host["name"] == node["name"];
    let name = query::text(&node["name"]);
    world.update(Table::Aggregates, &[("home_node.name", &name)], json!({ "node": host }));
    let place = json!({ "node": host, "is_home": at_home, "port": { "node": { "name": host["name"] } } });
    world.update(Table::Interfaces, &[("location.home_node.name", &name)], json!({ "location": place }));
}

fn snapmirror(row: &mut Value, body: Value) -> Result<(), Refusal> {
    if let Some(state) = text_of(&body, "state") {
        let known = ["broken_off", "paused", "snapmirrored", "in_sync"];
        if !known.contains(&state.as_str()) {
            return Err(Refusal::invalid("state", &state.into()));
        }
        if row["transfer"]["state"] == "transferring" {
            return Err(Refusal::bad(13_303_808, "A transfer is in progress; try again."));
        }
    }
    merge(row, body);
    Ok(())
}

/// Whether the record may go; the answer is no with a reason.
pub(super) fn check_removal(world: &World, row: &Value, table: Table) -> Result<(), Refusal> {
    let uuid = query::text(&row["uuid"]);
    match table {
        Table::Policies if row["name"] == "default" => {
            Err(Refusal::bad(1_703_947, "The default export policy cannot be deleted."))
        }
        Table::Policies => {
            let id = row["id"].to_string();
            match world.find(Table::Volumes, &[("nas.export_policy.id", &id)]) {
                Some(volume) => {
                    let text = format!("The export policy is in use by volume {}.", volume["name"]);
                    Err(Refusal::bad(1_703_945, text))
                }
                None => Ok(()),
            }
        }
        Table::Volumes if world.find(Table::Volumes, &[("clone.parent_volume.uuid", &uuid)]).is_some() => {
            Err(Refusal::bad(524_615, "The volume has one or more clones."))
        }
        Table::Volumes if row["nas"]["path"].as_str().is_some_and(|path| !path.is_empty()) => {
            let text = "Volume must be unmounted before being taken offline or restricted.";
            Err(Refusal::bad(917_536, text))
        }
        Table::Snapshots
            if row["expiry_time"].as_str().is_some_and(|expiry| expiry > &super::world::now()[..]) =>
        {
            Err(Refusal::bad(1_638_555, "Snapshot copy has not expired or is locked."))
        }
        _ => Ok(()),
    }
}

/// What goes with a record that has gone.
pub(super) fn removed(world: &mut World, row: &Value, table: Table) {
    match table {
        Table::Policies => {
            world.remove(Table::Rules, &[("policy.id", &row["id"].to_string())]);
        }
        Table::Rules => world.rules_changed(row["policy"]["id"].as_i64().unwrap_or_default()),
        Table::Volumes => {
            let uuid = query::text(&row["uuid"]);
            for table in [Table::Snapshots, Table::Locks, Table::ConnectedClients] {
                world.remove(table, &[("volume.uuid", &uuid)]);
            }
        }
        _ => {}
    }
}
