//! One request against the world: which records it means, and what it does to them.

use std::collections::BTreeMap;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::access_cli;
use super::change::{change, check_removal, removed};
use super::cli;
use super::create::{create, no_volume, policy_of};
use super::fields::undot;
use super::query;
use super::refusal::Refusal;
use super::shapes::{METRICS, Table, Target};
use super::world::{World, now};

/// Query parameters that do not name a field.
const OPTIONS: &[&str] = &[
    "fields",
    "max_records",
    "offset",
    "start.record",
    "return_records",
    "return_timeout",
    "order_by",
    "query",
    "query_fields",
    "ignore_unknown_fields",
    "serial_records",
    "continue_on_failure",
    "privilege_level",
    "validate_only",
    "new_index",
    "action",
    "interval",
    "force",
    "sizing_method",
    "restore_to.snapshot.name",
    "restore_to.snapshot.uuid",
    "restore_to.path",
    "snapshot_directory_access_enabled",
    "allow_data_outage",
    "override_vetoes",
    "list_destinations_only",
    "failover",
    "force_failover",
    "failback",
];

/// What stands in a path without being percent-encoded.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A request, understood.
#[derive(Debug, Clone)]
pub(super) struct Op {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) target: Target,
    /// `field=expression`.
    pub(super) filters: Vec<(String, String)>,
    options: BTreeMap<String, String>,
    pub(super) body: Value,
    /// The UUID that a new record was promised.
    pub(super) assigned: Option<String>,
    /// At most so many records are changed by one request.
    pub(super) limit: Option<usize>,
    /// For metrics: whose.
    pub(super) owner: Option<Target>,
}

impl Op {
    /// Reads a request: `query` is as it stands in the URL.
    pub(super) fn new(method: &str, path: &str, query: &str, body: Value) -> Result<Self, Refusal> {
        let (target, owner) = target_of(path)?;
        if !target.shape.allows(method) {
            return Err(Refusal::unsupported());
        }
        let (mut filters, mut options) = (Vec::new(), BTreeMap::new());
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let key = if target.shape.is_cli() { key.replace('-', "_") } else { key.into_owned() };
            let twice = options.contains_key(&key) || filters.iter().any(|(field, _)| *field == key);
            if twice {
                return Err(Refusal::bad(262_190, format!("Field \"{key}\" was specified twice")).about(&key));
            }
            if OPTIONS.contains(&key.as_str()) {
                options.insert(key, value.into_owned());
            } else {
                filters.push((key, value.into_owned()));
            }
        }
        let empty = body.is_null() || body.as_object().is_some_and(serde_json::Map::is_empty);
        if matches!(method, "GET" | "HEAD" | "DELETE") && !empty {
            return Err(Refusal::bad(262_198, "A body is not allowed on GET, HEAD and DELETE requests"));
        }
        let body = if body.is_null() { json!({}) } else { undot(body) };
        let (method, path) = (method.to_owned(), path.to_owned());
        Ok(Self { method, path, target, filters, options, body, assigned: None, limit: None, owner })
    }

    /// Scopes the request to one SVM, as the tunnelling headers do.
    pub(super) fn tunnel(&mut self, svm: &str) -> Result<(), Refusal> {
        let field = match self.target.shape.table {
            Table::Cluster | Table::Nodes | Table::Jobs | Table::Aggregates | Table::Metrics => return Ok(()),
            Table::Svms => "name",
            Table::CliVolumes | Table::CliConnections | Table::CliAccessCache | Table::CliCheckAccess => {
                "vserver"
            }
            _ => "svm.name",
        };
        if self.method == "POST" && field == "svm.name" {
            let named = super::create::text_of(&self.body, "svm.name");
            if named.is_some_and(|named| named != svm) {
                return Err(Refusal::bad(2_621_706, "The SVM in the body is not the one in the header."));
            }
            self.body["svm"]["name"] = svm.into();
        } else if !self.filters.iter().any(|(known, _)| known == field) {
            self.filters.push((field.to_owned(), format!("\"{svm}\"")));
        }
        Ok(())
    }

    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// All of the query, as it can be asked again.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let options = self.options.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        options.chain(self.filters.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }

    /// A whole number; 400 if it is something else.
    pub(super) fn number(&self, name: &str) -> Result<Option<usize>, Refusal> {
        let number = self.option(name).map(str::parse::<usize>).transpose();
        number.map_err(|_| Refusal::invalid(name, &self.option(name).into()))
    }

    /// What the path says of a field.
    pub(super) fn param(&self, field: &str) -> Option<&str> {
        let found = self.target.params.iter().find(|(known, _)| known == field);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn wants_records(&self) -> bool {
        self.option("return_records").map_or(self.method == "GET", |text| text == "true")
    }
}

fn target_of(path: &str) -> Result<(Target, Option<Target>), Refusal> {
    let unknown = || Refusal::new(404, 3, "API not found");
    if let Some(target) = super::shapes::route(path) {
        return Ok((target, None));
    }
    let owner = path.strip_suffix("/metrics").and_then(super::shapes::route).ok_or_else(unknown)?;
    let target = Target { shape: &METRICS, params: Vec::new(), instance: false };
    if owner.instance { Ok((target, Some(owner))) } else { Err(unknown()) }
}

/// Records, each with its position in the table.
type Placed = Vec<(usize, Value)>;

/// The records of a table as they are shown, with the position of what each is made from.
fn view(world: &World, table: Table) -> Placed {
    let plain = |table| world.rows(table).iter().cloned().enumerate();
    match table {
        Table::Policies => plain(Table::Policies).map(|(at, row)| (at, with_rules(world, row))).collect(),
        Table::RuleClients => plain(Table::Rules)
            .flat_map(|(at, rule)| {
                let clients = rule["clients"].as_array().cloned().unwrap_or_default();
                clients.into_iter().map(move |client| {
                    let place = json!({ "id": rule["policy"]["id"] });
                    let row = json!({ "match": client["match"], "policy": place, "index": rule["index"] });
                    (at, row)
                })
            })
            .collect(),
        Table::ClientMaps => client_maps(world),
        Table::ConnectedClients => plain(table).map(|(at, row)| (at, with_idle(row))).collect(),
        Table::Locks => plain(table).map(|(at, row)| (at, world.lock_face.shown(row))).collect(),
        Table::Qtrees => plain(Table::Volumes)
            .map(|(at, row)| (at, whole_volume(&row)))
            .chain(plain(Table::Qtrees))
            .collect(),
        Table::CliVolumes => plain(Table::Volumes).map(|(at, row)| (at, cli::volume_row(&row))).collect(),
        table => plain(table).collect(),
    }
}

/// The qtree of all that is in no other.
fn whole_volume(volume: &Value) -> Value {
    json!({
        "id": 0, "name": "", "svm": volume["svm"], "volume": { "name": volume["name"], "uuid": volume["uuid"] },
        "export_policy": volume["nas"]["export_policy"],
    })
}

fn with_rules(world: &World, mut policy: Value) -> Value {
    let mut rules: Vec<Value> = world
        .rows(Table::Rules)
        .iter()
        .filter(|rule| rule["policy"]["id"] == policy["id"])
        .cloned()
        .collect();
    rules.sort_by(|left, right| query::order(left, right, "index"));
    for rule in &mut rules {
        super::fields::remove(rule, "policy");
        super::fields::remove(rule, "svm");
    }
    policy["rules"] = rules.into();
    policy
}

/// A record that a test wrote itself may have an `idle_duration` of its own, which stands still.
fn with_idle(mut client: Value) -> Value {
    if let Some(since) = client["~since"].as_i64() {
        let idle = (jiff::Timestamp::now().as_second() - since).max(0);
        client["idle_duration"] = format!("PT{idle}S").into();
    }
    client
}

fn client_maps(world: &World) -> Placed {
    let mut maps: BTreeMap<String, Value> = BTreeMap::new();
    for row in world.rows(Table::ConnectedClients) {
        let empty = json!({
            "server_ip": row["server_ip"], "client_ips": [], "svm": row["svm"], "node": row["node"],
        });
        let map = maps.entry(query::text(&row["server_ip"])).or_insert(empty);
        if let Some(ips) = map["client_ips"].as_array_mut()
            && !ips.contains(&row["client_ip"])
        {
            ips.push(row["client_ip"].clone());
        }
    }
    maps.into_values().enumerate().collect()
}

/// A dozen samples, a quarter of a minute apart, of what the record's `metric` holds.
fn metrics(world: &World, owner: &Target) -> Result<Placed, Refusal> {
    let row = find_one(world, owner)?;
    let zero = json!({ "read": 0, "write": 0, "other": 0, "total": 0 });
    let mut sample =
        json!({ "duration": "PT15S", "status": "ok", "latency": zero, "iops": zero, "throughput": zero });
    if row["metric"].is_object() {
        super::fields::merge(&mut sample, row["metric"].clone());
    }
    let quarter = jiff::Timestamp::now().as_second() / 15 * 15;
    let samples = (0..12_i64).map(|age| {
        let mut sample = sample.clone();
        let at = jiff::Timestamp::from_second(quarter - 15 * age).unwrap_or_default();
        sample["timestamp"] = at.to_string().into();
        sample
    });
    Ok(samples.enumerate().collect())
}

fn find_one(world: &World, target: &Target) -> Result<Value, Refusal> {
    let rows = view(world, target.shape.table).into_iter().map(|(_, row)| row);
    rows.into_iter().find(|row| is_at(row, target)).ok_or_else(Refusal::not_found)
}

/// Whether the path leads to this record. A list of matches may stand in one segment.
fn is_at(row: &Value, target: &Target) -> bool {
    target.params.iter().all(|(field, wanted)| {
        let leaves = query::leaves(row, field);
        leaves.iter().any(|leaf| {
            let text = query::text(leaf);
            text == *wanted || (field == "match" && wanted.split(',').any(|part| part == text))
        })
    })
}

/// The records that a request means. A parent in the path that does not exist is an error.
pub(super) fn select(world: &World, op: &Op) -> Result<Placed, Refusal> {
    if op.param("policy.id").is_some() {
        policy_of(world, op)?;
    }
    if let Some(uuid) = op.param("volume.uuid") {
        world.find(Table::Volumes, &[("uuid", uuid)]).ok_or_else(no_volume)?;
    }
    for (field, _) in &op.filters {
        refuse_unknown(world, op, field)?;
    }
    let rows = match &op.owner {
        Some(owner) => metrics(world, owner)?,
        None if op.target.shape.table == Table::CliAccessCache => placed(access_cli::entries(world, op)?),
        None if op.target.shape.table == Table::CliCheckAccess => placed(access_cli::evaluation(world, op)?),
        None => view(world, op.target.shape.table),
    };
    let asked = |row: &Value| {
        is_at(row, &op.target) && op.filters.iter().all(|(field, text)| query::matches(row, field, text))
    };
    Ok(rows.into_iter().filter(|(_, row)| asked(row) && found_anywhere(row, op)).collect())
}

fn placed(rows: Vec<Value>) -> Placed {
    rows.into_iter().enumerate().collect()
}

/// `query_fields=a,b&query=x`: any of the fields.
fn found_anywhere(row: &Value, op: &Op) -> bool {
    let Some(expression) = op.option("query") else { return true };
    let fields = op.option("query_fields").unwrap_or("name");
    fields.split(',').any(|field| query::matches(row, field.trim(), expression))
}

/// Refuses what this release does not know by name.
pub(super) fn refuse_unknown(world: &World, op: &Op, field: &str) -> Result<(), Refusal> {
    if op.option("ignore_unknown_fields") == Some("true") {
        return Ok(());
    }
    let new = field == "is_preserve_unlink_enabled" && !cli::knows_preserve_unlink(world);
    if new || cli::hides(world, op, field) || world.unknown_fields.iter().any(|unknown| unknown == field) {
        let text = format!("The value \"{field}\" is invalid for field \"fields\" (<field,...>)");
        return Err(Refusal::bad(262_197, text).about("fields"));
    }
    Ok(())
}

/// What a request did.
#[derive(Debug, Default)]
pub(super) struct Effect {
    /// The records that are new, or as they are now, or as they were.
    pub(super) rows: Vec<Value>,
    pub(super) cli_output: Option<String>,
    /// More records were meant than were done: the record to go on from.
    pub(super) next: Option<usize>,
}

/// Does what a POST, PATCH or DELETE asks for.
pub(super) fn perform(world: &mut World, op: &Op) -> Result<Effect, Refusal> {
    if op.target.shape.is_cli() {
        return cli::perform(world, op);
    }
    if op.method == "POST" {
        return Ok(Effect { rows: vec![create(world, op)?], ..Effect::default() });
    }
    if !op.target.instance && op.filters.is_empty() && op.option("query").is_none() {
        return Err(Refusal::bad(262_212, "A query is needed to change or delete many records at once"));
    }
    let (chosen, next) = chosen(world, op)?;
    if op.target.instance && chosen.is_empty() {
        return Err(Refusal::not_found());
    }
    let mut rows = Vec::new();
    if op.method == "PATCH" {
        for (at, _) in chosen {
            rows.push(change(world, at, op)?);
        }
    } else if op.target.shape.table == Table::RuleClients {
        rows = remove_clients(world, chosen)?;
    } else {
        rows = remove_rows(world, op.target.shape.table, chosen)?;
    }
    Ok(Effect { rows, cli_output: None, next })
}

/// The records to be changed by this request, and where the next one goes on.
fn chosen(world: &World, op: &Op) -> Result<(Placed, Option<usize>), Refusal> {
    let start = op.number("start.record")?.unwrap_or(0);
    // What was deleted is gone from the front: only what was changed has to be passed over.
    let done = if op.method == "PATCH" { start } else { 0 };
    let mut chosen: Placed = select(world, op)?.into_iter().skip(done).collect();
    let Some(limit) = op.limit.filter(|limit| chosen.len() > *limit) else { return Ok((chosen, None)) };
    chosen.truncate(limit);
    Ok((chosen, Some(start + limit)))
}

fn remove_rows(world: &mut World, table: Table, chosen: Placed) -> Result<Vec<Value>, Refusal> {
    for (_, row) in &chosen {
        check_removal(world, row, table)?;
    }
    for (at, _) in chosen.iter().rev() {
        world.rows_mut(table).remove(*at);
    }
    let rows: Vec<Value> = chosen.into_iter().map(|(_, row)| row).collect();
    rows.iter().for_each(|row| removed(world, row, table));
    Ok(rows)
}

fn remove_clients(world: &mut World, chosen: Placed) -> Result<Vec<Value>, Refusal> {
    let mut rows = Vec::new();
    for (at, row) in chosen {
        let rule = &mut world.rows_mut(Table::Rules)[at];
        let Some(clients) = rule["clients"].as_array_mut() else { return Err(Refusal::not_found()) };
        clients.retain(|client| client["match"] != row["match"]);
        let policy = rule["policy"]["id"].as_i64().unwrap_or_default();
        world.rules_changed(policy);
        rows.push(row);
    }
    Ok(rows)
}

/// Where a record of `target`'s kind lives; nothing if its kind has no such place.
pub(super) fn href(target: &Target, row: &Value) -> Option<String> {
    let shape = target.shape;
    if shape.keys.is_empty() {
        return shape.single.then(|| format!("/api/{}", shape.path));
    }
    let encode = |text: &str| utf8_percent_encode(text, PLAIN).to_string();
    let value = |field: &str| query::leaves(row, field).first().map(|leaf| encode(&query::text(leaf)));
    let mut segments = vec!["/api".to_owned()];
    for segment in shape.path.split('/') {
        match segment.strip_prefix('{').and_then(|field| field.strip_suffix('}')) {
            Some(field) => segments.push(value(field)?),
            None => segments.push(segment.to_owned()),
        }
    }
    for key in shape.keys {
        segments.push(value(key)?);
    }
    Some(segments.join("/"))
}

/// A record of a job that has just begun.
pub(super) fn job_row(uuid: &str, description: &str) -> Value {
    json!({ "uuid": uuid, "description": description, "state": "running", "start_time": now() })
}
