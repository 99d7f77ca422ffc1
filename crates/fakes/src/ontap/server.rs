//! HTTP and HTTPS around the fake.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming as Body;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, SERVER};
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::answer::Answer;
use super::state::{Incoming, State};

/// The reply is not to be sent: hyper closes the connection when its service fails.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error("the reply is dropped on purpose")]
    Reply,
    #[error("the request was cut short")]
    Request(#[from] hyper::Error),
}

/// A self-signed certificate for this server, and what accepts connections with it.
pub(super) struct Identity {
    pub(super) acceptor: TlsAcceptor,
    pub(super) pem: String,
    pub(super) der: Vec<u8>,
}

/// Makes a certificate for `localhost` and the address.
pub(super) fn identity(address: SocketAddr) -> io::Result<Identity> {
    let names = vec!["localhost".to_owned(), address.ip().to_string()];
    let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_client_cert_verifier(Arc::new(AnyCertificate(provider)))
        .with_single_cert(vec![made.cert.der().clone()], key)
        .map_err(io::Error::other)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    Ok(Identity { acceptor, pem: made.cert.pem(), der: made.cert.der().to_vec() })
}

/// Lets every client certificate pass, and none at all: whose it is, is looked up with each request, and an
/// unknown one is answered with 401. That the client has its key is checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A client's certificate and key.
#[derive(Debug, Clone)]
pub struct ClientCertificate {
    /// The certificate as PEM.
    pub certificate_pem: String,
    /// Its private key as PEM (PKCS #8).
    pub key_pem: String,
    pub(super) der: Vec<u8>,
}

/// Makes a self-signed certificate with `name` as its common name.
pub(super) fn client_certificate(name: &str) -> io::Result<ClientCertificate> {
    let make = || -> Result<ClientCertificate, rcgen::Error> {
        let key = rcgen::KeyPair::generate()?;
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = params.self_signed(&key)?;
        Ok(ClientCertificate {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            der: certificate.der().to_vec(),
        })
    };
    make().map_err(io::Error::other)
}

/// Serves until it is dropped; so are all its connections.
pub(super) async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // An error is of one connection that is gone already.
                let Ok((stream, _)) = accepted else { continue };
                // Else an answer waits for the client's delayed acknowledgement.
                let _ = stream.set_nodelay(true);
                let (tls, state) = (tls.clone(), Arc::clone(&state));
                connections.spawn(async move {
                    match tls {
                        Some(tls) => {
                            // A client that does not trust the certificate ends here.
                            if let Ok(stream) = tls.accept(stream).await {
                                let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                                let shown = shown.map(|certificate| certificate.to_vec());
                                converse(stream, shown, state).await;
                            }
                        }
                        None => converse(stream, None, state).await,
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn converse<S>(stream: S, certificate: Option<Vec<u8>>, state: Arc<State>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request| respond(request, certificate.clone(), Arc::clone(&state)));
    // How a connection ends is the client's business, or that of a fault.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(
    request: hyper::Request<Body>,
    certificate: Option<Vec<u8>>,
    state: Arc<State>,
) -> Result<Response<Full<Bytes>>, Cut> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes().to_vec();
    let header = |name: HeaderName| head.headers.get(name)?.to_str().ok().map(str::to_owned);
    let incoming = Incoming {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        authorization: header(AUTHORIZATION),
        certificate,
        accept: header(ACCEPT),
        svm: header(HeaderName::from_static("x-dot-svm-name")),
        body,
    };
    let answer = state.handle(incoming).await.ok_or(Cut::Reply)?;
    Ok(response(answer))
}

fn response(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(answer.body.to_string()));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/hal+json"));
    headers.insert(SERVER, HeaderValue::from_static("libzapid-httpd"));
    for (name, value) in answer.headers {
        if let Ok(value) = value.parse() {
            headers.insert(name, value);
        }
    }
    response
}
