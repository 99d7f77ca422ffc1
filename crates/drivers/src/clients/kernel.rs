//! This host's TCP connections, by its kernel (`NETLINK_SOCK_DIAG`, as `ss` asks it). Needs no privilege, and
//! touches no file.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use rtnetlink::packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use rtnetlink::proto::sys::protocols::NETLINK_SOCK_DIAG;
use rtnetlink::proto::{ConnectionHandle, new_connection};
use rtnetlink::sys;
use tokio::time::timeout;

use super::{Connections, MAX_CONNECTIONS};

/// The kernel lists some 100,000 sockets in this time.
const LIMIT: Duration = Duration::from_secs(1);

/// The connections that were made to a listener at one of `addresses`, and how many more there are than are
/// told.
pub(super) async fn connections(addresses: &BTreeSet<IpAddr>) -> io::Result<(Connections, usize)> {
    let (connection, handle, _) = new_connection(NETLINK_SOCK_DIAG)?;
    let connection = tokio::spawn(connection);
    let found = timeout(LIMIT, async {
        let mut listening = BTreeSet::new();
        each(&handle, StateFlags::LISTEN, |id| {
            listening.insert(id.source_port);
        })
        .await?;
        let mut told = Told::new(addresses, listening);
        each(&handle, StateFlags::ESTABLISHED, |id| told.add(id)).await?;
        Ok((told.connections, told.left_out))
    });
    let found = found.await;
    connection.abort();
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the kernel did not list its connections in time");
    found.map_err(|_| late())?
}

/// Asks for every TCP socket of both families in this state.
async fn each(
    handle: &ConnectionHandle<SockDiagMessage>,
    states: StateFlags,
    mut take: impl FnMut(&SocketId),
) -> io::Result<()> {
    for (family, socket_id) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        let request = InetRequest {
            family,
            protocol: IPPROTO_TCP,
            extensions: ExtensionFlags::empty(),
            states: states.clone(),
            socket_id,
        };
        let request = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
        let mut answers = handle.request(request, sys::SocketAddr::new(0, 0)).map_err(io::Error::other)?;
        while let Some(answer) = answers.next().await {
            match answer.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(socket)) => {
                    take(&socket.header.socket_id);
                }
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
        }
    }
    Ok(())
}

/// The connections that are told of.
struct Told<'a> {
    addresses: &'a BTreeSet<IpAddr>,
    listening: BTreeSet<u16>,
    connections: Connections,
    count: usize,
    left_out: usize,
}

impl<'a> Told<'a> {
    fn new(addresses: &'a BTreeSet<IpAddr>, listening: BTreeSet<u16>) -> Self {
        Self { addresses, listening, connections: BTreeMap::new(), count: 0, left_out: 0 }
    }

    fn add(&mut self, id: &SocketId) {
        // Java listens on IPv6 for both families, so that IPv4 comes as ::ffff:10.0.0.5.
        let own = SocketAddr::new(id.source_address.to_canonical(), id.source_port);
        if !self.addresses.contains(&own.ip()) || !self.listening.contains(&own.port()) {
            return;
        }
        if self.count == MAX_CONNECTIONS {
            self.left_out += 1;
            return;
        }
        let clients = self.connections.entry(own).or_default();
        let ports = clients.entry(id.destination_address.to_canonical()).or_default();
        self.count += usize::from(ports.insert(id.destination_port));
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn socket(own: &str, client: &str) -> SocketId {
        let (own, client): (SocketAddr, SocketAddr) = (own.parse().unwrap(), client.parse().unwrap());
        SocketId {
            source_address: own.ip(),
            source_port: own.port(),
            destination_address: client.ip(),
            destination_port: client.port(),
            ..SocketId::new_v6()
        }
    }

    #[test]
    fn what_clients_have_to_a_broker_is_told_and_nothing_else() {
        let addresses = ["10.0.0.11".parse().unwrap(), "fd00::11".parse().unwrap()].into();
        let mut told = Told::new(&addresses, [9092, 9093].into());
        for (own, client) in [
            ("[::ffff:10.0.0.11]:9092", "[::ffff:10.0.0.5]:50000"),
            ("10.0.0.11:9093", "10.0.0.5:50001"),
            ("[fd00::11]:9092", "[fd00::5]:50002"),
            // Another address of the host, and a connection that the broker made itself.
            ("10.0.0.99:9092", "10.0.0.5:50003"),
            ("10.0.0.11:41000", "10.0.0.12:9092"),
        ] {
            told.add(&socket(own, client));
        }
        let text = serde_json::to_string(&told.connections).unwrap();
        let expected = r#"{"10.0.0.11:9092":{"10.0.0.5":[50000]},"10.0.0.11:9093":{"10.0.0.5":[50001]},"[fd00::11]:9092":{"fd00::5":[50002]}}"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn more_than_is_told_is_counted() {
        let addresses = ["10.0.0.11".parse().unwrap()].into();
        let mut told = Told::new(&addresses, [9092].into());
        for n in 0..u16::try_from(MAX_CONNECTIONS + 5).unwrap() {
            told.add(&socket("10.0.0.11:9092", &format!("10.0.0.5:{}", n + 1)));
        }
        assert_eq!((told.count, told.left_out), (MAX_CONNECTIONS, 5));
    }

    #[tokio::test]
    async fn the_kernel_tells_of_connections_of_both_families() {
        // As Java listens: on IPv6, for both.
        let listener = match TcpListener::bind("[::]:0") {
            Ok(listener) => listener,
            Err(error) => return eprintln!("SKIPPED: this host has no IPv6: {error}"),
        };
        let port = listener.local_addr().unwrap().port();
        let addresses: BTreeSet<IpAddr> = ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()].into();
        let own = |ip: &IpAddr| SocketAddr::new(*ip, port);
        let open: Vec<_> =
            addresses.iter().map(|ip| std::net::TcpStream::connect(own(ip)).unwrap()).collect();
        let (found, _) = connections(&addresses).await.unwrap();
        for client in &open {
            let client = client.local_addr().unwrap();
            // The other end of the same connection is a socket of this host too, and no client of a listener.
            assert!(!found.contains_key(&client), "{found:?}");
            assert!(found[&own(&client.ip())][&client.ip()].contains(&client.port()), "{found:?}");
        }
        let (none, _) = connections(&["192.0.2.1".parse().unwrap()].into()).await.unwrap();
        assert!(none.is_empty(), "{none:?}");
    }
}
