//! The one way to a broker or controller.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use secrecy::SecretString;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::security::{Credentials, Login, Material, Protocol, SecurityConfig, of_handshake, of_login};
use crate::wire::{Connection, Stream, WireError};
use recovery::model::Endpoint;

/// Opens connections to the brokers and controllers of a cluster: there is no other way to a [`Connection`].
#[derive(Debug, Clone)]
pub struct Dialer(Option<Arc<Credentials>>);

/// One for each kind of listener.
#[derive(Debug, Clone)]
pub struct Dialers {
    /// To brokers.
    pub brokers: Dialer,
    /// To controllers' own listeners.
    pub controllers: Dialer,
}

impl Dialers {
    /// To listeners that are neither encrypted nor authenticated.
    #[must_use]
    pub fn plaintext() -> Self {
        Self { brokers: Dialer::plaintext(), controllers: Dialer::plaintext() }
    }
}

impl Dialer {
    /// To listeners that are neither encrypted nor authenticated.
    #[must_use]
    pub fn plaintext() -> Self {
        Self(None)
    }

    /// To listeners that are secured like this. `section` is where that stands, for messages. Its files are
    /// read when they are needed.
    #[must_use]
    pub fn secured(config: &SecurityConfig, section: &'static str) -> Self {
        let secured = config.protocol != Protocol::Plaintext;
        Self(secured.then(|| Arc::new(Credentials::new(config.clone(), section))))
    }

    /// Connects, learns which versions the other side offers and logs in, all within `limit`. A first token may take
    /// longer, before anybody is connected to.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn open(&self, at: &Endpoint, limit: Duration) -> Result<Connection, WireError> {
        let material = self.material(at, Instant::now() + limit).await?;
        let login = material.as_ref().and_then(|material| material.login.as_ref());
        let login = match login {
            Some(login) => Some((login, self.shown(login, at, limit).await?)),
            None => None,
        };
        let until = Instant::now() + limit;
        let addresses = self.resolve(at, until).await?;
        let mut connection = self.connect_with(material.as_deref(), at, &addresses, until).await?;
        if let Err(error) = connection.negotiate(until).await {
            return Err(self.explained(error, at, &addresses, until).await);
        }
        if let Some((login, shown)) = login {
            connection.log_in(login, &shown, until).await?;
        }
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

    /// Connects to the first of `addresses` that takes it, and says nothing yet. A TLS handshake is begun by
    /// the first request, and a part of waiting for its answer.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn connect(
        &self,
        at: &Endpoint,
        addresses: &[SocketAddr],
        until: Instant,
    ) -> Result<Connection, WireError> {
        // First, so that nobody is connected to and then kept waiting.
        let material = self.material(at, until).await?;
        self.connect_with(material.as_deref(), at, addresses, until).await
    }

    /// What to secure a connection with.
    async fn material(&self, at: &Endpoint, until: Instant) -> Result<Option<Arc<Material>>, WireError> {
        let Some(credentials) = &self.0 else { return Ok(None) };
        let current = credentials.current(until).await;
        current.map(Some).map_err(|source| WireError::Local { at: at.clone(), source })
    }

    async fn shown(&self, login: &Login, at: &Endpoint, limit: Duration) -> Result<SecretString, WireError> {
        login.shown(limit).await.map_err(|source| WireError::Local { at: at.clone(), source })
    }

    async fn connect_with(
        &self,
        material: Option<&Material>,
        at: &Endpoint,
        addresses: &[SocketAddr],
        until: Instant,
    ) -> Result<Connection, WireError> {
        let stream = self.stream_with(material, at, addresses, until).await?;
        Connection::over(stream, at, self.0.clone())
    }

    /// A connection to what is no broker and no controller, and speaks a protocol of its own; and what secures it.
    pub(crate) async fn stream(
        &self,
        at: &Endpoint,
        until: Instant,
    ) -> Result<(Stream, Option<Arc<Material>>), WireError> {
        let addresses = self.resolve(at, until).await?;
        let material = self.material(at, until).await?;
        Ok((self.stream_with(material.as_deref(), at, &addresses, until).await?, material))
    }

    /// What it means that a connection by [`Self::stream`] ended while `api` was asked.
    pub(crate) fn closed(&self, at: &Endpoint, api: &str, source: io::Error) -> WireError {
        of_handshake(self.0.as_deref(), at, &source).unwrap_or_else(|| WireError::Closed {
            at: at.clone(),
            api: api.to_owned(),
            source,
        })
    }

    /// What is said of a login that was refused. The files are read anew before the next one.
    pub(crate) fn unauthenticated(&self, at: &Endpoint, why: &str) -> WireError {
        of_login(self.0.as_deref(), at, why)
    }

    async fn stream_with(
        &self,
        material: Option<&Material>,
        at: &Endpoint,
        addresses: &[SocketAddr],
        until: Instant,
    ) -> Result<Stream, WireError> {
        let begun = Instant::now();
        let name = ServerName::try_from(at.host.clone());
        let stream = match timeout_at(until, TcpStream::connect(addresses)).await {
            Ok(connected) => connected.map_err(|source| WireError::of_connecting(at, source))?,
            Err(_) => {
                let why = format!("no connection within {:?}", until.saturating_duration_since(begun));
                let source = io::Error::new(io::ErrorKind::TimedOut, why);
                return Err(WireError::Unreachable { at: at.clone(), source });
            }
        };
        match material.and_then(|material| material.tls.clone()) {
            Some(tls) => {
                let name = name.map_err(|_| {
                    let why = format!("`{}` is no name that a certificate can have", at.host);
                    WireError::Untrusted { at: at.clone(), why }
                })?;
                Ok(Stream::tls(stream, tls, name))
            }
            None => Ok(Stream::Plain(stream)),
        }
    }

    /// A plaintext listener ends a TLS handshake without a word, as a process that dies does. The two are told
    /// apart by asking in plaintext, which says nothing that is secret.
    pub async fn explained(
        &self,
        error: WireError,
        at: &Endpoint,
        addresses: &[SocketAddr],
        until: Instant,
    ) -> WireError {
        let (Some(credentials), WireError::Closed { .. }) = (&self.0, &error) else { return error };
        let Some(why) = credentials.where_plaintext_answers() else { return error };
        let plainly = async { Self::plaintext().connect(at, addresses, until).await?.negotiate(until).await };
        if plainly.await.is_err() {
            return error;
        }
        WireError::Mismatched { at: at.clone(), why }
    }
}

#[cfg(test)]
mod tests;
