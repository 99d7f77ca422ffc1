//! What Kafka refuses of its listeners and its voters before it asks anybody, and where the other brokers would
//! be sent. Pure.

use super::listeners::{self, Listener, list};
use kafka::properties::Properties;
use recovery::model::{BrokerId, Endpoint};

const INTER: &str = "inter.broker.listener.name";
const EARLY: &str = "early.start.listeners";
const CONTROL_PLANE: &str = "control.plane.listener.name";
const PROTOCOL: &str = "security.inter.broker.protocol";
const MAP: &str = "listener.security.protocol.map";
const PROTOCOLS: [&str; 4] = ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"];

/// Everything that is wrong with a rendered file, each with what to do.
pub(super) fn wrong(file: &Properties, broker: BrokerId, moves: &Endpoint) -> Vec<String> {
    let found = [
        unmapped(file),
        inter_broker(file, moves),
        starts_early(file),
        control_plane(file),
        lacks_controller(file),
        votes_as_a_broker(file, broker),
    ];
    found.into_iter().flatten().collect()
}

fn value<'f>(file: &'f Properties, key: &str) -> Option<&'f str> {
    file.get(key).map(str::trim).filter(|value| !value.is_empty())
}

fn is_among(names: &[String], name: &str) -> bool {
    names.iter().any(|one| one.eq_ignore_ascii_case(name))
}

/// The listeners' names, without the controllers'.
fn names(listeners: &[Listener], controllers: &[String]) -> Vec<String> {
    let names = listeners.iter().map(|listener| listener.name.clone());
    names.filter(|name| !is_among(controllers, name)).collect()
}

/// Through which listener the brokers talk to each other, and whether another one can come to it.
fn inter_broker(file: &Properties, moves: &Endpoint) -> Option<String> {
    let controllers = listeners::controllers(file);
    let (bound, told) = (listeners::bound(file), listeners::advertised(file).ok()?);
    let (own, advertised) = (names(&bound, &controllers), names(&told, &controllers));
    let all = own.join(", ");
    let named = value(file, INTER);
    if named.is_some() && file.get(PROTOCOL).is_some() {
        return Some(format!(
            "{INTER} and {PROTOCOL} are both set, and Kafka takes one of them: leave {PROTOCOL} out"
        ));
    }
    let Some(name) = named else {
        let protocol = value(file, PROTOCOL).unwrap_or("PLAINTEXT");
        if is_among(&advertised, protocol) {
            return sent_to_loopback(&bound, &told, protocol, moves);
        }
        return Some(format!(
            "without {INTER} the brokers talk through the listener {protocol} ({PROTOCOL}), and there is none among {all}: \
             set {INTER} to one of them"
        ));
    };
    if is_among(&controllers, name) && value(file, "process.roles").is_some() {
        return Some(format!(
            "{INTER}={name} is the controllers' listener, which Kafka refuses: name one of {all}"
        ));
    }
    if !is_among(&own, name) {
        return Some(format!("{INTER}={name} is none of the listeners: name one of {all}"));
    }
    if !is_among(&advertised, name) {
        return Some(format!(
            "advertised.listeners lacks {name}, through which the brokers talk ({INTER}), and Kafka refuses that: add it"
        ));
    }
    sent_to_loopback(&bound, &told, name, moves)
}

/// Listeners that are opened before the authorizer is ready must be there.
fn starts_early(file: &Properties) -> Option<String> {
    let bound = listeners::bound(file).into_iter().map(|listener| listener.name);
    let known: Vec<String> = bound.chain(listeners::controllers(file)).collect();
    let lost = list(value(file, EARLY)?).find(|name| !is_among(&known, name))?;
    Some(format!(
        "{EARLY} names {lost}, which is none of the listeners {}, and Kafka refuses that: correct it, or leave it out",
        known.join(", ")
    ))
}

/// The listener through which a controller of ZooKeeper's time talks to the brokers.
fn control_plane(file: &Properties) -> Option<String> {
    let name = value(file, CONTROL_PLANE)?;
    if value(file, "process.roles").is_some() {
        return Some(format!(
            "{CONTROL_PLANE}={name} is for clusters with ZooKeeper: Kafka 3 refuses it beside process.roles, and Kafka 4 does not \
             know it. Leave it out"
        ));
    }
    let told = names(&listeners::advertised(file).ok()?, &[]);
    let why = if !is_among(&told, name) {
        "none of the listeners that are advertised".to_owned()
    } else if value(file, INTER).is_some_and(|inter| inter.eq_ignore_ascii_case(name)) {
        format!("the listener of {INTER}, too")
    } else {
        return None;
    };
    Some(format!("{CONTROL_PLANE}={name} is {why}, and Kafka refuses that: give it a listener of its own"))
}

fn sent_to_loopback(bound: &[Listener], told: &[Listener], name: &str, moves: &Endpoint) -> Option<String> {
    if listeners::is_loopback(&moves.host) {
        return None;
    }
    let shut = bound.iter().chain(told).find(|l| l.name.eq_ignore_ascii_case(name) && l.is_loopback())?;
    Some(format!(
        "the brokers talk through {name}, which is at loopback ({}): the others would be sent to themselves, and this broker \
         would never be in sync. Bind {name} where they can reach it, such as {name}://:{}, or set {INTER} to a listener that \
         they reach",
        shut.print(),
        shut.port
    ))
}

/// Every listener has a protocol: by the map, or by its name. Without a map the controllers' are PLAINTEXT, as
/// long as no listener has another protocol for its name.
fn unmapped(file: &Properties) -> Option<String> {
    let controllers = listeners::controllers(file);
    let kraft = value(file, "process.roles").is_some();
    let mut all: Vec<String> = listeners::bound(file).into_iter().map(|listener| listener.name).collect();
    all.extend(controllers.iter().filter(|_| kraft).cloned());
    let encrypted = |name: &String| PROTOCOLS[1..].contains(&name.as_str());
    let known: Vec<String> = match file.get(MAP) {
        Some(map) => list(map)
            .filter_map(|pair| pair.split_once(':'))
            .map(|(name, _)| name.trim().to_owned())
            .collect(),
        None => {
            let by_name = PROTOCOLS.map(str::to_owned).into_iter();
            let plain = kraft && !all.iter().any(encrypted);
            by_name.chain(controllers.iter().filter(|_| plain).cloned()).collect()
        }
    };
    let mut lost: Vec<String> = all.into_iter().filter(|name| !is_among(&known, name)).collect();
    lost.sort_unstable();
    lost.dedup();
    (!lost.is_empty()).then(|| {
        let entries = lost.iter().map(|name| format!("{name}:PLAINTEXT")).collect::<Vec<_>>().join(",");
        let (add, so) = match file.get(MAP) {
            Some(_) => ("add to it, for example", entries),
            None => (
                "add, for example",
                format!("{MAP}={entries},{}", PROTOCOLS.map(|name| format!("{name}:{name}")).join(",")),
            ),
        };
        format!("{MAP} has no protocol for {}, and Kafka refuses that: {add}, {so}", lost.join(", "))
    })
}

/// A controller listens for the others.
fn lacks_controller(file: &Properties) -> Option<String> {
    let bound: Vec<String> = listeners::bound(file).into_iter().map(|listener| listener.name).collect();
    let lost = listeners::controllers(file).into_iter().find(|name| !is_among(&bound, name))?;
    listeners::is_combined(file).then(|| {
        format!(
            "process.roles makes it a controller, and `listeners` has no {lost} of controller.listener.names: add {lost}://:9093 \
             with the voters' port, or set process.roles=broker"
        )
    })
}

/// Kafka refuses the vote of a node that is no controller.
fn votes_as_a_broker(file: &Properties, broker: BrokerId) -> Option<String> {
    let roles = value(file, "process.roles").filter(|_| !listeners::is_combined(file))?;
    let voters = value(file, "controller.quorum.voters")?;
    let id = broker.to_string();
    list(voters).any(|voter| voter.split_once('@').is_some_and(|(own, _)| own.trim() == id)).then(|| {
        format!(
            "process.roles={roles}, and controller.quorum.voters={voters} names broker {broker}: Kafka refuses a voter that is no \
             controller. Where broker {broker} is one, give the template process.roles=broker,controller and a listener of \
             controller.listener.names; where it is none, leave it out of the voters"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROKER: &str = "process.roles=broker\ncontroller.listener.names=CONTROLLER\n\
                          controller.quorum.voters=101@c:9093\n";
    const COMBINED: &str = "process.roles=broker,controller\ncontroller.listener.names=CONTROLLER\n\
                            controller.quorum.voters=7@h:9093\n";

    /// What is wrong with a rendered file: where it advertises nothing, it advertises what is bound.
    fn told(roles: &str, text: &str) -> Vec<String> {
        let mut file = Properties::parse(format!("{roles}{text}").as_bytes()).unwrap();
        if file.get("advertised.listeners").is_none() {
            let bound = file.get("listeners").unwrap().to_owned();
            file.set("advertised.listeners", &bound);
        }
        wrong(&file, BrokerId(7), &"10.0.0.7:9092".parse().unwrap())
    }

    #[track_caller]
    fn is_refused(roles: &str, text: &str, because: &str) {
        let said = told(roles, text);
        assert!(said.len() == 1 && said[0].contains(because), "{text}: {said:?}");
    }

    const TWO: &str = "listener.security.protocol.map=CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT,EXTERNAL:SSL\n\
                       listeners=INTERNAL://10.0.0.7:29092,EXTERNAL://10.0.0.7:9092\n";

    /// As Kafka 4.3 takes them.
    #[test]
    fn what_kafka_takes_is_not_refused() {
        for text in [
            "listeners=PLAINTEXT://:9092\n",
            "listeners=plaintext://:9092\n",
            "listeners=PLAINTEXT://:9092\ninter.broker.listener.name=Plaintext\n",
            &format!("{TWO}inter.broker.listener.name=internal\n"),
            "listeners=SSL://:9092\nsecurity.inter.broker.protocol=SSL\n\
             listener.security.protocol.map=CONTROLLER:SSL,SSL:SSL\n",
            "listeners=A://:9092,B://:9094\nadvertised.listeners=A://h:9092\ninter.broker.listener.name=A\n\
             listener.security.protocol.map=A:PLAINTEXT, B:SSL, CONTROLLER:SSL\n",
        ] {
            assert_eq!(told(BROKER, text), Vec::<String>::new(), "{text}");
        }
        assert_eq!(told(COMBINED, "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\n"), Vec::<String>::new());
        let zookeeper = "zookeeper.connect=z:2181\nlisteners=PLAINTEXT://:9092\n";
        assert_eq!(told("", zookeeper), Vec::<String>::new());
    }

    #[test]
    fn the_brokers_own_listener_must_be_one_that_is_there_and_told() {
        is_refused(
            BROKER,
            TWO,
            "without inter.broker.listener.name the brokers talk through the listener PLAINTEXT",
        );
        let named = |name: &str| format!("{TWO}inter.broker.listener.name={name}\n");
        is_refused(BROKER, &named("REPLICATION"), "is none of the listeners: name one of INTERNAL, EXTERNAL");
        is_refused(BROKER, &named("CONTROLLER"), "is the controllers' listener");
        let both = format!("{}security.inter.broker.protocol=PLAINTEXT\n", named("INTERNAL"));
        is_refused(BROKER, &both, "are both set");
        let untold = format!("{}advertised.listeners=EXTERNAL://h:9092\n", named("INTERNAL"));
        is_refused(BROKER, &untold, "advertised.listeners lacks INTERNAL");
    }

    #[test]
    fn other_brokers_are_not_sent_to_loopback() {
        let text = "listener.security.protocol.map=CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT,EXTERNAL:SSL\n\
                    listeners=INTERNAL://127.0.0.1:29092,EXTERNAL://10.0.0.7:9092\n";
        let named = |name: &str| format!("{text}inter.broker.listener.name={name}\n");
        is_refused(
            BROKER,
            &named("INTERNAL"),
            "at loopback (INTERNAL://127.0.0.1:29092): the others would be sent",
        );
        assert_eq!(told(BROKER, &named("EXTERNAL")), Vec::<String>::new());
        // By its protocol, where no name is given.
        is_refused(
            BROKER,
            "listeners=PLAINTEXT://localhost:9092,SSL://:9093\n\
            listener.security.protocol.map=CONTROLLER:SSL,PLAINTEXT:PLAINTEXT,SSL:SSL\n",
            "at loopback",
        );
        let only_told = format!(
            "{TWO}inter.broker.listener.name=INTERNAL\n\
            advertised.listeners=INTERNAL://localhost:29092,EXTERNAL://h:9092\n"
        );
        is_refused(BROKER, &only_told, "at loopback (INTERNAL://localhost:29092)");
        // A cluster of one host is told so itself.
        let file = Properties::parse(
            format!(
                "{BROKER}listeners=PLAINTEXT://127.0.0.1:9092\n\
            advertised.listeners=PLAINTEXT://127.0.0.1:9092\n"
            )
            .as_bytes(),
        )
        .unwrap();
        assert_eq!(wrong(&file, BrokerId(7), &"127.0.0.1:9092".parse().unwrap()), Vec::<String>::new());
    }

    #[test]
    fn every_listener_has_a_protocol() {
        let plain = "inter.broker.listener.name=PLAINTEXT\n";
        is_refused(BROKER, &format!("{plain}listeners=PLAINTEXT://:9092,X://:9094\n"), "no protocol for X,");
        // A map that is given is all there is.
        is_refused(
            BROKER,
            "listeners=PLAINTEXT://:9092\nlistener.security.protocol.map=PLAINTEXT:PLAINTEXT\n",
            "no protocol for CONTROLLER, and Kafka refuses that: add to it",
        );
        // Without a map the controllers' is plain only where nothing is encrypted.
        is_refused(BROKER, "listeners=PLAINTEXT://:9092,SSL://:9093\n", "no protocol for CONTROLLER");
    }

    #[test]
    fn listeners_that_other_keys_name_are_there() {
        let early = |name: &str| format!("listeners=PLAINTEXT://:9092\nearly.start.listeners={name}\n");
        is_refused(BROKER, &early("PLAINTEXT,REPLICATION"), "early.start.listeners names REPLICATION");
        assert_eq!(told(BROKER, &early("plaintext,CONTROLLER")), Vec::<String>::new());
        let plane = |name: &str| {
            format!("{TWO}inter.broker.listener.name=INTERNAL\ncontrol.plane.listener.name={name}\n")
        };
        let zookeeper = "zookeeper.connect=z:2181\n";
        is_refused(zookeeper, &plane("OTHER"), "none of the listeners that are advertised");
        is_refused(zookeeper, &plane("INTERNAL"), "the listener of inter.broker.listener.name, too");
        assert_eq!(told(zookeeper, &plane("EXTERNAL")), Vec::<String>::new());
        is_refused(BROKER, &plane("EXTERNAL"), "is for clusters with ZooKeeper");
    }

    #[test]
    fn a_controller_has_its_listener_and_a_voter_is_one() {
        is_refused(
            COMBINED,
            "listeners=PLAINTEXT://:9092\n",
            "`listeners` has no CONTROLLER of controller.listener.names",
        );
        let voter = BROKER.replace("101@", "1@a:9093,7@");
        is_refused(&voter, "listeners=PLAINTEXT://:9092\n", "Kafka refuses a voter that is no controller");
        assert_eq!(
            told(&BROKER.replace("101@", "17@"), "listeners=PLAINTEXT://:9092\n"),
            Vec::<String>::new()
        );
    }
}
