//! A real etcd cluster of three members on this machine, and a wire to it that can be cut in the middle of a
//! write.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener as Listener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// How long members may need to find each other on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);

pub(super) struct Cluster {
    /// `None` once it was left behind for whoever looks into a failure.
    dir: Option<TempDir>,
    members: Vec<Member>,
    http: reqwest::Client,
}

struct Member {
    args: Vec<String>,
    log: PathBuf,
    endpoint: String,
    process: Mutex<Option<Child>>,
}

impl Cluster {
    /// Three members that have elected a leader. `more`: further arguments for each.
    pub(super) async fn start(more: &[&str]) -> Self {
        for _ in 0..5 {
            let cluster = Self::spawn(more);
            if cluster.elected().await {
                return cluster;
            }
            // Somebody else took a port between our look and the start.
        }
        panic!("etcd does not start here: see the logs named above");
    }

    fn spawn(more: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("understudy-etcd-").tempdir_in(memory()).unwrap();
        let ports: Vec<(u16, u16)> = (0..3).map(|_| (free_port(), free_port())).collect();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let peers = ports.iter().enumerate().map(|(n, (_, peer))| format!("m{n}={}", url(*peer)));
        let all = peers.collect::<Vec<_>>().join(",");
        let members = ports.iter().enumerate().map(|(n, (client, peer))| {
            let (client, peer, data) = (url(*client), url(*peer), dir.path().join(format!("m{n}")));
            let data = data.display().to_string();
            let name = format!("m{n}");
            let args = [
                ("--name", name.as_str()),
                ("--data-dir", data.as_str()),
                ("--listen-client-urls", client.as_str()),
                ("--advertise-client-urls", client.as_str()),
                ("--listen-peer-urls", peer.as_str()),
                ("--initial-advertise-peer-urls", peer.as_str()),
                ("--initial-cluster", all.as_str()),
                ("--initial-cluster-token", all.as_str()),
                ("--logger", "zap"),
            ];
            let args = args.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]);
            let args = args.chain(more.iter().map(|arg| (*arg).to_owned())).collect();
            let log = dir.path().join(format!("m{n}.log"));
            Member { args, log, endpoint: client, process: Mutex::default() }
        });
        let members: Vec<Member> = members.collect();
        members.iter().for_each(Member::start);
        Self { dir: Some(dir), members, http: plain_http() }
    }

    async fn elected(&self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < READY_WITHIN {
            if self.members.iter().any(Member::has_died) {
                eprintln!("a member ended at once: {}", self.logs());
                return false;
            }
            let mut ready = 0;
            for n in 0..self.members.len() {
                let read = self.call(n, "kv/range", &json!({ "key": "YQ==" })).await;
                ready += usize::from(read.is_some_and(|answer| answer.get("header").is_some()));
            }
            if ready == self.members.len() {
                return true;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("the members of etcd did not find each other: {}", self.logs());
    }

    pub(super) fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.endpoint.clone()).collect()
    }

    /// Kills a member.
    pub(super) fn kill(&self, n: usize) {
        if let Some(mut process) = self.members[n].process.lock().unwrap().take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Starts a member that was killed.
    pub(super) fn restart(&self, n: usize) {
        let mut process = self.members[n].process.lock().unwrap();
        if process.is_none() {
            *process = Some(self.members[n].spawn());
        }
    }

    /// Waits until a member that was restarted is of use.
    pub(super) async fn wait_for(&self, n: usize) {
        let begun = Instant::now();
        while self
            .call(n, "kv/range", &json!({ "key": "YQ==" }))
            .await
            .is_none_or(|a| a.get("header").is_none())
        {
            assert!(begun.elapsed() < READY_WITHIN, "member {n} does not come back: {}", self.logs());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Asks a member as `etcdctl` would; `None` without an answer.
    pub(super) async fn call(&self, n: usize, path: &str, body: &Value) -> Option<Value> {
        let url = format!("{}/v3/{path}", self.members[n].endpoint);
        let limit = Duration::from_secs(10);
        let answer = self.http.post(url).body(body.to_string()).timeout(limit).send().await.ok()?;
        serde_json::from_slice(&answer.bytes().await.ok()?).ok()
    }

    /// Writes until etcd raises its alarm.
    pub(super) async fn fill(&self) {
        let value = "A".repeat(512 << 10);
        for n in 0..1000 {
            let key = base64(&format!("filler/{n}"));
            let answer = self.call(0, "kv/put", &json!({ "key": key, "value": value })).await.unwrap();
            if answer["message"].as_str().is_some_and(|said| said.contains("space exceeded")) {
                return;
            }
        }
        panic!("etcd has no quota: {}", self.logs());
    }

    /// What an operator does then: remove, compact, defragment, disarm.
    pub(super) async fn empty(&self) {
        let (first, end) = (base64("filler/"), base64("filler0"));
        let deleted =
            self.call(0, "kv/deleterange", &json!({ "key": first, "range_end": end })).await.unwrap();
        let revision = &deleted["header"]["revision"];
        self.call(0, "kv/compaction", &json!({ "revision": revision, "physical": true })).await.unwrap();
        for n in 0..self.members.len() {
            self.call(n, "maintenance/defragment", &json!({})).await.unwrap();
        }
        let raised = self.call(0, "maintenance/alarm", &json!({ "action": "GET" })).await.unwrap();
        for alarm in raised["alarms"].as_array().unwrap() {
            let wish = json!({ "action": "DEACTIVATE", "memberID": alarm["memberID"], "alarm": "NOSPACE" });
            self.call(0, "maintenance/alarm", &wish).await.unwrap();
        }
    }

    fn logs(&self) -> String {
        let logs = self.members.iter().map(|member| {
            let text = fs::read_to_string(&member.log).unwrap_or_default();
            let last: Vec<&str> = text.lines().rev().take(3).collect();
            format!("\n{}: …{}", member.log.display(), last.join("\n"))
        });
        logs.collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for n in 0..self.members.len() {
            self.kill(n);
        }
        if thread::panicking() {
            eprintln!("etcd's logs are kept:{}", self.logs());
            drop(self.dir.take().map(TempDir::keep));
        }
    }
}

impl Member {
    fn start(&self) {
        *self.process.lock().unwrap() = Some(self.spawn());
    }

    fn spawn(&self) -> Child {
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        // Ends with the test, even if that is killed.
        let mut etcd = Command::new("setpriv");
        etcd.args(["--pdeathsig", "KILL", "etcd"]).args(&self.args);
        etcd.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        etcd.spawn().expect("setpriv, of util-linux, starts etcd")
    }

    fn has_died(&self) -> bool {
        let mut process = self.process.lock().unwrap();
        process.as_mut().is_some_and(|process| process.try_wait().unwrap().is_some())
    }
}

/// Says what to install rather than that some file was not found.
pub(super) fn must_be_installed() {
    let found = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(
        found.is_ok_and(|status| status.success()),
        "these tests start a real etcd and there is none in PATH: run `cargo xtask setup`, or install the Debian \
         package etcd-server"
    );
}

/// Where the members keep their data. Every write waits for the disk, and a disk that is busy with other
/// tests has been seen to take seconds; what is tested here does not depend on it.
fn memory() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    if tempfile::tempfile_in(&shared).is_ok() { shared } else { std::env::temp_dir() }
}

/// A port that nobody listens on, outside the range that the kernel gives to outgoing connections: a member
/// that is restarted wants its own again.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let start = std::process::id().wrapping_mul(37) % 10_000;
        let port = 20_000 + (u32::from(step) + start) % 12_000;
        let port = u16::try_from(port).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn plain_http() -> reqwest::Client {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build().unwrap()
}

fn base64(text: &str) -> Value {
    serde_json::to_value(super::super::wire::Bytes::from(text)).unwrap()
}

/// A wire to one member that breaks in the first transaction, when `percent` of it have passed. At 100 all of
/// it has, and the answer is lost.
pub(super) struct Wire {
    pub(super) endpoint: String,
    transactions: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Wire {
    pub(super) async fn to(endpoint: &str, percent: u8) -> Self {
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let member = endpoint.trim_start_matches("http://").to_owned();
        let transactions = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&transactions);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&member).await.unwrap();
                tokio::spawn(carry(client, server, percent, Arc::clone(&count)));
            }
        });
        Self { endpoint: format!("http://{address}"), transactions, task }
    }

    /// How many transactions were begun over it.
    pub(super) fn transactions(&self) -> usize {
        self.transactions.load(Ordering::SeqCst)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(client: TcpStream, server: TcpStream, percent: u8, transactions: Arc<AtomicUsize>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let swallow = Arc::new(AtomicBool::new(false));
    let lost = Arc::clone(&swallow);
    let back = tokio::spawn(async move {
        let mut some = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from_server.read(&mut some).await {
            if lost.load(Ordering::SeqCst) || to_client.write_all(&some[..n]).await.is_err() {
                return;
            }
        }
    });
    while let Some(request) = read_request(&mut from_client).await {
        if !request.starts_with(b"POST /v3/kv/txn ") {
            to_server.write_all(&request).await.unwrap();
            continue;
        }
        transactions.fetch_add(1, Ordering::SeqCst);
        swallow.store(true, Ordering::SeqCst);
        let some = request.len() * usize::from(percent) / 100;
        to_server.write_all(&request[..some]).await.unwrap();
        if percent == 100 {
            // The answer has come as far as here.
            back.await.unwrap();
        } else {
            back.abort();
        }
        return;
    }
}

/// One HTTP request, whole.
async fn read_request(from: &mut (impl AsyncReadExt + Unpin)) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    loop {
        let mut some = vec![0; 64 << 10];
        let n = from.read(&mut some).await.ok().filter(|n| *n > 0)?;
        request.extend_from_slice(&some[..n]);
        let Some(head) = request.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&request[..head]).to_lowercase();
        let length =
            text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if request.len() >= head + 4 + length.unwrap_or(0) {
            return Some(request);
        }
    }
}
