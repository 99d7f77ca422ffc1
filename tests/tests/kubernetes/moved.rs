//! A broker's pod is made anew on another node, and then hangs there: its fence is that of the node that it has left,
//! so nobody is fenced and nothing is claimed, though every witness says that the broker is dead.

use anyhow::{Context, Result, ensure};
use e2e::kafka::Standing;
use e2e::kubernetes::kafka::{KAFKA, pod_of};
use e2e::kubernetes::takeover::{PATIENCE, VICTIM};
use e2e::{eventually, story_within};
use rustix::process::{Pid, Signal, kill_process};

use crate::standby::{Bed, LIMIT};

/// The decisions of hosts about the broker.
const DECISIONS: &str =
    "/apis/understudy.dev/v1/namespaces/default/ledgercells/understudy.decisions.broker-2";

#[test]
fn a_pod_that_moved_is_not_fenced_by_the_node_that_it_left() {
    story_within("a_pod_that_moved_is_not_fenced_by_the_node_that_it_left", LIMIT, |lab| {
        let bed = Bed::begin(lab)?;
        let (node, kafka) = moves(&bed)?;
        lab.note(format!("{} was made anew on {node}", pod_of(VICTIM)));
        bed.site.watch.wait("to be in sync again", PATIENCE, Standing::is_complete)?;
        bed.site.writer.flows(500, PATIENCE)?;

        kill_process(kafka, Signal::STOP)?;
        bed.site.watch.wait("to be gone", PATIENCE, |standing| !standing.listed)?;
        let held = eventually("the standby to hold", PATIENCE, || {
            let said = bed.site.kubernetes.get(DECISIONS)?.to_string();
            ensure!(said.contains("fence_astray"), "it has decided {said}");
            Ok(said)
        });
        kill_process(kafka, Signal::CONT)?;
        let held = held?;
        let says = format!(
            "pod {} is on node {node}, and the fences of {0} act on {}",
            pod_of(VICTIM),
            bed.site.lost
        );
        ensure!(held.contains(&says), "it says {held}");
        let records = bed.records()?;
        ensure!(records.is_empty(), "it was claimed: {records:?}");
        for node in bed.site.kubernetes.nodes() {
            ensure!(node.host().is_on(), "{} was fenced", node.name());
        }
        bed.site.watch.wait("to be back", PATIENCE, Standing::is_complete)?;
        bed.site.judge().map(drop)
    });
}

/// Has the broker's pod made anew on another node. Returns that node, and the Kafka there.
fn moves(bed: &Bed<'_>) -> Result<(String, Pid)> {
    let others = || bed.site.kubernetes.nodes().iter().filter(|node| node.name() != bed.site.lost);
    let mut before = Vec::new();
    for other in others() {
        before.extend(other.containers(KAFKA)?);
    }
    let uid = bed.site.kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?.uid();
    bed.site.kubernetes.kubectl(&["cordon", &bed.site.lost])?;
    bed.site.kubernetes.kubectl(&["delete", "pod", &pod_of(VICTIM), "--wait=false"])?;
    eventually("the pod to be ready on another node", PATIENCE, || {
        let pod = bed.site.kubernetes.pod(&pod_of(VICTIM))?.context("there is none")?;
        ensure!(pod.uid() != uid && pod.is_ready(), "it is not");
        ensure!(pod.node() != bed.site.lost, "it is on {}", pod.node());
        let running = bed.site.kubernetes.node(&pod.node())?.containers(KAFKA)?;
        let kafka = running.into_iter().find(|pid| !before.contains(pid)).context("no Kafka runs there")?;
        Ok((pod.node(), kafka))
    })
}
