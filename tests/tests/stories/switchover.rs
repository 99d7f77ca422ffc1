//! A broker is moved on purpose, between hosts that are both well: its owner stops it, the other starts it,
//! nobody is fenced. What fails half way leaves it where it was.

use anyhow::ensure;
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{eventually, story};

#[test]
fn a_broker_is_moved_on_purpose() {
    story("a_broker_is_moved_on_purpose", |lab| {
        let setup = Setup { standbys: 2, at_home: &[1], peers: true, ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        scenario.start_agents()?;
        let [one, two] = scenario.standbys.as_slice() else { anyhow::bail!("not two standbys") };
        let [home] = scenario.at_home.as_slice() else { anyhow::bail!("not one agent at home") };

        lab.note("from home, where no agent started it, to standby-1");
        let from_home = ["switchover", "--broker", "1", "--to", "standby-1", "--yes"];
        scenario.recovered_after(PATIENCE, || scenario.cli_of(home, &from_home, 0).map(drop))?;
        scenario.journal_says(1, &["recovered"], PATIENCE)?;
        scenario.decided_by(one, "healthy", PATIENCE)?;
        scenario.ensure_runs_on("standby-1")?;
        ensure!(home.host().addresses()?.len() == 1, "its home kept the address");

        lab.note("to standby-2");
        let to_two = ["switchover", "--broker", "1", "--to", "standby-2", "--yes"];
        scenario.recovered_after(PATIENCE, || scenario.cli_of(one, &to_two, 0).map(drop))?;
        scenario.journal_says(2, &["recovered"], PATIENCE)?;
        scenario.decided_by(two, "healthy", PATIENCE)?;
        scenario.ensure_runs_on("standby-2")?;
        ensure!(one.host().addresses()?.len() == 1, "the old owner kept the address");
        scenario.flows(1000)?;

        // Half way: the old owner has let go, and the new one cannot take it.
        lab.note("back to standby-1, which cannot");
        let mount = scenario.cluster.broker(1)?.mount_point();
        one.host().unbind(&mount)?;
        let to_one = ["switchover", "--broker", "1", "--to", "standby-1", "--yes"];
        let said = scenario.cli_of(two, &to_one, 1)?;
        ensure!(format!("{said:?}").contains("abandoned at verify_log_dirs"), "{said:?}");
        eventually("the owner to have it again", PATIENCE, || {
            scenario.ensure_runs_on("standby-2")?;
            scenario.cluster.view()?.ensure_complete(3)
        })?;
        scenario.decided_by(two, "healthy", PATIENCE)?;
        ensure!(one.host().addresses()?.len() == 1, "the address went all the same");
        let asked = lab.switch().requests();
        ensure!(
            !asked.iter().any(|asked| asked.starts_with("off ")),
            "a switchover fences nobody: {asked:?}"
        );
        scenario.verdict()?;
        Ok(())
    });
}
