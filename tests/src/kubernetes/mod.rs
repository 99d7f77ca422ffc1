//! A Kubernetes of real parts: etcd, API server, controller manager and scheduler on a host of their own, and nodes,
//! each a [`Host`](crate::Host) with its own kubelet, containerd and proxy. It takes root.
//!
//! | where | addresses |
//! |---|---|
//! | control plane | host `control`, 10.77.0.40 |
//! | nodes | hosts `node-1`, `node-2`, …: 10.77.0.51, 10.77.0.52, … |
//! | pods | 10.244.N.0/24 on node N, routed |
//! | Services | 10.96.0.0/16, by the proxy of each node, and by one for the bed itself |
//!
//! All settings that decide how long Kubernetes takes for something are its defaults.

mod cgroups;
mod chart;
mod control;
mod home;
mod image;
pub mod kafka;
mod node;
pub mod standby;
pub mod takeover;

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

pub use chart::{CHART, helm};
pub use image::{AGENT_IMAGE, SHIPPED_IMAGE};
pub use node::Node;

use crate::lab::{HUB, Lab};
use crate::unjudged::SetUp;
use crate::{eventually, http, shell};
use cgroups::Cgroups;
use control::ControlPlane;

/// Names the directory with the programs.
const BED: &str = "UNDERSTUDY_KUBERNETES_BED";
/// The bed's way to the API: it speaks plain HTTP to whoever is in the bed.
const API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);
/// How long control plane and nodes may take to come up: seconds where the machine is quiet.
const UP: Duration = Duration::from_secs(240);
/// An image of the bed: the userland of this machine, which pods mount read-only, and a busybox.
pub const IMAGE: &str = "understudy.test/userland:1";
/// All Services.
pub(crate) const SERVICES: &str = "10.96.0.0/16";
/// All pods.
pub(crate) const PODS: &str = "10.244.0.0/16";

/// The programs that `cargo xtask setup --tier kubernetes` built.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    home: PathBuf,
}

impl Programs {
    fn find() -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "kubelet and containerd take root");
        let home = env::var_os(BED).map(PathBuf::from).with_context(|| {
            format!("{BED} is not set: run the stories through `cargo xtask test --tier kubernetes`, which builds it")
        })?;
        Ok(Self { home })
    }

    /// The path of one.
    pub(crate) fn path(&self, name: &str) -> String {
        self.home.join("bin").join(name).display().to_string()
    }

    /// Where the CNI plugins are.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.home.join("cni")
    }

    /// A search path on which they come first.
    pub(crate) fn search_path(&self) -> String {
        let rest = env::var("PATH").unwrap_or_default();
        format!("{}:{rest}", self.home.join("bin").display())
    }
}

/// A running Kubernetes. Its nodes lose power when it is dropped, and their cgroups are removed.
#[derive(Debug)]
pub struct Kubernetes {
    programs: Programs,
    files: PathBuf,
    control: ControlPlane,
    nodes: Vec<Arc<Node>>,
    /// For requests of the bed, and for its traffic to Services; they end with the story.
    helpers: Vec<Child>,
    cgroups: Cgroups,
}

impl Kubernetes {
    /// Brings one up with so many nodes, and waits until all are ready.
    ///
    /// # Errors
    /// When its programs are not there, we are not root, or it is not up in four minutes.
    pub fn start(lab: &Lab, nodes: u8) -> Result<Self> {
        Self::bring_up(lab, nodes).context(SetUp)
    }

    fn bring_up(lab: &Lab, count: u8) -> Result<Self> {
        let programs = Programs::find()?;
        let files = lab.kept("kubernetes")?;
        let names: Vec<String> = (1..=count).map(|n| format!("node-{n}")).collect();
        let control = ControlPlane::start(lab, &programs, &files, &names)?;
        let cgroups = Cgroups::open(lab)?;
        let mut kubernetes =
            Self { programs, files, control, nodes: Vec::new(), helpers: Vec::new(), cgroups };
        shell::sh(&format!("ip route add {SERVICES} dev {} src {HUB}", crate::host::BRIDGE))?;
        for number in 1..=count {
            shell::sh(&format!("ip route add {} via {}", node::pods(number), node::address(number)))?;
            let (programs, files) = (&kubernetes.programs, &kubernetes.files);
            let node = Node::prepare(lab, programs, files, &kubernetes.cgroups, (number, count))?;
            kubernetes.nodes.push(Arc::new(node));
        }
        kubernetes.help(&["proxy", "--port=8001", "--disable-filter"], "kubectl")?;
        eventually("the API server to be ready", UP, || kubernetes.is_served())?;
        lab.note("the API server is ready");
        kubernetes.control.run("kube-controller-manager")?;
        kubernetes.control.run("kube-scheduler")?;
        kubernetes.nodes.iter().try_for_each(|node| node.boot())?;
        // Before there is one, no pod is accepted.
        let account = "/api/v1/namespaces/default/serviceaccounts/default";
        eventually("the account of pods", UP, || kubernetes.get(account))?;
        for node in &kubernetes.nodes {
            kubernetes.wait_condition(node.name(), "True", UP)?;
        }
        lab.note(format!("{count} nodes are ready"));
        // The proxy of the bed's own traffic asks as the one of the first node.
        let config = kubernetes.files.join("kube-proxy-node-1.json").display().to_string();
        kubernetes.help(&["--config", &config], "kube-proxy")?;
        Ok(kubernetes)
    }

    /// It has its own roles too, without which nobody else of the control plane may ask it.
    fn is_served(&self) -> Result<()> {
        let process = self.control.part("kube-apiserver")?;
        ensure!(process.is_running(), "it has ended:\n{}", process.last_words());
        let (code, body) = http::get(API, "/readyz", Duration::from_secs(5))?;
        ensure!(code == 200, "it answers {code}: {body}");
        Ok(())
    }

    /// Runs a program beside the story until that ends.
    fn help(&mut self, arguments: &[&str], program: &str) -> Result<()> {
        let log = std::fs::File::create(self.files.join(format!("bed-{program}.log")))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", &self.programs.path(program)])
            .args(arguments)
            .env("KUBECONFIG", self.files.join("admin.kubeconfig"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {program}"))?;
        self.helpers.push(child);
        Ok(())
    }

    /// Gives every node the image [`AGENT_IMAGE`], with the agent that is under test.
    ///
    /// # Errors
    /// When the agent is not built, or a node is off.
    pub fn add_agent(&self, lab: &Lab) -> Result<()> {
        let archive = image::write_agent(&self.programs, &lab.shared("agent-image")?).context(SetUp)?;
        self.nodes.iter().try_for_each(|node| node.import(&archive))
    }

    /// Gives every node the image [`SHIPPED_IMAGE`]: the agent that is under test, as `cargo xtask image` ships it.
    /// Returns its digest.
    ///
    /// # Errors
    /// When a program is not built, or a node is off.
    pub fn add_shipped(&self, lab: &Lab) -> Result<String> {
        let (archive, digest) = image::write_shipped(&lab.shared("shipped-image")?).context(SetUp)?;
        self.nodes.iter().try_for_each(|node| node.import(&archive))?;
        Ok(digest)
    }

    /// The nodes, in the order of their names.
    #[must_use]
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// The node of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn node(&self, name: &str) -> Result<&Arc<Node>> {
        self.nodes.iter().find(|node| node.name() == name).with_context(|| format!("there is no node {name}"))
    }

    /// The control plane's processes, to be frozen, killed and started again.
    #[must_use]
    pub fn control(&self) -> &ControlPlane {
        &self.control
    }

    /// What the API answers to a GET of `path`.
    ///
    /// # Errors
    /// When it does not answer in five seconds, or refuses.
    pub fn get(&self, path: &str) -> Result<Value> {
        let (code, body) = http::get(API, path, Duration::from_secs(5))?;
        ensure!(code == 200, "GET {path} answers {code}: {body}");
        serde_json::from_str(&body).with_context(|| format!("GET {path}: no JSON"))
    }

    /// Creates or changes objects.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub fn apply(&self, objects: &[Value]) -> Result<()> {
        let file = self.files.join("applied.json");
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        std::fs::write(&file, serde_json::to_vec_pretty(&list)?)?;
        self.kubectl(&["apply", "-f", &file.display().to_string()]).map(drop)
    }

    /// Runs kubectl as an administrator, and returns what it prints.
    ///
    /// # Errors
    /// When it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let config = format!("--kubeconfig={}", self.files.join("admin.kubeconfig").display());
        shell::run(&self.programs.path("kubectl"), [&[config.as_str()], arguments].concat())
    }

    /// Waits until a node's condition `Ready` is `status`: `True`, `False` or `Unknown`.
    ///
    /// # Errors
    /// When it is another after `limit`.
    pub fn wait_condition(&self, node: &str, status: &str, limit: Duration) -> Result<()> {
        eventually(&format!("Ready of {node} to be {status}"), limit, || {
            let seen = self.ready(node)?;
            ensure!(seen == status, "it is {seen}");
            Ok(())
        })
    }

    /// The condition `Ready` of a node.
    ///
    /// # Errors
    /// When the API does not answer, or it has none.
    pub fn ready(&self, node: &str) -> Result<String> {
        let found = self.get(&format!("/api/v1/nodes/{node}"))?;
        let ready = condition(&found).with_context(|| format!("{node} has no condition Ready"))?;
        Ok(ready["status"].as_str().unwrap_or_default().to_owned())
    }

    /// A pod of the namespace `default`; `None` if there is none of this name.
    ///
    /// # Errors
    /// When the API does not answer.
    pub fn pod(&self, name: &str) -> Result<Option<Pod>> {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let (code, body) = http::get(API, &path, Duration::from_secs(5))?;
        match code {
            200 => Ok(Some(Pod(serde_json::from_str(&body)?))),
            404 => Ok(None),
            _ => Err(anyhow!("GET {path} answers {code}: {body}")),
        }
    }

    /// Waits until a pod is ready, and returns it.
    ///
    /// # Errors
    /// How it stands after `limit`.
    pub fn wait_pod(&self, name: &str, limit: Duration) -> Result<Pod> {
        eventually(&format!("pod {name} to be ready"), limit, || {
            let pod = self.pod(name)?.context("there is none")?;
            ensure!(pod.is_ready(), "{}", pod.0["status"]);
            Ok::<_, anyhow::Error>(pod)
        })
    }

    /// The addresses behind a Service of the namespace `default` that are ready.
    ///
    /// # Errors
    /// When the API does not answer.
    pub fn endpoints(&self, service: &str) -> Result<Vec<Ipv4Addr>> {
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name={service}"
        );
        let slices = self.get(&path)?;
        let slices = slices["items"].as_array().into_iter().flatten();
        let endpoints = slices.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true);
        Ok(ready.filter_map(|endpoint| endpoint["addresses"][0].as_str()?.parse().ok()).collect())
    }

    /// Leaves everything that the API has of nodes and pods with the artifacts.
    fn leave(&self) {
        for (name, path) in
            [("nodes", "/api/v1/nodes"), ("pods", "/api/v1/pods"), ("events", "/api/v1/events")]
        {
            // The story fails, or has passed, for another reason.
            if let Ok(found) = self.get(path) {
                let text = serde_json::to_vec_pretty(&found).unwrap_or_default();
                let _ = std::fs::write(self.files.join(format!("{name}.json")), text);
            }
        }
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        self.leave();
        for helper in &mut self.helpers {
            // It may have ended by itself.
            let _ = helper.kill();
            let _ = helper.wait();
        }
        for node in &self.nodes {
            if let Err(error) = node.host().power_off() {
                eprintln!("{} does not go off: {error:#}", node.name());
            }
        }
        if let Err(error) = self.cgroups.remove() {
            eprintln!("not all cgroups of the story could be removed: {error:#}");
        }
    }
}

/// A pod, as the API has it.
#[derive(Debug, Clone)]
pub struct Pod(pub Value);

impl Pod {
    /// The condition `Ready` is `True`.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        condition(&self.0).is_some_and(|condition| condition["status"] == "True")
    }

    /// It is to be deleted, and waits for its node to say that its containers have ended.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.0["metadata"]["deletionTimestamp"].is_string()
    }

    /// What makes it another pod than a later one of the same name.
    #[must_use]
    pub fn uid(&self) -> String {
        self.0["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
    }

    /// The node that it is bound to.
    #[must_use]
    pub fn node(&self) -> String {
        self.0["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()
    }

    /// Its own address.
    ///
    /// # Errors
    /// When it has none.
    pub fn address(&self) -> Result<Ipv4Addr> {
        let address = self.0["status"]["podIP"].as_str().context("the pod has no address")?;
        address.parse().with_context(|| format!("{address:?} is no address"))
    }
}

fn condition(object: &Value) -> Option<&Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == "Ready")
}

/// Writes a kubeconfig for whoever has `token`.
fn kubeconfig(path: &Path, authority: &Path, token: &str) -> Result<()> {
    let cluster = json!({
        "server": format!("https://{}:{}", control::ADDRESS, control::PORT),
        "certificate-authority": authority,
    });
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{ "name": "lab", "cluster": cluster }],
        "users": [{ "name": "lab", "user": { "token": token } }],
        "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": "lab", "namespace": "default" } }],
    });
    std::fs::write(path, config.to_string()).with_context(|| format!("cannot write {}", path.display()))
}
