//! The driver against the strict EC2.

use recovery::ports::chain;
use serde_json::{Value, json};

use super::*;
use crate::bed::{World, nowhere, policy, policy_without};

const EPOCH: Epoch = Epoch(1);
const HOST: &str = "kafka-1";
const ID: &str = "i-0000000a";

fn instance(id: Option<&str>) -> InstanceConfig {
    let (id, private_address) = (id.map(str::to_owned), "10.20.0.31".parse().ok());
    InstanceConfig { tag: "Name=kafka-1".to_owned(), id, private_address }
}

fn stop_of(more: Value, instance: InstanceConfig) -> Option<(World, Stop)> {
    let world = World::lay(more)?;
    let config = Ec2StopConfig { instance, timeout: Duration::from_secs(12), ec2: world.config() };
    let mut stop = config.build().unwrap();
    world.admit(&mut stop.ec2);
    Some((world, stop))
}

fn stop(more: Value) -> Option<(World, Stop)> {
    stop_of(more, instance(Some(ID)))
}

/// The world with the host's instance in this state.
fn in_state(state: &str) -> Value {
    let (tags, reason) = (json!({"Name": "kafka-1"}), "User initiated (2026-11-25 03:00:00 GMT)");
    json!({"instances": {ID: {"state": state, "tags": tags, "interface": "eni-a", "reason": reason}}})
}

fn with(mut world: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        world[name] = value.clone();
    }
    world
}

fn fault(action: &str, kind: &str, times: usize, code: &str) -> Value {
    let fault = json!({"action": action, "kind": kind, "times": times, "code": code, "status": "503 Busy"});
    json!({"faults": [fault]})
}

fn state(world: &World) -> String {
    world.told()["instances"][ID]["state"].as_str().unwrap().to_owned()
}

async fn unproven(stop: &Stop) -> String {
    chain(&stop.prove(&HOST.into(), EPOCH).await.unwrap_err())
}

#[tokio::test]
async fn an_instance_is_stopped_by_force_and_proven_by_what_is_read_back() {
    for id in [Some(ID), None] {
        let Some((world, stop)) = stop_of(json!({"stop": 1, "page": 1}), instance(id)) else { return };
        assert_eq!(stop.has_power(&HOST.into()).await, Some(true));
        let note = stop.fence(&HOST.into(), EPOCH).await.unwrap();
        assert!(note.text.starts_with("kafka-1 was ordered to stop, and i-0000000a is stopped"), "{note:?}");
        let order = &world.calls("StopInstances")[0]["params"];
        assert_eq!((&order["Force"], &order["SkipOsShutdown"]), (&json!("true"), &json!("true")));
        let proof = stop.prove(&HOST.into(), EPOCH).await.unwrap();
        assert_eq!((proof.host.0.as_str(), proof.by.as_str()), (HOST, "ec2_stop"));
        assert_eq!(proof.note.details["instance"], ID);
        assert_eq!(proof.note.details["state"], "stopped");
        assert!(proof.note.details["transition"].starts_with("User initiated (20"), "{proof:?}");
        assert_eq!(stop.has_power(&HOST.into()).await, Some(false));
        // An ensure.
        stop.fence(&HOST.into(), EPOCH).await.unwrap();
    }
}

#[tokio::test]
async fn an_order_that_is_accepted_is_no_proof() {
    let Some((world, stop)) = stop(json!({"stop": 60})) else { return };
    let error = stop.fence(&HOST.into(), EPOCH).await.unwrap_err();
    assert_eq!(error.kind(), "unconfirmed");
    assert!(chain(&error).contains("read last: i-0000000a is stopping"), "{error}");
    assert_eq!(state(&world), "stopping");
    let why = unproven(&stop).await;
    assert!(why.contains("i-0000000a is stopping"), "{why}");
    assert!(why.contains("Missing: a state of stopped or terminated"), "{why}");
}

#[tokio::test]
async fn only_an_instance_that_is_stopped_or_terminated_is_proven() {
    for (state, proven) in [
        ("stopped", true),
        ("terminated", true),
        ("running", false),
        ("pending", false),
        ("stopping", false),
        ("shutting-down", false),
    ] {
        let Some((_world, mut stop)) = stop(in_state(state)) else { return };
        stop.timeout = Duration::from_secs(if proven { 12 } else { 4 });
        match stop.prove(&HOST.into(), EPOCH).await {
            Ok(proof) => assert_eq!((proven, proof.note.details["state"].as_str()), (true, state)),
            Err(error) => assert!(!proven && chain(&error).contains(state), "{state}: {}", chain(&error)),
        }
    }
}

#[tokio::test]
async fn a_terminated_instance_needs_no_order_and_does_not_come_back() {
    let Some((world, stop)) = stop(in_state("terminated")) else { return };
    stop.fence(&HOST.into(), EPOCH).await.unwrap();
    assert_eq!(world.calls("StopInstances").len(), 0);
    let error = chain(&stop.lift(&HOST.into()).await.unwrap_err());
    assert!(error.contains("for good: launch another instance for kafka-1"), "{error}");
}

#[tokio::test]
async fn another_machine_is_neither_stopped_nor_a_proof() {
    let other = |tag: &str, address: &str| InstanceConfig {
        tag: tag.to_owned(),
        id: Some(ID.to_owned()),
        private_address: address.parse().ok(),
    };
    for (instance, expected) in [
        (other("Name=kafka-2", "10.20.0.31"), "it has Name=kafka-1, and this host has Name=kafka-2"),
        (other("Role=broker", "10.20.0.31"), "it has no such tag, and this host has Role=broker"),
        (
            other("Name=kafka-1", "10.20.0.77"),
            "its private address is 10.20.0.31, and this host's is 10.20.0.77",
        ),
    ] {
        let Some((world, stop)) = stop_of(in_state("stopped"), instance) else { return };
        let error = chain(&stop.fence(&HOST.into(), EPOCH).await.unwrap_err());
        assert!(error.contains("i-0000000a is another machine") && error.contains(expected), "{error}");
        let why = unproven(&stop).await;
        assert!(why.contains(expected), "{why}");
        assert!(chain(&stop.check(&HOST.into()).await.unwrap_err()).contains(expected));
        assert_eq!(world.calls("StopInstances").len(), 0);
    }
}

#[tokio::test]
async fn an_instance_that_ec2_does_not_know_is_no_proof() {
    let Some((_world, stop)) = stop_of(json!({}), instance(Some("i-0000dead"))) else { return };
    let expected = "there is no such instance there: correct instance.id or ec2.region";
    let why = unproven(&stop).await;
    assert!(why.contains(expected), "{why}");
    let error = chain(&stop.fence(&HOST.into(), EPOCH).await.unwrap_err());
    assert!(error.contains(expected), "{error}");
    let untagged = InstanceConfig { tag: "Name=nobody".to_owned(), ..instance(None) };
    let Some((_world, stop)) = stop_of(json!({}), untagged) else { return };
    let why = unproven(&stop).await;
    assert!(why.contains("no instance has the tag Name=nobody"), "{why}");
}

#[tokio::test]
async fn a_state_that_is_older_than_a_start_is_no_proof() {
    // It was stopped once; it runs, and EC2 still tells the old state for a while.
    let Some((world, stop)) = stop(with(in_state("stopped"), json!({"stale": 2.5, "stop": 1}))) else {
        return;
    };
    stop.start(ID, Deadline::of(stop.timeout)).await.unwrap();
    sleep(Duration::from_millis(1_100)).await;
    assert_eq!(stop.has_power(&HOST.into()).await, Some(false), "what is told is old");
    stop.fence(&HOST.into(), EPOCH).await.unwrap();
    assert_eq!(state(&world), "stopped", "it is stopped indeed");
}

#[tokio::test]
async fn a_reply_that_is_lost_and_calls_that_are_throttled_do_no_harm() {
    for more in [
        fault("StopInstances", "lost", 3, ""),
        fault("StopInstances", "refuse", 3, "RequestLimitExceeded"),
        fault("DescribeInstances", "refuse", 3, "InternalError"),
    ] {
        let Some((world, stop)) = stop(more) else { return };
        stop.fence(&HOST.into(), EPOCH).await.unwrap();
        assert_eq!(state(&world), "stopped");
        let _: Proof = stop.prove(&HOST.into(), EPOCH).await.unwrap();
    }
}

#[tokio::test]
async fn an_ec2_that_does_not_answer_is_no_proof_and_an_error_in_time() {
    let Some((world, mut stop)) = stop(json!({})) else { return };
    stop.ec2 = nowhere().build().unwrap();
    stop.timeout = Duration::from_secs(4);
    world.admit(&mut stop.ec2);
    let begun = Instant::now();
    let error = chain(&stop.fence(&HOST.into(), EPOCH).await.unwrap_err());
    assert!(error.contains(") did not answer DescribeInstances"), "{error}");
    let why = unproven(&stop).await;
    assert!(why.contains("did not answer"), "{why}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(stop.has_power(&HOST.into()).await, None);
}

#[tokio::test]
async fn what_cannot_be_stopped_is_told_with_its_remedy() {
    let class = |class: &str| {
        let mut world = in_state("running");
        world["instances"][ID]["class"] = json!(class);
        world
    };
    for (world, expected) in [
        (json!({"deny": ["StopInstances"]}), "do not allow ec2:StopInstances; add it to the policy"),
        (
            class("protected"),
            "protected against it: run `aws ec2 modify-instance-attribute --no-disable-api-stop`",
        ),
        (class("ephemeral"), "cannot be stopped (its root device is an instance store"),
    ] {
        let Some((world, stop)) = stop(world) else { return };
        let error = chain(&stop.fence(&HOST.into(), EPOCH).await.unwrap_err());
        assert!(error.contains(expected), "{error}");
        assert_eq!(state(&world), "running");
    }
}

#[tokio::test]
async fn a_check_changes_nothing_and_tells_what_brings_it_back() {
    let Some((world, stop)) = stop(json!({})) else { return };
    let note = stop.check(&HOST.into()).await.unwrap();
    assert_eq!(note.text, "i-0000000a is running, it is kafka-1, and this host may stop it");
    assert_eq!(note.details[POWER], "on");
    assert_eq!(state(&world), "running");
    let Some((_world, stop)) = stop_of(json!({"deny": ["StopInstances"]}), instance(Some(ID))) else {
        return;
    };
    let error = chain(&stop.check(&HOST.into()).await.unwrap_err());
    assert!(error.contains("do not allow ec2:StopInstances"), "{error}");
    let mut scaled = in_state("running");
    scaled["instances"][ID]["tags"]["aws:autoscaling:groupName"] = json!("brokers");
    let Some((_world, stop)) = stop_of(scaled, instance(Some(ID))) else { return };
    let note = stop.check(&HOST.into()).await.unwrap();
    assert!(note.to_string().contains("WARNING: the Auto Scaling group brokers replaces"), "{note:?}");
    let mut recovered = in_state("running");
    recovered["instances"][ID]["recovery"] = json!("default");
    let Some((_world, stop)) = stop_of(recovered, instance(Some(ID))) else { return };
    let note = stop.check(&HOST.into()).await.unwrap();
    let told = "WARNING: EC2 starts it again on other hardware";
    let remedy = "modify-instance-maintenance-options --instance-id i-0000000a --auto-recovery disabled";
    assert!(note.to_string().contains(told) && note.to_string().contains(remedy), "{note:?}");
}

#[tokio::test]
async fn a_lift_starts_the_instance_and_waits_until_it_runs() {
    let Some((world, stop)) = stop(with(in_state("stopped"), json!({"stop": 1}))) else { return };
    let note = stop.lift(&HOST.into()).await.unwrap();
    assert!(note.text.starts_with("EC2 reads that i-0000000a is running"), "{note:?}");
    assert_eq!(state(&world), "running");
    assert_eq!(world.calls("StartInstances").len(), 1);
}

#[test]
fn every_bad_value_is_told() {
    let text = "timeout = \"0s\"\ninstance = { tag = \"kafka\", id = \"kafka\" }\nec2 = { endpoint = \"x\" }";
    let problems = toml::from_str::<Ec2StopConfig>(text).unwrap().build().unwrap_err();
    assert_eq!(problems.len(), 4, "{problems:?}");
}

#[tokio::test]
async fn the_policy_of_the_guide_is_enough_and_nothing_of_it_too_much() {
    let Some((_world, stop)) = stop(json!({"policy": policy()})) else { return };
    stop.check(&HOST.into()).await.unwrap();
    stop.fence(&HOST.into(), EPOCH).await.unwrap();
    assert_eq!(stop.prove(&HOST.into(), EPOCH).await.unwrap().by, DRIVER);
    stop.lift(&HOST.into()).await.unwrap();
    let without = |action: &str| self::stop(json!({"policy": policy_without(&format!("ec2:{action}"))}));
    for action in ["DescribeInstances", "StopInstances"] {
        let Some((world, stop)) = without(action) else { return };
        let expected = format!("do not allow ec2:{action}");
        let checked = chain(&stop.check(&HOST.into()).await.unwrap_err());
        let fenced = chain(&stop.fence(&HOST.into(), EPOCH).await.unwrap_err());
        assert!(checked.contains(&expected) && fenced.contains(&expected), "{checked}; {fenced}");
        assert_eq!(state(&world), "running");
    }
    let Some((_world, stop)) = without("DescribeInstanceStatus") else { return };
    stop.fence(&HOST.into(), EPOCH).await.unwrap();
    assert!(unproven(&stop).await.contains("do not allow ec2:DescribeInstanceStatus"));
    let Some((_world, stop)) = without("StartInstances") else { return };
    stop.fence(&HOST.into(), EPOCH).await.unwrap();
    let error = chain(&stop.lift(&HOST.into()).await.unwrap_err());
    assert!(error.contains("do not allow ec2:StartInstances"), "{error}");
}

#[tokio::test]
async fn the_policy_of_the_guide_stops_no_instance_without_the_tag() {
    let Some((world, stop)) = stop(with(in_state("running"), json!({"policy": policy()}))) else { return };
    let checked = chain(&stop.check(&HOST.into()).await.unwrap_err());
    assert!(checked.contains("do not allow ec2:StopInstances"), "{checked}");
    let fenced = chain(&stop.fence(&HOST.into(), EPOCH).await.unwrap_err());
    assert!(fenced.contains("do not allow ec2:StopInstances"), "{fenced}");
    assert_eq!(state(&world), "running");
}
