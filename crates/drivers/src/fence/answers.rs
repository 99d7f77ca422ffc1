//! Whether a host answers by an address of its own, after a device has said that it is off: then one of the two lies.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// The ports that are dialled: SSH, which most hosts serve, and one that nobody does, for a kernel resets that.
const PORTS: [u16; 2] = [22, 1];
/// How long an answer may take. A kernel in the same network answers within a millisecond.
const WITHIN: Duration = Duration::from_millis(300);
/// How long a host may still seem to answer: packets that were on their way.
const AT_LAST: Duration = Duration::from_secs(3);

/// How the host at `address` answers, again and again; `None` of one that is silent. That others answer ARP for it is
/// no answer: fabrics do that for the dead.
pub(super) async fn answers(address: IpAddr) -> Option<String> {
    let begun = Instant::now();
    loop {
        let found = join_all(PORTS.map(|port| answer(SocketAddr::new(address, port))))
            .await
            .into_iter()
            .flatten()
            .next()?;
        if begun.elapsed() >= AT_LAST {
            return Some(found);
        }
        sleep(WITHIN).await;
    }
}

async fn answer(socket: SocketAddr) -> Option<String> {
    match timeout(WITHIN, TcpStream::connect(socket)).await {
        Ok(Ok(_)) => Some(format!("{socket} accepts connections")),
        Ok(Err(error))
            if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset) =>
        {
            Some(format!("{socket} refuses connections, as a living kernel does"))
        }
        Ok(Err(_)) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[tokio::test]
    async fn a_kernel_that_refuses_a_connection_lives() {
        let found = answers(IpAddr::V4(Ipv4Addr::LOCALHOST)).await.unwrap();
        assert!(found.starts_with("127.0.0.1:"), "{found}");
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_reached_answers_nothing() {
        // A multicast address: no connection is ever made to one.
        assert_eq!(answers(IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1))).await, None);
    }
}
