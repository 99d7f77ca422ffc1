//! What would keep Kafka from starting here, whatever starts it: found before it is needed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::common::{Common, Section, summary};
use super::problem::Problem;
use super::render::IDENTITY_KEYS;
use super::rights::Rights;
use super::user::as_user;
use super::{BrokerIdentity, verify};
use recovery::model::BrokerId;
use recovery::ports::Note;

/// What is wrong with what every driver has in its section, and with the brokers'.
pub(super) fn shared(section: &Section<'_>, state_dir: &Path, brokers: &[BrokerIdentity]) -> Vec<String> {
    let Section { template, environment, timeout, .. } = section;
    let mut problems = Vec::new();
    if !template.is_absolute() {
        let path = template.display();
        problems.push(format!("broker_host.template: `{path}` must be an absolute path"));
    }
    for name in environment.keys() {
        if name.is_empty() || name.contains(['=', '\0']) || name.starts_with("UNDERSTUDY_") {
            problems.push(format!("broker_host.environment: `{name}` cannot be used as a name"));
        }
    }
    if timeout.is_zero() {
        problems.push("broker_host.timeout: must be longer than 0s".to_owned());
    }
    if !state_dir.is_absolute() || state_dir.to_str().is_none() {
        let path = state_dir.display();
        problems.push(format!("agent.state_dir: `{path}` must be an absolute path of plain text"));
    }
    problems.extend(brokers.iter().flat_map(identity));
    problems
}

/// What is wrong with one broker's section.
fn identity(broker: &BrokerIdentity) -> Vec<String> {
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

/// What [`template`] is about: "could not …".
pub(super) const TEMPLATE: &str = "render server.properties";
/// What [`log_dirs`] is about.
pub(super) const LOG_DIRS: &str = "read the log dirs";
/// What [`state_dir`] is about.
pub(super) const STATE_DIR: &str = "use the state directory";

/// What [`right`] is about.
pub(super) const RIGHT: &str = "find the right to run Kafka in its hands";

/// Whether a Kafka of the broker that runs here holds the broker's right: without it nothing but looks keep
/// an agent on this host from starting a second one beside it.
pub(super) fn right(common: &Common, broker: BrokerId) -> Result<Note, Problem> {
    let users = common.users(broker)?;
    if users.is_empty() {
        return Ok(Note::new(format!("no Kafka of broker {broker} runs here")));
    }
    let site = common.site(broker);
    if site.is_held()? {
        return Ok(Note::new("the Kafka that runs here holds it"));
    }
    Err(Problem::Refused(format!(
        "a Kafka of it runs here and does not hold {}: {}. When it starts next, an agent on this host may start a second one in \
         the same moment: have it started by `understudy guard --broker {broker} --exec --user USER -- COMMAND`, as \
         deploy/systemd/kafka@.service does",
        site.alive_path().display(),
        verify::in_words(&users)
    )))
}

/// A command that ends another broker's Kafka is an error where another one may run here.
pub(super) fn ends_others(told: &str, at_once: usize) -> Result<Note, String> {
    if at_once > 1 {
        return Err(format!(
            "{told}. {at_once} brokers may run here at once, and one that is stopped or moved away would take the others \
             with it"
        ));
    }
    Ok(Note::warning(format!(
        "{told}. One broker at once runs here by this configuration; a controller ends too"
    )))
}

/// How Kafka's own script is told whom to end.
pub(super) fn stop_by_id(broker: BrokerId) -> String {
    format!("From Kafka 3.7 on `kafka-server-stop.sh --node-id={broker}`, with the `=`, ends this one alone")
}

/// What a look at the ports of brokers that may run beside each other is about.
pub(super) const PORTS: &str = "keep its ports apart";

/// Whether any of `told`, what two brokers' Kafkas share, is.
pub(super) fn ports(told: Option<String>, remedy: &str) -> Note {
    match told {
        None => {
            Note::new("no other broker's Kafka is seen to be told the same port for JMX or an agent of Java")
        }
        Some(told) => Note::warning(format!("{told}. {remedy}")),
    }
}

/// Whether the template gives a broker's file.
pub(super) fn template(common: &Common, broker: BrokerId) -> Result<Note, Problem> {
    let note = summary(&common.rendered(broker)?);
    let path = common.template.display();
    let odd = common.oddity()?.map(str::to_owned);
    Ok(Note { text: format!("{path} renders: {}", note.text), ..note }.warn(odd))
}

/// Before a takeover the storage need not be here yet; if it is, it must be the broker's.
pub(super) fn log_dirs(common: &Common, broker: BrokerId) -> Result<Note, Problem> {
    let log_dirs = &common.broker(broker)?.log_dirs;
    // What keeps the file from being rendered is told where that is looked at.
    if let Ok(file) = common.rendered(broker) {
        common.voter_has_its_log(broker, &file)?;
    }
    as_user(common.user.as_ref(), || {
        let (here, absent): (Vec<PathBuf>, Vec<PathBuf>) =
            log_dirs.iter().cloned().partition(|dir| is_attached(dir));
        let rights = Rights::before(common.user.as_ref());
        let (found, asked) = verify::usable(broker, &here, None, &rights).map_err(Problem::Refused)?;
        let shown = |dirs: &[PathBuf]| dirs.iter().map(|dir| text(dir)).collect::<Vec<_>>().join(", ");
        let mut parts = Vec::new();
        if !here.is_empty() {
            let own = format!("{} belongs to broker {broker}", shown(&here));
            parts.push(format!("{own}, and {}", rights.told(&asked)));
        }
        if !absent.is_empty() {
            parts.push(format!(
                "{} is not here now, which is fine if a takeover attaches it; Kafka's rights there are not known before",
                shown(&absent)
            ));
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

/// Whether Kafka's user can read what is written below the state directory.
pub(super) fn state_dir(common: &Common, broker: BrokerId) -> Result<Note, Problem> {
    let site = common.site(broker);
    site.create()?;
    // The daemon and `understudy check` may look at the same time.
    let scratch = site.properties().with_file_name(format!(".check-{}", std::process::id()));
    super::site::write_durably(&scratch, b"understudy", common.user.as_ref().map(|user| user.gid))?;
    let what =
        format!("reading {} as Kafka's user: let it pass through the directories above", text(&scratch));
    let read = as_user(common.user.as_ref(), || fs::read(&scratch))?;
    fs::remove_file(&scratch).map_err(Problem::io(format!("removing {}", text(&scratch))))?;
    read.map_err(Problem::io(what))?;
    Ok(Note::new(format!("{} can be written, and Kafka can read it", text(&common.state_dir))))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
