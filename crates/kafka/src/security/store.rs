//! The stores that Kafka's own configuration names: PKCS12, and JKS.

mod jks;
mod whole;

use std::fmt;

use p12_keystore::{KeyStore, KeyStoreEntry, Pkcs12ImportPolicy};
use rustls::pki_types::CertificateDer;

pub(super) use self::whole::whole;

/// DER begins like this, and so does PKCS12.
const SEQUENCE: u8 = 0x30;

/// What a store holds.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct Store {
    /// The first key.
    pub(crate) key: Option<Key>,
    /// The certificates that are trusted.
    pub(crate) trusted: Vec<Vec<u8>>,
}

/// A key with its certificate.
#[derive(PartialEq, Eq)]
pub(crate) struct Key {
    /// As PKCS #8; in JKS it has a password of its own.
    pub(crate) key: Result<Vec<u8>, Unreadable>,
    /// Its certificate, and then what lies between that and its authority.
    pub(crate) chain: Vec<Vec<u8>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, trusted) = (self.key.is_some(), self.trusted.len());
        f.debug_struct("Store").field("key", &key).field("trusted", &trusted).finish()
    }
}

/// Why a store cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Another password.
    Password,
    /// Another password of the key.
    KeyPassword,
    /// Not whole.
    Damaged,
    /// Of another kind.
    Foreign,
    /// Hidden in another way.
    Method,
}

impl Unreadable {
    /// What is wrong with `store`, whose password is in the file that `password` names, and what to do.
    pub(super) fn told(self, store: &str, password: &str) -> String {
        let convert = "`keytool -importkeystore -deststoretype pkcs12`";
        match self {
            Self::Password => format!(
                "{store} does not open with the password in {password}: write the one there that `keytool -list` takes"
            ),
            Self::KeyPassword => format!(
                "{store} has a key that does not open with the password in {password}: write the key's own into a file, \
                 and name that as key_password_file"
            ),
            Self::Damaged => format!("{store} is damaged, or was written half: make it anew"),
            Self::Foreign => format!("{store} is neither PKCS12 nor JKS: {convert} makes one of others"),
            Self::Method => {
                format!("{store} is protected in a way that is not known here: {convert} makes one that is")
            }
        }
    }
}

/// Reads a store of either kind. A PKCS12 store has one password for all that it holds.
pub(crate) fn read(bytes: &[u8], password: &str, key_password: Option<&str>) -> Result<Store, Unreadable> {
    if jks::is_one(bytes) {
        return jks::read(bytes, password, key_password.unwrap_or(password));
    }
    if bytes.first() != Some(&SEQUENCE) {
        return Err(Unreadable::Foreign);
    }
    let read = KeyStore::from_pkcs12(bytes, password, Pkcs12ImportPolicy::Strict);
    let read = read.map_err(|error| match error {
        p12_keystore::error::Error::MacError(_) => Unreadable::Password,
        p12_keystore::error::Error::UnsupportedEncryptionScheme
        | p12_keystore::error::Error::UnsupportedMacAlgorithm => Unreadable::Method,
        _ => Unreadable::Damaged,
    })?;
    let mut store = Store::default();
    for (_, entry) in read.entries() {
        match entry {
            KeyStoreEntry::PrivateKeyChain(chain) if store.key.is_none() => {
                let certificates = chain.certs().iter().map(|certificate| certificate.as_der().to_vec());
                let (key, chain) = (Ok(chain.key().as_der().to_vec()), certificates.collect());
                store.key = Some(Key { key, chain });
            }
            KeyStoreEntry::Certificate(certificate) => store.trusted.push(certificate.as_der().to_vec()),
            _ => {}
        }
    }
    Ok(store)
}

/// Whether these are the bytes of a JKS store.
pub(super) fn is_jks(bytes: &[u8]) -> bool {
    jks::is_one(bytes)
}

/// Reads a store without its password, as Java does it: JKS without looking whether it is whole, and of PKCS12 only
/// one that has none.
pub(super) fn read_unchecked(bytes: &[u8]) -> Result<Store, Unreadable> {
    if jks::is_one(bytes) { jks::entries(bytes, "") } else { read(bytes, "", None) }
}

/// What a JKS store holds, without the hash at its end: for fuzzing.
pub(crate) fn read_jks_entries(bytes: &[u8]) -> Result<Store, Unreadable> {
    jks::entries(bytes, "")
}

/// The certificates in a store: those that it trusts, or else the chain of its key.
pub(super) fn certificates(
    bytes: &[u8],
    password: &[u8],
    trusts: bool,
) -> Result<Vec<CertificateDer<'static>>, Unreadable> {
    let text = std::str::from_utf8(password).map_err(|_| Unreadable::Password)?;
    let store = read(bytes, text.trim_end_matches(['\n', '\r']), None)?;
    let all = if trusts { store.trusted } else { store.key.map(|key| key.chain).unwrap_or_default() };
    Ok(all.into_iter().map(Into::into).collect())
}

#[cfg(test)]
mod tests;
