//! Who is taken for ONTAP, and who ONTAP takes for a client.

use std::error::Error as _;
use std::sync::{Arc, LazyLock};

use ontap_client::{Auth, Client, Error, Fingerprint, Result, Svm, Tls};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use serde_json::json;

use crate::server::{Reply, Server};

/// A certificate, or a chain of one, and its key, as PEM.
struct Identity {
    pem: String,
    key: String,
}

/// Two authorities, and what the first one has signed: a server for 127.0.0.1 and a client. Made once for all
/// tests.
struct Pki {
    ca: String,
    other_ca: String,
    server: Identity,
    fence: Identity,
}

static PKI: LazyLock<Pki> = LazyLock::new(|| {
    let (ca, issuer) = authority("Test CA");
    let (other_ca, _) = authority("Other CA");
    let signed = |name: &str, san: Vec<String>| {
        let key = KeyPair::generate().unwrap();
        let certificate = named(name, san).signed_by(&key, &issuer).unwrap();
        Identity { pem: certificate.pem(), key: key.serialize_pem() }
    };
    let server = signed("ontap", vec!["127.0.0.1".to_owned()]);
    Pki { ca, other_ca, server, fence: signed("fence", vec![]) }
});

fn named(name: &str, san: Vec<String>) -> CertificateParams {
    let mut params = CertificateParams::new(san).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut params = named(name, vec![]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params.self_signed(&key).unwrap().pem(), Issuer::new(params, key))
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// A server that shows its certificate, and asks for one if it `wants_client`.
async fn server(wants_client: bool, newest: bool) -> Server {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let version = if newest { &rustls::version::TLS13 } else { &rustls::version::TLS12 };
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[version]);
    let builder = if wants_client {
        let mut roots = RootCertStore::empty();
        roots.add(der(&PKI.ca)).unwrap();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        builder.unwrap().with_client_cert_verifier(verifier)
    } else {
        builder.unwrap().with_no_client_auth()
    };
    let key = PrivateKeyDer::from_pem_slice(PKI.server.key.as_bytes()).unwrap();
    let config = builder.with_single_cert(vec![der(&PKI.server.pem)], key).unwrap();
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
    let pin = Fingerprint::of(&der(&PKI.server.pem));
    for newest in [false, true] {
        let server = server(false, newest).await;
        let private = |pem: &str| Tls::PrivateCa { pem: pem.to_owned() };
        for tls in [private(&PKI.ca), Tls::Pinned(pin), Tls::InsecureAcceptAnything] {
            ask(&server, tls, basic()).await.unwrap();
        }
        assert_eq!(server.seen().len(), 3);
        for tls in [private(&PKI.other_ca), Tls::Pinned(Fingerprint::of(&der(&PKI.ca)))] {
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
        let other = PrivateKeyDer::from_pem_slice(PKI.fence.key.as_bytes()).unwrap();
        let other = provider.key_provider.load_private_key(other).unwrap();
        let impostor = SingleCertAndKey::from(CertifiedKey::new(vec![der(&PKI.server.pem)], other));
        let config =
            ServerConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let config = config.with_no_client_auth().with_cert_resolver(Arc::new(impostor));
        let server = listen(config).await;
        let error =
            ask(&server, Tls::Pinned(Fingerprint::of(&der(&PKI.server.pem))), basic()).await.unwrap_err();
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
    assert!(chain.contains(&Fingerprint::of(&der(&PKI.server.pem)).to_string()), "{chain}");
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_it_is_asked_for() {
    for newest in [false, true] {
        let server = server(true, newest).await;
        let trust = || Tls::PrivateCa { pem: PKI.ca.clone() };
        let auth =
            Auth::Certificate { chain_pem: PKI.fence.pem.clone(), key_pem: PKI.fence.key.clone().into() };
        ask(&server, trust(), auth).await.unwrap();
        assert!(!server.seen()[0].headers.contains_key("authorization"));
        let error = ask(&server, trust(), basic()).await.unwrap_err();
        assert!(matches!(error, Error::Tls { .. }), "{error:?}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[test]
fn a_key_of_another_certificate_is_refused_at_once() {
    let auth = Auth::Certificate { chain_pem: PKI.server.pem.clone(), key_pem: PKI.fence.key.clone().into() };
    let built = Client::builder("https://127.0.0.1", auth).tls(Tls::InsecureAcceptAnything).build();
    assert!(matches!(built, Err(Error::Usage { .. })), "{built:?}");
}
