//! The options a fence device is called with, and the secrets among them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use secrets::{NoCredential, Secrets, credential};
use serde::Deserialize;

use crate::off_path::{OffPathError, off_path};
use recovery::ports::BoxError;
use secrets::{in_words, names_a_secret};

/// How long reading a secret's file may take.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Options of published fence agents with which an answer is no reading: `missing_as_off` calls a plug off that the
/// device does not know, `record_only` writes down what is to be fenced. By their names with underscores.
const PRETENDS: [&str; 2] = ["missing_as_off", "record_only"];

fn is_no(text: &str) -> bool {
    matches!(text.trim().to_ascii_lowercase().as_str(), "0" | "no" | "off" | "false")
}

/// The value of an option.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "expected a text, { file = \"…\" }, { env = \"…\" } or { credential = \"…\" }"
)]
pub enum OptionValue {
    /// The value itself.
    Plain(String),
    /// A secret in a file, read anew for every call. One newline at its end is not part of it.
    File {
        /// The file's path.
        file: PathBuf,
    },
    /// A secret in the agent's environment.
    Env {
        /// The variable's name.
        env: String,
    },
    /// A secret that systemd hands to the agent's unit (`LoadCredential=`), read as a file.
    Credential {
        /// The credential's name.
        credential: String,
    },
}

impl OptionValue {
    /// The value itself; a secret is read anew. `name` is for the error.
    ///
    /// # Errors
    /// In words: why there is none.
    pub async fn read(&self, name: &str) -> Result<SecretString, String> {
        resolve(name, self).await.map_err(|error| recovery::ports::chain(&error))
    }
}

// By hand, because a plain value may be a password too.
impl fmt::Debug for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(_) => f.write_str("\"…\""),
            Self::File { file } => write!(f, "{{ file = {} }}", file.display()),
            Self::Env { env } => write!(f, "{{ env = {env} }}"),
            Self::Credential { credential } => write!(f, "{{ credential = {credential} }}"),
        }
    }
}

/// Why an option has no value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OptionError {
    #[error("option {option}: {file} could not be read")]
    Unreadable { option: String, file: PathBuf, source: BoxError },
    #[error("option {option}: the environment variable {env} is not set, or is not text")]
    NotSet { option: String, env: String },
    #[error("option {option}: {why}")]
    NoCredential { option: String, why: NoCredential },
    #[error("option {option} has a line break in its value, which a fence agent cannot be told")]
    LineBreak { option: String },
}

/// Everything that is wrong with the names of `options`, as `key: what is wrong`.
pub(super) fn problems(options: &BTreeMap<String, OptionValue>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, value) in options {
        let says = |value: &OptionValue| !matches!(value, OptionValue::Plain(text) if is_no(text));
        if PRETENDS.contains(&name.replace('-', "_").as_str()) && says(value) {
            problems.push(format!(
                "options.{name}: with it the device answers off for what it has not read or done; remove it, or set \
                 it to \"0\""
            ));
        } else if matches!(name.as_str(), "action" | "option") {
            problems.push(format!("options.{name}: the action is chosen by understudy; remove it"));
        } else if name.is_empty()
            || name.starts_with('#')
            || name.contains(|c: char| c == '=' || c.is_whitespace())
        {
            problems
                .push(format!("options.{name}: an option's name has no spaces, no `=` and no leading `#`"));
        }
        if matches!(value, OptionValue::Plain(text) if text.contains(['\n', '\r'])) {
            problems.push(format!("options.{name}: a line break cannot be told to a fence agent"));
        }
    }
    problems
}

/// What a device is told on its standard input, and how to keep the secrets in it out of sight.
pub(super) struct Input {
    text: SecretString,
    secrets: Secrets,
}

impl Input {
    /// Reads the secrets and writes down one `key=value` line for each option. The program is called with
    /// `arguments`, which may hold secrets as well.
    pub(super) async fn of(
        action: &str,
        options: &BTreeMap<String, OptionValue>,
        further: &[(&str, String)],
        arguments: &[String],
    ) -> Result<Self, OptionError> {
        let mut text = format!("action={action}\n");
        for (name, value) in further {
            text.push_str(&format!("{name}={value}\n"));
        }
        let mut secrets: Vec<SecretString> = Vec::new();
        for (name, value) in options {
            let resolved = resolve(name, value).await?;
            let exposed = resolved.expose_secret();
            if exposed.contains(['\n', '\r']) {
                return Err(OptionError::LineBreak { option: name.clone() });
            }
            text.push_str(&format!("{name}={exposed}\n"));
            if is_secret(name, value) {
                secrets.push(resolved);
            }
        }
        let exposed = secrets.iter().map(|secret| secret.expose_secret());
        let secrets = Secrets::of(exposed.chain(in_words(arguments.iter().map(String::as_str))));
        Ok(Self { text: text.into(), secrets })
    }

    /// The lines.
    pub(super) fn bytes(&self) -> &[u8] {
        self.text.expose_secret().as_bytes()
    }

    /// `said` without any secret in it.
    pub(super) fn redact(&self, said: &str) -> String {
        self.secrets.redact(said)
    }
}

/// The value itself; a secret is read anew. `name` is for the error.
pub(crate) async fn resolve(name: &str, value: &OptionValue) -> Result<SecretString, OptionError> {
    match value {
        OptionValue::Plain(text) => Ok(text.clone().into()),
        OptionValue::Env { env } => std::env::var(env)
            .map(SecretString::from)
            .map_err(|_| OptionError::NotSet { option: name.to_owned(), env: env.clone() }),
        OptionValue::File { file } => read(name, file).await,
        OptionValue::Credential { credential: of } => {
            let found = credential(of);
            let file = found.map_err(|why| OptionError::NoCredential { option: name.to_owned(), why })?;
            read(name, &file).await
        }
    }
}

async fn read(name: &str, file: &Path) -> Result<SecretString, OptionError> {
    let unreadable =
        |source| OptionError::Unreadable { option: name.to_owned(), file: file.to_owned(), source };
    let path = file.to_owned();
    let what = format!("reading {}", file.display());
    let read = off_path(&what, READ_LIMIT, move || fs::read_to_string(path)).await;
    let text = read.map_err(|e: OffPathError| unreadable(e.into()))?.map_err(|e| unreadable(e.into()))?;
    let line = text.strip_suffix('\n').map_or(text.as_str(), |t| t.strip_suffix('\r').unwrap_or(t));
    Ok(line.to_owned().into())
}

/// What comes from a file or the environment is secret, and so is what its name says is.
fn is_secret(name: &str, value: &OptionValue) -> bool {
    !matches!(value, OptionValue::Plain(_)) || names_a_secret(name)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn options(text: &str) -> BTreeMap<String, OptionValue> {
        toml::from_str(text).unwrap()
    }

    #[tokio::test]
    async fn a_secret_is_told_to_the_device_and_to_nobody_else() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"s3cret=word\n").unwrap();
        let text = format!(
            "ip = \"10.0.0.1\"\npasswd = \"pl4in\"\npassword.file = {:?}\nhome.env = \"HOME\"",
            file.path()
        );
        let options = options(&text);
        let input = Input::of("off", &options, &[], &[]).await.unwrap();
        let home = std::env::var("HOME").unwrap();
        let told = format!("action=off\nhome={home}\nip=10.0.0.1\npasswd=pl4in\npassword=s3cret=word\n");
        assert_eq!(std::str::from_utf8(input.bytes()).unwrap(), told);
        let said = format!("login 10.0.0.1 with s3cret=word or pl4in at {home}");
        assert_eq!(input.redact(&said), "login 10.0.0.1 with *** or *** at ***");
        let debug = format!("{options:?}");
        assert!(!debug.contains("pl4in") && debug.contains("env = HOME"), "{debug}");
    }

    #[tokio::test]
    async fn what_is_missing_is_named() {
        let e = Input::of("off", &options("p.file = \"/nonexistent/p\""), &[], &[]).await.err().unwrap();
        assert_eq!(e.to_string(), "option p: /nonexistent/p could not be read");
        let e = Input::of("off", &options("p.env = \"UNDERSTUDY_NOT_SET\""), &[], &[]).await.err().unwrap();
        assert!(e.to_string().contains("UNDERSTUDY_NOT_SET is not set"), "{e}");
        let e = Input::of("off", &options("p.credential = \"fence\""), &[], &[]).await.err().unwrap();
        assert!(e.to_string().contains("add `LoadCredential=fence:/path/of/the/secret`"), "{e}");
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"one\naction=on\n").unwrap();
        let e =
            Input::of("off", &options(&format!("p.file = {:?}", file.path())), &[], &[]).await.err().unwrap();
        assert!(e.to_string().contains("line break"), "{e}");
    }

    #[test]
    fn bad_options_are_reported_together() {
        let found =
            problems(&options("action = \"on\"\n\"a b\" = \"1\"\nok = \"1\"\ntwo = \"a\\naction=on\""));
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn an_option_that_answers_for_the_device_is_refused() {
        for text in ["missing_as_off = \"1\"", "missing-as-off = \"true\"", "record_only = \"\""] {
            let found = problems(&options(text));
            assert!(found.len() == 1 && found[0].contains("has not read"), "{text}: {found:?}");
        }
        assert!(problems(&options("missing_as_off = \"0\"")).is_empty());
    }

    #[test]
    fn a_value_of_another_shape_is_refused_with_what_is_expected() {
        let error = toml::from_str::<BTreeMap<String, OptionValue>>("p = { fil = \"/x\" }").unwrap_err();
        assert!(error.to_string().contains("{ file = \"…\" }"), "{error}");
    }
}
