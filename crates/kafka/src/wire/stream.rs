//! The bytes of a connection: as they are, or in TLS.
//!
//! A handshake is not waited for when a connection is made: it is part of what is asked, and is gone on with
//! while an answer is waited for. So one that hangs looks like any answer that does not come.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::BytesMut;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{Connect, TlsConnector};

/// A `ChangeCipherSpec` record, which means nothing in TLS 1.3. Java takes none before it has answered, and ends
/// such a handshake when it wakes up.
const NO_MEANING: [u8; 6] = [20, 3, 3, 0, 1, 1];

/// One TCP connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

/// TLS on it.
pub(crate) struct Tls {
    state: State,
    /// What is to be sent once the handshake is done.
    outbox: BytesMut,
    unflushed: bool,
    /// Bytes were sent that are not of the handshake.
    nudged: bool,
}

enum State {
    Shaking(Connect<TcpStream>),
    Open(TlsStream<TcpStream>),
    Over,
}

impl Stream {
    /// TLS with the listener called `name`. Nothing is sent yet.
    pub(crate) fn tls(stream: TcpStream, config: Arc<ClientConfig>, name: ServerName<'static>) -> Self {
        let state = State::Shaking(TlsConnector::from(config).connect(name, stream));
        Self::Tls(Box::new(Tls { state, outbox: BytesMut::new(), unflushed: false, nudged: false }))
    }

    /// The socket, unless a handshake has failed.
    pub(super) fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Tls(tls) => match &tls.state {
                State::Shaking(connect) => connect.get_ref(),
                State::Open(stream) => Some(stream.get_ref().0),
                State::Over => None,
            },
        }
    }

    /// Sends `bytes`; before the handshake is done, begins that and keeps them.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes).await,
            Self::Tls(tls) => tls.send(bytes).await,
        }
    }

    /// Reads some bytes into `inbox`. Loses nothing when it is cancelled.
    pub(crate) async fn read(&mut self, inbox: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read_buf(inbox).await,
            Self::Tls(tls) => tls.read(inbox).await,
        }
    }

    /// In the middle of a handshake, sends something for the other kernel to acknowledge. Says whether it was
    /// in one.
    pub(super) fn nudge(&mut self) -> io::Result<bool> {
        let Self::Tls(tls) = self else { return Ok(false) };
        let State::Shaking(connect) = &tls.state else { return Ok(false) };
        tls.nudged = true;
        match connect.get_ref().map(|stream| stream.try_write(&NO_MEANING)) {
            Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(true),
        }
    }

    /// The certificates that the other side has shown, its own first.
    pub(super) fn certificates(&self) -> &[CertificateDer<'static>] {
        let Self::Tls(tls) = self else { return &[] };
        let State::Open(stream) = &tls.state else { return &[] };
        stream.get_ref().1.peer_certificates().unwrap_or_default()
    }

    /// Whether the keys are those of an earlier connection.
    #[cfg(test)]
    pub(crate) fn is_resumed(&self) -> bool {
        let Self::Tls(tls) = self else { return false };
        let State::Open(stream) = &tls.state else { return false };
        stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }
}

impl Tls {
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.outbox.extend_from_slice(bytes);
        self.unflushed = true;
        if matches!(self.state, State::Shaking(_)) {
            let mut begun = pin!(self.pump());
            return poll_fn(|cx| match begun.as_mut().poll(cx) {
                Poll::Pending => Poll::Ready(Ok(())),
                done => done,
            })
            .await;
        }
        let Err(error) = self.pump().await else { return Ok(()) };
        // Who ends a connection may have said why.
        match self.read_some(&mut BytesMut::with_capacity(1024)).await {
            Err(said) if crate::security::tls_error(&said).is_some() => Err(said),
            _ => Err(error),
        }
    }

    async fn read(&mut self, inbox: &mut BytesMut) -> io::Result<usize> {
        if self.unflushed {
            self.pump().await?;
        }
        // Some servers refuse what was sent to nudge them, and say so once the handshake is done.
        let nudged = self.nudged;
        self.read_some(inbox).await.map_err(|error| if nudged { ended(error, nudged) } else { error })
    }

    async fn read_some(&mut self, inbox: &mut BytesMut) -> io::Result<usize> {
        match &mut self.state {
            State::Open(stream) => stream.read_buf(inbox).await,
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Gets the handshake done and the outbox sent. Loses nothing when it is cancelled.
    async fn pump(&mut self) -> io::Result<()> {
        if let State::Shaking(connect) = &mut self.state {
            let came = connect.await;
            self.state = State::Over;
            self.state = State::Open(came.map_err(|error| ended(error, self.nudged))?);
        }
        let State::Open(stream) = &mut self.state else { return Err(io::ErrorKind::NotConnected.into()) };
        stream.write_all_buf(&mut self.outbox).await?;
        stream.flush().await?;
        self.unflushed = false;
        Ok(())
    }
}

/// Whatever ends a handshake that was nudged may be our own doing, and says no more than the connection ended.
fn ended(error: io::Error, nudged: bool) -> io::Error {
    match error.kind() {
        _ if nudged => io::Error::new(io::ErrorKind::ConnectionAborted, "a handshake that had hung failed"),
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "it ended in the middle of the handshake")
        }
        _ => error,
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(stream) => stream.fmt(f),
            Self::Tls(_) => f.write_str("Tls"),
        }
    }
}
