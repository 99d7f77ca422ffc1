//! The controllers lose their majority in the middle of a takeover, after the fence. Kafka waits a minute for
//! them and ends; once they are back, the same run starts it again.

use std::time::Duration;

use anyhow::ensure;
use e2e::kafka::ClusterSpec;
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{Fault, eventually, story};

#[test]
fn a_takeover_outlasts_a_quorum_that_is_lost() {
    story("a_takeover_outlasts_a_quorum_that_is_lost", |lab| {
        let cluster = ClusterSpec { controllers: 3, ..ClusterSpec::default() };
        let scenario = Scenario::begin(lab, &Setup { cluster, ..Setup::default() })?;
        scenario.start_agents()?;
        let most = &scenario.cluster.controllers()[..2];
        scenario.recovered_after(PATIENCE * 3, || {
            scenario.strike(&Fault::PowerOff("b1".to_owned()))?;
            eventually("the fence", PATIENCE, || {
                ensure!(lab.switch().requests().contains(&"off b1".to_owned()), "it is not fenced yet");
                Ok(())
            })?;
            for controller in most {
                scenario.strike(&Fault::KillKafka(controller.home_name().to_owned()))?;
            }
            scenario.journal_says(1, &["start_broker"], PATIENCE)?;
            eventually("Kafka to be started", PATIENCE, || {
                ensure!(scenario.running_on()? == ["standby-1"], "{}", scenario.journal());
                Ok(())
            })?;
            eventually("Kafka to end without controllers", PATIENCE, || {
                ensure!(scenario.running_on()?.is_empty(), "it runs yet");
                Ok(())
            })?;
            let said = scenario.cli(&["status"], 0)?.stdout;
            ensure!(said.contains("no active controller answers"), "`status` does not say why:\n{said}");
            // It is waited for, however long that takes.
            std::thread::sleep(Duration::from_secs(10));
            most.iter().try_for_each(|controller| controller.start().map(drop))
        })?;
        scenario.decided("healthy", PATIENCE)?;
        ensure!(scenario.epochs()?.len() == 1, "another run did it: {:?}", scenario.epochs()?);
        ensure!(scenario.journal().contains("and was started again"), "{}", scenario.journal());
        scenario.ensure_runs_on("standby-1")?;
        scenario.verdict().map(drop)
    });
}
