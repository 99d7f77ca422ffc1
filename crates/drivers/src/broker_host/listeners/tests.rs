use std::collections::BTreeMap;

use super::*;
use recovery::model::BrokerId;

const BROKER: &str = "process.roles=broker\ncontroller.listener.names=CONTROLLER\n";
const COMBINED: &str = "process.roles=broker,controller\ncontroller.listener.names=CONTROLLER\n";

fn broker(listener: &str, overrides: &[(&str, &str)]) -> BrokerIdentity {
    let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
    BrokerIdentity {
        id: BrokerId(7),
        listener: listener.parse().unwrap(),
        log_dirs: vec!["/mnt/a".into()],
        properties: overrides.iter().map(own).collect::<BTreeMap<_, _>>(),
    }
}

fn rendered(template: &str, broker: &BrokerIdentity) -> Result<Properties, String> {
    let mut file = Properties::parse(template.as_bytes()).unwrap();
    for (key, value) in &broker.properties {
        file.set(key, value);
    }
    set_listeners(&mut file, broker).map(|()| file)
}

#[track_caller]
fn become_in(roles: &str, template: &str, listener: &str, bound: &str, advertised: &str) {
    let file = rendered(&format!("{roles}{template}"), &broker(listener, &[])).unwrap();
    assert_eq!(file.get(BOUND), Some(bound));
    assert_eq!(file.get(ADVERTISED), Some(advertised));
}

#[track_caller]
fn listeners_become(template: &str, listener: &str, bound: &str, advertised: &str) {
    become_in(BROKER, template, listener, bound, advertised);
}

#[track_caller]
fn is_refused(template: &str, because: &str) {
    let error = rendered(&format!("{BROKER}{template}"), &broker("10.0.0.7:9092", &[])).unwrap_err();
    assert!(error.contains(because), "{error}");
}

#[test]
fn one_listener_moves_whatever_its_port() {
    listeners_become(
        "listeners=PLAINTEXT://0.0.0.0:19092\nadvertised.listeners=PLAINTEXT://localhost:19092",
        "10.0.0.7:9092",
        "PLAINTEXT://10.0.0.7:9092",
        "PLAINTEXT://10.0.0.7:9092",
    );
    listeners_become(
        "listeners=SSL://:9092",
        "[fd00::7]:9092",
        "SSL://[fd00::7]:9092",
        "SSL://[fd00::7]:9092",
    );
}

#[test]
fn a_name_leaves_a_wildcard_bound() {
    listeners_become(
        "listeners=SSL://0.0.0.0:9092",
        "kafka-7.example:9092",
        "SSL://0.0.0.0:9092",
        "SSL://kafka-7.example:9092",
    );
    listeners_become(
        "listeners=SSL://standby.example:9092",
        "kafka-7.example:9092",
        "SSL://kafka-7.example:9092",
        "SSL://kafka-7.example:9092",
    );
}

#[test]
fn a_port_mapping_of_the_template_stays() {
    listeners_become(
        "listeners=SSL://:9092\nadvertised.listeners=SSL://standby:19092",
        "10.0.0.7:29092",
        "SSL://10.0.0.7:9092",
        "SSL://10.0.0.7:29092",
    );
}

#[test]
fn of_several_listeners_the_one_with_the_port_is_the_clients() {
    listeners_become(
        "listeners=INTERNAL://:9091, EXTERNAL://:9092\n\
         advertised.listeners=EXTERNAL://standby:9092,INTERNAL://standby:9091",
        "10.0.0.7:9092",
        "INTERNAL://10.0.0.7:9091,EXTERNAL://10.0.0.7:9092",
        "EXTERNAL://10.0.0.7:9092,INTERNAL://10.0.0.7:9091",
    );
    is_refused("listeners=INTERNAL://:9091,EXTERNAL://:9094\n", "0 of them are reached at port 9092");
    is_refused("listeners=A://x:9092,B://y:9092\n", "2 of them are reached at port 9092");
}

#[test]
fn a_listener_at_loopback_stays_there() {
    for loopback in [
        "127.0.0.1",
        "127.8.8.8",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "localhost",
        "Localhost.",
        "ip6-loopback",
        "127.1",
    ] {
        listeners_become(
            &format!(
                "listeners=SASL_SSL://10.0.0.31:9094,PLAINTEXT://{loopback}:9092\n\
                 advertised.listeners=SASL_SSL://standby:9094,PLAINTEXT://{loopback}:9092"
            ),
            "10.0.0.7:9094",
            &format!("SASL_SSL://10.0.0.7:9094,PLAINTEXT://{loopback}:9092"),
            &format!("SASL_SSL://10.0.0.7:9094,PLAINTEXT://{loopback}:9092"),
        );
    }
    // Its port is no reason to take it for the clients'.
    listeners_become(
        "listeners=SASL_SSL://:9094,PLAINTEXT://127.0.0.1:9092",
        "10.0.0.7:9092",
        "SASL_SSL://10.0.0.7:9092,PLAINTEXT://127.0.0.1:9092",
        "SASL_SSL://10.0.0.7:9092,PLAINTEXT://127.0.0.1:9092",
    );
    is_refused("listeners=PLAINTEXT://localhost:9092\n", "bound to loopback");
    listeners_become(
        "listeners=PLAINTEXT://localhost:9092",
        "127.0.0.1:19092",
        "PLAINTEXT://127.0.0.1:19092",
        "PLAINTEXT://127.0.0.1:19092",
    );
}

#[test]
fn a_listener_of_another_network_stays_there() {
    listeners_become(
        "listeners=CLIENTS://10.0.0.31:9092,REPLICAS://10.0.0.31:9091,ADMIN://192.168.5.31:9090",
        "10.0.0.7:9092",
        "CLIENTS://10.0.0.7:9092,REPLICAS://10.0.0.7:9091,ADMIN://192.168.5.31:9090",
        "CLIENTS://10.0.0.7:9092,REPLICAS://10.0.0.7:9091,ADMIN://192.168.5.31:9090",
    );
    listeners_become(
        "listeners=CLIENTS://:9092,ADMIN://192.168.5.31:9090\n\
         advertised.listeners=CLIENTS://standby:9092,ADMIN://admin.standby:9090",
        "10.0.0.7:9092",
        "CLIENTS://10.0.0.7:9092,ADMIN://192.168.5.31:9090",
        "CLIENTS://10.0.0.7:9092,ADMIN://admin.standby:9090",
    );
}

#[test]
fn the_controllers_listener_moves_with_a_broker_that_is_a_controller() {
    become_in(
        COMBINED,
        "listeners=PLAINTEXT://10.0.0.31:9092,CONTROLLER://10.0.0.31:9093\n\
         advertised.listeners=PLAINTEXT://10.0.0.31:9092,CONTROLLER://10.0.0.31:9093",
        "10.0.0.7:9092",
        "PLAINTEXT://10.0.0.7:9092,CONTROLLER://10.0.0.7:9093",
        "PLAINTEXT://10.0.0.7:9092,CONTROLLER://10.0.0.7:9093",
    );
    // On an address of its own it is the voter's all the same; the clients' listener is another one.
    become_in(
        COMBINED,
        "listeners=PLAINTEXT://:9092,CONTROLLER://192.168.5.31:9093",
        "10.0.0.7:9092",
        "PLAINTEXT://10.0.0.7:9092,CONTROLLER://10.0.0.7:9093",
        "PLAINTEXT://10.0.0.7:9092",
    );
    is_refused("listeners=PLAINTEXT://:9092,CONTROLLER://:9093", "Kafka refuses a listener of controller");
}

#[test]
fn an_advertised_name_of_its_own_is_told() {
    let own = |template: &str, overrides: &[(&str, &str)]| {
        let mut file = Properties::parse(format!("{BROKER}{template}").as_bytes()).unwrap();
        let broker = broker("10.0.0.7:9092", overrides);
        for (key, value) in &broker.properties {
            file.set(key, value);
        }
        let found = renamed(&file, &broker);
        found.iter().map(|(was, is)| format!("{} {}", was.print(), is.print())).collect::<Vec<_>>()
    };
    let two = "listeners=INTERNAL://0.0.0.0:9092,EXTERNAL://0.0.0.0:9094\n\
               advertised.listeners=INTERNAL://standby.internal:9092,EXTERNAL://b9.example.com:9094\n";
    assert_eq!(own(two, &[]), ["EXTERNAL://b9.example.com:9094 EXTERNAL://10.0.0.7:9094"]);
    let given = [(ADVERTISED, "INTERNAL://10.0.0.7:9092,EXTERNAL://b7.example.com:9094")];
    assert!(own(two, &given).is_empty());
    let one_host = "listeners=A://:9092,B://:9094\nadvertised.listeners=A://standby:9092,B://standby:9094\n";
    assert!(own(one_host, &[]).is_empty());
    assert!(own("listeners=A://:9092,B://0.0.0.0:9094\n", &[]).is_empty());
    let at_loopback =
        "listeners=A://:9092,B://127.0.0.1:9094\nadvertised.listeners=A://s:9092,B://[::1]:9094\n";
    assert!(own(at_loopback, &[]).is_empty());
}

#[test]
fn overrides_win() {
    let template = format!("{BROKER}listeners=A://:9091,B://:9094\n");
    let overrides = [("listeners", "A://:1,B://:2"), ("advertised.listeners", "A://x:3,B://y:4")];
    let file = rendered(&template, &broker("h:9092", &overrides)).unwrap();
    assert_eq!(file.get("listeners"), Some("A://:1,B://:2"));
    assert_eq!(file.get("advertised.listeners"), Some("A://x:3,B://y:4"));

    let file = rendered(&template, &broker("h:9092", &[("listeners", "A://10.0.0.1:9092,B://:2")])).unwrap();
    assert_eq!(file.get("listeners"), Some("A://10.0.0.1:9092,B://:2"));
    assert_eq!(file.get("advertised.listeners"), Some("A://h:9092,B://h:2"));
}

#[test]
fn overrides_that_kafka_refuses_are_refused() {
    let refused = |bound: &str, advertised: &str| {
        let overrides = [(BOUND, bound), (ADVERTISED, advertised)];
        rendered(BROKER, &broker("h:9092", &overrides)).unwrap_err()
    };
    assert!(refused("A://:1", "B://x:1").contains("names `B` and listeners does not"));
    assert!(refused("", "A://x:1").contains("no `listeners`"));
}

#[test]
fn two_kafkas_of_one_host_clash_at_one_address_and_port() {
    let clash = |a: &str, b: &str| Listener::parse(a).unwrap().clashes(&Listener::parse(b).unwrap());
    assert!(clash("A://127.0.0.1:9092", "B://127.0.0.1:9092"));
    assert!(clash("A://:9092", "B://10.0.0.1:9092"));
    assert!(!clash("A://10.0.0.2:9092", "B://10.0.0.1:9092"));
    assert!(!clash("A://:9092", "B://:9093"));
}
