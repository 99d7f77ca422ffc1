//! A standby pod: a container with the bed's Kafka that waits, and the agent beside it.
//!
//! Kafka's image is that of the brokers, unchanged: an init container puts the entry point onto a volume.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kafka::{BROKERS, LOG_DIRS, address, common_properties, container, pod_of, service_of};
use super::{AGENT_IMAGE, Kubernetes, Pod};
use crate::agent::fence_lab;
use crate::lab::Lab;

/// The name of the pod, and of the host that it is.
pub const STANDBY: &str = "standby-0";
/// Who the agents are to the API server.
pub const ACCOUNT: &str = "understudy";
const MANIFESTS: [(&str, &str); 7] = [
    ("crd.yaml", include_str!("../../../deploy/kubernetes/crd.yaml")),
    ("ledger-rbac.yaml", include_str!("../../../deploy/kubernetes/ledger-rbac.yaml")),
    ("pod-rbac.yaml", include_str!("../../../deploy/kubernetes/pod-rbac.yaml")),
    ("taint-rbac.yaml", include_str!("../../../deploy/kubernetes/taint-rbac.yaml")),
    ("service-rbac.yaml", include_str!("../../../deploy/kubernetes/service-rbac.yaml")),
    ("node-rbac.yaml", include_str!("../../../deploy/kubernetes/node-rbac.yaml")),
    ("rescheduling-rbac.yaml", include_str!("../../../deploy/kubernetes/rescheduling-rbac.yaml")),
];
/// Where an agent shows its pages, in its pod.
pub(super) const PAGES: u16 = 9095;
/// How long a page may take.
const SOON: Duration = Duration::from_secs(5);
/// What both containers have, and nobody else.
const SHARED: &str = "/run/understudy";
/// Makes the ledger, or finds that another pod has made it.
const MAKE_LEDGER: &[&str] = &["/busybox", "sh", "-c", "/understudy ledger init || /understudy ledger show"];
const LEDGER: &str = "/apis/understudy.dev/v1/namespaces/default/ledgerjournals";

/// Installs definitions and rights, and starts the pod on `node`. It may take `broker` over, whose pod is `owner`: that
/// pod's node is fenced by the lab's power switch.
///
/// # Errors
/// When the API server refuses something, or a program is not built.
pub fn start(lab: &Lab, kubernetes: &Kubernetes, node: &str, broker: i32, owner: &Pod) -> Result<()> {
    install(lab, kubernetes)?;
    let conf = lab.kept("conf")?;
    std::fs::write(conf.join("standby.properties"), common_properties())?;
    let config = config(lab, &conf.join("standby.properties").display().to_string(), broker, &owner.node())?;
    kubernetes.apply(&[config_map("understudy", &config), pod(&conf, node)?])
}

/// Installs definitions and rights, and starts an agent on each of `nodes` that has `broker` rescheduled, whose pod a
/// StatefulSet makes. The lab's power switch fences the nodes. Returns the names of the agents' pods.
///
/// # Errors
/// When the API server refuses something, or a program is not built.
pub fn watch(lab: &Lab, kubernetes: &Kubernetes, nodes: &[String], broker: i32) -> Result<Vec<String>> {
    install(lab, kubernetes)?;
    let mut names = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        let name = format!("watch-{number}");
        let config = rescheduling(lab, kubernetes, &name, broker)?;
        kubernetes.apply(&[config_map(&name, &config), watcher(&name, node, number == 0)?])?;
        // The first one makes the ledger.
        kubernetes.wait_pod(&name, super::UP)?;
        names.push(name);
    }
    Ok(names)
}

/// What the agent of a pod shows of itself.
///
/// # Errors
/// When it does not answer.
pub fn status(kubernetes: &Kubernetes, pod: &str) -> Result<Value> {
    Ok(serde_json::from_str(&page(kubernetes, pod, "/v1/status")?)?)
}

/// A metric of the agent of a pod, whose line begins so.
///
/// # Errors
/// When it does not answer, or has no such metric.
pub fn metric(kubernetes: &Kubernetes, pod: &str, series: &str) -> Result<f64> {
    let page = page(kubernetes, pod, "/metrics")?;
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.with_context(|| format!("{pod} has no {series}"))
}

/// What a command of the agent's says, in its pod.
///
/// # Errors
/// When it fails.
pub fn cli(kubernetes: &Kubernetes, pod: &str, arguments: &[&str]) -> Result<String> {
    kubernetes.kubectl(&[&["exec", pod, "-c", "understudy", "--", "/understudy"], arguments].concat())
}

fn page(kubernetes: &Kubernetes, pod: &str, path: &str) -> Result<String> {
    let pod = kubernetes.pod(pod)?.context("no pod")?;
    let at = (pod.address()?, PAGES);
    let page = kubernetes.node(&pod.node())?.host().within_network(|| {
        let mut stream = TcpStream::connect_timeout(&at.into(), SOON)?;
        stream.set_read_timeout(Some(SOON))?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    })?;
    let (_, body) = page.split_once("\r\n\r\n").context("no page")?;
    Ok(body.to_owned())
}

pub(super) fn config_map(name: &str, config: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
        "data": { "understudy.toml": config },
    })
}

pub(super) fn install(lab: &Lab, kubernetes: &Kubernetes) -> Result<()> {
    let folder = lab.kept("manifests")?;
    for (name, text) in MANIFESTS {
        let file = folder.join(name);
        std::fs::write(&file, text.replace("namespace: kafka", "namespace: default"))?;
        kubernetes.kubectl(&["apply", "-f", &file.display().to_string()])?;
    }
    // The API server makes its storage for them a moment after it has accepted them.
    crate::eventually("the definitions to be served", super::UP, || kubernetes.get(LEDGER)).map(drop)
}

/// The takeovers of a broker, as the API server has them: the outcome of each in words of the ledger.
///
/// # Errors
/// When the API does not answer.
pub fn journals(kubernetes: &Kubernetes) -> Result<Vec<Value>> {
    let list = kubernetes.get(LEDGER)?;
    list["items"].as_array().cloned().context("no list")
}

/// What the ledger has of the takeover of `broker`: its records, of one takeover at most.
///
/// # Errors
/// When the API does not answer, or there is more than one takeover.
pub fn records(kubernetes: &Kubernetes, broker: i32) -> Result<Vec<Value>> {
    let broker = broker.to_string();
    let all = journals(kubernetes)?;
    let is_its = |one: &&Value| one["metadata"]["labels"]["understudy.dev/broker"] == broker;
    let its: Vec<&Value> = all.iter().filter(is_its).collect();
    ensure!(its.len() <= 1, "{} takeovers", its.len());
    let mut records = Vec::new();
    for line in its.iter().flat_map(|one| one["spec"]["log"].as_str()).flat_map(str::lines) {
        let (_, batch) = line.split_once(' ').context("a line without a mark")?;
        records.extend(serde_json::from_str::<Vec<Value>>(batch)?);
    }
    Ok(records)
}

fn config(lab: &Lab, template: &str, broker: i32, node: &str) -> Result<String> {
    let (owner, section) = (pod_of(broker), broker_of(broker, STANDBY));
    let (agent, switch) = (fence_lab()?, lab.switch().address());
    let (ip, port): (&Ipv4Addr, u16) = (switch.ip(), switch.port());
    Ok(format!(
        r#"mode = "auto"
[policy]
host_down_after = "1500ms"
hung_after = "30s"
process_down_after = "60s"
[agent]
host = "{STANDBY}"
state_dir = "/var/lib/understudy"
listen = "0.0.0.0:{PAGES}"
{cluster}[broker_host]
driver = "kubernetes"
template = "{template}"
[[host]]
name = "{owner}"
[[host.fence]]
driver = "fence_agent"
agent = "{agent}"
options = {{ ip = "{ip}", ipport = "{port}", plug = "{node}" }}
[host.kubernetes]
node = "{node}"
pod = "{owner}"
{section}"#,
        cluster = cluster(),
        agent = agent.display(),
    ))
}

/// The cluster and the ledger, for any agent.
pub(super) fn cluster() -> String {
    let quoted = |one: &dyn Fn(i32) -> String| {
        (1..=BROKERS).map(|id| format!("{:?}", one(id))).collect::<Vec<_>>().join(", ")
    };
    format!(
        r#"[cluster]
bootstrap = [{brokers}]
controllers = [{controllers}]
[ledger]
driver = "kubernetes"
"#,
        brokers = quoted(&|id| address(id).to_string()),
        controllers = quoted(&|id| format!("{id}@{}:9093", address(id).ip())),
    )
}

/// A broker that `pod` may run.
pub(super) fn broker_of(broker: i32, pod: &str) -> String {
    let (home, service, listener) = (pod_of(broker), service_of(broker), address(broker));
    format!(
        r#"[[broker]]
id = {broker}
home = "{home}"
listener = "{listener}"
log_dirs = ["{LOG_DIRS}/broker-{broker}"]
# The bed has no names, and an address that is a Service's cannot be bound.
properties = {{ listeners = "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093" }}
[broker.address]
driver = "kubernetes_service"
service = "{service}"
pod = "{pod}"
[broker.storage]
driver = "mounted"
local = true
"#
    )
}

fn rescheduling(lab: &Lab, kubernetes: &Kubernetes, here: &str, broker: i32) -> Result<String> {
    let (pod, listener, nodes) = (pod_of(broker), address(broker), nodes(lab, kubernetes)?);
    Ok(format!(
        r#"mode = "auto"
[policy]
host_down_after = "1500ms"
hung_after = "30s"
process_down_after = "60s"
[agent]
host = "{here}"
state_dir = "/var/lib/understudy"
listen = "0.0.0.0:{PAGES}"
{cluster}[broker_host]
driver = "rescheduling"
{nodes}
[[host]]
name = "{pod}"
[host.kubernetes]
pod = "{pod}"
[[broker]]
id = {broker}
home = "{pod}"
listener = "{listener}"
"#,
        cluster = cluster(),
    ))
}

/// Every node, with the lab's power switch for its fence.
pub(super) fn nodes(lab: &Lab, kubernetes: &Kubernetes) -> Result<String> {
    let (agent, switch) = (fence_lab()?, lab.switch().address());
    let (ip, port): (&Ipv4Addr, u16) = (switch.ip(), switch.port());
    let nodes = kubernetes.nodes().iter().map(|node| {
        format!(
            r#"[[node]]
name = "{node}"
[[node.fence]]
driver = "fence_agent"
agent = "{agent}"
options = {{ ip = "{ip}", ipport = "{port}", plug = "{node}" }}
"#,
            node = node.name(),
            agent = agent.display(),
        )
    });
    Ok(nodes.collect())
}

/// A pod with an agent alone.
fn watcher(name: &str, node: &str, makes_ledger: bool) -> Result<Value> {
    let fence = fence_lab()?;
    let fence = fence.parent().context("a program in no directory")?;
    let ours = |container: &str, command: &[&str]| {
        json!({
            "name": container, "image": AGENT_IMAGE, "imagePullPolicy": "Never", "command": command,
            "volumeMounts": [
                { "name": "config", "mountPath": "/etc/understudy" },
                { "name": "state", "mountPath": "/var/lib/understudy" },
                { "name": "fence", "mountPath": fence, "readOnly": true },
            ],
        })
    };
    let init: Vec<Value> =
        makes_ledger.then(|| ours("ledger", &["/understudy", "ledger", "init"])).into_iter().collect();
    Ok(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "serviceAccountName": ACCOUNT, "enableServiceLinks": false,
            "nodeSelector": { "kubernetes.io/hostname": node },
            "initContainers": init,
            "containers": [ours("understudy", &["/understudy", "run"])],
            "volumes": [
                { "name": "state", "emptyDir": {} },
                { "name": "config", "configMap": { "name": name } },
                { "name": "fence", "hostPath": { "path": fence, "type": "Directory" } },
            ],
        },
    }))
}

fn pod(conf: &Path, node: &str) -> Result<Value> {
    let config = json!({ "name": "config", "mountPath": "/etc/understudy" });
    let mut spec = waiting(conf, &config, "understudy")?;
    spec["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    Ok(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": STANDBY, "labels": { "statefulset.kubernetes.io/pod-name": STANDBY } },
        "spec": spec,
    }))
}

/// A pod whose Kafka waits for the agent beside it, which has `config` mounted, of the ConfigMap `map`.
pub(super) fn waiting(conf: &Path, config: &Value, map: &str) -> Result<Value> {
    let (mut kafka, mut volumes) = container(conf)?;
    let shared = json!({ "name": "shared", "mountPath": SHARED });
    let entry = format!("{SHARED}/understudy");
    // What a person would have had as its command comes after the entry point.
    kafka["command"] = json!([entry, "enter", "--"]);
    kafka["args"] = json!(["/bin/sh", "-c", "exec $KAFKA kafka.Kafka {properties}"]);
    kafka["volumeMounts"].as_array_mut().context("it mounts nothing")?.push(shared.clone());
    let fence = fence_lab()?;
    let fence = fence.parent().context("a program in no directory")?;
    let ours = |name: &str, command: &[&str]| {
        json!({
            "name": name, "image": AGENT_IMAGE, "imagePullPolicy": "Never", "command": command,
            "env": [{ "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
            "volumeMounts": [
                shared,
                config,
                { "name": "state", "mountPath": "/var/lib/understudy" },
                { "name": "logs", "mountPath": LOG_DIRS },
                { "name": "fence", "mountPath": fence, "readOnly": true },
            ],
        })
    };
    volumes.extend([
        json!({ "name": "shared", "emptyDir": { "medium": "Memory" } }),
        json!({ "name": "state", "emptyDir": {} }),
        json!({ "name": "config", "configMap": { "name": map } }),
        json!({ "name": "fence", "hostPath": { "path": fence, "type": "Directory" } }),
    ]);
    Ok(json!({
        "serviceAccountName": ACCOUNT, "enableServiceLinks": false,
        "initContainers": [
            ours("entry", &["/busybox", "cp", "/understudy", &entry]),
            ours("ledger", MAKE_LEDGER),
        ],
        "containers": [kafka, ours("understudy", &["/understudy", "run"])],
        "volumes": volumes,
    }))
}
