//! What is different between two files, key by key, as it may be told: without the values of secrets.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::document::{holds_login, is_secret, join};

/// What stands in a secret's place.
const HIDDEN: &str = "***";

/// The keys of which one names an element in the lists of the file's first level, and in [`UNORDERED`]. Their order
/// means nothing.
const NAMES: [&str; 3] = ["id", "name", "host"];

/// Other lists whose order means nothing.
const UNORDERED: &str = "agent.access";

/// What is in force until the agent is started anew: where it answers, which machine it is, and which ledger and
/// cluster it belongs to.
const FIXED: [&str; 7] =
    ["agent.host", "agent.state_dir", "agent.listen", "agent.socket", "agent.tls", "cluster.id", "ledger"];

/// A file that was checked, as it is written.
#[derive(Clone, Default)]
pub struct Written(Table);

impl fmt::Debug for Written {
    /// Without its contents: there may be secrets among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written(..)")
    }
}

impl Written {
    /// Of a text that is TOML.
    pub(super) fn of(text: &str) -> Self {
        Self(text.parse().unwrap_or_default())
    }

    /// The keys whose values differ in `next`.
    #[must_use]
    pub fn differences(&self, next: &Self) -> Vec<Difference> {
        let (before, after) = (Value::Table(self.0.clone()), Value::Table(next.0.clone()));
        let mut found = Vec::new();
        compare(&Place::default(), Some(&before), Some(&after), &mut found);
        found
    }
}

/// A key whose value differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The key, such as `broker[id=1].listener`.
    pub key: String,
    /// Its value before; none where it was not set.
    pub before: Option<String>,
    /// Its value now.
    pub after: Option<String>,
    /// Whether it takes a restart of the agent.
    pub fixed: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
        write!(f, "{}: {} → {}", self.key, told(&self.before), told(&self.after))
    }
}

/// Where a value stands.
#[derive(Clone, Default)]
struct Place {
    /// For people.
    key: String,
    /// The names of keys alone, which tell whether it may be a secret.
    names: String,
}

impl Place {
    fn difference(&self, before: Option<&Value>, after: Option<&Value>) -> Difference {
        let is_fixed = |fixed: &&'static str| {
            self.names.strip_prefix(*fixed).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        Difference {
            key: self.key.clone(),
            before: before.map(|value| self.told(value)),
            after: after.map(|value| self.told(value)),
            fixed: FIXED.iter().any(is_fixed),
        }
    }

    fn told(&self, value: &Value) -> String {
        let text = serde_json::to_string(value).unwrap_or_else(|_| HIDDEN.to_owned());
        let mut words = Vec::new();
        strings(value, &mut words);
        let words = || words.iter().flat_map(|text| text.split_whitespace());
        let secret = is_secret(&self.names) || holds_login(&text) || !secrets::in_words(words()).is_empty();
        if secret { HIDDEN.to_owned() } else { text }
    }

    /// The parts of a value that has some, each with its place.
    fn parts<'v>(&self, value: &'v Value) -> Option<Vec<(Self, &'v Value)>> {
        match value {
            Value::Table(table) => {
                let part = |(name, value): (&String, &'v Value)| {
                    (Self { key: join(&self.key, name), names: join(&self.names, name) }, value)
                };
                Some(table.iter().map(part).collect())
            }
            Value::Array(values) if values.iter().any(|value| value.is_table() || value.is_array()) => {
                let named = !self.names.contains('.') || self.names == UNORDERED;
                let name = NAMES.into_iter().find(|name| named && names(name, values));
                let label = |(i, value): (usize, &Value)| match name.and_then(|name| value.get(name)) {
                    Some(id) => format!("[{}={}]", name.unwrap_or_default(), plain(id)),
                    None => format!("[{i}]"),
                };
                let key = |part| format!("{}{}", self.key, label(part));
                let part = |(i, value): (usize, &'v Value)| {
                    (Self { key: key((i, value)), names: self.names.clone() }, value)
                };
                Some(values.iter().enumerate().map(part).collect())
            }
            _ => None,
        }
    }
}

/// Whether every element is a table, and is named by this key as no other one is.
fn names(name: &str, values: &[Value]) -> bool {
    let all: BTreeSet<String> = values.iter().filter_map(|value| value.get(name)).map(plain).collect();
    all.len() == values.len()
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn strings<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(values) => values.iter().for_each(|value| strings(value, found)),
        _ => {}
    }
}

fn compare(place: &Place, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Difference>) {
    if before == after {
        return;
    }
    let (old, new) =
        (before.and_then(|value| place.parts(value)), after.and_then(|value| place.parts(value)));
    if before.is_some() && after.is_some() && old.is_some() != new.is_some() {
        // A value became a section, or a section a value.
        compare(place, before, None, found);
        compare(place, None, after, found);
        return;
    }
    let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
    if old.is_empty() && new.is_empty() {
        found.push(place.difference(before, after));
    }
    let of = |parts: &[(Place, &'_ Value)], key: &str| parts.iter().position(|(place, _)| place.key == key);
    for (place, value) in &old {
        let now = of(&new, &place.key).map(|i| new[i].1);
        compare(place, Some(value), now, found);
    }
    for (place, value) in new.iter().filter(|(place, _)| of(&old, &place.key).is_none()) {
        compare(place, None, Some(value), found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"
mode = "observe"
[agent]
listen = "127.0.0.1:9095"
[policy]
hung_after = "20s"
[[host]]
name = "kafka-1"
[[host.fence]]
driver = "fence_agent"
options = { ip = "10.0.0.1", password = "hunter2" }
[[host]]
name = "kafka-2"
address = "10.0.0.2"
[[broker]]
id = 1
listener = "10.0.1.1:9092"
"#;

    fn told(edit: impl FnOnce(String) -> String) -> Vec<String> {
        let (before, after) = (BEFORE.to_owned(), edit(BEFORE.to_owned()));
        let found = Written::of(&before).differences(&Written::of(&after));
        found
            .iter()
            .map(|difference| format!("{}{difference}", if difference.fixed { "! " } else { "" }))
            .collect()
    }

    #[test]
    fn a_key_is_a_line_with_both_values() {
        let all = told(|text| text.replace("observe", "auto").replace("\"20s\"", "\"30s\""));
        assert_eq!(all, [r#"mode: "observe" → "auto""#, r#"policy.hung_after: "20s" → "30s""#]);
        assert_eq!(told(|text| text.replace("[policy]", "[policy] # as agreed\n")), [""; 0]);
    }

    #[test]
    fn a_section_that_is_moved_is_none_and_one_that_comes_or_goes_is_told_key_by_key() {
        let (kept, last) = BEFORE.split_once("[[host]]\nname = \"kafka-2\"").unwrap();
        let (second, broker) = last.split_once("[[broker]]").unwrap();
        let (head, first) = kept.split_once("[[host]]").unwrap();
        let moved = format!("{head}[[host]]\nname = \"kafka-2\"{second}[[host]]{first}[[broker]]{broker}");
        assert_eq!(told(|_| moved), [""; 0]);
        let gone = format!("{kept}[[broker]]{broker}[[broker]]\nid = 2\nracks = []\n");
        let expected = [
            r#"broker[id=2].id: not set → 2"#,
            r#"broker[id=2].racks: not set → []"#,
            r#"host[name=kafka-2].address: "10.0.0.2" → not set"#,
            r#"host[name=kafka-2].name: "kafka-2" → not set"#,
        ];
        assert_eq!(told(|_| gone), expected);
    }

    /// The order of a ladder means something.
    #[test]
    fn below_the_first_level_the_place_in_a_list_counts() {
        let two = |first, second| {
            let rung = |name| format!("[[host.fence]]\nname = \"{name}\"\n");
            Written::of(&format!("[[host]]\nname = \"a\"\n{}{}", rung(first), rung(second)))
        };
        let found = two("x", "y").differences(&two("y", "x"));
        assert_eq!(found[0].to_string(), r#"host[name=a].fence[0].name: "x" → "y""#);
    }

    #[test]
    fn no_secret_is_told() {
        let changed = told(|text| text.replace("hunter2", "hunter3"));
        assert_eq!(changed, ["host[name=kafka-1].fence[0].options.password: *** → ***"]);
        let command =
            told(|text| text.replace("[policy]", "[policy]\nx = [\"stop\", \"--password=hunter2\"]"));
        assert_eq!(command, ["policy.x: not set → ***"]);
        let section = told(|text| text.replace("[policy]", "[policy]\ntoken = { file = \"hunter2\" }"));
        assert_eq!(section, ["policy.token.file: not set → ***"]);
        assert!(!format!("{:?}", Written::of(BEFORE)).contains("hunter2"));
    }

    #[test]
    fn what_takes_a_restart_is_known_by_its_key() {
        let listen = told(|text| text.replace(":9095", ":9096"));
        assert_eq!(listen, [r#"! agent.listen: "127.0.0.1:9095" → "127.0.0.1:9096""#]);
        assert_eq!(
            told(|text| text.replace("[agent]", "[ledger]\ndriver = \"file\"\n[agent]"))[0].get(..2),
            Some("! ")
        );
        let other = told(|text| text.replace("[policy]", "[policy]\nledger_wait = 1"));
        assert_eq!(other, ["policy.ledger_wait: not set → 1"]);
    }
}
