//! Whether clients are told to go where the broker's address moves.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};

use super::BrokerIdentity;
use super::common::Common;
use super::listeners::{self, Listener, advertised, renamed};
use super::problem::Problem;
use recovery::model::{BrokerId, Endpoint};
use recovery::ports::Note;

/// What [`look`] is about: "could not …".
pub(super) const ADVERTISED: &str = "send clients to the address";

/// Compares what Kafka will advertise with the broker's `listener`, which is what moves.
pub(super) fn look(common: &Common, broker: BrokerId) -> Result<Note, Problem> {
    // One trouble is told once: what keeps the file from being rendered is told where that is looked at.
    let Ok(file) = common.rendered(broker) else {
        return Ok(Note::new(
            "nobody knows what clients would be told: server.properties cannot be rendered",
        ));
    };
    let told = advertised(&file).map_err(Problem::Refused)?;
    let identity = common.broker(broker)?;
    let renamed = renamed(&common.overridden(broker)?, identity);
    if !renamed.is_empty() {
        return Err(Problem::Refused(names_of_their_own(&renamed, &told, identity)));
    }
    compare(&told, &identity.listener, &resolve).map_err(Problem::Refused)
}

/// The template is of this host: no name in it can be the broker's.
fn names_of_their_own(
    renamed: &[(Listener, Listener)],
    told: &[Listener],
    broker: &BrokerIdentity,
) -> String {
    let one = |(was, is): &(Listener, Listener)| {
        let (name, was, is) = (&is.name, was.print(), is.print());
        format!(
            "the template has a name of its own for clients of {name}, {was}, and they would be told {is}"
        )
    };
    let cure = told.iter().map(|l| match renamed.iter().any(|(_, is)| is == l) {
        true => Listener { host: format!("NAME-OF-BROKER-{}", broker.id), ..l.clone() },
        false => l.clone(),
    });
    format!(
        "{}. Say in [broker.properties] where they find broker {}: \"{}\" = \"{}\"",
        renamed.iter().map(one).collect::<Vec<_>>().join("; "),
        broker.id,
        listeners::ADVERTISED,
        listeners::print(cure)
    )
}

pub(super) fn resolve(host: &str) -> BTreeSet<IpAddr> {
    let found = (host, 0).to_socket_addrs();
    found.into_iter().flatten().map(|address| address.ip()).collect()
}

fn compare(
    told: &[Listener],
    moves: &Endpoint,
    resolve: &dyn Fn(&str) -> BTreeSet<IpAddr>,
) -> Result<Note, String> {
    let target = resolve(&moves.host);
    let moved = |l: &&Listener| l.host == moves.host || !resolve(&l.host).is_disjoint(&target);
    let (here, mut elsewhere): (Vec<&Listener>, Vec<&Listener>) = told.iter().partition(moved);
    elsewhere.retain(|listener| !listener.is_loopback());
    let print = |listeners: &[&Listener]| {
        listeners.iter().map(|listener| listener.print()).collect::<Vec<_>>().join(", ")
    };
    if !here.iter().any(|listener| listener.port == moves.port) {
        return Err(format!(
            "Kafka will advertise {}, and what moves with the broker is {moves}: no client would find it. Correct \
             advertised.listeners in [broker.properties], or the broker's `listener`",
            print(&told.iter().collect::<Vec<_>>())
        ));
    }
    let note = Note::new(format!("clients are told {}, which moves with the broker", print(&here)));
    if elsewhere.is_empty() {
        return Ok(note);
    }
    let text = format!("{}; {} does not, and must lead to this host too", note.text, print(&elsewhere));
    Ok(Note { text, ..note })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_listener_at_least_must_lead_to_what_moves() {
        let listener = |text: &str| Listener::parse(text).unwrap();
        let resolve = |host: &str| match host {
            "kafka-1" => BTreeSet::from(["10.0.0.1".parse().unwrap()]),
            host => host.parse().into_iter().collect(),
        };
        // What is advertised, what moves, and what is said; an error where it begins with "no".
        for (told, moves, says) in [
            (
                &["A://10.0.0.1:9092"][..],
                "10.0.0.1:9092",
                "told A://10.0.0.1:9092, which moves with the broker",
            ),
            (&["A://kafka-1:9092"], "10.0.0.1:9092", "told A://kafka-1:9092"),
            (&["A://10.0.0.1:9092"], "kafka-1:9092", "told A://10.0.0.1:9092"),
            (&["A://unknown:9092"], "unknown:9092", "told A://unknown:9092"),
            (&["A://10.0.0.1:9092", "B://lb:9094"], "10.0.0.1:9092", "B://lb:9094 does not"),
            (&["A://10.0.0.1:9092", "B://localhost:9094"], "10.0.0.1:9092", "moves with the broker"),
            (&["A://10.9.9.9:9092"], "10.0.0.1:9092", "no client would find it"),
            (&["A://10.0.0.1:9093"], "10.0.0.1:9092", "no client would find it"),
            (&["A://unknown:9092"], "10.0.0.1:9092", "no client would find it"),
            (&[], "10.0.0.1:9092", "no client would find it"),
        ] {
            let told: Vec<Listener> = told.iter().map(|text| listener(text)).collect();
            let found = compare(&told, &moves.parse().unwrap(), &resolve);
            assert_eq!(found.is_err(), says.starts_with("no"), "{moves}: {found:?}");
            let said = found.map_or_else(|why| why, |note| note.text);
            assert!(said.contains(says), "{moves}: {said}");
            assert_eq!(
                said.contains("must lead to this host"),
                says.ends_with("does not"),
                "{moves}: {said}"
            );
        }
    }
}
