//! The control plane, each part a process of one host.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use rcgen::KeyPair;

use super::{Programs, SERVICES, kubeconfig, node};
use crate::host::Host;
use crate::lab::Lab;
use crate::process::Process;

pub(super) const ADDRESS: &str = "10.77.0.40";
pub(super) const PORT: u16 = 6443;
/// The address of the Service `kubernetes`, which pods use.
const SERVICE: &str = "10.96.0.1";
const ISSUER: &str = "https://kubernetes.default.svc";
/// What the stories need of the controllers: each costs memory.
const CONTROLLERS: &str = "daemonset-controller,deployment-controller,disruption-controller,endpointslice-controller,\
    garbage-collector-controller,namespace-controller,node-lifecycle-controller,persistentvolume-binder-controller,\
    persistentvolumeclaim-protection-controller,pod-garbage-collector-controller,replicaset-controller,\
    root-ca-certificate-publisher-controller,serviceaccount-controller,serviceaccount-token-controller,\
    statefulset-controller,taint-eviction-controller";

/// etcd, API server, controller manager and scheduler.
#[derive(Debug)]
pub struct ControlPlane {
    host: Arc<Host>,
    commands: BTreeMap<&'static str, Vec<String>>,
    processes: Mutex<BTreeMap<String, Arc<Process>>>,
}

impl ControlPlane {
    /// Starts etcd and the API server, which answers later.
    pub(super) fn start(lab: &Lab, programs: &Programs, files: &Path, nodes: &[String]) -> Result<Self> {
        write_files(files, nodes)?;
        let host = lab.host("control", ADDRESS)?;
        for number in (1..).take(nodes.len()) {
            let route = ["ip", "route", "add", &node::pods(number), "via", &node::address(number)];
            let output = host.run(&route)?;
            ensure!(output.code == 0, "{route:?}: {}", output.stderr);
        }
        let commands = commands(programs, files, &lab.shared("etcd")?);
        let control = Self { host, commands, processes: Mutex::default() };
        for part in ["etcd", "kube-apiserver"] {
            control.run(part)?;
        }
        Ok(control)
    }

    /// A part's process: `etcd`, `kube-apiserver`, `kube-controller-manager` or `kube-scheduler`.
    ///
    /// # Errors
    /// When it was never started.
    pub fn part(&self, name: &str) -> Result<Arc<Process>> {
        let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        processes.get(name).cloned().with_context(|| format!("{name} was never started"))
    }

    /// Starts a part, for the first time or again.
    ///
    /// # Errors
    /// When it ends at once.
    pub fn run(&self, name: &str) -> Result<()> {
        let command = self.commands.get(name).with_context(|| format!("no part is named {name}"))?;
        let process = self.host.spawn(name, command)?;
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), process);
        Ok(())
    }

    /// Its host, which can lose power, freeze and be cut off.
    #[must_use]
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }
}

/// Keys, tokens and kubeconfigs.
fn write_files(files: &Path, nodes: &[String]) -> Result<()> {
    let names = [ADDRESS, SERVICE, "kubernetes.default.svc"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names)?;
    let authority = files.join("api.crt");
    fs::write(&authority, made.cert.pem())?;
    fs::write(files.join("api.key"), made.signing_key.serialize_pem())?;
    let accounts = KeyPair::generate()?;
    fs::write(files.join("accounts.key"), accounts.serialize_pem())?;
    fs::write(files.join("accounts.pub"), accounts.public_key_pem())?;
    let mut tokens = String::new();
    let mut user = |file: &str, user: &str, groups: &str| {
        let token = format!("token-of-{file}");
        writeln!(tokens, "{token},{user},{user},\"{groups}\"")?;
        kubeconfig(&files.join(format!("{file}.kubeconfig")), &authority, &token)
    };
    user("admin", "admin", "system:masters")?;
    user("kube-controller-manager", "system:kube-controller-manager", "")?;
    user("kube-scheduler", "system:kube-scheduler", "")?;
    user("kube-proxy", "system:kube-proxy", "")?;
    for node in nodes {
        user(node, &format!("system:node:{node}"), "system:nodes")?;
    }
    fs::write(files.join("tokens.csv"), tokens).context("cannot write the API server's tokens")
}

fn commands(programs: &Programs, files: &Path, etcd: &Path) -> BTreeMap<&'static str, Vec<String>> {
    let file = |name: &str| files.join(name).display().to_string();
    let store = "http://127.0.0.1:2379";
    let etcd = [
        format!("--data-dir={}", etcd.display()),
        format!("--listen-client-urls={store}"),
        format!("--advertise-client-urls={store}"),
        // What a story writes need not outlive the machine.
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ];
    let api = [
        format!("--etcd-servers={store}"),
        format!("--bind-address={ADDRESS}"),
        format!("--advertise-address={ADDRESS}"),
        format!("--secure-port={PORT}"),
        format!("--tls-cert-file={}", file("api.crt")),
        format!("--tls-private-key-file={}", file("api.key")),
        format!("--token-auth-file={}", file("tokens.csv")),
        format!("--service-account-key-file={}", file("accounts.pub")),
        format!("--service-account-signing-key-file={}", file("accounts.key")),
        format!("--service-account-issuer={ISSUER}"),
        "--authorization-mode=Node,RBAC".to_owned(),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--allow-privileged=true".to_owned(),
        // Nobody resolves the names of nodes.
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
    ];
    let asks = |name: &str| {
        let config = file(&format!("{name}.kubeconfig"));
        [
            format!("--kubeconfig={config}"),
            format!("--authentication-kubeconfig={config}"),
            format!("--authorization-kubeconfig={config}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--cert-dir=/srv/local".to_owned(),
            "--leader-elect=false".to_owned(),
        ]
    };
    let mut controllers = asks("kube-controller-manager").to_vec();
    controllers.extend([
        format!("--controllers={CONTROLLERS}"),
        format!("--root-ca-file={}", file("api.crt")),
        format!("--service-account-private-key-file={}", file("accounts.key")),
        "--use-service-account-credentials=true".to_owned(),
    ]);
    let all = [
        ("etcd", etcd.to_vec()),
        ("kube-apiserver", api.to_vec()),
        ("kube-controller-manager", controllers),
        ("kube-scheduler", asks("kube-scheduler").to_vec()),
    ];
    all.into_iter().map(|(name, rest)| (name, [vec![programs.path(name)], rest].concat())).collect()
}
