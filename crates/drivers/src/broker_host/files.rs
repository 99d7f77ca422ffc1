//! The files that a broker's `server.properties` and the options of its Java name: Kafka needs them on this
//! host, too.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use super::common::Common;
use super::problem::Problem;
use super::user::as_user;
use kafka::properties::Properties;
use recovery::model::BrokerId;
use recovery::ports::Note;

/// What [`look`] is about: "could not …".
pub(super) const FILES: &str = "find the files that server.properties names";

/// What [`options`] is about.
pub(super) const OPTIONS: &str = "find the files that Kafka's options name";

/// Tries each as Kafka's user, and tells every one that it would miss.
pub(super) fn look(common: &Common, broker: BrokerId) -> Result<Note, Problem> {
    let Ok(file) = common.rendered(broker) else {
        return Ok(Note::new("nobody knows which files are named: server.properties cannot be rendered"));
    };
    let named = named(&file);
    let mut wrong: Vec<String> = relative(&file)
        .map(|(key, path)| {
            format!(
                "`{key}` names {path}, which is looked for wherever Kafka is started: write an absolute path"
            )
        })
        .collect();
    wrong.extend(as_user(common.user.as_ref(), || {
        let missed = |(key, path): &(&str, &str)| missed(&format!("`{key}`"), path);
        named.iter().filter_map(missed).collect::<Vec<_>>()
    })?);
    if wrong.is_empty() {
        return Ok(Note::new(match named.len() {
            0 => "server.properties names no file".to_owned(),
            count => format!("server.properties names files ({count}), and Kafka's user can read them"),
        }));
    }
    let why = wrong.join("; ");
    Err(Problem::Refused(format!("{why}: Kafka would not start. Put them there, or correct the template")))
}

/// Why Kafka, which this thread acts for, would miss a file.
fn missed(by: &str, path: &str) -> Option<String> {
    let error = File::open(Path::new(path)).err()?;
    Some(format!("{path}, which {by} names, cannot be read by Kafka's user here ({error})"))
}

/// The same for what Java is told by its environment and by the words of the command; `None` if that is nothing.
pub(super) fn options(
    common: &Common,
    environment: &BTreeMap<String, String>,
    command: &[String],
) -> Option<Result<Note, Problem>> {
    let found = in_options(environment, command);
    if found.is_empty() {
        return None;
    }
    Some(as_user(common.user.as_ref(), || judged(&found)).and_then(|judged| judged.map_err(Problem::Refused)))
}

fn judged(found: &[Named]) -> Result<Note, String> {
    let why = |named: &Named| match named.path.starts_with('/') {
        true => missed(&named.by, &named.path),
        false => Some(format!("{} names {}: write an absolute path", named.by, named.path)),
    };
    let missed = |needed: bool| {
        let of = found.iter().filter(|named| named.needed == needed);
        of.filter_map(why).collect::<Vec<_>>().join("; ")
    };
    let (stops, harms) = (missed(true), missed(false));
    if !stops.is_empty() {
        return Err(format!("{stops}: Kafka would not start. Put it there, or correct the option"));
    }
    Ok(match harms.as_str() {
        "" => Note::new(format!("Kafka's options name files ({}), and its user can read them", found.len())),
        harms => Note::warning(format!("{harms}: Kafka would start and write no log of its own")),
    })
}

/// A file that an option of Java names.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    /// `-javaagent: in KAFKA_OPTS`.
    by: String,
    path: String,
    /// Whether Kafka does not start without it.
    needed: bool,
}

fn in_options(environment: &BTreeMap<String, String>, command: &[String]) -> Vec<Named> {
    let values =
        environment.iter().filter(|(name, _)| name.starts_with("KAFKA_") || name.starts_with("JAVA_"));
    let values = values.map(|(name, value)| (name.as_str(), value.as_str()));
    let words = command.iter().map(|word| ("the command", word.as_str()));
    let mut found = Vec::new();
    for (name, value) in values.chain(words) {
        for word in value.split_whitespace().map(|word| word.trim_matches(['"', '\''])) {
            let Some((option, path, needed)) = in_option(word) else { continue };
            // What a variable holds is not known here.
            if !path.is_empty() && !path.contains('$') {
                found.push(Named { by: format!("{option} in {name}"), path: path.to_owned(), needed });
            }
        }
    }
    found.dedup();
    found
}

/// The option of a word, its file, and whether Kafka needs that one.
fn in_option(word: &str) -> Option<(&'static str, &str, bool)> {
    for option in ["-javaagent:", "-agentpath:"] {
        if let Some(rest) = word.strip_prefix(option) {
            return Some((option, rest.split('=').next().unwrap_or(rest), true));
        }
    }
    for (option, needed) in [
        ("-Djava.security.auth.login.config", true),
        ("-Djava.security.krb5.conf", true),
        ("-Dlog4j.configuration", false),
        ("-Dlog4j2.configurationFile", false),
        ("-Dlog4j.configurationFile", false),
    ] {
        let Some(path) = word.strip_prefix(option).and_then(|rest| rest.strip_prefix('=')) else { continue };
        let path = match path.strip_prefix("file:") {
            // `file:///etc/x`, as well as `file:/etc/x`.
            Some(rest) => rest.strip_prefix("//").unwrap_or(rest),
            None => path.trim_start_matches('='),
        };
        // A configuration of the log may be in a class path, and may be several.
        let elsewhere = !needed && (!path.starts_with('/') || path.contains(','));
        return (!elsewhere).then_some((option, path, needed));
    }
    None
}

/// Every file, with the key that names it: a path by itself, a class path, a key tab of a JAAS login, and where a
/// configuration provider looks.
fn named(file: &Properties) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (key, value) in file.iter() {
        let value = value.trim();
        if value.starts_with('/') && key.ends_with("class.path") {
            let paths = value.split(':').map(|path| path.trim_end_matches('*'));
            found.extend(paths.filter(|path| !path.is_empty()).map(|path| (key, path)));
        } else if value.starts_with('/') && is_place(key) {
            found.push((key, value));
        }
        let tabs = value.split("keyTab=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let provided = value.split("${").skip(1).filter_map(provided);
        found.extend(tabs.chain(provided).map(|path| (key, path)));
    }
    found.sort_unstable();
    found.dedup_by_key(|(_, path)| *path);
    found
}

/// What a key that names a file names without saying where that is.
fn relative(file: &Properties) -> impl Iterator<Item = (&str, &str)> {
    let is_relative = |value: &str| !value.is_empty() && !value.starts_with(['/', '$']);
    file.iter()
        .map(|(key, value)| (key, value.trim()))
        .filter(move |(key, value)| is_place(key) && is_relative(value))
}

/// Whether Kafka reads a file with this key's value for a path.
fn is_place(key: &str) -> bool {
    ["ssl.keystore.location", "ssl.truststore.location"].iter().any(|end| key.ends_with(end))
}

/// The path in `file:/etc/kafka/secrets.properties:key}`.
fn provided(reference: &str) -> Option<&str> {
    let (inner, _) = reference.split_once('}')?;
    let path = inner.split(':').nth(1)?;
    path.starts_with('/').then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_in_what_names_them() {
        let text = "listener.name.external.ssl.keystore.location=/etc/kafka/external.p12\n\
             ssl.truststore.location=/etc/kafka/trust.jks\nlog.dirs=/data/a,/data/b\nssl.endpoint=/no/file\n\
             remote.log.storage.manager.class.path=/opt/tiered/*:/opt/more.jar\n\
             listener.name.sasl.gssapi.sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required \
             useKeyTab=true keyTab=\"/etc/kafka/kafka.keytab\" principal=\"kafka/standby-1@EXAMPLE.COM\";\n\
             ssl.keystore.password=${file:/etc/kafka/secrets.properties:keystore}\n\
             ssl.key.password=${file:/etc/kafka/secrets.properties:key}\nssl.a=${env:A}\nssl.b=${dir:/etc/d}\n";
        let file = Properties::parse(text.as_bytes()).unwrap();
        let mut paths: Vec<&str> = named(&file).into_iter().map(|(_, path)| path).collect();
        paths.sort_unstable();
        let expected = [
            "/etc/d",
            "/etc/kafka/external.p12",
            "/etc/kafka/kafka.keytab",
            "/etc/kafka/secrets.properties",
            "/etc/kafka/trust.jks",
            "/opt/more.jar",
            "/opt/tiered/",
        ];
        assert_eq!(paths, expected);
    }

    #[test]
    fn a_path_that_depends_on_where_kafka_starts_is_told() {
        let text = "ssl.keystore.location=secrets/real.p12\nssl.truststore.location=\nssl.endpoint=x/y\n\
                    listener.name.a.ssl.truststore.location=/etc/t.p12\nb.ssl.keystore.location=${env:STORE}\n";
        let file = Properties::parse(text.as_bytes()).unwrap();
        assert_eq!(relative(&file).collect::<Vec<_>>(), [("ssl.keystore.location", "secrets/real.p12")]);
    }

    fn options(name: &str, value: &str) -> Vec<Named> {
        in_options(&BTreeMap::from([(name.to_owned(), value.to_owned())]), &[])
    }

    #[test]
    fn files_are_found_in_the_options_of_java() {
        for (value, path, needed) in [
            ("-Xlog:gc -javaagent:/opt/jmx.jar=7071:/etc/jmx.yml", "/opt/jmx.jar", true),
            ("\"-javaagent:/opt/trace.jar\"", "/opt/trace.jar", true),
            ("-javaagent:libs/jmx.jar=7071:/x", "libs/jmx.jar", true),
            ("-agentpath:/opt/lib.so=a=b", "/opt/lib.so", true),
            ("-Djava.security.auth.login.config=/etc/jaas.conf", "/etc/jaas.conf", true),
            ("-Djava.security.auth.login.config==/etc/jaas.conf", "/etc/jaas.conf", true),
            ("-Djava.security.auth.login.config=file:/etc/jaas.conf", "/etc/jaas.conf", true),
            ("-Djava.security.krb5.conf=/etc/krb5.conf", "/etc/krb5.conf", true),
            ("-Dlog4j2.configurationFile=file:///etc/log4j2.yaml", "/etc/log4j2.yaml", false),
            ("-Dlog4j.configuration=file:/etc/log4j.properties", "/etc/log4j.properties", false),
        ] {
            let found = options("KAFKA_OPTS", value);
            let [named] = &found[..] else { panic!("{value}: {found:?}") };
            assert_eq!((named.path.as_str(), named.needed), (path, needed), "{value}");
            assert!(named.by.ends_with(" in KAFKA_OPTS"), "{}", named.by);
        }
        for value in ["-Xmx1g", "-Dlog4j.configuration=tools.properties", "-javaagent:$DIR/a.jar", "-Da.b=/c"]
        {
            assert_eq!(options("KAFKA_OPTS", value), [], "{value}");
        }
        assert_eq!(options("OTHER", "-javaagent:/opt/jmx.jar"), []);
        let command = ["/usr/bin/java", "-javaagent:/j.jar=7071:/c"].map(str::to_owned);
        assert_eq!(in_options(&BTreeMap::new(), &command)[0].by, "-javaagent: in the command");
    }

    #[test]
    fn an_option_whose_file_is_missing_is_refused_and_one_of_the_log_a_warning() {
        let here = tempfile::NamedTempFile::new().unwrap();
        let here = here.path().display();
        let judge = |value: &str| judged(&options("KAFKA_OPTS", value));
        let error = judge("-javaagent:/nope/jmx.jar=7071:/x?password=hunter2").unwrap_err();
        assert!(
            error.contains("/nope/jmx.jar, which -javaagent: in KAFKA_OPTS names, cannot be read"),
            "{error}"
        );
        assert!(!error.contains("hunter2"), "{error}");
        assert!(judge("-javaagent:jmx.jar").unwrap_err().contains("write an absolute path"));
        let note = judge(&format!("-javaagent:{here} -Dlog4j2.configurationFile=/nope/log4j2.yaml")).unwrap();
        assert!(note.warnings[0].starts_with("/nope/log4j2.yaml, which"), "{note}");
        assert!(judge(&format!("-javaagent:{here}")).unwrap().text.contains("can read them"));
    }
}
