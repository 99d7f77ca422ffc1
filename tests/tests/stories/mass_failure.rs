//! Three of five broker hosts are cut off together: a rack or a network, not a host. Nobody acts, then or
//! later.

use std::time::Duration;

use anyhow::ensure;
use e2e::kafka::{ClusterSpec, Jvm};
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{Fault, eventually, story};

#[test]
fn three_brokers_cut_off_together_are_left_alone() {
    story("three_brokers_cut_off_together_are_left_alone", |lab| {
        let cluster = ClusterSpec { brokers: 5, jvm: Jvm::quick("256m"), ..ClusterSpec::default() };
        let scenario = Scenario::begin(lab, &Setup { cluster, rate: 200, ..Setup::default() })?;
        scenario.start_agents()?;
        let cut = Fault::CutOff(["b1", "b2", "b3"].map(str::to_owned).to_vec());
        scenario.strike(&cut)?;
        let held = scenario.held_by(&scenario.agent, "mass_failure", PATIENCE)?;
        lab.note(held["says"].to_string());
        // Each of the three is held: they are found out one after the other.
        eventually("all three are held", PATIENCE, || {
            let all = scenario.agent.status().map_err(|error| error.to_string())?;
            let brokers = all["brokers"].as_array().into_iter().flatten();
            let held = brokers.filter(|broker| broker["decision"]["decision"] == "hold").count();
            if held == 3 { Ok(()) } else { Err(all.to_string()) }
        })?;
        let said = scenario.cli(&["status"], 3)?.stdout;
        ensure!(said.contains("rack") || said.contains("network"), "`status` does not say why:\n{said}");
        let metric = "understudy_holds_total{broker=\"1\",reason=\"mass_failure\"}";
        ensure!(scenario.agent.metric(metric)?.is_some_and(|n| n >= 1.0), "the hold is not counted");
        // Long after a takeover of one would have been due, and the sessions have expired.
        std::thread::sleep(Duration::from_secs(12));
        scenario.ensure_untouched()?;

        cut.heal(lab)?;
        scenario.cluster.wait_complete(PATIENCE)?;
        scenario.decided("healthy", PATIENCE)?;
        scenario.ensure_untouched()?;
        scenario.verdict()?;
        Ok(())
    });
}
