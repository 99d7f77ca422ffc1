//! The same takeover while something else fails: the sidecar itself, the API server, its rights.

use std::time::Duration;

use anyhow::{Context, ensure};
use e2e::kubernetes::takeover::PATIENCE;
use e2e::{eventually, story_within};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::standby::{Bed, LIMIT};

/// For how long an API server is away.
const AWAY: Duration = Duration::from_secs(60);
/// Longer than a takeover takes.
const A_WHILE: Duration = Duration::from_secs(20);

/// An entry of a journal, and of which step it is.
pub(crate) type Stage = (&'static str, Option<&'static str>);
/// After each of these the agent is killed. Its kubelet waits 10 s before the second start, then 20 s.
const STAGES: [Stage; 4] = [
    ("claimed", None),
    ("started", Some("fence")),
    ("done", Some("move_address")),
    ("started", Some("start_broker")),
];

#[test]
fn a_sidecar_killed_at_each_stage_carries_on() {
    story_within("a_sidecar_killed_at_each_stage_carries_on", LIMIT, |lab| {
        let bed = Bed::begin(lab)?;
        let fault = bed.site.cut()?;
        for (killed, stage) in (1..).zip(STAGES) {
            let reached = eventually(&format!("{stage:?}"), PATIENCE, || {
                let records = bed.records()?;
                ensure!(is_reached(&records, stage), "the ledger has {} records", records.len());
                let agents = bed.agents()?;
                ensure!(agents.len() == 1, "{} agents run", agents.len());
                kill_process(agents[0], Signal::KILL)?;
                Ok(records.len())
            })?;
            lab.note(format!("killed at {stage:?}, after {reached} records"));
            eventually("its kubelet to start it again", PATIENCE, || {
                let restarts = bed.restarts()?;
                ensure!(restarts == killed && bed.agents()?.len() == 1, "{restarts} restarts");
                Ok(())
            })?;
        }
        bed.is_back(fault)?;
        let resumed = bed.records()?.iter().filter(|record| record["entry"]["entry"] == "resumed").count();
        ensure!(resumed > 0, "nobody carried on");
        bed.end()
    });
}

#[test]
fn an_api_server_that_is_away_delays_a_takeover() {
    story_within("an_api_server_that_is_away_delays_a_takeover", LIMIT, |lab| {
        let bed = Bed::begin(lab)?;
        let control = bed.site.kubernetes.control();
        // Brokers and clients need none.
        control.part("kube-apiserver")?.kill()?;
        bed.stays(AWAY)?;
        bed.site.writer.flows(500, PATIENCE)?;
        let fault = bed.site.strike()?;
        bed.starts_nothing(A_WHILE)?;
        control.run("kube-apiserver")?;
        eventually("the API server to answer", PATIENCE, || bed.records())?;
        bed.is_back(fault)?;
        ensure!(bed.restarts()? == 0, "a container was restarted");
        bed.end()
    });
}

#[test]
fn an_api_server_that_goes_after_the_claim_delays_the_rest() {
    story_within("an_api_server_that_goes_after_the_claim_delays_the_rest", LIMIT, |lab| {
        let bed = Bed::begin(lab)?;
        let control = bed.site.kubernetes.control();
        // From the claim to Kafka's start there is less than half a second.
        let fault = bed.site.cut()?;
        eventually("the claim", PATIENCE, || {
            ensure!(is_reached(&bed.records()?, STAGES[0]), "there is none");
            Ok(())
        })?;
        control.part("kube-apiserver")?.kill()?;
        bed.starts_nothing(A_WHILE)?;
        control.run("kube-apiserver")?;
        eventually("the API server to answer", PATIENCE, || bed.records())?;
        bed.is_back(fault)?;
        bed.end()
    });
}

#[test]
fn a_sidecar_without_its_rights_starts_nothing() {
    story_within("a_sidecar_without_its_rights_starts_nothing", LIMIT, |lab| {
        let bed = Bed::begin(lab)?;
        let binding = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/understudy-ledger";
        let mut kept = bed.site.kubernetes.get(binding)?;
        for of_the_server in ["resourceVersion", "uid"] {
            kept["metadata"].as_object_mut().context("no metadata")?.remove(of_the_server);
        }
        bed.site.kubernetes.kubectl(&["delete", "rolebinding", "understudy-ledger"])?;
        let fault = bed.site.strike()?;
        bed.starts_nothing(A_WHILE)?;
        ensure!(bed.records()?.is_empty(), "it has claimed");
        bed.site.kubernetes.apply(&[kept])?;
        bed.is_back(fault)?;
        bed.end()
    });
}

/// Whether the journal has that entry, of the step that is named.
pub(crate) fn is_reached(records: &[Value], (entry, step): Stage) -> bool {
    let stages = records.first().and_then(|first| first["entry"]["claim"]["plan"]["stages"].as_array());
    let steps = stages.into_iter().flatten().filter_map(|stage| stage["steps"].as_array()).flatten();
    let index = step.and_then(|step| steps.into_iter().position(|one| one["step"] == step));
    records.iter().any(|record| {
        let of = record["entry"]["step"].as_u64().and_then(|of| usize::try_from(of).ok());
        record["entry"]["entry"] == entry && of == index
    })
}
