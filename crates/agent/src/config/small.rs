//! What a broker host needs for `guard` and `ledger`: a small part of the same file. The rest may be there or
//! not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drivers::machine::Local;
use recovery::known::Member;
use recovery::model::{BrokerId, HostName};

use super::document::Document;
use super::ledger::LedgerConfig;
use super::problem::{ConfigError, Problem};
use super::raw;

/// `[agent] host` and `state_dir`, `[ledger]`, and `id`, `home` and, if they are there, `log_dirs` of every
/// `[[broker]]`.
#[derive(Debug, Clone)]
pub struct Small {
    /// This host.
    pub here: HostName,
    /// Where the agent of this host keeps its own: what this machine is, which ledger it knows, and the
    /// brokers' rights.
    pub state_dir: PathBuf,
    /// The ledger.
    pub ledger: LedgerConfig,
    /// The brokers, each with the host that owns it until the ledger says otherwise.
    pub homes: BTreeMap<BrokerId, HostName>,
    /// Their log dirs, where they are named: by them a Kafka of another cluster is told from one of theirs.
    pub log_dirs: BTreeMap<BrokerId, Vec<PathBuf>>,
}

impl Small {
    /// This host as a user of the ledger. `joins`: whether it makes itself known there.
    #[must_use]
    pub fn member(&self, joins: bool) -> Member {
        Member {
            here: self.here.clone(),
            machine: Arc::new(Local::new(self.state_dir.clone())),
            homes: self.homes.clone(),
            place: self.ledger.place(),
            joins,
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Every problem in the part that is needed.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        Self::parse(&text).map_err(|problems| ConfigError::new(path, problems))
    }

    fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let mut doc = Document::parse(text)?;
        let brokers = doc.len("broker");
        let ids = (0..brokers).flat_map(|i| [format!("broker[{i}].id"), format!("broker[{i}].home")]);
        let needed = ["agent.host", "ledger.driver"].map(str::to_owned).into_iter().chain(ids);
        for key in needed.filter(|key| !doc.has(key)).collect::<Vec<_>>() {
            doc.problem(&key, "is missing", "see docs/configuration.md");
        }
        if brokers == 0 {
            let remedy = "add a [[broker]] with the id and the home of each broker of this host";
            doc.problem("broker", "no broker is named", remedy);
        }
        let here: Option<String> = doc.read("agent.host");
        let state_dir =
            if doc.has("agent.state_dir") { doc.read("agent.state_dir") } else { Some(raw::state_dir()) };
        let ledger: Option<LedgerConfig> = doc.read("ledger");
        for said in ledger.as_ref().and_then(|ledger| ledger.open().err()).into_iter().flatten() {
            let (key, reason) = said.split_once(": ").unwrap_or(("", &said));
            doc.problem(&format!("ledger.{key}"), reason, "");
        }
        let (mut homes, mut log_dirs) = (BTreeMap::new(), BTreeMap::new());
        for i in 0..brokers {
            let (id, home) = (doc.read(&format!("broker[{i}].id")), doc.read(&format!("broker[{i}].home")));
            let id = id.map(BrokerId);
            homes.extend(id.zip(home.map(HostName)));
            let key = format!("broker[{i}].log_dirs");
            log_dirs.extend(id.zip(if doc.has(&key) { doc.read(&key) } else { None }));
        }
        match (here, state_dir, ledger, doc.into_problems()) {
            (Some(here), Some(state_dir), Some(ledger), problems) if problems.is_empty() => {
                Ok(Self { here: HostName(here), state_dir, ledger, homes, log_dirs })
            }
            (.., problems) => Err(problems),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "[agent]\nhost = \"kafka-1\"\n[ledger]\ndriver = \"file\"\ndir = \"/mnt/l\"\n[[broker]]\n\
                         id = 1\nhome = \"kafka-1\"\n";

    #[test]
    fn three_sections_are_enough_and_the_rest_is_ignored() {
        let small = Small::parse(SMALL).unwrap();
        assert_eq!(small.here, "kafka-1".into());
        assert_eq!(small.homes, BTreeMap::from([(BrokerId(1), "kafka-1".into())]));
        let more = format!("{SMALL}racks = 7\nlog_dirs = [\"/mnt/b1\"]\n[policy]\nhung_after = \"soon\"\n");
        let more = Small::parse(&more).unwrap();
        assert_eq!(more.log_dirs, BTreeMap::from([(BrokerId(1), vec![PathBuf::from("/mnt/b1")])]));
    }

    #[test]
    fn whatever_of_them_is_missing_is_told_at_once() {
        let problems = Small::parse("[agent]\n[[broker]]\nid = \"one\"\n").unwrap_err();
        let mut keys: Vec<_> = problems.iter().map(|p| p.key.as_str()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["agent.host", "broker[0].home", "broker[0].id", "ledger.driver"]);
        let relative = SMALL.replace("/mnt/l", "l");
        assert_eq!(Small::parse(&relative).unwrap_err()[0].key, "ledger.dir");
    }
}
