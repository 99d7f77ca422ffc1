//! The agent is killed in the middle of a takeover and started again: it finishes the same takeover.

use anyhow::{Result, ensure};
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Lab, Mode, eventually, story};

/// The first step is the fence; the configuration is written beside it.
const FENCED: &str = r#""entry":"done","step":0,"#;

#[test]
fn killed_after_the_claim() {
    story("killed_after_the_claim", |lab| {
        // A switch that hangs keeps the takeover between claim and fence for as long as it takes.
        lab.switch().set_mode("b1", Mode::Hang);
        let mend = |s: &Scenario<'_>| {
            // The new agent never sees the broker in the cluster.
            let gone = s.cluster.watch(VICTIM).wait("to be gone", PATIENCE, |standing| !standing.listed);
            lab.switch().set_mode("b1", Mode::Works);
            gone.map(drop)
        };
        killed(lab, |s| s.journal().contains("claimed") && !s.journal().contains(FENCED), mend)
    });
}

#[test]
fn killed_after_the_fence() {
    story("killed_after_the_fence", |lab| {
        killed(lab, |s| s.journal().contains(FENCED) && lab.switch().count("off", "b1") > 0, |_| Ok(()))
    });
}

#[test]
fn killed_after_the_start() {
    story("killed_after_the_start", |lab| {
        killed(lab, |s| s.kafkas().is_ok_and(|found| !found.is_empty()), |_| Ok(()))
    });
}

/// Kills the agent as soon as `reached`, and starts it again after `between`.
fn killed(
    lab: &Lab,
    reached: impl Fn(&Scenario) -> bool,
    between: impl FnOnce(&Scenario<'_>) -> Result<()>,
) -> Result<()> {
    let scenario = Scenario::begin(lab, &Setup::default())?;
    scenario.start_agents()?;
    let victim = scenario.victim()?.clone();
    let mut started = Vec::new();
    scenario.recovered_after(PATIENCE, || {
        victim.power_off()?;
        eventually("the takeover to get that far", PATIENCE, || {
            if reached(&scenario) { Ok(()) } else { Err(scenario.journal()) }
        })?;
        scenario.agent.kill()?;
        started = scenario.kafkas()?;
        lab.note(format!("the agent is dead; Kafka on the standby: {started:?}"));
        ensure!(!scenario.journal().contains("\"ended\""), "the takeover was over already");
        between(&scenario)?;
        scenario.agent.start()
    })?;
    scenario.decided("healthy", PATIENCE)?;
    let kafkas = scenario.kafkas()?;
    ensure!(kafkas.len() == 1, "Kafka runs {} times", kafkas.len());
    ensure!(started.is_empty() || started == kafkas, "Kafka was started again: {started:?}, {kafkas:?}");
    ensure!(starts(&scenario)? == 1, "Kafka was started {} times", starts(&scenario)?);
    ensure!(scenario.epochs()?.len() == 1, "another takeover was begun");
    eventually("the end of the takeover", PATIENCE, || {
        if scenario.journal().contains("recovered") { Ok(()) } else { Err(scenario.journal()) }
    })?;
    scenario.verdict()?;
    Ok(())
}

/// How often Kafka began to start on the standby, by its own log.
fn starts(scenario: &Scenario) -> Result<usize> {
    let output = scenario.standby.local().join("state/broker-1/kafka.out");
    let text = std::fs::read_to_string(output)?;
    Ok(text
        .lines()
        .filter(|line| line.contains("Transition from SHUTDOWN to STARTING (BrokerServer)"))
        .count())
}
