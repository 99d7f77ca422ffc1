//! Brokers' own pods with an agent in each, which alone starts Kafka there.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::kafka::Standing;
use e2e::kubernetes::kafka::{KAFKA, pod_of};
use e2e::kubernetes::takeover::{PATIENCE, Site, VICTIM};
use e2e::kubernetes::{Node, standby};
use e2e::{eventually, holds, story_within};
use rustix::process::{Signal, kill_process};

use crate::standby::{Bed, LIMIT};

/// Longer than anything takes that would start a Kafka.
const A_WHILE: Duration = Duration::from_secs(30);

#[test]
fn a_broker_whose_node_comes_back_after_a_takeover_stays_off_in_its_own_pod() {
    let name = "a_broker_whose_node_comes_back_after_a_takeover_stays_off_in_its_own_pod";
    story_within(name, LIMIT, |lab| {
        let bed = Bed::at(Site::begin_at_home(lab)?)?;
        let fault = bed.site.strike()?;
        bed.is_back(fault)?;

        let node = bed.site.kubernetes.node(&bed.site.lost)?;
        node.host().power_on()?;
        node.boot()?;
        runs_anew(&bed.site, node)?;
        holds("no Kafka in the broker's own pod", A_WHILE, || {
            let running = node.containers(KAFKA)?;
            ensure!(running.is_empty(), "there are {running:?}");
            Ok(())
        })?;
        bed.stays(Duration::from_secs(1))?;
        bed.end()
    });
}

#[test]
fn a_kafka_that_is_killed_in_its_own_pod_is_started_again_there() {
    story_within("a_kafka_that_is_killed_in_its_own_pod_is_started_again_there", LIMIT, |lab| {
        let site = Site::begin_at_home(lab)?;
        site.writer.flows(500, PATIENCE)?;
        site.watch.wait("to be in sync", PATIENCE, Standing::is_complete)?;
        let node = site.kubernetes.node(&site.lost)?;
        let [kafka] = node.containers(KAFKA)?[..] else { anyhow::bail!("not one Kafka runs there") };
        let killed = Instant::now();
        kill_process(kafka, Signal::KILL)?;
        site.watch.wait("to be gone", PATIENCE, |standing| !standing.is_complete())?;
        site.is_back(killed)?;
        let [again] = node.containers(KAFKA)?[..] else { anyhow::bail!("not one Kafka runs there") };
        ensure!(again != kafka, "it was not killed");
        site.is_written_down()?;
        ensure!(restarts(&site)? == 0, "a container was started again, with the kubelet's back-off");
        site.judge().map(drop)
    });
}

#[test]
fn a_brokers_own_pod_that_is_deleted_is_followed_by_the_next() {
    story_within("a_brokers_own_pod_that_is_deleted_is_followed_by_the_next", LIMIT, |lab| {
        let site = Site::begin_at_home(lab)?;
        site.writer.flows(500, PATIENCE)?;
        site.watch.wait("to be in sync", PATIENCE, Standing::is_complete)?;
        let fault = Instant::now();
        site.kubernetes.kubectl(&["delete", "pod", &pod_of(VICTIM), "--wait=false"])?;
        site.watch.wait("to be gone", PATIENCE, |standing| !standing.is_complete())?;
        site.is_back(fault)?;
        let now = site.kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
        ensure!(now.uid() != site.before.uid(), "it is the same pod");
        ensure!(standby::journals(&site.kubernetes)?.is_empty(), "it was taken over");
        site.judge().map(drop)
    });
}

/// The control plane takes the node for dead and makes a second pod of the name, while the first one's Kafka writes.
#[test]
fn a_force_deleted_pod_of_a_frozen_kubelet_is_not_followed_before_it_has_ended() {
    let name = "a_force_deleted_pod_of_a_frozen_kubelet_is_not_followed_before_it_has_ended";
    story_within(name, LIMIT, |lab| {
        let site = Site::begin_at_home(lab)?;
        site.writer.flows(500, PATIENCE)?;
        site.watch.wait("to be in sync", PATIENCE, Standing::is_complete)?;
        let node = site.kubernetes.node(&site.lost)?;
        let [first] = node.containers(KAFKA)?[..] else { anyhow::bail!("not one Kafka runs there") };
        node.kubelet()?.signal(Signal::STOP)?;
        site.kubernetes.wait_condition(node.name(), "Unknown", PATIENCE)?;
        site.kubernetes.kubectl(&["delete", "pod", &pod_of(VICTIM), "--force", "--grace-period=0"])?;
        let second = eventually("a second pod of the name to run", PATIENCE, || {
            let pod = site.kubernetes.pod(&pod_of(VICTIM))?.context("there is none")?;
            ensure!(pod.uid() != site.before.uid() && pod.node() != site.lost, "it is on {}", pod.node());
            let there = site.kubernetes.node(&pod.node())?;
            // Beside that of the node's own broker.
            ensure!(there.containers(&["understudy", "enter"])?.len() == 2, "no entry point runs there yet");
            ensure!(there.containers(&["understudy", "run"])?.len() == 2, "no agent runs there yet");
            Ok(pod)
        })?;
        let there = site.kubernetes.node(&second.node())?;
        holds("one Kafka of the broker", A_WHILE, || {
            ensure!(node.containers(KAFKA)? == [first], "the first has ended");
            let running = there.containers(KAFKA)?;
            ensure!(running.len() == 1, "on {} run {running:?}", second.node());
            Ok(())
        })?;
        let thawed = Instant::now();
        node.kubelet()?.signal(Signal::CONT)?;
        // It gives the first one no time to say that it ended.
        eventually("the first to be ended by its kubelet", PATIENCE, || {
            ensure!(node.containers(KAFKA)?.is_empty(), "it runs");
            Ok(())
        })?;
        standby::cli(&site.kubernetes, &pod_of(VICTIM), &["ledger", "adopt", "--yes"])?;
        eventually("the second to be started", PATIENCE, || {
            ensure!(there.containers(KAFKA)?.len() == 2, "it is not");
            Ok(())
        })?;
        site.is_back(thawed)?;
        site.judge().map(drop)
    });
}

fn restarts(site: &Site<'_>) -> Result<u64> {
    let pod = site.kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
    let all = pod.0["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
    Ok(all.iter().filter_map(|one| one["restartCount"].as_u64()).sum())
}

/// Waits until the kubelet has started both containers of the broker's pod again, and the agent there shows its pages.
fn runs_anew(site: &Site<'_>, node: &Node) -> Result<()> {
    eventually("the broker's own pod to run again", PATIENCE, || {
        ensure!(node.containers(&["understudy", "run"])?.len() == 1, "no agent runs there");
        ensure!(node.containers(&["understudy", "enter"])?.len() == 1, "no entry point runs there");
        let pod = site.kubernetes.pod(&pod_of(VICTIM))?.context("no pod")?;
        ensure!(pod.uid() == site.before.uid(), "it is another pod");
        let status = standby::status(&site.kubernetes, &pod_of(VICTIM))?;
        ensure!(status["ledger_read"] == true, "it has not read the ledger: {status}");
        Ok(())
    })
}
