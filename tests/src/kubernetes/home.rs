//! Brokers' own pods: in each a container with Kafka that waits, and the agent beside it, which starts it where `guard`
//! says yes.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::kafka::{BROKERS, LOG_DIRS, address, container, format, pod_of, service_of, stateful_set};
use super::standby::{ACCOUNT, MAKE_LEDGER, PAGES, SHARED, nodes};
use super::{AGENT_IMAGE, Kubernetes};
use crate::agent::fence_lab;
use crate::lab::Lab;

/// The pods of all brokers, each with an agent that guards its own broker alone.
pub(super) fn with_agents(lab: &Lab, kubernetes: &Kubernetes, conf: &Path) -> Result<Vec<Value>> {
    super::standby::install(lab, kubernetes)?;
    let template = conf.join("common.properties").display().to_string();
    let nodes = nodes(lab, kubernetes)?;
    let files = (1..=BROKERS)
        .map(|broker| (format!("{}.toml", pod_of(broker)), config(&template, &nodes, broker).into()));
    let configs = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "home" },
        "data": files.collect::<serde_json::Map<String, Value>>(),
    });
    let (mut kafka, mut volumes) = container(conf)?;
    let shared = json!({ "name": "shared", "mountPath": SHARED });
    let entry = format!("{SHARED}/understudy");
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
                // One StatefulSet, and a file of its own for each of its pods.
                { "name": "config", "mountPath": "/etc/understudy/understudy.toml", "subPathExpr": "$(POD).toml" },
                { "name": "state", "mountPath": "/var/lib/understudy" },
                { "name": "logs", "mountPath": LOG_DIRS },
                { "name": "fence", "mountPath": fence, "readOnly": true },
            ],
        })
    };
    volumes.extend([
        json!({ "name": "shared", "emptyDir": { "medium": "Memory" } }),
        json!({ "name": "state", "emptyDir": {} }),
        json!({ "name": "config", "configMap": { "name": "home" } }),
        json!({ "name": "fence", "hostPath": { "path": fence, "type": "Directory" } }),
    ]);
    let pods = stateful_set(json!({
        "serviceAccountName": ACCOUNT,
        "initContainers": [
            ours("entry", &["/busybox", "cp", "/understudy", &entry]),
            ours("ledger", MAKE_LEDGER),
            format(conf)?,
        ],
        "containers": [kafka, ours("understudy", &["/understudy", "run"])],
        "volumes": volumes,
    }));
    Ok(vec![configs, pods])
}

fn config(template: &str, nodes: &str, broker: i32) -> String {
    let quoted = |one: &dyn Fn(i32) -> String| {
        (1..=BROKERS).map(|id| format!("{:?}", one(id))).collect::<Vec<_>>().join(", ")
    };
    let (pod, service, listener) = (pod_of(broker), service_of(broker), address(broker));
    format!(
        r#"mode = "auto"
[agent]
host = "{pod}"
state_dir = "/var/lib/understudy"
listen = "0.0.0.0:{PAGES}"
[cluster]
bootstrap = [{brokers}]
controllers = [{controllers}]
[ledger]
driver = "kubernetes"
[broker_host]
driver = "kubernetes"
template = "{template}"
{nodes}
# Whatever node it is on.
[[host]]
name = "{pod}"
[host.kubernetes]
pod = "{pod}"
[[broker]]
id = {broker}
home = "{pod}"
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
"#,
        brokers = quoted(&|id| address(id).to_string()),
        controllers = quoted(&|id| format!("{id}@{}:9093", address(id).ip())),
    )
}
