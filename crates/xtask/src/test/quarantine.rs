//! Tests that the gate leaves out for a time: `tests/quarantine.toml`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use jiff::civil::Date;
use serde::Deserialize;

use super::gate;

/// Where it is, in the checkout.
pub(crate) const FILE: &str = "tests/quarantine.toml";
/// More than this many are no exception any more.
const MOST: usize = 5;
/// An older entry fails the gate.
pub(crate) const DAYS: i32 = 14;

/// A test that fails for a reason that is not the change's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// The test's name, without its path.
    pub(crate) name: String,
    /// How it fails. Never by a verdict: a lost, doubled or reordered record, two Kafkas, a healthy broker fenced.
    pub(crate) symptom: String,
    /// The commit that it was seen on.
    pub(crate) commit: String,
    /// The day that it was seen on, as `2026-11-25`.
    pub(crate) seen: Date,
    /// What may be behind it.
    pub(crate) suspected: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quarantine {
    #[serde(default)]
    test: Vec<Entry>,
}

/// Reads the list.
///
/// # Errors
/// It is not there, cannot be read, has too many entries, or one that says too little.
pub(crate) fn read(root: &Path) -> Result<Vec<Entry>> {
    let path = root.join(FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| FILE.to_owned())
}

fn parse(text: &str) -> Result<Vec<Entry>> {
    let entries = toml::from_str::<Quarantine>(text)?.test;
    ensure!(entries.len() <= MOST, "{} tests, where at most {MOST} may be left out", entries.len());
    for entry in &entries {
        let Entry { name, symptom, commit, suspected, .. } = entry;
        ensure!(
            gate::STORIES.contains(&name.as_str()),
            "the gate has no story {name:?}: only its stories can be left out"
        );
        for (key, value) in
            [("name", name), ("symptom", symptom), ("commit", commit), ("suspected", suspected)]
        {
            ensure!(!value.trim().is_empty(), "test {name:?}: `{key}` says nothing");
        }
    }
    Ok(entries)
}

/// The entries that are older than fourteen days: mend the test, or remove it.
pub(crate) fn stale(entries: &[Entry], today: Date) -> Vec<String> {
    let age = |entry: &Entry| today.since(entry.seen).map_or(i32::MAX, |span| span.get_days());
    // One that will be seen some day would never be old.
    let old = entries.iter().filter(|entry| !(0..=DAYS).contains(&age(entry)));
    old.map(|entry| format!("{} (seen {}: {})", entry.name, entry.seen, entry.symptom)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;
    use jiff::Zoned;

    const ENTRY: &str = "[[test]]\nname = \"killed_after_the_fence\"\nsymptom = \"s\"\ncommit = \"c\"\nseen = \"2026-11-01\"\nsuspected = \"u\"\n";

    #[test]
    fn no_entry_is_older_than_fourteen_days() {
        let entries = read(&Workspace::find().unwrap().root).unwrap();
        let stale = stale(&entries, Zoned::now().date());
        assert!(stale.is_empty(), "mend or remove: {stale:?}");
    }

    #[test]
    fn an_entry_ends_after_fourteen_days() {
        let entries = parse(ENTRY).unwrap();
        assert!(stale(&entries, Date::constant(2026, 11, 15)).is_empty());
        assert_eq!(stale(&entries, Date::constant(2026, 11, 16)).len(), 1);
        assert_eq!(stale(&entries, Date::constant(2027, 2, 1)).len(), 1);
        assert_eq!(stale(&entries, Date::constant(2026, 10, 31)).len(), 1, "not seen yet");
    }

    #[test]
    fn a_list_that_is_too_long_or_says_too_little_is_refused() {
        assert!(parse("").unwrap().is_empty());
        assert!(parse(&ENTRY.repeat(6)).is_err());
        assert!(parse(&ENTRY.replace("\"u\"", "\" \"")).is_err());
        assert!(parse(&ENTRY.replace("suspected = \"u\"\n", "")).is_err());
    }
}
