//! Which configuration the `understudy guard` of a unit reads: one that names another ledger or another state
//! directory asks somebody else, and takes another right.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::GuardReads;
use super::unit::{Unit, before_kafka, is_guard};

/// What [`look`] is about: "could not …".
pub(super) const READS: &str = "have the unit's guard ask the same ledger";

/// By which a command that is told no file finds it.
const VARIABLE: &str = "UNDERSTUDY_CONFIG";

/// What is wrong with the file that any guard of the unit reads.
pub(super) fn look(
    unit: &Unit,
    environment: &BTreeMap<String, String>,
    reads: &GuardReads,
) -> Option<String> {
    let guards = unit.exec_start.iter().chain(&unit.exec_condition).filter(|words| is_guard(words));
    guards.filter_map(|words| wrong(unit, &named(words, environment)?, reads)).next()
}

fn wrong(unit: &Unit, file: &Option<PathBuf>, reads: &GuardReads) -> Option<String> {
    let why = reads.differs(file.as_deref())?;
    Some(format!("the guard of {} {why}", unit.name))
}

/// The file of one guard: `Some(None)` is the default one, `None` if it cannot be known.
fn named(words: &[String], environment: &BTreeMap<String, String>) -> Option<Option<PathBuf>> {
    let own = before_kafka(words);
    let option = own.iter().position(|word| word == "--config").and_then(|at| own.get(at + 1));
    let joined = own.iter().find_map(|word| word.strip_prefix("--config="));
    let file = option.map(String::as_str).or(joined).or(environment.get(VARIABLE).map(String::as_str));
    match file {
        None => Some(None),
        // What a variable holds is not known here, nor is a path without its beginning.
        Some(file) if file.contains('$') || !file.starts_with('/') => None,
        Some(file) => Some(Some(Path::new(file).to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_that_a_guard_reads_is_found_however_it_is_named() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let none = BTreeMap::new();
        let set = BTreeMap::from([(VARIABLE.to_owned(), "/etc/u/env.toml".to_owned())]);
        for (command, environment, file) in [
            ("/usr/bin/understudy guard --broker 1", &none, Some(None)),
            ("/usr/bin/understudy guard --broker 1", &set, Some(Some("/etc/u/env.toml"))),
            (
                "/usr/bin/understudy --config /etc/u/a.toml guard --broker 1",
                &set,
                Some(Some("/etc/u/a.toml")),
            ),
            ("/usr/bin/understudy guard --config=/etc/u/a.toml -- /k", &none, Some(Some("/etc/u/a.toml"))),
            ("/usr/bin/understudy guard --exec -- /k --config /x", &none, Some(None)),
            ("/usr/bin/understudy guard --config ${FILE}", &none, None),
            ("/usr/bin/understudy guard --config u.toml", &none, None),
        ] {
            let found = named(&words(command), environment);
            assert_eq!(found, file.map(|file| file.map(PathBuf::from)), "{command}");
        }
    }

    #[test]
    fn any_guard_of_the_unit_that_reads_another_file_is_told() {
        let reads = GuardReads::new(|file| {
            let other = file.is_some_and(|file| file != "/etc/u/a.toml");
            other.then(|| format!("reads {}", file.unwrap_or(Path::new("-")).display()))
        });
        let mut unit = Unit { name: "kafka@1.service".into(), ..Unit::default() };
        let words = |text: &str| vec![text.split(' ').map(str::to_owned).collect::<Vec<_>>()];
        unit.exec_start = words("/usr/bin/understudy guard --exec --config /etc/u/a.toml -- /k");
        assert_eq!(look(&unit, &BTreeMap::new(), &reads), None);
        unit.exec_condition = words("/usr/bin/understudy guard --config /etc/u/b.toml");
        let said = look(&unit, &BTreeMap::new(), &reads).unwrap();
        assert_eq!(said, "the guard of kafka@1.service reads /etc/u/b.toml");
    }
}
