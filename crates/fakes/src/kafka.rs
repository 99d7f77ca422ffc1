//! A tiny broker for tests: real sockets, the real protocol, scripted answers.

use std::sync::{Arc, Mutex};

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, DescribeClusterRequest, DescribeConfigsRequest,
    DescribeLogDirsRequest, DescribeQuorumRequest, ElectLeadersRequest, IncrementalAlterConfigsRequest,
    ListOffsetsRequest, MetadataRequest, RequestHeader, ResponseHeader, SaslAuthenticateRequest,
    SaslHandshakeRequest, UnregisterBrokerRequest,
};
use kafka_protocol::protocol::{Decodable, Encodable, Request, decode_request_header_from_buffer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use recovery::model::Endpoint;

/// A larger request is refused, as by `socket.request.max.bytes`.
const MAX_REQUEST: usize = 100 << 20;

/// One request.
pub struct Call {
    /// What is asked.
    pub key: ApiKey,
    header: RequestHeader,
    body: Bytes,
}

/// What the broker does about a request.
pub enum Reply {
    /// These bytes, as they are.
    Raw(Bytes),
    /// Nothing, and the connection stays.
    Nothing,
    /// The connection is closed.
    Close,
}

impl Call {
    /// The version of the request.
    #[must_use]
    pub fn version(&self) -> i16 {
        self.header.request_api_version
    }

    /// The request.
    #[must_use]
    pub fn read<R: Decodable>(&self) -> R {
        R::decode(&mut self.body.clone(), self.version()).unwrap()
    }

    /// The answer to it.
    pub fn say<R: Encodable>(&self, response: &R) -> Reply {
        self.say_as(self.header.correlation_id, response)
    }

    /// An answer with an id of its own.
    pub fn say_as<R: Encodable>(&self, correlation_id: i32, response: &R) -> Reply {
        let mut body = BytesMut::new();
        let header = ResponseHeader::default().with_correlation_id(correlation_id);
        header.encode(&mut body, self.key.response_header_version(self.version())).unwrap();
        response.encode(&mut body, self.version()).unwrap();
        Reply::Raw(framed(&body))
    }
}

/// With its length in front.
pub fn framed(body: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i32(i32::try_from(body.len()).unwrap());
    bytes.put(body);
    bytes.freeze()
}

/// A listener that does not serve yet.
pub struct Listening {
    /// Where.
    pub at: Endpoint,
    /// The socket.
    pub listener: TcpListener,
}

/// A broker that serves until it is dropped.
pub struct Fake {
    /// Where.
    pub at: Endpoint,
    calls: Arc<Mutex<Vec<ApiKey>>>,
    serving: JoinHandle<()>,
}

impl Listening {
    /// On a free port of loopback.
    pub async fn bind() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string().parse().unwrap();
        Self { at, listener }
    }

    /// Answers what `script` answers, and `ApiVersions` by itself where it does not.
    pub fn serve(self, script: impl Fn(&Call) -> Option<Reply> + Send + Sync + 'static) -> Fake {
        self.serve_over(None, script)
    }

    /// The same, within TLS if there is such.
    pub fn serve_over(
        self,
        tls: Option<TlsAcceptor>,
        script: impl Fn(&Call) -> Option<Reply> + Send + Sync + 'static,
    ) -> Fake {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (script, log) = (Arc::new(script), calls.clone());
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = self.listener.accept().await {
                let (tls, script, log) = (tls.clone(), script.clone(), log.clone());
                connections.spawn(async move {
                    match tls {
                        None => converse(stream, script, log).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                converse(stream, script, log).await;
                            }
                        }
                    }
                });
            }
        });
        Fake { at: self.at, calls, serving }
    }
}

impl Fake {
    /// Binds and serves.
    pub async fn start(script: impl Fn(&Call) -> Option<Reply> + Send + Sync + 'static) -> Self {
        Listening::bind().await.serve(script)
    }

    /// Binds and serves within TLS.
    pub async fn secured(
        tls: TlsAcceptor,
        script: impl Fn(&Call) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        Listening::bind().await.serve_over(Some(tls), script)
    }

    /// How often `key` was asked.
    pub fn calls(&self, key: ApiKey) -> usize {
        self.calls.lock().unwrap().iter().filter(|k| **k == key).count()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    script: Arc<impl Fn(&Call) -> Option<Reply>>,
    log: Arc<Mutex<Vec<ApiKey>>>,
) {
    while let Ok(size) = stream.read_i32().await {
        let Some(size) = usize::try_from(size).ok().filter(|size| *size <= MAX_REQUEST) else { return };
        let mut body = vec![0; size];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let mut body = Bytes::from(body);
        let header = decode_request_header_from_buffer(&mut body).unwrap();
        let call = Call { key: ApiKey::try_from(header.request_api_key).unwrap(), header, body };
        log.lock().unwrap().push(call.key);
        let standard = || (call.key == ApiKey::ApiVersions).then(|| call.say(&versions()));
        match script(&call).or_else(standard).unwrap_or(Reply::Close) {
            Reply::Raw(bytes) => {
                stream.write_all(&bytes).await.unwrap();
                stream.flush().await.unwrap();
            }
            Reply::Nothing => {}
            Reply::Close => return,
        }
    }
}

fn range<R: Request>() -> ApiVersion {
    ApiVersion::default()
        .with_api_key(R::KEY)
        .with_min_version(R::VERSIONS.min)
        .with_max_version(R::VERSIONS.max)
}

/// The versions that it offers: what the library knows.
pub fn versions() -> ApiVersionsResponse {
    ApiVersionsResponse::default().with_api_keys(vec![
        range::<ApiVersionsRequest>(),
        range::<ListOffsetsRequest>(),
        range::<MetadataRequest>(),
        range::<DescribeClusterRequest>(),
        range::<DescribeConfigsRequest>(),
        range::<DescribeLogDirsRequest>(),
        range::<DescribeQuorumRequest>(),
        range::<ElectLeadersRequest>(),
        range::<IncrementalAlterConfigsRequest>(),
        range::<SaslAuthenticateRequest>(),
        range::<SaslHandshakeRequest>(),
        range::<UnregisterBrokerRequest>(),
    ])
}
