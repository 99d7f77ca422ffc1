//! The strict EC2 and FSx of `bed/strict_ec2.py`, one process for all tests, and a world of its own for each of them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use recovery::model::{Epoch, PLACED};
use recovery::ports::{Address, Note, StepError, chain};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Ec2, Ec2Config};

/// The virtual environment with the simulator's parts, made by `cargo xtask setup`.
const VENV: &str = "UNDERSTUDY_EC2_BED";

/// Where the simulator listens. It ends with this process, whose end its standard input tells it.
static PORT: OnceLock<Option<u16>> = OnceLock::new();

fn port() -> Option<u16> {
    *PORT.get_or_init(|| {
        let python = PathBuf::from(std::env::var_os(VENV)?).join("bin/python");
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("bed/strict_ec2.py");
        let mut command = Command::new(python);
        command.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = command.spawn().expect("the Python of the virtual environment starts");
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        // Its end of the pipe stays open for as long as this process lives.
        std::mem::forget(server);
        Some(line.trim().parse().expect("the simulator tells its port"))
    })
}

/// What one test does with EC2.
pub(crate) struct World {
    port: u16,
    key: String,
}

impl World {
    /// Two hosts in one subnet: `i-0000000a` with `eni-a` and the broker's address, and this one, `i-0000000b` with
    /// `eni-b`. Another VPC has the same addresses. `more` replaces parts of it.
    ///
    /// `None`, told loudly, without the simulator.
    pub(crate) fn lay(more: Value) -> Option<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let Some(port) = port() else {
            eprintln!(
                "SKIPPED: no EC2 to test with: run `cargo xtask setup`, and set {VENV} to the folder it names"
            );
            return None;
        };
        let nic = |subnet: &str, mac: &str, primary: &str, secondary: &[&str], instance: &str| {
            let tags = json!({"understudy": "kafka"});
            json!({"subnet": subnet, "mac": mac, "primary": primary, "secondary": secondary, "instance": instance, "tags": tags})
        };
        let instance = |name: &str, interface: &str| {
            let tags = json!({"Name": name, "understudy": "kafka"});
            json!({"state": "running", "tags": tags, "interface": interface, "recovery": "disabled"})
        };
        let mut laid = json!({
            "subnets": {
                "subnet-1": {"vpc": "vpc-1", "cidr": "10.20.0.0/24"},
                "subnet-9": {"vpc": "vpc-9", "cidr": "10.20.0.0/24"},
            },
            "interfaces": {
                "eni-a": nic("subnet-1", "02:00:00:00:00:0a", "10.20.0.31", &["10.20.0.11"], "i-0000000a"),
                "eni-b": nic("subnet-1", "02:00:00:00:00:0b", "10.20.0.32", &[], "i-0000000b"),
                "eni-9": nic("subnet-9", "02:00:00:00:00:09", "10.20.0.33", &["10.20.0.11"], "i-00000009"),
            },
            "instances": {
                "i-0000000a": instance("kafka-1", "eni-a"),
                "i-0000000b": instance("standby-1", "eni-b"),
                "i-00000009": instance("other", "eni-9"),
            },
        });
        for (name, value) in more.as_object().unwrap() {
            laid[name] = value.clone();
        }
        let key = format!("KEY{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let world = Self { port, key };
        world.page("PUT", &laid.to_string());
        Some(world)
    }

    /// Changes a part of it.
    pub(crate) fn change(&self, more: &Value) {
        self.page("POST", &more.to_string());
    }

    /// Where drivers ask it.
    pub(crate) fn config(&self) -> Ec2Config {
        Ec2Config {
            region: Some("eu-central-1".to_owned()),
            endpoint: Some(format!("http://127.0.0.1:{}", self.port)),
        }
    }

    /// The access key of this world.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Gives a driver a client of its own, with the key of this world.
    pub(crate) fn admit(&self, ec2: &mut Ec2) {
        ec2.shared = Arc::default();
        ec2.metadata = Some(format!("http://127.0.0.1:{}/metadata/{}", self.port, self.key));
        ec2.key = Some(self.key.clone());
    }

    /// Its state and its log.
    pub(crate) fn told(&self) -> Value {
        serde_json::from_str(&self.page("GET", "")).unwrap()
    }

    /// The calls of `action`, oldest first.
    pub(crate) fn calls(&self, action: &str) -> Vec<Value> {
        let log = self.told()["log"].as_array().unwrap().clone();
        log.into_iter().filter(|call| call["action"] == action).collect()
    }

    /// The interfaces that have the address in the VPC of the hosts.
    pub(crate) fn having(&self, address: &str) -> Vec<String> {
        let interfaces = self.told()["interfaces"].as_object().unwrap().clone();
        let having = interfaces.into_iter().filter(|(_, nic)| nic["subnet"] == "subnet-1");
        let has = |nic: &Value| nic["secondary"].as_array().unwrap().iter().any(|one| one == address);
        having.filter(|(_, nic)| has(nic)).map(|(id, _)| id).collect()
    }

    fn page(&self, method: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let head =
            format!("{method} /world/{} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", self.key, body.len());
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{answer}");
        body.to_owned()
    }
}

/// What the role of a standby may do, by the guide.
pub(crate) fn policy() -> Value {
    serde_json::from_str(include_str!("../../../deploy/aws/iam-standby.json")).expect("it is JSON")
}

/// The same without one action.
pub(crate) fn policy_without(action: &str) -> Value {
    let mut policy = policy();
    for statement in policy["Statement"].as_array_mut().unwrap() {
        match &mut statement["Action"] {
            Value::Array(actions) => actions.retain(|one| one != action),
            one if one == action => *one = json!([]),
            _ => {}
        }
    }
    policy
}

/// A client of an endpoint where nobody listens.
pub(crate) fn nowhere() -> Ec2Config {
    Ec2Config { region: Some("eu-central-1".to_owned()), endpoint: Some("http://127.0.0.1:9".to_owned()) }
}

/// The link of this host: an address is on it or not.
#[derive(Default)]
pub(crate) struct Link(Mutex<bool>);

impl Link {
    /// Whether the address is on it.
    pub(crate) fn has(&self) -> bool {
        *self.0.lock().unwrap()
    }
}

#[async_trait]
impl Address for Link {
    fn name(&self) -> &'static str {
        "link"
    }
    async fn acquire(&self, _epoch: Epoch) -> Result<Note, StepError> {
        let was_here = std::mem::replace(&mut *self.0.lock().unwrap(), true);
        let note = Note::new("on the link");
        Ok(if was_here { note } else { note.with(PLACED, true) })
    }
    async fn reset_clients(&self) -> Result<Note, StepError> {
        Ok(Note::new("reset"))
    }
    async fn release(&self) -> Result<Note, StepError> {
        *self.0.lock().unwrap() = false;
        Ok(Note::new("off the link"))
    }
    async fn here(&self) -> Result<bool, StepError> {
        Ok(*self.0.lock().unwrap())
    }
    async fn holder(&self) -> Result<Option<String>, StepError> {
        panic!("a VPC answers for every address: the link is not asked")
    }
    async fn defend(&self) -> Result<(), StepError> {
        panic!("neighbours in a VPC are told nothing")
    }
    async fn check(&self) -> Result<Note, StepError> {
        // What netlink adds where nobody on the link has the address, as in a VPC whose broker lives.
        Ok(Note::new("the link is up").with("unanswered", true))
    }
}

/// The links of the host of `eni-b`, as its kernel lists them.
pub(crate) fn links() -> TempDir {
    let links = tempfile::tempdir().unwrap();
    for (name, mac) in [("lo", "00:00:00:00:00:00"), ("ens5", "02:00:00:00:00:0b")] {
        std::fs::create_dir(links.path().join(name)).unwrap();
        std::fs::write(links.path().join(name).join("address"), format!("{mac}\n")).unwrap();
    }
    links
}

/// A fault of the simulator's, `times` times.
pub(crate) fn fault(action: &str, kind: &str, times: usize, more: Value) -> Value {
    let mut fault = json!({"action": action, "kind": kind, "times": times});
    for (name, value) in more.as_object().unwrap() {
        fault[name] = value.clone();
    }
    json!({"faults": [fault]})
}

/// All that an error says.
pub(crate) fn words(error: StepError) -> String {
    chain(&error)
}
