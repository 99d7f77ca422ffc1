//! What this agent tells its peers.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{ClientsPage, kernel};
use recovery::model::HostName;

/// The kernel is asked no more often, however many ask.
const ANEW_AFTER: Duration = Duration::from_millis(900);

/// The connections of clients to guarded brokers on this host. The kernel is asked when a peer asks, and not
/// before.
#[derive(Debug)]
pub struct OwnClients {
    host: HostName,
    /// Addresses of guarded brokers, whether they are here or not.
    addresses: BTreeSet<IpAddr>,
    /// The peers.
    readers: BTreeSet<IpAddr>,
    last: Mutex<Option<(Instant, Arc<ClientsPage>)>>,
}

impl OwnClients {
    /// Tells of connections to `addresses` on `host`, and only `readers`.
    #[must_use]
    pub fn new(host: HostName, addresses: BTreeSet<IpAddr>, readers: BTreeSet<IpAddr>) -> Self {
        Self { host, addresses, readers, last: Mutex::default() }
    }

    /// The host that tells it.
    #[must_use]
    pub fn host(&self) -> &HostName {
        &self.host
    }

    /// Whether who asks from `address` is told. Who connects to a broker is nobody's business but that of the
    /// agents that may take it over; on this host itself, everybody can see it anyway.
    #[must_use]
    pub fn may_read(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_loopback() || self.readers.contains(&address)
    }

    /// The page, at most a second old.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub async fn page(&self) -> io::Result<Arc<ClientsPage>> {
        let mut last = self.last.lock().await;
        if let Some((at, page)) = &*last
            && at.elapsed() < ANEW_AFTER
        {
            return Ok(page.clone());
        }
        let (connections, left_out) = kernel::connections(&self.addresses).await?;
        let page = Arc::new(ClientsPage { host: self.host.clone(), connections, left_out });
        *last = Some((Instant::now(), page.clone()));
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_peers_and_this_host_are_told() {
        let own = OwnClients::new("b1".into(), [].into(), ["10.0.0.31".parse().unwrap()].into());
        for (address, may) in [
            ("10.0.0.31", true),
            ("::ffff:10.0.0.31", true),
            ("127.0.0.1", true),
            ("::1", true),
            ("10.0.0.32", false),
            ("::ffff:10.0.0.32", false),
            ("fd00::31", false),
        ] {
            assert_eq!(own.may_read(address.parse().unwrap()), may, "{address}");
        }
    }

    #[tokio::test]
    async fn the_kernel_is_not_asked_more_than_once_a_second() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let own = OwnClients::new("b1".into(), [at.ip()].into(), [].into());
        let before = own.page().await.unwrap();
        assert!(!before.connections.contains_key(&at), "{before:?}");
        let _client = TcpStream::connect(at).unwrap();
        assert!(Arc::ptr_eq(&before, &own.page().await.unwrap()));
        *own.last.lock().await = None;
        assert!(own.page().await.unwrap().connections.contains_key(&at));
    }
}
