//! An agent in mode `auto` and Kafka's own unit come up on a broker's home in the same moment, as at every
//! boot: Kafka is started once, by its unit, and holds the broker's right on the host for as long as it
//! lives.

use anyhow::ensure;
use e2e::nfs::kafka::UNIT;
use e2e::nfs::scenario::{NfsScenario, NfsSetup, kafkas};
use e2e::nfs::units::AGENT;
use e2e::scenario::PATIENCE;
use e2e::{eventually, story};

const BOOTS: usize = 4;
/// Locks a file that Kafka has inherited, if nobody has it.
const TRY: &str = "flock --nonblock /var/lib/understudy/broker-1/alive.lock true";

#[test]
fn an_agent_and_kafkas_unit_that_boot_together_start_one_kafka() {
    story("an_agent_and_kafkas_unit_that_boot_together_start_one_kafka", |lab| {
        let scenario = NfsScenario::begin(lab, &NfsSetup::default())?;
        let home = scenario.home.guest();
        scenario.home.start()?;
        scenario.home.wait_ready(PATIENCE)?;
        for boot in 0..BOOTS {
            home.sh(&format!("systemctl stop {AGENT} {UNIT}"))?;
            ensure!(home.run(&["sh", "-c", TRY])?.code == 0, "somebody holds the right while no Kafka runs");
            let (first, second) = if boot % 2 == 0 { (AGENT, UNIT) } else { (UNIT, AGENT) };
            home.sh(&format!("systemctl start --no-block {first}; systemctl start --no-block {second}"))?;
            scenario.cluster.wait_complete(PATIENCE)?;
            scenario.home.wait_ready(PATIENCE)?;
            let running = eventually("one Kafka to run", PATIENCE, || {
                let running = kafkas(home)?;
                ensure!(running.len() == 1, "{running:?} run");
                Ok(running)
            })?;
            ensure!(home.run(&["sh", "-c", TRY])?.code != 0, "Kafka {running:?} does not hold the right");
            let shown = home.sh(&format!("systemctl show {UNIT} -p NRestarts -p MainPID"))?;
            ensure!(shown.contains("NRestarts=0"), "boot {boot}: {shown}");
            lab.note(format!("boot {boot}: {} {}", running.join(" "), shown.trim().replace('\n', " ")));
        }
        ensure!(scenario.epochs()?.is_empty(), "the agent claimed {:?}", scenario.epochs()?);
        // The agent's own look at the unit and at who runs.
        let checked = scenario.home.cli(&["check"])?.stdout;
        ensure!(checked.contains("the Kafka that runs here holds it"), "{checked}");
        scenario.verdict()?;
        Ok(())
    });
}
