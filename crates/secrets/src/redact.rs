//! Keeps secrets out of what others say: a server, or a program, may repeat what it was told.

use std::fmt::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

/// What stands in a secret's place.
const HIDDEN: &str = "***";

/// Secrets that may be repeated to us, in every form in which they may come back.
#[derive(Debug, Clone, Default)]
pub struct Secrets(Arc<[SecretString]>);

impl Secrets {
    /// Knows each of `secrets` as it is, in JSON, in a URL and in base64. One that is empty is none.
    #[must_use]
    pub fn of<'s>(secrets: impl IntoIterator<Item = &'s str>) -> Self {
        let mut forms: Vec<String> =
            secrets.into_iter().filter(|secret| !secret.is_empty()).flat_map(forms).collect();
        // A secret which contains another is replaced whole.
        forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
        forms.dedup();
        Self(forms.into_iter().map(SecretString::from).collect())
    }

    /// `said` with `***` in the place of every secret.
    #[must_use]
    pub fn redact(&self, said: &str) -> String {
        self.0.iter().fold(said.to_owned(), |said, secret| said.replace(secret.expose_secret(), HIDDEN))
    }

    /// The same for what an answer says for people: its errors and messages. Names and values stay as they
    /// are, for they are acted on.
    pub fn redact_answer(&self, answer: &mut Value) {
        match answer {
            Value::Array(all) => all.iter_mut().for_each(|value| self.redact_answer(value)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    match name.as_str() {
                        "error" | "errors" | "message" => self.redact_all(value),
                        _ => self.redact_answer(value),
                    }
                }
            }
            _ => {}
        }
    }

    fn redact_all(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.redact(text),
            Value::Array(all) => all.iter_mut().for_each(|value| self.redact_all(value)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.redact_all(value)),
            _ => {}
        }
    }
}

fn forms(secret: &str) -> [String; 5] {
    let in_json = Value::from(secret).to_string();
    let in_json = in_json[1..in_json.len() - 1].to_owned();
    let mut in_url = String::new();
    for byte in secret.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' => in_url.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => in_url.push(char::from(byte)),
            // Writing to a String cannot fail.
            byte => drop(write!(in_url, "%{byte:02X}")),
        }
    }
    [secret.to_owned(), in_json, in_url, STANDARD.encode(secret), URL_SAFE.encode(secret)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_is_hidden_in_every_form_in_which_it_may_come_back() {
        let secrets = Secrets::of(["p\"ss w?rd", "admin:p\"ss w?rd", ""]);
        for said in [
            "p\"ss w?rd",
            "p\\\"ss w?rd",
            "p%22ss%20w%3Frd",
            "cCJzcyB3P3Jk",
            "YWRtaW46cCJzcyB3P3Jk",
            "admin:p\"ss w?rd",
        ] {
            assert_eq!(secrets.redact(&format!("login {said} failed")), "login *** failed");
        }
        assert_eq!(Secrets::default().redact("as it is"), "as it is");
        assert!(!format!("{secrets:?}").contains("rd"), "{secrets:?}");
    }

    #[test]
    fn only_what_is_for_people_is_changed() {
        let mut answer = json!({
            "name": "nfs", "records": [{ "name": "nfs", "message": "no nfs here" }],
            "error": { "message": "nfs", "arguments": [{ "message": "x nfs" }], "target": "nfs" }
        });
        Secrets::of(["nfs"]).redact_answer(&mut answer);
        let expected = json!({
            "name": "nfs", "records": [{ "name": "nfs", "message": "no *** here" }],
            "error": { "message": "***", "arguments": [{ "message": "x ***" }], "target": "***" }
        });
        assert_eq!(answer, expected);
    }
}
