//! What the files of a [`SecurityConfig`] hold, read away from those who wait for it.
//!
//! Nobody who dials waits for a file system: a look at the files runs on a thread of its own, at most one at a
//! time, and what was read before is used until it comes back. Only the very first look is waited for, as
//! long as the connection may take.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use secrecy::SecretString;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::{SaslConfig, SecurityConfig};

/// The files are looked at this often at most, but after a refusal at once.
const EVERY: Duration = Duration::from_secs(1);
/// A look at files that were read before is waited for no longer than this; they are read in microseconds.
const PATIENCE: Duration = Duration::from_millis(20);

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
    pub(crate) password: SecretString,
    /// Whether it happens within TLS.
    pub(crate) encrypted: bool,
    /// Where that stands, for messages.
    pub(crate) section: String,
}

/// The files as they are.
#[derive(Default, PartialEq, Eq)]
struct Files {
    ca: Option<Vec<u8>>,
    certificate: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
    password: Option<Vec<u8>>,
}

impl std::fmt::Debug for Files {
    /// Two of them are secrets.
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
    let named = |key: &str, path: &Path| format!("{section}.{key}: {}", path.display());
    let read = |key: &str, path: Option<&Path>| -> Result<Option<Vec<u8>>, String> {
        let Some(path) = path else { return Ok(None) };
        let bytes = fs::read(path).map_err(|error| format!("{} cannot be read: {error}", named(key, path)));
        bytes.map(Some)
    };
    let files = Files {
        ca: read("ca", config.ca.as_deref())?,
        certificate: read("certificate", config.certificate.as_deref())?,
        key: read("key", config.key.as_deref())?,
        password: read("sasl.password_file", config.sasl.as_ref().map(|sasl| sasl.password_file.as_path()))?,
    };
    if let Some(same) = before.filter(|before| before.files == files) {
        return Ok(same.clone());
    }
    let place =
        |key: &str| config.files().find(|(k, _)| *k == key).map_or(String::new(), |(k, p)| named(k, p));
    let tls = if config.protocol.encrypts() { Some(Arc::new(client(&files, section, place)?)) } else { None };
    let login = match (&config.sasl, &files.password) {
        (Some(sasl), Some(bytes)) => Some(Login {
            config: sasl.clone(),
            password: password(bytes, &place("sasl.password_file"))?,
            encrypted: config.protocol.encrypts(),
            section: section.to_owned(),
        }),
        _ => None,
    };
    Ok(Arc::new(Material { files, tls, login }))
}

fn password(bytes: &[u8], place: &str) -> Result<SecretString, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| format!("{place} is not text (UTF-8)"))?;
    let line = text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
    if line.is_empty() || line.contains('\0') {
        return Err(format!("{place} has no password; write it there, as the only line"));
    }
    Ok(line.into())
}

/// What the TLS library needs. The provider is named here, so that nothing is installed for the whole process.
fn client(files: &Files, section: &str, place: impl Fn(&str) -> String) -> Result<ClientConfig, String> {
    let roots = match &files.ca {
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem, &place("ca"))? {
                let added = roots.add(certificate);
                added.map_err(|error| {
                    format!("{} has an authority that is of no use: {error}", place("ca"))
                })?;
            }
            roots
        }
        None => host_roots(section)?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("{section}: TLS cannot be set up: {error}"))?
        .with_root_certificates(roots);
    let (Some(chain), Some(key)) = (&files.certificate, &files.key) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(chain, &place("certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        format!(
            "{} has no key as PEM that can be used; it must not be encrypted (`openssl pkey`)",
            place("key")
        )
    })?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| format!("{} and {} do not go together: {error}", place("certificate"), place("key")))
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

fn certificates(pem: &[u8], place: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| format!("{place} is not PEM: {error}"))?;
    if all.is_empty() {
        return Err(format!("{place} has no certificate as PEM"));
    }
    Ok(all)
}
