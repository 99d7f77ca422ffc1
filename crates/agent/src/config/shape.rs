//! Compares a file with the schema of the configuration: every unknown, missing and mistyped key at once,
//! where serde stops at the first.

use schemars::Schema;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::DeValue;

use super::document::{Document, join};

/// Notes every key that is unknown, missing or of the wrong type, and takes it out of the document.
pub(crate) fn check(doc: &mut Document<'_>, schema: &Schema) {
    let Some(root) = schema.as_object() else { return };
    let mut shape = Shape { defs: root.get("$defs").and_then(Value::as_object), found: Vec::new() };
    shape.walk("", doc.root(), root);
    for Found { key, reason, remedy, unknown } in shape.found {
        match unknown {
            true => doc.problem_unseen(&key, reason, remedy),
            false => doc.problem(&key, reason, remedy),
        }
        doc.discard(&key);
    }
}

struct Shape<'s> {
    defs: Option<&'s Map<String, Value>>,
    found: Vec<Found>,
}

struct Found {
    key: String,
    reason: String,
    remedy: String,
    /// The key is none, so that its value may be anything.
    unknown: bool,
}

impl<'s> Shape<'s> {
    fn walk(&mut self, key: &str, value: &Spanned<DeValue<'_>>, schema: &'s Map<String, Value>) {
        let Some(schema) = self.choose(key, value.get_ref(), schema) else { return };
        match value.get_ref() {
            DeValue::Table(table) => {
                let properties = schema.get("properties").and_then(Value::as_object);
                let rest = schema.get("additionalProperties");
                for (name, value) in table {
                    let name = name.get_ref();
                    let known = properties.and_then(|p| p.get(name.as_ref())).or(rest);
                    match known {
                        Some(Value::Bool(false)) => self.unknown(&join(key, name), name, properties),
                        Some(Value::Object(inner)) => {
                            let (at, before) = (join(key, name), self.found.len());
                            self.walk(&at, value, inner);
                            // A name of the user's own is no key, so that its value may be anything.
                            let own = properties.is_none_or(|p| !p.contains_key(name.as_ref()));
                            let of_it =
                                self.found[before..].iter_mut().filter(|found| own && found.key == at);
                            of_it.for_each(|found| found.unknown = true);
                        }
                        _ => {}
                    }
                }
                for name in required(schema).filter(|name| !table.contains_key(*name)) {
                    let what = properties.and_then(|p| p.get(name));
                    let what = what.and_then(|p| self.description(p)).unwrap_or_default();
                    self.note(&join(key, name), format!("is missing. {what}").trim_end(), String::new());
                }
            }
            DeValue::Array(values) => {
                let Some(items) = schema.get("items").and_then(Value::as_object) else { return };
                for (i, value) in values.iter().enumerate() {
                    self.walk(&format!("{key}[{i}]"), value, items);
                }
            }
            _ => {}
        }
    }

    /// The one schema, of those allowed, that the value is meant to be; `None` after a problem.
    fn choose(
        &mut self,
        key: &str,
        value: &DeValue<'_>,
        schema: &'s Map<String, Value>,
    ) -> Option<&'s Map<String, Value>> {
        let allowed = self.alternatives(schema);
        let fitting: Vec<_> = allowed.iter().copied().filter(|s| is_type(value, s)).collect();
        match fitting.as_slice() {
            [] => {
                let mut types: Vec<_> = allowed.iter().map(|s| type_name(s)).collect();
                types.dedup();
                self.note(key, &format!("must be {}", types.join(" or ")), String::new());
                None
            }
            [one] => self.one_of_the_values(key, value, one).then_some(*one),
            several => self.tagged(key, value, several),
        }
    }

    /// Of several kinds of table, the one that the `driver` key names.
    fn tagged(
        &mut self,
        key: &str,
        value: &DeValue<'_>,
        kinds: &[&'s Map<String, Value>],
    ) -> Option<&'s Map<String, Value>> {
        let Some(table) = value.as_table() else {
            let words: Vec<_> = kinds.iter().flat_map(|kind| values(kind)).collect();
            let given = value.as_str().unwrap_or_default();
            let fits = words.is_empty() || words.contains(&given);
            if !fits {
                self.note(key, &format!("must be one of: {}", words.join(", ")), String::new());
            }
            return fits.then(|| kinds[0]);
        };
        let tag = |kind: &&'s Map<String, Value>| {
            let properties = kind.get("properties")?.as_object()?;
            properties.iter().find_map(|(name, p)| Some((name.as_str(), p.get("const")?.as_str()?)))
        };
        let tags: Vec<_> = kinds.iter().filter_map(tag).collect();
        let Some((name, _)) = tags.first().copied() else {
            // Without a tag the keys tell: the kind that has all it needs is meant.
            let complete = kinds.iter().find(|kind| required(kind).all(|name| table.contains_key(name)));
            return Some(complete.unwrap_or(&kinds[0]));
        };
        let words = tags.iter().map(|(_, word)| *word).collect::<Vec<_>>().join(", ");
        let given = table.get(name).and_then(|v| v.get_ref().as_str());
        let chosen = kinds.iter().find(|kind| tag(kind).is_some_and(|(_, word)| Some(word) == given));
        if chosen.is_none() {
            let reason = if given.is_some() { "is not known" } else { "is missing" };
            self.note(&join(key, name), reason, format!("use one of: {words}"));
        }
        chosen.copied()
    }

    fn one_of_the_values(&mut self, key: &str, value: &DeValue<'_>, schema: &'s Map<String, Value>) -> bool {
        let (words, given) = (values(schema), value.as_str());
        let fits = words.is_empty() || given.is_some_and(|given| words.contains(&given));
        if !fits {
            self.note(key, &format!("must be one of: {}", words.join(", ")), String::new());
        }
        fits
    }

    /// Follows references, and spreads out `anyOf` and `oneOf`.
    fn alternatives(&self, schema: &'s Map<String, Value>) -> Vec<&'s Map<String, Value>> {
        if let Some(target) = self.target(schema) {
            return self.alternatives(target);
        }
        let Some(several) = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array)
        else {
            return vec![schema];
        };
        let several = several.iter().filter_map(Value::as_object);
        several
            .filter(|s| s.get("type").is_none_or(|t| t != "null"))
            .flat_map(|s| self.alternatives(s))
            .collect()
    }

    fn target(&self, schema: &'s Map<String, Value>) -> Option<&'s Map<String, Value>> {
        let name = schema.get("$ref")?.as_str()?.strip_prefix("#/$defs/")?;
        self.defs?.get(name)?.as_object()
    }

    fn description(&self, schema: &'s Value) -> Option<String> {
        let schema = schema.as_object()?;
        let own = schema.get("description").or_else(|| self.target(schema)?.get("description"));
        let first = own?.as_str()?.split("\n\n").next()?;
        Some(first.replace('\n', " "))
    }

    fn unknown(&mut self, key: &str, name: &str, known: Option<&Map<String, Value>>) {
        let names: Vec<&str> = known.into_iter().flat_map(|k| k.keys().map(String::as_str)).collect();
        let near = names
            .iter()
            .map(|n| (strsim::levenshtein(n, name), *n))
            .min()
            .filter(|(d, n)| *d * 2 < n.len().max(4));
        let remedy = match near {
            Some((_, near)) => format!("did you mean `{near}`?"),
            None => format!("the keys here are: {}", names.join(", ")),
        };
        let (key, reason) = (key.to_owned(), "is not a known key".to_owned());
        self.found.push(Found { key, reason, remedy, unknown: true });
    }

    fn note(&mut self, key: &str, reason: &str, remedy: String) {
        let (key, reason) = (key.to_owned(), reason.to_owned());
        self.found.push(Found { key, reason, remedy, unknown: false });
    }
}

fn required(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn types(schema: &Map<String, Value>) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ if schema.contains_key("enum") || schema.contains_key("const") => vec!["string"],
        _ => Vec::new(),
    }
}

fn is_type(value: &DeValue<'_>, schema: &Map<String, Value>) -> bool {
    let types = types(schema);
    let named = |name: &str| types.contains(&name);
    types.is_empty()
        || match value {
            DeValue::String(_) | DeValue::Datetime(_) => named("string"),
            DeValue::Integer(_) => named("integer") || named("number"),
            DeValue::Float(_) => named("number"),
            DeValue::Boolean(_) => named("boolean"),
            DeValue::Array(_) => named("array"),
            DeValue::Table(_) => named("object"),
        }
}

fn type_name(schema: &Map<String, Value>) -> &'static str {
    match types(schema).into_iter().find(|t| *t != "null") {
        Some("string") => "text in quotes",
        Some("integer") => "a whole number",
        Some("number") => "a number",
        Some("boolean") => "true or false",
        Some("array") => "a list",
        _ => "a table",
    }
}

/// The words that a text may be; empty if it may be any.
fn values(schema: &Map<String, Value>) -> Vec<&str> {
    let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
    listed.chain(schema.get("const")).filter_map(Value::as_str).collect()
}
