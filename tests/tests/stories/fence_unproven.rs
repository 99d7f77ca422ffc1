//! No proof, no start: the switch answers "unknown", or nothing at all.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{Lab, Mode, story};

#[test]
fn a_switch_that_does_not_know_stops_the_takeover() {
    story("a_switch_that_does_not_know_stops_the_takeover", |lab| unproven(lab, Mode::Unknown));
}

#[test]
fn a_switch_that_hangs_stops_the_takeover() {
    story("a_switch_that_hangs_stops_the_takeover", |lab| unproven(lab, Mode::Hang));
}

fn unproven(lab: &Lab, mode: Mode) -> Result<()> {
    let scenario = Scenario::begin(lab, &Setup::default())?;
    scenario.start_agents()?;
    lab.switch().set_mode("b1", mode);
    // The host really dies; but nobody can prove it.
    scenario.victim()?.power_off()?;
    let status = scenario.decided("escalate", PATIENCE)?;
    ensure!(status.to_string().contains("fence"), "`status` does not say what is missing: {status}");
    scenario.ensure_not_started()?;

    let said = scenario.cli(&["status"], 4)?.stdout;
    ensure!(said.contains("b1") && said.contains("fence"), "`status` does not say what is missing:\n{said}");
    // It stays so, and it is not tried again.
    std::thread::sleep(Duration::from_secs(10));
    scenario.ensure_not_started()?;
    ensure!(scenario.epochs()?.len() == 1, "a stuck takeover was repeated");
    // A person who tries by hand gets the same answer.
    scenario.cli(&["failover", "--broker", "1", "--yes"], 4)?;
    scenario.ensure_not_started()?;

    // The person mends the switch, and it goes through.
    lab.switch().set_mode("b1", Mode::Works);
    scenario.cli(&["failover", "--broker", "1", "--yes"], 0)?;
    scenario.cluster.wait_complete(PATIENCE)?;
    scenario.decided("healthy", PATIENCE)?;
    scenario.verdict()?;
    Ok(())
}
