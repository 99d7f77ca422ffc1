//! A standby pod takes a broker over whose node lost power: its Kafka waits in a container of its own, in the brokers'
//! image, until the agent beside it gives the word. Measured once: back in every ISR 8.7 s after the power went.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use e2e::history::WriteSpec;
use e2e::kafka::Standing;
use e2e::kubernetes::kafka::{KAFKA, KubeKafka, pod_of, service_of};
use e2e::kubernetes::standby::{self, STANDBY};
use e2e::kubernetes::{Kubernetes, Node, Pod};
use e2e::{Lab, eventually, story_within};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(900);
const PATIENCE: Duration = Duration::from_secs(180);
const VICTIM: i32 = 2;

#[test]
fn a_standby_pod_takes_a_broker_over() {
    story_within("a_standby_pod_takes_a_broker_over", LIMIT, takes_over);
}

/// A node loses power, and the standby pod takes its broker over.
fn takes_over(lab: &Lab) -> Result<()> {
    let kubernetes = Kubernetes::start(lab, 3)?;
    kubernetes.add_agent(lab)?;
    let kafka = KubeKafka::start(lab, &kubernetes)?;
    kafka.create_topic("t", 6)?;
    let writer = kafka.write(WriteSpec::steady("t", 6, 100))?;
    let flows = |more: usize| {
        let before = writer.acked();
        eventually("records to flow", PATIENCE, || {
            let acked = writer.acked() - before;
            ensure!(acked >= more, "{acked} records acknowledged since");
            Ok(())
        })
    };
    let owner = kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
    let lost = kubernetes.node(&owner.node())?;
    let node = kubernetes.nodes().iter().find(|node| node.name() != lost.name()).context("one node")?;
    standby::start(lab, &kubernetes, node.name(), VICTIM, &owner)?;
    let pod = waits(lab, &kubernetes, node)?;
    flows(500)?;
    let agent = &kubernetes.pod(STANDBY)?.context("no pod")?.0["status"]["containerStatuses"];
    let restarts = agent.as_array().into_iter().flatten().filter_map(|one| one["restartCount"].as_u64());
    ensure!(restarts.sum::<u64>() == 0, "a container was restarted: {agent}");
    let watch = kafka.watch(VICTIM);
    watch.wait("to be in sync", PATIENCE, Standing::is_complete)?;

    let fault = Instant::now();
    lost.host().power_off()?;
    watch.wait("to be gone", PATIENCE, |standing| !standing.is_complete())?;
    watch.wait("to be back in every ISR", PATIENCE, Standing::is_complete)?;
    lab.note(format!("back in every ISR {:.1} s after the power went", fault.elapsed().as_secs_f64()));
    in_the_standby_alone(&kubernetes, node, &pod)?;
    flows(500)?;
    kubernetes.wait_pod(STANDBY, PATIENCE)?;

    let history = writer.stop()?;
    ensure!(history.failed.is_empty(), "the producer gave up on {:?}", history.failed);
    kafka.wait_complete(PATIENCE)?;
    let verdict = kafka.verify(&history)?;
    lab.note(format!("{verdict}; longest wait {:.1?}", history.longest_wait()));
    verdict.ensure_clean()
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
    keep_logs(lab, node, &pod)?;
    ensure!(before.len() == 1 && node.containers(KAFKA)? == before, "a Kafka was started in {STANDBY}");
    ensure!(!pod.is_ready(), "a Kafka that waits is ready");
    Ok(pod)
}

/// What the pod says, for whoever looks into a failure.
fn keep_logs(lab: &Lab, node: &Node, pod: &Pod) -> Result<()> {
    let folder = node.host().local().join(format!("pods/default_{STANDBY}_{}", pod.uid()));
    lab.note(format!("logs of {STANDBY}: {}", folder.display()));
    ensure!(folder.exists(), "there is no {}", folder.display());
    Ok(())
}

/// The broker's Service leads to the standby, whose node has two Kafkas now, and the ledger has one takeover.
fn in_the_standby_alone(kubernetes: &Kubernetes, node: &Node, pod: &Pod) -> Result<()> {
    let running = node.containers(KAFKA)?;
    ensure!(running.len() == 2, "{} Kafkas run on {}", running.len(), node.name());
    let service = kubernetes.get(&format!("/api/v1/namespaces/default/services/{}", service_of(VICTIM)))?;
    let selector = &service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"];
    ensure!(selector == STANDBY, "the Service selects {selector}");
    ensure!(pod.uid() == kubernetes.pod(STANDBY)?.context("no pod")?.uid(), "it is another pod");
    eventually("the takeover to be written down", PATIENCE, || {
        let text = ensure_one(kubernetes)?.to_string();
        ensure!(text.contains("recovered"), "it has not ended: {text}");
        Ok(())
    })
}

/// The one takeover of the broker in the ledger.
fn ensure_one(kubernetes: &Kubernetes) -> Result<Value> {
    let journals = standby::journals(kubernetes)?;
    let victim = VICTIM.to_string();
    let label = |one: &Value| one["metadata"]["labels"]["understudy.dev/broker"].as_str().map(str::to_owned);
    let of_the_broker = |one: &&Value| label(one).as_ref() == Some(&victim);
    let journals: Vec<&Value> = journals.iter().filter(of_the_broker).collect();
    let [one] = journals[..] else { bail!("{} takeovers", journals.len()) };
    Ok(one.clone())
}
