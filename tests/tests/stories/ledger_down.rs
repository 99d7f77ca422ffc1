//! The ledger does not answer. Brokers do not need it, and nobody stops them; a takeover needs it, and waits
//! for it.

use std::time::Duration;

use anyhow::ensure;
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{Fault, Storage, eventually, story};

#[test]
fn without_a_ledger_nothing_is_done_and_nothing_is_stopped() {
    story("without_a_ledger_nothing_is_done_and_nothing_is_stopped", |lab| {
        let setup = Setup { ledger: Storage::Fuse, at_home: &[1], ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        scenario.start_agents()?;
        let down = Fault::StallLedger(["b1", "standby-1"].map(str::to_owned).to_vec());
        scenario.strike(&down)?;
        eventually("the agent to say that it is not ready", PATIENCE, || {
            let (code, body) = scenario.agent.get("/readyz")?;
            ensure!(code != 200, "{body}");
            Ok(())
        })?;
        std::thread::sleep(Duration::from_secs(5));
        scenario.flows(2000)?;
        scenario.ensure_runs_on("b1")?;
        scenario.cluster.wait_complete(PATIENCE)?;

        scenario.recovered_after(PATIENCE, || {
            scenario.strike(&Fault::PowerOff("b1".to_owned()))?;
            scenario.held_by(&scenario.agent, "ledger_unreachable", PATIENCE)?;
            // The agent's own pages need no ledger; a command that does says so and ends.
            let said = scenario.agent.cli(&["status"])?;
            ensure!(said.code != 0 && format!("{said:?}").contains("ledger"), "{said:?}");
            std::thread::sleep(Duration::from_secs(8));
            scenario.ensure_not_started()?;
            ensure!(lab.switch().count("off", "b1") == 0, "fenced without a claim");
            down.heal(lab)
        })?;
        scenario.decided("healthy", PATIENCE)?;
        scenario.ensure_runs_on("standby-1")?;
        ensure!(scenario.epochs()?.len() == 1, "{:?}", scenario.epochs()?);
        scenario.verdict()?;
        Ok(())
    });
}
