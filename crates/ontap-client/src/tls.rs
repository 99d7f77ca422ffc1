//! Whom the client trusts, and how it shows who it is.

use std::fmt;
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use secrecy::{ExposeSecret, SecretString};

use crate::error::{Error, Result};
use secrets::Secrets;

/// Which server the client takes for ONTAP.
///
/// ONTAP presents a self-signed certificate unless someone installed another one: then
/// [`Pinned`](Self::Pinned) it, or make it a [`PrivateCa`](Self::PrivateCa).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum Tls {
    /// One whose certificate comes from an authority that this host trusts, as its administrators have set it
    /// up.
    #[default]
    SystemRoots,
    /// One whose certificate comes from these authorities, and no other.
    PrivateCa {
        /// One or more certificates in PEM.
        pem: String,
    },
    /// The one with this very certificate. Its name and expiry are not looked at.
    Pinned(Fingerprint),
    /// Whoever answers: anybody on the way can read the password and answer in ONTAP's place.
    InsecureAcceptAnything,
    /// No TLS at all, for `http://`: for a stand-in on this host. Anybody on the way can read the password.
    InsecurePlainHttp,
}

/// The SHA-256 of a certificate in DER, as `openssl x509 -fingerprint -sha256` prints it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Reads 64 hexadecimal digits, with or without colons.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is anything else.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = || Error::usage("a pinned certificate is 64 hexadecimal digits, with or without colons");
        let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace() && *c != ':').collect();
        let mut bytes = [0_u8; 32];
        if digits.len() != 64 {
            return Err(bad());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            for digit in pair {
                let value = digit.to_digit(16).and_then(|value| u8::try_from(value).ok()).ok_or_else(bad)?;
                *byte = (*byte << 4) | value;
            }
        }
        Ok(Self(bytes))
    }

    /// The fingerprint of a certificate.
    #[must_use]
    pub fn of(der: &[u8]) -> Self {
        let mut bytes = [0_u8; 32];
        bytes.copy_from_slice(digest(&SHA256, der).as_ref());
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, byte) in self.0.iter().enumerate() {
            let colon = if n == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02X}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// How the client shows who it is. The account needs the application `http`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Auth {
    /// A user and its password.
    Basic {
        /// The account, for instance `admin`, or `vsadmin` on an SVM's own LIF.
        user: String,
        /// Its password.
        password: SecretString,
    },
    /// A client certificate, whose common name is the account.
    Certificate {
        /// The certificate and what lies between it and its authority, in PEM.
        chain_pem: String,
        /// Its key in PEM, not encrypted.
        key_pem: SecretString,
    },
    /// A token of an OAuth 2.0 authority. ONTAP 9.14 or newer.
    Bearer(SecretString),
}

impl Auth {
    /// What a server that repeats its request would give away.
    pub(crate) fn secrets(&self) -> Secrets {
        match self {
            Self::Basic { user, password } => {
                let password = password.expose_secret();
                Secrets::of([password, &format!("{user}:{password}")])
            }
            Self::Bearer(token) => Secrets::of([token.expose_secret()]),
            // It is not sent.
            Self::Certificate { .. } => Secrets::default(),
        }
    }
}

/// What the HTTP client needs. The provider is named here, so that nothing is installed for the whole
/// process.
pub(crate) fn config(tls: &Tls, auth: &Auth) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::setup("TLS cannot be set up", e))?;
    let builder = match tls {
        Tls::SystemRoots => builder.with_root_certificates(system_roots()?),
        Tls::PrivateCa { pem } => builder.with_root_certificates(roots(pem)?),
        Tls::InsecurePlainHttp => builder.with_root_certificates(RootCertStore::empty()),
        Tls::Pinned(pin) => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Pin { pin: Some(*pin), provider }))
        }
        Tls::InsecureAcceptAnything => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Pin { pin: None, provider }))
        }
    };
    let Auth::Certificate { chain_pem, key_pem } = auth else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(chain_pem, "the client certificate")?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.expose_secret().as_bytes())
        .map_err(|e| Error::setup("the key of the client certificate is not a key in PEM", e))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|e| Error::setup("the client certificate and its key do not go together", e))
}

fn system_roots() -> Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // A store may hold certificates that are too old to be understood; the others are good.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added > 0 {
        return Ok(roots);
    }
    let what = "this host trusts no certificate authority; install ca-certificates, or give a CA or a pin";
    Err(Error::Usage { what: what.to_owned(), source: found.errors.into_iter().next().map(Into::into) })
}

fn roots(pem: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, "the private CA")? {
        roots.add(certificate).map_err(|e| Error::setup("the private CA cannot be used", e))?;
    }
    Ok(roots)
}

fn certificates(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let all = all.map_err(|e| Error::setup(format!("{what} is not in PEM"), e))?;
    if all.is_empty() {
        return Err(Error::usage(format!("{what} has no certificate in it: it must be PEM")));
    }
    Ok(all)
}

/// Takes one certificate, or any. With a pin the server must still prove that it holds the certificate's key.
#[derive(Debug)]
struct Pin {
    pin: Option<Fingerprint>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pin {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.pin.is_none_or(|pin| pin == Fingerprint::of(end_entity)) {
            return Ok(ServerCertVerified::assertion());
        }
        let other = CertificateError::Other(rustls::OtherError(Arc::new(OtherCertificate {
            presented: Fingerprint::of(end_entity),
        })));
        Err(rustls::Error::InvalidCertificate(other))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.pin.is_none() {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.pin.is_none() {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The server showed another certificate than the pinned one.
#[derive(Debug, thiserror::Error)]
#[error("the certificate is not the pinned one: ONTAP presented {presented}")]
struct OtherCertificate {
    presented: Fingerprint,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_reads_as_openssl_prints_it() {
        let pin = Fingerprint::of(b"certificate");
        assert_eq!(Fingerprint::parse(&pin.to_string()).unwrap(), pin);
        assert_eq!(Fingerprint::parse(&pin.to_string().replace(':', "").to_lowercase()).unwrap(), pin);
        for bad in ["", "AB:CD", &"G".repeat(64), &"A".repeat(66)] {
            assert!(matches!(Fingerprint::parse(bad), Err(Error::Usage { .. })), "{bad}");
        }
    }

    #[test]
    fn what_is_not_pem_is_refused_with_its_name() {
        let auth = Auth::Bearer("t".into());
        let error = config(&Tls::PrivateCa { pem: "hello".to_owned() }, &auth).unwrap_err();
        assert!(error.to_string().contains("the private CA"), "{error}");
    }
}
