//! What the files of a [`SecurityConfig`] hold, read away from those who wait for it.
//!
//! Nobody who dials waits for a file system: a look at the files runs on a thread of its own, at most one at a
//! time, and what was read before is used until it comes back. Only the very first look is waited for, as
//! long as the connection may take.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustls::client::WantsClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::given;
use super::pem::{self, Pem};
use super::sasl::{self, ENDPOINT_CA, PASSWORD_FILE, SaslConfig, TOKEN_FILE};
use super::store::{self, Key, Store, whole};
use super::tokens::Endpoint;
use super::{KEYSTORE, SecurityConfig, StoreKeys, TRUSTSTORE};

/// The files are looked at this often at most, but after a refusal at once.
const EVERY: Duration = Duration::from_secs(1);
/// A look at files that were read before is waited for no longer than this; they are read in microseconds.
const PATIENCE: Duration = Duration::from_millis(20);

type Certificate = CertificateDer<'static>;
/// A certificate, what lies between it and its authority, and its key.
type Shown = (Vec<Certificate>, PrivateKeyDer<'static>);

/// What connections are secured with.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(super) config: SecurityConfig,
    /// Where that stands, for messages.
    pub(super) section: &'static str,
    looks: Arc<Mutex<Looks>>,
    known: watch::Sender<Known>,
}

#[derive(Debug, Default)]
struct Looks {
    /// When the last one was begun.
    begun: Option<Instant>,
    runs: bool,
    /// What was read last was refused.
    refused: bool,
}

/// What the files are known to hold.
#[derive(Debug, Clone, Default)]
struct Known {
    /// The last that was of use.
    good: Option<Arc<Material>>,
    /// What the last look found wrong.
    wrong: Option<String>,
}

/// Files that were read, and what was made of them. It is kept while they are the same, and with it the TLS
/// sessions that are resumed.
#[derive(Debug)]
pub(crate) struct Material {
    files: Files,
    /// For the handshake.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// For the login after it.
    pub(crate) login: Option<Login>,
}

/// Who the agent is.
#[derive(Debug)]
pub(crate) struct Login {
    pub(crate) config: SaslConfig,
    /// The password, the token, or what an endpoint gives tokens for.
    pub(crate) secret: SecretString,
    endpoint: Option<Arc<Endpoint>>,
    /// Whether it happens within TLS.
    pub(crate) encrypted: bool,
    /// Where that stands, for messages.
    pub(crate) section: String,
}

impl Login {
    /// What is shown: the password, or a token.
    ///
    /// # Errors
    /// Why there is no token; it is nothing of the broker's.
    pub(crate) async fn shown(&self, limit: Duration) -> io::Result<SecretString> {
        match &self.endpoint {
            Some(endpoint) => endpoint.token(limit).await.map_err(io::Error::other),
            None => Ok(self.secret.clone()),
        }
    }

    /// What was shown was not taken.
    pub(crate) fn refused(&self, shown: &SecretString) {
        if let Some(endpoint) = &self.endpoint {
            endpoint.doubt(shown);
        }
    }

    /// The file with its secret, and the key that names it.
    pub(crate) fn secret_file(&self) -> (String, String) {
        let (key, file) = self.config.secret_file().unwrap_or((PASSWORD_FILE, Path::new("")));
        (file.display().to_string(), format!("{}.{key}", self.section))
    }
}

/// The files as they are, by their keys.
#[derive(Default, PartialEq, Eq)]
struct Files(BTreeMap<&'static str, Vec<u8>>);

impl Files {
    fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key).map(Vec::as_slice)
    }
}

impl std::fmt::Debug for Files {
    /// Some of them are secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Files")
    }
}

impl Credentials {
    pub(crate) fn new(config: SecurityConfig, section: &'static str) -> Self {
        Self { config, section, looks: Arc::default(), known: watch::Sender::default() }
    }

    /// What to connect with.
    ///
    /// # Errors
    /// Why there is nothing.
    pub(crate) async fn current(&self, until: Instant) -> io::Result<Arc<Material>> {
        let mut news = self.known.subscribe();
        let begun = self.look_if_due();
        let has = news.borrow().good.is_some();
        if begun || !has && news.borrow().wrong.is_none() {
            let limit = if has { until.min(Instant::now() + PATIENCE) } else { until };
            let _late = timeout_at(limit, news.changed()).await;
        }
        let known = news.borrow().clone();
        known.good.ok_or_else(|| io::Error::other(known.wrong.unwrap_or_else(|| self.hung())))
    }

    /// Whether there is a login.
    pub(crate) fn logs_in(&self) -> bool {
        self.config.protocol.logs_in()
    }

    /// What is in the files was refused: they may have changed.
    pub(crate) fn refused(&self) {
        self.looks().refused = true;
    }

    /// The same for a login; returns what there is to add to the reason.
    pub(crate) fn refuted(&self) -> String {
        self.refused();
        self.wrong().map(|wrong| format!("; {wrong}")).unwrap_or_default()
    }

    /// What the last look found wrong with the files, while what they held before is still used.
    pub(super) fn wrong(&self) -> Option<String> {
        self.known.borrow().wrong.clone()
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hung(&self) -> String {
        let files: Vec<_> = self.config.files().map(|(_, path)| path.display().to_string()).collect();
        format!(
            "{}: reading {} did not return in time; check the file system that they are on",
            self.section,
            if files.is_empty() { "this host's authorities".to_owned() } else { files.join(", ") }
        )
    }

    /// Begins a look, if one is due and none runs. Says whether it did.
    fn look_if_due(&self) -> bool {
        let mut looks = self.looks();
        let due = looks.begun.is_none_or(|begun| begun.elapsed() >= EVERY) || looks.refused;
        if looks.runs || !due {
            return false;
        }
        (looks.begun, looks.runs, looks.refused) = (Some(Instant::now()), true, false);
        let (shared, known) = (self.looks.clone(), self.known.clone());
        let (config, section) = (self.config.clone(), self.section);
        let look = move || {
            let before = known.borrow().good.clone();
            let now = match look(&config, section, before.as_ref()) {
                Ok(good) => Known { good: Some(good), wrong: None },
                Err(wrong) => Known { good: before, wrong: Some(wrong) },
            };
            shared.lock().unwrap_or_else(PoisonError::into_inner).runs = false;
            known.send_replace(now);
        };
        let begun = thread::Builder::new().name("credentials".to_owned()).spawn(look);
        looks.runs = begun.is_ok();
        looks.runs
    }
}

/// Reads the files, and keeps `before` if they are the same.
fn look(
    config: &SecurityConfig,
    section: &str,
    before: Option<&Arc<Material>>,
) -> Result<Arc<Material>, String> {
    let files = read(config.files(), section)?;
    if let Some(same) = before.filter(|before| before.files == files) {
        return Ok(same.clone());
    }
    let place = |key: &str| place(config, section, key);
    let tls = if config.protocol.encrypts() { Some(Arc::new(client(&files, section, place)?)) } else { None };
    let login = config.sasl.as_ref().map(|sasl| login(config, sasl, &files, section)).transpose()?.flatten();
    Ok(Arc::new(Material { files, tls, login }))
}

fn login(
    config: &SecurityConfig,
    sasl: &SaslConfig,
    files: &Files,
    section: &str,
) -> Result<Option<Login>, String> {
    let place = |key: &str| place(config, section, key);
    let Some((key, bytes)) = sasl.secret_file().and_then(|(key, _)| Some((key, files.get(key)?))) else {
        return Ok(None);
    };
    let what = if key == TOKEN_FILE { "token" } else { "password" };
    let secret = sasl::only_line(bytes, &place(key), what)?;
    let endpoint = sasl.token_endpoint.as_deref().map(|endpoint| {
        let roots = match files.get(ENDPOINT_CA) {
            Some(pem) => given::roots(given::certificates(pem, &place(ENDPOINT_CA))?, &place(ENDPOINT_CA))?,
            None => host_roots(&format!("{section}.sasl.token_endpoint"))?,
        };
        let tls = verifying(roots, section)?.with_no_client_auth();
        Endpoint::new(endpoint.clone(), section, secret.clone(), tls)
    });
    Ok(Some(Login {
        config: sasl.clone(),
        secret,
        endpoint: endpoint.transpose()?,
        encrypted: config.protocol.encrypts(),
        section: section.to_owned(),
    }))
}

/// What the stores hold, as PEM: for a client that reads none of them. Reads files.
///
/// # Errors
/// Why they are of no use, in a sentence.
pub(super) fn stores_as_pem(config: &SecurityConfig, section: &str) -> Result<Pem, String> {
    let stores = config.files().filter(|(key, _)| [TRUSTSTORE, KEYSTORE].concat().contains(key));
    let files = read(stores, section)?;
    let place = |key: &str| place(config, section, key);
    let ca = trusted(&files, place)?.map(|trusted| pem::certificates(&trusted));
    let Some((chain, key)) = shown(&files, place)? else {
        return Ok(Pem { ca, certificate: None, key: None });
    };
    Ok(Pem { ca, certificate: Some(pem::certificates(&chain)), key: Some(pem::key(&key)) })
}

fn read<'a>(all: impl Iterator<Item = (&'static str, &'a Path)>, section: &str) -> Result<Files, String> {
    let read = |(key, path): (&'static str, &Path)| {
        let bytes = fs::read(path);
        let bytes =
            bytes.map_err(|error| format!("{} cannot be read: {error}", named(section, key, path)))?;
        Ok((key, bytes))
    };
    all.map(read).collect::<Result<_, String>>().map(Files)
}

/// The file that a key names, for messages.
fn place(config: &SecurityConfig, section: &str, key: &str) -> String {
    config.files().find(|(k, _)| *k == key).map_or(String::new(), |(k, path)| named(section, k, path))
}

fn named(section: &str, key: &str, path: &Path) -> String {
    format!("{section}.{key}: {}", path.display())
}

/// What the TLS library needs.
fn client(files: &Files, section: &str, place: impl Fn(&str) -> String) -> Result<ClientConfig, String> {
    let roots = match (files.get("ca"), trusted(files, &place)?) {
        (Some(pem), _) => given::roots(given::certificates(pem, &place("ca"))?, &place("ca"))?,
        (None, Some(trusted)) => given::roots(trusted, &place(TRUSTSTORE[0]))?,
        (None, None) => host_roots(section)?,
    };
    let builder = verifying(roots, section)?;
    if let Some((chain, key)) = shown(files, &place)? {
        let shown = builder.with_client_auth_cert(chain, key);
        return shown.map_err(|error| format!("{} has a key that is of no use: {error}", place(KEYSTORE[0])));
    }
    let (Some(chain), Some(key)) = (files.get("certificate"), files.get("key")) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = given::certificates(chain, &place("certificate"))?;
    let key = given::key(key, &chain, &place("key"))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| format!("{} and {} do not go together: {error}", place("certificate"), place("key")))
}

/// The provider is named here, so that nothing is installed for the whole process.
fn verifying(
    roots: RootCertStore,
    section: &str,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("{section}: TLS cannot be set up: {error}"))?;
    Ok(builder.with_root_certificates(roots))
}

/// Who is trusted by a store, if there is one.
fn trusted(files: &Files, place: impl Fn(&str) -> String) -> Result<Option<Vec<Certificate>>, String> {
    let Some(store) = opened(files, &TRUSTSTORE, &place)? else { return Ok(None) };
    if store.trusted.is_empty() {
        let why = "has no certificate that is trusted (`keytool -list` shows what it has)";
        return Err(format!("{} {why}", place(TRUSTSTORE[0])));
    }
    Ok(Some(store.trusted.into_iter().map(Into::into).collect()))
}

/// What is shown of a store, if there is one.
fn shown(files: &Files, place: impl Fn(&str) -> String) -> Result<Option<Shown>, String> {
    let Some(store) = opened(files, &KEYSTORE, &place)? else { return Ok(None) };
    let [file, password, of_key] = KEYSTORE;
    let Key { key, chain } = store.key.filter(|key| !key.chain.is_empty()).ok_or_else(|| {
        let why = "has no key with a certificate (`keytool -list` shows what it has)";
        format!("{} {why}", place(file))
    })?;
    let by = if files.get(of_key).is_some() { of_key } else { password };
    let key = key.map_err(|why| why.told(&place(file), &place(by)))?;
    let chain: Vec<Certificate> = chain.into_iter().map(Into::into).collect();
    let key = whole(PrivatePkcs8KeyDer::from(key).into(), &chain);
    Ok(Some((chain, key)))
}

/// A store, if there is one.
fn opened(files: &Files, keys: &StoreKeys, place: impl Fn(&str) -> String) -> Result<Option<Store>, String> {
    let [file, password_file, key_password_file] = *keys;
    let (Some(bytes), Some(password)) = (files.get(file), files.get(password_file)) else { return Ok(None) };
    let password = sasl::only_line(password, &place(password_file), "password")?;
    let of_key = files.get(key_password_file);
    let of_key =
        of_key.map(|bytes| sasl::only_line(bytes, &place(key_password_file), "password")).transpose()?;
    let read = store::read(bytes, password.expose_secret(), of_key.as_ref().map(ExposeSecret::expose_secret));
    read.map(Some).map_err(|why| why.told(&place(file), &place(password_file)))
}

fn host_roots(section: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    // Some may be too old to be understood; the others are good.
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err(format!(
            "{section}.ca: missing, and this host trusts no authority; name the file with the brokers' authority"
        ));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests;
