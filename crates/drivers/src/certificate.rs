//! Until when the certificates in a file are valid: one that ends unseen ends a takeover.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

use super::off_path::{OffPathError, off_path};
use kafka::security::{SecurityConfig, StoreConfig};

/// A certificate that ends sooner is told of: a fortnight has a day on which somebody can renew it.
pub const RENEW_WITHIN: SignedDuration = SignedDuration::from_hours(14 * 24);

/// How long reading a file may take.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Later than any certificate can say, whose years have four digits.
const NEVER: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1 << 40));

/// Of which kind a certificate is that a file must have, in words.
const IN_PEM: &str = "in PEM";

/// A file with certificates that the agent shows, or trusts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateFile {
    /// The file.
    pub path: PathBuf,
    /// Whether they are authorities: one valid one is enough. Of a chain each must be valid.
    pub authorities: bool,
    /// The file with its password, if it is a store of Java's.
    pub password: Option<PathBuf>,
}

/// Why it is not known until when a file is good.
#[derive(Debug, thiserror::Error)]
pub enum UnknownExpiry {
    /// The file did not come back in time.
    #[error(transparent)]
    Hung(#[from] OffPathError),
    /// It cannot be read.
    #[error("{} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// There is no certificate in it.
    #[error("{} has no certificate {kind}", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
        /// Of which kind, in words.
        kind: &'static str,
    },
    /// A certificate in it is of a kind whose end the TLS library does not tell.
    #[error("{} has a certificate whose end cannot be read", path.display())]
    Unclear {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Error,
    },
}

impl CertificateFile {
    /// A file with authorities.
    #[must_use]
    pub fn authorities(path: &Path) -> Self {
        Self { path: path.to_owned(), authorities: true, password: None }
    }

    /// A file with a certificate and what lies between it and its authority.
    #[must_use]
    pub fn chain(path: &Path) -> Self {
        Self { path: path.to_owned(), authorities: false, password: None }
    }

    /// The files that a secured connection to Kafka needs.
    pub fn of(security: &SecurityConfig) -> impl Iterator<Item = Self> + '_ {
        let authorities = security.ca.iter().map(|file| Self::authorities(file));
        let chains = security.certificate.iter().map(|file| Self::chain(file));
        let store = |store: &StoreConfig, authorities| {
            let password = Some(store.password_file.clone());
            Self { path: store.file.clone(), authorities, password }
        };
        let trusts = security.truststore.iter().map(move |trusts| store(trusts, true));
        let shows = security.keystore.iter().map(move |shows| store(shows, false));
        authorities.chain(chains).chain(trusts).chain(shows)
    }

    /// The last second in which the file is good for TLS, as its certificates say.
    ///
    /// # Errors
    /// When that cannot be known.
    pub async fn good_until(&self) -> Result<Timestamp, UnknownExpiry> {
        let (path, password, authorities) = (self.path.clone(), self.password.clone(), self.authorities);
        let what = format!("reading {}", self.path.display());
        let ends = off_path(&what, READ_LIMIT, move || match password {
            Some(password_file) => {
                in_store(StoreConfig { file: path, password_file, key_password_file: None }, authorities)
            }
            None => ends(&path),
        });
        let ends = ends.await??;
        let good = if authorities { ends.iter().max() } else { ends.iter().min() };
        let kind = match (&self.password, authorities) {
            (None, _) => IN_PEM,
            (Some(_), true) => "that is trusted (`keytool -list` shows what it has)",
            (Some(_), false) => "with a key (`keytool -list` shows what it has)",
        };
        good.copied().ok_or_else(|| UnknownExpiry::NoCertificate { path: self.path.clone(), kind })
    }
}

/// The same of a store.
fn in_store(store: StoreConfig, authorities: bool) -> Result<Vec<Timestamp>, UnknownExpiry> {
    let path = store.file.clone();
    let all = match store.certificates(authorities) {
        Ok(all) => all,
        Err(source) => return Err(UnknownExpiry::Unreadable { path, source }),
    };
    let ends: Result<Vec<_>, _> = all.iter().map(end).collect();
    ends.map_err(|source| UnknownExpiry::Unclear { path, source })
}

/// The last second in which all of a chain is valid that a listener shows.
///
/// # Errors
/// When the TLS library does not tell of one.
pub fn chain_good_until(chain: &[CertificateDer<'_>]) -> Result<Option<Timestamp>, Error> {
    let ends: Vec<Timestamp> = chain.iter().map(end).collect::<Result<_, _>>()?;
    Ok(ends.into_iter().min())
}

/// When each certificate in a file ends.
fn ends(path: &Path) -> Result<Vec<Timestamp>, UnknownExpiry> {
    let path = path.to_owned();
    let pem = match std::fs::read(&path) {
        Ok(pem) => pem,
        Err(source) => return Err(UnknownExpiry::Unreadable { path, source }),
    };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let Ok(all) = all else { return Err(UnknownExpiry::NoCertificate { path, kind: IN_PEM }) };
    let ends: Result<Vec<_>, _> = all.iter().map(end).collect();
    ends.map_err(|source| UnknownExpiry::Unclear { path, source })
}

/// The TLS library looks at the dates before it asks who signed: at a time after its end, it says when that
/// was.
fn end(certificate: &CertificateDer<'_>) -> Result<Timestamp, Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    let nobody = RootCertStore::empty();
    match verify_server_cert_signed_by_trust_anchor(&parsed, &nobody, &[], NEVER, &[]) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            let seconds = i64::try_from(not_after.as_secs()).unwrap_or(i64::MAX);
            Ok(Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX))
        }
        Err(error) => Err(error),
        Ok(()) => Err(Error::General("it never ends".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use fakes::stores;
    use jiff::Span;

    use super::*;

    /// An authority that signed itself, valid from 2019-01-01 until 2020-01-01.
    const OLD: &str = "\
-----BEGIN CERTIFICATE-----
MIIBPTCB5aADAgECAgEBMAoGCCqGSM49BAMCMA8xDTALBgNVBAMMBHRlc3QwHhcN
MTkwMTAxMDAwMDAwWhcNMjAwMTAxMDAwMDAwWjAPMQ0wCwYDVQQDDAR0ZXN0MFkw
EwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAErYJDz8w+Np2zVmp+d0rTyB9tslacGPFU
K5aQQghmuRfyw4QDbToeJGbegrwaBItLifSxMqazLRTCvsd0UnZedaMyMDAwDwYD
VR0TAQH/BAUwAwEB/zAdBgNVHQ4EFgQUGU0SqfW0ZjwLlYWvR7ifMyQw0AUwCgYI
KoZIzj0EAwIDRwAwRAIgT3PTZlH3wcmJQicHMlXRF1ItHDLCnmgf6FE38ei0zOAC
IDMebFIopMzhVdFedzfTM/UVyF9SBgE/iq/v26mF7S6+
-----END CERTIFICATE-----
";
    /// The same until 2100-01-01.
    const NEW: &str = "\
-----BEGIN CERTIFICATE-----
MIIBQTCB56ADAgECAgECMAoGCCqGSM49BAMCMA8xDTALBgNVBAMMBHRlc3QwIBcN
MTkwMTAxMDAwMDAwWhgPMjEwMDAxMDEwMDAwMDBaMA8xDTALBgNVBAMMBHRlc3Qw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAStgkPPzD42nbNWan53StPIH22yVpwY
8VQrlpBCCGa5F/LDhANtOh4kZt6CvBoEi0uJ9LEyprMtFMK+x3RSdl51ozIwMDAP
BgNVHRMBAf8EBTADAQH/MB0GA1UdDgQWBBQZTRKp9bRmPAuVha9HuJ8zJDDQBTAK
BggqhkjOPQQDAgNJADBGAiEA1Q37FmhhaGBj6yuQ3x6fVzFrxQoXLda4jTn7XL7b
UroCIQCpuanCMBivASF8r2K7oIBC/muEhPajIZ9+QyFAYdzn+g==
-----END CERTIFICATE-----
";

    async fn good_until(pem: &str, authorities: bool) -> Result<Timestamp, UnknownExpiry> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), pem).unwrap();
        CertificateFile { path: file.path().to_owned(), authorities, password: None }.good_until().await
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn a_chain_is_good_until_the_first_of_it_ends_and_authorities_until_the_last() {
        assert_eq!(good_until(OLD, false).await.unwrap(), at("2020-01-01T00:00:00Z"));
        let both = format!("{OLD}{NEW}");
        assert_eq!(good_until(&both, false).await.unwrap(), at("2020-01-01T00:00:00Z"));
        assert_eq!(good_until(&both, true).await.unwrap(), at("2100-01-01T00:00:00Z"));
    }

    #[test]
    fn a_chain_that_is_shown_is_good_until_the_first_of_it_ends() {
        let shown = [NEW, OLD].map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap());
        assert_eq!(chain_good_until(&shown).unwrap(), Some(at("2020-01-01T00:00:00Z")));
        assert_eq!(chain_good_until(&shown[..1]).unwrap(), Some(at("2100-01-01T00:00:00Z")));
        assert_eq!(chain_good_until(&[]).unwrap(), None);
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_told_with_its_file() {
        assert!(matches!(good_until("", true).await, Err(UnknownExpiry::NoCertificate { .. })));
        assert!(matches!(good_until("notes", true).await, Err(UnknownExpiry::NoCertificate { .. })));
        let damaged = OLD.replacen("MII", "MIJ", 1);
        let error = good_until(&damaged, true).await.unwrap_err();
        assert!(matches!(error, UnknownExpiry::Unclear { .. }), "{error}");
        let gone = CertificateFile::chain(Path::new("/no/such/file")).good_until().await.unwrap_err();
        assert_eq!(gone.to_string(), "/no/such/file cannot be read");
    }

    #[tokio::test]
    async fn of_a_store_that_counts_which_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let password = dir.path().join("password");
        std::fs::write(&password, format!("{}\n", stores::PASSWORD)).unwrap();
        let good_until = async |bytes: &[u8], authorities| {
            let path = dir.path().join("store");
            std::fs::write(&path, bytes).unwrap();
            CertificateFile { path, authorities, password: Some(password.clone()) }.good_until().await
        };
        let first_of_2021 = at("2021-01-01T00:00:00Z");
        let ended = good_until(stores::AGENT_EXPIRED_P12, false).await.unwrap();
        assert!(ended < first_of_2021 + Span::new().hours(48), "{ended}");
        for (store, authorities) in
            [(stores::AGENT_JKS, false), (stores::TRUST_P12, true), (stores::TRUST_JKS, true)]
        {
            let good = good_until(store, authorities).await.unwrap();
            assert!(good > at("2100-01-01T00:00:00Z"), "{good}");
        }
        let none = good_until(stores::TRUST_P12, false).await.unwrap_err().to_string();
        assert!(none.contains("has no certificate with a key (`keytool -list`"), "{none}");
        std::fs::write(&password, "guessed").unwrap();
        let error = good_until(stores::TRUST_P12, true).await.unwrap_err();
        let said = recovery::ports::chain(&error);
        assert!(said.contains("does not open with the password in") && !said.contains("guessed"), "{said}");
    }
}
