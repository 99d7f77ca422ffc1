//! With stores of Java's, as keytool makes them.

use fakes::stores::{
    AGENT_EXPIRED_P12, AGENT_JKS, AGENT_KEY, AGENT_LEGACY_P12, AGENT_P12, AGENT_RSA_P12, CA, KEY_PASSWORD,
    PASSWORD, TRUST_JKS, TRUST_P12, listener,
};

use super::*;
use crate::security::StoreConfig;

/// Each with the password of its key, where that is another one.
const KEYS: [(&[u8], Option<&str>); 4] =
    [(AGENT_P12, None), (AGENT_RSA_P12, None), (AGENT_LEGACY_P12, None), (AGENT_JKS, Some(KEY_PASSWORD))];

impl Site {
    fn store(&self, name: &str, bytes: &[u8], key_password: Option<&str>) -> StoreConfig {
        fs::write(self.path(name), bytes).unwrap();
        self.write("store.password", &format!("{PASSWORD}\n"));
        let key_password_file = key_password.map(|password| {
            self.write("key.password", password);
            self.path("key.password")
        });
        StoreConfig { file: self.path(name), password_file: self.path("store.password"), key_password_file }
    }

    /// One that trusts by this store, and shows the key in that one.
    fn storing(&self, trusts: &[u8], shows: Option<(&[u8], Option<&str>)>) -> Dialer {
        Dialer::secured(&self.stores(trusts, shows), SECTION)
    }

    fn stores(&self, trusts: &[u8], shows: Option<(&[u8], Option<&str>)>) -> SecurityConfig {
        let truststore = Some(self.store("trust", trusts, None));
        let keystore = shows.map(|(bytes, key_password)| self.store("own", bytes, key_password));
        SecurityConfig { ca: None, truststore, keystore, ..self.config() }
    }
}

/// A listener with a certificate of the stores' authority, which asks for one of that authority.
async fn strict() -> Fake {
    Fake::secured(listener().acceptor_for(Some(CA)), |_| None).await
}

#[tokio::test]
async fn every_store_of_keytool_is_shown_and_trusted_by_a_listener_that_is_strict() {
    let (site, broker) = (Site::new(), strict().await);
    for trusts in [TRUST_P12, TRUST_JKS] {
        for shows in KEYS {
            site.storing(trusts, Some(shows)).open(&broker.at, LIMIT).await.unwrap();
        }
        // It was the store that was shown.
        let said = untrusted(&site.storing(trusts, None), &broker.at).await;
        assert!(said.contains("asks for a certificate of ours"), "{said}");
    }
}

#[tokio::test]
async fn a_key_in_pem_that_came_out_of_a_store_of_java_is_shown() {
    let (site, broker) = (Site::new(), strict().await);
    let shows = site.stores(TRUST_P12, Some(KEYS[0])).stores_as_pem(SECTION).unwrap();
    let own = Issued { pem: shows.certificate.unwrap(), key: AGENT_KEY.to_owned() };
    site.write("ca.pem", CA);
    site.known_dialer(&own).open(&broker.at, LIMIT).await.unwrap();
}

#[tokio::test]
async fn what_is_refused_of_a_store_is_told_with_its_name() {
    let site = Site::new();
    let said = untrusted(&site.storing(TRUST_P12, Some((AGENT_EXPIRED_P12, None))), &strict().await.at).await;
    let own = site.path("own").display().to_string();
    for part in ["refused our certificate", own.as_str(), "Expired", "renew it"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }

    let other = broker(&Authority::new("other").issue(&["127.0.0.1"]), None).await;
    let said = untrusted(&site.storing(TRUST_P12, None), &other.at).await;
    let (file, key) = (site.path("trust").display().to_string(), "cluster.security.truststore.file");
    assert!(said.contains("no authority in") && said.contains(&file) && said.contains(key), "{said}");
}
