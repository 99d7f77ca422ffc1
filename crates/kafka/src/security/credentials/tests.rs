//! What is told of a store that is of no use.

use std::fs;

use fakes::stores::{AGENT_JKS as JKS, AGENT_P12 as KEY, TRUST_P12 as TRUST};

use super::*;
use crate::security::{Protocol, StoreConfig};

/// What is wrong with these as truststore and keystore, opened with `password`.
fn wrong(trusts: &[u8], shows: &[u8], password: &str) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        fs::write(dir.path().join(name), bytes).unwrap();
        dir.path().join(name)
    };
    let password_file = file("password", password.as_bytes());
    let store = |name: &str, bytes: &[u8]| StoreConfig {
        file: file(name, bytes),
        password_file: password_file.clone(),
        key_password_file: None,
    };
    let config = SecurityConfig {
        protocol: Protocol::Ssl,
        ca: None,
        certificate: None,
        key: None,
        truststore: Some(store("trust", trusts)),
        keystore: Some(store("own", shows)),
        sasl: None,
    };
    let found = look(&config, "cluster.security", None).err();
    found.map(|why| why.replace(&format!("{}/", dir.path().display()), ""))
}

#[test]
fn a_store_that_is_of_no_use_is_told_in_one_sentence() {
    assert_eq!(wrong(TRUST, KEY, "store-password\n"), None);
    let told = [
        (
            wrong(TRUST, KEY, "guessed"),
            "cluster.security.truststore.file: trust does not open with the password in \
             cluster.security.truststore.password_file: password: write the one there that `keytool -list` takes",
        ),
        (
            wrong(KEY, KEY, "store-password"),
            "cluster.security.truststore.file: trust has no certificate that is trusted (`keytool -list` shows what \
             it has)",
        ),
        (
            wrong(TRUST, TRUST, "store-password"),
            "cluster.security.keystore.file: own has no key with a certificate (`keytool -list` shows what it has)",
        ),
        (
            wrong(TRUST, JKS, "store-password"),
            "cluster.security.keystore.file: own has a key that does not open with the password in \
             cluster.security.keystore.password_file: password: write the key's own into a file, and name that as \
             key_password_file",
        ),
        (
            wrong(&TRUST[..TRUST.len() - 9], KEY, "store-password"),
            "cluster.security.truststore.file: trust is damaged, or was written half: make it anew",
        ),
        (
            wrong(b"-----BEGIN", KEY, "store-password"),
            "cluster.security.truststore.file: trust is neither PKCS12 nor JKS: `keytool -importkeystore \
             -deststoretype pkcs12` makes one of others",
        ),
    ];
    for (told, expected) in told {
        assert_eq!(told.as_deref(), Some(expected));
    }
}
