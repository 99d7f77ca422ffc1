//! Resets the connections that clients still have to the address's old, dead host.
//!
//! Once the address is here, each client is sent segments that do not fit its connection, as if from the
//! broker. Its kernel answers with where the connection stands (RFC 793, 3.9; RFC 5961, 4), and this host's
//! kernel, which knows of no such connection, answers that with the reset that fits. So it is always the
//! kernel that has the address which judges: a connection that lives there goes on. Samba's CTDB has done so
//! for its addresses for years.
//!
//! Two kinds are sent, because firewalls that follow connections let through one or the other: an
//! acknowledgement out of the window, and a second answer to the client's first segment.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, sleep_until};

use super::neighbour::checksum;
use super::wire::register;
use crate::clients::Known;

/// When they are sent, from the begin. A frame may be lost, and a client's neighbours learn last where the
/// address is. A kernel answers one such segment of a connection in half a second (Linux:
/// `tcp_invalid_ratelimit`), so they are further apart.
const VOLLEYS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(600), Duration::from_millis(1_400), Duration::from_millis(3_000)];

/// Connections to which segments are sent at a stroke, and the pause after it: 20,000 take half a second.
const BATCH: usize = 200;
const PAUSE: Duration = Duration::from_millis(5);

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Sends the segments of one takeover. Needs `CAP_NET_RAW`.
pub(super) struct Resets {
    socket: AsyncFd<Socket>,
    known: Known,
}

impl Resets {
    /// Opens a socket on `address`, which must be here.
    pub(super) fn open(address: IpAddr, known: Known) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address((address, 0).into()), Type::RAW, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        // It would be handed a copy of all that clients send to the address.
        socket.attach_filter(&[SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0)])?;
        // Says where the segments come from. The kernel makes the IP header.
        socket.bind(&SockAddr::from(SocketAddr::new(address, 0)))?;
        Ok(Self { socket: register(socket)?, known })
    }

    /// Sends them to every connection, several times.
    pub(super) async fn send(self) {
        let (begun, mut failed) = (Instant::now(), None);
        for (volley, at) in (0..).zip(VOLLEYS) {
            sleep_until(begun + at).await;
            for batch in self.known.pairs.chunks(BATCH) {
                for (own, client) in batch {
                    for segment in segments(*own, *client, volley) {
                        let to = SocketAddr::new(client.ip(), 0);
                        failed = self.send_one(&segment, to).await.err().or(failed);
                    }
                }
                sleep(PAUSE).await;
            }
        }
        // The next volley may have got through.
        if let Some(error) = failed {
            tracing::debug!(%error, "some connections of the old owner's clients could not be reset");
        }
    }

    async fn send_one(&self, segment: &[u8], to: SocketAddr) -> io::Result<()> {
        let to = SockAddr::from(to);
        loop {
            let mut ready = self.socket.writable().await?;
            match ready.try_io(|socket| socket.get_ref().send_to(segment, &to)) {
                Ok(sent) => return sent.map(drop),
                Err(_would_block) => {}
            }
        }
    }
}

/// What is sent to one client: TCP headers without data.
///
/// Nobody knows the connection's sequence numbers. In every other volley they are half of all numbers away,
/// so that one of both is outside of any window.
fn segments(own: SocketAddr, client: SocketAddr, volley: u32) -> [[u8; 20]; 2] {
    let number = (volley % 2) << 31;
    [SYN | ACK, ACK].map(|flags| segment(own, client, number, flags))
}

fn segment(from: SocketAddr, to: SocketAddr, sequence: u32, flags: u8) -> [u8; 20] {
    /// Five words of header.
    const LENGTH: u8 = 5 << 4;
    const WINDOW: u16 = 1024;
    let mut segment = [0; 20];
    segment[..2].copy_from_slice(&from.port().to_be_bytes());
    segment[2..4].copy_from_slice(&to.port().to_be_bytes());
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    segment[12..14].copy_from_slice(&[LENGTH, flags]);
    segment[14..16].copy_from_slice(&WINDOW.to_be_bytes());
    let sum = checksum(&[&pseudo_header(from.ip(), to.ip()), &segment[..]].concat());
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    segment
}

/// What TCP's checksum covers besides (RFC 9293, 3.1).
fn pseudo_header(from: IpAddr, to: IpAddr) -> Vec<u8> {
    const TCP: u8 = 6;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => [&from.octets()[..], &to.octets(), &[0, TCP, 0, 20]].concat(),
        (from, to) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            [&octets(from)[..], &octets(to), &[0, 0, 0, 20, 0, 0, 0, TCP]].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn segments_are_as_another_implementation_makes_them() {
        // By Python's struct, and accepted by Linux.
        let made = |own: &str, client: &str, volley| {
            segments(own.parse().unwrap(), client.parse().unwrap(), volley).map(|segment| hex(&segment))
        };
        assert_eq!(
            made("10.99.0.11:9092", "10.99.0.1:50312", 0),
            ["2384c488000000000000000050120400aef40000", "2384c488000000000000000050100400aef60000"]
        );
        assert_eq!(
            made("[fd99::11]:9092", "[fd99::1]:50312", 1),
            ["2384c48880000000000000005012040048800000", "2384c48880000000000000005010040048820000"]
        );
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn address() -> impl Strategy<Value = (IpAddr, IpAddr)> {
        prop_oneof![
            any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (a.into(), b.into())),
            any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (a.into(), b.into())),
        ]
    }

    proptest! {
        #[test]
        fn a_checksum_makes_its_segment_sum_up_to_zero(
            (own, client) in address(),
            ports in any::<(u16, u16)>(),
            volley in 0..4_u32,
        ) {
            for segment in segments((own, ports.0).into(), (client, ports.1).into(), volley) {
                let all = [&pseudo_header(own, client)[..], &segment].concat();
                prop_assert_eq!(checksum(&all), 0);
            }
        }
    }
}
