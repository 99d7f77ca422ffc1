//! The storage of all brokers stalls: they look dead, and a standby could not help. Nobody acts, and
//! everything goes on when the storage does.

use std::time::Duration;

use anyhow::ensure;
use e2e::kafka::ClusterSpec;
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{Fault, Storage, story};

#[test]
fn a_storage_that_stalls_is_waited_for() {
    story("a_storage_that_stalls_is_waited_for", |lab| {
        let scenario = Scenario::begin(
            lab,
            &Setup {
                cluster: ClusterSpec {
                    storage: Storage::Fuse,
                    // A broker goes on answering until each of these threads waits for the storage.
                    properties: vec![("num.io.threads".to_owned(), "2".to_owned())],
                    ..ClusterSpec::default()
                },
                policy: &[("hung_after", "5s")],
                canary: true,
                ..Setup::default()
            },
        )?;
        scenario.start_agents()?;
        scenario.flows(1000)?;
        let hosts = ["b1", "b2", "b3", "standby-1"].map(str::to_owned).to_vec();
        let stall = Fault::StallStorage(hosts);
        scenario.strike(&stall)?;
        scenario.held_by(&scenario.agent, "storage_stalled", PATIENCE)?;
        // Twice as long as a hung broker is given; nothing is acknowledged meanwhile.
        let before = scenario.acked();
        std::thread::sleep(Duration::from_secs(10));
        ensure!(scenario.acked() == before, "records are acknowledged without storage");
        scenario.ensure_untouched()?;

        stall.heal(lab)?;
        scenario.decided("healthy", PATIENCE)?;
        scenario.cluster.wait_complete(PATIENCE)?;
        scenario.flows(1000)?;
        let running = scenario.running_on()?;
        ensure!(running == ["b1"], "broker 1 runs on {running:?}");
        scenario.ensure_untouched()?;
        scenario.verdict()?;
        Ok(())
    });
}
