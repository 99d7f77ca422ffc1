//! The references in `server.properties` that Kafka's configuration providers resolve when it starts, such as
//! `${env:KEY}`, `${file:/path:key}` and `${dir:/path:name}`.
//!
//! Kafka leaves one that it cannot resolve as it is written: `${env:KEY}` itself becomes the password.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::common::Common;
use super::problem::Problem;
use super::user::as_user;
use kafka::properties::Properties;
use recovery::model::BrokerId;
use recovery::ports::Note;

/// What [`look`] is about: "could not …".
pub(super) const PROVIDERS: &str = "resolve the references in server.properties";

/// The classes that come with Kafka, without their package.
const ENV: &str = "EnvVarConfigProvider";
const FILE: &str = "FileConfigProvider";
const DIRECTORY: &str = "DirectoryConfigProvider";

/// The environment of a Kafka, as far as it is known before it is started.
pub(super) struct Given<'a> {
    pub(super) environment: &'a BTreeMap<String, String>,
    /// Names whose values come from elsewhere.
    pub(super) passed: &'a [String],
    /// Whether a script of the site starts Kafka, which may set more.
    pub(super) by_script: bool,
}

/// What Kafka's own scripts, or the agent, give every Kafka.
fn is_always_set(name: &str) -> bool {
    ["PWD", "LOG_DIR"].contains(&name)
        || ["KAFKA_", "UNDERSTUDY_"].iter().any(|start| name.starts_with(start))
}

/// Tries each as Kafka's user; `None` if there is no reference.
pub(super) fn look(common: &Common, broker: BrokerId, given: &Given<'_>) -> Option<Result<Note, Problem>> {
    let file = common.rendered(broker).ok()?;
    let references = references(&file);
    let paths = absent_paths(&file);
    if references.is_empty() && paths.is_empty() {
        return None;
    }
    let judged = as_user(common.user.as_ref(), || judged(&file, &references, given));
    Some(judged.and_then(|(mut stops, doubts)| {
        stops.extend(paths);
        match (stops.is_empty(), doubts.is_empty()) {
            (false, _) => Err(Problem::Refused(stops.join("; "))),
            (true, false) => Ok(Note::warning(doubts.join("; "))),
            (true, true) => Ok(Note::new(format!(
                "server.properties has references to configuration providers ({}), and Kafka can resolve them here",
                references.len()
            ))),
        }
    }))
}

/// `${provider:path:key}`, or `${provider:key}`, in the value of `by`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Reference<'a> {
    by: &'a str,
    provider: &'a str,
    path: &'a str,
    key: &'a str,
}

/// `value` as Kafka would take it, read on this thread, which acts for it; `None` where that is not known here.
pub(super) fn resolved(file: &Properties, value: &str, given: &Given<'_>) -> Option<String> {
    let classes: BTreeMap<&str, &str> = providers(file).collect();
    let mut pieces = value.split("${");
    let mut whole = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (inner, after) = piece.split_once('}')?;
        let (provider, path, key) = parts(inner)?;
        whole += &match *classes.get(provider)? {
            ENV => given.environment.get(key)?.clone(),
            FILE => Properties::parse(&std::fs::read(path).ok()?).ok()?.get(key)?.to_owned(),
            DIRECTORY => std::fs::read_to_string(Path::new(path).join(key)).ok()?,
            _ => return None,
        };
        whole += after;
    }
    Some(whole)
}

/// Provider, path and key of `provider:path:key` or `provider:key`.
fn parts(inner: &str) -> Option<(&str, &str, &str)> {
    let (provider, rest) = inner.split_once(':')?;
    let (path, key) = rest.split_once(':').unwrap_or(("", rest));
    Some((provider, path, key))
}

/// Every reference, declared or not.
fn references(file: &Properties) -> BTreeSet<Reference<'_>> {
    let others = file.iter().filter(|(by, _)| !by.starts_with("config.providers"));
    others
        .flat_map(|(by, value)| {
            let inner = value.split("${").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
            inner.filter_map(move |inner| {
                let (provider, path, key) = parts(inner)?;
                Some(Reference { by, provider, path, key })
            })
        })
        .collect()
}

/// The providers that Kafka makes: those that are listed and have a class.
fn providers(file: &Properties) -> impl Iterator<Item = (&str, &str)> {
    let listed = file.get("config.providers").unwrap_or_default().split(',').map(str::trim);
    listed.filter_map(|name| {
        let class = file.get(&format!("config.providers.{name}.class"))?.trim();
        Some((name, class.rsplit('.').next().unwrap_or(class)))
    })
}

/// What `allowed.paths` of a provider names; `None` without a limit.
fn allowed<'a>(file: &'a Properties, provider: &str) -> Option<impl Iterator<Item = &'a str>> {
    let value = file.get(&format!("config.providers.{provider}.param.allowed.paths"))?;
    Some(value.split(',').map(str::trim)).filter(|_| !value.trim().is_empty())
}

/// Kafka does not start where one is no absolute path, or is not there.
fn absent_paths(file: &Properties) -> Vec<String> {
    let of = |(name, class): (&str, &str)| {
        let limited = [FILE, DIRECTORY].contains(&class).then(|| allowed(file, name)).flatten();
        let absent =
            limited.into_iter().flatten().filter(|path| !path.starts_with('/') || !Path::new(path).exists());
        let told = |path: &str| {
            format!(
                "`config.providers.{name}.param.allowed.paths` names {path}, which is no absolute path of something that is here: \
                 Kafka would not start. Make it, or correct the template"
            )
        };
        absent.map(told).collect::<Vec<_>>()
    };
    providers(file).flat_map(of).collect()
}

/// What Kafka, which this thread acts for, could not resolve; and what it may.
fn judged(
    file: &Properties,
    references: &BTreeSet<Reference<'_>>,
    given: &Given<'_>,
) -> (Vec<String>, Vec<String>) {
    let classes: BTreeMap<&str, &str> = providers(file).collect();
    let (mut stops, mut doubts) = (Vec::new(), Vec::new());
    for reference in references {
        let Reference { by, provider, path, key } = reference;
        let whole =
            if path.is_empty() { format!("{provider}:{key}") } else { format!("{provider}:{path}:{key}") };
        let why = match classes.get(provider) {
            None => Err(format!("`config.providers` declares no {provider} with a class")),
            Some(&ENV) if has_variable(given, key) => Ok(()),
            Some(&ENV) => Err(format!("Kafka's environment here has no {key}")),
            Some(&FILE) => is_allowed(file, provider, path).and_then(|()| in_file(path, key)),
            Some(&DIRECTORY) => is_allowed(file, provider, path).and_then(|()| in_directory(path, key)),
            // A class of the site's own: only Kafka can ask it.
            Some(_) => Ok(()),
        };
        let Err(why) = why else { continue };
        let told = format!("`{by}` takes ${{{whole}}}, and {why}");
        if given.by_script && classes.get(provider) == Some(&ENV) {
            doubts.push(format!("{told}, if the script that starts Kafka does not set it"));
        } else {
            stops.push(format!("{told}: Kafka would take the reference itself for the value"));
        }
    }
    (stops, doubts)
}

fn has_variable(given: &Given<'_>, name: &str) -> bool {
    is_always_set(name)
        || given.environment.contains_key(name)
        || given.passed.iter().any(|passed| passed == name)
}

/// By name alone, as Kafka does it: a symbolic link is not followed.
fn is_allowed(file: &Properties, provider: &str, path: &str) -> Result<(), String> {
    let Some(mut limits) = allowed(file, provider) else { return Ok(()) };
    let plain = normalized(path);
    if limits.any(|limit| plain.starts_with(normalized(limit))) {
        return Ok(());
    }
    Err(format!("that path is below none of `config.providers.{provider}.param.allowed.paths`"))
}

fn normalized(path: &str) -> PathBuf {
    Path::new(path).components().fold(PathBuf::new(), |mut plain, component| {
        match component {
            Component::CurDir => {}
            Component::ParentDir => _ = plain.pop(),
            other => plain.push(other),
        }
        plain
    })
}

/// A file that is missing is told where the files are looked at.
fn in_file(path: &str, key: &str) -> Result<(), String> {
    let Ok(content) = std::fs::read(path) else { return Ok(()) };
    let file =
        Properties::parse(&content).map_err(|error| format!("Java cannot load that file ({error})"))?;
    file.get(key).map(|_| ()).ok_or_else(|| format!("that file has no key {key}"))
}

fn in_directory(path: &str, name: &str) -> Result<(), String> {
    let here = Path::new(path).join(name);
    if here.is_file() { Ok(()) } else { Err(format!("{} is no file here", here.display())) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const DECLARED: &str = "config.providers=env, file,dir,vault\n\
         config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n\
         config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider\n\
         config.providers.dir.class=org.apache.kafka.common.config.provider.DirectoryConfigProvider\n\
         config.providers.vault.class=com.example.VaultConfigProvider\n";

    fn told(more: &str, by_script: bool) -> (Vec<String>, Vec<String>) {
        let file = Properties::parse(format!("{DECLARED}{more}").as_bytes()).unwrap();
        let environment = BTreeMap::from([("STORE".to_owned(), "hunter2".to_owned())]);
        let given = Given { environment: &environment, passed: &["PASSED".to_owned()], by_script };
        let (mut stops, doubts) = judged(&file, &references(&file), &given);
        stops.extend(absent_paths(&file));
        (stops, doubts)
    }

    #[track_caller]
    fn is_told(more: &str, part: &str) {
        let (stops, doubts) = told(more, false);
        assert!(
            stops.len() == 1 && stops[0].contains(part) && doubts.is_empty(),
            "{more}: {stops:?} {doubts:?}"
        );
    }

    #[track_caller]
    fn is_fine(more: &str) {
        assert_eq!(told(more, false), (Vec::new(), Vec::new()), "{more}");
    }

    #[test]
    fn a_variable_that_kafka_does_not_get_is_told() {
        is_fine("ssl.a=${env:STORE}\nssl.b=x${env:PASSED}y${env:PWD}\nssl.c=${env:KAFKA_HEAP_OPTS}\n");
        is_told(
            "ssl.a=${env:STORE_PASSWORD}\n",
            "`ssl.a` takes ${env:STORE_PASSWORD}, and Kafka's environment here has no",
        );
        let (stops, doubts) = told("ssl.a=${env:HOSTNAME}\n", true);
        assert!(
            stops.is_empty() && doubts[0].contains("the script that starts Kafka does not set it"),
            "{doubts:?}"
        );
    }

    #[test]
    fn a_key_that_its_file_does_not_have_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display();
        fs::write(dir.path().join("s.properties"), "key=hunter2\n").unwrap();
        is_fine(&format!("ssl.a=${{file:{path}/s.properties:key}}\nssl.b=${{dir:{path}:s.properties}}\n"));
        is_told(&format!("ssl.a=${{file:{path}/s.properties:kye}}\n"), "that file has no key kye");
        is_told(&format!("ssl.a=${{dir:{path}:t}}\n"), "/t is no file here");
        let (stops, _) = told(&format!("ssl.a=${{file:{path}/s.properties:kye}}\n"), true);
        assert!(!stops.concat().contains("hunter2"));
        assert_eq!(stops.len(), 1, "a script changes no file");
    }

    #[test]
    fn a_path_that_its_provider_may_not_read_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display();
        fs::create_dir(dir.path().join("in")).unwrap();
        fs::write(dir.path().join("in/s"), "key=x\n").unwrap();
        fs::write(dir.path().join("s"), "key=x\n").unwrap();
        let limit = format!("config.providers.file.param.allowed.paths={path}/in\n");
        is_fine(&format!("{limit}ssl.a=${{file:{path}/in/../in/s:key}}\n"));
        is_told(
            &format!("{limit}ssl.a=${{file:{path}/in/../s:key}}\n"),
            "below none of `config.providers.file.param",
        );
        is_told(
            "config.providers.dir.param.allowed.paths=/nope/d\n",
            "names /nope/d, which is no absolute path",
        );
        is_told("config.providers.dir.param.allowed.paths=etc\n", "names etc, which is no absolute path");
    }

    #[test]
    fn a_provider_that_is_not_declared_is_told() {
        is_told("ssl.a=${vautl:secret:x}\n", "`config.providers` declares no vautl");
        is_fine("ssl.a=${vault:secret/kafka:x}\nssl.b=$${x}\nssl.c=${x}\n");
        let bare = Properties::parse(b"ssl.a=${env:PWD}\n").unwrap();
        let given = Given { environment: &BTreeMap::new(), passed: &[], by_script: false };
        let (stops, _) = judged(&bare, &references(&bare), &given);
        assert!(stops[0].contains("declares no env with a class"), "{stops:?}");
    }
}
