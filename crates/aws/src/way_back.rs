//! Whether packets for an address come to this host: another host is dialled from the address, and its answer has to find
//! the way back.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use recovery::model::Endpoint;
use tokio::net::{TcpSocket, lookup_host};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::interface::Deadline;

/// How long one answer may take, within a region.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// A connection is tried anew after this, and then after twice as long: its first packet is lost where the way back is
/// not there yet, and the kernel would send the next one after a second.
const ANEW_AFTER: Duration = Duration::from_millis(150);
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(200);

/// Nobody answered.
#[derive(Debug)]
pub(crate) struct NoAnswer {
    /// What each of them came to at last.
    pub(crate) why: String,
}

/// Whether this host has the address: nobody else's can be bound.
pub(crate) fn is_here(address: IpAddr) -> bool {
    std::net::UdpSocket::bind((address, 0)).is_ok()
}

/// The hosts that may answer.
#[derive(Debug, Clone)]
pub(crate) struct Others {
    /// What they listen on.
    pub(crate) listeners: Vec<Endpoint>,
    /// [`is_here`], but for tests: what is here answers without a network.
    pub(crate) is_here: fn(IpAddr) -> bool,
}

impl Others {
    /// The first that answers the address `from`: also one that refuses the connection does. `None` if not even this host's
    /// own address is answered, so that nothing can be tried.
    pub(crate) async fn answered(
        &self,
        from: Ipv4Addr,
        deadline: Deadline,
    ) -> Result<Option<Endpoint>, NoAnswer> {
        loop {
            let why = match self.first(from).await {
                Ok(other) => return Ok(Some(other)),
                Err(why) => why,
            };
            if self.first(Ipv4Addr::UNSPECIFIED).await.is_err() {
                return Ok(None);
            }
            if deadline.left() <= PAUSE {
                return Err(NoAnswer { why });
            }
            sleep(PAUSE).await;
        }
    }

    /// The first that answers `from`; what each of them came to if none does.
    async fn first(&self, from: Ipv4Addr) -> Result<Endpoint, String> {
        let mut round = JoinSet::new();
        for other in self.listeners.iter().cloned() {
            let is_here = self.is_here;
            round.spawn(async move { dial(&other, from, is_here).await.map(|()| other) });
        }
        let mut said = Vec::new();
        while let Some(dialled) = round.join_next().await {
            match dialled {
                Ok(Ok(other)) => return Ok(other),
                Ok(Err(why)) => said.push(why),
                Err(died) => said.push(died.to_string()),
            }
        }
        said.sort();
        Err(said.join("; "))
    }
}

async fn dial(other: &Endpoint, from: Ipv4Addr, is_here: fn(IpAddr) -> bool) -> Result<(), String> {
    let attempt = async {
        let found = lookup_host((other.host.as_str(), other.port)).await?;
        let to = found.into_iter().find(|to| to.is_ipv4() && !is_here(to.ip()));
        let to = to.ok_or_else(|| std::io::Error::other("it has no IPv4 address of another host"))?;
        let mut patience = ANEW_AFTER;
        loop {
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::from((from, 0)))?;
            match timeout(patience, socket.connect(to)).await {
                Err(_) => patience *= 2,
                Ok(Err(refused)) if refused.kind() == std::io::ErrorKind::ConnectionRefused => return Ok(()),
                Ok(connected) => return connected.map(drop),
            }
        }
    };
    match timeout(ANSWERS_WITHIN, attempt).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("{other}: {error}")),
        Err(_) => Err(format!("{other}: no answer in {} s", ANSWERS_WITHIN.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use tokio::net::TcpListener;

    use super::*;

    const FROM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);

    /// Others on these ports.
    fn at(ports: &[u16]) -> Others {
        let at = |port: &u16| Endpoint { host: "127.0.0.1".to_owned(), port: *port };
        Others { listeners: ports.iter().map(at).collect(), is_here: |_| false }
    }

    /// A port that nobody listens on.
    fn refuses() -> u16 {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    /// A listener whose queue is full: it does not answer, until somebody accepts.
    fn deaf() -> (TcpListener, SocketAddr) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let to = listener.local_addr().unwrap();
        while let Ok(stream) = TcpStream::connect_timeout(&to, Duration::from_millis(200)) {
            std::mem::forget(stream);
        }
        (listener, to)
    }

    #[tokio::test]
    async fn one_that_refuses_has_answered() {
        let others = at(&[refuses()]);
        let found = others.answered(FROM, Deadline::of(Duration::from_secs(5))).await.unwrap();
        assert_eq!(found.as_ref(), others.listeners.first());
    }

    #[tokio::test]
    async fn an_address_that_none_answers_is_told_where_this_host_is_answered() {
        let (_listener, to) = deaf();
        // Nothing finds its way back to an address that this host does not have.
        let nowhere = Ipv4Addr::new(192, 0, 2, 77);
        let others = at(&[to.port(), refuses()]);
        let why = others.answered(nowhere, Deadline::of(Duration::ZERO)).await.unwrap_err().why;
        assert!(why.contains("Cannot assign requested address"), "{why}");
    }

    #[tokio::test]
    async fn nothing_is_tried_where_nobody_answers_this_host_at_all() {
        let (_listener, to) = deaf();
        let others = at(&[to.port()]);
        let why = others.first(FROM).await.unwrap_err();
        assert_eq!(why, format!("127.0.0.1:{}: no answer in 1 s", to.port()));
        assert_eq!(others.answered(FROM, Deadline::of(Duration::from_secs(60))).await.unwrap(), None);
    }

    /// It would answer without a network.
    #[tokio::test]
    async fn a_broker_that_is_here_as_well_is_no_other_host() {
        let others = Others { is_here, ..at(&[refuses()]) };
        let why = others.first(FROM).await.unwrap_err();
        assert!(why.ends_with("it has no IPv4 address of another host"), "{why}");
        assert!(!is_here([192, 0, 2, 77].into()));
    }
}
