//! A broker's node loses power, and its StatefulSet makes the pod anew on another node: at once, for an agent in the
//! cluster has proven that the node is off, and has deleted the pod by force.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::kubernetes::kafka::pod_of;
use e2e::kubernetes::standby;
use e2e::kubernetes::takeover::{PATIENCE, Site, VICTIM};
use e2e::{Lab, eventually, story_within};
use rustix::process::{Signal, kill_process};

use crate::disturbed::is_reached;
use crate::standby::LIMIT;

#[test]
fn a_pod_is_made_anew_elsewhere_once_its_node_is_proven_to_be_off() {
    story_within("a_pod_is_made_anew_elsewhere_once_its_node_is_proven_to_be_off", LIMIT, |lab| {
        let site = guarded(lab)?;
        let fault = site.strike()?;
        let took = is_back(&site, fault)?;
        // Kubernetes alone would not have evicted the pod by then, and never have made another one.
        ensure!(took < Duration::from_secs(120), "it took {took:?}");
        site.judge().map(drop)
    });
}

/// The agent dies when the pod is gone, and nobody has written down that it is: its proof is made anew, of the node
/// that the pod was on.
#[test]
fn an_agent_killed_in_the_middle_of_a_rescheduling_carries_on() {
    story_within("an_agent_killed_in_the_middle_of_a_rescheduling_carries_on", LIMIT, |lab| {
        let site = guarded(lab)?;
        // So that the new pod is nowhere yet, and the agent waits for it.
        let control = site.kubernetes.control();
        control.part("kube-scheduler")?.kill()?;
        let fault = site.strike()?;
        eventually("the pod to be another one", PATIENCE, || {
            let pod = site.kubernetes.pod(&pod_of(VICTIM))?;
            ensure!(pod.is_none_or(|pod| pod.uid() != site.before.uid()), "it is the same");
            Ok(())
        })?;
        for node in site.others() {
            site.agents_on(&node)?.into_iter().try_for_each(|agent| kill_process(agent, Signal::KILL))?;
        }
        let records = standby::records(&site.kubernetes, VICTIM)?;
        ensure!(!is_reached(&records, ("done", Some("reschedule"))), "it was written down: {records:?}");
        control.run("kube-scheduler")?;
        is_back(&site, fault)?;
        let records = standby::records(&site.kubernetes, VICTIM)?;
        ensure!(records.iter().any(|one| one["entry"]["entry"] == "resumed"), "nobody carried on");
        site.judge().map(drop)
    });
}

/// A cluster in pods that serves a producer, and an agent on each node but the broker's.
fn guarded(lab: &Lab) -> Result<Site<'_>> {
    let site = Site::begin(lab)?;
    site.add_agents()?;
    Ok(site)
}

/// Waits until the broker is back, on another node, and returns how long that took. One takeover did it, which fenced
/// the node and has the cluster take all pods from it.
fn is_back(site: &Site<'_>, fault: Instant) -> Result<Duration> {
    let Site { lab, kubernetes, lost, before, .. } = site;
    let took = site.is_back(fault)?;
    let after = kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
    ensure!(after.uid() != before.uid() && after.node() != *lost, "it is on {}", after.node());
    ensure!(!kubernetes.node(lost)?.host().is_on(), "{lost} has power");
    let taints = kubernetes.get(&format!("/api/v1/nodes/{lost}"))?["spec"]["taints"].to_string();
    for taint in ["understudy.dev/fenced", "node.kubernetes.io/out-of-service"] {
        ensure!(taints.contains(taint), "{lost} has {taints}");
    }
    lab.note(format!("{lost} is off and tainted: {taints}"));
    site.is_written_down()?;
    Ok(took)
}
