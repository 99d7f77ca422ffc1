//! A broker's node loses power, and its StatefulSet makes the pod anew on another node: at once, for an agent in the
//! cluster has proven that the node is off, and has deleted the pod by force.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::history::{WriteSpec, Writer};
use e2e::kafka::{Standing, Watch};
use e2e::kubernetes::kafka::{KubeKafka, pod_of};
use e2e::kubernetes::{Kubernetes, Pod, standby};
use e2e::{Lab, eventually, story_within};
use rustix::process::{Signal, kill_process};

use crate::disturbed::is_reached;
use crate::standby::{LIMIT, PATIENCE, VICTIM};

#[test]
fn a_pod_is_made_anew_elsewhere_once_its_node_is_proven_to_be_off() {
    story_within("a_pod_is_made_anew_elsewhere_once_its_node_is_proven_to_be_off", LIMIT, |lab| {
        let bed = Bed::begin(lab)?;
        let fault = bed.strike()?;
        let took = bed.is_back(fault)?;
        // Kubernetes alone would not have evicted the pod by then, and never have made another one.
        ensure!(took < Duration::from_secs(120), "it took {took:?}");
        bed.end()
    });
}

/// The agent dies when the pod is gone, and nobody has written down that it is: its proof is made anew, of the node
/// that the pod was on.
#[test]
fn an_agent_killed_in_the_middle_of_a_rescheduling_carries_on() {
    story_within("an_agent_killed_in_the_middle_of_a_rescheduling_carries_on", LIMIT, |lab| {
        let bed = Bed::begin(lab)?;
        // So that the new pod is nowhere yet, and the agent waits for it.
        let control = bed.kubernetes.control();
        control.part("kube-scheduler")?.kill()?;
        let fault = bed.strike()?;
        eventually("the pod to be another one", PATIENCE, || {
            let pod = bed.kubernetes.pod(&pod_of(VICTIM))?;
            ensure!(pod.is_none_or(|pod| pod.uid() != bed.before.uid()), "it is the same");
            Ok(())
        })?;
        bed.kill_agents()?;
        let records = standby::records(&bed.kubernetes, VICTIM)?;
        ensure!(!is_reached(&records, ("done", Some("reschedule"))), "it was written down: {records:?}");
        control.run("kube-scheduler")?;
        bed.is_back(fault)?;
        let records = standby::records(&bed.kubernetes, VICTIM)?;
        ensure!(records.iter().any(|one| one["entry"]["entry"] == "resumed"), "nobody carried on");
        bed.end()
    });
}

/// A cluster in pods that serves a producer, and an agent on each node but the broker's.
struct Bed<'lab> {
    lab: &'lab Lab,
    kubernetes: Kubernetes,
    kafka: KubeKafka,
    writer: Writer,
    watch: Watch,
    /// The broker's pod as it was, and its node.
    before: Pod,
    lost: String,
    /// The nodes that the agents are on.
    others: Vec<String>,
}

impl<'lab> Bed<'lab> {
    fn begin(lab: &'lab Lab) -> Result<Self> {
        let kubernetes = Kubernetes::start(lab, 3)?;
        kubernetes.add_agent(lab)?;
        let kafka = KubeKafka::start(lab, &kubernetes)?;
        kafka.create_topic("t", 6)?;
        let writer = kafka.write(WriteSpec::steady("t", 6, 100))?;
        let before = kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
        let lost = before.node();
        let nodes = kubernetes.nodes().iter().map(|node| node.name().to_owned());
        let others: Vec<String> = nodes.filter(|node| *node != lost).collect();
        let agents = standby::watch(lab, &kubernetes, &others, VICTIM)?;
        let watch = kafka.watch(VICTIM);
        watch.wait("to be in sync", PATIENCE, Standing::is_complete)?;
        for agent in &agents {
            is_sure(&kubernetes, agent)?;
        }
        writer.flows(500, PATIENCE)?;
        Ok(Self { lab, kubernetes, kafka, writer, watch, before, lost, others })
    }

    /// The broker's node loses power.
    fn strike(&self) -> Result<Instant> {
        let fault = Instant::now();
        self.kubernetes.node(&self.lost)?.host().power_off()?;
        self.watch.wait("to be gone", PATIENCE, |standing| !standing.is_complete())?;
        Ok(fault)
    }

    fn kill_agents(&self) -> Result<()> {
        for node in &self.others {
            for agent in self.kubernetes.node(node)?.containers(&["understudy", "run"])? {
                kill_process(agent, Signal::KILL)?;
            }
        }
        Ok(())
    }

    /// Waits until the broker is back, on another node, and returns how long that took. One takeover did it, which
    /// fenced the node and has the cluster take all pods from it.
    fn is_back(&self, fault: Instant) -> Result<Duration> {
        let Self { lab, kubernetes, lost, before, .. } = self;
        self.watch.wait("to be back in every ISR", PATIENCE, Standing::is_complete)?;
        let took = fault.elapsed();
        lab.note(format!("back in every ISR {:.1} s after the power went", took.as_secs_f64()));
        let after = kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
        ensure!(after.uid() != before.uid() && after.node() != *lost, "it is on {}", after.node());
        ensure!(!kubernetes.node(lost)?.host().is_on(), "{lost} has power");
        let taints = kubernetes.get(&format!("/api/v1/nodes/{lost}"))?["spec"]["taints"].to_string();
        for taint in ["understudy.dev/fenced", "node.kubernetes.io/out-of-service"] {
            ensure!(taints.contains(taint), "{lost} has {taints}");
        }
        lab.note(format!("{lost} is off and tainted: {taints}"));
        eventually("the takeover to be written down", PATIENCE, || {
            let last = standby::records(kubernetes, VICTIM)?.pop().unwrap_or_default();
            ensure!(last.to_string().contains("recovered"), "it has not ended: {last}");
            Ok(())
        })?;
        Ok(took)
    }

    /// Ends the load, and judges it.
    fn end(self) -> Result<()> {
        self.writer.flows(500, PATIENCE)?;
        let history = self.writer.stop()?;
        ensure!(history.failed.is_empty(), "the producer gave up on {:?}", history.failed);
        self.kafka.wait_complete(PATIENCE)?;
        let verdict = self.kafka.verify(&history)?;
        self.lab.note(format!("{verdict}; longest wait {:.1?}", history.longest_wait()));
        verdict.ensure_clean()
    }
}

/// Waits until an agent knows that no earlier pod of the name can run anywhere.
fn is_sure(kubernetes: &Kubernetes, agent: &str) -> Result<()> {
    eventually(&format!("{agent} to be sure of the pod's place"), PATIENCE, || {
        let status = standby::status(kubernetes, agent)?.to_string();
        ensure!(status.contains("the fences of") && status.contains("are those of that node"), "{status}");
        Ok(())
    })
}
