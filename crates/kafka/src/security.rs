//! How the listeners of a cluster are secured, as it is configured.

mod credentials;
mod scram;
mod told;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub(crate) use self::credentials::{Credentials, Login, Material};
pub(crate) use self::scram::{Hash, Scram};
pub(crate) use self::told::{of_tls, tls_error, where_tls_answers};

const PASSWORD_FILE: &str = "sasl.password_file";

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
    /// How the agent logs in, with `SASL_SSL` and `SASL_PLAINTEXT`. The probe of a broker needs no login.
    #[serde(default)]
    pub sasl: Option<SaslConfig>,
}

/// How the agent logs in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SaslConfig {
    /// One of those in `sasl.enabled.mechanisms` of the listener. With `PLAIN` the broker is told the password:
    /// use it within TLS only.
    pub mechanism: Mechanism,
    /// Who the agent is to Kafka: the principal is `User:` and this name.
    pub user: String,
    /// The file with the password. A line break at its end does not count.
    #[schemars(with = "String")]
    pub password_file: PathBuf,
}

/// How a password is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
pub enum Mechanism {
    /// As it is.
    #[serde(rename = "PLAIN")]
    Plain,
    /// By a proof.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// By a proof.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

impl Mechanism {
    /// Kafka's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
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

impl SecurityConfig {
    /// Everything that is wrong with it, as `key: reason`. `section` is where it stands.
    #[must_use]
    pub fn problems(&self, section: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, why: &str| problems.push(format!("{section}.{key}: {why}"));
        for (key, path) in self.files() {
            if !path.is_absolute() {
                // Somebody may have written the password itself.
                let shown =
                    if key == PASSWORD_FILE { String::new() } else { format!("`{}` ", path.display()) };
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
        let of_tls = [("ca", &self.ca), ("certificate", &self.certificate), ("key", &self.key)];
        for (key, _) in of_tls.into_iter().filter(|(_, path)| path.is_some() && !self.protocol.encrypts()) {
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
            Some(sasl) if sasl.user.trim().is_empty() => {
                wrong("sasl.user", "is empty; give the name that the broker knows");
            }
            _ => {}
        }
        problems
    }

    /// The files it names, by key.
    fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let all = [("ca", &self.ca), ("certificate", &self.certificate), ("key", &self.key)];
        let password = self.sasl.iter().map(|sasl| (PASSWORD_FILE, sasl.password_file.as_path()));
        all.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?))).chain(password)
    }
}
