//! What a broker's own stores hold, which its `server.properties` names: judged as Kafka would use them.

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::store::{self, Unreadable, whole};

type Chain = Vec<CertificateDer<'static>>;

/// Why Kafka could not use a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// It opens with another password.
    Password,
    /// Its key opens with another password.
    KeyPassword,
    /// It is not whole, as far as is seen here.
    Damaged,
    /// It is of another kind.
    Foreign,
    /// It is protected in a way that is not known here; Java may know it.
    Method,
    /// It has no key with a certificate.
    NoKey,
    /// Its key belongs to another certificate.
    NotTogether,
    /// It has no certificate that is trusted.
    NobodyTrusted,
}

impl From<Unreadable> for StoreFault {
    fn from(why: Unreadable) -> Self {
        match why {
            Unreadable::Password => Self::Password,
            Unreadable::KeyPassword => Self::KeyPassword,
            Unreadable::Damaged => Self::Damaged,
            Unreadable::Foreign => Self::Foreign,
            Unreadable::Method => Self::Method,
        }
    }
}

/// The certificate of the first key in a store of Java's, JKS or PKCS12, and what lies between it and its
/// authority. The key opens with `key_password`, or else with the store's.
///
/// # Errors
/// Why Kafka could not show it.
pub fn shown_by_store(bytes: &[u8], password: &str, key_password: Option<&str>) -> Result<Chain, StoreFault> {
    let of_its_own = key_password.is_some_and(|own| own != password) && !store::is_jks(bytes);
    let read = match store::read(bytes, password, key_password) {
        // A key in PKCS12 may have a password of its own, which is not read here.
        Err(Unreadable::Damaged) if of_its_own => return Err(StoreFault::Method),
        read => read?,
    };
    let key = read.key.filter(|key| !key.chain.is_empty()).ok_or(StoreFault::NoKey)?;
    if of_its_own {
        return Err(StoreFault::KeyPassword);
    }
    let chain: Chain = key.chain.into_iter().map(Into::into).collect();
    together(chain, PrivatePkcs8KeyDer::from(key.key?).into())
}

/// The same of PEM. A key that is encrypted counts as one that opens if `has_password`.
///
/// # Errors
/// As [`shown_by_store`].
pub fn shown_by_pem(chain: &[u8], key: &[u8], has_password: bool) -> Result<Chain, StoreFault> {
    let (chain, key) = (lines(chain), lines(key));
    let chain = certificates(&chain)?;
    if chain.is_empty() {
        return Err(StoreFault::NoKey);
    }
    let is_encrypted = contains(&key, "ENCRYPTED PRIVATE KEY");
    // Kafka decrypts with a password whatever it is given.
    if is_encrypted != has_password {
        return Err(StoreFault::KeyPassword);
    }
    if is_encrypted {
        return Ok(chain);
    }
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| StoreFault::NoKey)?;
    together(chain, key)
}

/// The certificates that a store of Java's trusts. Without a password JKS is read unchecked.
///
/// # Errors
/// Why Kafka could not go by it.
pub fn trusted_by_store(bytes: &[u8], password: Option<&str>) -> Result<Chain, StoreFault> {
    let read = match password {
        Some(password) => store::read(bytes, password, None)?,
        None => store::read_unchecked(bytes)?,
    };
    some(read.trusted.into_iter().map(Into::into).collect())
}

/// The same of PEM.
///
/// # Errors
/// As [`trusted_by_store`].
pub fn trusted_by_pem(pem: &[u8]) -> Result<Chain, StoreFault> {
    some(certificates(&lines(pem))?)
}

/// From when until when a certificate is valid; `None` where that cannot be read.
#[must_use]
pub fn validity(certificate: &CertificateDer<'_>) -> Option<(Timestamp, Timestamp)> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let validity = certificate.tbs_certificate().validity();
    let at = |time: &x509_cert::time::Time| {
        Timestamp::from_second(i64::try_from(time.to_unix_duration().as_secs()).ok()?).ok()
    };
    Some((at(&validity.not_before)?, at(&validity.not_after)?))
}

fn some(trusted: Chain) -> Result<Chain, StoreFault> {
    if trusted.is_empty() { Err(StoreFault::NobodyTrusted) } else { Ok(trusted) }
}

/// A key of a kind that the TLS library does not know may still be one of Java's; and one on an elliptic curve without
/// its public half cannot be told from another.
fn together(chain: Chain, key: PrivateKeyDer<'static>) -> Result<Chain, StoreFault> {
    let (key, provider) = (whole(key, &chain), rustls::crypto::ring::default_provider());
    match CertifiedKey::from_der(chain.clone(), key, &provider) {
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Err(StoreFault::NotTogether),
        _ => Ok(chain),
    }
}

fn certificates(pem: &[u8]) -> Result<Chain, StoreFault> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| StoreFault::Damaged)
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len()).any(|window| window == part.as_bytes())
}

/// PEM with its line breaks: Kafka takes blanks for them.
fn lines(pem: &[u8]) -> Vec<u8> {
    const EDGE: &str = "-----";
    let text = String::from_utf8_lossy(pem);
    let pieces =
        text.split(EDGE).map(|piece| match piece.starts_with("BEGIN ") || piece.starts_with("END ") {
            true => format!("{EDGE}{piece}{EDGE}\n"),
            false => piece.split_whitespace().map(|line| format!("{line}\n")).collect(),
        });
    pieces.collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use fakes::stores::{AGENT_JKS, AGENT_P12, CA, KEY_PASSWORD, PASSWORD, TRUST_JKS, TRUST_P12, listener};
    use fakes::tls::Authority;

    use super::*;

    #[test]
    fn stores_show_their_certificate_if_their_key_opens_as_kafka_would_open_it() {
        let shown = shown_by_store(AGENT_P12, PASSWORD, None).unwrap();
        assert_eq!(shown_by_store(AGENT_P12, PASSWORD, Some(PASSWORD)).unwrap(), shown);
        assert_eq!(shown_by_store(AGENT_JKS, PASSWORD, Some(KEY_PASSWORD)).unwrap(), shown);
        for (bytes, password, of_key, fault) in [
            (AGENT_P12, "guessed", None, StoreFault::Password),
            (AGENT_P12, PASSWORD, Some("guessed"), StoreFault::KeyPassword),
            (AGENT_JKS, PASSWORD, None, StoreFault::KeyPassword),
            (TRUST_P12, PASSWORD, None, StoreFault::NoKey),
            (CA.as_bytes(), PASSWORD, None, StoreFault::Foreign),
        ] {
            assert_eq!(shown_by_store(bytes, password, of_key), Err(fault));
        }
        let (from, until) = validity(&shown[0]).unwrap();
        assert!(from < Timestamp::now() && until > "2100-01-01T00:00:00Z".parse().unwrap());
    }

    #[test]
    fn pem_shows_its_certificate_in_a_file_and_in_one_line() {
        let own = listener();
        let pem = own.pem.as_bytes();
        let shown = shown_by_pem(pem, own.key.as_bytes(), false).unwrap();
        let [chain, key] = [&own.pem, &own.key].map(|text| text.replace('\n', " ").into_bytes());
        assert_eq!(shown_by_pem(&chain, &key, false).unwrap(), shown);
        let other = Authority::new("other").issue(&["other"]);
        assert_eq!(shown_by_pem(pem, other.key.as_bytes(), false), Err(StoreFault::NotTogether));
        assert_eq!(shown_by_pem(pem, pem, false), Err(StoreFault::NoKey));
        assert_eq!(shown_by_pem(b"", own.key.as_bytes(), false), Err(StoreFault::NoKey));
        let hidden = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        assert_eq!(shown_by_pem(pem, hidden, false), Err(StoreFault::KeyPassword));
        assert_eq!(shown_by_pem(pem, hidden, true), Ok(shown));
    }

    #[test]
    fn stores_trust_what_java_would_trust() {
        let authority = trusted_by_pem(CA.as_bytes()).unwrap();
        assert_eq!(trusted_by_store(TRUST_JKS, None).unwrap(), authority);
        for store in [TRUST_JKS, TRUST_P12] {
            assert_eq!(trusted_by_store(store, Some(PASSWORD)).unwrap(), authority);
            assert_eq!(trusted_by_store(store, Some("guessed")), Err(StoreFault::Password));
        }
        assert_eq!(trusted_by_store(AGENT_P12, Some(PASSWORD)), Err(StoreFault::NobodyTrusted));
        assert_eq!(trusted_by_pem(b""), Err(StoreFault::NobodyTrusted));
    }
}
