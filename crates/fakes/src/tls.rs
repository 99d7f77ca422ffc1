//! A certificate authority for tests, and listeners with what it has signed.

use std::ops::RangeInclusive;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Who signs.
pub struct Authority {
    /// Its certificate.
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// What it has signed.
pub struct Issued {
    /// The certificate.
    pub pem: String,
    /// Its key.
    pub key: String,
}

impl Authority {
    /// A new one.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self { pem: params.self_signed(&key).unwrap().pem(), issuer: Issuer::new(params, key) }
    }

    /// Signs a certificate for these names and addresses.
    #[must_use]
    pub fn issue(&self, names: &[&str]) -> Issued {
        self.issue_for(names, 2000..=2100)
    }

    /// The same, valid from the first day of the first of `years` to that of the last one.
    #[must_use]
    pub fn issue_for(&self, names: &[&str], years: RangeInclusive<i32>) -> Issued {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(*years.start(), 1, 1);
        params.not_after = date_time_ymd(*years.end(), 1, 1);
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Issued { pem, key: key.serialize_pem() }
    }
}

impl Issued {
    /// A listener that shows this certificate, and asks for one that `clients` has signed.
    #[must_use]
    pub fn acceptor(&self, clients: Option<&Authority>) -> TlsAcceptor {
        self.acceptor_for(clients.map(|authority| authority.pem.as_str()))
    }

    /// The same of an authority that has this certificate.
    #[must_use]
    pub fn acceptor_for(&self, clients: Option<&str>) -> TlsAcceptor {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
            None => builder.with_no_client_auth(),
        };
        let chain = vec![CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()))
    }
}
