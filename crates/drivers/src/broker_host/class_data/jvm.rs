//! What the processes of a scratch start are: read from `/proc`, never guessed from the command that began
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::proc::{self, ProcessId};

/// A Java process.
#[derive(Debug, Clone)]
pub(super) struct Jvm {
    /// The process.
    pub(super) id: ProcessId,
    /// The program that runs.
    pub(super) program: PathBuf,
    /// Its command line.
    pub(super) words: Vec<String>,
    environment: BTreeMap<String, String>,
    /// Its working directory.
    pub(super) working_dir: PathBuf,
}

/// What a Java process is there for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Kafka, with our configuration and nothing beside it.
    Scratch,
    /// Somebody asks for its version.
    Version,
    /// Kafka, and what it would do is not only what our configuration says.
    Astray,
    /// Anything else.
    Other,
}

impl Jvm {
    /// Every Java in the session that `leader` leads.
    pub(super) fn of_session(leader: i32) -> Vec<Self> {
        let pids = proc::pids().unwrap_or_default().into_iter();
        pids.filter(|pid| proc::session(*pid) == Some(leader)).filter_map(Self::of).collect()
    }

    fn of(pid: i32) -> Option<Self> {
        let at = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
        let program = fs::read_link(at("exe")).ok()?;
        program.file_name().filter(|name| *name == "java")?;
        let parts = |name: &str| -> Option<Vec<String>> {
            let content = fs::read(at(name)).ok()?;
            let parts = content.split(|byte| *byte == 0).filter(|part| !part.is_empty());
            Some(parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect())
        };
        let words = parts("cmdline").filter(|words| !words.is_empty())?;
        let pair =
            |text: String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        let environment = parts("environ")?.into_iter().filter_map(pair).collect();
        let working_dir = fs::read_link(at("cwd")).ok()?;
        let start_ticks = proc::stat(pid).ok()??.start_ticks;
        Some(Self { id: ProcessId { pid, start_ticks }, program, words, environment, working_dir })
    }

    pub(super) fn purpose(&self, properties: &str) -> Purpose {
        purpose(&self.words, properties)
    }

    /// How this Java was found: the path that led to it, and what it led to.
    pub(super) fn found(&self) -> (PathBuf, PathBuf) {
        let name = self.words.first().map_or("java", String::as_str);
        let path = self.environment.get("PATH").map_or("", String::as_str);
        let way = if name.contains('/') {
            Some(self.working_dir.join(name))
        } else {
            std::env::split_paths(path).map(|dir| dir.join(name)).find(|file| file.is_file())
        };
        (way.unwrap_or_else(|| self.program.clone()), self.program.clone())
    }

    /// Its class path, as it was given.
    pub(super) fn class_path(&self) -> Option<String> {
        let given = class_path(&self.words).map(str::to_owned);
        given.or_else(|| self.environment.get("CLASSPATH").cloned())
    }

    /// Its version, by the file `release` of its home.
    pub(super) fn version(&self) -> Option<String> {
        let homes = self.program.ancestors().skip(2).take(2);
        let release = homes.filter_map(|home| fs::read_to_string(home.join("release")).ok()).next()?;
        let line = |key: &str| {
            let value = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            value.map(|value| value.trim().trim_matches('"').to_owned())
        };
        line("JAVA_RUNTIME_VERSION").or_else(|| line("JAVA_VERSION"))
    }
}

/// Our configuration must be all that Kafka is given: `--override` could name the log dirs of a broker.
fn purpose(words: &[String], properties: &str) -> Purpose {
    let is_class = |word: &String| word.contains('.') && !word.starts_with('-') && !word.contains(['/', '=']);
    if let [.., class, last] = words
        && last == properties
        && is_class(class)
    {
        return Purpose::Scratch;
    }
    if words.iter().any(|word| word == "kafka.Kafka" || word == properties) {
        return Purpose::Astray;
    }
    let asks = |word: &String| ["-version", "--version", "-fullversion"].contains(&word.as_str());
    if words.iter().any(asks) { Purpose::Version } else { Purpose::Other }
}

fn class_path(words: &[String]) -> Option<&str> {
    let named = ["-cp", "-classpath", "--class-path"];
    let mut pairs = words.windows(2);
    let pair = pairs.find(|pair| named.contains(&pair[0].as_str())).map(|pair| pair[1].as_str());
    pair.or_else(|| words.iter().find_map(|word| word.strip_prefix("--class-path=")))
}

/// The first number of a version such as `17.0.15+6`, or `1.8.0_402`.
pub(super) fn major(version: &str) -> Option<u32> {
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    match parts.next()?? {
        1 => parts.next()?,
        major => Some(major),
    }
}

/// Where the program is that leads to this Java, in words.
pub(super) fn shown(java: &Path, version: &str) -> String {
    format!("Java {version}, {}", java.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn only_kafka_with_our_configuration_and_nothing_else_may_go_on() {
        for (line, expected) in [
            ("java -Xmx1g -cp /l/a.jar kafka.Kafka /s/server.properties", Purpose::Scratch),
            ("/j/java -cp /l/* io.example.SupportedKafka /s/server.properties", Purpose::Scratch),
            ("java -version", Purpose::Version),
            ("java -cp /l/a.jar kafka.Kafka /etc/kafka/server.properties", Purpose::Astray),
            (
                "java -cp /l/a.jar kafka.Kafka /s/server.properties --override log.dirs=/mnt/kafka",
                Purpose::Astray,
            ),
            ("java -cp /l/a.jar kafka.Kafka --override a=b /s/server.properties", Purpose::Astray),
            ("java -cp /l/a.jar kafka.tools.StorageTool format -c /s/server.properties", Purpose::Astray),
            ("java -jar /opt/other.jar", Purpose::Other),
        ] {
            assert_eq!(purpose(&words(line), "/s/server.properties"), expected, "{line}");
        }
    }

    #[test]
    fn a_class_path_is_found_however_it_is_given() {
        for line in
            ["java -cp a:b X", "java -classpath a:b X", "java --class-path a:b X", "java --class-path=a:b X"]
        {
            assert_eq!(class_path(&words(line)), Some("a:b"), "{line}");
        }
        assert_eq!(class_path(&words("java X")), None);
    }

    #[test]
    fn versions_old_and_new_are_understood() {
        for (text, expected) in
            [("17.0.15+6-Debian-1deb12u1", Some(17)), ("1.8.0_402", Some(8)), ("25", Some(25)), ("x", None)]
        {
            assert_eq!(major(text), expected, "{text}");
        }
    }
}
