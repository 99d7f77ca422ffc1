//! Kafka's wire protocol over one TCP connection: for the calls that a client library does not offer, and
//! for looks that must say precisely *how* a broker failed to answer.
//!
//! Deliberately absent: reconnecting and retrying. Whoever looks decides what a failure means; and one
//! request (`UnregisterBroker`) must never be sent a second time.

mod bounded;
mod calls;
mod controller;
mod error;
#[cfg(test)]
pub(crate) mod fake;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod fuzz;
mod logs;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiVersionsRequest, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes, VersionRange};
use rustix::ioctl;
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use self::bounded::Bounded;
use crate::model::Endpoint;

pub use self::calls::{ClusterSeen, Election, MetadataSeen, Registration, Topics};
pub use self::controller::{Controller, ControllerError};
pub use self::error::WireError;
pub use self::logs::Replica;

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
/// A peer host that has acknowledged nothing for this long is gone, even if no process waits for it.
const PEER_GONE_AFTER: Duration = Duration::from_millis(1500);
/// An idle connection is checked this often for whether the peer host is still there.
const KEEPALIVE: Duration = Duration::from_secs(1);

/// One connection to one broker or controller. Plaintext only.
///
/// After an error the connection is of no more use, with one exception: an [`Asked`] whose answer did not come
/// in time may be waited for again.
#[derive(Debug)]
pub struct Connection {
    at: Endpoint,
    stream: TcpStream,
    /// Bytes received and not yet used. Outlives a deadline in the middle of an answer.
    inbox: BytesMut,
    last_id: i32,
    offered: BTreeMap<i16, VersionRange>,
}

/// A request that was sent and is not answered yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    id: i32,
    version: i16,
}

impl Connection {
    /// Connects and learns which versions the other side offers, all within `limit`.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn open(at: &Endpoint, limit: Duration) -> Result<Self, WireError> {
        let until = Instant::now() + limit;
        let addresses = Self::resolve(at, until).await?;
        let mut connection = Self::connect(at, &addresses, until).await?;
        let asked = connection.ask_api_versions(until).await?;
        connection.offered = connection.api_versions(asked, until).await?;
        Ok(connection)
    }

    /// Where `at` is. What a name server does not say is a fault of this host's.
    pub(crate) async fn resolve(at: &Endpoint, until: Instant) -> Result<Vec<SocketAddr>, WireError> {
        let names = timeout_at(until, tokio::net::lookup_host((at.host.as_str(), at.port)));
        let silent = || io::Error::new(io::ErrorKind::TimedOut, "the name does not resolve");
        let found = names.await.unwrap_or_else(|_| Err(silent()));
        Ok(found.map_err(|source| WireError::Local { at: at.clone(), source })?.collect())
    }

    /// Connects to the first of `addresses` that takes it, and says nothing yet.
    pub(crate) async fn connect(
        at: &Endpoint,
        addresses: &[SocketAddr],
        until: Instant,
    ) -> Result<Self, WireError> {
        let begun = Instant::now();
        let stream = match timeout_at(until, TcpStream::connect(addresses)).await {
            Ok(connected) => connected.map_err(|source| WireError::of_connecting(at, source))?,
            Err(_) => {
                let why = format!("no connection within {:?}", until.saturating_duration_since(begun));
                let source = io::Error::new(io::ErrorKind::TimedOut, why);
                return Err(WireError::Unreachable { at: at.clone(), source });
            }
        };
        watch_peer(&stream).map_err(|source| WireError::Local { at: at.clone(), source })?;
        Ok(Self { at: at.clone(), stream, inbox: BytesMut::new(), last_id: 0, offered: BTreeMap::new() })
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
            Ok(frame) => frame.map_err(|broken| broken.into_error(&self.at, R::KEY)),
            Err(_) => Err(WireError::Silent { at: self.at.clone(), api: error::api(R::KEY) }),
        }
    }

    /// The newest version of a request that both sides know.
    pub(crate) fn version<R: Request>(&self) -> Result<i16, WireError> {
        let offered = self.offered.get(&R::KEY).map(|offered| offered.intersect(&R::VERSIONS));
        offered
            .filter(|common| !common.is_empty() && R::header_version(common.max) >= FLEXIBLE_HEADER)
            .map(|common| common.max)
            .ok_or_else(|| WireError::Unsupported { at: self.at.clone(), api: error::api(R::KEY) })
    }

    pub(crate) async fn ask_api_versions(&mut self, until: Instant) -> Result<Asked, WireError> {
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
        match timeout_at(until, self.stream.write_all(&bytes)).await {
            Ok(Ok(())) => Ok(asked),
            Ok(Err(source)) => {
                Err(WireError::Closed { at: self.at.clone(), api: error::api(R::KEY), source })
            }
            Err(_) => Err(WireError::Silent { at: self.at.clone(), api: error::api(R::KEY) }),
        }
    }

    /// Waits for the answer to what was asked. Can be called again after [`WireError::Silent`].
    pub(crate) async fn answer<R: Request>(
        &mut self,
        asked: Asked,
        until: Instant,
    ) -> Result<R::Response, WireError> {
        let frame = self.frame::<R>(until).await?;
        decode::<R>(frame, asked).map_err(|why| self.nonsense(why))
    }

    /// Whether the kernel at the other end has acknowledged everything that was sent. If no process reads it there, that
    /// makes no difference, as long as it is little.
    ///
    /// # Errors
    /// [`WireError::Closed`] if it has not: whoever waits on waits for TCP to give up.
    pub(crate) fn acknowledged<R: Request>(&self) -> Result<(), WireError> {
        const SIOCOUTQ: ioctl::Opcode = libc::TIOCOUTQ as ioctl::Opcode;
        // SAFETY: of a socket it writes one int and nothing else (tcp(7)).
        #[allow(unsafe_code)]
        let bytes = unsafe { ioctl::ioctl(&self.stream, ioctl::Getter::<SIOCOUTQ, libc::c_int>::new()) };
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
            if self.stream.read_buf(&mut self.inbox).await.map_err(Broken::Closed)? == 0 {
                return Err(Broken::Closed(io::ErrorKind::UnexpectedEof.into()));
            }
        }
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
}

impl Broken {
    fn into_error(self, at: &Endpoint, key: i16) -> WireError {
        let at = at.clone();
        match self {
            Self::Closed(source) => WireError::Closed { at, api: error::api(key), source },
            Self::Frame(why) => WireError::Nonsense { at, why },
        }
    }
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
    let claimed = i32::from_be_bytes(*prefix);
    let size = usize::try_from(claimed).ok().filter(|size| *size <= MAX_RESPONSE_BYTES);
    let Some(size) = size else {
        return Err(Broken::Frame(format!(
            "a response of {claimed} bytes; is this port Kafka, and plaintext?"
        )));
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

/// A response without its length. Never panics, and reserves some hundred times the bytes of `frame` at most: as
/// many elements as there are bytes.
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
mod tests {
    use kafka_protocol::messages::api_versions_response::ApiVersion;
    use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
    use kafka_protocol::messages::metadata_response::{
        MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
    };
    use kafka_protocol::messages::{
        ApiKey, ApiVersionsResponse, BrokerId, DescribeClusterRequest, DescribeClusterResponse,
        DescribeQuorumRequest, ElectLeadersRequest, MetadataRequest, MetadataResponse, TopicName,
        UnregisterBrokerRequest,
    };
    use proptest::prelude::*;
    use tokio::net::TcpListener;

    use super::fake::{Fake, Reply, framed};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);
    const SHORT: Duration = Duration::from_millis(100);

    fn describe_cluster() -> DescribeClusterResponse {
        let broker =
            |id| DescribeClusterBroker::default().with_broker_id(BrokerId(id)).with_is_fenced(id == 2);
        DescribeClusterResponse::default()
            .with_cluster_id(StrBytes::from_static_str("c"))
            .with_brokers(vec![broker(1), broker(2)])
    }

    fn describe_metadata() -> MetadataResponse {
        let partition = MetadataResponsePartition::default()
            .with_leader_id(BrokerId(-1))
            .with_replica_nodes(vec![BrokerId(2), BrokerId(1)])
            .with_isr_nodes(vec![BrokerId(1)]);
        let topic = MetadataResponseTopic::default()
            .with_name(Some(TopicName(StrBytes::from_static_str("orders"))))
            .with_partitions(vec![partition]);
        let broker = MetadataResponseBroker::default()
            .with_node_id(BrokerId(1))
            .with_host(StrBytes::from_static_str("kafka-1"))
            .with_port(9092);
        MetadataResponse::default()
            .with_brokers(vec![broker])
            .with_topics(vec![topic])
            .with_controller_id(BrokerId(1))
    }

    #[tokio::test]
    async fn speaks_the_newest_version_both_sides_know() {
        let fake = Fake::start(|call| match call.key {
            ApiKey::DescribeCluster => {
                assert_eq!(call.version(), 2);
                assert!(call.read::<DescribeClusterRequest>().include_fenced_brokers);
                Some(call.say(&describe_cluster()))
            }
            _ => None,
        })
        .await;
        let mut connection = Connection::open(&fake.at, LIMIT).await.unwrap();
        let seen = connection.describe_cluster(LIMIT).await.unwrap();
        assert_eq!(seen.cluster_id, "c");
        let fenced: Vec<_> = seen.brokers.iter().map(|(id, r)| (id.0, *r)).collect();
        assert_eq!(fenced, [(1, Registration::Unfenced), (2, Registration::Fenced)]);
    }

    #[tokio::test]
    async fn speaks_an_older_version_where_the_other_side_is_older() {
        let fake = Fake::start(|call| match call.key {
            ApiKey::ApiVersions => {
                let range = |key, max| ApiVersion::default().with_api_key(key).with_max_version(max);
                // Metadata 8 is not flexible: too old to be spoken.
                let keys = vec![range(DescribeClusterRequest::KEY, 1), range(MetadataRequest::KEY, 8)];
                Some(call.say(&ApiVersionsResponse::default().with_api_keys(keys)))
            }
            ApiKey::DescribeCluster => {
                assert_eq!(call.version(), 1);
                let mut said = describe_cluster();
                said.brokers.truncate(1);
                Some(call.say(&said))
            }
            _ => None,
        })
        .await;
        let mut connection = Connection::open(&fake.at, LIMIT).await.unwrap();
        assert_eq!(connection.describe_cluster(LIMIT).await.unwrap().brokers.len(), 1);
        let error = connection.metadata(Topics::All, LIMIT).await.unwrap_err();
        assert!(matches!(error, WireError::Unsupported { .. }), "{error:?}");
        assert_eq!(fake.calls(ApiKey::Metadata), 0);
    }

    #[tokio::test]
    async fn metadata_never_creates_topics_and_minus_one_is_nobody() {
        let fake = Fake::start(|call| match call.key {
            ApiKey::Metadata => {
                let asked = call.read::<MetadataRequest>();
                assert!(!asked.allow_auto_topic_creation);
                assert!(asked.topics.is_none(), "all topics");
                Some(call.say(&describe_metadata()))
            }
            _ => None,
        })
        .await;
        let mut connection = Connection::open(&fake.at, LIMIT).await.unwrap();
        let seen = connection.metadata(Topics::All, LIMIT).await.unwrap();
        let partition = &seen.partitions.partitions[0];
        assert_eq!(partition.topic, "orders");
        assert_eq!(partition.leader, None);
        assert_eq!(partition.isr, [crate::model::BrokerId(1)]);
        assert_eq!(seen.brokers[&crate::model::BrokerId(1)].to_string(), "kafka-1:9092");
    }

    #[tokio::test]
    async fn tells_a_refused_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
        drop(listener);
        let error = Connection::open(&at, LIMIT).await.unwrap_err();
        assert!(matches!(error, WireError::Refused { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn a_name_that_does_not_resolve_is_a_fault_of_this_host() {
        let at: Endpoint = "no-such-host.invalid:9092".parse().unwrap();
        let error = Connection::open(&at, SHORT).await.unwrap_err();
        assert!(matches!(error, WireError::Local { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn tells_silence_and_can_wait_on() {
        let fake = Fake::start(|call| match call.key {
            ApiKey::Metadata => {
                // Half an answer; the other half comes with the next request.
                let Reply::Raw(all) = call.say(&describe_metadata()) else { unreachable!() };
                Some(Reply::Raw(all.slice(..all.len() / 2)))
            }
            ApiKey::DescribeCluster => Some(Reply::Nothing),
            _ => None,
        })
        .await;
        let mut connection = Connection::open(&fake.at, LIMIT).await.unwrap();
        let version = connection.version::<MetadataRequest>().unwrap();
        let until = Instant::now() + SHORT;
        let asked = connection.send(&MetadataRequest::default(), version, until).await.unwrap();
        let error = connection.answer::<MetadataRequest>(asked, until).await.unwrap_err();
        assert!(matches!(error, WireError::Silent { .. }), "{error:?}");
        assert!(!connection.inbox.is_empty(), "what has arrived is kept");
        let error = connection.answer::<MetadataRequest>(asked, Instant::now() + SHORT).await.unwrap_err();
        assert!(matches!(error, WireError::Silent { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn tells_a_connection_that_is_closed_without_an_answer() {
        let fake = Fake::start(|_| Some(Reply::Close)).await;
        let error = Connection::open(&fake.at, LIMIT).await.unwrap_err();
        assert!(matches!(error, WireError::Closed { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn tells_nonsense() {
        let replies: [Bytes; 4] = [
            Bytes::from_static(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            framed(&[0; 3]),
            framed(&[0, 0, 0, 1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]),
            Bytes::from_static(&[0xff, 0xff, 0xff, 0xff]),
        ];
        for reply in replies {
            let said = reply.clone();
            let fake = Fake::start(move |_| Some(Reply::Raw(said.clone()))).await;
            let error = Connection::open(&fake.at, LIMIT).await.unwrap_err();
            assert!(matches!(error, WireError::Nonsense { .. }), "{reply:?}: {error:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_to_another_request_is_nonsense() {
        let fake = Fake::start(|call| Some(call.say_as(77, &fake::versions()))).await;
        let error = Connection::open(&fake.at, LIMIT).await.unwrap_err();
        assert!(error.to_string().contains("request 77"), "{error}");
    }

    #[tokio::test]
    async fn tells_error_codes_by_name() {
        let fake = Fake::start(|call| match call.key {
            ApiKey::DescribeCluster => {
                Some(call.say(&DescribeClusterResponse::default().with_error_code(114)))
            }
            _ => None,
        })
        .await;
        let mut connection = Connection::open(&fake.at, LIMIT).await.unwrap();
        let error = connection.describe_cluster(LIMIT).await.unwrap_err();
        assert_eq!(error.code(), Some(114));
        assert!(error.to_string().contains("MismatchedEndpointType"), "{error}");
    }

    #[tokio::test]
    async fn opening_has_one_deadline() {
        let fake = Fake::start(|_| Some(Reply::Nothing)).await;
        let begin = Instant::now();
        let error = Connection::open(&fake.at, SHORT).await.unwrap_err();
        assert!(matches!(error, WireError::Silent { .. }), "{error:?}");
        assert!(begin.elapsed() < SHORT * 10);
    }

    fn decode_as(kind: usize, frame: Bytes, version: i16) -> bool {
        let asked = Asked { id: 0, version };
        match kind {
            0 => decode::<ApiVersionsRequest>(frame, asked).is_ok(),
            1 => decode::<MetadataRequest>(frame, asked).is_ok(),
            2 => decode::<DescribeClusterRequest>(frame, asked).is_ok(),
            3 => decode::<DescribeQuorumRequest>(frame, asked).is_ok(),
            4 => decode::<ElectLeadersRequest>(frame, asked).is_ok(),
            _ => decode::<UnregisterBrokerRequest>(frame, asked).is_ok(),
        }
    }

    /// The flexible versions of each, newest last.
    const VERSIONS: [std::ops::RangeInclusive<i16>; 6] = [3..=4, 9..=13, 0..=2, 0..=2, 2..=2, 0..=0];

    fn encoded(version: i16) -> Vec<u8> {
        let mut bytes = BytesMut::new();
        ResponseHeader::default().encode(&mut bytes, 1).unwrap();
        describe_metadata().encode(&mut bytes, version).unwrap();
        bytes.to_vec()
    }

    #[test]
    fn what_is_whole_is_read() {
        for version in VERSIONS[1].clone() {
            assert!(decode_as(1, encoded(version).into(), version), "version {version}");
        }
    }

    #[test]
    fn the_number_of_an_unknown_tagged_field_is_no_length() {
        let answer = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for tag in [0, 5, 127] {
            let frame = [&answer[..], &[1, tag, 0]].concat();
            assert!(decode_as(5, frame.into(), 0), "tag {tag}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn garbage_neither_panics_nor_eats_memory(
            kind in 0..6usize,
            version in 0..14i16,
            id in prop_oneof![Just(0i32), any::<i32>()],
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0x80), Just(0xff), Just(0x0f)], 0..64),
        ) {
            let versions = &VERSIONS[kind];
            let version = versions.start() + version % (versions.end() - versions.start() + 1);
            let frame = [&id.to_be_bytes()[..], &bytes[..]].concat();
            decode_as(kind, frame.into(), version);
        }

        #[test]
        fn truncated_and_damaged_answers_do_not_panic(
            version in 9..=13i16,
            cut in 0.0..1.0f64,
            hit in 0.0..1.0f64,
            byte in any::<u8>(),
        ) {
            let mut bytes = encoded(version);
            let at = |share: f64, len: usize| ((share * len as f64) as usize).min(len - 1);
            let end = at(cut, bytes.len());
            prop_assert!(!decode_as(1, bytes[..end].to_vec().into(), version), "half an answer was believed");
            let place = at(hit, bytes.len());
            bytes[place] = byte;
            decode_as(1, bytes.into(), version);
        }
    }
}
