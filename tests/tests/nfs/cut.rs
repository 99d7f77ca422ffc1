//! What a hung server and a cut link look like to those who must not mistake one for the other.

use std::thread;
use std::time::Duration;

use anyhow::ensure;
use e2e::nfs::kafka::UNIT;
use e2e::nfs::scenario::{NfsScenario, NfsSetup, decision_of, kafkas};
use e2e::scenario::PATIENCE;
use e2e::{eventually, story};

/// How long the server is silent.
const STALL: Duration = Duration::from_secs(60);

#[test]
fn a_server_that_stalls_is_no_dead_host() {
    story("a_server_that_stalls_is_no_dead_host", |lab| {
        let scenario = NfsScenario::begin(lab, &NfsSetup { canary: true, ..NfsSetup::default() })?;
        scenario.start_agents()?;
        let (agent, home) = (scenario.agent(), scenario.home.guest());
        scenario.decided(agent, "healthy")?;
        let before = kafkas(home)?;

        scenario.server.stall()?;
        // The fault itself: a server that is silent for so long. Meanwhile nothing may be decided upon.
        for _ in 0..STALL.as_secs() {
            let decision = decision_of(agent)?;
            ensure!(decision["decision"] != "take_over", "{decision}");
            thread::sleep(Duration::from_secs(1));
        }
        lab.note(format!("after {} s: {}", STALL.as_secs(), decision_of(agent)?));
        scenario.server.resume()?;
        scenario.flows(500)?;
        scenario.cluster.wait_complete(PATIENCE)?;
        scenario.decided(agent, "healthy")?;
        ensure!(scenario.epochs()?.is_empty(), "takeovers were claimed: {:?}", scenario.epochs()?);
        ensure!(scenario.storage.owners("broker1") == ["b1"], "{:?}", scenario.storage.owners("broker1"));
        // A server that has forgotten its client over this may end a Kafka, whose unit starts it again where
        // it is.
        let after = eventually("one Kafka to run at home", PATIENCE, || {
            let running = kafkas(home)?;
            ensure!(running.len() == 1, "{running:?} run");
            Ok(running)
        })?;
        let restarts = home.sh(&format!("systemctl show {UNIT} --property=NRestarts --value"))?;
        let own = after == before || restarts.trim().parse::<u32>()? > 0;
        ensure!(own, "Kafka was started anew, and not by its unit: {before:?}, then {after:?}");
        lab.note(format!("Kafka at home was process {before:?}, and is {after:?}"));
        scenario.verdict()?;
        Ok(())
    });
}

#[test]
fn a_machine_whose_link_is_cut_ends_its_kafka_and_does_not_start_it_again() {
    story("a_machine_whose_link_is_cut_ends_its_kafka_and_does_not_start_it_again", |lab| {
        let scenario = NfsScenario::begin(lab, &NfsSetup::default())?;
        let (agent, home) = (scenario.agent(), scenario.home.guest());
        scenario.start_agents()?;
        scenario.recovered_after(|| home.cut())?;
        scenario.decided(agent, "healthy")?;
        scenario.ensure_one_owner("standby-1")?;
        // Nobody has ended it: it cannot even reach its storage.
        ensure!(!kafkas(home)?.is_empty(), "who has ended the old Kafka?");
        scenario.note_phases(agent)?;

        home.heal()?;
        eventually("the old Kafka to end, and its unit not to start it again", PATIENCE, || {
            let running = kafkas(home)?;
            ensure!(running.is_empty(), "{running:?} run");
            let shown = home.sh(&format!("systemctl show {UNIT} -p ActiveState -p SubState"))?;
            let settled = shown.contains("ActiveState=inactive") || shown.contains("ActiveState=failed");
            ensure!(settled && !shown.contains("auto-restart"), "{shown}");
            Ok(())
        })?;
        let guarded = scenario.home.cli(&["guard", "--broker", "1"])?;
        ensure!(guarded.code != 0, "the guard lets it start: {guarded:?}");
        scenario.stays_out()
    });
}
