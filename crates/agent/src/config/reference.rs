//! docs/configuration.md, made from the doc comments of the sections.

use std::fmt::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value};

use super::raw::Raw;

/// The reference page.
#[derive(Debug, Clone, Serialize)]
pub struct Reference {
    markdown: String,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.markdown)
    }
}

/// Makes the page.
#[must_use]
pub fn reference() -> Reference {
    let schema = schemars::schema_for!(Raw);
    let empty = Map::new();
    let root = schema.as_object().unwrap_or(&empty);
    let defs = root.get("$defs").and_then(Value::as_object).unwrap_or(&empty);
    let mut page = Page { defs, text: String::new() };
    page.text.push_str("# Configuration\n\n");
    page.text
        .push_str("<!-- Made by `understudy config-reference` from the doc comments. Do not edit. -->\n");
    page.section("", root);
    Reference { markdown: page.text }
}

struct Page<'s> {
    defs: &'s Map<String, Value>,
    text: String,
}

impl<'s> Page<'s> {
    /// A section's own keys as a table; then the sections inside it.
    fn section(&mut self, path: &str, schema: &'s Map<String, Value>) {
        let own = text(schema, "description").or_else(|| text(self.resolve(schema), "description"));
        // A section that may be left out stands behind an alternative to nothing.
        let only = || match self.kinds(schema).as_slice() {
            [one] => text(one, "description"),
            _ => None,
        };
        let own = own.or_else(only);
        self.paragraph(own.unwrap_or_default());
        self.body(path, schema);
    }

    /// The keys, or one table of keys for each driver.
    fn body(&mut self, path: &str, schema: &'s Map<String, Value>) {
        match self.kinds(schema).as_slice() {
            [one] if tag(one).is_none() => self.keys(path, one),
            kinds => kinds.iter().for_each(|kind| self.driver(path, kind)),
        }
    }

    fn driver(&mut self, path: &str, kind: &'s Map<String, Value>) {
        let tag = tag(kind).map(|(name, word)| format!("{name} = \"{word}\"")).unwrap_or_default();
        let _ = write!(self.text, "\n### `{}` with `{tag}`\n", heading(path));
        self.paragraph(text(kind, "description").unwrap_or_default());
        self.keys(path, kind);
    }

    fn keys(&mut self, path: &str, schema: &'s Map<String, Value>) {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
        let properties = properties.iter().filter_map(|(name, p)| Some((name.as_str(), p.as_object()?)));
        // The heading has it.
        let properties = properties.filter(|(_, property)| !property.contains_key("const"));
        let (sections, keys): (Vec<_>, Vec<_>) = properties.partition(|(_, p)| self.is_section(p));
        if !keys.is_empty() {
            self.text.push_str("\n| key | value | default | meaning |\n|---|---|---|---|\n");
        }
        let required = schema.get("required").and_then(Value::as_array);
        for (name, property) in keys {
            let required = required.is_some_and(|names| names.iter().any(|n| n == name));
            let default = match property.get("default") {
                _ if required => "required".to_owned(),
                Some(Value::Null) | None => "none".to_owned(),
                Some(Value::Object(map)) if map.is_empty() => "none".to_owned(),
                Some(value) => format!("`{value}`"),
            };
            let meaning = text(property, "description").unwrap_or_default();
            let value = self.value(property);
            let _ = writeln!(self.text, "| `{name}` | {value} | {default} | {} |", one_line(meaning));
        }
        for (name, property) in sections {
            let list = property.get("items").and_then(Value::as_object);
            let inner = if path.is_empty() { name.to_owned() } else { format!("{}.{name}", bare(path)) };
            let inner = if list.is_some() { format!("[{inner}]") } else { inner };
            let _ = write!(self.text, "\n## `{}`\n", heading(&inner));
            // A description of the key says more of the place than one of the type.
            match (list, text(property, "description")) {
                (None, _) => self.section(&inner, property),
                (Some(items), None) => self.section(&inner, items),
                (Some(items), Some(said)) => {
                    self.paragraph(said);
                    self.body(&inner, items);
                }
            }
        }
    }

    fn paragraph(&mut self, text: &str) {
        if !text.is_empty() {
            let _ = write!(self.text, "\n{}\n", text.trim());
        }
    }

    fn resolve(&self, schema: &'s Map<String, Value>) -> &'s Map<String, Value> {
        let name = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/$defs/"));
        name.and_then(|name| self.defs.get(name)?.as_object()).unwrap_or(schema)
    }

    /// What a value may be, without `null`.
    fn kinds(&self, schema: &'s Map<String, Value>) -> Vec<&'s Map<String, Value>> {
        let schema = self.resolve(schema);
        let several = schema.get("oneOf").or_else(|| schema.get("anyOf")).and_then(Value::as_array);
        let Some(several) = several else { return vec![schema] };
        let several = several.iter().filter_map(Value::as_object);
        several.filter(|s| s.get("type").is_none_or(|t| t != "null")).flat_map(|s| self.kinds(s)).collect()
    }

    /// A table with keys of its own, or a list of such tables, or one of several kinds of table.
    fn is_section(&self, property: &'s Map<String, Value>) -> bool {
        let schema = property.get("items").and_then(Value::as_object).unwrap_or(property);
        self.kinds(schema).iter().all(|kind| kind.contains_key("properties"))
    }

    fn value(&self, schema: &'s Map<String, Value>) -> String {
        let kinds = self.kinds(schema);
        let mut words: Vec<String> = kinds.iter().map(|kind| self.kind(kind)).collect();
        words.dedup();
        words.join(" or ")
    }

    fn kind(&self, schema: &'s Map<String, Value>) -> String {
        if let Some(words) = schema.get("enum").and_then(Value::as_array) {
            return words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        }
        if let Some(word) = schema.get("const") {
            return format!("`{word}`");
        }
        if let Some(items) = schema.get("items").and_then(Value::as_object) {
            return format!("list of {}", self.value(items));
        }
        if let Some(values) = schema.get("additionalProperties").and_then(Value::as_object) {
            return format!("table of {}", self.value(values));
        }
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            let keys: Vec<_> = properties.keys().map(|key| format!("{key} = …")).collect();
            return format!("`{{ {} }}`", keys.join(", "));
        }
        match schema.get("type") {
            Some(Value::String(word)) => type_word(word).to_owned(),
            Some(Value::Array(words)) => {
                let words = words.iter().filter_map(Value::as_str).filter(|word| *word != "null");
                words.map(type_word).collect::<Vec<_>>().join(" or ")
            }
            _ => "text".to_owned(),
        }
    }
}

fn type_word(word: &str) -> &str {
    match word {
        "string" => "text",
        "integer" => "whole number",
        "boolean" => "`true`, `false`",
        other => other,
    }
}

fn tag(kind: &Map<String, Value>) -> Option<(&str, &str)> {
    let properties = kind.get("properties")?.as_object()?;
    properties.iter().find_map(|(name, p)| Some((name.as_str(), p.get("const")?.as_str()?)))
}

fn text<'v>(schema: &'v Map<String, Value>, key: &str) -> Option<&'v str> {
    schema.get(key)?.as_str()
}

/// `a` of `[a]`: the name of a list of tables without its inner brackets.
fn bare(path: &str) -> &str {
    path.trim_matches(['[', ']'])
}

fn heading(path: &str) -> String {
    format!("[{path}]")
}

fn one_line(text: &str) -> String {
    text.replace("\n\n", "<br>").replace('\n', " ").replace('|', "\\|")
}
