//! What a command line says of a Kafka: whether it is one, or becomes one, and which. Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Kafka's own class, and its program where it is compiled to one; and the script that becomes either.
const CLASS: &[u8] = b"kafka.Kafka";
const SCRIPT: &[u8] = b"kafka-server-start";

/// Programs that name a Kafka to look at it, and never become one.
const LOOKERS: [&[u8]; 18] = [
    b"pgrep", b"pkill", b"grep", b"egrep", b"ps", b"watch", b"cat", b"tail", b"head", b"less", b"more",
    b"vi", b"vim", b"nano", b"emacs", b"diff", b"ls", b"strace",
];

/// Options of `java` whose value is the next word.
const WITH_VALUE: [&[u8]; 10] = [
    b"-cp",
    b"-classpath",
    b"--class-path",
    b"-p",
    b"--module-path",
    b"--upgrade-module-path",
    b"--add-modules",
    b"--add-opens",
    b"--add-exports",
    b"--add-reads",
];

/// How the configuration of a Kafka is called.
const CONFIGURATION: [&[u8]; 5] = [b".properties", b".props", b".conf", b".config", b".cfg"];

/// Stands for the configuration where a Kafka is yet to be started: the entry point of a container waits with its name
/// in its own words.
const TO_COME: &[u8] = b"{properties}";

/// Where a command line names Kafka; its properties come after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Named {
    /// The word.
    pub(super) at: usize,
    /// Whether the name is a Kafka's. If not, it is the class of some Java whose first argument is a
    /// configuration, and what stands there tells.
    pub(super) surely: bool,
}

/// Where these words name Kafka, if they do. A distribution may have a main class of its own, such as
/// `io.confluent.support.metrics.SupportedKafka`.
pub(super) fn kafka_in(words: &[&[u8]]) -> Option<Named> {
    if words.first().is_some_and(|program| LOOKERS.contains(&name(program))) {
        return None;
    }
    let named = |word: &&[u8]| name(word) == CLASS || name(word).starts_with(SCRIPT);
    let to_come = |word: &&[u8]| word.windows(TO_COME.len()).any(|part| part == TO_COME);
    if let Some(at) = words.iter().position(named) {
        if words[at..].iter().any(to_come) {
            return None;
        }
        return Some(Named { at, surely: true });
    }
    let at = main_class(words)?;
    let surely = words[at].ends_with(b"Kafka");
    let configured =
        words.get(at + 1).is_some_and(|first| CONFIGURATION.iter().any(|ending| first.ends_with(ending)));
    (surely || configured).then_some(Named { at, surely })
}

/// Where a Java has the class that it runs.
fn main_class(words: &[&[u8]]) -> Option<usize> {
    if name(words.first()?) != b"java" {
        return None;
    }
    let mut at = 1;
    while let Some(word) = words.get(at) {
        match word {
            // What follows is a file, or the class of a module.
            word if *word == b"-jar" || *word == b"-m" || *word == b"--module" => return Some(at + 1),
            word if WITH_VALUE.contains(word) => at += 2,
            word if word.starts_with(b"-") || word.starts_with(b"@") => at += 1,
            _ => return Some(at),
        }
    }
    None
}

/// The file of Kafka's properties, in what comes after its name. The program of
/// `kafka.Kafka start --config FILE` has a word before it.
pub(super) fn properties_in<'a>(arguments: &[&'a [u8]]) -> Option<&'a Path> {
    let path = arguments.iter().find(|word| !word.starts_with(b"-") && **word != b"start");
    path.map(|word| Path::new(OsStr::from_bytes(word)))
}

fn name(word: &[u8]) -> &[u8] {
    word.rsplit(|byte| *byte == b'/').next().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the line names Kafka, in words: the word, whether for sure, and the properties.
    fn told(line: &str) -> Option<(String, bool, Option<String>)> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let Named { at, surely } = kafka_in(&words)?;
        let properties = properties_in(&words[at + 1..]).map(|path| path.display().to_string());
        Some((String::from_utf8_lossy(words[at]).into_owned(), surely, properties))
    }

    #[test]
    fn a_kafka_is_known_whatever_its_main_class() {
        let file = "/etc/kafka/server.properties";
        for (line, class, surely) in [
            (
                "java -Xmx1g -cp /k/libs/*:/k/x.jar kafka.Kafka /etc/kafka/server.properties",
                "kafka.Kafka",
                true,
            ),
            (
                "/usr/lib/jvm/bin/java -Xmx1g -Dkafka.logs.dir=/var/log/kafka -cp /usr/bin/../share/java/kafka/*:/x \
                 io.confluent.support.metrics.SupportedKafka /etc/kafka/server.properties",
                "io.confluent.support.metrics.SupportedKafka",
                true,
            ),
            (
                "java @/k/jvm.options -cp /k com.example.Broker /etc/kafka/server.properties",
                "com.example.Broker",
                false,
            ),
            (
                "java --add-opens java.base/java.nio=ALL-UNNAMED -jar /k/broker.jar /etc/kafka/server.properties",
                "/k/broker.jar",
                false,
            ),
            (
                "java --module kafka/org.example.Broker /etc/kafka/server.properties",
                "kafka/org.example.Broker",
                false,
            ),
            (
                "/opt/kafka/kafka.Kafka start --config /etc/kafka/server.properties",
                "/opt/kafka/kafka.Kafka",
                true,
            ),
            (
                "/bin/bash /k/kafka-server-start.sh /etc/kafka/server.properties",
                "/k/kafka-server-start.sh",
                true,
            ),
            ("sudo -u kafka kafka-server-start /etc/kafka/server.properties", "kafka-server-start", true),
        ] {
            assert_eq!(told(line), Some((class.to_owned(), surely, Some(file.to_owned()))), "{line}");
        }
    }

    #[test]
    fn what_only_mentions_a_kafka_or_its_properties_is_none() {
        for line in [
            "vim /etc/kafka/server.properties",
            "vi /opt/kafka/bin/kafka-server-start.sh",
            "tail -f /var/log/kafka/server.log /etc/kafka/server.properties",
            "pgrep -af kafka.Kafka",
            "/usr/bin/watch pgrep -af kafka.Kafka",
            "java -cp /k/libs/* kafka.tools.StorageTool format -c /etc/kafka/server.properties -t id",
            "java -cp /k/libs/* kafka.admin.ConfigCommand --command-config /etc/kafka/admin.properties",
            "java -cp /k/libs/* org.apache.kafka.tools.TopicCommand --bootstrap-server k:9092 --list",
            "java -jar /opt/other.jar",
            "java -version",
            "understudy run --config /etc/understudy/understudy.toml",
            "/run/understudy/understudy enter -- /opt/kafka/bin/kafka-server-start.sh {properties}",
            "understudy enter -- /usr/bin/java -cp /k/libs/* kafka.Kafka --config={properties}",
        ] {
            assert_eq!(told(line), None, "{line}");
        }
    }
}
