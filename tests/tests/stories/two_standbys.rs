//! Two standbys see the same fault at the same time. One of them wins the epoch; and when the winner dies in
//! the middle of its takeover, the other one succeeds it, and fences it too.

use anyhow::{Context, Result, ensure};
use e2e::agent::Agent;
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{Fault, Lab, Mode, eventually, story};
use std::sync::Arc;

#[test]
fn the_winner_dies_after_the_claim() {
    story("the_winner_dies_after_the_claim", |lab| {
        // A switch that hangs keeps the takeover between claim and fence for as long as it takes.
        let hang = Fault::Switch { plug: "b1".to_owned(), mode: Mode::Hang };
        hang.strike(lab)?;
        succeeded(lab, |s| s.journal().contains("claimed"), || hang.heal(lab))
    });
}

#[test]
fn the_winner_dies_after_the_start() {
    story("the_winner_dies_after_the_start", |lab| {
        succeeded(lab, |s| s.running_on().is_ok_and(|hosts| !hosts.is_empty()), || Ok(()))
    });
}

/// Switches the winner's host off as soon as `reached`; the other one recovers the broker after `between`.
fn succeeded(
    lab: &Lab,
    reached: impl Fn(&Scenario) -> bool,
    between: impl FnOnce() -> Result<()>,
) -> Result<()> {
    // Nobody asks the other: both step in at once, and only the ledger decides.
    let setup = Setup { standbys: 2, policy: &[("claim_silent_after", "9s")], ..Setup::default() };
    let scenario = Scenario::begin(lab, &setup)?;
    scenario.start_agents()?;
    let mut other = None;
    scenario.recovered_after(PATIENCE, || {
        scenario.strike(&Fault::PowerOff("b1".to_owned()))?;
        eventually("the takeover to get that far", PATIENCE, || {
            if reached(&scenario) { Ok(()) } else { Err(scenario.journal()) }
        })?;
        let epochs = scenario.epochs()?;
        ensure!(epochs.len() == 1, "more than one epoch was claimed: {epochs:?}");
        let (winner, loser) = race(&scenario)?;
        scenario.strike(&Fault::PowerOff(winner.host().name().to_owned()))?;
        ensure!(!scenario.journal().contains("\"ended\""), "the takeover was over already");
        other = Some((winner, loser));
        between()
    })?;
    let (winner, loser) = other.context("nobody won")?;
    let (winner, survivor) = (winner.host().name(), loser.host().name());
    scenario.decided_by(&loser, "healthy", PATIENCE)?;
    scenario.ensure_runs_on(survivor)?;
    let epochs = scenario.epochs()?;
    ensure!(epochs.len() == 2, "a claim, and one that succeeds it: {epochs:?}");
    scenario.journal_says(2, &["recovered", survivor], PATIENCE)?;
    for host in ["b1", winner] {
        ensure!(lab.switch().count("off", host) > 0, "{host} may have been writing and was not fenced");
    }
    ensure!(lab.switch().count("off", survivor) == 0, "the survivor fenced itself");
    scenario.verdict()?;
    Ok(())
}

/// Who has claimed the first epoch, and who sees that and holds.
fn race(scenario: &Scenario) -> Result<(Arc<Agent>, Arc<Agent>)> {
    let [one, two] = scenario.standbys.as_slice() else { anyhow::bail!("not two standbys") };
    eventually("one to hold because the other one is at it", PATIENCE, || {
        for (held, other) in [(one, two), (two, one)] {
            let decision = scenario.status_of(held)?["decision"].take();
            let claimed = decision["reasons"].as_array().into_iter().flatten();
            let by =
                claimed.filter(|reason| reason["reason"] == "claimed_elsewhere").map(|reason| &reason["by"]);
            if by.into_iter().any(|by| *by == *other.host().name()) {
                return Ok((Arc::clone(other), Arc::clone(held)));
            }
        }
        anyhow::bail!("neither does")
    })
}
