//! The negative: nothing is wrong that a takeover would mend, and nothing is done.

use std::time::Duration;

use anyhow::ensure;
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{eventually, story};
use rustix::process::Signal;

#[test]
fn a_restart_and_a_pause_are_no_failures() {
    story("a_restart_and_a_pause_are_no_failures", |lab| {
        let scenario = Scenario::begin(lab, &Setup { policy: &[("hung_after", "10s")], ..Setup::default() })?;
        scenario.start_agents()?;
        scenario.flows(2000)?;

        // Broker 2 is restarted cleanly, as a person would.
        let broker = scenario.cluster.broker(2)?;
        let process = broker.process()?;
        process.signal(Signal::TERM)?;
        process.wait(PATIENCE)?;
        broker.start()?;
        scenario.cluster.wait_complete(PATIENCE)?;
        scenario.ensure_untouched()?;
        lab.note("broker 2 was restarted cleanly");

        // Broker 1 stands still: longer than a dead host is given, shorter than a hung process is.
        let victim = scenario.cluster.broker(1)?.process()?;
        victim.signal(Signal::STOP)?;
        eventually("the pause to be noticed", Duration::from_secs(20), || {
            let status = scenario.status()?;
            ensure!(status["decision"]["decision"] == "suspect", "{status}");
            Ok(())
        })?;
        // The pause itself is the condition here.
        std::thread::sleep(Duration::from_secs(4));
        scenario.ensure_untouched()?;
        victim.signal(Signal::CONT)?;
        scenario.decided("healthy", PATIENCE)?;
        scenario.cluster.wait_complete(PATIENCE)?;
        scenario.flows(2000)?;
        scenario.ensure_untouched()?;
        scenario.verdict()?;
        Ok(())
    });
}
