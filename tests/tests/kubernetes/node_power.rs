//! A node loses power under a broker. Kubernetes alone does not bring the broker back: it cannot know that the
//! containers stopped.
//!
//! Measured on Kubernetes 1.36 with its defaults, in seconds after the power went: Kafka knows after 11, the node is
//! `Unknown` and its pod not ready after 52, the pod is evicted after 352. From then on it is `Terminating` for good,
//! and no other pod takes its place. The other two brokers serve the producer all the while: its longest wait was 13 s,
//! and no record was lost or doubled. Until somebody acts, the next broker that fails stops every partition
//! with `min.insync.replicas=2`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::history::WriteSpec;
use e2e::kubernetes::kafka::{KubeKafka, pod_of};
use e2e::kubernetes::{Kubernetes, Pod};
use e2e::{Lab, eventually, story_within};

const LIMIT: Duration = Duration::from_secs(1080);
const PATIENCE: Duration = Duration::from_secs(180);
/// For how long a pod stays bound to a node that does not answer: what Kubernetes gives every pod.
const TOLERATION: Duration = Duration::from_secs(300);
/// Longer than the 30 s that a pod is given to end by itself.
const PAST_GRACE: Duration = Duration::from_secs(45);
const VICTIM: i32 = 2;

#[test]
fn a_broker_whose_node_lost_power_stays_away() {
    story_within("a_broker_whose_node_lost_power_stays_away", LIMIT, |lab| {
        let kubernetes = Kubernetes::start(lab, 3)?;
        let kafka = KubeKafka::start(lab, &kubernetes)?;
        kafka.create_topic("t", 3)?;
        let writer = kafka.write(WriteSpec::steady("t", 3, 100))?;
        writer.flows(500, PATIENCE)?;
        let watch = kafka.watch(VICTIM);
        watch.wait("to be in sync", PATIENCE, e2e::kafka::Standing::is_complete)?;
        let pod = kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
        let node = kubernetes.node(&pod.node())?;
        let fault = Instant::now();
        node.host().power_off()?;
        watch.wait("to be gone", PATIENCE, |standing| !standing.listed)?;
        lab.note(format!("Kafka knows after {:.1} s", fault.elapsed().as_secs_f64()));
        writer.flows(500, PATIENCE)?;

        alone(lab, &kubernetes, &pod, fault)?;
        ensure!(watch.now().is_some_and(|standing| !standing.listed), "broker {VICTIM} is back");
        writer.flows(500, PATIENCE)?;

        // It takes a person, or the node itself.
        let back = Instant::now();
        node.host().power_on()?;
        node.boot()?;
        watch.wait("to be back in every ISR", PATIENCE, e2e::kafka::Standing::is_complete)?;
        lab.note(format!("the broker is back {:.1} s after its node", back.elapsed().as_secs_f64()));
        let history = writer.stop()?;
        ensure!(history.failed.is_empty(), "the producer gave up on {:?}", history.failed);
        kafka.wait_complete(PATIENCE)?;
        let verdict = kafka.verify(&history)?;
        lab.note(format!("{verdict}; longest wait {:.1?}", history.longest_wait()));
        verdict.ensure_clean()
    });
}

/// What Kubernetes does by itself, with the time of each since the fault.
fn alone(lab: &Lab, kubernetes: &Kubernetes, pod: &Pod, fault: Instant) -> Result<()> {
    let since = || fault.elapsed().as_secs_f64();
    kubernetes.wait_condition(&pod.node(), "Unknown", PATIENCE)?;
    lab.note(format!("the node is not ready after {:.1} s", since()));
    let name = pod_of(VICTIM);
    eventually("the pod not to be ready", PATIENCE, || {
        ensure!(!kubernetes.pod(&name)?.context("it is gone")?.is_ready());
        Ok(())
    })?;
    lab.note(format!("its pod is not ready after {:.1} s", since()));
    eventually("the pod to be evicted", TOLERATION + PATIENCE, || {
        ensure!(kubernetes.pod(&name)?.context("it is gone")?.is_terminating());
        Ok(())
    })?;
    lab.note(format!("its pod is to be deleted after {:.1} s", since()));
    ensure!(fault.elapsed() > TOLERATION, "sooner than it is said to");
    // Past its grace period of 30 s: this is the wait that never ends by itself.
    let replaced = eventually("another pod", PAST_GRACE, || {
        let now = kubernetes.pod(&name)?.context("it is gone")?;
        ensure!(now.uid() != pod.uid(), "there is none");
        Ok(now)
    });
    ensure!(replaced.is_err(), "the pod was replaced after {:.1} s, with no proof of its end", since());
    ensure!(kubernetes.pod(&name)?.context("it is gone")?.is_terminating());
    lab.note(format!("its pod is still to be deleted after {:.1} s", since()));
    Ok(())
}
