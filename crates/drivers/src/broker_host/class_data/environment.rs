//! The environment by which Java is told of an archive. Pure.
//!
//! `JDK_JAVA_OPTIONS` and no other: every `java` of version 9 or later reads it, whatever script starts it,
//! and an older one, which has no such archives, does not. Its options come before those of the command line,
//! so that what an operator wrote wins. `JAVA_TOOL_OPTIONS` is read by older ones too, which would refuse to
//! start; `KAFKA_OPTS` by Kafka's own scripts alone. The price is one line `NOTE: Picked up JDK_JAVA_OPTIONS`
//! on Kafka's standard error.

use std::collections::BTreeMap;
use std::path::Path;

/// Where options are handed to Java.
pub(in super::super) const VARIABLE: &str = "JDK_JAVA_OPTIONS";

/// What follows the archive in our part of the value. It is Java's default; said, so that the end of our part
/// is known.
const AUTO: &str = "-Xshare:auto";

/// With so few processors Java's own compilers take them from Kafka while it starts. With more it has not
/// been measured.
const FEW: usize = 2;

/// Has HotSpot compile by C2 what has run ten times as often as it asks for by itself; until then C1's code
/// serves. With two processors Kafka's start takes two thirds of what it takes without
/// (`docs/performance.md`). A Java that has no such option passes it over.
const LATER: &str = "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 \
                     -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000";

/// How many rounds hide a key in a PKCS12 store that Java makes. Kafka makes one in memory of each key that it is
/// given as PEM, for each listener, each of its network threads and each of its own clients, and Java's 10,000 rounds
/// for each were most of what TLS added to a start (`docs/performance.md`). PKCS #5 asks for 1,000 at least (RFC 8018,
/// section 4.2). No broker writes a store; what a store that it reads was made with stays.
const ROUNDS: &str = "-Dkeystore.pkcs12.keyPbeIterationCount=1000";

/// From this heap on Java's pointers are wide, and an archive with narrow ones does not fit: 32 GiB.
const WIDE_HEAP: u64 = 32 << 30;

/// The heap that the scratch Kafka needs.
const HEAP: &str = "-Xms64m -Xmx512m";

/// Variables that hold options of Java for somebody.
const HOLD_OPTIONS: [&str; 7] = [
    VARIABLE,
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "KAFKA_OPTS",
    "KAFKA_HEAP_OPTS",
    "KAFKA_JVM_PERFORMANCE_OPTS",
    "EXTRA_ARGS",
];

/// Options that are not for a scratch Kafka. An agent keeps Java from making an archive, and it may listen on
/// a port that is the broker's, as JMX does; memory that is touched at once may be another broker's.
const NOT_FOR_SCRATCH: [&str; 9] = [
    "-javaagent:",
    "-agentlib:",
    "-agentpath:",
    "-Dcom.sun.management.",
    "-XX:+AlwaysPreTouch",
    "-XX:StartFlightRecording",
    "-XX:SharedArchiveFile=",
    "-XX:ArchiveClassesAtExit=",
    "-Xms",
];

/// The value that tells Java of `archive`, before whatever else the operator has it say; and without what an
/// earlier takeover put there. Keys in PEM are taken in with fewer rounds. Where Kafka has few processors, what only makes it quicker later waits.
pub(in super::super) fn with_archive(given: Option<&str>, archive: &Path, processors: usize) -> String {
    let later = if processors <= FEW { format!("{LATER} ") } else { String::new() };
    let ours =
        format!("{} {later}{ROUNDS} {AUTO}", quoted(&format!("-XX:SharedArchiveFile={}", archive.display())));
    match given.map(without_archive).filter(|given| !given.is_empty()) {
        Some(given) => format!("{ours} {given}"),
        None => ours,
    }
}

/// The operator's own part of a value.
pub(super) fn without_archive(given: &str) -> &str {
    let is_ours = given.trim_start_matches('"').starts_with("-XX:SharedArchiveFile=");
    match given.split_once(AUTO) {
        Some((_, own)) if is_ours => own.trim(),
        _ => given.trim(),
    }
}

/// An option as the variable has it: blanks part options, unless they are in quotes.
fn quoted(option: &str) -> String {
    if option.contains(char::is_whitespace) { format!("\"{option}\"") } else { option.to_owned() }
}

/// Whether a path can be told by the variable at all.
pub(super) fn can_be_told(path: &Path) -> bool {
    path.to_str().is_some_and(|text| !text.contains(['"', '\'', '\\', '\n']))
}

/// Whether `words`, of a command line or of values of variables, decide themselves about archives: the
/// option.
pub(super) fn own_choice<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let chosen =
        ["-XX:SharedArchiveFile=", "-XX:ArchiveClassesAtExit=", "-Xshare:off", "-XX:-UseSharedSpaces"];
    let mut words = words.into_iter().flat_map(str::split_whitespace);
    words.find(|word| chosen.iter().any(|chosen| word.starts_with(chosen)))
}

/// Makes the environment of a broker that of a scratch Kafka beside it: nothing of it may be taken for a
/// broker's, or take what is a broker's. `options` are for Java; logs go to `log_dir`.
pub(super) fn for_scratch(environment: &mut BTreeMap<String, String>, options: &str, log_dir: &str) {
    environment.retain(|name, _| !name.starts_with("UNDERSTUDY_"));
    environment.remove("JMX_PORT");
    environment.remove("KAFKA_JMX_OPTS");
    if let Some(own) = environment.get_mut(VARIABLE) {
        *own = without_archive(own).to_owned();
    }
    for name in HOLD_OPTIONS {
        if let Some(value) = environment.get_mut(name) {
            *value = fit_for_scratch(value);
        }
    }
    let wide = environment.values().any(|value| heap(value).is_some());
    let heap = environment.entry("KAFKA_HEAP_OPTS".to_owned()).or_default();
    if !wide {
        *heap = format!("{heap} {HEAP}").trim().to_owned();
    }
    environment.insert("LOG_DIR".to_owned(), log_dir.to_owned());
    let java = environment.entry(VARIABLE.to_owned()).or_default();
    *java = format!("{options} {java}").trim().to_owned();
}

/// The value without what is not for a scratch Kafka. One in which nothing of that is stays as it is, quotes
/// and all.
fn fit_for_scratch(value: &str) -> String {
    let unfit = |word: &str| {
        let small = word.starts_with("-Xmx") && heap(word).is_none();
        small || NOT_FOR_SCRATCH.iter().any(|start| word.starts_with(start))
    };
    if !value.split_whitespace().any(unfit) {
        return value.to_owned();
    }
    value.split_whitespace().filter(|word| !unfit(word)).collect::<Vec<_>>().join(" ")
}

/// The greatest heap that the words ask for, if it makes Java's pointers wide; in bytes.
fn heap(words: &str) -> Option<u64> {
    let size = |word: &str| {
        let text = word.strip_prefix("-Xmx")?;
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" => 1,
            "k" => 1 << 10,
            "m" => 1 << 20,
            "g" => 1 << 30,
            "t" => 1 << 40,
            _ => return None,
        };
        digits.parse::<u64>().ok()?.checked_mul(unit)
    };
    words.split_whitespace().filter_map(size).filter(|size| *size >= WIDE_HEAP).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str =
        "-XX:SharedArchiveFile=/s/kafka-1.jsa -Dkeystore.pkcs12.keyPbeIterationCount=1000 -Xshare:auto";

    #[test]
    fn an_operators_own_options_are_kept_behind_ours_and_so_win() {
        let archive = Path::new("/s/kafka-1.jsa");
        assert_eq!(with_archive(None, archive, 4), OURS);
        assert_eq!(with_archive(Some("  "), archive, 4), OURS);
        assert_eq!(with_archive(Some("-Xint -Da=\"b c\""), archive, 4), format!("{OURS} -Xint -Da=\"b c\""));
    }

    #[test]
    fn what_an_earlier_takeover_put_there_is_replaced_and_not_repeated() {
        let (first, second) = (Path::new("/s t/kafka-0.jsa"), Path::new("/s/kafka-1.jsa"));
        let once = with_archive(Some("-Xint"), first, 4);
        assert_eq!(once, format!("\"-XX:SharedArchiveFile=/s t/kafka-0.jsa\" {ROUNDS} -Xshare:auto -Xint"));
        assert_eq!(with_archive(Some(&once), second, 4), format!("{OURS} -Xint"));
        assert_eq!(without_archive(&once), "-Xint");
        assert_eq!(without_archive("-Xint -Xshare:auto"), "-Xint -Xshare:auto");
    }

    #[test]
    fn with_few_processors_what_makes_kafka_quicker_later_waits() {
        let archive = Path::new("/s/kafka-1.jsa");
        let few = with_archive(Some("-Xint"), archive, 2);
        assert_eq!(few, format!("-XX:SharedArchiveFile=/s/kafka-1.jsa {LATER} {ROUNDS} -Xshare:auto -Xint"));
        assert_eq!(with_archive(Some("-Xint"), archive, 3), format!("{OURS} -Xint"));
        assert_eq!(with_archive(Some(&few), archive, 2), few);
        assert_eq!(without_archive(&few), "-Xint");
    }

    fn scratch(given: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut environment = given.iter().map(pair).collect();
        for_scratch(&mut environment, "-XX:Ours", "/s/logs");
        environment
    }

    #[test]
    fn a_scratch_kafka_takes_no_port_no_memory_and_no_name_of_a_broker() {
        let environment = scratch(&[
            ("UNDERSTUDY_BROKER", "1"),
            ("UNDERSTUDY_EPOCH", "3"),
            ("JMX_PORT", "9999"),
            ("KAFKA_JMX_OPTS", "-Dcom.sun.management.jmxremote.port=9999"),
            ("KAFKA_OPTS", "-javaagent:/opt/jmx.jar=7071:/etc/jmx.yml -Dsun.security=1"),
            ("KAFKA_HEAP_OPTS", "-Xms6g -Xmx6g -XX:+AlwaysPreTouch -XX:MaxMetaspaceSize=96m"),
            ("KAFKA_JVM_PERFORMANCE_OPTS", "-XX:+UseG1GC -Da=\"b  c\""),
            ("LOG_DIR", "/var/log/kafka"),
            ("JDK_JAVA_OPTIONS", &format!("{OURS} -Xint")),
        ]);
        let expected = [
            ("JDK_JAVA_OPTIONS", "-XX:Ours -Xint"),
            ("KAFKA_HEAP_OPTS", "-XX:MaxMetaspaceSize=96m -Xms64m -Xmx512m"),
            ("KAFKA_JVM_PERFORMANCE_OPTS", "-XX:+UseG1GC -Da=\"b  c\""),
            ("KAFKA_OPTS", "-Dsun.security=1"),
            ("LOG_DIR", "/s/logs"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(environment, BTreeMap::from(expected));
    }

    #[test]
    fn a_heap_that_makes_pointers_wide_stays_and_is_not_touched_at_once() {
        for wide in ["-Xmx32g", "-Xmx40000m", "-Xmx1T"] {
            let environment = scratch(&[("KAFKA_HEAP_OPTS", &format!("-Xms40g {wide}"))]);
            assert_eq!(environment["KAFKA_HEAP_OPTS"], wide);
        }
        assert_eq!(scratch(&[("KAFKA_HEAP_OPTS", "-Xmx31g")])["KAFKA_HEAP_OPTS"], HEAP);
        assert_eq!(scratch(&[])["KAFKA_HEAP_OPTS"], HEAP);
    }

    #[test]
    fn an_operator_who_has_an_archive_is_recognised() {
        let words = ["/usr/bin/java", "-Xmx1g -XX:SharedArchiveFile=/k.jsa"];
        assert_eq!(own_choice(words), Some("-XX:SharedArchiveFile=/k.jsa"));
        assert_eq!(own_choice(["java", "-Xshare:off"]), Some("-Xshare:off"));
        assert_eq!(own_choice(["java", "-Xshare:auto", "kafka.Kafka"]), None);
    }
}
