//! Kafka's wire protocol over one TCP connection: for the calls that a client library does not offer, and
//! for looks that must say precisely *how* a broker failed to answer.
//!
//! Deliberately absent: reconnecting and retrying. Whoever looks decides what a failure means; and one
//! request (`UnregisterBroker`) must never be sent a second time.

mod bounded;
mod calls;
mod controller;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod login;
mod logs;
mod rights;
mod stream;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiVersionsRequest, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes, VersionRange};
use rustix::ioctl;
use rustix::net::sockopt;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use self::bounded::Bounded;
use crate::security::{self, Credentials};
use recovery::model::Endpoint;

pub use self::calls::{ClusterSeen, Election, MetadataSeen, Registration, Topics};
pub use self::controller::{Controller, ControllerError};
pub use self::error::WireError;
pub(crate) use self::login::nonce;
pub use self::logs::Replica;
pub use self::rights::{Operation, Rights};
pub(crate) use self::stream::Stream;

/// A larger response is nonsense: the metadata of 200,000 partitions takes about 30 MB.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// Room made for one read.
const READ_BYTES: usize = 16 << 10;
/// Request headers of this version on mean the "flexible" encoding, the only one spoken here (Kafka 2.4 on):
/// see [`Bounded`] for why.
const FLEXIBLE_HEADER: i16 = 2;
/// The first flexible version of `ApiVersions`. Kafka 2.4 and everything newer knows it, so that nothing
/// needs to be negotiated before the negotiation.
const API_VERSIONS_VERSION: i16 = 3;
/// The id of the request that follows it.
const AFTER_VERSIONS: i32 = 2;
/// A peer host that has acknowledged nothing for this long is gone, even if no process waits for it.
const PEER_GONE_AFTER: Duration = Duration::from_millis(1500);
/// An idle connection is checked this often for whether the peer host is still there.
const KEEPALIVE: Duration = Duration::from_secs(1);

/// One connection to one broker or controller.
///
/// After an error the connection is of no more use, with one exception: an [`Asked`] whose answer did not
/// come in time may be waited for again.
#[derive(Debug)]
pub struct Connection {
    at: Endpoint,
    stream: Stream,
    /// What it is secured with.
    credentials: Option<Arc<Credentials>>,
    /// Bytes received and not yet used. Outlives a deadline in the middle of an answer.
    inbox: BytesMut,
    last_id: i32,
    offered: BTreeMap<i16, VersionRange>,
}

/// A request that was sent and is not answered yet.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    id: i32,
    version: i16,
}

impl Connection {
    /// Over a stream that the [`Dialer`](crate::Dialer) has opened.
    pub(crate) fn over(
        stream: Stream,
        at: &Endpoint,
        credentials: Option<Arc<Credentials>>,
    ) -> Result<Self, WireError> {
        let watched = stream.socket().map_or(Ok(()), watch_peer);
        watched.map_err(|source| WireError::Local { at: at.clone(), source })?;
        let (inbox, offered) = (BytesMut::new(), BTreeMap::new());
        Ok(Self { at: at.clone(), stream, credentials, inbox, last_id: 0, offered })
    }

    /// Learns which versions the other side offers.
    pub(crate) async fn negotiate(&mut self, until: Instant) -> Result<(), WireError> {
        let asked = self.ask_api_versions(until).await?;
        self.offered = self.api_versions(asked, until).await?;
        Ok(())
    }

    /// Whether TLS uses the keys of an earlier connection.
    #[cfg(test)]
    pub(crate) fn is_resumed(&self) -> bool {
        self.stream.is_resumed()
    }

    /// The certificates by which the other side has shown who it is, its own first; none without TLS.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        self.stream.certificates()
    }

    /// Where it leads.
    #[must_use]
    pub fn at(&self) -> &Endpoint {
        &self.at
    }

    /// Sends `request` in the newest version that both sides know, and waits for its answer until `limit`.
    ///
    /// # Errors
    /// See [`WireError`]. An error code *inside* the answer is the caller's to read.
    pub async fn request<R: Request>(
        &mut self,
        request: &R,
        limit: Duration,
    ) -> Result<R::Response, WireError> {
        let (asked, frame) = self.exchange(request, limit).await?;
        decode::<R>(frame, asked).map_err(|why| self.nonsense(why))
    }

    /// As [`Connection::request`]; the answer is not read yet.
    async fn exchange<R: Request>(
        &mut self,
        request: &R,
        limit: Duration,
    ) -> Result<(Asked, Bytes), WireError> {
        let until = Instant::now() + limit;
        let version = self.version::<R>()?;
        let asked = self.send(request, version, until).await?;
        Ok((asked, self.frame::<R>(until).await?))
    }

    /// The next frame, which is the answer to an `R`.
    async fn frame<R: Request>(&mut self, until: Instant) -> Result<Bytes, WireError> {
        match timeout_at(until, self.receive()).await {
            Ok(frame) => frame.map_err(|broken| self.broken(broken, R::KEY)),
            Err(_) => Err(WireError::Silent { at: self.at.clone(), api: error::api(R::KEY) }),
        }
    }

    /// The newest version of a request that both sides know.
    pub fn version<R: Request>(&self) -> Result<i16, WireError> {
        let offered = self.offered.get(&R::KEY).map(|offered| offered.intersect(&R::VERSIONS));
        offered
            .filter(|common| !common.is_empty() && R::header_version(common.max) >= FLEXIBLE_HEADER)
            .map(|common| common.max)
            .ok_or_else(|| WireError::Unsupported { at: self.at.clone(), api: error::api(R::KEY) })
    }

    /// Asks which versions the other side offers.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn ask_api_versions(&mut self, until: Instant) -> Result<Asked, WireError> {
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str("understudy"))
            .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")));
        self.send(&request, API_VERSIONS_VERSION, until).await
    }

    async fn send<R: Request>(
        &mut self,
        request: &R,
        version: i16,
        until: Instant,
    ) -> Result<Asked, WireError> {
        self.last_id = self.last_id.wrapping_add(1);
        let asked = Asked { id: self.last_id, version };
        let bytes = encode(request, asked).map_err(|why| self.nonsense(why))?;
        match timeout_at(until, self.stream.send(&bytes)).await {
            Ok(Ok(())) => Ok(asked),
            Ok(Err(source)) => Err(self.broken(Broken::Closed(source), R::KEY)),
            Err(_) => Err(WireError::Silent { at: self.at.clone(), api: error::api(R::KEY) }),
        }
    }

    /// Sends something for the kernel at the other end to acknowledge, whatever hangs above it: the question
    /// once more, or bytes without a meaning as long as TLS is not agreed on.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn nudge(&mut self, until: Instant) -> Result<(), WireError> {
        match self.stream.nudge() {
            Ok(true) => Ok(()),
            Ok(false) => self.ask_api_versions(until).await.map(drop),
            Err(source) => Err(self.broken(Broken::Closed(source), ApiVersionsRequest::KEY)),
        }
    }

    /// Waits for the answer to what was asked. Can be called again after [`WireError::Silent`].
    pub async fn answer<R: Request>(
        &mut self,
        asked: Asked,
        until: Instant,
    ) -> Result<R::Response, WireError> {
        let frame = self.frame::<R>(until).await?;
        decode::<R>(frame, asked).map_err(|why| self.nonsense(why))
    }

    /// Whether the kernel at the other end has acknowledged everything that was sent. If no process reads it
    /// there, that makes no difference, as long as it is little.
    ///
    /// # Errors
    /// [`WireError::Closed`] if it has not: whoever waits on waits for TCP to give up.
    pub fn acknowledged<R: Request>(&self) -> Result<(), WireError> {
        const SIOCOUTQ: ioctl::Opcode = libc::TIOCOUTQ as ioctl::Opcode;
        let Some(socket) = self.stream.socket() else {
            return Err(self.broken(Broken::Closed(io::ErrorKind::NotConnected.into()), R::KEY));
        };
        // SAFETY: of a socket it writes one int and nothing else (tcp(7)).
        #[allow(unsafe_code)]
        let bytes = unsafe { ioctl::ioctl(socket, ioctl::Getter::<SIOCOUTQ, libc::c_int>::new()) };
        match bytes {
            Ok(0) => Ok(()),
            Ok(bytes) => {
                let why = format!("{bytes} bytes are not acknowledged");
                let source = io::Error::new(io::ErrorKind::TimedOut, why);
                Err(WireError::Closed { at: self.at.clone(), api: error::api(R::KEY), source })
            }
            Err(errno) => Err(WireError::Local { at: self.at.clone(), source: errno.into() }),
        }
    }

    /// The next frame. Loses nothing when it is cancelled.
    async fn receive(&mut self) -> Result<Bytes, Broken> {
        loop {
            if let Some(frame) = next_frame(&mut self.inbox)? {
                return Ok(frame);
            }
            self.inbox.reserve(READ_BYTES);
            if self.stream.read(&mut self.inbox).await.map_err(Broken::Closed)? == 0 {
                return Err(Broken::Closed(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn broken(&self, broken: Broken, key: i16) -> WireError {
        let at = self.at.clone();
        match (broken, &self.credentials) {
            (Broken::Closed(source), own) => match security::of_handshake(own.as_deref(), &at, &source) {
                Some(untrusted) => untrusted,
                None => WireError::Closed { at, api: error::api(key), source: self.ended(source, key) },
            },
            (Broken::Frame(why), _) => WireError::Nonsense { at, why },
            (Broken::Tls, own) => {
                WireError::Mismatched { at, why: security::where_tls_answers(own.as_deref()) }
            }
        }
    }

    /// A listener that wants a login ends the connection at the first real question, and says nothing.
    fn ended(&self, source: io::Error, key: i16) -> io::Error {
        let logs_in = self.credentials.as_ref().is_some_and(|own| own.logs_in());
        if source.kind() == io::ErrorKind::UnexpectedEof
            && self.last_id == AFTER_VERSIONS
            && key != ApiVersionsRequest::KEY
            && !logs_in
        {
            let why = "a listener that wants a login does that; if this one does, cluster.security.protocol \
                       must be SASL_SSL or SASL_PLAINTEXT";
            return io::Error::new(source.kind(), why);
        }
        source
    }

    fn nonsense(&self, why: impl ToString) -> WireError {
        WireError::Nonsense { at: self.at.clone(), why: why.to_string() }
    }
}

/// Why no frame came.
#[derive(Debug)]
enum Broken {
    Closed(io::Error),
    Frame(String),
    /// A TLS record.
    Tls,
}

/// Has the kernel watch the peer's kernel, so that a connection on which we only wait does not outlive the
/// host at its other end.
fn watch_peer(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?;
    let millis = u32::try_from(PEER_GONE_AFTER.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(stream, millis)?)
}

/// Takes one length-prefixed frame off `inbox`, if it is complete.
fn next_frame(inbox: &mut BytesMut) -> Result<Option<Bytes>, Broken> {
    let Some(prefix) = inbox.first_chunk::<4>() else { return Ok(None) };
    // An alert, or a part of a handshake, of any version: as a length it would be 352 MB.
    if matches!(prefix, [0x15 | 0x16, 3, _, _]) {
        return Err(Broken::Tls);
    }
    let claimed = i32::from_be_bytes(*prefix);
    let size = usize::try_from(claimed).ok().filter(|size| *size <= MAX_RESPONSE_BYTES);
    let Some(size) = size else {
        return Err(Broken::Frame(format!("a response of {claimed} bytes; is this port Kafka?")));
    };
    if inbox.len() < 4 + size {
        return Ok(None);
    }
    let mut frame = inbox.split_to(4 + size).freeze();
    Ok(Some(frame.split_off(4)))
}

/// A whole request: length, header, body.
fn encode<R: Request>(request: &R, asked: Asked) -> Result<Bytes, String> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(asked.version)
        .with_correlation_id(asked.id)
        .with_client_id(Some(StrBytes::from_static_str("understudy")));
    let mut body = BytesMut::new();
    header.encode(&mut body, R::header_version(asked.version)).map_err(|e| e.to_string())?;
    request.encode(&mut body, asked.version).map_err(|e| e.to_string())?;
    let size = i32::try_from(body.len()).map_err(|_| "the request is too large".to_owned())?;
    let mut bytes = BytesMut::with_capacity(4 + body.len());
    bytes.put_i32(size);
    bytes.put(body);
    Ok(bytes.freeze())
}

/// A response without its length. Never panics, and reserves some hundred times the bytes of `frame` at most:
/// as many elements as there are bytes.
fn decode<R: Request>(frame: Bytes, asked: Asked) -> Result<R::Response, String> {
    let mut frame = Bounded::new(frame);
    let header_version = R::Response::header_version(asked.version);
    let header = ResponseHeader::decode(&mut frame, header_version).map_err(|e| e.to_string())?;
    if header.correlation_id != asked.id {
        return Err(format!("an answer to request {} where {} is due", header.correlation_id, asked.id));
    }
    R::Response::decode(&mut frame, asked.version).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests;
