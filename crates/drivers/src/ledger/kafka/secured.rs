//! How the ledger's cluster is secured, in librdkafka's words.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use secrecy::ExposeSecret;

use super::book::unavailable;
use crate::fence::{OptionValue, resolve};
use crate::off_path::off_path;
use kafka::security::{Mechanism, Pem, SecurityConfig};
use recovery::ports::{BoxError, LedgerError};

/// Where it stands, for messages.
const SECTION: &str = "ledger.security";

/// librdkafka asks for tokens where it is polled, and its client for administration never is.
const NO_TOKENS: &str = "OAUTHBEARER is not for the ledger's own client; give it a listener with another login or with \
                         a client certificate, or keep the ledger elsewhere";

/// How long reading the stores may take.
const READ_LIMIT: Duration = Duration::from_secs(5);

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
    let bears = config.sasl.as_ref().filter(|sasl| sasl.mechanism == Mechanism::OauthBearer);
    let bears = bears.map(|_| format!("security.sasl.mechanism: {NO_TOKENS}"));
    twice.chain(own).chain(bears).collect()
}

/// Has a client connect like this. The password and the stores are read now, the files in PEM by the client when it
/// is made.
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
    if config.truststore.is_some() || config.keystore.is_some() {
        let failed = |why: BoxError| unavailable("make a Kafka client", why);
        let stores = config.clone();
        let read =
            off_path("reading the stores of the ledger", READ_LIMIT, move || stores.stores_as_pem(SECTION));
        let Pem { ca, certificate, key } =
            read.await.map_err(|error| failed(error.into()))?.map_err(|why| failed(why.into()))?;
        let key = key.as_ref().map(ExposeSecret::expose_secret);
        let all = [
            ("ssl.ca.pem", ca.as_deref()),
            ("ssl.certificate.pem", certificate.as_deref()),
            ("ssl.key.pem", key),
        ];
        for (name, text) in all.into_iter().filter_map(|(name, text)| Some((name, text?))) {
            settings.set(name, text);
        }
    }
    if let Some(sasl) = &config.sasl {
        let (_, file) = sasl.secret_file().ok_or_else(|| unavailable("make a Kafka client", NO_TOKENS))?;
        let password = OptionValue::File { file: file.to_owned() };
        let password = resolve("sasl.password", &password).await;
        let password = password.map_err(|error| unavailable("make a Kafka client", error))?;
        settings.set("sasl.mechanisms", sasl.mechanism.name());
        settings.set("sasl.username", sasl.user());
        settings.set("sasl.password", password.expose_secret());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fakes::kafka::Fake;
    use fakes::stores;
    use kafka_protocol::messages::ApiKey;
    use rdkafka::consumer::BaseConsumer;
    use recovery::ports::chain;

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

    /// By what the listener says: it lets nobody in whose certificate it does not know.
    #[tokio::test]
    async fn a_client_shows_and_trusts_what_stores_of_java_hold() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| {
            std::fs::write(dir.path().join(name), bytes).unwrap();
            dir.path().join(name)
        };
        let password = put("password", stores::PASSWORD.as_bytes());
        let key_password = put("key-password", stores::KEY_PASSWORD.as_bytes());
        let truststore = put("trust.p12", stores::TRUST_P12);
        for (name, bytes) in [("a.p12", stores::AGENT_P12), ("a.jks", stores::AGENT_JKS)] {
            let broker = Fake::secured(stores::listener().acceptor_for(Some(stores::CA)), |_| None).await;
            let text = format!(
                "protocol = \"SSL\"\ntruststore = {{ file = {truststore:?}, password_file = {password:?} }}\n\
                 keystore = {{ file = {:?}, password_file = {password:?}, key_password_file = {key_password:?} }}",
                put(name, bytes)
            );
            let mut settings = ClientConfig::new();
            apply(&toml::from_str(&text).unwrap(), &mut settings).await.unwrap();
            settings.set("bootstrap.servers", broker.at.to_string());
            let client: BaseConsumer = settings.create().unwrap();
            tokio::time::timeout(READ_LIMIT, async {
                while broker.calls(ApiKey::ApiVersions) == 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await
            .unwrap_or_else(|_| panic!("no client gets in with {name}"));
            drop(client);
        }
    }

    #[tokio::test]
    async fn a_store_that_does_not_open_is_named_with_the_file_of_its_password() {
        let dir = tempfile::tempdir().unwrap();
        let (store, password) = (dir.path().join("own.p12"), dir.path().join("password"));
        std::fs::write(&store, stores::AGENT_P12).unwrap();
        std::fs::write(&password, "guessed").unwrap();
        let text =
            format!("protocol = \"SSL\"\nkeystore = {{ file = {store:?}, password_file = {password:?} }}");
        let error = apply(&toml::from_str(&text).unwrap(), &mut ClientConfig::new()).await.unwrap_err();
        let said = chain(&error);
        let expected =
            format!("ledger.security.keystore.file: {} does not open with the password in", store.display());
        assert!(said.contains(&expected) && !said.contains("guessed"), "{said}");
    }
}
