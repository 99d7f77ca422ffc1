//! The driver against the strict EC2.

use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::bed::{Link, World, fault, links, nowhere, policy, policy_without, words};
use crate::way_back::Others;

const EPOCH: Epoch = Epoch(1);
const MOVED: &str = "10.20.0.11";

/// The driver on the host of `eni-b`.
struct Host {
    world: World,
    link: Arc<Link>,
    driver: SecondaryIp,
    _links: TempDir,
}

fn config(ec2: Ec2Config) -> SecondaryIpConfig {
    SecondaryIpConfig {
        address: format!("{MOVED}/24"),
        interface: "ens5".to_owned(),
        network_interface: Some("eni-b".to_owned()),
        timeout: Duration::from_secs(15),
        ec2,
    }
}

/// For what ends by the limit alone.
fn hasty(ec2: Ec2Config) -> SecondaryIpConfig {
    SecondaryIpConfig { timeout: Duration::from_secs(4), ..config(ec2) }
}

fn host_of(more: Value, address: &str, config: impl Fn(Ec2Config) -> SecondaryIpConfig) -> Option<Host> {
    let world = World::lay(more)?;
    let link = Arc::new(Link::default());
    let driver = SecondaryIpConfig { address: format!("{address}/24"), ..config(world.config()) };
    let mut driver = driver.build(Ok(link.clone()), Vec::new()).ok().unwrap();
    world.admit(&mut driver.own.ec2);
    let links = links();
    driver.own.links = links.path().to_owned();
    Some(Host { world, link, driver, _links: links })
}

fn host(more: Value) -> Option<Host> {
    host_of(more, MOVED, config)
}

impl Host {
    /// Both parts of a takeover.
    async fn take(&self) -> Result<Note, StepError> {
        let moved = self.driver.acquire(EPOCH).await?;
        Ok(moved.and(self.driver.confirm().await?))
    }

    /// Nothing is half moved: EC2 has the address where it was, and it is not on the link.
    #[track_caller]
    fn nothing_moved(&self) {
        assert_eq!(self.world.having(MOVED), ["eni-a"]);
        assert!(!self.link.has());
    }
}

#[tokio::test]
async fn an_address_moves_from_another_interface_and_is_read_back_page_by_page() {
    let Some(host) = host(json!({"page": 1})) else { return };
    let note = host.take().await.unwrap();
    assert_eq!(
        note.text,
        "by EC2's word 10.20.0.11 is on its way to eni-b of i-0000000b; on the link; 10.20.0.11 is on eni-b of i-0000000b, and \
         no other interface has it; no other broker is known that could answer it"
    );
    assert_eq!(note.details[PLACED], "true");
    assert_eq!(host.world.having(MOVED), ["eni-b"]);
    assert!(host.driver.here().await.unwrap());
    assert_eq!(host.driver.holder().await.unwrap(), None);
    // An ensure: the second time changes nothing.
    let again = host.take().await.unwrap();
    assert!(again.text.starts_with("by EC2's word 10.20.0.11 was on eni-b"), "{again:?}");
    assert!(!again.details.contains_key(PLACED), "{again:?}");
}

#[tokio::test]
async fn what_is_accepted_and_not_yet_shown_is_listened_at_and_waited_for() {
    let Some(host) = host(json!({"remap": 1.5})) else { return };
    let begun = Instant::now();
    host.driver.acquire(EPOCH).await.unwrap();
    assert!(host.link.has(), "Kafka could not listen");
    assert!(begun.elapsed() < Duration::from_millis(1_500), "packets were waited for");
    host.driver.confirm().await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(1_500), "it was not read back");
    assert_eq!(host.world.calls("AssignPrivateIpAddresses").len(), 1, "the order is not repeated");
}

#[tokio::test]
async fn what_is_never_shown_is_not_done() {
    let Some(host) = host(json!({"remap": 60})) else { return };
    let error = host.take().await.unwrap_err();
    assert_eq!(error.kind(), "unconfirmed");
    assert!(words(error).contains("read last: it is on eni-a of i-0000000a"));
    // The undo of a failed step.
    host.driver.release().await.unwrap();
    assert!(!host.link.has());
}

#[tokio::test]
async fn a_reply_that_is_lost_after_the_act_is_found_by_reading_back() {
    let Some(host) = host(fault("AssignPrivateIpAddresses", "lost", 99, json!({}))) else { return };
    host.take().await.unwrap();
    assert_eq!(host.world.having(MOVED), ["eni-b"]);
    assert!(host.world.calls("AssignPrivateIpAddresses").iter().all(|call| call["answer"] == "lost"));
}

#[tokio::test]
async fn a_call_that_is_throttled_or_fails_inside_ec2_is_made_again() {
    for (code, status) in
        [("RequestLimitExceeded", "503 Service Unavailable"), ("InternalError", "500 Internal Server Error")]
    {
        let more = json!({"code": code, "status": status});
        let Some(host) = host(fault("AssignPrivateIpAddresses", "refuse", 2, more)) else { return };
        host.take().await.unwrap();
        assert_eq!(host.world.calls("AssignPrivateIpAddresses").len(), 3, "{code}");
    }
}

#[tokio::test]
async fn a_call_that_hangs_is_made_again() {
    let hangs = fault("DescribeNetworkInterfaces", "delay", 1, json!({"seconds": 8}));
    let Some(host) = host(hangs) else { return };
    let begun = Instant::now();
    host.take().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(7), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_ec2_that_is_throttled_for_good_is_an_error_in_time() {
    let more = json!({"code": "RequestLimitExceeded", "status": "503 Service Unavailable"});
    let more = fault("AssignPrivateIpAddresses", "refuse", 999, more);
    let Some(host) = host_of(more, MOVED, hasty) else { return };
    let begun = Instant::now();
    let error = words(host.take().await.unwrap_err());
    assert!(error.contains("RequestLimitExceeded"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    host.nothing_moved();
}

#[tokio::test]
async fn an_ec2_that_does_not_answer_is_an_error_in_time() {
    let Some(mut host) = host_of(json!({}), MOVED, hasty) else { return };
    let mut ec2 = nowhere().build().unwrap();
    host.world.admit(&mut ec2);
    host.driver.own.ec2 = ec2;
    let begun = Instant::now();
    let error = words(host.take().await.unwrap_err());
    assert!(error.contains(") did not answer DescribeNetworkInterfaces"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    host.nothing_moved();
}

/// What EC2 tells may come before packets follow.
#[tokio::test]
async fn an_address_that_no_other_host_answers_is_not_here() {
    let Some(mut host) = host_of(json!({}), MOVED, hasty) else { return };
    // One that answers this host; the address is on no link of it, so that nothing finds its way back.
    let port = host.world.config().endpoint.unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
    let listeners = vec![Endpoint { host: "127.0.0.1".to_owned(), port }];
    host.driver.own.others = Others { listeners, is_here: |_| false };
    let error = words(host.take().await.unwrap_err());
    assert!(error.contains("no answer of another broker's host comes to it: 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn a_third_party_that_takes_the_address_meanwhile_is_found_by_reading_back() {
    // The last reading is the fourth.
    let mut more = fault("DescribeNetworkInterfaces", "steal", 1, json!({"to": "eni-a", "address": MOVED}));
    let first = json!({"action": "DescribeNetworkInterfaces", "kind": "delay", "seconds": 0, "times": 2});
    more["faults"].as_array_mut().unwrap().insert(0, first);
    let Some(host) = host(more) else { return };
    let error = words(host.take().await.unwrap_err());
    assert!(error.contains("it is on eni-a of i-0000000a: find out who else moves it"), "{error}");
    // The undo of a failed step.
    host.driver.release().await.unwrap();
    assert!(!host.driver.here().await.unwrap());
}

#[tokio::test]
async fn a_third_party_that_takes_the_address_later_is_told_by_holder_and_check() {
    let Some(host) = host(json!({})) else { return };
    assert_eq!(host.driver.holder().await.unwrap(), None, "nobody is asked for consent");
    host.take().await.unwrap();
    let thief =
        SecondaryIpConfig { network_interface: Some("eni-a".to_owned()), ..config(host.world.config()) };
    let mut thief = thief.build(Ok(Arc::new(Link::default())), Vec::new()).ok().unwrap();
    host.world.admit(&mut thief.own.ec2);
    let deadline = Deadline::of(thief.own.timeout);
    let theirs = interface::by_id(&thief.own.ec2, deadline.call(), "eni-a").await.unwrap();
    thief.assign(&theirs, deadline).await.unwrap();
    assert_eq!(host.driver.holder().await.unwrap().as_deref(), Some("eni-a of i-0000000a"));
    let error = words(host.driver.check().await.unwrap_err());
    assert!(error.contains("by EC2 it is on eni-a of i-0000000a: nothing reaches it here"), "{error}");
}

#[tokio::test]
async fn a_release_leaves_the_address_reserved_and_takes_it_off_the_link() {
    let Some(host) = host(json!({})) else { return };
    host.take().await.unwrap();
    host.driver.release().await.unwrap();
    assert!(!host.driver.here().await.unwrap());
    assert_eq!(host.world.having(MOVED), ["eni-b"]);
}

#[tokio::test]
async fn an_address_that_cannot_be_here_is_refused_with_the_reason() {
    for (address, expected) in [
        ("10.20.9.11", "10.20.9.11 is not in 10.20.0.0/24, the subnet (subnet-1) of eni-b of i-0000000b"),
        ("10.20.0.32", "10.20.0.32 is the first address of eni-b of i-0000000b, which cannot move"),
        ("10.20.0.31", "10.20.0.31 is the first address of eni-a of i-0000000a, which cannot move"),
    ] {
        let Some(host) = host_of(json!({}), address, config) else { return };
        let error = words(host.take().await.unwrap_err());
        assert!(error.contains(expected), "{error}");
        let error = words(host.driver.check().await.unwrap_err());
        assert!(error.contains(expected), "{error}");
        host.nothing_moved();
    }
}

#[tokio::test]
async fn an_interface_that_is_not_this_hosts_is_refused() {
    for (id, expected) in [
        ("eni-a", "no interface of this host has the hardware address 02:00:00:00:00:0a of eni-a"),
        ("eni-dead", "there is no such interface there: correct `network_interface`"),
    ] {
        let named = |ec2| SecondaryIpConfig { network_interface: Some(id.to_owned()), ..config(ec2) };
        let Some(host) = host_of(json!({}), MOVED, named) else { return };
        let error = words(host.take().await.unwrap_err());
        assert!(error.contains(expected), "{error}");
        assert_eq!(host.world.calls("AssignPrivateIpAddresses").len(), 0);
        host.nothing_moved();
    }
}

#[tokio::test]
async fn an_interface_that_is_not_configured_is_asked_of_the_metadata() {
    let unnamed = |ec2| SecondaryIpConfig { network_interface: None, ..config(ec2) };
    let Some(host) = host_of(json!({}), MOVED, unnamed) else { return };
    host.driver.check().await.unwrap();
    host.take().await.unwrap();
    assert_eq!(host.world.having(MOVED), ["eni-b"]);
    let Some(mut host) = host_of(json!({}), MOVED, unnamed) else { return };
    host.driver.own.ec2.metadata = None;
    let error = words(host.take().await.unwrap_err());
    assert!(error.contains("does not tell which interface ens5 is"), "{error}");
    assert!(error.contains("set network_interface"), "{error}");
    host.nothing_moved();
    host.driver.own.name = "eth9".to_owned();
    let error = words(host.driver.check().await.unwrap_err());
    assert!(error.contains("cannot read the hardware address of eth9"), "{error}");
}

#[tokio::test]
async fn a_region_that_is_not_this_instances_is_told() {
    let named = |ec2| SecondaryIpConfig { network_interface: Some("eni-dead".to_owned()), ..config(ec2) };
    let Some(host) = host_of(json!({"region": "eu-west-1"}), MOVED, named) else { return };
    let expected =
        "EC2 in eu-central-1 has no eni-dead, and this instance is in eu-west-1: correct ec2.region";
    for error in [host.driver.check().await.unwrap_err(), host.take().await.unwrap_err()] {
        assert!(words(error).contains(expected));
    }
}

#[tokio::test]
async fn what_the_role_may_not_do_is_named_by_check_and_at_the_moment_of_use() {
    for action in ["AssignPrivateIpAddresses", "DescribeNetworkInterfaces"] {
        let Some(host) = host(json!({"deny": [action]})) else { return };
        let expected = format!("its credentials do not allow ec2:{action}; add it to the policy");
        let error = words(host.take().await.unwrap_err());
        assert!(error.contains(&expected), "{error}");
        host.nothing_moved();
    }
    for action in ["DescribeSubnets", "DescribeNetworkInterfaces"] {
        let Some(host) = host(json!({"deny": [action]})) else { return };
        let error = words(host.driver.check().await.unwrap_err());
        assert!(error.contains(&format!("do not allow ec2:{action}")), "{error}");
    }
}

#[tokio::test]
async fn the_policy_of_the_guide_is_enough_and_nothing_of_it_too_much() {
    let Some(host) = host(json!({"policy": policy()})) else { return };
    host.driver.check().await.unwrap();
    host.take().await.unwrap();
    for action in ["AssignPrivateIpAddresses", "DescribeNetworkInterfaces"] {
        let policy = policy_without(&format!("ec2:{action}"));
        let Some(host) = self::host(json!({"policy": policy})) else { return };
        let error = words(host.take().await.unwrap_err());
        assert!(error.contains(&format!("do not allow ec2:{action}")), "{error}");
        host.nothing_moved();
    }
    let Some(host) = self::host(json!({"policy": policy_without("ec2:DescribeSubnets")})) else { return };
    let error = words(host.driver.check().await.unwrap_err());
    assert!(error.contains("do not allow ec2:DescribeSubnets"), "{error}");
}

#[tokio::test]
async fn the_policy_of_the_guide_lets_no_address_move_to_an_interface_without_the_tag() {
    let Some(host) = host(json!({"policy": policy()})) else { return };
    host.world.change(&json!({"interfaces": {"eni-b": {"tags": {}}}}));
    let error = words(host.take().await.unwrap_err());
    assert!(error.contains("do not allow ec2:AssignPrivateIpAddresses"), "{error}");
    host.nothing_moved();
}

#[tokio::test]
async fn a_clock_that_is_off_and_a_key_that_is_unknown_are_told() {
    for (code, expected) in [
        ("RequestExpired", "the clock of this host is off"),
        ("SignatureDoesNotMatch", "the clock of this host is off"),
        ("AuthFailure", "it does not accept the credentials: look"),
    ] {
        let more = fault("*", "refuse", 99, json!({"code": code, "status": "401 Unauthorized"}));
        let Some(host) = host(more) else { return };
        let error = words(host.take().await.unwrap_err());
        assert!(error.contains(expected), "{error}");
        host.nothing_moved();
    }
    let Some(mut host) = host(json!({})) else { return };
    host.driver.own.ec2.key = Some("UNKNOWN".to_owned());
    let error = words(host.driver.check().await.unwrap_err());
    assert!(error.contains("it does not accept the credentials"), "{error}");
}

#[tokio::test]
async fn a_check_changes_nothing() {
    let Some(host) = host(json!({})) else { return };
    let note = host.driver.check().await.unwrap();
    assert!(note.details.is_empty(), "a VPC answers for itself: {note:?}");
    let expected = "eni-b of i-0000000b can have 10.20.0.11 of 10.20.0.0/24 (it is on eni-a of i-0000000a), and so can its link; \
                    that the role of this host may move it (ec2:AssignPrivateIpAddresses) has no dry run";
    assert_eq!(note.text, expected);
    assert_eq!(host.world.calls("AssignPrivateIpAddresses").len(), 0);
    host.nothing_moved();
}

#[test]
fn every_bad_value_is_told() {
    let text = "address = \"fd00::11/64\"\ninterface = \"ens5\"\nnetwork_interface = \"eth0\"\ntimeout = \"0s\"\nec2 = { region = \"\" }";
    let config: SecondaryIpConfig = toml::from_str(text).unwrap();
    let problems = config.clone().build(Ok(Arc::new(Link::default())), Vec::new()).err().unwrap();
    assert_eq!(problems.len(), 4, "{problems:?}");
    let problems = config.build(Err(vec!["interface: is none".to_owned()]), Vec::new()).err().unwrap();
    assert_eq!((problems.len(), problems[0].as_str()), (5, "interface: is none"));
    assert!(toml::from_str::<SecondaryIpConfig>("network_interface = \"eni-1\"\nnic = 1").is_err());
}
