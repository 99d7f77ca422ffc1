//! POST: what each table asks of a new record, and what it fills in.

use serde_json::{Map, Value, json};

use super::access::problem_of_match;
use super::fields::{coerce, merge};
use super::ops::Op;
use super::query;
use super::refusal::Refusal;
use super::shapes::Table;
use super::world::{SMALLEST_VOLUME, World, now, reference_of};

/// Makes the record that `op` asks for and returns it.
pub(super) fn create(world: &mut World, op: &Op) -> Result<Value, Refusal> {
    match op.target.shape.table {
        Table::Policies => policy(world, &op.body),
        Table::Rules => rule(world, op),
        Table::RuleClients => rule_client(world, op),
        Table::Volumes => volume(world, op),
        Table::Snapshots => snapshot(world, op),
        Table::NfsServices => service(world, &op.body),
        Table::QosPolicies => qos(world, op),
        _ => Err(Refusal::unsupported()),
    }
}

/// The text of a body's field, if it is set and not empty.
pub(super) fn text_of(body: &Value, field: &str) -> Option<String> {
    query::leaves(body, field).first().map(|leaf| query::text(leaf)).filter(|text| !text.is_empty())
}

/// The `{"name", "uuid"}` of the SVM that a body names.
fn svm_of(world: &World, body: &Value) -> Result<Value, Refusal> {
    let (field, wanted) = ["name", "uuid"]
        .into_iter()
        .find_map(|field| Some((field, text_of(body, &format!("svm.{field}"))?)))
        .ok_or_else(|| {
            Refusal::bad(2_621_707, "No SVM was specified. Either svm.name or svm.uuid is needed.")
        })?;
    let svm = world.find(Table::Svms, &[(field, &wanted)]);
    svm.map(reference_of).ok_or_else(|| Refusal::bad(2_621_462, format!("SVM \"{wanted}\" does not exist.")))
}

fn name_of(svm: &Value) -> String {
    query::text(&svm["name"])
}

fn policy(world: &mut World, body: &Value) -> Result<Value, Refusal> {
    let svm = svm_of(world, body)?;
    let name = text_of(body, "name").ok_or_else(|| Refusal::missing("name"))?;
    if name.contains(char::is_whitespace) {
        return Err(Refusal::bad(1_703_952, format!("Invalid ruleset name: \"{name}\"")));
    }
    if world.find(Table::Policies, &[("svm.name", &name_of(&svm)), ("name", &name)]).is_some() {
        return Err(Refusal::duplicate(format!("Export policy \"{name}\" exists already.")));
    }
    let id = world.policy_id();
    let row = json!({ "id": id, "name": name, "svm": svm });
    world.insert(Table::Policies, row.clone());
    replace_rules(world, &row, body)?;
    Ok(row)
}

/// Lays down the `rules` of a policy's body, if it has any, in place of those there are.
pub(super) fn replace_rules(world: &mut World, policy: &Value, body: &Value) -> Result<(), Refusal> {
    let Some(rules) = body.get("rules").and_then(Value::as_array) else { return Ok(()) };
    world.remove(Table::Rules, &[("policy.id", &policy["id"].to_string())]);
    for rule in rules {
        add_rule(world, policy, rule)?;
    }
    Ok(())
}

/// The policy that the path names.
pub(super) fn policy_of(world: &World, op: &Op) -> Result<Value, Refusal> {
    let id = op.param("policy.id").unwrap_or_default();
    let policy = world.find(Table::Policies, &[("id", id)]).cloned();
    policy.ok_or_else(|| Refusal::new(404, 1_703_954, "Export policy does not exist."))
}

fn rule(world: &mut World, op: &Op) -> Result<Value, Refusal> {
    let policy = policy_of(world, op)?;
    add_rule(world, &policy, &op.body)
}

fn add_rule(world: &mut World, policy: &Value, body: &Value) -> Result<Value, Refusal> {
    let mut row = rule_defaults();
    let mut body = body.clone();
    coerce(&mut body, &row);
    merge(&mut row, body);
    for field in ["clients", "ro_rule", "rw_rule"] {
        if row[field].as_array().is_none_or(Vec::is_empty) {
            return Err(Refusal::missing(field));
        }
    }
    check_matches(&row["clients"])?;
    let same = |rule: &Value| {
        let differs = |field: &str| rule[field] != row[field];
        !["clients", "protocols", "ro_rule", "rw_rule", "superuser", "anonymous_user"]
            .into_iter()
            .any(differs)
    };
    if world.rows(Table::Rules).iter().any(|rule| rule["policy"]["id"] == policy["id"] && same(rule)) {
        return Err(Refusal::bad(1_704_070, "An identical export policy rule exists already."));
    }
    let taken = indices(world, &policy["id"]);
    let index = match row["index"].as_i64() {
        Some(index) if index < 1 => return Err(Refusal::bad(3_277_162, "The rule index is too small.")),
        Some(index) => index,
        None => taken.iter().max().unwrap_or(&0) + 1,
    };
    make_room(world, &policy["id"], index);
    let own = json!({ "index": index, "policy": { "id": policy["id"], "name": policy["name"] }, "svm": policy["svm"] });
    merge(&mut row, own);
    world.insert(Table::Rules, row.clone());
    world.rules_changed(policy["id"].as_i64().unwrap_or_default());
    Ok(row)
}

fn indices(world: &World, policy: &Value) -> Vec<i64> {
    let rules = world.rows(Table::Rules).iter().filter(|rule| rule["policy"]["id"] == *policy);
    rules.filter_map(|rule| rule["index"].as_i64()).collect()
}

/// Moves the rules from `index` on up by one, if there is one at it.
pub(super) fn make_room(world: &mut World, policy: &Value, index: i64) {
    if !indices(world, policy).contains(&index) {
        return;
    }
    for rule in world.rows_mut(Table::Rules) {
        if rule["policy"]["id"] == *policy
            && let Some(at) = rule["index"].as_i64().filter(|at| *at >= index)
        {
            rule["index"] = (at + 1).into();
        }
    }
}

/// Refuses a rule's client list as ONTAP would.
pub(super) fn check_matches(clients: &Value) -> Result<(), Refusal> {
    let matches: Vec<String> = query::leaves(clients, "match").iter().map(|leaf| query::text(leaf)).collect();
    for (at, pattern) in matches.iter().enumerate() {
        if let Some((code, message)) = problem_of_match(pattern) {
            return Err(Refusal::bad(code, message).about("clients.match"));
        }
        if matches[..at].contains(pattern) {
            return Err(Refusal::bad(1_704_050, format!("Clientmatch \"{pattern}\" is there twice.")));
        }
    }
    Ok(())
}

fn rule_client(world: &mut World, op: &Op) -> Result<Value, Refusal> {
    let policy = policy_of(world, op)?;
    let pattern = text_of(&op.body, "match").ok_or_else(|| Refusal::missing("match"))?;
    let index = op.param("index").unwrap_or_default();
    let id = policy["id"].to_string();
    let place = [("policy.id", id.as_str()), ("index", index)];
    let mut clients = world.find(Table::Rules, &place).ok_or_else(Refusal::not_found)?["clients"].clone();
    if let Some(clients) = clients.as_array_mut() {
        clients.push(json!({ "match": pattern }));
    }
    check_matches(&clients)?;
    world.update(Table::Rules, &place, json!({ "clients": clients }));
    world.rules_changed(policy["id"].as_i64().unwrap_or_default());
    Ok(json!({ "match": pattern, "policy": { "id": policy["id"] }, "index": index }))
}

/// What a rule has when its body does not say.
pub(super) fn rule_defaults() -> Value {
    json!({
        "protocols": ["any"], "anonymous_user": "none", "superuser": ["any"], "allow_device_creation": true,
        "allow_suid": true, "chown_mode": "restricted", "ntfs_unix_security": "fail",
    })
}

/// What a volume has when its body does not say.
fn volume_defaults() -> Value {
    json!({
        "type": "rw", "state": "online", "size": SMALLEST_VOLUME, "comment": "", "language": "c.utf_8",
        "is_svm_root": false, "nas": { "security_style": "unix", "unix_permissions": 755, "uid": 0, "gid": 0 },
        "guarantee": { "type": "volume" }, "snapshot_policy": { "name": "default" },
        "autosize": { "mode": "off", "maximum": SMALLEST_VOLUME, "minimum": SMALLEST_VOLUME,
            "grow_threshold": 85, "shrink_threshold": 50 },
        "efficiency": { "dedupe": "none", "compression": "none", "compaction": "none",
            "cross_volume_dedupe": "none", "state": "enabled", "ratio": 1.0 },
        "space": { "snapshot": { "reserve_percent": 5, "used": 0 }, "used": 1_048_576,
            "physical_used": 1_048_576, "logical_space": { "used": 1_048_576 } },
        "encryption": { "enabled": false }, "snaplock": { "type": "non_snaplock" }, "tiering": { "policy": "none" },
        "qos": { "policy": { "name": "none", "max_throughput_iops": 0 } },
        "error_state": { "has_bad_blocks": false, "is_inconsistent": false },
        "snapshot_directory_access_enabled": true, "access_time_enabled": true, "clone": { "is_flexclone": false },
        "~cli": { "is_preserve_unlink_enabled": false },
    })
}

fn volume(world: &mut World, op: &Op) -> Result<Value, Refusal> {
    let svm = svm_of(world, &op.body)?;
    let name = text_of(&op.body, "name").ok_or_else(|| Refusal::missing("name"))?;
    if world.find(Table::Volumes, &[("svm.name", &name_of(&svm)), ("name", &name)]).is_some() {
        let text = format!("Duplicate volume name. Volume {name} exists in SVM {}.", name_of(&svm));
        return Err(Refusal::bad(917_526, text));
    }
    let mut row = volume_defaults();
    let mut body = op.body.clone();
    coerce(&mut body, &row);
    merge(&mut row, body);
    row["svm"] = svm;
    if row["clone"]["is_flexclone"] == true || row["clone"]["parent_volume"].is_object() {
        clone_of_parent(world, &mut row)?;
    } else {
        place_on_aggregates(world, &mut row)?;
    }
    check_volume(world, &mut row)?;
    let uuid = put_volume(world, row, op.assigned.clone());
    world.find(Table::Volumes, &[("uuid", &uuid)]).cloned().ok_or_else(Refusal::not_found)
}

/// Fills in the rest of a volume and stores it; returns its UUID.
pub(super) fn put_volume(world: &mut World, body: Value, uuid: Option<String>) -> String {
    let uuid = uuid.unwrap_or_else(|| world.uuid());
    let mut row = volume_defaults();
    merge(&mut row, body);
    let style = if row["style"].is_string() { row["style"].clone() } else { "flexvol".into() };
    merge(&mut row, json!({ "uuid": uuid, "style": style, "create_time": now() }));
    refresh_space(&mut row);
    let name = query::text(&row["name"]);
    world.insert(Table::Volumes, row);
    world.welcome(&name);
    uuid
}

/// What follows from a volume's size.
pub(super) fn refresh_space(row: &mut Value) {
    let size = row["size"].as_i64().unwrap_or_default();
    let used = row["space"]["used"].as_i64().unwrap_or_default();
    let percent = if size > 0 { used * 100 / size } else { 0 };
    let available = (size - used).max(0);
    let space = json!({ "size": size, "available": available, "percent_used": percent, "afs_total": size });
    merge(row, json!({ "space": space, "autosize": { "maximum": size + size / 5 } }));
}

fn clone_of_parent(world: &World, row: &mut Value) -> Result<(), Refusal> {
    let parent = text_of(row, "clone.parent_volume.name").unwrap_or_default();
    let place = [("svm.name", name_of(&row["svm"])), ("name", parent)];
    let place: Vec<(&str, &str)> = place.iter().map(|(field, value)| (*field, value.as_str())).collect();
    let parent = world.find(Table::Volumes, &place).ok_or_else(|| Refusal::missing("clone.parent_volume"))?;
    if let Some(snapshot) = text_of(row, "clone.parent_snapshot.name") {
        let place = [("volume.name", place[1].1), ("name", snapshot.as_str())];
        world.find(Table::Snapshots, &place).ok_or_else(Refusal::not_found)?;
    }
    let own = json!({
        "clone": { "is_flexclone": true, "parent_volume": reference_of(parent), "parent_svm": parent["svm"] },
        "size": parent["size"], "aggregates": parent["aggregates"], "style": parent["style"],
    });
    merge(row, own);
    Ok(())
}

fn place_on_aggregates(world: &World, row: &mut Value) -> Result<(), Refusal> {
    let names: Vec<String> =
        query::leaves(row, "aggregates.name").iter().map(|name| query::text(name)).collect();
    if names.is_empty() && row["style"] != "flexgroup" {
        return Err(Refusal::bad(787_141, "The \"aggregates\" field is required to create a volume."));
    }
    if let Some(name) = names.iter().find(|name| world.find(Table::Aggregates, &[("name", name)]).is_none()) {
        return Err(Refusal::bad(917_508, format!("Aggregate \"{name}\" does not exist.")));
    }
    let spread = names.len() > 1 || row["constituents_per_aggregate"].is_number();
    if spread && row["style"] == "flexvol" {
        return Err(Refusal::bad(918_242, "A FlexVol volume is on exactly one aggregate."));
    }
    let style = if spread || row["style"] == "flexgroup" { "flexgroup" } else { "flexvol" };
    let aggregates: Vec<Value> = names.iter().map(|name| world.reference(Table::Aggregates, name)).collect();
    merge(row, json!({ "style": style, "aggregates": aggregates }));
    Ok(())
}

/// Refuses what no volume may be, and turns the policy's name into a reference.
pub(super) fn check_volume(world: &World, row: &mut Value) -> Result<(), Refusal> {
    if row["size"].as_i64().is_none_or(|size| size < SMALLEST_VOLUME) {
        return Err(Refusal::bad(917_534, "The volume is too small: 20MB is the least.").about("size"));
    }
    if let Some(path) = row["nas"]["path"].as_str().filter(|path| !path.is_empty()) {
        if !path.starts_with('/') || (path.len() > 1 && path.ends_with('/')) {
            return Err(Refusal::bad(918_252, format!("Invalid junction path \"{path}\".")).about("nas.path"));
        }
    } else if let Some(nas) = row["nas"].as_object_mut() {
        nas.remove("path");
    }
    let policy = text_of(row, "nas.export_policy.name").unwrap_or_else(|| "default".to_owned());
    let reference = world.policy_reference(&name_of(&row["svm"]), &policy);
    if reference["id"].is_null() {
        return Err(Refusal::bad(918_271, format!("Export policy \"{policy}\" does not exist.")));
    }
    row["nas"]["export_policy"] = reference;
    Ok(())
}

fn snapshot(world: &mut World, op: &Op) -> Result<Value, Refusal> {
    let volume = op.param("volume.uuid").unwrap_or_default();
    let volume = world.find(Table::Volumes, &[("uuid", volume)]).cloned().ok_or_else(no_volume)?;
    let name = text_of(&op.body, "name").ok_or_else(|| Refusal::missing("name"))?;
    let of = query::text(&volume["uuid"]);
    if world.find(Table::Snapshots, &[("volume.uuid", &of), ("name", &name)]).is_some() {
        return Err(Refusal::duplicate(format!("Snapshot \"{name}\" exists already.")));
    }
    let mut row = op.body.clone();
    let uuid = op.assigned.clone().unwrap_or_else(|| world.uuid());
    let own = json!({
        "uuid": uuid, "volume": reference_of(&volume), "svm": volume["svm"], "state": "valid", "size": 143_360,
        "create_time": now(),
    });
    merge(&mut row, own);
    world.insert(Table::Snapshots, row.clone());
    Ok(row)
}

/// The answer about a volume that is not there, where it is a parent in the path.
pub(super) fn no_volume() -> Refusal {
    Refusal::new(404, 918_235, "A volume with this UUID was not found.")
}

fn service(world: &mut World, body: &Value) -> Result<Value, Refusal> {
    let svm = svm_of(world, body)?;
    if world.find(Table::NfsServices, &[("svm.name", &name_of(&svm))]).is_some() {
        return Err(Refusal::duplicate("The SVM has an NFS service already."));
    }
    let mut row = nfs_service(&svm);
    let mut body = body.clone();
    coerce(&mut body, &row);
    merge(&mut row, body);
    row["svm"] = svm;
    check_service(&row)?;
    world.insert(Table::NfsServices, row.clone());
    Ok(row)
}

/// An NFS service with ONTAP's defaults, and v4.1 switched on.
pub(super) fn nfs_service(svm: &Value) -> Value {
    json!({
        "svm": svm, "enabled": true, "state": "online", "vstorage_enabled": false, "showmount_enabled": true,
        "protocol": {
            "v3_enabled": true, "v40_enabled": false, "v41_enabled": true, "v42_enabled": true,
            "v3_features": { "mount_root_only": true },
            "v40_features": { "acl_enabled": false },
            "v41_features": {
                "pnfs_enabled": false, "acl_enabled": false, "read_delegation_enabled": false,
                "write_delegation_enabled": false, "referrals_enabled": false, "trunking_enabled": false,
            },
            "v4_id_domain": "defaultv4iddomain.com", "v4_lease_seconds": 30, "v4_grace_seconds": 45,
            "v4_session_slots": 180, "v4_session_slot_reply_cache_size": 640,
            "v4_64bit_identifiers_enabled": true, "v4_fsid_change": true,
        },
        "transport": {
            "tcp_enabled": true, "udp_enabled": true, "rdma_enabled": true, "tcp_max_transfer_size": 65_536,
        },
        "access_cache_config": {
            "ttl_positive": 3600, "ttl_negative": 3600, "ttl_failure": 1, "harvest_timeout": 86_400,
            "isDnsTTLEnabled": false,
        },
    })
}

/// Refuses timings and sizes that contradict each other.
pub(super) fn check_service(row: &Value) -> Result<(), Refusal> {
    let protocol = &row["protocol"];
    let number = |value: &Value| value.as_i64().unwrap_or_default();
    let (lease, grace) = (number(&protocol["v4_lease_seconds"]), number(&protocol["v4_grace_seconds"]));
    if lease < 10 {
        return Err(Refusal::bad(3_276_872, "The lease must be at least 10 seconds."));
    }
    if lease >= grace {
        return Err(Refusal::bad(3_276_873, "The lease must be shorter than the grace period."));
    }
    if grace > 180 {
        return Err(Refusal::bad(3_276_874, "The grace period must be at most 180 seconds."));
    }
    let size = number(&row["transport"]["tcp_max_transfer_size"]);
    if !(8192..=1_048_576).contains(&size) || size % 4096 != 0 {
        return Err(Refusal::bad(3_277_140, "tcp_max_transfer_size must be a multiple of 4096."));
    }
    Ok(())
}

fn qos(world: &mut World, op: &Op) -> Result<Value, Refusal> {
    let svm = svm_of(world, &op.body)?;
    let name = text_of(&op.body, "name").ok_or_else(|| Refusal::missing("name"))?;
    if world.find(Table::QosPolicies, &[("svm.name", &name_of(&svm)), ("name", &name)]).is_some() {
        return Err(Refusal::duplicate(format!("QoS policy \"{name}\" exists already.")));
    }
    let mut row = Value::Object(Map::new());
    merge(&mut row, op.body.clone());
    let uuid = op.assigned.clone().unwrap_or_else(|| world.uuid());
    merge(&mut row, json!({ "uuid": uuid, "svm": svm, "scope": "svm", "object_count": 0 }));
    world.insert(Table::QosPolicies, row.clone());
    Ok(row)
}
