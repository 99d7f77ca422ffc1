use fakes::stores::{AGENT_JKS, AGENT_LEGACY_P12, AGENT_P12, KEY_PASSWORD, PASSWORD, TRUST_JKS, TRUST_P12};

use super::*;

fn key(bytes: &[u8]) -> Key {
    read(bytes, PASSWORD, Some(KEY_PASSWORD)).unwrap().key.unwrap()
}

#[test]
fn every_kind_of_store_has_the_same_key() {
    let of_jks = key(AGENT_JKS);
    assert_eq!(of_jks.chain.len(), 2);
    for other in [AGENT_P12, AGENT_LEGACY_P12] {
        assert!(key(other) == of_jks);
    }
    assert!(read(AGENT_P12, PASSWORD, None).unwrap().trusted.is_empty());
}

#[test]
fn every_kind_of_store_trusts_the_same() {
    let authority = &key(AGENT_JKS).chain[1..];
    for store in [TRUST_JKS, TRUST_P12] {
        let read = read(store, PASSWORD, None).unwrap();
        assert_eq!(read.trusted, authority);
        assert!(read.key.is_none());
    }
}

#[test]
fn a_wrong_password_is_told_as_that() {
    for store in [AGENT_JKS, AGENT_P12, AGENT_LEGACY_P12, TRUST_JKS, TRUST_P12] {
        assert_eq!(read(store, "guessed", None).unwrap_err(), Unreadable::Password);
    }
    // The store opens, and its key does not: by default it has the store's password.
    let store = read(AGENT_JKS, PASSWORD, None).unwrap();
    assert!(store.key.unwrap().key == Err(Unreadable::KeyPassword));
    // Whoever looks only at certificates needs no password of the key.
    assert_eq!(certificates(AGENT_JKS, b"store-password\n", false).unwrap().len(), 2);
}

#[test]
fn what_is_no_store_or_was_cut_short_is_refused() {
    assert_eq!(read(b"-----BEGIN CERTIFICATE-----", PASSWORD, None).unwrap_err(), Unreadable::Foreign);
    assert_eq!(read(b"", PASSWORD, None).unwrap_err(), Unreadable::Foreign);
    for length in 1..AGENT_P12.len() {
        read(&AGENT_P12[..length], PASSWORD, None).unwrap_err();
    }
    for length in 4..AGENT_JKS.len() {
        read(&AGENT_JKS[..length], PASSWORD, None).unwrap_err();
    }
    // A store that goes with its hash, and not with itself.
    let body = &AGENT_JKS[..AGENT_JKS.len() - 20];
    for length in 0..body.len() {
        assert_eq!(jks::entries(&body[..length], KEY_PASSWORD), Err(Unreadable::Damaged), "{length}");
    }
}
