//! What would keep Kafka from starting here, found before it is needed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::launch::{BROKER, PLACEHOLDER, find_in_path, is_executable};
use super::problem::Problem;
use super::render::IDENTITY_KEYS;
use super::user::as_user;
use super::{Inner, ProcessConfig, summary, verify};
use crate::drivers::broker_host::BrokerIdentity;
use crate::model::BrokerId;
use crate::ports::Note;

/// What is wrong with the section itself.
pub(super) fn config(config: &ProcessConfig, state_dir: &Path, brokers: usize) -> Vec<String> {
    let mut problems = Vec::new();
    match config.command.split_first() {
        None => problems.push("broker_host.command: is empty; name the program that starts Kafka".to_owned()),
        Some((program, arguments)) => {
            if !Path::new(program).is_absolute() {
                problems.push(format!("broker_host.command: `{program}` must be an absolute path"));
            }
            if !arguments.iter().any(|argument| argument.contains(PLACEHOLDER)) {
                problems.push(format!(
                    "broker_host.command: no argument contains {PLACEHOLDER}, so Kafka would not get its rendered \
                     configuration"
                ));
            }
        }
    }
    if let Some(program) = config.stop_command.first().filter(|program| !Path::new(program).is_absolute()) {
        problems.push(format!("broker_host.stop_command: `{program}` must be an absolute path"));
    }
    let which = config.stop_command.iter().any(|argument| argument.contains(BROKER));
    if !config.stop_command.is_empty() && brokers > 1 && !which {
        problems.push(format!(
            "broker_host.stop_command: no argument contains {BROKER}, so it would stop the same Kafka for each of the \
             {brokers} brokers"
        ));
    }
    if !config.template.is_absolute() {
        let path = config.template.display();
        problems.push(format!("broker_host.template: `{path}` must be an absolute path"));
    }
    for name in config.environment.keys() {
        if name.is_empty() || name.contains(['=', '\0']) || name.starts_with("UNDERSTUDY_") {
            problems.push(format!("broker_host.environment: `{name}` cannot be used as a name"));
        }
    }
    if config.timeout.is_zero() {
        problems.push("broker_host.timeout: must be longer than 0s".to_owned());
    }
    if !state_dir.is_absolute() || state_dir.to_str().is_none() {
        let path = state_dir.display();
        problems.push(format!("agent.state_dir: `{path}` must be an absolute path of plain text"));
    }
    problems
}

/// What is wrong with one broker's section.
pub(super) fn identity(broker: &BrokerIdentity) -> Vec<String> {
    let key = |key: &str| format!("broker {}: {key}", broker.id);
    let mut problems = Vec::new();
    if broker.log_dirs.is_empty() {
        problems.push(format!("{}: is empty; name the broker's log dirs", key("log_dirs")));
    }
    for dir in &broker.log_dirs {
        if !dir.is_absolute() || dir.to_str().is_none_or(|text| text.contains(',')) {
            let dir = dir.display();
            problems.push(format!("{}: `{dir}` must be an absolute path without commas", key("log_dirs")));
        }
    }
    if broker.log_dirs.iter().collect::<BTreeSet<_>>().len() != broker.log_dirs.len() {
        problems.push(format!("{}: names a directory twice", key("log_dirs")));
    }
    for name in IDENTITY_KEYS.iter().filter(|name| broker.properties.contains_key(**name)) {
        problems.push(format!(
            "{}: `{name}` comes from the section's id and log_dirs; remove it here",
            key("properties")
        ));
    }
    problems
}

type Check = fn(&Inner, BrokerId) -> Result<Note, Problem>;

/// Every look, with what it is about: "could not …".
pub(super) const CHECKS: [(&str, Check); 5] = [
    ("find the Kafka command", command),
    ("find Java for the Kafka", java),
    ("render server.properties", template),
    ("read the log dirs", log_dirs),
    ("use the state directory", state_dir),
];

fn command(inner: &Inner, _: BrokerId) -> Result<Note, Problem> {
    let program = inner.launch.command.first().cloned().unwrap_or_default();
    if as_user(inner.user.as_ref(), || is_executable(Path::new(&program)))? {
        return Ok(Note::new(format!("{program} is there and can be executed")));
    }
    Err(Problem::Refused(format!(
        "{program} is not there or cannot be executed by Kafka's user: install Kafka, or correct \
         broker_host.command"
    )))
}

/// `kafka-run-class.sh` takes Java from `JAVA_HOME`, else from `PATH`.
fn java(inner: &Inner, _: BrokerId) -> Result<Note, Problem> {
    let program = inner.launch.command.first().map(PathBuf::from).unwrap_or_default();
    if program.file_name().is_some_and(|name| name == "java") {
        return Ok(Note::new("Kafka's command is Java itself"));
    }
    let environment = inner.launch.environment(inner.user.as_ref());
    let variable = |name: &str| environment.get(std::ffi::OsStr::new(name)).cloned().unwrap_or_default();
    let home = variable("JAVA_HOME");
    let java = as_user(inner.user.as_ref(), || {
        if home.is_empty() {
            find_in_path("java", &variable("PATH"))
        } else {
            Some(Path::new(&home).join("bin/java")).filter(|java| is_executable(java))
        }
    })?;
    match java {
        Some(java) => Ok(Note::new(format!("Java is {}", java.display()))),
        None if home.is_empty() => Err(Problem::Refused(
            "there is no `java` in PATH: install a JRE, or set JAVA_HOME in [broker_host.environment]".into(),
        )),
        None => Err(Problem::Refused(format!(
            "JAVA_HOME is {}, and bin/java is not there or cannot be executed: correct it in \
             [broker_host.environment]",
            home.display()
        ))),
    }
}

fn template(inner: &Inner, broker: BrokerId) -> Result<Note, Problem> {
    let note = summary(&inner.rendered(broker)?);
    let path = inner.template.display();
    Ok(Note { text: format!("{path} renders: {}", note.text), ..note })
}

/// Before a takeover the storage need not be here yet; if it is, it must be the broker's.
fn log_dirs(inner: &Inner, broker: BrokerId) -> Result<Note, Problem> {
    let log_dirs = &inner.broker(broker)?.log_dirs;
    as_user(inner.user.as_ref(), || {
        let (here, absent): (Vec<PathBuf>, Vec<PathBuf>) =
            log_dirs.iter().cloned().partition(|dir| is_attached(dir));
        let found = verify::identify(broker, &here, None).map_err(Problem::Refused)?;
        let shown = |dirs: &[PathBuf]| dirs.iter().map(|dir| text(dir)).collect::<Vec<_>>().join(", ");
        let mut parts = Vec::new();
        if !here.is_empty() {
            parts.push(format!("{} belongs to broker {broker}", shown(&here)));
        }
        if !absent.is_empty() {
            parts
                .push(format!("{} is not here now, which is fine if a takeover attaches it", shown(&absent)));
        }
        let note = Note::new(parts.join("; "));
        Ok(found.values().take(1).fold(note, |note, meta| note.with("cluster.id", &meta.cluster_id)))
    })?
}

/// An empty directory is a mount point without its mount.
fn is_attached(dir: &Path) -> bool {
    match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

fn state_dir(inner: &Inner, broker: BrokerId) -> Result<Note, Problem> {
    let site = inner.site(broker);
    site.create()?;
    let scratch = site.properties().with_file_name(".check");
    super::site::write_durably(&scratch, b"understudy", inner.user.as_ref().map(|user| user.gid))?;
    let what =
        format!("reading {} as Kafka's user: let it pass through the directories above", text(&scratch));
    let read = as_user(inner.user.as_ref(), || fs::read(&scratch))?;
    fs::remove_file(&scratch).map_err(Problem::io(format!("removing {}", text(&scratch))))?;
    read.map_err(Problem::io(what))?;
    Ok(Note::new(format!("{} can be written, and Kafka can read it", text(&inner.state_dir))))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
