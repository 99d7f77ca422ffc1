//! What the standby's configuration has Kafka advertise leads nowhere. `check` says so; and after a takeover
//! all the same, the broker is not called back, and gets no leaders.

use anyhow::ensure;
use e2e::kafka::Standing;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, story};

/// Nobody has it.
const NOWHERE: &str = "10.77.0.99:9092";

#[test]
fn a_broker_that_advertises_an_address_of_nobody_is_not_back() {
    story("a_broker_that_advertises_an_address_of_nobody_is_not_back", |lab| {
        let setup = Setup {
            policy: &[("rejoin_patience", "60s")],
            properties: &[("advertised.listeners", "PLAINTEXT://10.77.0.99:9092")],
            ..Setup::default()
        };
        let scenario = Scenario::begin(lab, &setup)?;
        let said = scenario.cli(&["check"], 1)?.stdout;
        ensure!(said.contains(NOWHERE) && said.contains("no client would find it"), "{said}");
        scenario.start_agents()?;

        let watch = scenario.cluster.watch(VICTIM);
        scenario.strike(&Fault::PowerOff("b1".to_owned()))?;
        watch.wait("to be gone", PATIENCE, |standing: &Standing| !standing.listed)?;
        watch.wait("to be in every ISR", PATIENCE, |standing: &Standing| {
            standing.listed && standing.in_sync == standing.replicas
        })?;
        // It is told while it lasts, and then a person is called.
        let status = scenario.decided("escalate", PATIENCE)?;
        for words in [NOWHERE, "advertised.listeners", "await_isr"] {
            ensure!(status.to_string().contains(words), "`status` does not say {words}: {status}");
        }
        let led = scenario.cluster.view()?.partitions.iter().filter(|p| p.leader == VICTIM).count();
        ensure!(led == 0, "{led} partitions are led by a broker that no client reaches");
        scenario.ensure_runs_on("standby-1")?;
        scenario.verdict().map(drop)
    });
}
