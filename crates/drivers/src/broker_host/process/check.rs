//! What would keep Kafka from starting here, found before it is needed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::super::problem::Problem;
use super::super::providers::Given;
use super::super::user::as_user;
use super::super::{BROKER, advertise, bind, check, files, ports, providers, scripts, stores};
use super::launch::{PLACEHOLDER, find_in_path, is_executable};
use super::{Inner, ProcessConfig, foreign, program};
use recovery::model::BrokerId;
use recovery::ports::Note;

/// What is wrong with what only this driver has in its section.
pub(super) fn config(config: &ProcessConfig, brokers: usize) -> Vec<String> {
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
    if let Some(does) = scripts::contradicts(&config.command) {
        problems.push(format!("broker_host.command: {does}"));
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
    problems
}

type Check = fn(&Inner, BrokerId) -> Result<Note, Problem>;

/// Every look, with what it is about: "could not …".
pub(super) fn looks(inner: &Inner, broker: BrokerId) -> Vec<(&'static str, Check)> {
    let mut looks: Vec<(&str, Check)> = LOOKS.to_vec();
    if inner.common.at_once > 1 {
        looks.insert(0, (check::PORTS, ports));
    }
    if options(inner, broker).is_some() {
        looks.push((files::OPTIONS, |inner, broker| {
            options(inner, broker).unwrap_or_else(|| Ok(Note::new("Kafka's options name no file")))
        }));
    }
    if references(inner, broker).is_some() {
        looks.push((providers::PROVIDERS, |inner, broker| {
            references(inner, broker).unwrap_or_else(|| Ok(Note::new("server.properties has no reference")))
        }));
    }
    if secured(inner, broker).is_some() {
        looks.push((stores::STORES, |inner, broker| {
            secured(inner, broker).unwrap_or_else(|| Ok(Note::new("no listener speaks TLS")))
        }));
    }
    if !inner.stop_command.is_empty() {
        looks.insert(0, ("stop the one Kafka", stop_command));
    }
    looks
}

const LOOKS: [(&str, Check); 9] = [
    ("find the Kafka command", command),
    ("find Java for the Kafka", java),
    (check::TEMPLATE, |inner, broker| check::template(&inner.common, broker)),
    (check::LOG_DIRS, |inner, broker| check::log_dirs(&inner.common, broker)),
    (check::STATE_DIR, |inner, broker| check::state_dir(&inner.common, broker)),
    (bind::BIND, |inner, broker| bind::look(&inner.common, broker)),
    (advertise::ADVERTISED, |inner, broker| advertise::look(&inner.common, broker)),
    (files::FILES, |inner, broker| files::look(&inner.common, broker)),
    (check::RIGHT, |inner, broker| check::right(&inner.common, broker)),
];

fn command(inner: &Inner, _: BrokerId) -> Result<Note, Problem> {
    if let Some(does) = scripts::leaves_kafka(&inner.launch.command) {
        let what = if does.contains("-daemon") { "`-daemon`" } else { "`&`" };
        return Err(Problem::Refused(format!(
            "broker_host.command {does}, so that the agent takes it for a Kafka that ended: leave {what} out. What it starts \
             outlives it as it is"
        )));
    }
    let environment = inner.launch.environment(inner.common.user.as_ref());
    let path = environment.get(std::ffi::OsStr::new("PATH")).cloned().unwrap_or_default();
    let found = as_user(inner.common.user.as_ref(), || program::look(&inner.launch.command, &path))?;
    found.map(Note::new).map_err(Problem::Refused)
}

fn options(inner: &Inner, broker: BrokerId) -> Option<Result<Note, Problem>> {
    files::options(&inner.common, &inner.common.environment(broker), &inner.launch.command)
}

fn references(inner: &Inner, broker: BrokerId) -> Option<Result<Note, Problem>> {
    given(inner, broker, |told| providers::look(&inner.common, broker, told))
}

fn secured(inner: &Inner, broker: BrokerId) -> Option<Result<Note, Problem>> {
    given(inner, broker, |told| stores::look(&inner.common, broker, told))
}

/// With what Kafka is given when it is started.
fn given<T>(inner: &Inner, broker: BrokerId, look: impl FnOnce(&Given<'_>) -> T) -> T {
    let launch = inner.launch.for_broker(broker);
    let environment = launch.environment(inner.common.user.as_ref()).into_iter();
    let text = |text: OsString| text.to_string_lossy().into_owned();
    let environment = environment.map(|(name, value)| (text(name), text(value))).collect();
    let by_script = scripts::is_of_the_site(&inner.launch.command);
    look(&Given { environment: &environment, passed: &[], by_script })
}

fn ports(inner: &Inner, broker: BrokerId) -> Result<Note, Problem> {
    let of = |broker| ports::named(&inner.common.environment(broker), &inner.launch.command);
    let own = of(broker);
    let told = inner.common.beside(broker).find_map(|other| ports::shared(&own, (other, &of(other))));
    let remedy = "Let {broker} be part of it in [broker_host.environment], as in JMX_PORT = \"999{broker}\"";
    Ok(check::ports(told, remedy))
}

fn stop_command(inner: &Inner, broker: BrokerId) -> Result<Note, Problem> {
    let words = foreign::for_broker(&inner.stop_command, broker);
    let at_once = inner.common.at_once;
    let Some(does) = scripts::ends_others(&words, broker, at_once) else {
        return Ok(Note::new("broker_host.stop_command runs no script that ends every Kafka of this host"));
    };
    let told = format!(
        "broker_host.stop_command {does}: name a command that stops the Kafka of broker {broker} alone. {}",
        check::stop_by_id(broker)
    );
    check::ends_others(&told, at_once).map_err(Problem::Refused)
}

/// What was seen of the command counts; else `kafka-run-class.sh` takes Java from `JAVA_HOME`, or from `PATH`.
fn java(inner: &Inner, _: BrokerId) -> Result<Note, Problem> {
    let program = inner.launch.command.first().map(PathBuf::from).unwrap_or_default();
    if program.file_name().is_some_and(|name| name == "java") {
        return Ok(Note::new("Kafka's command is Java itself"));
    }
    if let Some(java) = inner.shelf.java() {
        return Ok(Note::new(format!("Kafka's command starts {}", java.display())));
    }
    let environment = inner.launch.environment(inner.common.user.as_ref());
    let variable = |name: &str| environment.get(std::ffi::OsStr::new(name)).cloned().unwrap_or_default();
    let home = variable("JAVA_HOME");
    let java = as_user(inner.common.user.as_ref(), || {
        if home.is_empty() {
            find_in_path("java", &variable("PATH"))
        } else {
            Some(Path::new(&home).join("bin/java")).filter(|java| is_executable(java))
        }
    })?;
    match java {
        Some(java) => Ok(Note::new(format!(
            "Java is {} by {}, if {} does not choose another one",
            java.display(),
            if home.is_empty() { "PATH" } else { "JAVA_HOME" },
            program.display()
        ))),
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
