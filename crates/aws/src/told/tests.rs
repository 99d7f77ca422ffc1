//! How often a standby asks EC2 while all is well.

use std::sync::Arc;

use recovery::model::{Moment, Now};
use recovery::ports::{Address, Clock, Fence, HealthSignal};
use serde_json::{Value, json};

use super::*;
use crate::bed::{Link, World, links};
use crate::{
    Ec2StatusConfig, Ec2StopConfig, InstanceConfig, Route, RouteConfig, SecondaryIp, SecondaryIpConfig,
    Status, Stop,
};

/// How often an agent goes through its checks.
const EVERY: Duration = Duration::from_secs(300);
const HOSTS: [&str; 4] = ["kafka-1", "kafka-2", "kafka-3", "standby-2"];

#[tokio::test]
async fn an_answer_counts_for_a_while_and_a_failure_does_not() {
    let kept = Kept::default();
    let ask = async |limit, answer: Result<u8, &'static str>| kept.or_ask("a", limit, async { answer }).await;
    assert_eq!(ask(ROUND, Err("busy")).await, Err("busy"));
    assert_eq!(ask(ROUND, Ok(1)).await, Ok(1));
    assert_eq!(ask(ROUND, Ok(2)).await, Ok(1));
    assert_eq!(ask(Duration::ZERO, Ok(3)).await, Ok(3), "it was too old");
    assert_eq!(ask(EVER, Err("busy")).await, Ok(3));
    assert_eq!(kept.or_ask("b", EVER, async { Ok::<_, &str>(4) }).await, Ok(4), "of another");
}

struct Still;

#[async_trait::async_trait]
impl Clock for Still {
    fn now(&self) -> Now {
        Now { mono: Moment::default(), wall: "2026-11-27T03:00:00Z".parse().unwrap() }
    }
    async fn sleep(&self, _duration: Duration) {}
}

/// What a standby of three brokers asks EC2 by, with one client. There is a second standby.
struct Standby {
    world: World,
    status: Status,
    stops: Vec<Stop>,
    ips: Vec<SecondaryIp>,
    routes: Vec<Route>,
    shared: Arc<crate::client::Shared>,
    _links: tempfile::TempDir,
}

fn standby() -> Option<Standby> {
    let table = json!({"vpc": "vpc-1", "routes": {}, "tags": {"understudy": "kafka"}});
    let world = World::lay(json!({"tables": {"rtb-1": table}}))?;
    let instance =
        |name: &str| InstanceConfig { tag: format!("Name={name}"), id: None, private_address: None };
    for (id, name) in (1..).zip(HOSTS) {
        let tags = json!({"Name": name, "understudy": "kafka"});
        let more = json!({"state": "running", "tags": tags, "interface": "eni-a", "recovery": "disabled"});
        world.change(
            &json!({"instances": {format!("i-{id:08x}"): more}, "interfaces": {"eni-b": {"checks": false}}}),
        );
    }
    // The instance of another name in the world of all tests.
    world.change(&json!({"instances": {"i-0000000a": {"tags": {"Name": "former"}}}}));
    let (ec2, interface) = (world.config(), "ens5".to_owned());
    let link = || Ok(Arc::new(Link::default()) as Arc<dyn Address>);
    let hosts = HOSTS.map(|name| (name.to_owned(), instance(name))).into();
    let status: Ec2StatusConfig = toml::from_str("hosts = {}").unwrap();
    let mut status = Ec2StatusConfig { hosts, ec2: ec2.clone(), ..status }.build().unwrap();
    let stop =
        |name| Ec2StopConfig { instance: instance(name), timeout: EVERY, ec2: ec2.clone() }.build().unwrap();
    let mut stops: Vec<Stop> = HOSTS.map(stop).into();
    let (timeout, eni) = (Duration::from_secs(10), Some("eni-b".to_owned()));
    let ip = |n: u8| {
        let (address, interface, network_interface) =
            (format!("10.20.0.{n}/24"), interface.clone(), eni.clone());
        let config = SecondaryIpConfig { address, interface, network_interface, timeout, ec2: ec2.clone() };
        config.build(link(), Vec::new()).ok().unwrap()
    };
    let mut ips = [11, 12, 13].map(ip);
    let route = |n: u8| {
        let (address, interface, network_interface) =
            (format!("10.99.0.{n}/32"), interface.clone(), eni.clone());
        let route_tables = ["rtb-1".to_owned()].into();
        let config =
            RouteConfig { address, interface, network_interface, route_tables, timeout, ec2: ec2.clone() };
        config.build(link(), Vec::new()).ok().unwrap()
    };
    let mut routes = [11, 12, 13].map(route);
    let links = links();
    let owns = ips.iter_mut().map(|ip| &mut ip.own).chain(routes.iter_mut().map(|route| &mut route.own));
    let owns = owns.map(|own| {
        own.links = links.path().to_owned();
        &mut own.ec2
    });
    let mut shared = None;
    for ec2 in owns.chain(stops.iter_mut().map(|stop| &mut stop.ec2)).chain([&mut status.ec2]) {
        world.admit(ec2);
        ec2.shared = Arc::clone(shared.get_or_insert_with(|| Arc::clone(&ec2.shared)));
    }
    let (ips, routes, shared) = (ips.into(), routes.into(), shared?);
    Some(Standby { world, status, stops, ips, routes, shared, _links: links })
}

impl Standby {
    /// What is asked until the next round of checks, by call.
    async fn calm(&self, addresses: &[&dyn Address]) -> BTreeMap<String, usize> {
        let before = self.log().len();
        for _ in 0..EVERY.as_secs() / self.status.period().as_secs() {
            assert_eq!(self.status.look(&Still).await.len(), HOSTS.len());
        }
        for (stop, host) in self.stops.iter().zip(HOSTS) {
            stop.check(&host.into()).await.unwrap();
        }
        for address in addresses {
            address.check().await.unwrap();
        }
        self.shared.told.interfaces.age(EVERY);
        self.shared.told.subnets.age(EVERY);
        self.shared.told.tables.age(EVERY);
        self.shared.told.allowed.age(EVERY);
        let mut calls = BTreeMap::new();
        for call in &self.log()[before..] {
            *calls.entry(call["action"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        calls
    }

    fn log(&self) -> Vec<Value> {
        self.world.told()["log"].as_array().unwrap().clone()
    }
}

impl<T> Kept<T> {
    /// So much time passes.
    fn age(&self, time: Duration) {
        self.0.lock().unwrap().values_mut().for_each(|(at, _)| *at = at.checked_sub(time).unwrap());
    }
}

#[tokio::test]
async fn a_calm_standby_asks_less_than_once_a_minute_and_broker() {
    let Some(standby) = standby() else { return };
    let of = |calls: &[(&str, usize)]| {
        calls.iter().map(|(call, n)| ((*call).to_owned(), *n)).collect::<BTreeMap<_, _>>()
    };
    let most = 3 * usize::try_from(EVERY.as_secs() / 60).unwrap();

    let ips: Vec<&dyn Address> = standby.ips.iter().map(|ip| ip as _).collect();
    standby.calm(&ips).await;
    let calls = standby.calm(&ips).await;
    let fences = [("DescribeInstances", 4), ("StopInstances", 4), ("DescribeInstanceStatus", 1)];
    // This host's interface once, and who has each address.
    assert_eq!(calls, of(&[&fences[..], &[("DescribeNetworkInterfaces", 4)]].concat()));
    assert!(calls.values().sum::<usize>() <= most, "{calls:?}");

    let routes: Vec<&dyn Address> = standby.routes.iter().map(|route| route as _).collect();
    standby.calm(&routes).await;
    let calls = standby.calm(&routes).await;
    let tables = [("DescribeRouteTables", 1), ("ReplaceRoute", 1), ("CreateRoute", 1)];
    assert_eq!(calls, of(&[&fences[..], &[("DescribeNetworkInterfaces", 1)], &tables].concat()));
    assert!(calls.values().sum::<usize>() <= most, "{calls:?}");
}
