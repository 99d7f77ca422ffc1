//! The look that goes with the right of a broker: who of this host works on its log dirs, or is about to.
//!
//! The right tells of every Kafka whose starter took it and whose process kept its file. A Kafka that
//! somebody started without it, or by a launcher that closes what it inherits, is seen by its process alone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::command_line::kafka_in;
use super::proc::{self, Holder};
use super::rivals::{self, LONGEST_PROPERTIES, Sought};
use super::verify;
use crate::bounded;
use kafka::properties::Properties;
use recovery::model::BrokerId;

/// Between two looks. Each reads the whole of `/proc`.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The Kafka that a command would become, as far as the properties that it names, or its environment, tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meant {
    /// The properties; `None`: it is the environment that tells.
    pub properties: Option<PathBuf>,
    /// Its node id.
    pub node_id: Option<String>,
    /// Its log dirs.
    pub log_dirs: Vec<PathBuf>,
}

impl Meant {
    /// Reads what `command` names, or else what `environment` says as images of Kafka read it. Nothing is known
    /// of a program that finds its properties by itself.
    #[must_use]
    pub fn by(command: &[String], environment: impl Fn(&str) -> Option<String>) -> Self {
        let words: Vec<&[u8]> = command.iter().map(String::as_bytes).collect();
        let after = kafka_in(&words).map_or(0, |named| named.at) + 1;
        let files = command.iter().skip(after).filter(|word| !word.starts_with('-')).map(Path::new);
        let mut named = files.map(|path| Self::read(path, &words)).filter(Self::is_known);
        named.next().unwrap_or_else(|| Self::of(None, |key| environment(&variable(key))))
    }

    fn read(path: &Path, words: &[&[u8]]) -> Self {
        let read = bounded::read_regular(path, LONGEST_PROPERTIES)
            .ok()
            .and_then(|text| Properties::parse(&text).ok());
        let Some(file) = read else { return Self::default() };
        let value = |key: &str| rivals::overridden(words, key).or_else(|| file.get(key).map(str::to_owned));
        Self::of(Some(path.to_owned()), value)
    }

    fn of(properties: Option<PathBuf>, value: impl Fn(&str) -> Option<String>) -> Self {
        Self { properties, node_id: rivals::node_id(&value), log_dirs: rivals::log_dirs(&value) }
    }

    /// Whether it is known which broker it becomes.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.node_id.is_some()
    }
}

/// `node.id` is `KAFKA_NODE_ID`.
fn variable(key: &str) -> String {
    format!("KAFKA_{}", key.replace('.', "_").to_ascii_uppercase())
}

/// Waits until nobody else on this host works on `broker`'s log dirs or is about to, for at most `patience`.
/// This process and those that wait for it do not count. Where no log dir is known, every Kafka with the
/// broker's node id counts.
///
/// # Errors
/// Who it is; or that it cannot be seen.
pub fn await_nobody(broker: BrokerId, log_dirs: &[PathBuf], patience: Duration) -> Result<(), String> {
    let begun = Instant::now();
    let own = proc::ancestry().map_err(|problem| problem.to_string())?;
    loop {
        let found = others(broker, log_dirs, &own).map_err(|problem| problem.to_string())?;
        if found.is_empty() {
            return Ok(());
        }
        if begun.elapsed() >= patience {
            return Err(verify::in_words(&found));
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn others(
    broker: BrokerId,
    log_dirs: &[PathBuf],
    own: &BTreeSet<i32>,
) -> Result<Vec<Holder>, super::problem::Problem> {
    let mut found = verify::holders(log_dirs)?;
    for rival in rivals::rivals(&Sought { id: broker, log_dirs })? {
        if found.iter().all(|holder| holder.id != rival.id) {
            found.push(rival);
        }
    }
    found.retain(|holder| holder.id.is_none_or(|id| !own.contains(&id.pid)));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_command_tells_which_kafka_it_becomes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server.conf");
        fs::write(&path, "node.id=7\nlog.dirs=/a, /b\nmetadata.log.dir=/m\n").unwrap();
        let file = path.display().to_string();
        let nothing = |_: &str| None;
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let by = |command: &[&str]| Meant::by(&words(command), nothing);
        for command in
            [vec!["kafka-server-start.sh", &file], vec!["sh", "start.sh", &file], vec!["wrap", &file]]
        {
            let meant = by(&command);
            assert_eq!(meant.node_id.as_deref(), Some("7"), "{command:?}");
            assert_eq!(meant.log_dirs, [Path::new("/a"), Path::new("/b"), Path::new("/m")]);
        }
        for moved in [
            vec!["--override", "node.id=8", "--override", "log.dirs=/c"],
            vec!["--override=node.id=8", "--override=log.dirs=/c"],
        ] {
            let moved = by(&[&["kafka-server-start.sh", file.as_str()], &moved[..]].concat());
            assert_eq!(moved.node_id.as_deref(), Some("8"));
            assert_eq!(moved.log_dirs, [Path::new("/c"), Path::new("/m")]);
        }
        for unknown in
            [vec!["sh", "-c", "start"], vec!["kafka-server-start.sh", "/no/such.properties"], vec![]]
        {
            assert_eq!(by(&unknown), Meant::default(), "{unknown:?}");
        }
        let image = |key: &str| (key == "KAFKA_NODE_ID").then(|| "9".to_owned());
        assert_eq!(Meant::by(&words(&["/etc/kafka/docker/run"]), image).node_id.as_deref(), Some("9"));
        assert_eq!(Meant::by(&words(&["run", &file]), image).node_id.as_deref(), Some("7"));
    }

    #[test]
    fn this_process_and_those_that_wait_for_it_are_nobody_else() {
        let own = proc::ancestry().unwrap();
        let own_pid = i32::try_from(std::process::id()).unwrap();
        assert!(own.contains(&own_pid) && own.len() > 1, "{own:?}");
        // Whoever started it, but no child.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!proc::ancestry().unwrap().contains(&i32::try_from(child.id()).unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_holds_a_file_of_a_log_dir_is_waited_for_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join(".lock");
        fs::write(&lock, "").unwrap();
        let script = format!("exec 9>>{}; echo; read end", lock.display());
        let mut holder = std::process::Command::new("sh")
            .args(["-c", &script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = holder.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let dirs = [dir.path().to_owned()];
        let named = await_nobody(BrokerId(7), &dirs, Duration::ZERO).unwrap_err();
        assert!(named.contains(&holder.id().to_string()), "{named}");
        let ended = thread::spawn(move || {
            drop(holder.stdin.take());
            holder.wait().unwrap();
        });
        await_nobody(BrokerId(7), &dirs, Duration::from_secs(20)).unwrap();
        ended.join().unwrap();
    }
}
