//! The entry point of Kafka's container: process 1 there, before Kafka and for as long as it lives.
//!
//! It waits for the sidecar's word, starts Kafka as its child, and tells how that ended. A Kafka that ends by itself
//! leaves it waiting for the next word, so that no back-off of the kubelet stands in the way of a restart. It ends with
//! the pod: SIGTERM is passed on to Kafka, and it waits for that as long as the kubelet lets it. It takes up every child
//! that has lost its parent.
//!
//! Deliberately absent: any start of its own, and any kill that was not asked for.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::super::RunHere;
use super::super::class_data::ClassDataUse;
use super::super::problem::Problem;
use super::super::proc;
use super::super::process::{Process, ProcessConfig, UNKNOWN_STATUS, UNRECORDED};
use super::not_a_place;
use super::word::{
    Act, Failure, LONGEST, PROTOCOL, Reply, Request, Setting, Told, Version, in_a_pod, since_boot, socket,
};
use recovery::model::BrokerId;
use recovery::ports::{BrokerHost, Note, ProcessState, chain};

/// How long an earlier entry point is waited for, which ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a request may take to arrive. Its sender is on the same machine.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);

/// How long Kafka is given at the end of the pod: until the kubelet kills it.
const UNTIL_KILLED: Duration = Duration::from_secs(24 * 3600);

/// Between two attempts to stop what runs.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Requests that are carried out at one time.
const AT_ONCE: usize = 32;

/// Where the kernel counts what it has killed in this container for its memory: of cgroups of the second version, and
/// of the first.
const MEMORY_EVENTS: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

/// Why the entry point cannot do its work.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// What it was called with makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Its place cannot be used.
    #[error("{0}")]
    Failed(String),
}

/// Waits for words in `dir`, and starts Kafka by `command`. Returns at the end of the pod, whether a Kafka ran then.
///
/// # Errors
/// What is wrong with the arguments or the volume.
pub async fn enter(dir: &Path, command: Vec<String>) -> Result<bool, EnterError> {
    let life = random().map_err(|error| EnterError::Failed(format!("no random numbers: {error}")))?;
    let inside = Inside::new(dir, command, life)?;
    let failed = |what: &str| {
        let what = format!("{what} {}", dir.display());
        move |error: io::Error| EnterError::Failed(format!("{what}: {error}"))
    };
    let _alone = alone(dir).await?;
    set_child_subreaper(Some(getpid())).map_err(|errno| failed("becoming a reaper for")(errno.into()))?;
    let mut children = signal(SignalKind::child()).map_err(failed("hearing signals for"))?;
    let mut ends = signal(SignalKind::terminate()).map_err(failed("hearing signals for"))?;
    let listener = listen(dir).map_err(failed("listening in"))?;
    let inside = Arc::new(inside);
    let carried_out = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    tracing::info!(dir = %dir.display(), "waiting for the sidecar's word");
    let (done, mut ended) = tokio::sync::mpsc::channel(1);
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { sleep(AGAIN_AFTER).await; continue };
                let (inside, permit) = (Arc::clone(&inside), Arc::clone(&carried_out).try_acquire_owned());
                // Whoever finds no place is told by the end of the connection.
                let Ok(permit) = permit else { continue };
                tokio::spawn(async move {
                    inside.serve(stream).await;
                    drop(permit);
                });
            }
            _ = children.recv() => {
                let inside = Arc::clone(&inside);
                let _ = tokio::task::spawn_blocking(move || inside.take_up()).await;
            }
            _ = ends.recv() => {
                let (inside, done) = (Arc::clone(&inside), done.clone());
                if !inside.ending.swap(true, Ordering::SeqCst) {
                    tokio::spawn(async move { done.send(inside.end().await).await });
                }
            }
            Some(ran) = ended.recv() => return Ok(ran),
        }
    }
}

/// Names one life.
fn random() -> io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").map(|text| text.trim().to_owned())
}

/// Held for life: of two entry points on one volume one would not see the other's Kafka.
async fn alone(dir: &Path) -> Result<File, EnterError> {
    let path = dir.join("enter.lock");
    let shown = path.display();
    let open = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = open.map_err(|error| EnterError::Failed(format!("opening {shown}: {error}")))?;
    let locked = timeout(PATIENCE, async {
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(()),
                Err(Errno::WOULDBLOCK) => sleep(AGAIN_AFTER).await,
                Err(error) => return Err(EnterError::Failed(format!("locking {shown}: {error}"))),
            }
        }
    });
    match locked.await {
        Ok(locked) => locked.map(|()| file),
        Err(_) => Err(EnterError::Failed(format!(
            "another entry point lives on this volume and holds {shown}: give each Kafka container a volume of its own"
        ))),
    }
}

/// A socket that is left there is nobody's: its owner had the lock. Root, the same user, and the volume's group may
/// connect.
fn listen(dir: &Path) -> io::Result<UnixListener> {
    let (path, new) = (socket(dir), dir.join("enter.new"));
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o660))?;
    std::fs::rename(&new, path)?;
    Ok(listener)
}

/// What the entry point knows.
struct Inside {
    dir: PathBuf,
    command: Vec<String>,
    life: String,
    /// Runs Kafka here, as the sidecar is configured.
    process: Mutex<Option<(Setting, Arc<Process>)>>,
    /// The pod ends: nothing is started any more.
    ending: AtomicBool,
    /// What the kernel had killed for memory when this life began.
    killed_before: Option<u64>,
}

impl Inside {
    fn new(dir: &Path, command: Vec<String>, life: String) -> Result<Self, EnterError> {
        if let Some(why) = not_a_place(dir) {
            return Err(EnterError::Usage(format!("--dir {why}")));
        }
        let (dir, killed_before) = (dir.to_owned(), killed_for_memory());
        let inside = Self {
            dir,
            command,
            life,
            process: Mutex::default(),
            ending: AtomicBool::new(false),
            killed_before,
        };
        // So that a wrong command is told at once, and not by the first takeover.
        let nobody = Setting {
            here: "nobody".into(),
            template: "/".into(),
            timeout: PATIENCE,
            brokers: Vec::new(),
            at_once: 0,
        };
        inside.build(nobody).map_err(|why| EnterError::Usage(why.join("; ")))?;
        if !inside.dir.is_dir() {
            let dir = inside.dir.display();
            return Err(EnterError::Failed(format!(
                "{dir} is not there: mount the volume that the sidecar has as broker_host.dir"
            )));
        }
        Ok(inside)
    }

    fn build(&self, setting: Setting) -> Result<Process, Vec<String>> {
        let config = ProcessConfig {
            command: self.command.clone(),
            stop_command: Vec::new(),
            template: setting.template,
            environment: std::collections::BTreeMap::new(),
            user: None,
            class_data: ClassDataUse::Off,
            timeout: setting.timeout,
        };
        let brokers = RunHere::from(setting.brokers).at_most(setting.at_once);
        let made = Process::with(config, (setting.here, self.dir.clone()), brokers, true);
        made.map_err(|why| why.iter().map(|why| in_a_pod(why)).collect())
    }

    /// Who runs Kafka here for a sidecar that is configured like this.
    fn process(&self, setting: &Setting) -> Result<Arc<Process>, String> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = process.as_ref().filter(|(of, _)| of == setting) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(self.build(setting.clone()).map_err(|why| why.join("; "))?);
        *process = Some((setting.clone(), Arc::clone(&made)));
        Ok(made)
    }

    fn current(&self) -> Option<Arc<Process>> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.as_ref().map(|(_, process)| Arc::clone(process))
    }

    /// Carries one request out.
    async fn serve(self: &Arc<Self>, mut stream: UnixStream) {
        let mut line = String::new();
        let read =
            timeout(ARRIVES_WITHIN, BufReader::new((&mut stream).take(LONGEST)).read_line(&mut line)).await;
        if !matches!(read, Ok(Ok(_))) || !line.ends_with('\n') {
            return;
        }
        let stream = Arc::new(stream);
        let said = match understood(&line) {
            Ok(request) => self.carry_out(request, &stream).await,
            Err(failure) => Err(failure),
        };
        let _ = timeout(ARRIVES_WITHIN, reply(&stream, &Reply { life: self.life.clone(), said })).await;
    }

    async fn carry_out(
        self: &Arc<Self>,
        request: Request,
        stream: &Arc<UnixStream>,
    ) -> Result<Told, Failure> {
        let Request { until, setting, act, .. } = request;
        let word = Word { until, stream: Arc::clone(stream), inside: Arc::clone(self) };
        // A request that waited here while this process was frozen is not begun.
        word.is_heard().map_err(|why| Failure::refused("do what it was asked to", why))?;
        let process = self.process(&setting).map_err(|why| Failure::refused("use the configuration", why))?;
        let note = |note: Note| Told::Note(note);
        let told = match act {
            Act::Render { broker, epoch } => process.render(broker, epoch).await.map(note),
            Act::Verify { broker, cluster_id } => {
                process.verify(broker, cluster_id.as_deref()).await.map(note)
            }
            Act::Start { broker, epoch, proof } => {
                let still = move || word.counts().map_err(Problem::Refused);
                let started = process.start_by_word((broker, epoch), proof, still).await;
                if let Ok(note) = &started {
                    tracing::info!(%broker, %epoch, "{}", note.text);
                }
                started.map(note)
            }
            Act::State { broker } => {
                process.state(broker).await.map(|state| Told::State(self.explained(state)))
            }
            Act::BytesRead { pid } => Ok(Told::Read(process.bytes_read(BrokerId(0), pid).await)),
            Act::Stop { broker, limit } => process.stop(broker, limit).await.map(note),
            Act::Kill { broker, pid, life, limit } => {
                self.is_life(&life, pid)?;
                process.kill(broker, pid, limit).await.map(note)
            }
            Act::EndFenced { broker, limit } => process.end_fenced(broker, limit).await.map(note),
            Act::ProveStopped { broker, epoch } => {
                let proof = process.prove_stopped(broker, epoch).await;
                proof.map(|proof| Told::Note(proof.note.with("entry point", &self.life)))
            }
            Act::Check { broker } => {
                let all = process.check(broker).await.into_iter();
                Ok(Told::Checks(all.map(|one| one.map_err(Failure::from)).collect()))
            }
        };
        told.map_err(Failure::from)
    }

    fn is_life(&self, life: &str, pid: i32) -> Result<(), Failure> {
        if life == self.life {
            return Ok(());
        }
        let why = format!("pid {pid} was seen in this container before it was started anew: look again");
        Err(Failure::refused("kill Kafka", why))
    }

    /// How Kafka has ended, with what this container alone knows.
    fn explained(&self, state: ProcessState) -> ProcessState {
        let ProcessState::Exited { why } = state else { return state };
        let killed =
            killed_for_memory().zip(self.killed_before).map_or(0, |(now, before)| now.saturating_sub(before));
        let mut told = why.clone();
        if why.contains(UNKNOWN_STATUS) {
            told.push_str(
                "; Kafka's container may have been started anew since: `kubectl describe pod` shows its last state (137: it was \
                 killed; `OOMKilled`: for its memory)",
            );
        }
        if killed > 0 {
            told.push_str(&format!(
                "; the kernel has killed for this container's memory limit, {killed} times"
            ));
        }
        told.push_str("; what it said last is in the log of Kafka's container (`kubectl logs`)");
        ProcessState::Exited { why: told }
    }

    /// Asks for the status of every child that has ended, and keeps Kafka's.
    fn take_up(&self) {
        let _unrecorded = UNRECORDED.lock().unwrap_or_else(PoisonError::into_inner);
        for id in proc::ended_children().unwrap_or_default() {
            if let Some((broker, status)) = self.current().and_then(|process| process.take_up(id)) {
                tracing::warn!(%broker, pid = id.pid, "Kafka {status}");
                continue;
            }
            let Some(pid) = Pid::from_raw(id.pid) else { continue };
            // How it ended is of no use to anybody.
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }

    /// Passes the end of the pod on to whatever runs, and waits for it. Returns whether anything did.
    async fn end(&self) -> bool {
        let Some(process) = self.current() else { return false };
        let mut ran = false;
        for broker in process.brokers() {
            if !matches!(process.state(broker).await, Ok(ProcessState::Absent | ProcessState::Exited { .. }))
            {
                ran = true;
                tracing::info!(%broker, "the pod ends: Kafka is asked to end, and waited for");
            }
            // A start that was under way is finished first.
            while let Err(error) = process.stop(broker, UNTIL_KILLED).await {
                tracing::warn!(%broker, "{}", chain(&error));
                sleep(AGAIN_AFTER).await;
            }
        }
        ran
    }
}

/// What a request is carried out by.
struct Word {
    until: u64,
    stream: Arc<UnixStream>,
    inside: Arc<Inside>,
}

impl Word {
    /// Whether its sender waits for what comes of it.
    fn is_heard(&self) -> Result<(), String> {
        if since_boot() >= self.until {
            return Err("the request is too old: this container was frozen, or is too slow".to_owned());
        }
        // Nothing more is sent on this connection before the reply: what can be read is its end.
        match recv(&*self.stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(Errno::WOULDBLOCK) => Ok(()),
            _ => Err("the sidecar that asked for this is gone, or has given up".to_owned()),
        }
    }

    /// The same of a start.
    fn counts(&self) -> Result<(), String> {
        if self.inside.ending.load(Ordering::SeqCst) {
            return Err("the pod is being ended".to_owned());
        }
        self.is_heard()
    }
}

/// The request in a line.
fn understood(line: &str) -> Result<Request, Failure> {
    let action = "understand the sidecar";
    let nonsense =
        |error: serde_json::Error| Failure::refused(action, format!("it says what makes no sense: {error}"));
    let Version { protocol } = serde_json::from_str(line).map_err(nonsense)?;
    if protocol != PROTOCOL {
        let why = format!(
            "it speaks protocol {protocol}, and the entry point of Kafka's container {PROTOCOL}: have the pod made anew, with \
             one version of understudy in both containers"
        );
        return Err(Failure::refused(action, why));
    }
    serde_json::from_str(line).map_err(nonsense)
}

async fn reply(stream: &UnixStream, reply: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply).map_err(io::Error::other)?;
    line.push(b'\n');
    let mut rest = &line[..];
    while !rest.is_empty() {
        stream.writable().await?;
        match stream.try_write(rest) {
            Ok(sent) => rest = &rest[sent..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How many processes of this container the kernel has killed for its memory; `None` where it does not say.
fn killed_for_memory() -> Option<u64> {
    let text = MEMORY_EVENTS.iter().find_map(|path| std::fs::read_to_string(path).ok())?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}
