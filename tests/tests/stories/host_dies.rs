//! The main job. The host of a broker dies under load; the daemon on the standby recovers the broker by
//! itself, and clients that can only wait learn of it: the agent that was on the host had told who is
//! connected.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{SilentClient, story};
use jiff::Timestamp;
use serde_json::Value;

/// librdkafka's own. Only a reset can be what ends a producer's wait sooner.
const SOCKET_TIMEOUT_MS: u32 = 60_000;

#[test]
fn the_daemon_recovers_a_broker_whose_host_dies() {
    story("the_daemon_recovers_a_broker_whose_host_dies", |lab| {
        let setup =
            Setup { at_home: &[1], peers: true, socket_timeout_ms: SOCKET_TIMEOUT_MS, ..Setup::default() };
        let mut scenario = Scenario::begin(lab, &setup)?;
        let silent = SilentClient::connect(scenario.cluster.broker(VICTIM)?.address())?;
        scenario.start_agents()?;
        silent.is_known_to(&scenario.agent)?;
        let victim = scenario.victim()?.clone();
        let mut struck = Instant::now();
        let rejoin = scenario.recovered_after(PATIENCE, || {
            struck = Instant::now();
            victim.power_off()
        })?;
        scenario.decided("healthy", PATIENCE)?;
        // Not before there are new leaders that it could find.
        let (unregistered, (ended_by, at)) = (done(&scenario, "unregister")?, silent.ended()?);
        let after = at.duration_since(unregistered).as_millis();
        lab.note(format!("the silent client: {ended_by}, {after} ms after the registration was removed"));
        // By itself it would have waited for ever.
        ensure!(ended_by == ErrorKind::ConnectionReset && after >= 0, "{ended_by}, {after} ms after");

        // The group goes on from its offsets, with another member too.
        scenario.flows(500)?;
        scenario.change_group_member()?;

        let measured = time_to_isr(&scenario)?;
        let error = (measured - rejoin.all_in_sync).abs();
        lab.note(format!(
            "time-to-ISR: agent {measured:.2} s, seen from outside {:.2} s",
            rejoin.all_in_sync
        ));
        ensure!(
            error < 1.5 + rejoin.all_in_sync / 4.0,
            "the agent says {measured} s, from outside it was {} s",
            rejoin.all_in_sync
        );

        ensure!(lab.switch().count("off", "b1") >= 1, "the old host was never fenced");
        let history = scenario.cli(&["history", "--broker", "1"], 0)?.stdout;
        for word in ["fence b1", "prove by", "verify cluster", "start Kafka", "await_isr: done", "recovered"]
        {
            ensure!(history.contains(word), "`history` does not mention {word}:\n{history}");
        }
        ensure!(scenario.epochs()?.len() == 1, "one fault, one takeover");
        ensure!(scenario.kafkas()?.len() == 1, "one Kafka on the standby");
        // Every broker leads again what it prefers to lead.
        scenario.cluster.wait_complete(PATIENCE)?;
        let view = scenario.cluster.view()?;
        let mine = view.partitions.iter().filter(|p| p.replicas.first() == Some(&VICTIM));
        let led_by_others = mine.filter(|p| p.leader != VICTIM).count();
        ensure!(led_by_others == 0, "{led_by_others} partitions were not given back");
        // What was on its way to the dead host would have waited for all of the producer's own patience.
        let patience = Duration::from_millis(SOCKET_TIMEOUT_MS.into());
        let around = struck.checked_sub(Duration::from_secs(1)).unwrap_or(struck);
        let wait = scenario.verdict()?.history.since(around).longest_wait();
        lab.note(format!("longest wait of a record around the fault: {wait:.1?}"));
        ensure!(wait < patience, "a record waited for {wait:?}, as long as its producer does by itself");
        Ok(())
    });
}

/// When a step was done, by the journal.
fn done(scenario: &Scenario, name: &str) -> Result<Timestamp> {
    let journal = scenario.journal();
    let records = journal.lines().filter_map(|line| line.get(line.find('[')?..));
    let records: Vec<Value> =
        records.map(serde_json::from_str::<Vec<Value>>).collect::<Result<Vec<_>, _>>()?.concat();
    let stages = records.iter().find_map(|record| record["entry"]["claim"]["plan"]["stages"].as_array());
    let mut steps = stages.into_iter().flatten().filter_map(|stage| stage["steps"].as_array()).flatten();
    let step =
        steps.position(|step| step["step"] == name).with_context(|| format!("no {name} in the plan"))?;
    let done = |record: &&Value| record["entry"]["entry"] == "done" && record["entry"]["step"] == step;
    let done = records.iter().find(done).with_context(|| format!("{name} was not done:\n{journal}"))?;
    Ok(done["at"].as_str().context("a record without a time")?.parse()?)
}

/// Of the one takeover there was, by the agent's own metric.
fn time_to_isr(scenario: &Scenario) -> Result<f64> {
    let count = scenario.agent.metric("understudy_time_to_isr_seconds_count{broker=\"1\"}")?;
    ensure!(count == Some(1.0), "{count:?} takeovers are counted");
    let phases = scenario.agent.get("/metrics")?.1;
    for phase in ["detect", "claim", "fence", "prove", "prepare", "verify", "start", "rejoin", "settle"] {
        let series = format!("understudy_phase_seconds_count{{broker=\"1\",phase=\"{phase}\"}} 1");
        ensure!(phases.contains(&series), "no duration of phase {phase} in the metrics");
    }
    let sum = scenario.agent.metric("understudy_time_to_isr_seconds_sum{broker=\"1\"}")?;
    sum.ok_or_else(|| anyhow::anyhow!("no time-to-ISR in the metrics"))
}
