//! The control plane of a Kubernetes cluster on this machine: a real API server on a real etcd, with RBAC on.

mod wire;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::tls::Authority;

pub use wire::{Fault, Wire};

/// The folder with `bin/etcd`, `bin/kube-apiserver`, `bin/kubectl` and the rest, made by `cargo xtask setup --tier kubernetes`.
pub const BED: &str = "UNDERSTUDY_KUBERNETES_BED";

/// How long an API server may need to be of use on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// The token of whoever may do everything.
pub const ADMIN: &str = "admin-token";
/// The token of a user who is known, and may do nothing.
pub const STRANGER: &str = "stranger-token";

/// etcd and an API server, which end with this value.
pub struct ControlPlane {
    /// `None` once it was left behind for whoever looks into a failure.
    dir: Option<TempDir>,
    bin: PathBuf,
    etcd: Process,
    api: Process,
    etcd_port: u16,
    api_port: u16,
}

/// Controllers of a control plane, which end with this value.
pub struct Controllers(Process);

struct Process {
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

impl ControlPlane {
    /// One that is ready. `None`, told loudly, where the programs are not there.
    #[must_use]
    pub fn start() -> Option<Self> {
        let Some(bed) = std::env::var_os(BED) else {
            eprintln!(
                "SKIPPED: no Kubernetes to test with: run `cargo xtask setup --tier kubernetes`, and set {BED} to \
                 the folder it names"
            );
            return None;
        };
        let plane = Self::lay(&PathBuf::from(bed).join("bin"));
        plane.etcd.start();
        plane.await_that("etcd is healthy", || plane.etcd("/v3/kv/range", r#"{"key":"YQ=="}"#).is_some());
        plane.api.start();
        plane.await_ready();
        Some(plane)
    }

    fn lay(bin: &Path) -> Self {
        let dir = tempfile::Builder::new().prefix("understudy-kubernetes-").tempdir_in(memory()).unwrap();
        let home = dir.path();
        let file = |name: &str| home.join(name).display().to_string();
        let (etcd_port, peer_port, api_port) = (free_port(), free_port(), free_port());
        let authority = Authority::new("understudy-tests");
        let server = authority.issue(&["127.0.0.1", "localhost", "kubernetes.default.svc"]);
        let accounts = authority.issue(&["service-accounts"]);
        let tokens = format!("{ADMIN},admin,1,\"system:masters\"\n{STRANGER},stranger,2,\n");
        let files = [
            ("ca.crt", &authority.pem),
            ("api.crt", &server.pem),
            ("api.key", &server.key),
            ("accounts.key", &accounts.key),
            ("accounts.crt", &accounts.pem),
            ("tokens.csv", &tokens),
        ];
        for (name, content) in files {
            fs::write(home.join(name), content).unwrap();
        }
        let own = kubeconfig(&format!("https://127.0.0.1:{api_port}"), &file("ca.crt"), ADMIN);
        fs::write(home.join("admin.kubeconfig"), own).unwrap();
        let (client, peer) =
            (format!("http://127.0.0.1:{etcd_port}"), format!("http://127.0.0.1:{peer_port}"));
        let etcd = [
            format!("--data-dir={}", file("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--log-level=warn".to_owned(),
        ];
        let api = [
            format!("--etcd-servers={client}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={api_port}"),
            format!("--cert-dir={}", home.display()),
            format!("--tls-cert-file={}", file("api.crt")),
            format!("--tls-private-key-file={}", file("api.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--token-auth-file={}", file("tokens.csv")),
            format!("--service-account-key-file={}", file("accounts.crt")),
            format!("--service-account-signing-key-file={}", file("accounts.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--v=1".to_owned(),
        ];
        let process = |name: &str, args: &[String]| Process {
            program: bin.join(name),
            args: args.to_vec(),
            log: home.join(format!("{name}.log")),
            child: Mutex::default(),
        };
        let (etcd, api) = (process("etcd", &etcd), process("kube-apiserver", &api));
        Self { bin: bin.to_owned(), etcd, api, etcd_port, api_port, dir: Some(dir) }
    }

    /// Where its files are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    /// A kubeconfig of whoever has `token`: by `url`, or by the API server's own.
    #[must_use]
    pub fn kubeconfig(&self, token: &str, url: Option<&str>) -> PathBuf {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let own = format!("https://127.0.0.1:{}", self.api_port);
        let path = self.dir().join(format!("{}.kubeconfig", NEXT.fetch_add(1, Ordering::Relaxed)));
        fs::write(&path, kubeconfig(url.unwrap_or(&own), &self.ca(), token)).unwrap();
        path
    }

    /// A token of a service account.
    ///
    /// # Errors
    /// There is no such account.
    pub fn token(&self, account: &str, namespace: &str) -> Result<String, String> {
        let token = self.kubectl(&["create", "token", account, "--namespace", namespace], "")?;
        Ok(token.trim().to_owned())
    }

    fn ca(&self) -> String {
        self.dir().join("ca.crt").display().to_string()
    }

    /// Calls `kubectl` as `admin`, with `input` at its standard input. An error is what it said.
    ///
    /// # Errors
    /// It failed.
    pub fn kubectl(&self, args: &[&str], input: &str) -> Result<String, String> {
        let mut command = Command::new(self.bin.join("kubectl"));
        command.arg("--kubeconfig").arg(self.dir().join("admin.kubeconfig")).args(args);
        // Its own cache of what the cluster knows would be old.
        command.arg("--cache-dir").arg(self.dir().join("kubectl"));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(said(&output.stdout)) } else { Err(said(&output.stderr)) }
    }

    /// Waits until the API server says that it is ready.
    pub fn await_ready(&self) {
        self.await_that("the API server is ready", || {
            self.kubectl(&["get", "--raw=/readyz", "--request-timeout=5s"], "").is_ok_and(|said| said == "ok")
        });
    }

    /// Waits until something holds.
    pub fn await_that(&self, what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            for process in [&self.etcd, &self.api] {
                assert!(!process.has_died(), "{} ended: {}", process.program.display(), self.logs());
            }
            assert!(begun.elapsed() < READY_WITHIN, "not within {READY_WITHIN:?}: {what}: {}", self.logs());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts these controllers of the controller manager, such as `endpointslice-controller`.
    #[must_use]
    pub fn controllers(&self, names: &str) -> Controllers {
        let args = [
            format!("--kubeconfig={}", self.dir().join("admin.kubeconfig").display()),
            format!("--controllers={names}"),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        let name = "kube-controller-manager";
        let log = self.dir().join(format!("{name}.log"));
        let controllers =
            Process { program: self.bin.join(name), args: args.to_vec(), log, child: Mutex::default() };
        controllers.start();
        Controllers(controllers)
    }

    /// Kills the API server.
    pub fn kill_api(&self) {
        self.api.kill();
    }

    /// Starts the API server that was killed. It is not ready at once.
    pub fn start_api(&self) {
        self.api.start();
    }

    /// Stops the API server where it stands, until [`Self::thaw_api`]. Its threads are waited for: on a busy machine
    /// they run on for a while after the signal.
    pub fn freeze_api(&self) {
        self.api.signal("STOP");
        let begun = Instant::now();
        while self.api.runs() {
            assert!(begun.elapsed() < READY_WITHIN, "the API server does not stop");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lets it go on.
    pub fn thaw_api(&self) {
        self.api.signal("CONT");
    }

    /// Has etcd forget every version but the newest of each object.
    pub fn compact(&self) {
        let range = self.etcd("/v3/kv/range", r#"{"key":"YQ=="}"#).unwrap();
        let (_, rest) = range.split_once("\"revision\":\"").unwrap();
        let revision = rest.split('"').next().unwrap();
        let wish = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        assert!(self.etcd("/v3/kv/compaction", &wish).is_some(), "{}", self.logs());
    }

    /// Asks etcd by its JSON gateway; `None` unless it did as asked.
    fn etcd(&self, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.etcd_port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.lines().next()?.contains(" 200 ").then_some(answer)
    }

    /// The port of the API server, on the loopback address.
    #[must_use]
    pub fn api_port(&self) -> u16 {
        self.api_port
    }

    fn logs(&self) -> String {
        let logs = [&self.etcd, &self.api].map(|process| {
            let text = fs::read_to_string(&process.log).unwrap_or_default();
            let last: Vec<&str> = text.lines().rev().take(5).collect();
            format!("\n{}: …{}", process.log.display(), last.join("\n"))
        });
        logs.concat()
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.api.kill();
        self.etcd.kill();
        if thread::panicking() {
            eprintln!("the logs of the control plane are kept:{}", self.logs());
            drop(self.dir.take().map(TempDir::keep));
        }
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.0.kill();
    }
}

impl Process {
    fn start(&self) {
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        // Ends with the test, even if that is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.program).args(&self.args);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().expect("setpriv, of util-linux, starts it");
        *self.child.lock().unwrap() = Some(child);
    }

    fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.lock().unwrap().as_ref().unwrap().id().to_string();
        let done = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(done.is_ok_and(|status| status.success()));
    }

    /// Whether one of its threads is not stopped.
    fn runs(&self) -> bool {
        let pid = self.child.lock().unwrap().as_ref().unwrap().id();
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let stats = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
        // Behind the name, which is in brackets.
        let is_stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
        stats.map(is_stopped).any(|stopped| !stopped)
    }

    fn has_died(&self) -> bool {
        self.child.lock().unwrap().as_mut().is_some_and(|child| child.try_wait().unwrap().is_some())
    }
}

fn kubeconfig(url: &str, ca: &str, token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {{server: \"{url}\", certificate-authority: \"{ca}\"}}}}]\n\
         users: [{{name: test, user: {{token: {token}}}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: test, namespace: default}}}}]\n"
    )
}

/// Every write waits for the disk, and one that is busy with other tests takes seconds; nothing here depends on it.
fn memory() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    if tempfile::tempfile_in(&shared).is_ok() { shared } else { std::env::temp_dir() }
}

/// A port that nobody listens on, outside the range that the kernel gives to outgoing connections: a server that is
/// restarted wants its own again.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let start = std::process::id().wrapping_mul(53) % 10_000;
        let port = u16::try_from(20_000 + (step + start) % 12_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
