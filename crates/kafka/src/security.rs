//! How the listeners of a cluster are secured, as it is configured.

mod credentials;
pub mod given;
pub mod of_broker;
mod pem;
mod sasl;
mod scram;
mod store;
mod tokens;
mod told;

use std::fmt;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use serde::Deserialize;

pub(crate) use self::credentials::{Credentials, Login, Material};
pub use self::pem::Pem;
pub use self::sasl::{Mechanism, SaslConfig, TokenEndpointConfig};
pub(crate) use self::scram::{Hash, Scram};
pub(crate) use self::store::read_jks_entries;
pub(crate) use self::told::{of_handshake, of_login, tls_error, where_tls_answers};

/// The keys of a store's files: itself, its password, the password of its key.
type StoreKeys = [&'static str; 3];
const TRUSTSTORE: StoreKeys = ["truststore.file", "truststore.password_file", "truststore.key_password_file"];
const KEYSTORE: StoreKeys = ["keystore.file", "keystore.password_file", "keystore.key_password_file"];

/// How the brokers' listeners are secured. Every connection of the agent to them is: what it probes, reads and
/// asks for. Without the section they are `PLAINTEXT`.
///
/// All files are read anew when they change, and after a broker has refused what was in them. A file that has
/// become useless changes nothing as long as what it held before is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecurityConfig {
    /// What the listeners speak, as in Kafka's `listener.security.protocol.map`.
    pub protocol: Protocol,
    /// The authorities that a listener's certificate must come from, as PEM. No other one is trusted. By
    /// default those that this host trusts.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub ca: Option<PathBuf>,
    /// This agent's certificate and what lies between it and its authority, as PEM, where the listeners ask
    /// for one (`ssl.client.auth`).
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub certificate: Option<PathBuf>,
    /// The key of `certificate`, as PEM, not encrypted.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub key: Option<PathBuf>,
    /// A store of Java's instead of `ca`, PKCS12 or JKS: what Kafka's `ssl.truststore.location` names.
    #[serde(default)]
    pub truststore: Option<StoreConfig>,
    /// A store of Java's instead of `certificate` and `key`: what Kafka's `ssl.keystore.location` names. Of
    /// several keys the first is used.
    #[serde(default)]
    pub keystore: Option<StoreConfig>,
    /// How the agent logs in, with `SASL_SSL` and `SASL_PLAINTEXT`. The probe of a broker needs no login.
    #[serde(default)]
    pub sasl: Option<SaslConfig>,
}

/// A store of certificates, and perhaps a key, as Java has them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// The store. Its kind is seen in it.
    #[schemars(with = "String")]
    pub file: PathBuf,
    /// The file with its password. A line break at its end does not count.
    #[schemars(with = "String")]
    pub password_file: PathBuf,
    /// The file with the password of the key, where that is another one (`ssl.key.password`): in JKS alone.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub key_password_file: Option<PathBuf>,
}

/// What a listener speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
pub enum Protocol {
    /// Neither encrypted nor authenticated.
    #[serde(rename = "PLAINTEXT")]
    Plaintext,
    /// TLS.
    #[serde(rename = "SSL")]
    Ssl,
    /// A login, not encrypted.
    #[serde(rename = "SASL_PLAINTEXT")]
    SaslPlaintext,
    /// A login within TLS.
    #[serde(rename = "SASL_SSL")]
    SaslSsl,
}

impl Protocol {
    /// Whether connections are encrypted.
    #[must_use]
    pub fn encrypts(self) -> bool {
        matches!(self, Self::Ssl | Self::SaslSsl)
    }

    /// Whether there is a login.
    #[must_use]
    pub fn logs_in(self) -> bool {
        matches!(self, Self::SaslPlaintext | Self::SaslSsl)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plaintext => "PLAINTEXT",
            Self::Ssl => "SSL",
            Self::SaslPlaintext => "SASL_PLAINTEXT",
            Self::SaslSsl => "SASL_SSL",
        })
    }
}

impl StoreConfig {
    fn files(&self, keys: &StoreKeys) -> impl Iterator<Item = (&'static str, &Path)> {
        let all = [Some(&self.file), Some(&self.password_file), self.key_password_file.as_ref()];
        keys.iter().copied().zip(all).filter_map(|(key, path)| Some((key, path?.as_path())))
    }

    /// The certificates in it: those that it trusts, if it is a truststore (`trusts`), or else the chain of its
    /// key. It is read on this thread.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn certificates(&self, trusts: bool) -> std::io::Result<Vec<CertificateDer<'static>>> {
        let (bytes, password) = (std::fs::read(&self.file)?, std::fs::read(&self.password_file)?);
        // What belongs to the key is not looked at: a wrong password of it is told where it is used.
        let store = store::certificates(&bytes, &password, trusts);
        let password = self.password_file.display().to_string();
        store.map_err(|why| std::io::Error::other(why.told("it", &password)))
    }
}

impl SecurityConfig {
    /// Everything that is wrong with it, as `key: reason`. `section` is where it stands.
    #[must_use]
    pub fn problems(&self, section: &str) -> Vec<String> {
        let is_kafkas = |mechanism: Mechanism| mechanism != Mechanism::DigestMd5;
        let no_mechanism = "is ZooKeeper's; give one of those in sasl.enabled.mechanisms of the listener";
        self.problems_with(section, is_kafkas, no_mechanism)
    }

    /// The same where it is for ZooKeeper.
    #[must_use]
    pub fn problems_with_zookeeper(&self, section: &str) -> Vec<String> {
        let is_zookeepers = |mechanism: Mechanism| mechanism == Mechanism::DigestMd5;
        self.problems_with(section, is_zookeepers, "is Kafka's; ZooKeeper has DIGEST-MD5")
    }

    fn problems_with(
        &self,
        section: &str,
        fits: impl Fn(Mechanism) -> bool,
        no_mechanism: &str,
    ) -> Vec<String> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, why: &str| problems.push(format!("{section}.{key}: {why}"));
        for (key, path) in self.files() {
            if !path.is_absolute() {
                // Somebody may have written the password itself.
                let shown =
                    if key.ends_with("_file") { String::new() } else { format!("`{}` ", path.display()) };
                wrong(key, &format!("{shown}is not absolute; write the whole path"));
            }
        }
        match (&self.certificate, &self.key) {
            (Some(_), None) => wrong("key", &format!("missing; it is the key of {section}.certificate")),
            (None, Some(_)) => {
                wrong("certificate", &format!("missing; it is the certificate of {section}.key"));
            }
            _ => {}
        }
        if self.ca.is_some() && self.truststore.is_some() {
            wrong("truststore", &format!("{section}.ca says already who is trusted; remove one of them"));
        }
        if self.certificate.is_some() && self.keystore.is_some() {
            wrong(
                "keystore",
                &format!("{section}.certificate says already what is shown; remove one of them"),
            );
        }
        let of_tls = [
            ("ca", self.ca.is_some()),
            ("certificate", self.certificate.is_some()),
            ("key", self.key.is_some()),
            ("truststore", self.truststore.is_some()),
            ("keystore", self.keystore.is_some()),
        ];
        for (key, _) in of_tls.into_iter().filter(|(_, given)| *given && !self.protocol.encrypts()) {
            wrong(
                key,
                &format!("is for TLS, and {section}.protocol is {}; remove one of them", self.protocol),
            );
        }
        match &self.sasl {
            None if self.protocol.logs_in() => {
                let why = "missing; give { mechanism = …, user = …, password_file = … }";
                wrong("sasl", &format!("{why}, or set {section}.protocol to one without SASL"));
            }
            Some(_) if !self.protocol.logs_in() => {
                let why = "is for SASL_SSL and SASL_PLAINTEXT";
                wrong(
                    "sasl",
                    &format!("{why}, and {section}.protocol is {}; remove one of them", self.protocol),
                );
            }
            Some(sasl) if !fits(sasl.mechanism) => {
                wrong("sasl.mechanism", &format!("{} {no_mechanism}", sasl.mechanism.name()));
            }
            Some(sasl) => sasl.problems().iter().for_each(|(key, why)| wrong(key, why)),
            None => {}
        }
        problems
    }

    /// What its stores hold, as PEM, for a client that reads no stores of Java's. They are read on this thread.
    /// `section` is where it stands.
    ///
    /// # Errors
    /// Why one of them is of no use, in a sentence that names it.
    pub fn stores_as_pem(&self, section: &str) -> Result<Pem, String> {
        credentials::stores_as_pem(self, section)
    }

    /// The files it names, by key.
    fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let all = [("ca", &self.ca), ("certificate", &self.certificate), ("key", &self.key)];
        let pem = all.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?)));
        let login = self.sasl.iter().flat_map(SaslConfig::files);
        let trusts = self.truststore.iter().flat_map(|store| store.files(&TRUSTSTORE));
        let shows = self.keystore.iter().flat_map(|store| store.files(&KEYSTORE));
        pem.chain(trusts).chain(shows).chain(login)
    }

    /// The file that says who is trusted, by its key.
    fn trusts(&self) -> Option<(&'static str, &Path)> {
        let pem = self.ca.as_deref().map(|path| ("ca", path));
        pem.or_else(|| Some(("truststore.file", self.truststore.as_ref()?.file.as_path())))
    }

    /// The file with the certificate that is shown.
    fn shows(&self) -> Option<&Path> {
        self.certificate.as_deref().or_else(|| Some(self.keystore.as_ref()?.file.as_path()))
    }
}
