//! The one way to a broker or controller.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::wire::{Connection, WireError};
use recovery::model::Endpoint;

/// Opens connections to the brokers and controllers of a cluster: there is no other way to a [`Connection`].
#[derive(Debug, Clone)]
pub struct Dialer(());

impl Dialer {
    /// To listeners that are neither encrypted nor authenticated.
    #[must_use]
    pub fn plaintext() -> Self {
        Self(())
    }

    /// Connects and learns which versions the other side offers, all within `limit`.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn open(&self, at: &Endpoint, limit: Duration) -> Result<Connection, WireError> {
        let until = Instant::now() + limit;
        let addresses = self.resolve(at, until).await?;
        let mut connection = self.connect(at, &addresses, until).await?;
        connection.negotiate(until).await?;
        Ok(connection)
    }

    /// Where `at` is. What a name server does not say is a fault of this host's.
    ///
    /// # Errors
    /// [`WireError::Local`].
    pub async fn resolve(&self, at: &Endpoint, until: Instant) -> Result<Vec<SocketAddr>, WireError> {
        let names = timeout_at(until, tokio::net::lookup_host((at.host.as_str(), at.port)));
        let silent = || io::Error::new(io::ErrorKind::TimedOut, "the name does not resolve");
        let found = names.await.unwrap_or_else(|_| Err(silent()));
        Ok(found.map_err(|source| WireError::Local { at: at.clone(), source })?.collect())
    }

    /// Connects to the first of `addresses` that takes it, and says nothing yet.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn connect(
        &self,
        at: &Endpoint,
        addresses: &[SocketAddr],
        until: Instant,
    ) -> Result<Connection, WireError> {
        let begun = Instant::now();
        let stream = match timeout_at(until, TcpStream::connect(addresses)).await {
            Ok(connected) => connected.map_err(|source| WireError::of_connecting(at, source))?,
            Err(_) => {
                let why = format!("no connection within {:?}", until.saturating_duration_since(begun));
                let source = io::Error::new(io::ErrorKind::TimedOut, why);
                return Err(WireError::Unreachable { at: at.clone(), source });
            }
        };
        Connection::over(stream, at)
    }
}
