//! The registration of a broker that died is removed, so that a new one need not wait for its session: where
//! that is right, and only there. One cluster's life, one corner after another; the clients' load goes on all
//! the while. Each is judged by when the others see the broker again, by its registration, and at the end by
//! what was acknowledged.

use anyhow::{Context, Result, ensure};
use e2e::corner::{Alone, SESSION, left_alone, next_epoch, spec, unregistered};
use e2e::kafka::{ClusterSpec, Standing};
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::tap::{OnUnregister, Tap};
use e2e::{Fault, eventually, story};

/// Where the broker is once it has been taken over.
const OWNER: &str = "standby-1";

#[test]
fn a_registration_is_removed_where_that_is_right() {
    story("a_registration_is_removed_where_that_is_right", |lab| {
        let tap = Tap::start("10.77.0.21:9093".parse()?)?;
        let setup = Setup {
            cluster: ClusterSpec { log_dirs: 2, ..spec() },
            // As often as it takes here.
            policy: &[("restart_tries", "99")],
            controllers: vec![format!("101@{}", tap.address())],
            rate: 300,
            ..Setup::default()
        };
        let scenario = Scenario::begin(lab, &setup)?;
        scenario.start_agents()?;

        lab.note(
            "its host dies: it has two log dirs, and partitions of which it alone has what was acknowledged",
        );
        let alone = Alone::begin(&scenario.cluster)?;
        let victim = scenario.victim()?.clone();
        unregistered(&scenario, || victim.power_off())?;
        alone.end()?;
        scenario.journal_says(1, &["removed the dead broker's registration", "recovered"], PATIENCE)?;
        ensure!(tap.seen() == 1, "the request was sent {} times", tap.seen());

        delivered_late(&scenario, &tap)?;
        another_replica_is_down(&scenario)?;
        stopped_cleanly(&scenario)?;
        controller_dies(&scenario, &tap)?;

        scenario.ensure_runs_on(OWNER)?;
        scenario.verdict()?;
        Ok(())
    });
}

/// Waits until nothing is open, so that the next fault begins a new epoch.
fn settled(scenario: &Scenario<'_>) -> Result<u32> {
    scenario.cluster.watch(VICTIM).wait("to be in sync", PATIENCE, Standing::is_complete)?;
    scenario.decided("healthy", PATIENCE)?;
    next_epoch(scenario)
}

fn kafka_dies() -> Fault {
    Fault::KillKafka(OWNER.to_owned())
}

/// The request hangs on its way and is carried out once the next incarnation is there. It serves on and is
/// part of nothing: it is killed and started again.
fn delivered_late(scenario: &Scenario<'_>, tap: &Tap) -> Result<()> {
    scenario.lab.note("the request hangs on its way");
    let epoch = settled(scenario)?;
    let before = tap.seen();
    tap.set(OnUnregister::Keep);
    let rejoin = left_alone(scenario, || scenario.strike(&kafka_dies()))?;
    ensure!(rejoin.gone > SESSION.as_secs_f64() / 2.0, "it did not wait for its session: {rejoin:?}");
    scenario.journal_says(epoch, &["no answer, and never sent again", "recovered"], PATIENCE)?;
    ensure!(tap.seen() == before + 1, "the request was sent {} times", tap.seen() - before);
    tap.set(OnUnregister::Pass);

    scenario.lab.note("it is delivered");
    ensure!(settled(scenario)? == epoch + 1, "there was another epoch");
    let pids = scenario.kafkas()?;
    unregistered_late(scenario, tap)?;
    scenario.journal_says(epoch + 1, &["end_unregistered", "Kafka was killed", "recovered"], PATIENCE)?;
    ensure!(tap.seen() == before + 1, "the request was sent again");
    ensure!(scenario.kafkas()?.len() == 1 && scenario.kafkas()? != pids, "it was not started again");
    let fenced = scenario.lab.switch().count("off", OWNER);
    ensure!(fenced == 0, "the host of a live broker was fenced");
    Ok(())
}

/// Gone for as long as it takes to be sure, and then back.
fn unregistered_late(scenario: &Scenario<'_>, tap: &Tap) -> Result<()> {
    let rejoin = scenario.recovered_after(PATIENCE, || tap.deliver())?;
    ensure!(rejoin.listed - rejoin.gone > 8.0, "it was killed before anybody could be sure: {rejoin:?}");
    Ok(())
}

/// The other replica of some of its partitions has just died, and may have been the last one in sync: nothing
/// is removed.
fn another_replica_is_down(scenario: &Scenario<'_>) -> Result<()> {
    scenario.lab.note("another broker died right before it");
    let epoch = settled(scenario)?;
    left_alone(scenario, || {
        scenario.strike(&Fault::KillKafka("b2".to_owned()))?;
        scenario.strike(&kafka_dies())
    })?;
    scenario.journal_says(epoch, &["recovered"], PATIENCE)?;
    let journal = scenario.journal_of(epoch);
    ensure!(journal.contains("not used: ") || journal.contains("not sent: "), "{journal}");
    scenario.cluster.broker(2)?.start()?;
    eventually("broker 2 to be back", PATIENCE, || {
        let view = scenario.cluster.view()?;
        ensure!(view.brokers.contains(&2), "{:?} are there", view.brokers);
        Ok(())
    })
}

/// It was stopped cleanly, and a person has it started: what the controller knows of its clean end is kept.
fn stopped_cleanly(scenario: &Scenario<'_>) -> Result<()> {
    scenario.lab.note("it is stopped cleanly");
    let epoch = settled(scenario)?;
    left_alone(scenario, || {
        scenario.strike(&Fault::StopKafka(OWNER.to_owned()))?;
        scenario.held_by(&scenario.agent, "stopped_cleanly", PATIENCE)?;
        ensure!(next_epoch(scenario)? == epoch, "it was started although somebody had stopped it");
        scenario.cli(&["failover", "--broker", "1", "--yes"], 0).map(drop)
    })?;
    scenario.journal_says(epoch, &["not used: ", "stopped cleanly", "recovered"], PATIENCE)
}

/// The controller dies over the request, and nobody hears what became of it: the broker is started all the
/// same, and the request is not sent again.
fn controller_dies(scenario: &Scenario<'_>, tap: &Tap) -> Result<()> {
    scenario.lab.note("the controller dies over the request");
    let epoch = settled(scenario)?;
    let before = tap.seen();
    tap.set(OnUnregister::Mute);
    let controller = scenario.cluster.controllers().first().context("no controller")?;
    scenario.recovered_after(PATIENCE, || {
        scenario.strike(&kafka_dies())?;
        eventually("the request", PATIENCE, || {
            ensure!(tap.seen() > before, "it was not sent");
            Ok(())
        })?;
        scenario.strike(&Fault::KillKafka("c1".to_owned()))?;
        controller.process()?.wait(PATIENCE)?;
        controller.start().map(drop)
    })?;
    scenario.journal_says(epoch, &["no answer, and never sent again", "recovered"], PATIENCE)?;
    ensure!(tap.seen() == before + 1, "the request was sent {} times", tap.seen() - before);
    tap.set(OnUnregister::Pass);
    Ok(())
}
