//! A cluster in pods that serves a producer, and a broker of it whose node loses power: brought back by a standby pod,
//! or by its StatefulSet once an agent has proven that the node is off.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;

use super::kafka::{KAFKA, KubeKafka, pod_of};
use super::standby::{self, STANDBY};
use super::{Kubernetes, Node, Pod};
use crate::history::{History, Verdict, WriteSpec, Writer};
use crate::kafka::{Standing, Watch};
use crate::{Lab, eventually};

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// The broker.
pub const VICTIM: i32 = 2;

/// The cluster, and who watches it.
pub struct Site<'lab> {
    /// Where it runs.
    pub lab: &'lab Lab,
    /// Its Kubernetes.
    pub kubernetes: Kubernetes,
    kafka: KubeKafka,
    /// The producer.
    pub writer: Writer,
    /// What the other brokers say of the broker.
    pub watch: Watch,
    /// The broker's pod as it was before.
    pub before: Pod,
    /// Its node.
    pub lost: String,
}

/// A standby pod that waits.
pub struct StandbyPod {
    /// Its node.
    pub node: String,
    /// As it was when it began to wait.
    pub pod: Pod,
}

impl<'lab> Site<'lab> {
    /// Brings the cluster up. Nobody guards it yet.
    ///
    /// # Errors
    /// When it is not up in time.
    pub fn begin(lab: &'lab Lab) -> Result<Self> {
        Self::with(lab, KubeKafka::start)
    }

    /// The same, with an agent in each broker's own pod.
    ///
    /// # Errors
    /// When it is not up in time.
    pub fn begin_at_home(lab: &'lab Lab) -> Result<Self> {
        Self::with(lab, KubeKafka::start_at_home)
    }

    fn with(lab: &'lab Lab, start: fn(&Lab, &Kubernetes) -> Result<KubeKafka>) -> Result<Self> {
        let kubernetes = Kubernetes::start(lab, 3)?;
        kubernetes.add_agent(lab)?;
        let kafka = start(lab, &kubernetes)?;
        kafka.create_topic("t", 6)?;
        let writer = kafka.write(WriteSpec::steady("t", 6, 100))?;
        let before = kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
        let (lost, watch) = (before.node(), kafka.watch(VICTIM));
        Ok(Self { lab, kubernetes, kafka, writer, watch, before, lost })
    }

    /// The nodes but the broker's.
    #[must_use]
    pub fn others(&self) -> Vec<String> {
        let names = self.kubernetes.nodes().iter().map(|node| node.name().to_owned());
        names.filter(|node| *node != self.lost).collect()
    }

    /// Starts a standby pod for the broker, and waits until its Kafka waits and records flow.
    ///
    /// # Errors
    /// When that is not so in time.
    pub fn add_standby(&self) -> Result<StandbyPod> {
        let node = self.others().into_iter().next().context("one node")?;
        standby::start(self.lab, &self.kubernetes, &node, VICTIM, &self.before)?;
        let pod = waits(self.lab, &self.kubernetes, self.kubernetes.node(&node)?)?;
        self.flows()?;
        Ok(StandbyPod { node, pod })
    }

    /// Starts an agent on each of the other nodes that has the broker's pod made anew, and waits until each is sure of
    /// its place and records flow. Returns the agents' pods.
    ///
    /// # Errors
    /// When that is not so in time.
    pub fn add_agents(&self) -> Result<Vec<String>> {
        let agents = standby::watch(self.lab, &self.kubernetes, &self.others(), VICTIM)?;
        for agent in &agents {
            // No earlier pod of the name can run anywhere.
            eventually(&format!("{agent} to be sure of the pod's place"), PATIENCE, || {
                let status = standby::status(&self.kubernetes, agent)?.to_string();
                let sure = status.contains("the fences of") && status.contains("are those of that node");
                ensure!(sure, "{status}");
                Ok(())
            })?;
        }
        self.flows()?;
        Ok(agents)
    }

    /// Records flow, and the broker is in every ISR.
    fn flows(&self) -> Result<()> {
        self.writer.flows(500, PATIENCE)?;
        self.watch.wait("to be in sync", PATIENCE, Standing::is_complete).map(drop)
    }

    /// The processes of the agents on a node.
    ///
    /// # Errors
    /// When the node's processes cannot be read.
    pub fn agents_on(&self, node: &str) -> Result<Vec<Pid>> {
        self.kubernetes.node(node)?.containers(&["understudy", "run"])
    }

    /// The broker's node loses power. Nobody may have noticed yet.
    ///
    /// # Errors
    /// When it cannot be switched off.
    pub fn cut(&self) -> Result<Instant> {
        let fault = Instant::now();
        self.kubernetes.node(&self.lost)?.host().power_off()?;
        Ok(fault)
    }

    /// The same, until the other brokers notice.
    ///
    /// # Errors
    /// When they do not.
    pub fn strike(&self) -> Result<Instant> {
        let fault = self.cut()?;
        self.watch.wait("to be gone", PATIENCE, |standing| !standing.is_complete())?;
        Ok(fault)
    }

    /// Waits until the broker is back in every ISR. Returns how long that took.
    ///
    /// # Errors
    /// When it is not back in time.
    pub fn is_back(&self, fault: Instant) -> Result<Duration> {
        self.watch.wait("to be back in every ISR", PATIENCE, Standing::is_complete)?;
        let took = fault.elapsed();
        self.lab.note(format!("back in every ISR {:.1} s after the fault", took.as_secs_f64()));
        Ok(took)
    }

    /// Waits until the ledger has the end of the takeover, which must be a good one.
    ///
    /// # Errors
    /// When it has not ended in time, or otherwise.
    pub fn is_written_down(&self) -> Result<()> {
        eventually("the takeover to be written down", PATIENCE, || {
            let last = standby::records(&self.kubernetes, VICTIM)?.pop().unwrap_or_default();
            ensure!(last.to_string().contains("recovered"), "it has not ended: {last}");
            Ok(())
        })
    }

    /// Ends the load, and judges it.
    ///
    /// # Errors
    /// When a record is lost, doubled or out of order, or the producer gave up.
    pub fn judge(self) -> Result<(History, Verdict)> {
        self.writer.flows(500, PATIENCE)?;
        let history = self.writer.stop()?;
        ensure!(history.failed.is_empty(), "the producer gave up on {:?}", history.failed);
        self.kafka.wait_complete(PATIENCE)?;
        let verdict = self.kafka.verify(&history)?;
        self.lab.note(format!("{verdict}; longest wait {:.1?}", history.longest_wait()));
        verdict.ensure_clean()?;
        Ok((history, verdict))
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
