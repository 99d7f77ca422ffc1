//! How the ledger's cluster is secured, in librdkafka's words.

use std::collections::BTreeMap;

use rdkafka::config::ClientConfig;
use secrecy::ExposeSecret;

use super::book::unavailable;
use crate::fence::{OptionValue, resolve};
use kafka::security::SecurityConfig;
use recovery::ports::LedgerError;

/// Where it stands, for messages.
const SECTION: &str = "ledger.security";

/// Everything that is wrong with the section, or with `properties` beside it, as `key: reason`.
pub(super) fn problems(config: &SecurityConfig, properties: &BTreeMap<String, OptionValue>) -> Vec<String> {
    let is_said_here = |name: &&String| {
        let name = name.as_str();
        name == "security.protocol" || name.starts_with("sasl.") || name.starts_with("ssl.")
    };
    let twice = properties.keys().filter(is_said_here).map(|name| {
        format!("properties.{name}: [{SECTION}] says how listeners are secured; remove one of them")
    });
    let own = config.problems(SECTION);
    // Keys are named within the ledger's own section.
    let own = own.into_iter().map(|problem| problem.trim_start_matches("ledger.").to_owned());
    twice.chain(own).collect()
}

/// Has a client connect like this. The password is read now, the other files by the client when it is made.
pub(super) async fn apply(config: &SecurityConfig, settings: &mut ClientConfig) -> Result<(), LedgerError> {
    settings.set("security.protocol", config.protocol.to_string().to_lowercase());
    let files = [
        ("ssl.ca.location", &config.ca),
        ("ssl.certificate.location", &config.certificate),
        ("ssl.key.location", &config.key),
    ];
    for (name, file) in files {
        if let Some(file) = file {
            settings.set(name, file.display().to_string());
        }
    }
    if let Some(sasl) = &config.sasl {
        let password = OptionValue::File { file: sasl.password_file.clone() };
        let password = resolve("sasl.password", &password).await;
        let password = password.map_err(|error| unavailable("make a Kafka client", error))?;
        settings.set("sasl.mechanisms", sasl.mechanism.name());
        settings.set("sasl.username", &sasl.user);
        settings.set("sasl.password", password.expose_secret());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_setting_has_its_word() {
        let password = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(password.path(), "hunter2\n").unwrap();
        let text = format!(
            "protocol = \"SASL_SSL\"\nca = \"/ca.pem\"\ncertificate = \"/own.pem\"\nkey = \"/own.key\"\n\
             sasl = {{ mechanism = \"SCRAM-SHA-256\", user = \"u\", password_file = {:?} }}",
            password.path()
        );
        let mut settings = ClientConfig::new();
        apply(&toml::from_str(&text).unwrap(), &mut settings).await.unwrap();
        let expected = [
            ("security.protocol", "sasl_ssl"),
            ("ssl.ca.location", "/ca.pem"),
            ("ssl.certificate.location", "/own.pem"),
            ("ssl.key.location", "/own.key"),
            ("sasl.mechanisms", "SCRAM-SHA-256"),
            ("sasl.username", "u"),
            ("sasl.password", "hunter2"),
        ];
        for (name, value) in expected {
            assert_eq!(settings.get(name), Some(value), "{name}");
        }
    }
}
