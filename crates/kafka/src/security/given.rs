//! Certificates and keys as a person gives them: PEM. `place` names the file in messages.

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::store::whole;

/// Certificates, one at least.
///
/// # Errors
/// In a sentence: it is not PEM, or has none.
pub fn certificates(pem: &[u8], place: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| format!("{place} is not PEM: {error}"))?;
    if all.is_empty() { Err(format!("{place} has no certificate as PEM")) } else { Ok(all) }
}

/// The key of the first certificate of `chain`, with the half of it that a certificate has.
///
/// # Errors
/// In a sentence: there is none, or it is encrypted.
pub fn key(pem: &[u8], chain: &[CertificateDer<'_>], place: &str) -> Result<PrivateKeyDer<'static>, String> {
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        format!("{place} has no key as PEM that can be used; it must not be encrypted (`openssl pkey`)")
    })?;
    Ok(whole(key, chain))
}

/// Who is trusted.
///
/// # Errors
/// In a sentence: one of them is of no use.
pub fn roots<'a>(
    authorities: impl IntoIterator<Item = CertificateDer<'a>>,
    place: &str,
) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        let added = roots.add(certificate);
        added.map_err(|error| format!("{place} has an authority that is of no use: {error}"))?;
    }
    Ok(roots)
}
