//! A standby pod takes a broker over whose node lost power: its Kafka waits in a container of its own, in the brokers'
//! image, until the agent beside it gives the word. Measured once: back in every ISR 8.7 s after the power went.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::history::{WriteSpec, Writer};
use e2e::kafka::{Standing, Watch};
use e2e::kubernetes::kafka::{KAFKA, KubeKafka, pod_of, service_of};
use e2e::kubernetes::standby::{self, STANDBY};
use e2e::kubernetes::{Kubernetes, Node, Pod};
use e2e::{Lab, eventually, holds, story_within};
use rustix::process::Pid;
use serde_json::Value;

pub(crate) const LIMIT: Duration = Duration::from_secs(900);
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
pub(crate) const VICTIM: i32 = 2;

#[test]
fn a_standby_pod_takes_a_broker_over() {
    story_within("a_standby_pod_takes_a_broker_over", LIMIT, |lab| {
        let bed = Bed::begin(lab)?;
        let fault = bed.strike()?;
        bed.is_back(fault)?;
        bed.end()
    });
}

/// A cluster in pods that serves a producer, and a standby pod that may take one broker over.
pub(crate) struct Bed<'lab> {
    lab: &'lab Lab,
    pub(crate) kubernetes: Kubernetes,
    kafka: KubeKafka,
    pub(crate) writer: Writer,
    pub(crate) watch: Watch,
    /// The node of the broker.
    pub(crate) lost: String,
    /// The node of the standby.
    node: String,
    pod: Pod,
}

impl<'lab> Bed<'lab> {
    /// Brings it up.
    pub(crate) fn begin(lab: &'lab Lab) -> Result<Self> {
        let kubernetes = Kubernetes::start(lab, 3)?;
        kubernetes.add_agent(lab)?;
        let kafka = KubeKafka::start(lab, &kubernetes)?;
        kafka.create_topic("t", 6)?;
        let writer = kafka.write(WriteSpec::steady("t", 6, 100))?;
        let owner = kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
        let lost = owner.node();
        let node = kubernetes.nodes().iter().find(|node| node.name() != lost).context("one node")?.clone();
        standby::start(lab, &kubernetes, node.name(), VICTIM, &owner)?;
        let pod = waits(lab, &kubernetes, &node)?;
        writer.flows(500, PATIENCE)?;
        let watch = kafka.watch(VICTIM);
        watch.wait("to be in sync", PATIENCE, Standing::is_complete)?;
        let bed = Self { lab, kubernetes, kafka, writer, watch, lost, node: node.name().to_owned(), pod };
        ensure!(bed.restarts()? == 0, "a container was restarted");
        Ok(bed)
    }

    /// The broker's node loses power.
    pub(crate) fn strike(&self) -> Result<Instant> {
        let fault = Instant::now();
        self.kubernetes.node(&self.lost)?.host().power_off()?;
        self.watch.wait("to be gone", PATIENCE, |standing| !standing.is_complete())?;
        Ok(fault)
    }

    /// The processes of the agent.
    pub(crate) fn agents(&self) -> Result<Vec<Pid>> {
        self.standby()?.containers(&["understudy", "run"])
    }

    /// How often the pod's containers were started again.
    pub(crate) fn restarts(&self) -> Result<u64> {
        let pod = self.kubernetes.pod(STANDBY)?.context("no pod")?;
        let all = pod.0["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        Ok(all.iter().filter_map(|one| one["restartCount"].as_u64()).sum())
    }

    /// The standby's Kafka is not started for as long as `time`.
    pub(crate) fn starts_nothing(&self, time: Duration) -> Result<()> {
        let node = self.standby()?;
        holds("no Kafka but its broker's on the standby's node", time, || {
            let running = node.containers(KAFKA)?.len();
            ensure!(running == 1, "{running} Kafkas run there");
            Ok(())
        })
    }

    /// The broker is as it was, for as long as `time`.
    pub(crate) fn stays(&self, time: Duration) -> Result<()> {
        holds("the broker in every ISR", time, || {
            ensure!(self.watch.now().is_some_and(|standing| standing.is_complete()), "it is not");
            Ok(())
        })
    }

    /// Waits until the broker is back, in the standby alone.
    pub(crate) fn is_back(&self, fault: Instant) -> Result<()> {
        self.watch.wait("to be back in every ISR", PATIENCE, Standing::is_complete)?;
        self.lab
            .note(format!("back in every ISR {:.1} s after the power went", fault.elapsed().as_secs_f64()));
        let running = self.standby()?.containers(KAFKA)?;
        ensure!(running.len() == 2, "{} Kafkas run on {}", running.len(), self.node);
        let service = format!("/api/v1/namespaces/default/services/{}", service_of(VICTIM));
        let service = self.kubernetes.get(&service)?;
        let selector = &service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"];
        ensure!(selector == STANDBY, "the Service selects {selector}");
        let pod = self.kubernetes.pod(STANDBY)?.context("no pod")?;
        ensure!(self.pod.uid() == pod.uid(), "it is another pod");
        eventually("the takeover to be written down", PATIENCE, || {
            let last = self.records()?.pop().unwrap_or_default();
            ensure!(last.to_string().contains("recovered"), "it has not ended: {last}");
            Ok(())
        })
    }

    /// What the ledger has of the broker's takeover, which is one at most.
    pub(crate) fn records(&self) -> Result<Vec<Value>> {
        standby::records(&self.kubernetes, VICTIM)
    }

    /// Ends the load, and judges it.
    pub(crate) fn end(self) -> Result<()> {
        self.kubernetes.wait_pod(STANDBY, PATIENCE)?;
        self.judge()
    }

    /// The same, where the standby took nothing over.
    pub(crate) fn judge(self) -> Result<()> {
        self.writer.flows(500, PATIENCE)?;
        let history = self.writer.stop()?;
        ensure!(history.failed.is_empty(), "the producer gave up on {:?}", history.failed);
        self.kafka.wait_complete(PATIENCE)?;
        let verdict = self.kafka.verify(&history)?;
        self.lab.note(format!("{verdict}; longest wait {:.1?}", history.longest_wait()));
        verdict.ensure_clean()
    }

    fn standby(&self) -> Result<&Node> {
        self.kubernetes.node(&self.node).map(AsRef::as_ref)
    }
}

/// Waits until both containers run, and makes sure that no Kafka does.
fn waits(lab: &Lab, kubernetes: &Kubernetes, node: &Node) -> Result<Pod> {
    let before = node.containers(KAFKA)?;
    let pod = eventually("both containers to run", PATIENCE, || {
        let pod = kubernetes.pod(STANDBY)?.context("there is none")?;
        let all = pod.0["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let runs = all.iter().filter(|one| one["state"]["running"].is_object()).count();
        ensure!(runs == 2, "{}", pod.0["status"]);
        Ok(pod)
    })?;
    let folder = node.host().local().join(format!("pods/default_{STANDBY}_{}", pod.uid()));
    lab.note(format!("logs of {STANDBY}: {}", folder.display()));
    ensure!(folder.exists(), "there is no {}", folder.display());
    ensure!(before.len() == 1 && node.containers(KAFKA)? == before, "a Kafka was started in {STANDBY}");
    ensure!(!pod.is_ready(), "a Kafka that waits is ready");
    Ok(pod)
}
