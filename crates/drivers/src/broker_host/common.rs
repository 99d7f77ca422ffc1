//! What every driver does before it starts Kafka in its own way: render, verify, and look for whoever is at
//! it already.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrets::Secrets;

use super::listeners::is_combined;
use super::problem::Problem;
use super::proc::{Holder, Marker};
use super::render::{METADATA_LOG_DIR, RECOVERY_THREADS, override_with, recover_with, render};
use super::site::{self, Site};
use super::user::{User, as_user};
use super::{BrokerIdentity, RunHere, check, environment_of, rivals, verify};
use kafka::properties::Properties;
use recovery::model::{BrokerId, Epoch, HostName};
use recovery::ports::{Note, Proof};
use secrets::in_settings;

/// What some editors write first into UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The metadata log, a directory of one log dir.
const METADATA_LOG: &str = "__cluster_metadata-0";

/// How long a lock is waited for that is normally held for milliseconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// What every driver has in its section of the configuration.
pub(super) struct Section<'a> {
    pub(super) template: &'a Path,
    pub(super) environment: &'a BTreeMap<String, String>,
    pub(super) user: Option<&'a str>,
    pub(super) timeout: Duration,
}

/// What a driver knows of this host and its brokers, whatever starts Kafka.
pub(super) struct Common {
    /// The driver's name.
    pub(super) driver: &'static str,
    /// This host.
    pub(super) here: HostName,
    /// Where the records of each broker are.
    pub(super) state_dir: PathBuf,
    /// This host's `server.properties`, without what belongs to one broker.
    pub(super) template: PathBuf,
    /// The user that Kafka runs as.
    pub(super) user: Option<User>,
    /// The brokers that may be started here.
    pub(super) brokers: BTreeMap<BrokerId, BrokerIdentity>,
    /// How many of them may run here at once.
    pub(super) at_once: usize,
    /// What Kafka is given beside its configuration.
    environment: BTreeMap<String, String>,
}

impl Common {
    /// Of what is configured; or everything that is wrong with it, after `problems`, which only this driver
    /// can have.
    pub(super) fn new(
        driver: &'static str,
        section: Section<'_>,
        (here, state_dir): (HostName, PathBuf),
        RunHere { brokers, at_once, .. }: RunHere,
        mut problems: Vec<String>,
    ) -> Result<Self, Vec<String>> {
        problems.extend(check::shared(&section, &state_dir, &brokers));
        let user = section.user.map(User::look_up).transpose().unwrap_or_else(|why| {
            problems.push(format!("broker_host.user: {why}"));
            None
        });
        if !problems.is_empty() {
            return Err(problems);
        }
        let brokers = brokers.into_iter().map(|broker| (broker.id, broker)).collect();
        let (template, environment) = (section.template.to_owned(), section.environment.clone());
        Ok(Self { driver, here, state_dir, template, user, brokers, at_once, environment })
    }

    pub(super) fn broker(&self, broker: BrokerId) -> Result<&BrokerIdentity, Problem> {
        self.brokers.get(&broker).ok_or_else(|| {
            Problem::Refused(format!(
                "broker {broker} is not configured here; add a [[broker]] section for it"
            ))
        })
    }

    /// What a broker's Kafka is given beside its configuration.
    pub(super) fn environment(&self, broker: BrokerId) -> BTreeMap<String, String> {
        environment_of(&self.environment, broker)
    }

    /// Those that may run here beside `broker`, the next one first.
    pub(super) fn beside(&self, broker: BrokerId) -> impl Iterator<Item = BrokerId> {
        let others = self.brokers.keys().copied().filter(move |other| *other != broker);
        let (before, after): (Vec<_>, Vec<_>) = others.partition(|other| *other < broker);
        after.into_iter().chain(before).take(if self.at_once > 1 { usize::MAX } else { 0 })
    }

    pub(super) fn site(&self, broker: BrokerId) -> Site {
        Site::new(&self.state_dir, broker)
    }

    pub(super) fn marker(&self, broker: BrokerId) -> Marker {
        // One directory has one name here, however the configuration spells it.
        let state_dir = self.state_dir.canonicalize().unwrap_or_else(|_| self.state_dir.clone());
        Marker { broker, state_dir }
    }

    /// The template with the broker's overrides, before it gets the broker's identity.
    pub(super) fn overridden(&self, broker: BrokerId) -> Result<Properties, Problem> {
        let broker = self.broker(broker)?;
        let content = self.template()?;
        // Kafka would take it for the beginning of the first key.
        let content = content.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&content);
        if content.contains(&0) {
            return Err(
                self.refused("it is not plain text, but UTF-16 or no text at all: save it as UTF-8".into())
            );
        }
        let template = Properties::parse(content).map_err(|error| self.refused(error.to_string()))?;
        Ok(override_with(template, broker))
    }

    fn template(&self) -> Result<Vec<u8>, Problem> {
        let what = format!("reading {} (broker_host.template)", self.template.display());
        std::fs::read(&self.template).map_err(Problem::io(what))
    }

    /// What is odd about the template and does no harm to a takeover.
    pub(super) fn oddity(&self) -> Result<Option<&'static str>, Problem> {
        let marked = self.template()?.starts_with(BYTE_ORDER_MARK);
        Ok(marked.then_some(
            "it begins with a byte order mark, which a takeover leaves out, and which Kafka takes for a part of the first \
             key where it reads the file itself: save it as UTF-8 without one",
        ))
    }

    fn refused(&self, why: String) -> Problem {
        Problem::Refused(format!("the template {} cannot be used: {why}", self.template.display()))
    }

    /// The broker's `server.properties`, in memory.
    pub(super) fn rendered(&self, broker: BrokerId) -> Result<Properties, Problem> {
        let file = self.overridden(broker)?;
        let broker = self.broker(broker)?;
        let mut file = render(file, broker).map_err(|why| self.refused(why))?;
        recover_with(&mut file, processors(), broker.log_dirs.len());
        Ok(file)
    }

    /// What Kafka is told of secrets, for whoever quotes its words. Reads the template.
    pub(super) fn secrets(&self, broker: BrokerId) -> Result<Secrets, Problem> {
        let file = self.overridden(broker)?;
        let environment = self.environment(broker);
        let environment = environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        Ok(Secrets::of(in_settings(file.iter().chain(environment))))
    }

    /// `problem`, without the secrets of the template that it quotes: after a line break that is missing, or a
    /// `\\` too many, a value goes on with the next line.
    pub(super) fn hide(&self, problem: Problem) -> Problem {
        self.brokers.keys().filter_map(|broker| self.secrets(*broker).ok()).fold(problem, Problem::without)
    }

    pub(super) fn render(&self, broker: BrokerId, epoch: Epoch) -> Result<Note, Problem> {
        let file = self.rendered(broker)?;
        let site = self.site(broker);
        let path = site.properties();
        let content = [header(broker, epoch).into_bytes(), file.to_bytes()].concat();
        site.create()?;
        // Its values may be secret: only root and Kafka's group read it.
        site::write_durably(&path, &content, self.user.as_ref().map(|user| user.gid))?;
        let what = format!("reading {} back as Kafka will", path.display());
        let read = as_user(self.user.as_ref(), || std::fs::read(&path))?.map_err(Problem::io(what))?;
        if read != content {
            return Err(Problem::Refused(format!(
                "{} does not read back as it was written: does another agent use {} too?",
                path.display(),
                self.state_dir.display()
            )));
        }
        Ok(summary(&file).with("path", path.display()))
    }

    pub(super) fn verify(&self, broker: BrokerId, cluster_id: Option<&str>) -> Result<Note, Problem> {
        self.refuse_if_in_use(broker)?;
        let note = verify::verify(broker, &self.broker(broker)?.log_dirs, cluster_id, self.user.as_ref())?;
        self.voter_has_its_log(broker, &self.rendered(broker)?)?;
        Ok(note)
    }

    /// A voter of the controllers' quorum that starts without its metadata log has forgotten whom it voted
    /// for. A broker that is no controller gets that log from the controllers again.
    pub(super) fn voter_has_its_log(&self, broker: BrokerId, file: &Properties) -> Result<(), Problem> {
        if !is_combined(file) {
            return Ok(());
        }
        let log_dirs = &self.broker(broker)?.log_dirs;
        let named = file.get(METADATA_LOG_DIR).filter(|dir| !dir.is_empty()).map(Path::new);
        let Some(expected) = named.or(log_dirs.first().map(PathBuf::as_path)) else { return Ok(()) };
        let has_it = |dir: &&Path| dir.join(METADATA_LOG).is_dir();
        let elsewhere = as_user(self.user.as_ref(), || {
            let found = log_dirs.iter().map(PathBuf::as_path).find(has_it);
            found.filter(|_| !has_it(&expected))
        })?;
        match elsewhere {
            None => Ok(()),
            Some(found) => Err(Problem::Refused(format!(
                "the metadata log of broker {broker}, which is a controller too, is in {}, and Kafka would begin a new \
                 one in {}: set \"{METADATA_LOG_DIR}\" = \"{}\" in [broker.properties]",
                found.display(),
                expected.display(),
                found.display()
            ))),
        }
    }

    /// There must be one, and each must be about another host, or be our own word that nothing runs here.
    pub(super) fn check_proofs(&self, proofs: &[Proof]) -> Result<(), Problem> {
        if proofs.is_empty() {
            return Err(Problem::Refused("there is no proof that nobody else can write".to_owned()));
        }
        match proofs.iter().find(|proof| proof.host == self.here && proof.by != self.driver) {
            None => Ok(()),
            Some(proof) => Err(Problem::Refused(format!(
                "the proof of {} says that this very host, {}, is fenced: nothing can be started here until a \
                 person lifts that fence",
                proof.by, self.here
            ))),
        }
    }

    /// Kafka must read the file of this epoch, and not one that an earlier takeover left.
    pub(super) fn check_rendered(&self, broker: BrokerId, epoch: Epoch, site: &Site) -> Result<(), Problem> {
        let path = site.properties();
        let read = || {
            let mut first = String::new();
            BufReader::new(File::open(&path)?).read_line(&mut first).map(|_| first)
        };
        let first = read().map_err(Problem::io(format!("reading {}", path.display())))?;
        if first == header(broker, epoch) {
            return Ok(());
        }
        Err(Problem::Refused(format!(
            "{} was not rendered for broker {broker}, epoch {epoch}: run the takeover again, and leave the file \
             alone",
            path.display()
        )))
    }

    /// Everybody here who works on the broker's log dirs or is about to, whoever started it.
    pub(super) fn users(&self, broker: BrokerId) -> Result<Vec<Holder>, Problem> {
        let broker = self.broker(broker)?;
        let mut found = verify::holders(&broker.log_dirs)?;
        for rival in rivals::rivals(&broker.into())? {
            if found.iter().all(|holder| holder.id != rival.id) {
                found.push(rival);
            }
        }
        Ok(found)
    }

    /// Refuses while somebody here works on the broker's log dirs or is about to: Kafka's own lock would stop
    /// a second one too late.
    pub(super) fn refuse_if_in_use(&self, broker: BrokerId) -> Result<(), Problem> {
        let users = self.users(broker)?;
        if users.is_empty() {
            return Ok(());
        }
        let users = verify::in_words(&users);
        Err(Problem::Refused(format!(
            "a process on this host works on the log dirs of broker {broker}, or is about to: {users}; stop it first"
        )))
    }
}

/// How many processors this agent may use, and so Kafka beside it.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// The proofs, for the record.
pub(super) fn told(proofs: &[Proof]) -> String {
    let one = |proof: &Proof| format!("{} cannot write, by {}: {}", proof.host, proof.by, proof.note.text);
    proofs.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The first line of every rendered file: it binds the file to the epoch it was made for.
pub(super) fn header(broker: BrokerId, epoch: Epoch) -> String {
    format!("# Rendered by understudy for broker {broker}, epoch {epoch}. Changes made here are lost.\n")
}

/// What an operator wants to see of a rendered file; never values that may be secret.
pub(super) fn summary(file: &Properties) -> Note {
    let shown = ["node.id", "broker.id", "listeners", "advertised.listeners", "log.dirs", RECOVERY_THREADS];
    let values = shown.into_iter().filter_map(|key| Some((key, file.get(key)?)));
    let note = Note::new(format!("server.properties has {} properties", file.iter().count()));
    values.fold(note, |note, (key, value)| note.with(key, value))
}
