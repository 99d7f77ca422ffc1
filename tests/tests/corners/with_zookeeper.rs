//! What only a cluster with ZooKeeper has: a session that outlives its broker, and a node that says who is the
//! controller.

use anyhow::{Context, ensure};
use e2e::kafka::ClusterSpec;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, eventually, story};

/// Kafka's default for `zookeeper.session.timeout.ms`.
const SESSION: f64 = 18.0;

/// The dead broker was the controller, too, and nobody waits for the end of its session.
#[test]
fn what_a_dead_broker_left_in_zookeeper_is_removed_after_the_proof() {
    story("what_a_dead_broker_left_in_zookeeper_is_removed_after_the_proof", |lab| {
        let setup = Setup { mode: "observe", ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        scenario.start_agents()?;
        let checked = scenario.cli(&["check"], 0)?.stdout;
        ensure!(checked.contains("brokers 1, 2, 3 are registered in"), "{checked}");

        let zookeeper = scenario.cluster.zookeeper().context("no ZooKeeper")?;
        let is_controller = || -> anyhow::Result<()> {
            let said = zookeeper.say(&["get", "/controller"])?;
            ensure!(said.contains(&format!("\"brokerid\":{VICTIM}")), "{said}");
            Ok(())
        };
        // The others cannot ask for it meanwhile.
        let others = ["b2", "b3"].map(|host| Fault::Freeze(host.to_owned()));
        others.iter().try_for_each(|fault| scenario.strike(fault))?;
        zookeeper.say(&["delete", "/controller"])?;
        eventually("the victim to be the controller", PATIENCE, is_controller)?;
        others.iter().try_for_each(|fault| fault.heal(lab))?;
        scenario.cluster.wait_complete(PATIENCE)?;

        let victim = scenario.victim()?.clone();
        let rejoin = scenario.recovered_after(PATIENCE, || {
            victim.power_off()?;
            // Nobody else has noticed so far, and a person says that it is so.
            let held = scenario.cli(&["failover", "--broker", "1", "--yes"], 3)?;
            ensure!(held.stdout.contains("the broker list still has it"), "{held:?}");
            scenario.cli(&["failover", "--broker", "1", "--yes", "--override"], 0).map(drop)
        })?;
        ensure!(rejoin.gone < SESSION - 3.0, "it waited for its session: {rejoin:?}");
        let said = ["ZooKeeper removed the dead broker's registration", "recovered"];
        scenario.journal_says(1, &said, PATIENCE)?;
        ensure!(is_controller().is_err(), "its controller's node is still there");
        scenario.verdict()?;
        Ok(())
    });
}

/// Only who the brokers are may remove what one of them left.
#[test]
fn a_zookeeper_with_tls_logins_and_acls_is_spoken_to_as_the_brokers_do() {
    story("a_zookeeper_with_tls_logins_and_acls_is_spoken_to_as_the_brokers_do", |lab| {
        let cluster = ClusterSpec { secure_zookeeper: true, ..ClusterSpec::default() };
        let setup = Setup { mode: "observe", cluster, ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        let zookeeper = scenario.cluster.zookeeper().context("no ZooKeeper")?;
        let secured = zookeeper.secured().context("it is not secured")?;
        scenario.start_agents()?;
        let checked = scenario.cli(&["check"], 0)?.stdout;
        ensure!(checked.contains("brokers 1, 2, 3 are registered in"), "{checked}");
        secured.password_of_agent(Some("not-the-one"))?;
        let checked = scenario.cli(&["check"], 0)?.stdout;
        ensure!(checked.contains("the password of user kafka is refused: put it into"), "{checked}");
        secured.password_of_agent(None)?;

        // The bed is as strict as it says.
        let refused = zookeeper.say_as_stranger(&["delete", "/brokers/ids/1"])?;
        ensure!(refused.contains("Insufficient permission") || refused.contains("NoAuth"), "{refused}");

        let victim = scenario.victim()?.clone();
        let rejoin = scenario.recovered_after(PATIENCE, || {
            victim.power_off()?;
            scenario.cli(&["failover", "--broker", "1", "--yes", "--override"], 0).map(drop)
        })?;
        ensure!(rejoin.gone < SESSION - 3.0, "it waited for its session: {rejoin:?}");
        let said = ["ZooKeeper removed the dead broker's registration", "recovered"];
        scenario.journal_says(1, &said, PATIENCE)?;
        scenario.verdict()?;
        Ok(())
    });
}
