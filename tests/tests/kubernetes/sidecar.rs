//! What a sidecar stands on: the agent in a pod, beside a container that it shares a volume with, and a Service that
//! follows a label.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::kubernetes::{AGENT_IMAGE, IMAGE, Kubernetes};
use e2e::{Lab, eventually, story};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);
const PORT: u16 = 8080;
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 2, 1);
const DEFINITIONS: &str = include_str!("../../../deploy/kubernetes/crd.yaml");
const RIGHTS: &str = include_str!("../../../deploy/kubernetes/ledger-rbac.yaml");
/// No kubeconfig and no namespace: both are the pod's own.
const CONFIG: &str = r#"[agent]
host = "kafka-1"
[ledger]
driver = "kubernetes"
[[broker]]
id = 1
home = "kafka-1"
"#;
/// The agent's container: what it says, and how it ends, is left in the shared volume.
const SIDECAR: &str = "/understudy --config /etc/understudy/understudy.toml ledger init >/shared/part 2>&1
/busybox echo $? >/shared/code
/busybox mv /shared/part /shared/said
exec /busybox sleep 3600";
/// The other one waits for that, and serves it.
const BESIDE: &str = "until [ -e /shared/said ]; do /busybox sleep 0.1; done
exec /busybox httpd -f -p 8080 -h /shared";

/// A pod whose agent makes the ledger as `account`.
fn pod(account: &str) -> Value {
    let shared = json!({ "name": "shared", "mountPath": "/shared" });
    let container = |name: &str, image: &str, script: &str| {
        json!({
            "name": name, "image": image, "imagePullPolicy": "Never",
            "command": ["/busybox", "sh", "-c", script], "volumeMounts": [shared],
        })
    };
    let mut beside = container("kafka", IMAGE, BESIDE);
    beside["readinessProbe"] = json!({ "tcpSocket": { "port": PORT }, "periodSeconds": 1 });
    let mut sidecar = container("sidecar", AGENT_IMAGE, SIDECAR);
    sidecar["volumeMounts"] = json!([shared, { "name": "config", "mountPath": "/etc/understudy" }]);
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("as-{account}") },
        "spec": {
            "serviceAccountName": account, "terminationGracePeriodSeconds": 0,
            "containers": [beside, sidecar],
            "volumes": [
                { "name": "shared", "emptyDir": {} },
                { "name": "config", "configMap": { "name": "understudy" } },
            ],
        },
    })
}

#[test]
fn an_agent_in_a_pod_makes_the_ledger_with_its_own_account() {
    story("an_agent_in_a_pod_makes_the_ledger_with_its_own_account", |lab| {
        let kubernetes = Kubernetes::start(lab, 1)?;
        kubernetes.add_agent(lab)?;
        install(lab, &kubernetes)?;

        // Who has no right to it makes none.
        let (code, said) = run_as(&kubernetes, "default")?;
        ensure!(code != "0" && said.contains("may not get ledgercells"), "it ends with {code}: {said}");
        let cells = cells(&kubernetes)?;
        ensure!(cells.is_empty(), "the API server has {cells:?}");

        let (code, said) = run_as(&kubernetes, "understudy")?;
        ensure!(code == "0", "it ends with {code}: {said}");
        identity_is(&kubernetes, &said)?;
        lab.note(said.trim());
        a_service_follows_its_label(&kubernetes)
    });
}

/// Definitions, rights and the agents' configuration, as a person would.
fn install(lab: &Lab, kubernetes: &Kubernetes) -> Result<()> {
    let folder = lab.kept("manifests")?;
    let rights = RIGHTS.replace("namespace: kafka", "namespace: default");
    for (name, text) in [("crd.yaml", DEFINITIONS), ("ledger-rbac.yaml", &rights)] {
        let file = folder.join(name);
        std::fs::write(&file, text)?;
        kubernetes.kubectl(&["apply", "-f", &file.display().to_string()])?;
    }
    // The API server makes its storage for them a moment after it has accepted them.
    eventually("the definitions to be served", SOON, || cells(kubernetes))?;
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "understudy" },
        "data": { "understudy.toml": CONFIG },
    });
    kubernetes.apply(&[config])
}

/// What the agent's exit code is in a pod of `account`, and what it says.
fn run_as(kubernetes: &Kubernetes, account: &str) -> Result<(String, String)> {
    kubernetes.apply(&[pod(account)])?;
    let address = kubernetes.wait_pod(&format!("as-{account}"), SOON)?.address()?;
    Ok((ask(address, "/code")?.trim().to_owned(), ask(address, "/said")?))
}

fn ask(address: Ipv4Addr, path: &str) -> Result<String> {
    let (code, body) = e2e::get(SocketAddr::from((address, PORT)), path, Duration::from_secs(2))?;
    ensure!(code == 200, "{address} answers {code}");
    Ok(body)
}

/// The ledger's small texts, as the API server has them.
fn cells(kubernetes: &Kubernetes) -> Result<Vec<Value>> {
    let list = kubernetes.get("/apis/understudy.dev/v1/namespaces/default/ledgercells")?;
    list["items"].as_array().cloned().context("no list")
}

/// The API server has one identity of a ledger, and it is the one that the agent told.
fn identity_is(kubernetes: &Kubernetes, said: &str) -> Result<()> {
    let cells = cells(kubernetes)?;
    let named = |cell: &&Value| cell["metadata"]["name"] == "understudy.cell.identity";
    let cell = cells.iter().find(named).with_context(|| format!("none in {cells:?}"))?;
    ensure!(cell["spec"]["version"] == 1, "{cell}");
    let text = cell["spec"]["text"].as_str().context("it has no text")?;
    let identity: Value = serde_json::from_str(text).with_context(|| format!("no JSON: {text}"))?;
    let id = identity["id"].as_str().with_context(|| format!("no id: {text}"))?;
    ensure!(identity["by"] == "kafka-1" && said.contains(id), "{text}, and the agent told: {said}");
    Ok(())
}

/// The address stays while another pod gets the label.
fn a_service_follows_its_label(kubernetes: &Kubernetes) -> Result<()> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "broker-1" },
        "spec": { "clusterIP": SERVICE, "selector": { "broker": "1" }, "ports": [{ "port": PORT }] },
    });
    kubernetes.apply(&[service])?;
    ensure!(ask(SERVICE, "/code").is_err(), "nobody has the label, and somebody answers");
    let mut before: Option<&str> = None;
    for pod in ["as-default", "as-understudy"] {
        if let Some(before) = before {
            kubernetes.kubectl(&["label", "pod", before, "broker-"])?;
        }
        kubernetes.kubectl(&["label", "pod", pod, "broker=1"])?;
        before = Some(pod);
        let address = kubernetes.pod(pod)?.context("no pod")?.address()?;
        eventually(&format!("{pod} to answer for the Service"), SOON, || {
            let endpoints = kubernetes.endpoints("broker-1")?;
            ensure!(endpoints == [address], "its endpoints are {endpoints:?}");
            let (here, there) = (ask(address, "/said")?, ask(SERVICE, "/said")?);
            ensure!(here == there, "it answers {there}");
            Ok(())
        })?;
    }
    Ok(())
}
