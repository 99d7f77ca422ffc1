//! Whether Kafka can bind here what its `server.properties` will say, beside the other brokers of this host.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};

use super::advertise::resolve;
use super::common::Common;
use super::listeners::{self, Listener};
use super::problem::Problem;
use super::refused;
use kafka::properties::Properties;
use recovery::model::{BrokerId, Endpoint};
use recovery::ports::Note;

/// What [`look`] is about: "could not …".
pub(super) const BIND: &str = "bind the listeners";

/// Compares what Kafka will bind with this host's addresses, the voters and the other brokers.
pub(super) fn look(common: &Common, broker: BrokerId) -> Result<Note, Problem> {
    let Ok(file) = common.rendered(broker) else {
        return Ok(Note::new("nobody knows what would be bound: server.properties cannot be rendered"));
    };
    let listener = &common.broker(broker)?.listener;
    let bound = listeners::bound(&file);
    let mut wrong: Vec<String> = bound.iter().filter_map(|l| foreign(l, listener)).collect();
    wrong.extend(voter(&file, broker, listener));
    wrong.extend(refused::wrong(&file, broker, listener));
    if !wrong.is_empty() {
        return Err(Problem::Refused(wrong.join("; ")));
    }
    let text = format!("Kafka will listen at {}", listeners::print(bound.iter().cloned()));
    let others = common.beside(broker);
    let clashes = others.filter_map(|other| clash(&bound, other, &common.rendered(other).ok()?));
    Ok(Note::new(text).warn(clashes))
}

/// A listener that stays at an address which this host does not have.
fn foreign(listener: &Listener, moves: &Endpoint) -> Option<String> {
    if listener.binds_everywhere() || listener.host == moves.host {
        return None;
    }
    let moving = resolve(&moves.host);
    let places = listener.address().map_or_else(|| resolve(&listener.host), |address| [address].into());
    let absent = |address: &IpAddr| {
        let bound = UdpSocket::bind((*address, 0));
        !moving.contains(address) && bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
    };
    (places.is_empty() || places.iter().all(absent)).then(|| {
        let why = if places.is_empty() { "a name that nobody resolves" } else { "no address of this host" };
        format!(
            "{} is bound to {why}: correct `listeners` in the template, which must be this host's own",
            listener.print()
        )
    })
}

/// What is wrong with the vote of a broker that is a controller too: the others look for it at one place.
fn voter(file: &Properties, broker: BrokerId, moves: &Endpoint) -> Option<String> {
    let voters = file.get("controller.quorum.voters").filter(|voters| !voters.trim().is_empty())?;
    let listener = listeners::controller(file).filter(|_| listeners::is_combined(file))?;
    let own = listeners::list(voters).filter_map(|voter| voter.split_once('@'));
    let Some((_, place)) = own.into_iter().find(|(id, _)| *id == broker.to_string()) else {
        return Some(format!(
            "process.roles makes broker {broker} a controller, and controller.quorum.voters={voters} does not name it: \
             set process.roles=broker for it"
        ));
    };
    let endpoint: Endpoint = place.parse().ok()?;
    let host = if listener.binds_everywhere() { &moves.host } else { &listener.host };
    let same = endpoint.host == *host || !resolve(&endpoint.host).is_disjoint(&resolve(host));
    (!same || endpoint.port != listener.port).then(|| {
        format!(
            "controller.quorum.voters looks for broker {broker} at {place}, and its controller would listen at {}: the \
             quorum would lose a voter. Give {} in the template the voters' port, and no address but the clients'",
            listener.print(),
            listener.name
        )
    })
}

/// Why `other` cannot run beside a broker that has `bound`.
fn clash(bound: &[Listener], other: BrokerId, others: &Properties) -> Option<String> {
    let theirs = listeners::bound(others);
    let ours = bound.iter().find(|l| theirs.iter().any(|other| l.clashes(other)))?;
    Some(format!(
        "broker {other} binds {} as well, so the two cannot run on this host at once: give one of them a port \
         of its own in [broker.properties]",
        ours.print()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_must_be_an_address_of_this_host() {
        let moves = "10.0.0.7:9092".parse().unwrap();
        let foreign = |text: &str| foreign(&Listener::parse(text).unwrap(), &moves);
        for fine in ["A://:9092", "A://0.0.0.0:1", "A://10.0.0.7:1", "A://127.0.0.1:1", "A://localhost:1"] {
            assert_eq!(foreign(fine), None, "{fine}");
        }
        // TEST-NET-3 and .invalid are nobody's.
        assert!(foreign("A://203.0.113.9:1").unwrap().contains("no address of this host"));
        assert!(foreign("A://standby.invalid:1").unwrap().contains("nobody resolves"));
    }

    #[test]
    fn a_voter_listens_where_the_others_look_for_it() {
        let moves = "10.0.0.7:9092".parse().unwrap();
        let voter = |roles: &str, listener: &str, voters: &str| {
            let text = format!(
                "process.roles={roles}\ncontroller.listener.names=C\nlisteners=A://10.0.0.7:9092,{listener}\n\
                 controller.quorum.voters={voters}\n"
            );
            voter(&Properties::parse(text.as_bytes()).unwrap(), BrokerId(7), &moves)
        };
        let three = "7@10.0.0.7:9093,8@10.0.0.8:9093";
        for fine in ["C://10.0.0.7:9093", "C://:9093"] {
            assert_eq!(voter("broker,controller", fine, three), None, "{fine}");
        }
        assert_eq!(voter("broker", "C://10.0.0.31:9093", three), None);
        for lost in ["C://10.0.0.31:9093", "C://10.0.0.7:9094", "C://localhost:9093"] {
            let said = voter("broker,controller", lost, three).unwrap();
            assert!(said.contains("would lose a voter"), "{lost}: {said}");
        }
        let said = voter("broker,controller", "C://:9093", "8@10.0.0.8:9093").unwrap();
        assert!(said.contains("does not name it"), "{said}");
    }
}
