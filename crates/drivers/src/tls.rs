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
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ServerConfig};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::certificate::CertificateFile;
use crate::fence::{OptionValue, resolve};
use crate::off_path::off_path;
use kafka::security::given;

/// The files are looked at this often at most.
const EVERY: Duration = Duration::from_secs(1);
/// How long reading them may take. They are read in microseconds.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// A shorter token is guessed sooner than it is sent.
const SHORTEST_TOKEN: usize = 16;

/// How this agent's pages are served with TLS, and how it asks peers whose `url` begins with `https://`. Without the
/// section they are served as they are, to everybody who reaches `listen`.
///
/// With it, `/livez` and `/readyz` are for everybody, the latter without its detail. All other pages are for who
/// shows a certificate of `ca`, as the agents do among themselves, or sends one of `tokens` as
/// `Authorization: Bearer …`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The file with this agent's certificate, and those between it and its authority, as PEM. It is valid for the host
    /// that the peers have in their `url`, an address mostly, and for both uses: `serverAuth` and `clientAuth`.
    pub certificate: PathBuf,
    /// The file with its key, as PEM, not encrypted.
    pub key: PathBuf,
    /// The file with the authorities of the agents' certificates, as PEM: best one of their own, for who has a
    /// certificate of it reads every page.
    pub ca: PathBuf,
    /// Whether `/metrics` is for everybody, too: for a scraper that has neither.
    #[serde(default)]
    pub open_metrics: bool,
    /// What others send who may read every page: `{ file = "…" }`, `{ env = "…" }` or `{ credential = "…" }`, of 16
    /// characters at least.
    #[serde(default)]
    pub tokens: Vec<OptionValue>,
}

impl TlsConfig {
    /// What is wrong with it, as `key: what is wrong`.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let paths = [("certificate", &self.certificate), ("key", &self.key), ("ca", &self.ca)];
        let relative = paths.iter().filter(|(_, path)| !path.is_absolute());
        let relative =
            relative.map(|(key, path)| format!("{key}: `{}` must be an absolute path", path.display()));
        let plain = self.tokens.iter().any(|token| matches!(token, OptionValue::Plain(_)));
        let plain = plain
            .then(|| "tokens: a token is a secret; write { file = \"…\" } or { env = \"…\" }".to_owned());
        relative.chain(plain).collect()
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
}

/// What the files hold.
struct Material {
    files: [Vec<u8>; 3],
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
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
        Self { config, read: Mutex::default() }
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
        self.anew(None).await?;
        for token in &self.config.tokens {
            token_of(token).await?;
        }
        Ok(())
    }

    /// Begins TLS with somebody who has connected. `true`: a certificate of the authority was shown.
    ///
    /// # Errors
    /// In words: the files, or what the other side did.
    pub async fn accept(&self, stream: TcpStream) -> Result<(server::TlsStream<TcpStream>, bool), String> {
        let server = self.current().await?.server.clone();
        let stream = TlsAcceptor::from(server).accept(stream).await.map_err(|error| error.to_string())?;
        let known = stream.get_ref().1.peer_certificates().is_some();
        Ok((stream, known))
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

    /// Whether `sent` is one of the tokens.
    pub async fn knows(&self, sent: &str) -> bool {
        for token in &self.config.tokens {
            let Ok(token) = token_of(token).await else { continue };
            if same(token.expose_secret().as_bytes(), sent.as_bytes()) {
                return true;
            }
        }
        false
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
            .with_client_cert_verifier(readers)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(apart)?;
        let peers = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| broken(&error))?
            .with_webpki_verifier(peers.build().map_err(|error| broken(&error))?)
            .with_client_auth_cert(chain, key)
            .map_err(apart)?;
        Ok(Self { files, client: Arc::new(client), server: Arc::new(server) })
    }
}

async fn token_of(token: &OptionValue) -> Result<SecretString, String> {
    let read = resolve("agent.tls.tokens", token).await.map_err(|error| recovery::ports::chain(&error))?;
    if read.expose_secret().trim().len() < SHORTEST_TOKEN {
        return Err(format!(
            "agent.tls.tokens: one is shorter than {SHORTEST_TOKEN} characters, and would be guessed: make one with \
             `openssl rand -hex 32`"
        ));
    }
    Ok(read)
}

/// Compares in a time that does not depend on where the two differ.
fn same(one: &[u8], other: &[u8]) -> bool {
    let differ = one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b));
    one.len() == other.len() && differ == 0
}

#[cfg(test)]
mod tests;
