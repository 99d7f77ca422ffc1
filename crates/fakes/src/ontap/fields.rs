//! What of a record is shown: `fields=`, and the merging of bodies into records.

use serde_json::{Map, Value};

use super::query;
use super::shapes::Shape;

/// A parsed `fields=`.
#[derive(Debug, Default)]
pub(super) struct Fields {
    /// `*`: everything that is not expensive.
    all: bool,
    /// `**`: the expensive too.
    expensive: bool,
    named: Vec<String>,
    without: Vec<String>,
}

impl Fields {
    /// Reads `*`, `**`, `a,b.c`, `a.{b,c}` and `!a`.
    pub(super) fn parse(text: &str) -> Self {
        let mut fields = Self::default();
        for word in query::split_outside(text, ',') {
            match word.trim() {
                "" => {}
                "*" => fields.all = true,
                "**" => (fields.all, fields.expensive) = (true, true),
                word => match word.strip_prefix('!') {
                    Some(word) => fields.without.extend(expand(word)),
                    None => fields.named.extend(expand(word)),
                },
            }
        }
        fields
    }

    /// The standard set, as an instance is shown when nothing is asked for.
    pub(super) fn standard() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// Also show these, for what was asked about is shown.
    pub(super) fn add<'a>(&mut self, fields: impl Iterator<Item = &'a str>) {
        self.named.extend(fields.map(str::to_owned));
    }

    pub(super) fn is_wild(&self) -> bool {
        self.all
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.named.iter().chain(&self.without).map(String::as_str)
    }

    /// What of `row` is shown.
    pub(super) fn show(&self, row: &Value, shape: &Shape) -> Value {
        let mut shown = Value::Object(Map::new());
        if self.all {
            shown = row.clone();
            if !self.expensive {
                shape.expensive.iter().for_each(|field| remove(&mut shown, field));
            }
        }
        let keys = shape.defaults.iter().chain(shape.keys).copied();
        for field in keys.chain(self.named.iter().map(String::as_str)) {
            if let Some(part) = pick(row, &field.split('.').collect::<Vec<_>>()) {
                merge(&mut shown, part);
            }
        }
        self.without.iter().for_each(|field| remove(&mut shown, field));
        if let Some(object) = shown.as_object_mut() {
            // Notes of the fake's own.
            object.retain(|key, _| !key.starts_with('~'));
        }
        shown
    }
}

/// `space.{size,used}` → `space.size`, `space.used`.
fn expand(word: &str) -> Vec<String> {
    match word.split_once('{') {
        Some((stem, rest)) => {
            rest.trim_end_matches('}').split(',').map(|leaf| format!("{stem}{}", leaf.trim())).collect()
        }
        None => vec![word.to_owned()],
    }
}

/// The part of `value` at the path, in its place. Arrays are shown whole.
fn pick(value: &Value, segments: &[&str]) -> Option<Value> {
    match (value, segments) {
        (Value::Object(object), [first, rest @ ..]) => {
            let part = pick(object.get(*first)?, rest)?;
            Some(Value::Object(Map::from_iter([((*first).to_owned(), part)])))
        }
        (Value::Array(_), _) | (_, []) => Some(value.clone()),
        _ => None,
    }
}

/// Takes the dotted `field` out of `value`.
pub(super) fn remove(value: &mut Value, field: &str) {
    match field.split_once('.') {
        Some((first, rest)) => {
            if let Some(inner) = value.get_mut(first) {
                remove(inner, rest);
                if inner.as_object().is_some_and(Map::is_empty) {
                    remove(value, first);
                }
            }
        }
        None => {
            if let Some(object) = value.as_object_mut() {
                object.remove(field);
            }
        }
    }
}

/// Lays `patch` over `target`: objects field by field, everything else whole.
pub(super) fn merge(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, patch) => *target = patch,
    }
}

/// Undoes dotted keys: `{"nas.path": "/x"}` means `{"nas": {"path": "/x"}}`, and Ansible writes the former.
pub(super) fn undot(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut plain = Value::Object(Map::new());
            for (key, value) in object {
                let nested = key.rsplit('.').fold(undot(value), |inner, segment| {
                    Value::Object(Map::from_iter([(segment.to_owned(), inner)]))
                });
                merge(&mut plain, nested);
            }
            plain
        }
        Value::Array(items) => Value::Array(items.into_iter().map(undot).collect()),
        other => other,
    }
}

/// Gives what came as text the type that `like` has: `"true"` → true, `"20MB"` → 20971520. ONTAP takes both.
pub(super) fn coerce(value: &mut Value, like: &Value) {
    match (&mut *value, like) {
        (Value::Object(object), Value::Object(like)) => {
            for (key, value) in object {
                if let Some(like) = like.get(key) {
                    coerce(value, like);
                }
            }
        }
        (Value::String(text), Value::Bool(_)) => {
            if let Ok(truth) = text.to_ascii_lowercase().parse::<bool>() {
                *value = truth.into();
            }
        }
        (Value::String(text), Value::Number(_)) => {
            if let Some(number) = query::number_of(text) {
                #[expect(clippy::cast_possible_truncation, reason = "sizes and counts are whole numbers")]
                let whole = number as i64;
                *value = whole.into();
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SHAPE: Shape =
        Shape { keys: &["uuid"], defaults: &["name"], expensive: &["nas.path"], ..Shape::NONE };

    fn shown(fields: &str) -> Value {
        let row = json!({
            "uuid": "1", "name": "v", "size": 5, "nas": {"path": "/v", "policy": "p"}, "~own": 1,
            "rules": [{"index": 1, "ro": "any"}],
        });
        Fields::parse(fields).show(&row, &SHAPE)
    }

    #[test]
    fn keys_are_always_there_and_the_rest_on_request() {
        assert_eq!(shown(""), json!({"uuid": "1", "name": "v"}));
        assert_eq!(shown("size"), json!({"uuid": "1", "name": "v", "size": 5}));
        assert_eq!(shown("nas.{policy,path}")["nas"], json!({"policy": "p", "path": "/v"}));
        assert_eq!(shown("rules.index")["rules"], json!([{"index": 1, "ro": "any"}]));
    }

    #[test]
    fn the_expensive_is_only_there_by_name_or_two_stars() {
        assert_eq!(shown("*")["nas"], json!({"policy": "p"}));
        assert_eq!(shown("**")["nas"]["path"], "/v");
        assert_eq!(shown("*,nas.path")["nas"]["path"], "/v");
        assert_eq!(shown("*,!size").get("size"), None);
        assert_eq!(shown("**").get("~own"), None);
    }

    #[test]
    fn bodies_may_be_dotted_and_in_strings() {
        let mut body = undot(json!({"nas.path": "/x", "nas": {"uid": "7"}, "on": "true", "size": "20MB"}));
        coerce(&mut body, &json!({"nas": {"uid": 0}, "on": false, "size": 0}));
        assert_eq!(body, json!({"nas": {"path": "/x", "uid": 7}, "on": true, "size": 20_971_520}));
    }
}
