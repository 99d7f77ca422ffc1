//! How the listeners of a cluster are secured, as it is configured.

mod credentials;
mod told;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub(crate) use self::credentials::Credentials;
pub(crate) use self::told::{of_tls, tls_error, where_tls_answers};

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
}

impl Protocol {
    /// Whether connections are encrypted.
    #[must_use]
    pub fn encrypts(self) -> bool {
        matches!(self, Self::Ssl)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plaintext => "PLAINTEXT",
            Self::Ssl => "SSL",
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
                wrong(key, &format!("`{}` is not absolute; write the whole path", path.display()));
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
        problems
    }

    /// The files it names, by key.
    fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let all = [("ca", &self.ca), ("certificate", &self.certificate), ("key", &self.key)];
        all.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?)))
    }
}
