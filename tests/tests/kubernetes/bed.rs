//! The tier's own parts: nodes, pods, their network, and what is left of them.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::kubernetes::{IMAGE, Kubernetes};
use e2e::{Lab, eventually, story};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);
const PORT: u16 = 8080;
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 2, 1);

/// A pod of node `number` that answers with the node's name.
fn pod(number: u8) -> Value {
    let serve = format!(
        "/busybox mkdir /tmp/www; echo node-{number} >/tmp/www/name; exec /busybox httpd -f -p {PORT} -h /tmp/www"
    );
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("web-{number}"), "labels": { "app": "web" } },
        "spec": {
            "nodeSelector": { "kubernetes.io/hostname": format!("node-{number}") },
            "containers": [{
                "name": "web", "image": IMAGE, "imagePullPolicy": "Never",
                "command": ["/busybox", "sh", "-c", serve],
                "readinessProbe": { "tcpSocket": { "port": PORT }, "periodSeconds": 1 },
            }],
        },
    })
}

/// What is answered to the bed at `address`.
fn ask(address: Ipv4Addr) -> Result<String> {
    let (code, body) = e2e::get(SocketAddr::from((address, PORT)), "/name", Duration::from_secs(1))?;
    ensure!(code == 200, "{address} answers {code}");
    Ok(body.trim().to_owned())
}

/// The machine's own settings that a kubelet would change.
fn tunables() -> Result<Vec<String>> {
    let paths = ["vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"];
    paths.into_iter().map(|path| Ok(fs::read_to_string(Path::new("/proc/sys").join(path))?)).collect()
}

#[test]
fn three_nodes_run_pods_and_one_loses_power() {
    story("three_nodes_run_pods_and_one_loses_power", |lab| {
        let before = tunables()?;
        let kubernetes = Kubernetes::start(lab, 3)?;
        let cgroups: Vec<_> = kubernetes.nodes().iter().map(|node| node.cgroup().to_owned()).collect();
        pods_reach_each_other(lab, &kubernetes)?;
        a_node_loses_power(lab, &kubernetes)?;
        drop(kubernetes);
        ensure!(tunables()? == before, "the machine's own settings were changed");
        for cgroup in cgroups.iter().map(|cgroup| cgroup.trim_start_matches('/')) {
            let left =
                fs::read_dir("/sys/fs/cgroup")?.flatten().find(|entry| entry.path().join(cgroup).exists());
            ensure!(left.is_none() && !Path::new("/sys/fs/cgroup").join(cgroup).exists(), "{cgroup} is left");
        }
        Ok(())
    });
}

fn pods_reach_each_other(lab: &Lab, kubernetes: &Kubernetes) -> Result<()> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "clusterIP": SERVICE, "selector": { "app": "web" }, "ports": [{ "port": PORT }] },
    });
    let begin = Instant::now();
    kubernetes.apply(&[pod(1), pod(2), pod(3), service])?;
    for number in 1..=3 {
        let pod = kubernetes.wait_pod(&format!("web-{number}"), SOON)?;
        ensure!(pod.node() == format!("node-{number}") && ask(pod.address()?)? == pod.node());
    }
    lab.note(format!("three pods are ready after {:.1} s", begin.elapsed().as_secs_f64()));
    eventually("the Service's endpoints", SOON, || {
        let endpoints = kubernetes.endpoints("web")?;
        ensure!(endpoints.len() == 3, "{endpoints:?}");
        Ok(())
    })?;
    // From the bed, and from a pod: whoever is behind the Service answers, in the end each.
    let mut seen = std::collections::BTreeSet::new();
    eventually("each pod to answer for the Service", SOON, || {
        seen.insert(ask(SERVICE)?);
        ensure!(seen.len() == 3, "{seen:?} have answered");
        Ok(())
    })?;
    let address = kubernetes.pod("web-3")?.context("no pod web-3")?.address()?;
    for target in [address, SERVICE] {
        let url = format!("http://{target}:{PORT}/name");
        let said = kubernetes.kubectl(&["exec", "web-1", "--", "/busybox", "wget", "-qO-", &url])?;
        ensure!(said.starts_with("node-"), "{target} answers a pod with {said:?}");
    }
    Ok(())
}

fn a_node_loses_power(lab: &Lab, kubernetes: &Kubernetes) -> Result<()> {
    let node = kubernetes.node("node-2")?;
    let victim = kubernetes.pod("web-2")?.context("no pod web-2")?;
    let address = victim.address()?;
    node.host().power_off()?;
    ensure!(ask(address).is_err(), "a pod answers from a node without power");
    // Its control plane does not know yet.
    ensure!(kubernetes.pod("web-2")?.is_some_and(|pod| pod.is_ready()), "it was told");
    ensure!(ask(kubernetes.pod("web-3")?.context("no pod web-3")?.address()?)? == "node-3");
    let begin = Instant::now();
    node.host().power_on()?;
    node.boot()?;
    eventually("the pod to answer again", SOON, || {
        let pod = kubernetes.pod("web-2")?.context("there is none")?;
        ensure!(pod.uid() == victim.uid(), "it is another pod");
        ensure!(ask(pod.address()?)? == "node-2");
        Ok(())
    })?;
    lab.note(format!("its pod answers {:.1} s after the power came", begin.elapsed().as_secs_f64()));
    Ok(())
}
