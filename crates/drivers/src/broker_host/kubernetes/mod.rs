//! `kubernetes`: runs Kafka in a container of its own, beside the agent in one pod.
//!
//! The agent is a sidecar and has no process of Kafka's in sight. The command of Kafka's container is ours
//! (`understudy enter`, see [`enter`]): it does nothing until this driver gives it the word over a volume that both
//! containers have, then starts Kafka as its child, and tells of it. It runs the very driver `process`, as Kafka's user
//! among Kafka's files: rendering, the looks at log dirs, the broker's right, records and all checks are the same code.
//! The sidecar holds nothing but what it is configured with, so it may die and come back at any time.
//!
//! The word is a request on a Unix socket, not a file. A file outlives whoever wrote it, so one that is found may be of
//! an earlier life; a connection ends with either of its ends, and the kernel says so.
//!
//! | what might go wrong | what keeps it from starting a Kafka |
//! |---|---|
//! | the sidecar dies or gives up after the word | the entry point asks the kernel, with everything locked and right before the start, whether the other end is still there |
//! | both are frozen, and wake up later | each word names the moment, since boot, until which it counts: `timeout` after it was given |
//! | a word of an earlier life of the entry point | it went to another socket, and is gone with it |
//! | two words, of one sidecar or of two | one at a time is carried out (`start.lock`); the second finds the first's Kafka, and adopts it if it is of the same epoch |
//! | a word of an older epoch | the record on the volume names the newest one |
//! | a Kafka of an earlier life of the entry point | it holds the broker's right (`alive.lock`), from before its first instruction to the end of its last child |
//! | the volume is full | the record comes before the start, so there is none |
//! | two entry points on one volume | the second one ends: `enter.lock` |
//!
//! The rule of `guard` holds because only [`BrokerHost::start`] gives the word: proofs in its hands, after the ledger
//! has accepted, for this epoch, that this host starts the broker. Whoever takes the broker over after that fences this
//! host first.
//!
//! That nothing runs is proven by the entry point alone: by the right, and by a look at the processes of its container.
//! One that does not answer proves nothing.

mod enter;
mod word;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::RunHere;
use super::common::{Common, Section, told};
pub use enter::{EnterError, enter};
use recovery::model::{BrokerId, Epoch, HostName};
use recovery::ports::{BoxError, BrokerHost, Note, ProcessState, Proof, StepError};
use word::{Act, Failure, LONGEST, PROTOCOL, Reply, Request, Setting, Told, due, socket};

const DRIVER: &str = "kubernetes";

/// The longest path of a Unix socket, in bytes.
const SOCKET_PATH_LIMIT: usize = 107;

/// How much longer an answer is waited for than the act itself may take.
const MARGIN: Duration = Duration::from_secs(2);

/// How Kafka is run in a container beside the agent.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesConfig {
    /// The directory of a volume that this container and Kafka's both have, and nobody else: an `emptyDir`. Whoever can
    /// write there can start Kafka. `understudy enter --dir` in Kafka's container names the same one.
    #[serde(default = "shared")]
    pub dir: PathBuf,
    /// The `server.properties` of this pod, as Kafka's container sees it. Node id, log dirs and the addresses of its
    /// listeners become the broker's; a listener at loopback, or at an address of its own, stays as it is.
    /// docs/server-properties.md has every key.
    pub template: PathBuf,
    /// How long a look at files, or starting the process, may take. Storage that takes longer counts as dead.
    #[serde(default = "ten_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
}

fn shared() -> PathBuf {
    "/run/understudy".into()
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

/// Runs brokers in the container beside this one.
pub struct Kubernetes {
    common: Common,
    dir: PathBuf,
    setting: Setting,
    /// The life of the entry point in which each broker's process was seen last.
    lives: Mutex<BTreeMap<BrokerId, String>>,
}

impl Kubernetes {
    /// Makes the driver from its section; `state_dir` is local and absolute, `here` is this host.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration, as `key: what is wrong and what to do`.
    pub fn new(
        config: KubernetesConfig,
        here: HostName,
        state_dir: PathBuf,
        brokers: impl Into<RunHere>,
    ) -> Result<Self, Vec<String>> {
        let brokers = brokers.into();
        let KubernetesConfig { dir, template, timeout } = config;
        let problems = not_a_place(&dir).into_iter().map(|why| format!("broker_host.dir: {why}")).collect();
        let environment = BTreeMap::new();
        let section = Section { template: &template, environment: &environment, user: None, timeout };
        let setting = Setting {
            here: here.clone(),
            template: template.clone(),
            timeout,
            brokers: brokers.brokers.clone(),
            at_once: brokers.at_once,
        };
        let common = Common::new(DRIVER, section, (here, state_dir), brokers, problems)?;
        Ok(Self { common, dir, setting, lives: Mutex::default() })
    }

    /// Asks the entry point, for an act that may take `limit`. `action` completes "could not …".
    async fn ask(&self, action: &str, act: Act, limit: Duration) -> Result<Reply, StepError> {
        let request = Request { protocol: PROTOCOL, until: due(limit), setting: self.setting.clone(), act };
        let failed =
            |source: BoxError| StepError::Failed { driver: DRIVER, action: action.to_owned(), source };
        let line = serde_json::to_string(&request).map_err(|error| failed(error.into()))?;
        let path = socket(&self.dir);
        // The connection ends with this call, however that ends: with it the word counts no more.
        match timeout(limit + MARGIN, exchange(&path, line)).await {
            Err(_) => Err(StepError::Unconfirmed {
                driver: DRIVER,
                action: action.to_owned(),
                limit: limit + MARGIN,
            }),
            Ok(Ok(reply)) => serde_json::from_str(&reply).map_err(|error| {
                let why =
                    format!("the entry point at {} answers what makes no sense: {error}", path.display());
                Failure::refused(action, why).into_step(DRIVER)
            }),
            Ok(Err(error)) => Err(match unreached(&path, &error) {
                Some(why) => Failure::refused(action, why).into_step(DRIVER),
                None => failed(BoxError::from(format!("the entry point at {}: {error}", path.display()))),
            }),
        }
    }

    async fn told(&self, action: &str, act: Act, limit: Duration) -> Result<Told, StepError> {
        self.ask(action, act, limit).await?.said.map_err(|failure| failure.into_step(DRIVER))
    }

    async fn note(&self, action: &str, act: Act, limit: Duration) -> Result<Note, StepError> {
        match self.told(action, act, limit).await? {
            Told::Note(note) => Ok(note),
            other => Err(nonsense(action, &other)),
        }
    }
}

/// Why a directory cannot be the shared one.
fn not_a_place(dir: &Path) -> Option<String> {
    let shown = dir.display();
    if !dir.is_absolute() || dir.to_str().is_none() {
        return Some(format!("`{shown}` must be an absolute path of plain text"));
    }
    let long = socket(dir).as_os_str().len() > SOCKET_PATH_LIMIT;
    long.then(|| format!("`{shown}` makes a socket's path longer than {SOCKET_PATH_LIMIT} bytes"))
}

/// Sends a line, and reads one.
async fn exchange(path: &Path, mut line: String) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(path).await?;
    line.push('\n');
    stream.write_all(line.as_bytes()).await?;
    let mut reply = String::new();
    BufReader::new((&mut stream).take(LONGEST)).read_line(&mut reply).await?;
    if reply.ends_with('\n') { Ok(reply) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// Why nobody answers, if that is so.
fn unreached(path: &Path, error: &std::io::Error) -> Option<String> {
    let shown = path.display();
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Some(format!(
            "no entry point listens at {shown}: does Kafka's container run (`kubectl describe pod`), is its command `understudy \
             enter --dir {}`, and do both containers have this volume?",
            path.parent().unwrap_or(path).display()
        )),
        ErrorKind::PermissionDenied => Some(format!(
            "{shown} may not be opened: run this container as root, as Kafka's user, or give the pod an `fsGroup`"
        )),
        _ => None,
    }
}

fn nonsense(action: &str, told: &Told) -> StepError {
    Failure::refused(action, format!("the entry point answers something else: {told:?}")).into_step(DRIVER)
}

#[async_trait]
impl BrokerHost for Kubernetes {
    fn name(&self) -> &'static str {
        DRIVER
    }

    async fn render(&self, broker: BrokerId, epoch: Epoch) -> Result<Note, StepError> {
        let action = format!("render server.properties of broker {broker}");
        self.note(&action, Act::Render { broker, epoch }, self.setting.timeout).await
    }

    async fn verify(&self, broker: BrokerId, cluster_id: Option<&str>) -> Result<Note, StepError> {
        let action = format!("verify the log dirs of broker {broker}");
        let cluster_id = cluster_id.map(str::to_owned);
        self.note(&action, Act::Verify { broker, cluster_id }, self.setting.timeout).await
    }

    async fn start(&self, broker: BrokerId, epoch: Epoch, proofs: &[Proof]) -> Result<Note, StepError> {
        let action = format!("start Kafka as broker {broker}");
        self.common.check_proofs(proofs).map_err(|problem| problem.into_step(DRIVER, &action))?;
        self.note(&action, Act::Start { broker, epoch, proof: told(proofs) }, self.setting.timeout).await
    }

    async fn state(&self, broker: BrokerId) -> Result<ProcessState, StepError> {
        let action = format!("look at the process of broker {broker}");
        let reply = self.ask(&action, Act::State { broker }, self.setting.timeout).await?;
        self.lives.lock().unwrap_or_else(PoisonError::into_inner).insert(broker, reply.life);
        match reply.said.map_err(|failure| failure.into_step(DRIVER))? {
            Told::State(state) => Ok(state),
            other => Err(nonsense(&action, &other)),
        }
    }

    async fn bytes_read(&self, _broker: BrokerId, pid: i32) -> Option<u64> {
        let told =
            self.told("look at what Kafka has read", Act::BytesRead { pid }, self.setting.timeout).await;
        if let Ok(Told::Read(bytes)) = told { bytes } else { None }
    }

    async fn stop(&self, broker: BrokerId, limit: Duration) -> Result<Note, StepError> {
        let action = format!("stop Kafka of broker {broker}");
        self.note(&action, Act::Stop { broker, limit }, limit + self.setting.timeout).await
    }

    async fn kill(&self, broker: BrokerId, pid: i32, limit: Duration) -> Result<Note, StepError> {
        let action = format!("kill Kafka of broker {broker}");
        let life = self.lives.lock().unwrap_or_else(PoisonError::into_inner).get(&broker).cloned();
        let life = life.ok_or_else(|| {
            let why = format!("pid {pid} was seen by another agent: look at the process first");
            Failure::refused(&action, why).into_step(DRIVER)
        })?;
        self.note(&action, Act::Kill { broker, pid, life, limit }, limit + self.setting.timeout).await
    }

    async fn end_fenced(&self, broker: BrokerId, limit: Duration) -> Result<Note, StepError> {
        let action = format!("end the Kafka of broker {broker}, which cannot write");
        self.note(&action, Act::EndFenced { broker, limit }, limit + self.setting.timeout).await
    }

    async fn prove_stopped(&self, broker: BrokerId, epoch: Epoch) -> Result<Proof, StepError> {
        let action = format!("prove that no Kafka of broker {broker} runs in the container beside this one");
        let note = self.note(&action, Act::ProveStopped { broker, epoch }, self.setting.timeout).await?;
        Ok(Proof { host: self.common.here.clone(), by: DRIVER.to_owned(), note })
    }

    async fn check(&self, broker: BrokerId) -> Vec<Result<Note, StepError>> {
        let action = format!("ask the entry point of Kafka's container about broker {broker}");
        // It looks at many things, each within its own deadline.
        match self.told(&action, Act::Check { broker }, self.setting.timeout * 2).await {
            Err(error) => vec![Err(error)],
            Ok(Told::Checks(all)) => {
                let answers =
                    Note::new(format!("the entry point answers at {}", socket(&self.dir).display()));
                let all = all.into_iter().map(|one| one.map_err(|failure| failure.into_step(DRIVER)));
                [Ok(answers)].into_iter().chain(all).collect()
            }
            Ok(other) => vec![Err(nonsense(&action, &other))],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(dir: &str, template: &str) -> Vec<String> {
        let config = KubernetesConfig { dir: dir.into(), template: template.into(), timeout: ten_seconds() };
        let made = Kubernetes::new(config, "standby-0".into(), "/var/lib/understudy".into(), Vec::new());
        made.err().unwrap_or_default()
    }

    #[test]
    fn a_place_that_cannot_be_one_is_told_with_the_rest() {
        assert_eq!(problems("/run/understudy", "/etc/kafka/server.properties"), Vec::<String>::new());
        let told = problems("run", "server.properties");
        assert!(told[0].starts_with("broker_host.dir: `run` must be an absolute path"), "{told:?}");
        assert!(told[1].starts_with("broker_host.template: "), "{told:?}");
        let told = problems(&format!("/{}", "x".repeat(96)), "/t");
        assert!(told[0].contains("longer than 107 bytes"), "{told:?}");
        assert_eq!(problems(&format!("/{}", "x".repeat(95)), "/t"), Vec::<String>::new());
    }

    #[tokio::test]
    async fn an_entry_point_that_answers_nonsense_or_nothing_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(socket(dir.path())).unwrap();
        let config = KubernetesConfig {
            dir: dir.path().into(),
            template: "/t".into(),
            timeout: Duration::from_millis(100),
        };
        let driver = Kubernetes::new(config, "standby-0".into(), dir.path().into(), Vec::new()).unwrap();
        let answers = std::thread::spawn(move || {
            for answer in ["yes\n", "{\"life\":\"1\",\"said\":{\"Ok\":{\"read\":null}}}\n", ""] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                std::io::BufRead::read_line(&mut std::io::BufReader::new(&stream), &mut line).unwrap();
                std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
            }
        });
        for expected in ["answers what makes no sense", "answers something else", "unexpected end of file"] {
            let error = driver.prove_stopped(BrokerId(1), Epoch(1)).await.unwrap_err();
            let told = recovery::ports::chain(&error);
            assert!(told.contains(expected), "{told}");
        }
        answers.join().unwrap();
    }
}
