//! A TOML file that remembers where everything stands, so that each problem can name its key and line.

use std::collections::BTreeMap;
use std::ops::Range;

use secrets::names_a_secret;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, ValueDeserializer};

use super::problem::Problem;

/// A TOML file, and the problems found in it so far.
pub(crate) struct Document<'t> {
    text: &'t str,
    root: Spanned<DeValue<'t>>,
    places: BTreeMap<String, Place>,
    problems: Vec<Problem>,
}

#[derive(Debug, Clone)]
struct Place {
    /// Of the value; of its header where the value is a table of its own.
    value: Range<usize>,
    /// Of the key; the value's own in a list.
    key: Range<usize>,
    /// Without a table in it, whose keys may be any.
    plain: bool,
}

/// The key of `name` inside the table at `parent`.
pub(crate) fn join(parent: &str, name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name = if name.chars().all(bare) { name.to_owned() } else { format!("{name:?}") };
    if parent.is_empty() { name } else { format!("{parent}.{name}") }
}

impl<'t> Document<'t> {
    /// Parses `text`.
    ///
    /// # Errors
    /// The syntax errors.
    pub(crate) fn parse(text: &'t str) -> Result<Self, Vec<Problem>> {
        let root = DeTable::parse(text).map_err(|error| {
            vec![Problem {
                key: String::new(),
                line: error.span().map(|span| line(text, span.start)),
                // Nobody knows what stands there: a password that was not closed, for instance.
                found: None,
                reason: format!("this is not TOML{}: {}", column(text, error.span()), error.message()),
                remedy: String::new(),
            }]
        })?;
        let root = Spanned::new(root.span(), DeValue::Table(root.into_inner()));
        let mut places = BTreeMap::new();
        index("", &root, &mut places);
        Ok(Self { text, root, places, problems: Vec::new() })
    }

    /// The whole file.
    pub(crate) fn root(&self) -> &Spanned<DeValue<'t>> {
        &self.root
    }

    /// How many elements the list at `key` has.
    pub(crate) fn len(&self, key: &str) -> usize {
        (0..).take_while(|i| self.places.contains_key(&format!("{key}[{i}]"))).count()
    }

    /// Notes a problem with the value at `key`, or with its absence.
    pub(crate) fn problem(&mut self, key: &str, reason: impl Into<String>, remedy: impl Into<String>) {
        let problem = self.describe(key, reason.into(), remedy.into());
        self.note(problem);
    }

    /// Notes a problem with what stands at `key`, of which nobody knows what it is: it is not repeated.
    pub(crate) fn problem_unseen(&mut self, key: &str, reason: impl Into<String>, remedy: impl Into<String>) {
        let problem = self.describe(key, reason.into(), remedy.into());
        self.note(Problem { found: None, ..problem });
    }

    /// Notes a problem, unless something is known to be wrong at the same place: the first reason is enough.
    pub(crate) fn note(&mut self, problem: Problem) {
        if !self.problems.iter().any(|known| known.key == problem.key) {
            self.problems.push(problem);
        }
    }

    /// Whether the file has something at `key`.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// What [`Self::problem`] notes.
    pub(crate) fn describe(&self, key: &str, reason: String, remedy: String) -> Problem {
        let place = self.places.get(key);
        let near = place.or_else(|| {
            let parents = key.rmatch_indices(['.', '[']).map(|(end, _)| &key[..end]);
            parents.into_iter().find_map(|parent| self.places.get(parent))
        });
        let text = place.filter(|p| p.plain).map(|p| &self.text[p.value.clone()]);
        let (found, hidden): (Vec<&str>, Vec<&str>) =
            text.into_iter().partition(|text| !is_secret(key) && !holds_login(text));
        // What is wrong may quote it. Of a mount's options only those are told that are known to be wrong.
        let of_mount = key.contains("storage.mount") && key.ends_with(".options");
        let reason = hidden.iter().filter(|_| !of_mount).fold(reason, |reason, text| {
            match text.trim_matches(['"', '\'']) {
                "" => reason,
                inner => reason.replace(inner, "…"),
            }
        });
        let words = reason.split(' ').map(|word| if holds_login(word) { "…" } else { word });
        let reason = words.collect::<Vec<_>>().join(" ");
        let found = found.first().map(|text| (*text).to_owned());
        Problem {
            key: key.to_owned(),
            line: near.map(|p| line(self.text, p.key.start)),
            found: found.filter(|text| !text.contains('\n')),
            reason,
            remedy,
        }
    }

    /// The problems noted.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// Takes away the value at `key`, which has been found bad, so that what is around it can be read.
    pub(crate) fn discard(&mut self, key: &str) {
        if let Some(place) = self.places.get(key) {
            remove(&mut self.root, &place.value);
        }
    }

    /// Reads what stands at `key`; `None` if it is not there or cannot be read.
    ///
    /// A value that cannot be read is noted, taken away, and the rest is read again, so that one bad
    /// value does not hide the next. What is missing or unknown has been noted by the caller.
    pub(crate) fn read<T: DeserializeOwned>(&mut self, key: &str) -> Option<T> {
        let mut value = find(&self.root, key)?.clone();
        loop {
            let error = match T::deserialize(ValueDeserializer::from(value.clone())) {
                Ok(read) => return Some(read),
                Err(error) => error,
            };
            let Some(span) = error.span() else {
                // Of a section with a driver the message has no place. What is missing has been noted.
                let known = self.problems.iter().any(|known| known.key.starts_with(key));
                if !(known && error.message().starts_with("missing field")) {
                    self.problem(key, error.message(), "");
                }
                return None;
            };
            let at = self.key_of(&span).unwrap_or_else(|| key.to_owned());
            // A message quotes what it is about.
            let why = if is_secret(&at) { "cannot be read as what belongs here" } else { error.message() };
            // Something is missing because it has been discarded: its problem is known.
            if !self.problems.iter().any(|known| known.key.starts_with(&at)) {
                self.problem(&at, why, "");
            }
            if !remove(&mut value, &span) {
                return None;
            }
        }
    }

    fn key_of(&self, span: &Range<usize>) -> Option<String> {
        let exact = self.places.iter().filter(|(_, p)| p.value == *span || p.key == *span);
        // A header is the place of its list and of its list's first element: the element is meant.
        exact.max_by_key(|(key, _)| key.len()).map(|(key, _)| key.clone())
    }
}

/// Whether what stands at `key` may be a secret, or hold one: problems name the key only. Options of fences,
/// Kafka's properties and its environment may have any name; a password belongs into a file, and may have
/// been put where the file's name belongs.
pub(super) fn is_secret(key: &str) -> bool {
    ["options", "properties", "environment"].iter().any(|word| key.contains(word)) || names_a_secret(key)
}

/// Whether there is no table in it, whose keys may be any.
fn is_plain(value: &Spanned<DeValue<'_>>) -> bool {
    match value.get_ref() {
        DeValue::Table(_) => false,
        DeValue::Array(values) => values.iter().all(is_plain),
        _ => true,
    }
}

/// Whether it may be an address with a login in it.
pub(super) fn holds_login(text: &str) -> bool {
    text.contains("://") && text.contains('@')
}

/// ` at column 14`.
fn column(text: &str, span: Option<Range<usize>>) -> String {
    let of = |span: Range<usize>| {
        let before = &text[..span.start.min(text.len())];
        let line = before.rsplit('\n').next().unwrap_or_default();
        format!(" at column {}", line.chars().count() + 1)
    };
    span.map(of).unwrap_or_default()
}

fn line(text: &str, offset: usize) -> usize {
    text[..offset.min(text.len())].matches('\n').count() + 1
}

fn index(key: &str, value: &Spanned<DeValue<'_>>, places: &mut BTreeMap<String, Place>) {
    match value.get_ref() {
        DeValue::Table(table) => {
            for (name, value) in table {
                let key = join(key, name.get_ref());
                let plain = is_plain(value);
                let place = Place { value: value.span(), key: name.span(), plain };
                places.insert(key.clone(), place);
                index(&key, value, places);
            }
        }
        DeValue::Array(values) => {
            for (i, value) in values.iter().enumerate() {
                let key = format!("{key}[{i}]");
                let plain = is_plain(value);
                places.insert(key.clone(), Place { value: value.span(), key: value.span(), plain });
                index(&key, value, places);
            }
        }
        _ => {}
    }
}

/// The value at `key`, such as `a[1].b`. Only keys without quotes are looked for.
fn find<'v, 't>(root: &'v Spanned<DeValue<'t>>, key: &str) -> Option<&'v Spanned<DeValue<'t>>> {
    key.split(['.', '[']).try_fold(root, |value, part| match part.strip_suffix(']') {
        Some(place) => value.get_ref().as_array()?.get(place.parse::<usize>().ok()?),
        None => value.get_ref().as_table()?.get(part),
    })
}

/// Takes away what stands at `span`. Says whether there was anything.
fn remove(value: &mut Spanned<DeValue<'_>>, span: &Range<usize>) -> bool {
    match value.get_mut() {
        DeValue::Table(table) => {
            if table.iter_mut().any(|(_, value)| remove(value, span)) {
                return true;
            }
            let at = table.iter().find(|(key, value)| key.span() == *span || value.span() == *span);
            let Some(name) = at.map(|(key, _)| key.get_ref().clone()) else { return false };
            table.remove(name.as_ref()).is_some()
        }
        DeValue::Array(values) => {
            if values.iter_mut().any(|value| remove(value, span)) {
                return true;
            }
            let before = values.len();
            let all = std::mem::replace(values, DeArray::new());
            *values = all.into_iter().filter(|value| value.span() != *span).collect();
            values.len() < before
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Section {
        #[serde(default, with = "humantime_serde")]
        a: std::time::Duration,
        #[serde(default, with = "humantime_serde")]
        b: std::time::Duration,
        #[serde(default)]
        c: u8,
    }

    #[test]
    fn one_bad_value_does_not_hide_the_next() {
        let text = "[s]\na = \"never\"\nb = \"3 parsecs\"\nc = 7\n";
        let mut doc = Document::parse(text).unwrap();
        let section: Section = doc.read("s").unwrap();
        assert_eq!((section.a.as_secs(), section.b.as_secs(), section.c), (0, 0, 7));
        let problems = doc.into_problems();
        let places: Vec<_> = problems.iter().map(|p| (p.key.as_str(), p.line)).collect();
        assert_eq!(places, [("s.a", Some(2)), ("s.b", Some(3))]);
        assert_eq!(problems[0].found.as_deref(), Some("\"never\""));
    }

    #[test]
    fn a_missing_key_is_placed_at_its_section() {
        let doc = Document::parse("x = 1\n[[broker]]\nid = 1\n[[broker]]\nid = 2\n").unwrap();
        assert_eq!(doc.len("broker"), 2);
        let problem = doc.describe("broker[1].home", "is missing".into(), String::new());
        assert_eq!(problem.line, Some(4));
        assert_eq!(problem.found, None);
    }

    #[test]
    fn a_mount_option_is_told_though_it_is_the_only_one() {
        let text = "[[broker]]\n[broker.storage]\n[[broker.storage.mount]]\noptions = \"vers=3\"\n";
        let key = "broker[0].storage.mount[0].options";
        let doc = Document::parse(text).unwrap();
        let problem = doc.describe(key, "`vers=3`: needs 4.1".into(), String::new());
        assert_eq!((problem.reason.as_str(), problem.found), ("`vers=3`: needs 4.1", None));
    }

    #[test]
    fn values_of_fence_options_are_not_repeated() {
        let doc = Document::parse("[[host]]\n[[host.fence]]\n[host.fence.options]\npassword = \"hunter2\"\n");
        let problem =
            doc.unwrap().describe("host[0].fence[0].options.password", "is bad".into(), String::new());
        assert_eq!((problem.found, problem.line), (None, Some(4)));
    }

    #[test]
    fn keys_that_need_quotes_have_them() {
        assert_eq!(join("broker[0].properties", "broker.rack"), "broker[0].properties.\"broker.rack\"");
    }
}
