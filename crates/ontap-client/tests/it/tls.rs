//! Who is taken for ONTAP, and who ONTAP takes for a client.

use std::error::Error as _;
use std::sync::Arc;

use ontap_client::{Auth, Client, Error, Fingerprint, Result, Svm, Tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use serde_json::json;

use crate::server::{Reply, Server};

const CA: &str = include_str!("pem/ca.pem");
const OTHER_CA: &str = include_str!("pem/other-ca.pem");
const SERVER: &str = include_str!("pem/server.pem");
const SERVER_KEY: &str = include_str!("pem/server.key");
const FENCE: &str = include_str!("pem/fence.pem");
const FENCE_KEY: &str = include_str!("pem/fence.key");

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// A server that shows the certificate of `tests/it/pem`, and asks for one if it `wants_client`.
async fn server(wants_client: bool, newest: bool) -> Server {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let version = if newest { &rustls::version::TLS13 } else { &rustls::version::TLS12 };
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[version]);
    let builder = if wants_client {
        let mut roots = RootCertStore::empty();
        roots.add(der(CA)).unwrap();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        builder.unwrap().with_client_cert_verifier(verifier)
    } else {
        builder.unwrap().with_no_client_auth()
    };
    let key = PrivateKeyDer::from_pem_slice(SERVER_KEY.as_bytes()).unwrap();
    let config = builder.with_single_cert(vec![der(SERVER)], key).unwrap();
    listen(config).await
}

async fn listen(config: ServerConfig) -> Server {
    let none = Reply::Json(200, json!({ "records": [], "num_records": 0 }));
    Server::listen(move |_, _| none.clone(), Some(Arc::new(config).into())).await
}

fn basic() -> Auth {
    Auth::Basic { user: "admin".to_owned(), password: "hunter2".into() }
}

async fn ask(server: &Server, tls: Tls, auth: Auth) -> Result<Vec<Svm>> {
    Client::builder(format!("https://127.0.0.1:{}", server.port), auth).tls(tls).build()?.svms().await
}

#[tokio::test]
async fn only_the_right_server_gets_the_password() {
    let pin = Fingerprint::of(&der(SERVER));
    for newest in [false, true] {
        let server = server(false, newest).await;
        let private = |pem: &str| Tls::PrivateCa { pem: pem.to_owned() };
        for tls in [private(CA), Tls::Pinned(pin), Tls::InsecureAcceptAnything] {
            ask(&server, tls, basic()).await.unwrap();
        }
        assert_eq!(server.seen().len(), 3);
        for tls in [private(OTHER_CA), Tls::Pinned(Fingerprint::of(&der(CA)))] {
            let error = ask(&server, tls, basic()).await.unwrap_err();
            assert!(matches!(error, Error::Tls { .. }), "{error:?}");
        }
        assert_eq!(server.seen().len(), 3, "nothing was sent");
    }
}

#[tokio::test]
async fn whoever_only_has_a_copy_of_the_pinned_certificate_is_refused() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let other = PrivateKeyDer::from_pem_slice(FENCE_KEY.as_bytes()).unwrap();
        let other = provider.key_provider.load_private_key(other).unwrap();
        let impostor = SingleCertAndKey::from(CertifiedKey::new(vec![der(SERVER)], other));
        let config =
            ServerConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let config = config.with_no_client_auth().with_cert_resolver(Arc::new(impostor));
        let server = listen(config).await;
        let error = ask(&server, Tls::Pinned(Fingerprint::of(&der(SERVER))), basic()).await.unwrap_err();
        assert!(matches!(error, Error::Tls { .. }), "{error:?}");
        assert!(server.seen().is_empty());
    }
}

#[tokio::test]
async fn another_certificate_than_the_pinned_one_is_named() {
    let server = server(false, true).await;
    let error = ask(&server, Tls::Pinned(Fingerprint::of(b"another")), basic()).await.unwrap_err();
    let mut chain = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        chain.push_str(&format!(": {next}"));
        cause = next.source();
    }
    // The operator compares it with what the console of ONTAP shows.
    assert!(chain.contains(&Fingerprint::of(&der(SERVER)).to_string()), "{chain}");
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_it_is_asked_for() {
    for newest in [false, true] {
        let server = server(true, newest).await;
        let trust = || Tls::PrivateCa { pem: CA.to_owned() };
        let auth = Auth::Certificate { chain_pem: FENCE.to_owned(), key_pem: FENCE_KEY.into() };
        ask(&server, trust(), auth).await.unwrap();
        assert!(!server.seen()[0].headers.contains_key("authorization"));
        let error = ask(&server, trust(), basic()).await.unwrap_err();
        assert!(matches!(error, Error::Tls { .. }), "{error:?}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[test]
fn a_key_of_another_certificate_is_refused_at_once() {
    let auth = Auth::Certificate { chain_pem: SERVER.to_owned(), key_pem: FENCE_KEY.into() };
    let built = Client::builder("https://127.0.0.1", auth).tls(Tls::InsecureAcceptAnything).build();
    assert!(matches!(built, Err(Error::Usage { .. })), "{built:?}");
}
