//! The signal against the strict EC2.

use std::time::Instant;

use recovery::model::{Moment, Now};
use serde_json::{Value, json};

use super::*;
use crate::bed::{World, nowhere};

const ID: &str = "i-0000000a";

struct Still;

#[async_trait]
impl Clock for Still {
    fn now(&self) -> Now {
        Now { mono: Moment(Duration::from_secs(7)), wall: "2026-11-25T03:00:00Z".parse().unwrap() }
    }
    async fn sleep(&self, _duration: Duration) {}
}

fn config(ec2: Ec2Config) -> Ec2StatusConfig {
    let instance = |name: &str| InstanceConfig {
        tag: format!("Name={name}"),
        id: (name == "kafka-1").then(|| ID.to_owned()),
        private_address: None,
    };
    let hosts = ["kafka-1", "standby-1"].map(|name| (name.to_owned(), instance(name)));
    Ec2StatusConfig { hosts: hosts.into(), period: default_period(), ec2 }
}

fn signal(more: Value) -> Option<(World, Status)> {
    let world = World::lay(more)?;
    let mut signal = config(world.config()).build().unwrap();
    world.admit(&mut signal.ec2);
    Some((world, signal))
}

/// The world with the instance of kafka-1 like this; the other one runs.
fn of_kafka_1(more: Value) -> Value {
    let instance =
        |name: &str, nic: &str| json!({"state": "running", "tags": {"Name": name}, "interface": nic});
    let mut broker = instance("kafka-1", "eni-a");
    for (name, value) in more.as_object().unwrap() {
        broker[name] = value.clone();
    }
    json!({"instances": {ID: broker, "i-0000000b": instance("standby-1", "eni-b")}, "page": 1})
}

/// What it says of kafka-1, and why it is blind.
async fn look(signal: &Status) -> (Option<MachineState>, Option<String>) {
    let (mut state, mut blind) = (None, None);
    for evidence in signal.look(&Still).await {
        assert_eq!((evidence.signal, evidence.at), (SIGNAL, Still.now().mono));
        match evidence.fact {
            Fact::Machine { host, state: said, .. } if host.0 == "kafka-1" => state = Some(said),
            Fact::Machine { host, state: said, .. } => {
                assert_eq!((host.0.as_str(), said), ("standby-1", MachineState::Runs));
            }
            Fact::Blind { why } => blind = Some(why),
            other => panic!("{other:?}"),
        }
    }
    (state, blind)
}

#[tokio::test]
async fn the_state_of_an_instance_is_told_and_only_off_is_off() {
    let event = |description: &str| json!({"events": [{"Code": "instance-retirement", "Description": description, "NotBefore": "2026-12-01T03:00:00Z"}]});
    let ails = |why: &str| MachineState::Ails { why: why.to_owned() };
    let changes = |to: &str| MachineState::Changes { to: to.to_owned() };
    let off = |state: &str| MachineState::Off { state: state.to_owned() };
    let mut seen = 0;
    for (more, expected) in [
        (json!({}), MachineState::Runs),
        (json!({"checks": {"system": "initializing", "instance": "insufficient-data"}}), MachineState::Runs),
        (
            json!({"checks": {"system": "impaired"}}),
            ails("EC2's check of the hardware and network below it fails"),
        ),
        (json!({"checks": {"instance": "impaired"}}), ails("EC2's check of its own system fails")),
        (event("The instance is on degraded hardware"), ails("it is to be retired at 2026-12-01T03:00:00Z")),
        (event("[Completed] The instance is on degraded hardware"), MachineState::Runs),
        (json!({"state": "pending"}), changes("pending")),
        (json!({"state": "stopping"}), changes("stopping")),
        (json!({"state": "shutting-down"}), changes("shutting-down")),
        (json!({"state": "stopped"}), off("stopped")),
        (json!({"state": "terminated"}), off("terminated")),
    ] {
        let Some((_world, signal)) = signal(of_kafka_1(more)) else { return };
        assert_eq!(look(&signal).await, (Some(expected), None));
        seen += 1;
    }
    assert_eq!(seen, 11);
}

#[tokio::test]
async fn a_look_is_one_call_once_the_instances_are_known() {
    let Some((world, signal)) = signal(json!({})) else { return };
    for _ in 0..3 {
        look(&signal).await;
    }
    assert_eq!(signal.period(), Duration::from_secs(300));
    assert_eq!(signal.period_on_suspicion(), Some(Duration::from_secs(5)));
    assert_eq!(world.calls("DescribeInstances").len(), 2, "one a host");
    assert_eq!(world.calls("DescribeInstanceStatus").len(), 3);
}

#[tokio::test]
async fn where_it_cannot_see_it_says_so() {
    let Some((_world, blinded)) = signal(json!({"deny": ["DescribeInstanceStatus"]})) else { return };
    let (state, blind) = look(&blinded).await;
    assert_eq!(state, None);
    assert!(blind.unwrap().contains("do not allow ec2:DescribeInstanceStatus"));
    assert_eq!(blinded.period(), AFTER_BLINDNESS);

    let other = of_kafka_1(json!({"tags": {"Name": "kafka-9"}, "state": "stopped"}));
    let Some((_world, mistaken)) = signal(other) else { return };
    let (state, blind) = look(&mistaken).await;
    assert_eq!(state, None, "another machine's state is not told as the host's");
    assert!(blind.unwrap().contains("kafka-1: i-0000000a is another machine"));

    let Some((world, mut cut_off)) = signal(json!({})) else { return };
    cut_off.ec2 = nowhere().build().unwrap();
    world.admit(&mut cut_off.ec2);
    let begun = Instant::now();
    let (state, blind) = look(&cut_off).await;
    assert_eq!(state, None);
    assert!(blind.unwrap().contains(") did not answer DescribeInstances"));
    assert!(begun.elapsed() < LOOK_WITHIN + Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn every_bad_value_is_told() {
    let text = "period = \"1s\"\nhosts = { kafka-1 = { tag = \"x\" } }\nec2 = { region = \"\" }";
    let problems = toml::from_str::<Ec2StatusConfig>(text).unwrap().build().unwrap_err();
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[1].starts_with("hosts.kafka-1.instance.tag: `x` is not key=value"), "{problems:?}");
}
