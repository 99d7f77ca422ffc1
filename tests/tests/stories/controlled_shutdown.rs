//! Somebody stops a broker on purpose, or says that nothing is to be done: nothing is done.

use std::time::Duration;

use anyhow::ensure;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, eventually, story};

#[test]
fn what_people_do_on_purpose_is_left_alone() {
    story("what_people_do_on_purpose_is_left_alone", |lab| {
        let setup =
            Setup { policy: &[("hung_after", "5s"), ("process_down_after", "5s")], ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        scenario.start_agents()?;
        let broker = scenario.cluster.broker(VICTIM)?;
        scenario.strike(&Fault::StopKafka("b1".to_owned()))?;
        broker.process()?.wait(PATIENCE)?;
        scenario.held_by(&scenario.agent, "stopped_cleanly", PATIENCE)?;
        scenario.cli(&["status"], 3)?;
        // Then its host is switched off as well, as one does to mend it: longer than every limit.
        scenario.strike(&Fault::PowerOff("b1".to_owned()))?;
        std::thread::sleep(Duration::from_secs(12));
        scenario.held_by(&scenario.agent, "stopped_cleanly", PATIENCE)?;
        scenario.ensure_untouched()?;
        Fault::PowerOff("b1".to_owned()).heal(lab)?;
        broker.start()?;
        scenario.cluster.wait_complete(PATIENCE)?;
        scenario.decided("healthy", PATIENCE)?;

        // A pause holds off what would otherwise be done, and is over when it is resumed.
        scenario.cli(&["pause", "--broker", "1", "--reason", "we pull cables today"], 0)?;
        eventually("the pause to be seen", PATIENCE, || {
            let said = scenario.agent.cli(&["status"])?.stdout;
            ensure!(said.contains("we pull cables today"), "{said}");
            Ok(())
        })?;
        scenario.strike(&Fault::PowerOff("b1".to_owned()))?;
        scenario.held_by(&scenario.agent, "paused", PATIENCE)?;
        std::thread::sleep(Duration::from_secs(8));
        scenario.ensure_untouched()?;
        scenario.cli(&["resume", "--broker", "1"], 0)?;
        scenario.journal_says(1, &["recovered"], PATIENCE)?;
        scenario.decided("healthy", PATIENCE)?;
        scenario.ensure_runs_on("standby-1")?;
        scenario.verdict()?;
        Ok(())
    });
}
