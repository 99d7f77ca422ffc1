//! The files that a broker's `server.properties` names: Kafka needs them on this host, too.

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

/// Tries each as Kafka's user, and tells every one that it would miss.
pub(super) fn look(common: &Common, broker: BrokerId) -> Result<Note, Problem> {
    let Ok(file) = common.rendered(broker) else {
        return Ok(Note::new("nobody knows which files are named: server.properties cannot be rendered"));
    };
    let named = named(&file);
    let wrong = as_user(common.user.as_ref(), || {
        let missed = |(key, path): &(&str, &str)| {
            let error = File::open(Path::new(path)).err()?;
            Some(format!("{path}, which `{key}` names, cannot be read by Kafka's user here ({error})"))
        };
        named.iter().filter_map(missed).collect::<Vec<_>>()
    })?;
    if wrong.is_empty() {
        return Ok(Note::new(match named.len() {
            0 => "it names none".to_owned(),
            count => format!("it names {count}, and Kafka's user can read them"),
        }));
    }
    let why = wrong.join("; ");
    Err(Problem::Refused(format!("{why}: Kafka would not start. Put them there, or correct the template")))
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
}
