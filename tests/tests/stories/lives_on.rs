//! A host whose storage alone is denied lives on: its kernel still answers for the broker's address. Its own
//! agent gives that up, or the next fence stops the host, or a person is told which one it is. It is the same whoever
//! denies the storage: export rules, or a fence agent whose metadata says that it leaves the host running.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::kafka::ClusterSpec;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, Lab, Outlet, Storage, eventually, story};
use rustix::process::Signal;

const ADDRESS: &str = "10.77.0.11";

fn setup() -> Setup {
    let cluster = ClusterSpec { storage: Storage::Fuse, ..ClusterSpec::default() };
    Setup { cluster, ontap: Some("30s"), policy: &[("hung_after", "6s")], ..Setup::default() }
}

/// The same by a fence agent that cuts the storage alone, as `fence_scsi` and switches' ports do.
fn by_a_fence_agent() -> Setup {
    Setup { ontap: None, fence: Outlet::Storage, ..setup() }
}

/// Kafka stands still, and its host does not.
fn hang(scenario: &Scenario<'_>) -> Result<()> {
    let stopped = scenario.victim()?.signal(&["kafka.Kafka"], Signal::STOP)?;
    ensure!(stopped > 0, "no Kafka runs on b1");
    Ok(())
}

fn one_epoch(scenario: &Scenario<'_>) -> Result<()> {
    let epochs = scenario.epochs()?;
    ensure!(epochs.len() == 1, "one fault, one takeover: {epochs:?}");
    Ok(())
}

#[test]
fn a_fenced_hosts_agent_ends_its_kafka_and_gives_the_address_up() {
    story("a_fenced_hosts_agent_ends_its_kafka_and_gives_the_address_up", |lab| given_up(lab, &setup()));
}

#[test]
fn the_agent_of_a_host_that_a_fence_agent_cut_off_gives_the_address_up() {
    let name = "the_agent_of_a_host_that_a_fence_agent_cut_off_gives_the_address_up";
    story(name, |lab| given_up(lab, &by_a_fence_agent()));
}

fn given_up(lab: &Lab, setup: &Setup) -> Result<()> {
    let scenario = Scenario::begin(lab, &Setup { at_home: &[VICTIM], ..setup.clone() })?;
    scenario.start_agents()?;
    let victim = scenario.victim()?.clone();
    let home = scenario.at_home.first().context("no agent at home")?;
    scenario.recovered_after(PATIENCE, || hang(&scenario))?;
    scenario.ensure_runs_on("standby-1")?;
    let addresses = victim.addresses()?;
    ensure!(
        addresses.iter().all(|a| !a.starts_with(&format!("{ADDRESS}/"))),
        "the old host kept it: {addresses:?}"
    );
    scenario.decided_by(home, "healthy", PATIENCE)?;
    one_epoch(&scenario)?;
    if let Some(ontap) = &scenario.ontap {
        ontap.ensure_one_owner_at_a_time()?;
    }
    scenario.verdict()?;
    Ok(())
}

#[test]
fn a_fenced_host_without_an_agent_is_stopped_by_the_next_fence() {
    story("a_fenced_host_without_an_agent_is_stopped_by_the_next_fence", |lab| stopped(lab, &setup()));
}

#[test]
fn a_host_that_a_fence_agent_cut_off_is_stopped_by_the_next_fence() {
    let name = "a_host_that_a_fence_agent_cut_off_is_stopped_by_the_next_fence";
    story(name, |lab| stopped(lab, &by_a_fence_agent()));
}

fn stopped(lab: &Lab, setup: &Setup) -> Result<()> {
    let setup = Setup { at_home: &[VICTIM], then_switched_off: true, ..setup.clone() };
    let scenario = Scenario::begin(lab, &setup)?;
    scenario.start_agents()?;
    let victim = scenario.victim()?.clone();
    scenario.recovered_after(PATIENCE, || {
        scenario.strike(&Fault::KillAgent("b1".to_owned()))?;
        hang(&scenario)
    })?;
    ensure!(!victim.is_on(), "a host that answers for the address was not stopped");
    scenario.ensure_runs_on("standby-1")?;
    scenario.decided("healthy", PATIENCE)?;
    one_epoch(&scenario)?;
    scenario.verdict()?;
    Ok(())
}

/// Whoever has an old connection to a zombie, or finds it after its link heals, would be answered by it.
#[test]
fn a_host_that_was_cut_off_is_stopped_after_the_start_and_answers_nobody() {
    story("a_host_that_was_cut_off_is_stopped_after_the_start_and_answers_nobody", |lab| {
        let scenario = Scenario::begin(lab, &Setup { then_switched_off: true, ..setup() })?;
        scenario.start_agents()?;
        let victim = scenario.victim()?.clone();
        scenario.recovered_after(PATIENCE, || scenario.strike(&Fault::CutOff(vec!["b1".to_owned()])))?;
        eventually("the rest of the fence", PATIENCE, || {
            ensure!(!victim.is_on(), "it is on");
            Ok(())
        })?;
        scenario.decided("healthy", PATIENCE)?;
        one_epoch(&scenario)?;
        scenario.verdict()?;
        Ok(())
    });
}

#[test]
fn nobody_but_a_person_can_stop_it_and_that_one_is_told_which_host() {
    story("nobody_but_a_person_can_stop_it_and_that_one_is_told_which_host", |lab| told(lab, &setup()));
}

#[test]
fn a_person_is_told_which_host_a_fence_agent_cut_off_and_nobody_stops() {
    let name = "a_person_is_told_which_host_a_fence_agent_cut_off_and_nobody_stops";
    story(name, |lab| told(lab, &by_a_fence_agent()));
}

fn told(lab: &Lab, setup: &Setup) -> Result<()> {
    let scenario = Scenario::begin(lab, &Setup { standbys: 2, peers: true, ..setup.clone() })?;
    let checked = scenario.agent.cli(&["check"])?.stdout;
    ensure!(checked.contains("no fence stops the host itself"), "`check` does not say so:\n{checked}");
    scenario.start_agents()?;
    let victim = scenario.victim()?.clone();
    scenario.recovered_after(PATIENCE * 2, || {
        hang(&scenario)?;
        let status = scenario.decided("escalate", PATIENCE)?.to_string();
        for word in ["still answers for it", "b1", "turn that host off", "address"] {
            ensure!(status.contains(word), "`status` does not mention {word:?}: {status}");
        }
        // Nobody else tries what cannot be done, and nothing is left behind here.
        std::thread::sleep(Duration::from_secs(5));
        one_epoch(&scenario)?;
        scenario.ensure_not_started()?;

        // What the message asks for.
        let taken = victim.run(&["ip", "address", "del", &format!("{ADDRESS}/24"), "dev", "eth0"])?;
        ensure!(taken.code == 0, "{taken:?}");
        scenario.cli(&["failover", "--broker", "1", "--yes"], 0)?;
        Ok(())
    })?;
    scenario.decided("healthy", PATIENCE)?;
    // It wakes up, can write nothing, and is not believed.
    victim.signal(&["kafka.Kafka"], Signal::CONT)?;
    eventually("the zombie to end, as it has no storage", PATIENCE, || {
        let zombies = victim.processes(&["kafka.Kafka"])?;
        ensure!(zombies.is_empty(), "{zombies:?} run");
        Ok(())
    })?;
    scenario.verdict()?;
    Ok(())
}
