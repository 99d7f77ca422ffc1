//! GET: fields, order and pages.

use std::cmp::Ordering;

use serde_json::{Value, json};

use super::answer::Answer;
use super::fields::Fields;
use super::ops::{Op, href, refuse_unknown, select};
use super::query;
use super::refusal::Refusal;
use super::world::World;

/// How a list may be shown short of what it is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cut {
    /// Pages of at most this many, with `next`.
    pub(super) page: Option<usize>,
    /// Only so many, with a top-level `error` and no `next`.
    pub(super) partial: Option<usize>,
}

/// Answers a GET. `hal`: with links.
pub(super) fn read(world: &World, op: &Op, hal: bool, cut: Cut) -> Result<Answer, Refusal> {
    let shape = op.target.shape;
    let asked = op.option("fields").unwrap_or_default();
    let mut fields = Fields::parse(&if shape.is_cli() { asked.replace('-', "_") } else { asked.to_owned() });
    for name in fields.names() {
        refuse_unknown(world, op, name)?;
    }
    if shape.is_cli() && fields.is_wild() {
        return Err(Refusal::bad(262_220, "The \"fields\" query parameter does not take \"*\" here"));
    }
    if op.target.instance && op.option("fields").is_none() {
        fields = Fields::standard();
    }
    fields.add(op.filters.iter().map(|(field, _)| field.as_str()));
    let mut rows: Vec<Value> = select(world, op)?.into_iter().map(|(_, row)| row).collect();
    if op.target.instance {
        let row = rows.first().ok_or_else(Refusal::not_found)?;
        return Ok(Answer::ok(shown(row, op, &fields, hal)));
    }
    if let Some(order) = op.option("order_by") {
        sort(&mut rows, order);
    }
    page(&rows, op, &fields, hal, cut)
}

/// One record as it is shown.
fn shown(row: &Value, op: &Op, fields: &Fields, hal: bool) -> Value {
    let mut shown = fields.show(row, op.target.shape);
    if hal && let Some(href) = href(&op.target, row) {
        shown["_links"] = json!({ "self": { "href": href } });
    }
    shown
}

fn sort(rows: &mut [Value], order: &str) {
    let keys: Vec<(&str, bool)> = order
        .split(',')
        .filter_map(|key| {
            let mut words = key.split_whitespace();
            Some((words.next()?, words.next() == Some("desc")))
        })
        .collect();
    rows.sort_by(|left, right| {
        let by_key = |&(field, down): &(&str, bool)| {
            let order = query::order(left, right, field);
            if down { order.reverse() } else { order }
        };
        keys.iter().map(by_key).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    });
}

fn page(rows: &[Value], op: &Op, fields: &Fields, hal: bool, cut: Cut) -> Result<Answer, Refusal> {
    let start = match op.number("start.record")? {
        Some(start) => start,
        None => op.number("offset")?.unwrap_or(0),
    };
    let limit = op.number("max_records")?.unwrap_or(10_000);
    let limit = [cut.page, cut.partial].into_iter().flatten().fold(limit, usize::min).max(1);
    let rest = rows.get(start..).unwrap_or_default();
    let page = &rest[..rest.len().min(limit)];
    let mut body = json!({ "num_records": page.len() });
    if op.wants_records() {
        body["records"] = page.iter().map(|row| shown(row, op, fields, hal)).collect();
    }
    let mut answer = Answer::ok(body);
    if rest.len() > limit && cut.partial.is_some() {
        let text = "not all records could be collected: a node did not answer";
        answer.body["error"] = json!({ "code": "65552", "message": text });
    } else if rest.len() > limit || (cut.page.is_some() && !rest.is_empty()) {
        let next = link(op, Some(start + page.len()));
        answer.headers.push(("link", format!("<{next}>; rel=\"next\"")));
        answer.body["_links"]["next"]["href"] = next.into();
    }
    if hal {
        answer.body["_links"]["self"]["href"] = link(op, None).into();
    }
    Ok(answer)
}

/// This request's path and parameters, from record `start` on.
pub(super) fn link(op: &Op, start: Option<usize>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(op.pairs().filter(|(key, _)| !matches!(*key, "start.record" | "offset")));
    if let Some(start) = start {
        query.append_pair("start.record", &start.to_string());
    }
    let query = query.finish();
    if query.is_empty() { op.path.clone() } else { format!("{}?{query}", op.path) }
}
