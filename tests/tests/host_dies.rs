//! The main job. The host of a broker dies under load; the daemon on the standby recovers the broker by itself.

use anyhow::{Result, ensure};
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::story;

#[test]
fn the_daemon_recovers_a_broker_whose_host_dies() {
    story("the_daemon_recovers_a_broker_whose_host_dies", |lab| {
        let mut scenario = Scenario::begin(lab, &Setup::default())?;
        scenario.start_agents()?;
        let victim = scenario.victim()?.clone();
        let rejoin = scenario.recovered_after(PATIENCE, || victim.power_off())?;
        scenario.decided("healthy", PATIENCE)?;

        // The group goes on from its offsets, with another member too.
        scenario.flows(500)?;
        scenario.change_group_member()?;

        let measured = time_to_isr(&scenario)?;
        let error = (measured - rejoin.all_in_sync).abs();
        lab.note(format!(
            "time-to-ISR: agent {measured:.2} s, seen from outside {:.2} s",
            rejoin.all_in_sync
        ));
        ensure!(error < 1.5, "the agent says {measured} s, from outside it was {} s", rejoin.all_in_sync);

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
        scenario.verdict()?;
        Ok(())
    });
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
