//! The encrypted way to etcd.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use schemars::JsonSchema;
use serde::Deserialize;

use super::gateway::Failure;
use crate::certificate::CertificateFile;
use crate::off_path::off_path;
use recovery::ports::BoxError;

/// How long reading the files may take.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Certificates for `https` endpoints, as PEM files. They are read when the agent first asks etcd.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EtcdTls {
    /// The authority that the members' certificates must come from. No other one is trusted.
    pub ca: PathBuf,
    /// This host's certificate, where etcd asks for one (`--client-cert-auth`).
    #[serde(default)]
    pub cert: Option<PathBuf>,
    /// The key of `cert`.
    #[serde(default)]
    pub key: Option<PathBuf>,
}

impl EtcdTls {
    /// The files with certificates.
    pub(in crate::ledger) fn certificates(&self) -> impl Iterator<Item = CertificateFile> + '_ {
        let own = self.cert.iter().map(|file| CertificateFile::chain(file));
        std::iter::once(CertificateFile::authorities(&self.ca)).chain(own)
    }

    /// What is wrong, as `key: what is wrong`.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let paths = [("ca", Some(&self.ca)), ("cert", self.cert.as_ref()), ("key", self.key.as_ref())];
        for (name, path) in paths {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                problems
                    .push(format!("tls.{name}: `{}` is not absolute; write the whole path", path.display()));
            }
        }
        match (&self.cert, &self.key) {
            (Some(_), None) => problems.push("tls.key: missing; it is the key of tls.cert".to_owned()),
            (None, Some(_)) => {
                problems.push("tls.cert: missing; it is the certificate of tls.key".to_owned());
            }
            _ => {}
        }
        problems
    }

    fn load(&self) -> Result<(RootCertStore, Option<Identity>), BoxError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots.add(certificate)?;
        }
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else { return Ok((roots, None)) };
        let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|e| bad(key, &e))?;
        Ok((roots, Some((certificates(cert)?, private))))
    }
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// What the HTTP client needs, whether it will speak TLS or not.
///
/// # Errors
/// When a file cannot be read or is not what it must be.
pub(super) async fn client(tls: Option<&EtcdTls>) -> Result<ClientConfig, Failure> {
    let (roots, identity) = match tls.cloned() {
        None => (RootCertStore::empty(), None),
        Some(tls) => {
            let what = format!("reading the certificates beside {}", tls.ca.display());
            let loaded = off_path(&what, READ_LIMIT, move || tls.load()).await;
            loaded.map_err(|e| failure(e.into()))?.map_err(failure)?
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| failure(e.into()))?
        .with_root_certificates(roots);
    match identity {
        None => Ok(config.with_no_client_auth()),
        Some((chain, key)) => config.with_client_auth_cert(chain, key).map_err(|e| failure(e.into())),
    }
}

fn failure(source: BoxError) -> Failure {
    Failure::Setup { what: "ledger.tls cannot be used".to_owned(), source }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, BoxError> {
    let pem = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let all = all.map_err(|e| bad(path, &e))?;
    if all.is_empty() {
        return Err(format!("{} has no certificate in it: it must be PEM", path.display()).into());
    }
    Ok(all)
}

fn read(path: &Path) -> Result<Vec<u8>, BoxError> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn bad(path: &Path, error: &dyn std::fmt::Display) -> BoxError {
    format!("{} is not what it must be, in PEM: {error}", path.display()).into()
}
