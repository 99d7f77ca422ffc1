//! Brokers' own pods: in each a container with Kafka that waits, and the agent beside it, which starts it where `guard`
//! says yes.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Kubernetes;
use super::kafka::{BROKERS, format, pod_of, stateful_set};
use super::standby::{PAGES, broker_of, cluster, nodes, waiting};
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
    // One StatefulSet, and a file of its own for each of its pods.
    let config = json!({
        "name": "config", "mountPath": "/etc/understudy/understudy.toml", "subPathExpr": "$(POD).toml",
    });
    let mut spec = waiting(conf, &config, "home")?;
    spec["initContainers"].as_array_mut().context("there are none")?.push(format(conf)?);
    Ok(vec![configs, stateful_set(spec)])
}

fn config(template: &str, nodes: &str, broker: i32) -> String {
    let (pod, cluster) = (pod_of(broker), cluster());
    let section = broker_of(broker, &pod);
    format!(
        r#"mode = "auto"
[agent]
host = "{pod}"
state_dir = "/var/lib/understudy"
listen = "0.0.0.0:{PAGES}"
{cluster}
[broker_host]
driver = "kubernetes"
template = "{template}"
{nodes}
# Whatever node it is on.
[[host]]
name = "{pod}"
[host.kubernetes]
pod = "{pod}"
{section}"#
    )
}
