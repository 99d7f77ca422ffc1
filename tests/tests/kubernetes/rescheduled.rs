//! A broker's node loses power, and its StatefulSet makes the pod anew on another node: at once, for an agent in the
//! cluster has proven that the node is off, and has deleted the pod by force.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::history::WriteSpec;
use e2e::kafka::Standing;
use e2e::kubernetes::kafka::{KubeKafka, pod_of};
use e2e::kubernetes::{Kubernetes, standby};
use e2e::{Lab, eventually, story_within};

use crate::standby::{LIMIT, PATIENCE, VICTIM};

#[test]
fn a_pod_is_made_anew_elsewhere_once_its_node_is_proven_to_be_off() {
    story_within("a_pod_is_made_anew_elsewhere_once_its_node_is_proven_to_be_off", LIMIT, |lab| {
        let kubernetes = Kubernetes::start(lab, 3)?;
        kubernetes.add_agent(lab)?;
        let kafka = KubeKafka::start(lab, &kubernetes)?;
        kafka.create_topic("t", 6)?;
        let writer = kafka.write(WriteSpec::steady("t", 6, 100))?;
        let before = kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
        let lost = before.node();
        let others: Vec<String> = kubernetes
            .nodes()
            .iter()
            .map(|node| node.name().to_owned())
            .filter(|node| *node != lost)
            .collect();
        let agents = standby::watch(lab, &kubernetes, &others, VICTIM)?;
        let watch = kafka.watch(VICTIM);
        watch.wait("to be in sync", PATIENCE, Standing::is_complete)?;
        for agent in &agents {
            is_sure(&kubernetes, agent)?;
        }
        writer.flows(500, PATIENCE)?;

        let fault = Instant::now();
        kubernetes.node(&lost)?.host().power_off()?;
        watch.wait("to be gone", PATIENCE, |standing| !standing.is_complete())?;
        watch.wait("to be back in every ISR", PATIENCE, Standing::is_complete)?;
        let took = fault.elapsed();
        lab.note(format!("back in every ISR {:.1} s after the power went", took.as_secs_f64()));
        // Kubernetes alone would not have evicted the pod by then, and never have made another one.
        ensure!(took < Duration::from_secs(120), "it took {took:?}");
        let after = kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
        ensure!(after.uid() != before.uid() && after.node() != lost, "it is on {}", after.node());
        is_proven_and_told(lab, &kubernetes, &lost)?;

        writer.flows(500, PATIENCE)?;
        let history = writer.stop()?;
        ensure!(history.failed.is_empty(), "the producer gave up on {:?}", history.failed);
        kafka.wait_complete(PATIENCE)?;
        let verdict = kafka.verify(&history)?;
        lab.note(format!("{verdict}; longest wait {:.1?}", history.longest_wait()));
        verdict.ensure_clean()
    });
}

/// Waits until an agent knows that no earlier pod of the name can run anywhere.
fn is_sure(kubernetes: &Kubernetes, agent: &str) -> Result<()> {
    eventually(&format!("{agent} to be sure of the pod's place"), PATIENCE, || {
        let status = standby::status(kubernetes, agent)?.to_string();
        ensure!(status.contains("the fences of") && status.contains("are those of that node"), "{status}");
        Ok(())
    })
}

/// One takeover, which fenced the node, and a node from which the cluster takes all pods.
fn is_proven_and_told(lab: &Lab, kubernetes: &Kubernetes, lost: &str) -> Result<()> {
    ensure!(!kubernetes.node(lost)?.host().is_on(), "{lost} has power");
    let taints = kubernetes.get(&format!("/api/v1/nodes/{lost}"))?["spec"]["taints"].to_string();
    for taint in ["understudy.dev/fenced", "node.kubernetes.io/out-of-service"] {
        ensure!(taints.contains(taint), "{lost} has {taints}");
    }
    let journals = eventually("the takeover to be written down", PATIENCE, || {
        let all = standby::journals(kubernetes)?;
        let said = serde_json::to_string(&all)?;
        ensure!(said.contains("recovered"), "it has not ended: {said}");
        Ok(all)
    })?;
    let victim = VICTIM.to_string();
    let its = journals.iter().filter(|one| one["metadata"]["labels"]["understudy.dev/broker"] == victim);
    ensure!(its.count() == 1, "more than one takeover: {journals:?}");
    lab.note(format!("{lost} is off and tainted: {taints}"));
    Ok(())
}
