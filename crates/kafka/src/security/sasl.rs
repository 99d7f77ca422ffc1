//! How the agent logs in, as it is configured.

use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

/// The files with what must stay secret, by their keys.
pub(crate) const PASSWORD_FILE: &str = "sasl.password_file";
pub(crate) const TOKEN_FILE: &str = "sasl.token_file";
pub(crate) const CLIENT_SECRET_FILE: &str = "sasl.token_endpoint.client_secret_file";
/// The file with who is trusted as a token endpoint.
pub(crate) const ENDPOINT_CA: &str = "sasl.token_endpoint.ca";

/// How the agent logs in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SaslConfig {
    /// One of those in `sasl.enabled.mechanisms` of the listener. With `PLAIN` and `OAUTHBEARER` the broker is told the
    /// password or token: use them within TLS only. `DIGEST-MD5` is ZooKeeper's, and of no listener of Kafka's.
    pub mechanism: Mechanism,
    /// Who the agent is to Kafka: the principal is `User:` and this name. With `OAUTHBEARER` the token says it.
    #[serde(default)]
    pub user: Option<String>,
    /// The file with the password. A line break at its end does not count. With `OAUTHBEARER` there is none.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub password_file: Option<PathBuf>,
    /// With `OAUTHBEARER`: the file with the token, that something else renews, such as Kubernetes or an agent of the
    /// identity provider's. It is read anew when it changes.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub token_file: Option<PathBuf>,
    /// With `OAUTHBEARER`: who gives tokens, for this agent's own id and secret.
    #[serde(default)]
    pub token_endpoint: Option<Box<TokenEndpointConfig>>,
}

/// Who gives tokens: an endpoint of an identity provider, by the grant `client_credentials` of OAuth 2 (RFC 6749). A
/// token is used until it ends, and is renewed after four fifths of its time.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenEndpointConfig {
    /// Its URL, as in `sasl.oauthbearer.token.endpoint.url` of Kafka's clients. With `http://` only on this host.
    pub url: String,
    /// The agent's own id.
    pub client_id: String,
    /// The file with its secret. A line break at its end does not count.
    #[schemars(with = "String")]
    pub client_secret_file: PathBuf,
    /// What is asked for, where the provider wants it said.
    #[serde(default)]
    pub scope: Option<String>,
    /// The authorities that its certificate must come from, as PEM. By default those that this host trusts.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub ca: Option<PathBuf>,
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
    /// A token of an identity provider, as it is.
    #[serde(rename = "OAUTHBEARER")]
    OauthBearer,
    /// By a proof, at a ZooKeeper.
    #[serde(rename = "DIGEST-MD5")]
    DigestMd5,
}

impl Mechanism {
    /// Kafka's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
            Self::OauthBearer => "OAUTHBEARER",
            Self::DigestMd5 => "DIGEST-MD5",
        }
    }
}

impl SaslConfig {
    /// A user with a password.
    #[must_use]
    pub fn with_password(mechanism: Mechanism, user: &str, password_file: PathBuf) -> Self {
        let (user, password_file) = (Some(user.to_owned()), Some(password_file));
        Self { mechanism, user, password_file, token_file: None, token_endpoint: None }
    }

    /// Who the agent is; with a token, by the endpoint's word or nobody's.
    #[must_use]
    pub fn user(&self) -> &str {
        let client = || self.token_endpoint.as_ref().map(|endpoint| endpoint.client_id.as_str());
        self.user.as_deref().or_else(client).unwrap_or_default()
    }

    /// The file with what must stay secret, by its key.
    #[must_use]
    pub fn secret_file(&self) -> Option<(&'static str, &Path)> {
        let endpoint = self.token_endpoint.as_ref().map(|endpoint| &endpoint.client_secret_file);
        let all = [
            (PASSWORD_FILE, self.password_file.as_ref()),
            (TOKEN_FILE, self.token_file.as_ref()),
            (CLIENT_SECRET_FILE, endpoint),
        ];
        all.into_iter().find_map(|(key, path)| Some((key, path?.as_path())))
    }

    /// Every file.
    pub(super) fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let ca =
            self.token_endpoint.as_ref().and_then(|endpoint| Some((ENDPOINT_CA, endpoint.ca.as_deref()?)));
        self.secret_file().into_iter().chain(ca)
    }

    /// Everything that is wrong with it, by key.
    pub(super) fn problems(&self) -> Vec<(&'static str, String)> {
        match self.mechanism {
            Mechanism::OauthBearer => self.problems_with_token(),
            _ => self.problems_with_password(),
        }
    }

    fn problems_with_password(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        match &self.user {
            None => problems.push(("sasl.user", "missing; give the name that the broker knows".to_owned())),
            Some(user) if user.trim().is_empty() => {
                problems.push(("sasl.user", "is empty; give the name that the broker knows".to_owned()));
            }
            Some(_) => {}
        }
        if self.password_file.is_none() {
            problems.push((PASSWORD_FILE, "missing; name the file with the user's password".to_owned()));
        }
        let of_tokens = [
            ("sasl.token_file", self.token_file.is_some()),
            ("sasl.token_endpoint", self.token_endpoint.is_some()),
        ];
        for (key, _) in of_tokens.into_iter().filter(|(_, given)| *given) {
            let why =
                format!("is for OAUTHBEARER, and the mechanism is {}; remove it", self.mechanism.name());
            problems.push((key, why));
        }
        problems
    }

    fn problems_with_token(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        let of_passwords =
            [("sasl.user", self.user.is_some()), (PASSWORD_FILE, self.password_file.is_some())];
        for (key, _) in of_passwords.into_iter().filter(|(_, given)| *given) {
            problems.push((
                key,
                "says nothing with OAUTHBEARER: the token says who the agent is; remove it".to_owned(),
            ));
        }
        match (&self.token_file, &self.token_endpoint) {
            (None, None) => problems.push((
                "sasl",
                "has no token; give token_file, or token_endpoint = { url = …, client_id = …, client_secret_file = … }"
                    .to_owned(),
            )),
            (Some(_), Some(_)) => {
                problems.push((TOKEN_FILE, "is given beside sasl.token_endpoint; remove one of them".to_owned()));
            }
            (None, Some(endpoint)) => problems.extend(endpoint.problems()),
            (Some(_), None) => {}
        }
        problems
    }
}

impl TokenEndpointConfig {
    fn problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if let Err(why) = self.url() {
            problems.push(("sasl.token_endpoint.url", why));
        }
        if self.client_id.trim().is_empty() {
            problems.push((
                "sasl.token_endpoint.client_id",
                "is empty; give the id that the provider knows".to_owned(),
            ));
        }
        problems
    }

    /// Where it is.
    ///
    /// # Errors
    /// Why that is no place to send a secret to.
    pub(super) fn url(&self) -> Result<reqwest::Url, String> {
        // Somebody may have written a login into it.
        let url =
            reqwest::Url::parse(&self.url).map_err(|why| format!("is not a URL ({why}); write https://…"))?;
        let here = match url.host() {
            Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
            Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
            Some(url::Host::Domain(name)) => name == "localhost",
            None => false,
        };
        match url.scheme() {
            _ if !url.username().is_empty() || url.password().is_some() => {
                Err("has a login in it; give client_id and client_secret_file instead".to_owned())
            }
            "https" => Ok(url),
            "http" if here => Ok(url),
            "http" => Err("is http://, and would send the secret unencrypted; write https://".to_owned()),
            other => Err(format!("begins with {other}:; write https://…")),
        }
    }
}

/// What a file with one secret in it holds. `place` names it, and `what` the secret.
pub(super) fn only_line(bytes: &[u8], place: &str, what: &str) -> Result<SecretString, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| format!("{place} is not text (UTF-8)"))?;
    let line = text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
    let secret = SecretString::from(line);
    // Nothing but the text of a token can be in its frame, and no password has a NUL.
    let unfit = |c: char| if what == "token" { c.is_control() || c.is_whitespace() } else { c == '\0' };
    if secret.expose_secret().is_empty() || secret.expose_secret().contains(unfit) {
        return Err(format!("{place} has no {what}; write it there, as the only line"));
    }
    Ok(secret)
}
