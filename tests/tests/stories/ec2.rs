//! Hosts that are instances of an EC2: it says who has a broker's address, whatever hosts have on their links, and stops
//! the ones that it is told to stop. It is slow, busy and told things by others.

mod other_zone;

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::ec2::{Ec2, instance, interface};
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, LOG_DIRS, eventually, story};
use serde_json::{Value, json};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 11);

fn ec2<'s>(scenario: &'s Scenario<'_>) -> Result<&'s Ec2> {
    scenario.ec2.as_ref().context("no EC2")
}

/// It refuses so many calls of `action` with this code.
fn refuses(action: &str, code: &str, status: &str, times: u8) -> Value {
    json!({"action": action, "kind": "refuse", "code": code, "status": status, "times": times})
}

/// The broker was moved to the standby once: EC2, the storage and the other hosts agree on that.
fn ensure_moved(scenario: &Scenario<'_>) -> Result<()> {
    let owner = ec2(scenario)?.owner(ADDRESS)?;
    ensure!(owner == "standby-1", "EC2 has the address on {owner}");
    let other = scenario.cluster.broker(2)?.home()?.clone();
    ensure!(other.reaches(ADDRESS), "b2 does not reach the address");
    if let Some(storage) = &scenario.ontap {
        let owners = storage.owners(VICTIM);
        ensure!(owners == ["standby-1"], "{owners:?}");
        storage.ensure_one_owner_at_a_time()?;
    }
    ec2(scenario)?.ensure_followed()?;
    let epochs = scenario.epochs()?;
    ensure!(epochs.len() == 1, "one fault, one takeover: {epochs:?}");
    Ok(())
}

/// The bed itself: without it, nothing below shows anything.
#[test]
fn hosts_do_as_ec2_says() {
    story("hosts_do_as_ec2_says", |lab| {
        let one = lab.host("one", "10.77.0.41")?;
        let two = lab.host("two", "10.77.0.42")?;
        let third = lab.host("third", "10.77.0.43")?;
        one.add_address("10.77.0.11/24")?;
        let cloud = Ec2::start(lab)?;
        let reached = |wanted: bool| {
            eventually(&format!("an answer of the address: {wanted}"), PATIENCE, || {
                ensure!(third.reaches(ADDRESS) == wanted, "{}", !wanted);
                Ok(())
            })
        };
        ensure!(cloud.owner(ADDRESS)? == "one");
        reached(true)?;

        // Both have it on their links, and EC2 alone counts.
        two.add_address("10.77.0.11/24")?;
        two.cut()?;
        reached(true)?;
        cloud.reassign(ADDRESS, &two)?;
        reached(false)?;
        two.heal()?;
        reached(true)?;
        ensure!(cloud.owner(ADDRESS)? == "two");
        let none: [&str; 0] = [];
        cloud.change(&json!({"interfaces": {interface(&two): {"secondary": none}}}))?;
        reached(false)?;
        ensure!(third.reaches(two.address()) && two.reaches(one.address()), "its own address went too");

        // An instance has stopped once its host is off, and not before.
        let runs = one.spawn("runs", &["sleep", "1000"])?;
        let order = |state: &str, then: &str| {
            cloud.change(&json!({"instances": {instance(&one): {"state": state, "due": [0, then]}}}))?;
            eventually(&format!("EC2 to say {then}"), PATIENCE, || {
                let said = cloud.state(&one)?;
                ensure!(said == then, "{said}");
                Ok(())
            })
        };
        order("stopping", "stopped")?;
        ensure!(!one.is_on() && !runs.is_running(), "it was said to be stopped, and runs");
        order("pending", "running")?;
        ensure!(one.is_on());
        eventually("the host that was started", PATIENCE, || {
            ensure!(third.reaches(one.address()), "no answer");
            Ok(())
        })?;
        cloud.ensure_followed()
    });
}

#[test]
fn ec2_host_dies() {
    story("ec2_host_dies", |lab| {
        let scenario = Scenario::begin(lab, &Setup { then_switched_off: true, ..Setup::on_fsx() })?;
        let (cloud, victim) = (ec2(&scenario)?, scenario.victim()?.clone());
        // The storage lets the standby in to nothing yet, which `check` tells too.
        let checked = scenario.agent.cli(&["check"])?.stdout;
        for word in ["can have 10.77.0.11 of 10.77.0.0/24", "this host may stop it"] {
            ensure!(checked.contains(word), "`check` does not say {word:?}:\n{checked}");
        }
        scenario.start_agents()?;
        // As it is with a crashed instance, EC2 goes on to say that it runs.
        scenario.recovered_after(PATIENCE, || victim.power_off())?;
        ensure_moved(&scenario)?;
        scenario.ensure_runs_on("standby-1")?;
        // What the export rules leave alive is stopped as well, and nothing else is.
        eventually("EC2 to stop the old host", PATIENCE, || {
            let state = cloud.state(&victim)?;
            ensure!(state == "stopped", "{state}");
            Ok(())
        })?;
        scenario.decided("healthy", PATIENCE)?;
        for call in cloud.calls("StopInstances")? {
            let (id, order) = (&call["params"]["InstanceId.1"], &call["params"]["DryRun"]);
            ensure!(*id == instance(&victim) || *order == "true", "another instance was to stop: {call}");
        }
        // Where the storage is managed FSx has told: once to each process, that of `check` and that of the agent.
        let asked = cloud.calls("DescribeStorageVirtualMachines")?.len();
        ensure!((1..=2).contains(&asked), "FSx was asked {asked} times");
        let history = scenario.cli(&["history", "--broker", "1"], 0)?.stdout;
        for word in
            ["ontap_export", "is on eni-", "no other interface has it", ":9092 answers it", "recovered"]
        {
            ensure!(history.contains(word), "`history` does not mention {word}:\n{history}");
        }
        scenario.verdict()?;
        Ok(())
    });
}

/// The host stands still with the address on its link, loses its storage and then the address, and wakes up. EC2 is
/// busy, loses a reply, tells what was, and takes 20 seconds until packets follow.
#[test]
fn ec2_host_hangs() {
    story("ec2_host_hangs", |lab| {
        let scenario = Scenario::begin(lab, &Setup { policy: &[("hung_after", "6s")], ..Setup::on_fsx() })?;
        scenario.start_agents()?;
        let (cloud, victim) = (ec2(&scenario)?, scenario.victim()?.clone());
        let assign = "AssignPrivateIpAddresses";
        let busy = refuses(assign, "RequestLimitExceeded", "503 Service Unavailable", 2);
        let lost = json!({"action": assign, "kind": "lost"});
        cloud.change(&json!({"effect": 20, "remap": 3, "faults": [busy, lost]}))?;
        scenario.recovered_after(PATIENCE, || scenario.strike(&Fault::Freeze("b1".to_owned())))?;
        ensure_moved(&scenario)?;
        let mut both = scenario.running_on()?;
        both.sort();
        ensure!(both == ["b1", "standby-1"], "the frozen broker and the new one: {both:?}");
        ensure!(cloud.calls("StopInstances")?.iter().all(|call| call["params"]["DryRun"] == "true"));
        ensure!(cloud.state(&victim)? == "running" && victim.is_on(), "the old host does not live");

        // It wakes up with the address, and nobody hears it there.
        Fault::Freeze("b1".to_owned()).heal(lab)?;
        let probe = format!("{LOG_DIRS}/broker{VICTIM}/probe");
        let refused = victim.run(&["touch", &probe])?;
        ensure!(refused.code != 0, "the old host can write: {refused:?}");
        ensure!(victim.addresses()?.contains(&format!("{ADDRESS}/24")), "it gave the address up");
        eventually("the zombie to give up, as it has no storage", PATIENCE, || {
            let zombies = victim.processes(&["kafka.Kafka"])?;
            ensure!(zombies.is_empty(), "{zombies:?} run");
            Ok(())
        })?;
        scenario.flows(1000)?;
        ensure_moved(&scenario)?;
        scenario.ensure_runs_on("standby-1")?;
        scenario.decided("healthy", PATIENCE)?;
        scenario.verdict()?;
        Ok(())
    });
}

/// Fence and address both take EC2, and that is gone.
#[test]
fn ec2_api_down() {
    story("ec2_api_down", |lab| {
        let scenario = Scenario::begin(lab, &Setup { ec2: Some("60s"), ..Setup::default() })?;
        scenario.start_agents()?;
        let (cloud, victim) = (ec2(&scenario)?, scenario.victim()?.clone());
        scenario.recovered_after(PATIENCE, || {
            let ill = refuses("StopInstances", "InternalError", "500 Internal Server Error", 2);
            let busy = refuses("StopInstances", "RequestLimitExceeded", "503 Service Unavailable", 3);
            cloud.change(&json!({"stop": 20, "faults": [ill, busy]}))?;
            cloud.halt()?;
            victim.power_off()?;
            scenario.journal_says(1, &["\"started\""], PATIENCE)?;
            // It cannot fence, so it goes no further, for as long as that lasts.
            std::thread::sleep(Duration::from_secs(20));
            scenario.ensure_not_started()?;
            let status = scenario.status()?;
            ensure!(status["takeover"]["phase"] == "fence", "it does not wait for the fence: {status}");

            cloud.go_on()
        })?;
        scenario.decided("healthy", PATIENCE)?;
        ensure_moved(&scenario)?;
        scenario.ensure_runs_on("standby-1")?;
        ensure!(cloud.state(&victim)? == "stopped");
        let moved = cloud.calls("AssignPrivateIpAddresses")?;
        ensure!(moved.iter().all(|call| call["answer"] == "200"), "{moved:?}");
        scenario.verdict()?;
        Ok(())
    });
}

/// Somebody's script takes the address while it is taken over.
#[test]
fn ec2_address_race() {
    story("ec2_address_race", |lab| {
        let scenario = Scenario::begin(lab, &Setup { ec2: Some("8s"), ..Setup::default() })?;
        scenario.start_agents()?;
        let (cloud, victim) = (ec2(&scenario)?, scenario.victim()?.clone());
        let thief = scenario.cluster.broker(2)?.home()?.clone();
        cloud.change(&json!({"faults": [Ec2::stolen("AssignPrivateIpAddresses", ADDRESS, &thief)]}))?;
        scenario.recovered_after(PATIENCE, || {
            victim.power_off()?;
            let status = scenario.decided("escalate", PATIENCE)?.to_string();
            for word in ["10.77.0.11".to_owned(), interface(&thief), instance(&thief)] {
                ensure!(status.contains(&word), "`status` does not mention {word:?}: {status}");
            }
            scenario.ensure_not_started()?;
            ensure!(cloud.owner(ADDRESS)? == "b2");
            // The script has been ended.
            scenario.cli(&["failover", "--broker", "1", "--yes"], 0)?;
            Ok(())
        })?;
        scenario.decided("healthy", PATIENCE)?;
        let owner = cloud.owner(ADDRESS)?;
        ensure!(owner == "standby-1", "EC2 has the address on {owner}");
        scenario.ensure_runs_on("standby-1")?;
        cloud.ensure_followed()?;
        scenario.verdict()?;
        Ok(())
    });
}
