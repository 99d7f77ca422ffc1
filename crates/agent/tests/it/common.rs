//! A configuration of a cluster that is not there, in a directory of its own.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use jiff::Timestamp;
use recovery::journal::{Claim, Direction, Entry};
use recovery::known;
use recovery::model::{BrokerId, Cause, Epoch, HostName, Instruction, Order, Outcome};
use recovery::plan::{Phase, Plan, Stage, Step};
use recovery::ports::{Ledger, Note};
use tempfile::TempDir;

/// A host with nothing around it: every broker and every fence refuses.
pub(crate) struct Site {
    dir: TempDir,
    /// Where its agent answers.
    pub(crate) listen: String,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Site {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["ledger", "state", "logs"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let meta = "version=1\ncluster.id=c1\nnode.id=1\ndirectory.id=d1\n";
        std::fs::write(dir.path().join("logs/meta.properties"), meta).unwrap();
        initialise(&dir.path().join("ledger"));
        // Port 0 cannot be used here: `status` must find the agent where the file says.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let site = Self { dir, listen: free.to_string() };
        std::fs::write(site.config(), site.text()).unwrap();
        site
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path("understudy.toml")
    }

    fn text(&self) -> String {
        let dir = self.dir.path().display();
        format!(
            r#"
mode = "auto"
[agent]
host = "standby-1"
state_dir = "{dir}/state"
listen = "{listen}"
[cluster]
bootstrap = ["127.0.0.1:1"]
[ledger]
driver = "file"
local = true
dir = "{dir}/ledger"
timeout = "60s"
[[host]]
name = "kafka-1"
[[host.fence]]
driver = "exec"
command = ["/bin/false"]
[broker_host]
driver = "process"
command = ["/bin/sh", "{{properties}}"]
template = "{dir}/server.properties"
[[broker]]
id = 1
home = "kafka-1"
listener = "127.0.0.1:2"
log_dirs = ["{dir}/logs"]
[broker.storage]
driver = "mounted"
require_mount = false
"#,
            listen = self.listen
        )
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.command_with(&self.config(), arguments)
    }

    pub(crate) fn command_with(&self, config: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_understudy"));
        command.arg("--config").arg(config).args(arguments);
        command.env_remove("UNDERSTUDY_CONFIG").stdin(std::process::Stdio::null());
        // What a process says of itself is nobody's name.
        command.env("SUDO_USER", "ada").env("USER", "ada");
        command
    }

    /// The same cluster, seen from another host; `edit` changes its configuration.
    pub(crate) fn on(&self, host: &str, edit: impl FnOnce(String) -> String) -> PathBuf {
        let text = self.text().replace("host = \"standby-1\"", &format!("host = \"{host}\""));
        let text = text.replace("/state\"", &format!("/state-{host}\""));
        std::fs::create_dir_all(self.path(&format!("state-{host}"))).unwrap();
        let path = self.path(&format!("{host}.toml"));
        std::fs::write(&path, edit(text)).unwrap();
        path
    }

    pub(crate) fn run_with(&self, config: &Path, arguments: &[&str]) -> Said {
        said(self.command_with(config, arguments).output().unwrap())
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Said {
        said(self.command(arguments).output().unwrap())
    }
}

pub(crate) fn said(output: Output) -> Said {
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Gives a directory the identity of a ledger.
pub(crate) fn initialise(dir: &Path) {
    let ledger = ledger(dir);
    let ours =
        known::Identity::new(drivers::machine::random_id().unwrap(), "kafka-1".into(), Timestamp::now());
    let made = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(known::init(&*ledger, &ours)).unwrap()
    });
    assert!(made.join().unwrap().1, "there is a ledger in {}", dir.display());
}

/// The file ledger of a site.
pub(crate) fn ledger(dir: &Path) -> std::sync::Arc<dyn Ledger> {
    // A busy test machine is no dead storage.
    let config = serde_json::json!({ "driver": "file", "dir": dir, "timeout": "60s" });
    let config: drivers::ledger::LedgerConfig = serde_json::from_value(config).unwrap();
    config.open().unwrap()
}

/// The broker of every site.
pub(crate) const BROKER: BrokerId = BrokerId(1);

/// How far a takeover gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    Claimed,
    Fenced,
    Started,
    Abandoned,
    Recovered,
}

/// A takeover of broker 1, as its claimant writes it down.
pub(crate) struct Written {
    pub(crate) epoch: u64,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    pub(crate) cause: Cause,
    pub(crate) succeeds: Option<recovery::model::Succession>,
}

impl Written {
    pub(crate) fn new(epoch: u64, from: &'static str, to: &'static str) -> Self {
        Self { epoch, from, to, cause: Cause::Automatic, succeeds: None }
    }

    fn plan(&self) -> Plan {
        let (from, ladder) = (HostName::from(self.from), vec!["exec".to_owned()]);
        let proof = match (self.from == self.to, self.cause) {
            (true, _) => Step::ProveStopped { broker: BROKER },
            (_, Cause::Planned) => Step::AwaitRelease { broker: BROKER, host: from.clone() },
            _ => Step::Prove { host: from.clone(), ladder: ladder.clone() },
        };
        let first = if self.cause == Cause::Planned || self.from == self.to {
            Step::RenderConfig { broker: BROKER }
        } else {
            Step::Fence { host: from.clone(), ladder, on: None }
        };
        Plan {
            broker: BROKER,
            from,
            to: self.to.into(),
            epoch: Epoch(self.epoch),
            fault_at: Timestamp::now(),
            because: Vec::new(),
            stages: vec![
                Stage { phase: Phase::Fence, steps: vec![first] },
                Stage { phase: Phase::Prove, steps: vec![proof] },
                Stage { phase: Phase::Start, steps: vec![Step::StartBroker { broker: BROKER }] },
            ],
            predicted: None,
        }
    }

    pub(crate) async fn claim(&self, ledger: &dyn Ledger) {
        let Self { cause, succeeds, .. } = self;
        let claim = Claim {
            at: Timestamp::now(),
            by: self.to.into(),
            cause: *cause,
            succeeds: *succeeds,
            instance: None,
            plan: self.plan(),
        };
        ledger.claim(&claim).await.unwrap();
    }

    pub(crate) async fn append(&self, ledger: &dyn Ledger, entries: &[Entry]) {
        let (by, at) = (HostName::from(self.to), Timestamp::now());
        ledger.append(BROKER, Epoch(self.epoch), at, &by, entries).await.unwrap();
    }

    pub(crate) async fn write(&self, ledger: &dyn Ledger, until: Until) {
        self.claim(ledger).await;
        let step = |step, text: &str| {
            let (direction, note) = (Direction::Forward, Note::new(text).with("device", "rack 7"));
            [Entry::Started { step, direction }, Entry::Done { step, direction, note }]
        };
        let began = Entry::Started { step: 2, direction: Direction::Forward };
        let time_to_isr = std::time::Duration::from_secs(4);
        let recovered = Outcome::Recovered { time_to_isr, remarks: Vec::new() };
        let (at, why) = ("prove".to_owned(), "no room".to_owned());
        let abandoned = Outcome::Abandoned { at, why, kept: vec!["the fence".to_owned()] };
        let fenced = step(0, "switched off").to_vec();
        let proven = [fenced.clone(), step(1, "status reads off").to_vec()].concat();
        let entries = match until {
            Until::Claimed => Vec::new(),
            Until::Fenced => fenced,
            Until::Started => [proven, vec![began]].concat(),
            Until::Abandoned => [fenced, vec![Entry::Ended { outcome: abandoned }]].concat(),
            Until::Recovered => {
                [proven, step(2, "runs").to_vec(), vec![Entry::Ended { outcome: recovered }]].concat()
            }
        };
        if !entries.is_empty() {
            self.append(ledger, &entries).await;
        }
    }
}

/// An order, as an agent writes it.
pub(crate) async fn order(ledger: &dyn Ledger, host: &str, what: Instruction) {
    let order = Order { at: Timestamp::now(), host: host.into(), who: "agent".to_owned(), what };
    ledger.order(&order).await.unwrap();
}

/// Who runs this test, as an order says it.
pub(crate) fn me() -> String {
    let ask = |flag: &str| {
        let told = Command::new("id").arg(flag).output().unwrap();
        String::from_utf8(told.stdout).unwrap().trim().to_owned()
    };
    format!("{} (uid {})", ask("-un"), ask("-u"))
}
