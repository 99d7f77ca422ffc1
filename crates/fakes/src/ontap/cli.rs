//! The passthrough to the command line, as far as this project needs it.

use serde_json::{Map, Value, json};

use super::access_cli::{flush, flush_all};
use super::create::{check_volume, refresh_space};
use super::fields::{coerce, merge};
use super::ops::{Effect, Op, select};
use super::query;
use super::refusal::Refusal;
use super::shapes::Table;
use super::world::World;

/// A volume as `volume show` has it.
pub(super) fn volume_row(row: &Value) -> Value {
    let aggregate = row["aggregates"].get(0).map_or(Value::Null, |aggregate| aggregate["name"].clone());
    let mut shown = json!({
        "vserver": row["svm"]["name"], "volume": row["name"], "aggregate": aggregate, "size": row["size"],
        "state": row["state"], "type": row["type"], "junction_path": row["nas"]["path"],
        "policy": row["nas"]["export_policy"]["name"], "comment": row["comment"],
        "available": row["space"]["available"], "used": row["space"]["used"],
        "percent_used": row["space"]["percent_used"],
    });
    merge(&mut shown, row["~cli"].clone());
    shown
}

/// `is-preserve-unlink-enabled` came with 9.12.1.
pub(super) fn knows_preserve_unlink(world: &World) -> bool {
    let version = world.rows(Table::Cluster).first().map(|cluster| &cluster["version"]);
    let number = |field| version.and_then(|version| version[field].as_i64()).unwrap_or_default();
    (number("generation"), number("major"), number("minor")) >= (9, 12, 1)
}

pub(super) fn is_privileged(op: &Op) -> bool {
    matches!(op.option("privilege_level"), Some("advanced" | "diagnostic"))
}

/// Whether the field is not known at the privilege that the command was given.
pub(super) fn hides(world: &World, op: &Op, field: &str) -> bool {
    op.target.shape.is_cli() && !is_privileged(op) && world.advanced_fields.iter().any(|known| known == field)
}

/// A command that changes something.
pub(super) fn perform(world: &mut World, op: &Op) -> Result<Effect, Refusal> {
    match op.target.shape.table {
        Table::CliVolumes => modify_volumes(world, op),
        Table::CliCacheFlush => flush_all(world, op),
        Table::CliAccessCacheFlush => flush(world, op),
        _ => Err(Refusal::unsupported()),
    }
}

fn modify_volumes(world: &mut World, op: &Op) -> Result<Effect, Refusal> {
    if op.filters.is_empty() {
        return Err(Refusal::bad(262_212, "A query is needed to say which volumes are meant"));
    }
    let body = plain_keys(&op.body);
    if let Some(key) = body.as_object().into_iter().flat_map(Map::keys).find(|key| hides(world, op, key)) {
        return Err(unexpected(key));
    }
    let chosen = select(world, op)?;
    let (mut rows, mut said) = (Vec::new(), String::new());
    for (at, shown) in chosen {
        let mut row = world.rows(Table::Volumes)[at].clone();
        modify(world, &mut row, &shown, &op.body)?;
        said.push_str(&format!(
            "Volume modify successful on volume {} of Vserver {}.\n",
            query::text(&shown["volume"]),
            query::text(&shown["vserver"])
        ));
        world.rows_mut(Table::Volumes)[at] = row;
        rows.push(shown);
    }
    Ok(Effect { rows, cli_output: Some(said), next: None })
}

fn unexpected(argument: &str) -> Refusal {
    Refusal::bad(262_179, format!("Unexpected argument \"{argument}\"")).about(argument)
}

fn modify(world: &World, row: &mut Value, shown: &Value, body: &Value) -> Result<(), Refusal> {
    let mut body = plain_keys(body);
    coerce(&mut body, shown);
    for (key, value) in body.as_object().into_iter().flatten() {
        match key.as_str() {
            "is_preserve_unlink_enabled" if knows_preserve_unlink(world) => match value {
                Value::Bool(_) => row["~cli"][key] = value.clone(),
                other => return Err(Refusal::invalid(key, other)),
            },
            "size" | "comment" | "state" => row[key] = value.clone(),
            "policy" => row["nas"]["export_policy"] = json!({ "name": value }),
            "junction_path" => row["nas"]["path"] = value.clone(),
            other => {
                return Err(unexpected(other));
            }
        }
    }
    check_volume(world, row)?;
    refresh_space(row);
    Ok(())
}

/// `is-preserve-unlink-enabled` and `is_preserve_unlink_enabled` mean the same.
pub(super) fn plain_keys(body: &Value) -> Value {
    let object = body.as_object().cloned().unwrap_or_default();
    Value::Object(
        object.into_iter().map(|(key, value)| (key.replace('-', "_"), value)).collect::<Map<_, _>>(),
    )
}
