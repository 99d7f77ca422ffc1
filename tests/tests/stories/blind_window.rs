//! A broker's host dies while the agents that could take it over are cut off, and its session ends in that
//! window. Nobody saw a clean stop, so it is none: once the link is back, the broker is taken over, and the
//! outage is told as long as it was.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::kafka::Standing;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, Lab, story};

/// How long the link is down.
const WINDOW: Duration = Duration::from_secs(15);

#[test]
fn a_death_in_a_blind_window_is_taken_over() {
    story("a_death_in_a_blind_window_is_taken_over", |lab| blind(lab, &Setup::default()));
}

#[test]
fn a_death_in_a_window_of_two_standbys_is_taken_over() {
    let setup = Setup { standbys: 2, peers: true, ..Setup::default() };
    story("a_death_in_a_window_of_two_standbys_is_taken_over", |lab| blind(lab, &setup));
}

/// All standbys are behind one switch.
fn blind(lab: &Lab, setup: &Setup) -> Result<()> {
    let scenario = Scenario::begin(lab, setup)?;
    scenario.start_agents()?;
    let standbys: Vec<String> =
        scenario.standbys.iter().map(|agent| agent.host().name().to_owned()).collect();
    let link = Fault::CutOff(standbys);
    let watch = scenario.cluster.watch(VICTIM);
    let mut fault = None;
    scenario.recovered_after(PATIENCE, || {
        let cut = Instant::now();
        scenario.strike(&link)?;
        // A look that was on its way when the link went is over.
        for agent in &scenario.standbys {
            scenario.decided_by(agent, "hold", PATIENCE)?;
        }
        scenario.strike(&Fault::PowerOff("b1".to_owned()))?;
        fault = Some(Instant::now());
        watch.wait("to have lost its session", PATIENCE, |standing: &Standing| !standing.listed)?;
        std::thread::sleep(WINDOW.saturating_sub(cut.elapsed()));
        link.heal(lab)
    })?;
    let outage = fault.context("it never died")?.elapsed();
    let mut owners = scenario.standbys.iter().filter_map(|agent| {
        let status = scenario.decided_by(agent, "healthy", PATIENCE).ok()?;
        (status["owner"] == agent.host().name()).then_some((agent, status))
    });
    let (owner, status) = owners.next().context("nobody owns it")?;
    scenario.ensure_runs_on(owner.host().name())?;
    ensure!(scenario.epochs()?.len() == 1, "more than one takeover: {:?}", scenario.epochs()?);
    // Counted from when the controller last heard it; and the broker was back a moment before this story
    // knew.
    let told = status["last"]["outcome"]["time_to_isr"]["secs"].as_f64().context("no time-to-ISR")?;
    let outage = outage.as_secs_f64();
    ensure!((outage - 2.0..outage + 10.0).contains(&told), "{outage:.1} s without it, and {told} s told");
    let history = scenario.cli_of(owner, &["history", "--broker", "1"], 0)?.stdout;
    ensure!(history.contains("ago, by the active controller"), "who saw it last is not told:\n{history}");
    scenario.verdict()?;
    Ok(())
}
