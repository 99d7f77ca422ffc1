//! Kafka alone dies, on a host that is well: the agent there starts it again in place. Nobody is fenced, and
//! no standby acts.

use anyhow::ensure;
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{Fault, story};

#[test]
fn a_killed_broker_is_restarted_in_place() {
    story("a_killed_broker_is_restarted_in_place", |lab| {
        let setup = Setup { at_home: &[1], peers: true, ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        scenario.start_agents()?;
        scenario.recovered_after(PATIENCE, || scenario.strike(&Fault::KillKafka("b1".to_owned())))?;
        let home = scenario.at_home.first().map_or(&scenario.agent, |agent| agent);
        for agent in [home, &scenario.agent] {
            scenario.decided_by(agent, "healthy", PATIENCE)?;
        }
        scenario.ensure_runs_on("b1")?;
        scenario.ensure_not_started()?;
        let asked = lab.switch().requests();
        ensure!(!asked.iter().any(|request| request.starts_with("off ")), "a host was fenced: {asked:?}");
        let epochs = scenario.epochs()?;
        ensure!(epochs.len() == 1, "one restart: {epochs:?}");
        scenario.journal_says(1, &["recovered"], PATIENCE)?;

        // It is the agent's now, and dies again: once more, and no more than that.
        scenario.recovered_after(PATIENCE, || scenario.strike(&Fault::KillKafka("b1".to_owned())))?;
        scenario.decided_by(home, "healthy", PATIENCE)?;
        scenario.ensure_runs_on("b1")?;
        ensure!(scenario.epochs()?.len() == 2, "{:?}", scenario.epochs()?);
        scenario.ensure_not_started()?;
        scenario.verdict()?;
        Ok(())
    });
}
