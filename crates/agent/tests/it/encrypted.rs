//! The agent's pages with `[agent.tls]`: who is told what.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use drivers::health_signal::peer::PeerConfig;
use drivers::tls::{Tls, TlsConfig};
use fakes::World;
use fakes::tls::Authority;
use jiff::Timestamp;
use recovery::model::Fact;
use recovery::ports::HealthSignal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use understudy::http;
use understudy::telemetry::Metrics;

use crate::surfaces::{for_peers, status};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// The section of an agent at 127.0.0.1, whose files are in `dir`.
fn tls(dir: &Path, authority: &Authority, more: &str) -> Arc<Tls> {
    let issued = authority.issue(&["127.0.0.1"]);
    let path = |name: &str, text: &str| {
        fs::write(dir.join(name), text).unwrap();
        format!("{:?}", dir.join(name).display().to_string())
    };
    let text = format!(
        "certificate = {}\nkey = {}\nca = {}\ntokens = [{{ file = {} }}]\n{more}",
        path("agent.crt", &issued.pem),
        path("agent.key", &issued.key),
        path("ca.crt", &authority.pem),
        path("token", TOKEN)
    );
    Arc::new(Tls::new(toml::from_str::<TlsConfig>(&text).unwrap()))
}

async fn serving(tls: Arc<Tls>) -> SocketAddr {
    let (_, seen) = watch::channel(status(Some(Timestamp::now())));
    let listener = http::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(http::serve(listener, Some(tls), seen, Arc::new(Metrics::default()), for_peers(&[])));
    address
}

/// What somebody without a certificate is answered.
async fn get(address: SocketAddr, authority: &Authority, path: &str, more: &str) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let client = client.with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // Who ends a connection need not say so in TLS.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn without_a_certificate_or_a_token_nothing_is_told_of_brokers() {
    let (authority, dir) = (Authority::new("agents"), tempfile::tempdir().unwrap());
    let address = serving(tls(dir.path(), &authority, "")).await;
    for path in ["/livez", "/readyz"] {
        assert!(get(address, &authority, path, "").await.contains(" 200 "), "{path}");
    }
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    for path in ["/v1/status", "/v1/view", "/metrics", "/v1/clients", "/v1/reach/1", "/nothing"] {
        for more in [String::new(), bearer("guess"), "Authorization: Basic YTpi\r\n".to_owned()] {
            let said = get(address, &authority, path, &more).await;
            assert!(said.contains(" 401 ") && !said.contains("kafka-1"), "{path}: {said}");
        }
    }
    for (path, expected) in [("/v1/status", "kafka-1"), ("/metrics", "understudy_"), ("/v1/clients", " 200 ")]
    {
        let said = get(address, &authority, path, &bearer(TOKEN)).await;
        assert!(said.contains(expected), "{path}: {said}");
    }
    // Plain HTTP is not answered.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /livez HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("200"), "{answer:?}");
}

#[tokio::test]
async fn metrics_can_be_left_open_and_readiness_is_told_in_short() {
    let (authority, dir) = (Authority::new("agents"), tempfile::tempdir().unwrap());
    let address = serving(tls(dir.path(), &authority, "open_metrics = true")).await;
    assert!(get(address, &authority, "/metrics", "").await.contains("understudy_"));
    let (_, seen) = watch::channel(status(None));
    let listener = http::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = tls(dir.path(), &authority, "");
    tokio::spawn(http::serve(listener, Some(tls), seen, Arc::new(Metrics::default()), for_peers(&[])));
    let said = get(address, &authority, "/readyz", "").await;
    assert!(said.contains(" 503 ") && said.ends_with("not ready\n"), "{said}");
}

#[tokio::test]
async fn a_peer_is_asked_by_the_certificate_of_this_agent() {
    let (authority, dirs) = (Authority::new("agents"), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let [here, there] = dirs.each_ref().map(|dir| tls(dir.path(), &authority, ""));
    let address = serving(there).await;
    let asked = async |tls: Option<&Arc<Tls>>, scheme: &str| {
        let config = PeerConfig { host: "standby-1".to_owned(), url: format!("{scheme}://{address}") };
        let evidence = config.build(tls).unwrap().look(&World::new()).await.remove(0);
        let Fact::Blind { why } = evidence.fact else { panic!("{evidence:?}") };
        why
    };
    // It is told, and there is nothing to see yet.
    assert!(asked(Some(&here), "https").await.contains("503 Service Unavailable: there is no view yet"));
    assert!(asked(Some(&here), "http").await.contains("does not speak HTTP as an agent does"));
    let foreign = tempfile::tempdir().unwrap();
    let foreign = tls(foreign.path(), &Authority::new("others"), "");
    assert!(asked(Some(&foreign), "https").await.contains("no TLS with the agent at"));
}
