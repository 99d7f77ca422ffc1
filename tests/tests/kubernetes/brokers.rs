//! A real Kafka in real pods, on log dirs that every node reaches.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::history::WriteSpec;
use e2e::kafka::Wire;
use e2e::kubernetes::Kubernetes;
use e2e::kubernetes::kafka::{BROKERS, KAFKA, KubeKafka, LOG_DIRS, door, pod_of};
use e2e::{Lab, eventually, story};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(180);
const VICTIM: i32 = 3;

#[test]
fn three_brokers_in_pods_serve_a_producer() {
    story("three_brokers_in_pods_serve_a_producer", |lab| {
        let kubernetes = Kubernetes::start(lab, 3)?;
        let begin = Instant::now();
        let kafka = KubeKafka::start(lab, &kubernetes)?;
        lab.note(format!("the cluster is complete after {:.1} s", begin.elapsed().as_secs_f64()));
        log_dirs_are_shared(&kubernetes)?;
        kafka.create_topic("t", 3)?;
        let writer = kafka.write(WriteSpec::steady("t", 3, 100))?;
        writer.flows(500, PATIENCE)?;
        a_node_stands_still(&kubernetes)?;
        a_kafka_is_killed(lab, &kubernetes)?;
        writer.flows(500, PATIENCE)?;
        kafka.wait_complete(PATIENCE)?;
        let history = writer.stop()?;
        ensure!(history.failed.is_empty(), "the producer gave up on {:?}", history.failed);
        let verdict = kafka.verify(&history)?;
        lab.note(format!("{verdict}; longest wait {:.1?}", history.longest_wait()));
        verdict.ensure_clean()
    });
}

/// Each broker is on a node of its own, and every node reads what each has written to its log dir.
fn log_dirs_are_shared(kubernetes: &Kubernetes) -> Result<()> {
    let mut used = BTreeSet::new();
    for broker in 1..=BROKERS {
        let pod = kubernetes.pod(&pod_of(broker))?.context("no pod")?;
        ensure!(used.insert(pod.node()), "two brokers are on {}", pod.node());
        for node in kubernetes.nodes() {
            let file = format!("{LOG_DIRS}/broker-{broker}/meta.properties");
            let said = node.host().run(&["cat", &file])?;
            ensure!(said.stdout.contains(&format!("node.id={broker}\n")), "{}: {}", node.name(), said.stderr);
        }
    }
    Ok(())
}

/// Its containers stand still with it, and go on with it.
fn a_node_stands_still(kubernetes: &Kubernetes) -> Result<()> {
    let pod = kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
    let node = kubernetes.node(&pod.node())?;
    let ask = || Wire::connect(&door(VICTIM), Duration::from_secs(2))?.metadata();
    ask().context("the broker does not answer")?;
    node.freeze()?;
    ensure!(ask().is_err(), "a broker answers on a node that stands still");
    node.thaw()?;
    eventually("the broker to answer again", PATIENCE, ask).map(drop)
}

/// Its kubelet starts it again, in the same pod.
fn a_kafka_is_killed(lab: &Lab, kubernetes: &Kubernetes) -> Result<()> {
    let pod = kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
    let found = kubernetes.node(&pod.node())?.containers(KAFKA)?;
    ensure!(found.len() == 1, "{} Kafkas run on {}", found.len(), pod.node());
    let killed = Instant::now();
    found.into_iter().try_for_each(|pid: Pid| kill_process(pid, Signal::KILL))?;
    eventually("its kubelet to start it again", PATIENCE, || {
        let now = kubernetes.pod(&pod_of(VICTIM))?.context("there is none")?;
        ensure!(now.uid() == pod.uid(), "it is another pod");
        ensure!(now.0["status"]["containerStatuses"][0]["restartCount"] == 1 && now.is_ready());
        Ok(())
    })?;
    lab.note(format!("a killed Kafka is ready again after {:.1} s", killed.elapsed().as_secs_f64()));
    Ok(())
}
