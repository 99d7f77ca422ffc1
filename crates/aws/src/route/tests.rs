//! The driver against the strict EC2.

use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::bed::{Link, World, fault, links, policy, policy_without, words};
use crate::way_back::Others;

const EPOCH: Epoch = Epoch(1);
const TO: &str = "10.99.0.11/32";

/// The driver on the host of `eni-b`, in another zone than `eni-a` of the old one. Table `rtb-1` sends the address to the
/// old host, and `rtb-2` has no route to it.
struct Host {
    world: World,
    link: Arc<Link>,
    driver: Route,
    _links: TempDir,
}

fn config(ec2: Ec2Config) -> RouteConfig {
    RouteConfig {
        address: TO.to_owned(),
        interface: "ens5".to_owned(),
        network_interface: Some("eni-b".to_owned()),
        route_tables: ["rtb-1", "rtb-2"].map(str::to_owned).into(),
        timeout: Duration::from_secs(12),
        ec2,
    }
}

fn host_of(more: &Value, config: impl Fn(Ec2Config) -> RouteConfig) -> Option<Host> {
    let table =
        |vpc: &str, routes: Value| json!({"vpc": vpc, "routes": routes, "tags": {"understudy": "kafka"}});
    let mut laid = json!({
        "subnets": {
            "subnet-1": {"vpc": "vpc-1", "cidr": "10.20.0.0/24"},
            "subnet-2": {"vpc": "vpc-1", "cidr": "10.20.1.0/24"},
            "subnet-9": {"vpc": "vpc-9", "cidr": "10.20.0.0/24"},
        },
        "tables": {
            "rtb-1": table("vpc-1", json!({TO: "eni-a"})),
            "rtb-2": table("vpc-1", json!({})),
            "rtb-3": table("vpc-1", json!({})),
            "rtb-9": table("vpc-9", json!({})),
        },
    });
    for (name, value) in more.as_object().unwrap() {
        laid[name] = value.clone();
    }
    let world = World::lay(laid)?;
    world.change(
        &json!({"interfaces": {"eni-b": {"subnet": "subnet-2", "primary": "10.20.1.32", "checks": false}}}),
    );
    let (link, links) = (Arc::new(Link::default()), links());
    let mut driver = config(world.config()).build(Ok(link.clone()), Vec::new()).ok().unwrap();
    world.admit(&mut driver.own.ec2);
    driver.own.links = links.path().to_owned();
    Some(Host { world, link, driver, _links: links })
}

fn host(more: &Value) -> Option<Host> {
    host_of(more, config)
}

impl Host {
    /// Both parts of a takeover.
    async fn take(&self) -> Result<Note, StepError> {
        let moved = self.driver.acquire(EPOCH).await?;
        Ok(moved.and(self.driver.confirm().await?))
    }

    /// Where the tables of the hosts' VPC send the address.
    fn routes(&self) -> [Value; 3] {
        let told = self.world.told();
        ["rtb-1", "rtb-2", "rtb-3"].map(|table| told["tables"][table]["routes"][TO].clone())
    }

    #[track_caller]
    fn nothing_moved(&self) {
        assert_eq!(self.routes(), [json!("eni-a"), json!(null), json!(null)]);
        assert!(!self.link.has());
    }
}

#[tokio::test]
async fn every_listed_table_sends_the_address_here_and_no_other_is_touched() {
    let Some(host) = host(&json!({"page": 1})) else { return };
    let note = host.take().await.unwrap();
    let expected = "by EC2's word rtb-1, rtb-2 are to send 10.99.0.11 to eni-b of i-0000000b; on the link; rtb-1, rtb-2 now \
                    send 10.99.0.11 to eni-b of i-0000000b; no other broker is known that could answer it";
    assert_eq!(note.text, expected);
    assert_eq!(note.details[PLACED], "true");
    assert_eq!(host.routes(), [json!("eni-b"), json!("eni-b"), json!(null)]);
    assert!(host.link.has());
    assert_eq!(host.driver.holder().await.unwrap(), None);
    let again = host.take().await.unwrap();
    assert!(again.text.starts_with("by EC2's word rtb-1, rtb-2 sent 10.99.0.11 to eni-b"), "{again:?}");
    assert!(!again.details.contains_key(PLACED), "{again:?}");
    host.driver.release().await.unwrap();
    assert!(!host.link.has());
    assert_eq!(host.routes()[0], "eni-b", "without a route, packets would leave by a wider one");
}

#[tokio::test]
async fn what_is_accepted_is_waited_for_and_what_is_never_shown_is_not_done() {
    let Some(host) = host(&json!({"remap": 1.5})) else { return };
    let begun = Instant::now();
    host.take().await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(1_500), "it was not read back");
    assert_eq!(host.world.calls("ReplaceRoute").len(), 2, "an order is not repeated");
    let Some(host) = self::host(&json!({"remap": 60})) else { return };
    let error = host.take().await.unwrap_err();
    assert_eq!(error.kind(), "unconfirmed");
    let words = words(error);
    assert!(words.contains("read last: rtb-1 sends it to eni-a, rtb-2 has no route to it"), "{words}");
    // The undo of a failed step.
    host.driver.release().await.unwrap();
    assert!(!host.link.has());
}

#[tokio::test]
async fn a_call_that_is_throttled_or_whose_reply_is_lost_is_made_again() {
    for (action, kind, times) in [
        ("ReplaceRoute", "lost", 1),
        ("CreateRoute", "lost", 1),
        ("ReplaceRoute", "refuse", 2),
        ("DescribeRouteTables", "refuse", 2),
    ] {
        let more = json!({"code": "RequestLimitExceeded", "status": "503 Service Unavailable"});
        let Some(host) = host(&fault(action, kind, times, more)) else { return };
        host.take().await.unwrap();
        assert_eq!(host.routes()[..2], [json!("eni-b"), json!("eni-b")], "{action} {kind}");
    }
}

#[tokio::test]
async fn an_instance_that_does_not_run_is_a_black_hole_and_not_here() {
    let Some(host) = host(&json!({})) else { return };
    host.world.change(&json!({"instances": {"i-0000000b": {"state": "stopped"}}}));
    let error = words(host.take().await.unwrap_err());
    assert!(error.contains("rtb-1 sends it to eni-b (blackhole)"), "{error}");
}

#[tokio::test]
async fn an_address_that_no_other_host_answers_is_not_here() {
    let Some(mut host) = host(&json!({})) else { return };
    let port = host.world.config().endpoint.unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
    let listeners = vec![Endpoint { host: "127.0.0.1".to_owned(), port }];
    host.driver.own.others = Others { listeners, is_here: |_| false };
    let error = words(host.take().await.unwrap_err());
    assert!(error.contains("no answer of another broker's host comes to it: 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn a_route_that_a_third_party_changes_is_found_meanwhile_and_later() {
    // The third reading is the one after the link.
    let mut more =
        fault("DescribeRouteTables", "steal", 1, json!({"table": "rtb-2", "to": "eni-a", "address": TO}));
    let reads = json!({"action": "DescribeRouteTables", "kind": "delay", "seconds": 0, "times": 1});
    more["faults"].as_array_mut().unwrap().insert(0, reads);
    let Some(host) = host(&more) else { return };
    let error = words(host.take().await.unwrap_err());
    assert!(error.contains("rtb-2 sends it to eni-a: find out who else changes the routes"), "{error}");
    assert_eq!(host.driver.holder().await.unwrap().as_deref(), Some("eni-a (by rtb-2)"));
    let error = words(host.driver.check().await.unwrap_err());
    assert!(error.contains("10.99.0.11 is on the link here, and rtb-2 sends it to eni-a"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_is_refused_before_any_order() {
    for (expected, table, address) in [
        ("vpc-1 has no route table rtb-4: correct route_tables", "rtb-4", TO),
        ("vpc-1 has no route table rtb-9: correct route_tables", "rtb-9", TO),
        ("10.20.1.11 is in 10.20.1.0/24, a network of vpc-1 itself", "rtb-1", "10.20.1.11/32"),
    ] {
        let config = |ec2| RouteConfig {
            route_tables: [table.to_owned()].into(),
            address: address.to_owned(),
            ..config(ec2)
        };
        let Some(host) = host_of(&json!({}), config) else { return };
        for error in [host.take().await.unwrap_err(), host.driver.check().await.unwrap_err()] {
            let words = words(error);
            assert!(words.contains(expected), "{words}");
        }
        assert_eq!(host.world.calls("ReplaceRoute").len(), 0, "{expected}");
        host.nothing_moved();
    }
    let Some(host) = host(&json!({})) else { return };
    host.world.change(&json!({"interfaces": {"eni-b": {"checks": true}}}));
    for error in [host.take().await.unwrap_err(), host.driver.check().await.unwrap_err()] {
        let words = words(error);
        assert!(words.contains("EC2 drops what comes to eni-b of i-0000000b for 10.99.0.11"), "{words}");
        assert!(words.contains("--network-interface-id eni-b --no-source-dest-check"), "{words}");
    }
    host.nothing_moved();
}

#[tokio::test]
async fn the_policy_of_the_guide_is_enough_and_check_tries_each_right() {
    let Some(host) = host(&json!({"policy": policy()})) else { return };
    let note = host.driver.check().await.unwrap();
    let expected = "eni-b of i-0000000b can have 10.99.0.11 (rtb-1 sends it to eni-a, rtb-2 has no route to it), this host's \
                    role may change its routes, and its link can take it; rtb-3 of vpc-1 are not listed: nothing in their \
                    subnets reaches it";
    assert_eq!(note.text, expected);
    host.nothing_moved();
    host.take().await.unwrap();
    for action in ["DescribeRouteTables", "ReplaceRoute", "CreateRoute", "DescribeNetworkInterfaces"] {
        let policy = policy_without(&format!("ec2:{action}"));
        let Some(host) = self::host(&json!({"policy": policy})) else { return };
        let error = words(host.driver.check().await.unwrap_err());
        assert!(error.contains(&format!("do not allow ec2:{action}")), "{error}");
        let error = words(host.take().await.unwrap_err());
        assert!(error.contains(&format!("do not allow ec2:{action}")), "{error}");
        assert!(!host.link.has());
    }
    // A table without the tag is not the agents' to change.
    let Some(host) = self::host(&json!({"policy": policy()})) else { return };
    host.world.change(&json!({"tables": {"rtb-2": {"tags": {}}}}));
    let error = words(host.driver.check().await.unwrap_err());
    assert!(error.contains("in rtb-2") && error.contains("do not allow ec2:ReplaceRoute"), "{error}");
}

#[test]
fn every_bad_value_is_told() {
    let text = "address = \"10.99.0.11/24\"\ninterface = \"ens5\"\nnetwork_interface = \"eth0\"\nroute_tables = [\"main\"]\n\
                timeout = \"0s\"";
    let config: RouteConfig = toml::from_str(text).unwrap();
    let problems = config.clone().build(Ok(Arc::new(Link::default())), Vec::new()).err().unwrap();
    assert_eq!(problems.len(), 4, "{problems:?}");
    let none = RouteConfig { route_tables: BTreeSet::new(), address: "fd00::11/128".to_owned(), ..config };
    let problems = none.build(Err(vec!["interface: is none".to_owned()]), Vec::new()).err().unwrap();
    assert_eq!((problems.len(), problems[0].as_str()), (5, "interface: is none"), "{problems:?}");
    assert!(toml::from_str::<RouteConfig>("route_tables = []\nnic = 1").is_err());
}
