//! After a takeover the old host gets its power back, and its units start: Kafka must not, and once a person
//! has let the host join again, it is a standby.

use anyhow::{Context, ensure};
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, story};

#[test]
fn an_old_host_that_comes_back_does_not_start_its_broker() {
    story("an_old_host_that_comes_back_does_not_start_its_broker", |lab| {
        let setup = Setup { at_home: &[1], ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        let home = scenario.at_home.first().context("no agent at home")?;
        let broker = scenario.cluster.broker(VICTIM)?;

        // Before anything has happened the broker is its home's. There it runs, and a second one may not start.
        for (agent, label) in [(home, "kafka_runs"), (&scenario.agent, "not_owner")] {
            let said = agent.cli(&["guard", "--broker", "1"])?;
            ensure!(said.code == 3 && said.stderr.contains(label), "{said:?}");
        }

        scenario.start_agents()?;
        let dead = Fault::PowerOff("b1".to_owned());
        scenario.recovered_after(PATIENCE, || scenario.strike(&dead))?;
        scenario.decided("healthy", PATIENCE)?;

        dead.heal(lab)?;
        home.start()?;
        let refused = broker.start_if_guard_allows(home)?;
        let Err(said) = refused else { anyhow::bail!("Kafka was started on the old host") };
        let words = format!("{}{}", said.stdout, said.stderr);
        ensure!(words.contains("standby-1"), "the guard does not say who owns the broker: {words}");
        scenario.ensure_runs_on("standby-1")?;
        scenario.flows(1000)?;

        scenario.cli_of(home, &["rejoin", "--yes"], 0)?;
        let again = broker.start_if_guard_allows(home)?;
        ensure!(again.is_err(), "to join as a standby is not to own the broker");
        // As a standby it does what standbys do: the broker comes home.
        scenario.recovered_after(PATIENCE, || scenario.strike(&Fault::PowerOff("standby-1".to_owned())))?;
        scenario.decided_by(home, "healthy", PATIENCE)?;
        scenario.ensure_runs_on("b1")?;
        scenario.verdict()?;
        Ok(())
    });
}
