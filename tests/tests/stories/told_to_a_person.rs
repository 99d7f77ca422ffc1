//! What the agents ask a person for is what helps: after each message the command that it names is run, and
//! the broker is back. One cluster's life in mode `approve`: a standby that could not, a Kafka that dies
//! right after its start, a clean stop that was none.
//!
//! Elsewhere: `resume` in `controlled_shutdown`, `failover` after a fence that was not proven in
//! `fence_unproven`, `rejoin` after a refusal by `guard` in `resurrected_host`.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use e2e::kafka::Standing;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, eventually, story};
use serde_json::Value;

/// A Kafka that dies is left to a person at once.
const NO_RESTARTS: &[(&str, &str)] = &[("rejoin_restarts", "0")];

#[test]
fn what_a_person_is_told_to_do_brings_the_broker_back() {
    story("what_a_person_is_told_to_do_brings_the_broker_back", |lab| {
        let setup = Setup { mode: "approve", policy: NO_RESTARTS, ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        scenario.start_agents()?;
        let died = Instant::now();
        scenario.recovered_after(PATIENCE, || {
            abandoned_by_all(&scenario)?;
            abandoned_right_after_the_start(&scenario)
        })?;
        // The first attempt was for the same fault: the outage is as long as it was, whoever ended it.
        let told = told(&scenario)?;
        ensure!(told + 5.0 > died.elapsed().as_secs_f64(), "{told} s told of {:?}", died.elapsed());
        stopped_on_purpose(&scenario)?;
        without_a_daemon(&scenario)?;
        scenario.verdict()?;
        Ok(())
    });
}

#[test]
fn a_registration_that_we_removed_is_no_clean_stop() {
    story("a_registration_that_we_removed_is_no_clean_stop", |lab| {
        // So soon that the list loses the broker as if it had been stopped.
        let policy = &[("host_down_after", "1s"), ("rejoin_restarts", "0")];
        let setup = Setup { policy, ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        scenario.start_agents()?;
        scenario.recovered_after(PATIENCE, || {
            scenario.strike(&Fault::PowerOff("b1".to_owned()))?;
            dies_after_its_start(&scenario, 1)?;
            let journal = scenario.journal_of(1);
            let removed = journal.contains("removed the dead broker's registration");
            ensure!(removed, "it was not removed:\n{journal}");
            Ok(())
        })?;
        scenario.decided("healthy", PATIENCE)?;
        scenario.ensure_runs_on("standby-1")?;
        scenario.verdict()?;
        Ok(())
    });
}

#[test]
fn takeovers_that_are_enough_go_on_once_a_person_has_looked() {
    story("takeovers_that_are_enough_go_on_once_a_person_has_looked", |lab| {
        let setup = Setup { standbys: 2, policy: &[("takeovers_per_broker", "1")], ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        scenario.start_agents()?;
        scenario.recovered_after(PATIENCE, || scenario.strike(&Fault::PowerOff("b1".to_owned())))?;
        let owner = scenario.running_on()?.first().context("it runs nowhere")?.clone();
        let mut others = scenario.standbys.iter().filter(|agent| *agent.host().name() != owner);
        let other = others.next().context("no other standby")?;
        scenario.recovered_after(PATIENCE, || {
            scenario.strike(&Fault::PowerOff(owner.clone()))?;
            scenario.held_by(other, "budget_spent", PATIENCE)?;
            let said = scenario.cli_of(other, &["status"], 3)?.stdout;
            ensure!(said.contains("understudy ack"), "`status` does not ask for it:\n{said}");
            ensure!(scenario.epochs()?.len() == 1, "{:?}", scenario.epochs()?);
            let acked = ["ack", "--broker", "1", "--reason", "two hosts of one rack"];
            scenario.cli_of(other, &acked, 0).map(drop)
        })?;
        scenario.decided_by(other, "healthy", PATIENCE)?;
        scenario.ensure_runs_on(other.host().name())?;
        scenario.verdict()?;
        Ok(())
    });
}

/// Its log dir is not mounted here, and there is no other standby.
fn abandoned_by_all(scenario: &Scenario<'_>) -> Result<()> {
    let broker = scenario.cluster.broker(VICTIM)?;
    let mount = broker.mount_point();
    scenario.standby.unbind(&mount)?;
    scenario.strike(&Fault::PowerOff("b1".to_owned()))?;
    approve(scenario)?;
    let status = scenario.decided("escalate", PATIENCE)?;
    ensure!(reason(&status) == "abandoned_by_all", "{status}");
    asked_for(scenario, 4, "understudy ack")?;
    scenario.standby.bind(broker.log_dir(), &mount)?;
    scenario.cli(&["ack", "--broker", "1", "--reason", "it is mounted again"], 0).map(drop)
}

fn abandoned_right_after_the_start(scenario: &Scenario<'_>) -> Result<()> {
    approve(scenario)?;
    dies_after_its_start(scenario, 2)?;
    approve(scenario)
}

/// Kafka is killed before it is back. Where the registration was removed, the list lost the broker by our own
/// work.
fn dies_after_its_start(scenario: &Scenario<'_>, epoch: u32) -> Result<()> {
    eventually("Kafka to be started on the standby", PATIENCE, || {
        ensure!(scenario.running_on()? == ["standby-1"], "{}", scenario.journal_of(epoch));
        Ok(())
    })?;
    scenario.strike(&Fault::KillKafka("standby-1".to_owned()))?;
    let status = scenario.decided("escalate", PATIENCE)?;
    ensure!(reason(&status) == "abandoned_by_all", "{status}");
    asked_for(scenario, 4, "understudy ack")?;
    scenario.cli(&["ack", "--broker", "1", "--reason", "it was killed"], 0).map(drop)
}

/// Somebody stops it, nobody is to hear of it, and then it turns out that it should run.
fn stopped_on_purpose(scenario: &Scenario<'_>) -> Result<()> {
    scenario.recovered_after(PATIENCE, || {
        scenario.strike(&Fault::StopKafka("standby-1".to_owned()))?;
        scenario.held_by(&scenario.agent, "stopped_cleanly", PATIENCE)?;
        let plan = scenario.cli(&["plan", "--broker", "1"], 0)?.stdout;
        ensure!(plan.contains("as a clean stop does"), "`plan` does not say why nothing is done:\n{plan}");
        ensure!(!plan.contains("nothing speaks against it"), "{plan}");
        scenario.cli(&["failover", "--broker", "1", "--yes"], 0).map(drop)
    })?;
    scenario.decided("healthy", PATIENCE)?;
    scenario.ensure_runs_on("standby-1")
}

/// The agent is restarted while the broker is down: it has not seen how that went, and calls for a person,
/// whose command dates the fault by what the agent had written down.
fn without_a_daemon(scenario: &Scenario<'_>) -> Result<()> {
    let died = Instant::now();
    scenario.recovered_after(PATIENCE, || {
        scenario.strike(&Fault::KillKafka("standby-1".to_owned()))?;
        scenario.held_by(&scenario.agent, "awaiting_approval", PATIENCE)?;
        scenario.agent.kill()?;
        let watch = scenario.cluster.watch(VICTIM);
        watch.wait("to have lost its session", PATIENCE, |standing: &Standing| !standing.listed)?;
        scenario.cli(&["failover", "--broker", "1", "--yes"], 0).map(drop)
    })?;
    let outage = died.elapsed().as_secs_f64();
    scenario.agent.start()?;
    scenario.decided("healthy", PATIENCE)?;
    let told = told(scenario)?;
    ensure!((outage - 3.0..outage + 5.0).contains(&told), "{outage:.1} s without it, and {told} s told");
    Ok(())
}

/// Waits until only a person's word is missing, and gives it as the message says.
fn approve(scenario: &Scenario<'_>) -> Result<()> {
    scenario.held_by(&scenario.agent, "awaiting_approval", PATIENCE)?;
    asked_for(scenario, 3, "understudy approve")?;
    scenario.cli(&["approve", "--broker", "1"], 0).map(drop)
}

fn asked_for(scenario: &Scenario<'_>, code: i32, command: &str) -> Result<()> {
    let said = scenario.cli(&["status"], code)?.stdout;
    ensure!(said.contains(command), "`status` does not ask for `{command}`:\n{said}");
    Ok(())
}

fn reason(status: &Value) -> &str {
    status["decision"]["reasons"][0]["reason"].as_str().unwrap_or_default()
}

/// The time-to-ISR of the newest epoch, in seconds.
fn told(scenario: &Scenario<'_>) -> Result<f64> {
    let status = scenario.decided("healthy", PATIENCE)?;
    status["last"]["outcome"]["time_to_isr"]["secs"].as_f64().context("no time-to-ISR")
}
