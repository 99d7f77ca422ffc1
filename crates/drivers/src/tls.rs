//! TLS between agents, and with those who read their pages. One certificate is shown both ways: by it a page is served,
//! and a peer is asked.
//!
//! The files are read anew about once a second while somebody asks, so that a certificate can be replaced under a
//! running agent. What was read before is used until the new ones can be.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::{CertificateDer, DnsName, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, ServerConfig};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use webpki::EndEntityCert;

use crate::certificate::CertificateFile;
use crate::off_path::off_path;
use kafka::security::given;

/// The files are looked at this often at most.
const EVERY: Duration = Duration::from_secs(1);
/// How long reading them may take. They are read in microseconds.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// How this agent's pages are served with TLS, and how it asks peers whose `url` begins with `https://`. Without the
/// section they are served as they are, to everybody who reaches `listen`.
///
/// With it, `/livez` and `/readyz` are for everybody, the latter without its detail. All other pages are for who
/// shows a certificate of `ca`, as the agents do among themselves, or sends a token of an `[[agent.access]]`. Orders
/// take a role, which an `[[agent.access]]` gives.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The file with this agent's certificate, and those between it and its authority, as PEM. It is valid for the host
    /// that the peers have in their `url`, an address mostly, and for both uses: `serverAuth` and `clientAuth`.
    pub certificate: PathBuf,
    /// The file with its key, as PEM, not encrypted.
    pub key: PathBuf,
    /// The file with the authorities of the agents' certificates, as PEM: best one of their own, for who has a
    /// certificate of it reads every page, and one for a name in an `[[agent.access]]` has the role there.
    pub ca: PathBuf,
    /// Whether `/metrics` is for everybody, too: for a scraper that has neither.
    #[serde(default)]
    pub open_metrics: bool,
}

impl TlsConfig {
    /// What is wrong with it, as `key: what is wrong`.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let paths = [("certificate", &self.certificate), ("key", &self.key), ("ca", &self.ca)];
        let relative = paths.iter().filter(|(_, path)| !path.is_absolute());
        relative.map(|(key, path)| format!("{key}: `{}` must be an absolute path", path.display())).collect()
    }

    /// The files with certificates.
    pub fn certificates(&self) -> impl Iterator<Item = CertificateFile> {
        [CertificateFile::chain(&self.certificate), CertificateFile::authorities(&self.ca)].into_iter()
    }
}

/// Both sides of it.
#[derive(Debug)]
pub struct Tls {
    config: TlsConfig,
    read: Mutex<Option<(Instant, Arc<Material>)>>,
    now: fn() -> UnixTime,
}

/// What the files hold.
struct Material {
    files: [Vec<u8>; 3],
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// Judges the certificates of readers.
    readers: Arc<dyn ClientCertVerifier>,
}

impl std::fmt::Debug for Material {
    /// One of the files is a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Material")
    }
}

impl Tls {
    /// By this section. Its files are read when they are needed.
    #[must_use]
    pub fn new(config: TlsConfig) -> Self {
        Self { config, read: Mutex::default(), now: UnixTime::now }
    }

    /// Whether `/metrics` is for everybody.
    #[must_use]
    pub fn opens_metrics(&self) -> bool {
        self.config.open_metrics
    }

    /// Reads the files, for `check`.
    ///
    /// # Errors
    /// In words: which file is of no use, and why.
    pub async fn look(&self) -> Result<(), String> {
        self.anew(None).await.map(drop)
    }

    /// Begins TLS with somebody who has connected. Whoever showed a certificate of the authority comes with the DNS
    /// names in it.
    ///
    /// # Errors
    /// In words: the files, or what the other side did.
    pub async fn accept(
        &self,
        stream: TcpStream,
    ) -> Result<(server::TlsStream<TcpStream>, Option<Vec<String>>), String> {
        let current = self.current().await?;
        let stream = TlsAcceptor::from(current.server.clone()).accept(stream).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let chain = stream.get_ref().1.peer_certificates().and_then(|chain| chain.split_first());
        let Some((shown, between)) = chain else { return Ok((stream, None)) };
        // A session that goes on remembers a certificate that was good when it began.
        let still = current.readers.verify_client_cert(shown, between, (self.now)());
        still.map_err(|error| error.to_string())?;
        let names = dns_names(shown);
        Ok((stream, Some(names)))
    }

    /// Begins TLS with a peer called `host`.
    ///
    /// # Errors
    /// In words: the files, or the peer's certificate.
    pub async fn connect(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> Result<client::TlsStream<TcpStream>, String> {
        let client = self.current().await?.client.clone();
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| format!("`{host}` is no name that a certificate can have"))?;
        TlsConnector::from(client).connect(name, stream).await.map_err(|error| error.to_string())
    }

    fn last(&self) -> MutexGuard<'_, Option<(Instant, Arc<Material>)>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the files hold, or held when they could last be used.
    async fn current(&self) -> Result<Arc<Material>, String> {
        let last = self.last().clone();
        match last {
            Some((at, read)) if at.elapsed() < EVERY => Ok(read),
            Some((_, read)) => {
                // Others go on with what there is, while one looks.
                *self.last() = Some((Instant::now(), read.clone()));
                let now = self.anew(Some(read.clone())).await;
                Ok(now
                    .inspect_err(|why| tracing::warn!("{why}; what it held before is used"))
                    .unwrap_or(read))
            }
            None => self.anew(None).await,
        }
    }

    async fn anew(&self, before: Option<Arc<Material>>) -> Result<Arc<Material>, String> {
        let TlsConfig { certificate, key, ca, .. } = self.config.clone();
        let look = move || {
            let paths = [certificate, key, ca];
            let names = paths.each_ref().map(|path| path.display().to_string());
            let mut files = [const { Vec::new() }; 3];
            for (file, path) in files.iter_mut().zip(&paths) {
                *file =
                    fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
            }
            match before {
                Some(before) if before.files == files => Ok(before),
                _ => Material::of(files, &names).map(Arc::new),
            }
        };
        let read = off_path("reading the files of agent.tls", READ_LIMIT, look).await;
        let read = read.map_err(|error| error.to_string()).and_then(|read| read);
        let read = read.map_err(|why| format!("agent.tls: {why}"))?;
        *self.last() = Some((Instant::now(), read.clone()));
        Ok(read)
    }
}

impl Material {
    fn of(files: [Vec<u8>; 3], names: &[String; 3]) -> Result<Self, String> {
        let chain = given::certificates(&files[0], &names[0])?;
        let key = given::key(&files[1], &chain, &names[1])?;
        let roots = given::roots(given::certificates(&files[2], &names[2])?, &names[2])?;
        let (roots, provider) = (Arc::new(roots), Arc::new(rustls::crypto::ring::default_provider()));
        let apart =
            |error: rustls::Error| format!("{} and {} do not go together: {error}", names[0], names[1]);
        let broken = |error: &dyn std::fmt::Display| format!("TLS cannot be set up: {error}");
        let readers = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let readers = readers.allow_unauthenticated().build().map_err(|error| broken(&error))?;
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| broken(&error))?
            .with_client_cert_verifier(readers.clone())
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(apart)?;
        let peers = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| broken(&error))?
            .with_webpki_verifier(peers.build().map_err(|error| broken(&error))?)
            .with_client_auth_cert(chain, key)
            .map_err(apart)?;
        Ok(Self { files, client: Arc::new(client), server: Arc::new(server), readers })
    }
}

/// Whether a certificate can have it as the name of one host: no address, no wildcard, no root at its end.
#[must_use]
pub fn is_dns_name(text: &str) -> bool {
    DnsName::try_from(text).is_ok() && !text.ends_with('.')
}

/// Those of a certificate that was verified.
fn dns_names(shown: &CertificateDer<'_>) -> Vec<String> {
    let parsed = EndEntityCert::try_from(shown);
    parsed.map(|it| it.valid_dns_names().map(str::to_owned).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
