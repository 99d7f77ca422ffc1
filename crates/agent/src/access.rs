//! Who may read the agent's pages over TLS, and who may give orders there: by a token, or by a name in a certificate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use drivers::fence::OptionValue;
use drivers::tls::is_dns_name;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

/// A shorter token is guessed sooner than it is sent.
const SHORTEST_TOKEN: usize = 16;

/// What somebody may do. Each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Read every page.
    Viewer,
    /// Give orders: pause, resume, ack, approve, switchover.
    Operator,
    /// Have the configuration read anew.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        })
    }
}

/// Somebody who may ask over the network. It takes `[agent.tls]`: nothing is granted on a connection without TLS.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessConfig {
    /// Who it is. Orders stand in the ledger as given by this name.
    pub name: String,
    /// `viewer` reads every page; `operator` also gives orders (pause, resume, ack, approve, switchover); `admin` also
    /// has the configuration read anew.
    pub role: Role,
    /// The secret that is sent as `Authorization: Bearer …`, of 16 characters at least: `{ file = "…" }`,
    /// `{ env = "…" }` or `{ credential = "…" }`. Either this or `certificate`. Who shows a certificate is known
    /// by that alone.
    pub token: Option<OptionValue>,
    /// A DNS name in the certificate of `agent.tls.ca` that is shown, whole: a wildcard there grants nothing. The
    /// certificate is one for `clientAuth`. Where the names of one certificate stand in several sections, the highest
    /// role counts. Who shows one that is named nowhere, as the agents among themselves, is a viewer.
    pub certificate: Option<String>,
}

impl AccessConfig {
    fn problem(&self) -> Option<&'static str> {
        Some(match (&self.token, &self.certificate) {
            _ if !is_a_name(&self.name) => {
                "name: an order is written down by it; use letters, digits and `.`, `_`, `-` or `@`"
            }
            (None, None) => "has neither a token nor a certificate by which this is known",
            (Some(_), Some(_)) => {
                "has a token and a certificate; write a section for each, with a name of its own"
            }
            (Some(OptionValue::Plain(_)), None) => {
                "token: it is a secret; write { file = \"…\" }, { env = \"…\" } or { credential = \"…\" }"
            }
            (None, Some(name)) if !is_dns_name(name) => {
                "certificate: is no DNS name; write one such as `ada.example.com`, as it stands in the certificate"
            }
            _ => return None,
        })
    }
}

fn is_a_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    !text.is_empty() && text.chars().all(fits)
}

/// What is wrong with these sections, each with the index of one: `key: what is wrong`.
pub(crate) fn problems(all: &[AccessConfig]) -> BTreeMap<usize, String> {
    let (mut names, mut certificates) = (BTreeSet::new(), BTreeSet::new());
    let mut found = BTreeMap::new();
    for (i, access) in all.iter().enumerate() {
        let mut problem = access.problem().map(str::to_owned);
        if !names.insert(access.name.to_lowercase()) {
            problem = Some("name: another [[agent.access]] has it".to_owned());
        }
        let certificate = access.certificate.as_ref();
        if certificate.is_some_and(|name| !certificates.insert(name.to_lowercase())) {
            problem = Some("certificate: another [[agent.access]] has it".to_owned());
        }
        problem.into_iter().for_each(|problem| drop(found.insert(i, problem)));
    }
    found
}

/// Somebody who has shown who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// By the configuration.
    pub name: String,
    /// What they may do.
    pub role: Role,
    by: &'static str,
}

#[cfg(test)]
impl Caller {
    /// By a token.
    pub(crate) fn of(name: &str, role: Role) -> Self {
        Self { name: name.to_owned(), role, by: "token" }
    }
}

impl fmt::Display for Caller {
    /// As in `ada (operator by certificate)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} by {})", self.name, self.role, self.by)
    }
}

/// Everybody who may ask over the network.
#[derive(Debug, Clone, Default)]
pub struct AccessList(Arc<[AccessConfig]>);

impl AccessList {
    /// By these sections.
    #[must_use]
    pub fn new(all: &[AccessConfig]) -> Self {
        Self(all.into())
    }

    /// Who shows a certificate of the agents' authority with these DNS names. Where two sections name one of them,
    /// the higher role counts.
    #[must_use]
    pub fn by_certificate(&self, names: &[String]) -> Caller {
        let shown = |access: &&AccessConfig| {
            let named = access.certificate.as_deref();
            named.is_some_and(|named| names.iter().any(|name| name.eq_ignore_ascii_case(named)))
        };
        match self.0.iter().filter(shown).max_by_key(|access| access.role) {
            Some(AccessConfig { name, role, .. }) => {
                Caller { name: name.clone(), role: *role, by: "certificate" }
            }
            None => {
                let name =
                    names.first().map_or("somebody without a DNS name in it", String::as_str).to_owned();
                Caller { name, role: Role::Viewer, by: "certificate" }
            }
        }
    }

    /// Who has sent this token. Where two have the same, the lower role counts.
    pub async fn by_token(&self, sent: &str) -> Option<Caller> {
        let mut found: Option<Caller> = None;
        for AccessConfig { name, role, token, .. } in self.0.iter() {
            let Some(Ok(token)) = read(name, token.as_ref()).await else { continue };
            let is_it = same(token.expose_secret().as_bytes(), sent.as_bytes());
            if is_it && found.as_ref().is_none_or(|other| *role < other.role) {
                found = Some(Caller { name: name.clone(), role: *role, by: "token" });
            }
        }
        found
    }

    /// Reads the tokens, for `check`. Returns, in words, which is of no use, and why.
    pub async fn look(&self) -> Vec<String> {
        let (mut known, mut found): (Vec<(&str, SecretString)>, _) = (Vec::new(), Vec::new());
        for AccessConfig { name, token, .. } in self.0.iter() {
            let token = match read(name, token.as_ref()).await {
                None => continue,
                Some(Ok(token)) => token,
                Some(Err(why)) => {
                    found.push(why);
                    continue;
                }
            };
            let equal = known.iter().find(|(_, other)| other.expose_secret() == token.expose_secret());
            if let Some((other, _)) = equal {
                found.push(format!(
                    "agent.access: {name} has the token of {other}, and nothing tells them apart"
                ));
            }
            known.push((name, token));
        }
        found
    }
}

/// The token of `name`, if it has one. It is read anew for every use.
async fn read(name: &str, token: Option<&OptionValue>) -> Option<Result<SecretString, String>> {
    let token = token?.read(&format!("agent.access token of {name}")).await;
    Some(match token {
        Ok(token) if token.expose_secret().len() < SHORTEST_TOKEN => Err(format!(
            "agent.access: the token of {name} is shorter than {SHORTEST_TOKEN} characters, and would be guessed: make \
             one with `openssl rand -hex 32`"
        )),
        Ok(token) if !token.expose_secret().bytes().all(|byte| byte.is_ascii_graphic()) => Err(format!(
            "agent.access: the token of {name} has a space, a line break or a letter that no header takes, so nobody \
             can send it: make one with `openssl rand -hex 32`"
        )),
        read => read,
    })
}

/// Compares in a time that does not depend on where the two differ.
fn same(one: &[u8], other: &[u8]) -> bool {
    let differ = one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b));
    one.len() == other.len() && differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<AccessConfig> {
        #[derive(Deserialize)]
        struct File {
            access: Vec<AccessConfig>,
        }
        toml::from_str::<File>(text).unwrap().access
    }

    fn certificate(name: &str, role: &str, certificate: &str) -> String {
        format!("[[access]]\nname = {name:?}\nrole = {role:?}\ncertificate = {certificate:?}\n")
    }

    #[test]
    fn a_certificate_is_known_by_each_of_its_names_and_by_no_pattern() {
        let text = certificate("ada", "operator", "ada.example.com") + &certificate("ops", "admin", "ops");
        let list = AccessList::new(&list(&text));
        let who = |names: &[&str]| {
            list.by_certificate(&names.iter().map(ToString::to_string).collect::<Vec<_>>()).to_string()
        };
        assert_eq!(who(&["x", "ADA.example.com"]), "ada (operator by certificate)");
        assert_eq!(who(&["ada.example.com", "ops"]), "ops (admin by certificate)");
        assert_eq!(who(&["*.example.com"]), "*.example.com (viewer by certificate)");
        assert_eq!(who(&[]), "somebody without a DNS name in it (viewer by certificate)");
    }

    #[tokio::test]
    async fn a_token_is_known_whole_and_is_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let token = |name: &str| {
            let path = path.display().to_string();
            format!("[[access]]\nname = {name:?}\nrole = \"viewer\"\ntoken = {{ file = {path:?} }}\n")
        };
        let one = AccessList::new(&list(&token("scraper")));
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        assert_eq!(one.look().await, Vec::<String>::new());
        let known = one.by_token("0123456789abcdef").await.unwrap();
        assert_eq!(known.to_string(), "scraper (viewer by token)");
        for wrong in ["", "0123456789abcdeF", "0123456789abcde", "0123456789abcdef0"] {
            assert_eq!(one.by_token(wrong).await, None, "{wrong}");
        }
        let admin = token("other").replace("viewer", "admin");
        for text in [token("scraper") + &admin, admin.clone() + &token("scraper")] {
            let twice = AccessList::new(&list(&text));
            assert!(twice.look().await[0].contains("has the token of"));
            assert_eq!(
                twice.by_token("0123456789abcdef").await.unwrap().role,
                Role::Viewer,
                "the lower role"
            );
        }
        std::fs::write(&path, "0123456789abcdef\n0123456789abcdef\n").unwrap();
        assert!(one.look().await[0].contains("nobody can send it"));
        std::fs::write(&path, "short").unwrap();
        let why = one.look().await.remove(0);
        assert!(why.contains("scraper is shorter than 16 characters"), "{why}");
        assert_eq!(one.by_token("short").await, None);
    }

    #[test]
    fn a_section_says_who_and_by_one_thing_how() {
        let name = |more: &str| format!("[[access]]\nname = \"ada\"\nrole = \"viewer\"\n{more}");
        let token = "token = { env = \"T\" }\n";
        for (text, expected) in [
            (name(""), "neither a token nor"),
            (name(token) + "certificate = \"ada\"", "a section for each"),
            (name("token = \"in the file\""), "it is a secret"),
            (name("certificate = \"*.example.com\""), "no DNS name"),
            (name("certificate = \"10.0.0.9\""), "no DNS name"),
            (name("certificate = \"ada.example.com.\""), "no DNS name"),
            (name(token).replace("ada", "ada\\nroot"), "use letters"),
            (name(token) + &name("certificate = \"ada\""), "another [[agent.access]] has it"),
            (certificate("a", "admin", "x") + &certificate("b", "viewer", "X"), "certificate: another"),
        ] {
            let found = problems(&list(&text));
            assert!(
                found.len() == 1 && found.values().all(|why| why.contains(expected)),
                "{text}: {found:?}"
            );
            assert!(!found.values().any(|why| why.contains("in the file")), "{found:?}");
        }
        assert!(problems(&list(&name(token))).is_empty());
    }
}
