//! A pod without a cluster: a directory for the volume, the real entry point, and drivers as sidecars make them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drivers::broker_host::BrokerIdentity;
use drivers::broker_host::kubernetes::{Kubernetes, KubernetesConfig};
use recovery::model::{BrokerId, Epoch};
use recovery::ports::{BrokerHost, Note, Proof, StepError};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::common::{Said, said};

pub(crate) const BROKER: BrokerId = BrokerId(1);
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// Names the pod to a sidecar in a process of its own.
pub(crate) const AGENT_OF: &str = "TEST_SIDECAR_OF";
/// Says its argument once for every start, and runs until it is asked to stop.
pub(crate) const FOREVER: &str = "echo started \"$1\" \"$EXTRA\"; exec sleep 1000";
/// By its name it is known to be a Kafka, and not to be one while it waits.
const KAFKA: &str = "kafka-server-start.sh";
/// Ignores what a limit on files does, and becomes the entry point.
const CONTAINER: &str = "trap '' XFSZ; exec \"$@\"";

pub(crate) struct Pod {
    root: tempfile::TempDir,
    entry: Option<Child>,
}

impl Pod {
    /// One whose Kafka is `script`, and whose entry point listens.
    pub(crate) fn new(script: &str) -> Self {
        let mut pod = Self::without_entry();
        fs::write(pod.path(KAFKA), script).unwrap();
        pod.enter();
        pod
    }

    pub(crate) fn without_entry() -> Self {
        let root = tempfile::tempdir().unwrap();
        for name in ["shared", "log"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        let meta = "version=1\ncluster.id=c1\nnode.id=1\ndirectory.id=d1\n";
        fs::write(root.path().join("log/meta.properties"), meta).unwrap();
        let template = "process.roles=broker\nnode.id=9\ncontroller.quorum.voters=101@c:9093\n\
                        controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://:9092\n";
        fs::write(root.path().join("template"), template).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.path().join("go"), rustix::fs::Mode::RWXU).unwrap();
        Self { root, entry: None }
    }

    /// Starts the container of Kafka, and waits until its entry point listens.
    pub(crate) fn enter(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("container.log")).unwrap();
        let (shared, script) = (self.path("shared"), self.path(KAFKA));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", CONTAINER, "container", env!("CARGO_BIN_EXE_understudy"), "enter", "--dir"]);
        command.arg(shared).args(["--", "/bin/sh"]).arg(script).arg("{properties}");
        command.env("EXTRA", "of-the-image").env("GO", self.path("go"));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.entry = Some(command.spawn().unwrap());
        let begun = Instant::now();
        while UnixStream::connect(self.path("shared/enter.sock")).is_err() {
            assert!(begun.elapsed() < LONG && self.lives(), "it does not listen:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// What the container has printed.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("container.log")).unwrap_or_default()
    }

    /// How often Kafka was started.
    pub(crate) fn starts(&self) -> usize {
        self.log().lines().filter(|line| line.split(' ').next() == Some("started")).count()
    }

    pub(crate) fn driver(&self) -> Arc<dyn BrokerHost> {
        driver_in(self.root.path())
    }

    pub(crate) fn driver_within(&self, timeout: Duration) -> Arc<dyn BrokerHost> {
        driver_within(self.root.path(), timeout)
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.entry.as_ref().unwrap().id()).unwrap()
    }

    pub(crate) fn signal(&self, which: Signal) {
        signal(self.pid(), which);
    }

    pub(crate) fn lives(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    }

    /// The entry point alone: what it started lives on.
    pub(crate) fn kill(&mut self) {
        let mut entry = self.entry.take().unwrap();
        entry.kill().unwrap();
        entry.wait().unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        let entry = self.entry.as_mut().unwrap();
        loop {
            if let Some(status) = entry.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < LONG, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Lets the script go on that reads `$GO`, or is about to.
    pub(crate) fn go(&self) {
        let begun = Instant::now();
        let open = || {
            let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap();
            fs::OpenOptions::new().write(true).custom_flags(flags).open(self.path("go"))
        };
        loop {
            match open() {
                Ok(mut pipe) => break pipe.write_all(b"go\n").unwrap(),
                Err(error) => assert!(begun.elapsed() < LONG, "nobody reads: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// How long a file of the container may get, in bytes.
    pub(crate) fn limit_files(&self, bytes: Option<u64>) {
        let limit = Rlimit { current: bytes, maximum: None };
        prlimit(Pid::from_raw(self.pid()), Resource::Fsize, limit).unwrap();
    }

    /// Whether the entry point has a file open.
    pub(crate) fn has_open(&self, path: &Path) -> bool {
        let path = path.canonicalize().unwrap();
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().flatten();
        open.filter_map(|handle| fs::read_link(handle.path()).ok()).any(|held| held == path)
    }

    /// Sends a text to the entry point.
    pub(crate) fn send(&self, text: &str) -> UnixStream {
        let mut stream = UnixStream::connect(self.path("shared/enter.sock")).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    /// Sends a request that counts until a moment since boot.
    pub(crate) fn word(&self, until: u64, act: &Value) -> UnixStream {
        let identity =
            json!({ "id": 1, "listener": "10.0.0.1:9092", "log_dirs": [self.path("log")], "properties": {} });
        let setting = json!({
            "here": "standby-1", "template": self.path("template"), "timeout": { "secs": 20, "nanos": 0 },
            "brokers": [identity], "at_once": 1,
        });
        let request = json!({ "protocol": 1, "until": until, "setting": setting, "act": act });
        self.send(&format!("{request}\n"))
    }

    /// Runs the agent.
    pub(crate) fn say(&self, arguments: &[&str]) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_understudy"));
        said(command.args(arguments).current_dir(self.root.path()).output().unwrap())
    }
}

impl Drop for Pod {
    /// Whatever the pod has started is killed, by its own pid.
    fn drop(&mut self) {
        if let Some(entry) = &mut self.entry {
            let _ = entry.kill();
            let _ = entry.wait();
        }
        let ours = format!("UNDERSTUDY_STATE_DIR={}", self.path("shared").display()).into_bytes();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|variable| variable == ours) {
                let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
                pid.into_iter().for_each(|pid| signal(pid, Signal::KILL));
            }
        }
    }
}

pub(crate) fn agent_of() -> Option<PathBuf> {
    std::env::var_os(AGENT_OF).map(PathBuf::from)
}

pub(crate) fn driver_in(root: &Path) -> Arc<dyn BrokerHost> {
    driver_within(root, LONG)
}

fn driver_within(root: &Path, timeout: Duration) -> Arc<dyn BrokerHost> {
    let identity = BrokerIdentity {
        id: BROKER,
        listener: "10.0.0.1:9092".parse().unwrap(),
        log_dirs: vec![root.join("log")],
        properties: BTreeMap::new(),
    };
    let config = KubernetesConfig { dir: root.join("shared"), template: root.join("template"), timeout };
    Arc::new(Kubernetes::new(config, "standby-1".into(), root.join("state"), vec![identity]).unwrap())
}

pub(crate) fn proof() -> [Proof; 1] {
    [Proof { host: "kafka-1".into(), by: "fence_agent".into(), note: Note::new("status is off") }]
}

pub(crate) async fn started(driver: &dyn BrokerHost, epoch: u64) -> Result<Note, StepError> {
    driver.render(BROKER, Epoch(epoch)).await.unwrap();
    driver.start(BROKER, Epoch(epoch), &proof()).await
}

pub(crate) fn pid(note: &Note) -> i32 {
    note.details["pid"].parse().unwrap()
}

pub(crate) fn is_there(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

pub(crate) fn signal(pid: i32, which: Signal) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), which);
}

pub(crate) fn since_boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

pub(crate) async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(begun.elapsed() < LONG, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
