//! A fake to knock at.

use std::net::IpAddr;
use std::sync::Arc;

use fakes::ontap::{ClientCertificate, Fake, World};
use reqwest::{Client, Method, Response};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

pub(crate) const RULE: &str = "/api/protocols/nfs/export-policies";
pub(crate) const OLD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 101));
pub(crate) const NEW: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 102));

/// A fake with one volume, `kafka01`, that only the old owner may use, and a client for it.
pub(crate) struct Bed {
    pub(crate) fake: Fake,
    pub(crate) client: Client,
    pub(crate) policy: i64,
    pub(crate) volume: String,
}

pub(crate) fn client(certificate: Option<&[u8]>) -> Client {
    client_as(certificate, None)
}

/// With a certificate of its own, if need be.
pub(crate) fn client_as(certificate: Option<&[u8]>, own: Option<&ClientCertificate>) -> Client {
    let mut roots = rustls::RootCertStore::empty();
    if let Some(certificate) = certificate {
        roots.add(certificate.to_vec().into()).unwrap();
    }
    let config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some(own) => {
            let chain = vec![CertificateDer::from_pem_slice(own.certificate_pem.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(own.key_pem.as_bytes()).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    Client::builder().tls_backend_preconfigured(config).no_proxy().build().unwrap()
}

pub(crate) fn seeded() -> (World, i64, String) {
    let mut world = World::small();
    let policy = world.policy("svm1", "broker-1", &[&["10.0.0.101"]]);
    let volume = world.volume("svm1", "kafka01", "broker-1");
    (world, policy, volume)
}

impl Bed {
    pub(crate) async fn new() -> Self {
        let (world, policy, volume) = seeded();
        Self { fake: Fake::start(world).await.unwrap(), client: client(None), policy, volume }
    }

    pub(crate) async fn try_send(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> reqwest::Result<Response> {
        let method: Method = method.parse().unwrap();
        let mut request = self.client.request(method, format!("{}{path}", self.fake.url()));
        request = request.basic_auth("admin", Some("secret"));
        if let Some(body) = body {
            request = request.json(&body);
        }
        request.send().await
    }

    /// The status and the body.
    pub(crate) async fn send(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let response = self.try_send(method, path, body).await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.send("GET", path, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    pub(crate) fn rule(&self) -> String {
        format!("{RULE}/{}/rules/1", self.policy)
    }

    pub(crate) async fn give_to(&self, owner: IpAddr) -> (u16, Value) {
        self.send("PATCH", &self.rule(), Some(json!({ "clients": [{ "match": owner.to_string() }] }))).await
    }

    pub(crate) async fn owner(&self) -> Value {
        self.get(&self.rule()).await["clients"][0]["match"].clone()
    }

    pub(crate) fn allows(&self, client: IpAddr) -> bool {
        self.fake.allows(client, "kafka01").may_write()
    }
}

pub(crate) fn code(body: &Value) -> &str {
    body["error"]["code"].as_str().unwrap_or_default()
}
