//! Who is connected to the brokers.
//!
//! A client whose request was taken in by the kernel of a host that then died has nothing left to send, so
//! nothing tells it that the host is gone. The agent on that host tells its peers, for as long as both live,
//! which connections there are ([`own`], [`kernel`]); a standby keeps the newest word of every peer
//! ([`follow`]), and has the connections reset once the address is there ([`super::address`]).
//!
//! Nothing is decided on it, and a list that is wrong does no harm: see [`KnownClients`].

pub mod daemon;
pub mod follow;
pub mod own;

#[doc(hidden)]
pub mod fuzz;
mod kernel;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use recovery::model::HostName;

/// The most connections that are told of one host, or reset by one takeover. Brokers of large clusters have
/// some thousands.
pub const MAX_CONNECTIONS: usize = 20_000;

/// For how long a list is of use. A client that waited for longer than this has given up by itself: Kafka's
/// clients do after 30 s (Java) or 60 s (librdkafka).
const MAX_AGE: Duration = Duration::from_secs(600);

/// The page that tells it.
pub const PATH: &str = "/v1/clients";

/// By the broker's end of the connection, then by the client's address: the client's ports.
pub type Connections = BTreeMap<SocketAddr, BTreeMap<IpAddr, BTreeSet<u16>>>;

/// What `/v1/clients` answers: the connections that clients have to guarded brokers on one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientsPage {
    /// The host.
    pub host: HostName,
    /// The connections, at most [`MAX_CONNECTIONS`].
    pub connections: Connections,
    /// How many more there were.
    #[serde(default)]
    pub left_out: usize,
}

/// The newest word of every host on who is connected there.
///
/// An entry that is no longer true does no harm. The segment that is sent for it has a client's kernel say
/// where its connection stands, and whoever has the address then answers by what its own kernel knows: a
/// connection that lives there goes on, and a client that has closed its end says so to nobody.
#[derive(Debug, Default)]
pub struct KnownClients(Mutex<BTreeMap<HostName, (Instant, ClientsPage)>>);

/// The connections to one address that are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The broker's end and the client's, at most [`MAX_CONNECTIONS`].
    pub pairs: Vec<(SocketAddr, SocketAddr)>,
    /// How many more there were.
    pub left_out: usize,
    /// The hosts that told of them, each with the age of its word; the newest first.
    pub told_by: Vec<(HostName, Duration)>,
}

impl KnownClients {
    /// Takes in what a host says, in place of what it said before.
    pub fn remember(&self, page: ClientsPage) {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        newest.insert(page.host.clone(), (Instant::now(), page));
    }

    /// Takes in what another process of this host was told, as old as it is.
    fn remember_from(&self, daemon::Told { age, page }: daemon::Told) {
        let Some(at) = Instant::now().checked_sub(age) else { return };
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        newest.insert(page.host.clone(), (at, page));
    }

    /// The newest word of every host, for another process of this host.
    #[must_use]
    pub fn all(&self) -> Vec<daemon::Told> {
        let newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        newest.values().map(|(at, page)| daemon::Told { age: at.elapsed(), page: page.clone() }).collect()
    }

    /// The connections to `address`, whoever told of them lately; `None` if nobody did.
    #[must_use]
    pub fn at(&self, address: IpAddr) -> Option<Known> {
        let newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut told: Vec<_> = newest
            .iter()
            .map(|(host, (at, page))| (at.elapsed(), host, page))
            .filter(|(age, _, page)| *age < MAX_AGE && page.connections.keys().any(|own| own.ip() == address))
            .collect();
        told.sort_by_key(|(age, ..)| *age);
        // A host that has the broker no longer tells nothing of it; two that do are an owner and one before
        // it.
        let (mut pairs, mut left_out) = (Vec::new(), 0);
        for (_, _, page) in &told {
            left_out += page.left_out;
            for pair in pairs_of(&page.connections).filter(|(own, _)| own.ip() == address) {
                if pairs.len() < MAX_CONNECTIONS { pairs.push(pair) } else { left_out += 1 }
            }
        }
        let told_by: Vec<_> = told.into_iter().map(|(age, host, _)| (host.clone(), age)).collect();
        (!told_by.is_empty()).then_some(Known { pairs, left_out, told_by })
    }
}

fn pairs_of(connections: &Connections) -> impl Iterator<Item = (SocketAddr, SocketAddr)> + '_ {
    connections.iter().flat_map(|(own, clients)| {
        clients
            .iter()
            .flat_map(move |(ip, ports)| ports.iter().map(move |port| (*own, SocketAddr::new(*ip, *port))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(host: &str, own: &str, clients: &[&str]) -> ClientsPage {
        let mut by_address: BTreeMap<IpAddr, BTreeSet<u16>> = BTreeMap::new();
        for client in clients {
            let client: SocketAddr = client.parse().unwrap();
            by_address.entry(client.ip()).or_default().insert(client.port());
        }
        let connections = [(own.parse().unwrap(), by_address)].into();
        ClientsPage { host: host.into(), connections, left_out: 0 }
    }

    fn clients(known: &Known) -> Vec<String> {
        known.pairs.iter().map(|(_, client)| client.to_string()).collect()
    }

    #[test]
    fn a_page_reads_as_it_was_written() {
        let page = page("b1", "[fd00::11]:9092", &["[fd00::5]:50312", "[fd00::5]:50313", "[fd00::6]:1"]);
        let text = serde_json::to_string(&page).unwrap();
        let expected = r#"{"host":"b1","connections":{"[fd00::11]:9092":{"fd00::5":[50312,50313],"fd00::6":[1]}},"left_out":0}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<ClientsPage>(&text).unwrap(), page);
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_word_of_every_host_counts_for_a_while() {
        let (known, address) = (KnownClients::default(), "10.0.0.11".parse().unwrap());
        assert_eq!(known.at(address), None);
        known.remember(page("b1", "10.0.0.11:9092", &["10.0.0.5:1", "10.0.0.5:2"]));
        known.remember(page("b2", "10.0.0.12:9092", &["10.0.0.5:9"]));
        tokio::time::sleep(Duration::from_secs(1)).await;
        known.remember(page("b1", "10.0.0.11:9092", &["10.0.0.5:3"]));
        assert_eq!(clients(&known.at(address).unwrap()), ["10.0.0.5:3"]);

        // After a takeover the next owner tells of it as well.
        tokio::time::sleep(Duration::from_secs(1)).await;
        known.remember(page("s1", "10.0.0.11:9092", &["10.0.0.5:4"]));
        let both = known.at(address).unwrap();
        assert_eq!(clients(&both), ["10.0.0.5:4", "10.0.0.5:3"]);
        assert_eq!(both.told_by, [("s1".into(), Duration::ZERO), ("b1".into(), Duration::from_secs(1))]);

        tokio::time::sleep(MAX_AGE - Duration::from_secs(1)).await;
        assert_eq!(clients(&known.at(address).unwrap()), ["10.0.0.5:4"]);
        known.remember(ClientsPage { host: "s1".into(), connections: Connections::new(), left_out: 0 });
        assert_eq!(known.at(address), None, "it let go of the address");
    }

    #[test]
    fn what_is_too_much_is_counted_and_left_out() {
        let many: Vec<String> =
            (0..MAX_CONNECTIONS + 7).map(|n| format!("10.1.0.{}:{}", n / 60_000, n % 60_000 + 1)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let known = KnownClients::default();
        known.remember(ClientsPage { left_out: 3, ..page("b1", "10.0.0.11:9092", &many) });
        let known = known.at("10.0.0.11".parse().unwrap()).unwrap();
        assert_eq!((known.pairs.len(), known.left_out), (MAX_CONNECTIONS, 10));
    }
}
