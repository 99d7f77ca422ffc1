//! The class-data archive (AppCDS) of this host's Kafka: what Java would otherwise load, link and verify at
//! each start.
//!
//! | file below `<state_dir>/class-data` | what |
//! |---|---|
//! | `kafka.json` | what the archive was made of: the record by which it counts |
//! | `kafka-MILLIS.jsa` | the archive; ours alone to write, for all to read |
//! | `making.lock` | held while one is made |
//! | `scratch/` | the node that is started for it, while it is |
//!
//! A start never waits for any of this: what does not fit, or cannot be looked at in [`LOOK_WITHIN`], is not
//! used, and the step's note says why.

mod environment;
mod jvm;
mod make;
mod record;
mod scratch;

#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use schemars::JsonSchema;
use secrets::Secrets;
use serde::{Deserialize, Serialize};

use super::problem::{Problem, off_path_error};
use super::systemd::class_data::Units;
use super::user::User;
use super::{BrokerHostConfig, process};
use crate::host_lock;
use crate::off_path::off_path;
pub(super) use environment::{VARIABLE, with_archive};
use record::Record;
use recovery::model::BrokerId;
use recovery::ports::StepError;
use secrets::{in_settings, in_words};

const DRIVER: &str = "class_data";

/// How long a start may look at the record and at the files that it names: a few hundred, on this host's own
/// disk.
const LOOK_WITHIN: Duration = Duration::from_millis(250);

/// How long a look may take that nobody waits for, and that reads the whole archive.
const SOUND_WITHIN: Duration = Duration::from_secs(60);

/// How long it may take to make one: twice the deadline of each of its halves.
const MAKE_WITHIN: Duration = Duration::from_secs(1_500);

/// Stands for the path of the configuration that Kafka is started with.
const PROPERTIES: &str = "{properties}";

/// Whether an archive is made and used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClassDataUse {
    /// `understudy run` has one made when there is none that fits, and every start uses it.
    #[default]
    Auto,
    /// Starts use the one that `understudy warm` made, while it fits.
    Manual,
    /// None is made or used.
    Off,
}

/// What a look at the archive showed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "class_data", rename_all = "snake_case")]
pub enum Look {
    /// Kafka's next start here uses it.
    Fits {
        /// Where it is.
        archive: PathBuf,
        /// Its length.
        bytes: u64,
        /// When it was made.
        made: Timestamp,
    },
    /// There is none that could be used.
    None {
        /// Why, in words.
        why: String,
    },
    /// None is wanted: by the configuration, or because what starts Kafka sees to it.
    Unwanted {
        /// Why, in words.
        why: String,
    },
}

/// One that was made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Made {
    /// Where it is.
    pub archive: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// What it cost of all processors.
    pub cpu_seconds: f64,
    /// The Java that made it and that it is for.
    pub java: String,
    /// By what Kafka was started.
    pub from: String,
}

/// Says, when asked, why the making of an archive is to be given up.
type Stop<'a> = &'a dyn Fn() -> Option<String>;

/// How Kafka is started to make an archive: as always.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    /// Program and arguments; `{properties}` stands for the configuration.
    pub(super) command: Vec<String>,
    /// Its whole environment.
    pub(super) environment: BTreeMap<String, String>,
    /// Whom it runs as.
    pub(super) user: Option<User>,
    /// Where the command is from, for messages.
    pub(super) from: String,
}

impl Recipe {
    fn arguments(&self, properties: &str) -> Vec<String> {
        self.command.iter().map(|word| word.replace(PROPERTIES, properties)).collect()
    }

    /// What Kafka is told of secrets.
    fn secrets(&self) -> Secrets {
        let environment = self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let words = self.command.iter().map(String::as_str);
        Secrets::of(in_settings(environment).into_iter().chain(in_words(words)))
    }
}

/// Where the archive is kept, and for which way of starting Kafka.
#[derive(Debug, Clone)]
pub(super) struct Shelf {
    dir: PathBuf,
    wanted: ClassDataUse,
    /// What Kafka is started by, in a few letters.
    launch: String,
    /// The option by which the configuration has decided about archives itself.
    own: Option<String>,
}

/// What a start is to do about the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AtStart {
    /// The archive to tell Java of.
    pub(super) archive: Option<PathBuf>,
    /// What came of the look, for history.
    pub(super) says: String,
}

impl Shelf {
    /// For Kafka that is started by `words` (a command, or a unit's name) with `environment` on top.
    pub(super) fn new(
        state_dir: &Path,
        wanted: ClassDataUse,
        words: &[String],
        environment: &BTreeMap<String, String>,
    ) -> Self {
        let all = words.iter().chain(environment.values()).map(String::as_str);
        let own = environment::own_choice(all).map(str::to_owned);
        Self { dir: state_dir.join("class-data"), wanted, launch: fingerprint(words, environment), own }
    }

    /// Whether there is an archive that fits. Looks at files.
    fn look(&self) -> Look {
        let unwanted = |why: String| Look::Unwanted { why };
        if self.wanted == ClassDataUse::Off {
            return unwanted("class_data = \"off\"".to_owned());
        }
        if let Some(option) = &self.own {
            return unwanted(format!("what starts Kafka says {option} itself"));
        }
        let record = Record::read(&self.dir);
        let fits =
            record.and_then(|record| record.fits(&self.dir, &self.launch).map(|archive| (record, archive)));
        match fits {
            Ok((_, archive)) if !environment::can_be_told(&archive) => {
                Look::None { why: "agent.state_dir has quotes in its path".to_owned() }
            }
            Ok((record, archive)) => Look::Fits { archive, bytes: record.bytes, made: record.made },
            Err(why) => Look::None { why },
        }
    }

    /// The Java that Kafka's command was seen to start, when the archive was made. Looks at files.
    pub(super) fn java(&self) -> Option<PathBuf> {
        let record = Record::read(&self.dir).ok().filter(|record| record.launch == self.launch)?;
        let (way, led_to) = record.found;
        // Where that leads elsewhere now, nobody has seen what is started.
        fs::canonicalize(way).is_ok_and(|leads_to| leads_to == led_to).then_some(led_to)
    }

    /// As [`Self::look`], and reads all of the archive.
    fn look_closely(&self) -> Look {
        let look = self.look();
        if let (Look::Fits { archive, .. }, Ok(record)) = (&look, Record::read(&self.dir))
            && let Err(why) = record.is_sound(archive)
        {
            // No start may map it, and Java would not find out.
            let _ = fs::remove_file(archive);
            return Look::None { why };
        }
        look
    }

    /// What a start that happens now does. Never an error, and never late.
    pub(super) async fn at_start(&self) -> AtStart {
        let shelf = self.clone();
        let look = off_path("looking at the class-data archive", LOOK_WITHIN, move || shelf.look()).await;
        let none = |why: String| AtStart { archive: None, says: format!("none: {why}") };
        match look {
            Ok(Look::Fits { archive, .. }) => {
                AtStart { says: format!("used: {}", archive.display()), archive: Some(archive) }
            }
            Ok(Look::Unwanted { why }) => none(why),
            Ok(Look::None { why }) => none(missed(why)),
            Err(error) => none(missed(error.to_string())),
        }
    }
}

/// An archive that was wanted and is not used is told in the log as well.
fn missed(why: String) -> String {
    tracing::warn!(why, "Kafka is started without a class-data archive, and so slower");
    why
}

/// What Kafka is started by, in a few letters. Environments may hold secrets, so they are not kept as they
/// are.
fn fingerprint(words: &[String], environment: &BTreeMap<String, String>) -> String {
    let mut all = String::new();
    for word in words {
        // Writing to a String cannot fail.
        let _ = writeln!(all, "{word:?}");
    }
    for (name, value) in environment {
        let _ = writeln!(all, "{name:?}={value:?}");
    }
    // FNV-1a, of 64 bits: a key needs to be stable, not secret.
    let hash = all.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// How to learn what starts Kafka.
enum Way {
    Process(process::ProcessConfig),
    Systemd(Units),
    /// Kafka is in another container, and its Java with it.
    Elsewhere,
}

/// The archive of this host, for whoever looks after it.
pub struct ClassData {
    shelf: Shelf,
    state_dir: PathBuf,
    brokers: Vec<BrokerId>,
    way: Way,
}

impl BrokerHostConfig {
    /// The class-data archive of this host's Kafka, whose agent keeps its things in `state_dir` and guards
    /// `brokers`.
    #[must_use]
    pub fn class_data(&self, state_dir: &Path, brokers: Vec<BrokerId>) -> ClassData {
        let (shelf, way) = match self {
            Self::Process(config) => (config.shelf(state_dir), Way::Process(config.clone())),
            Self::Systemd(config) => (config.shelf(state_dir), Way::Systemd(Units::new(config.clone()))),
            Self::Kubernetes(_) => return ClassData::elsewhere(state_dir, brokers),
        };
        ClassData { shelf, state_dir: state_dir.to_owned(), brokers, way }
    }
}

impl ClassData {
    /// Of a Kafka that is not started here.
    #[must_use]
    pub fn elsewhere(state_dir: &Path, brokers: Vec<BrokerId>) -> Self {
        let shelf = Shelf::new(state_dir, ClassDataUse::Off, &[], &BTreeMap::new());
        Self { shelf, state_dir: state_dir.to_owned(), brokers, way: Way::Elsewhere }
    }

    /// Whether one is to be made without being asked for.
    #[must_use]
    pub fn is_automatic(&self) -> bool {
        self.shelf.wanted == ClassDataUse::Auto && self.shelf.own.is_none()
    }

    /// Whether there is one that fits, read as a whole: one that is damaged is removed. It takes its time.
    ///
    /// # Errors
    /// When the files could not be looked at.
    pub async fn look(&self) -> Result<Look, StepError> {
        if matches!(self.way, Way::Elsewhere) {
            return Ok(Look::Unwanted { why: "Kafka runs in a container of its own".to_owned() });
        }
        let shelf = self.shelf.clone();
        let action = "look at the class-data archive";
        let look =
            off_path("reading the class-data archive", SOUND_WITHIN, move || shelf.look_closely()).await;
        look.map_err(|error| off_path_error(DRIVER, error, action))
    }

    /// The guarded broker that is being taken over, restarted or handed over on this host, by any process.
    ///
    /// # Errors
    /// When that cannot be known.
    pub fn busy_with(&self) -> Result<Option<BrokerId>, StepError> {
        host_lock::held(&self.state_dir, &self.brokers)
    }

    /// Makes one, by starting Kafka once as it is started for `broker` (by default the first one) and
    /// stopping it.
    ///
    /// `stop` is asked every few milliseconds; the reason that it gives ends the attempt, and the scratch
    /// Kafka at once. So does the begin of a takeover on this host.
    ///
    /// # Errors
    /// Why there is none now.
    pub async fn make(
        &self,
        broker: Option<BrokerId>,
        stop: impl Fn() -> Option<String> + Send + 'static,
    ) -> Result<Made, StepError> {
        let action = "make a class-data archive";
        let recipe = self.recipe(broker).await.map_err(|problem| problem.into_step(DRIVER, action))?;
        let (shelf, state_dir, brokers) = (self.shelf.clone(), self.state_dir.clone(), self.brokers.clone());
        let run = move || {
            let stop = || stop().or_else(|| busy(&state_dir, &brokers));
            shelf.make(&recipe, &stop)
        };
        let made = off_path("making a class-data archive", MAKE_WITHIN, run).await;
        made.map_err(|error| off_path_error(DRIVER, error, action))?
            .map_err(|problem| problem.into_step(DRIVER, action))
    }

    /// Whether it is made by a unit of its own, out of this agent's confinement, which keeps Java from
    /// running.
    #[must_use]
    pub fn is_made_by_a_unit(&self) -> bool {
        matches!(self.way, Way::Systemd(_))
    }

    /// Has that unit make one, and waits for its end.
    ///
    /// # Errors
    /// When there is no such unit here, or it failed: its journal says why.
    pub async fn have_made(&self) -> Result<(), StepError> {
        let Way::Systemd(units) = &self.way else { return Ok(()) };
        let made = units.run_maker(MAKE_WITHIN).await;
        made.map_err(|problem| problem.into_step(DRIVER, "have a class-data archive made"))
    }

    async fn recipe(&self, broker: Option<BrokerId>) -> Result<Recipe, Problem> {
        let broker = match broker {
            Some(broker) if !self.brokers.contains(&broker) => {
                return Err(Problem::Refused(format!("broker {broker} is not guarded by this host")));
            }
            given => given.or(self.brokers.first().copied()),
        };
        let broker = broker.unwrap_or(BrokerId(0));
        match &self.way {
            Way::Process(config) => config.recipe(broker),
            Way::Systemd(units) => units.recipe(broker).await,
            Way::Elsewhere => Err(Problem::Refused(
                "Kafka runs in a container of its own, where no archive is made; put one into its image"
                    .to_owned(),
            )),
        }
    }
}

/// Why nothing may be done that takes time from a takeover; what cannot be known is a reason, too.
fn busy(state_dir: &Path, brokers: &[BrokerId]) -> Option<String> {
    match host_lock::held(state_dir, brokers) {
        Ok(None) => None,
        Ok(Some(broker)) => Some(format!("broker {broker} is being taken over on this host")),
        Err(error) => Some(error.to_string()),
    }
}

impl Shelf {
    fn make(&self, recipe: &Recipe, stop: Stop<'_>) -> Result<Made, Problem> {
        let what = || format!("making {}", self.dir.display());
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.dir).map_err(Problem::io(what()))?;
        let path = self.dir.join("making.lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let lock = lock.map_err(Problem::io(format!("opening {}", path.display())))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(Problem::Refused(
                    "another process on this host makes one now: wait for it".to_owned(),
                ));
            }
            Err(error) => return Err(Problem::io(format!("locking {}", path.display()))(error)),
        }
        let made = make::make(&self.dir, recipe, &self.launch, stop);
        // Closing it alone would not do: a process that is being started meanwhile has it until it becomes its program.
        _ = flock(&lock, FlockOperation::Unlock);
        made
    }
}
