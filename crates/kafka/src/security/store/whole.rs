//! Keys on elliptic curves, as Java writes them: without their public half.

use pkcs8::der::asn1::OctetStringRef;
use pkcs8::der::{Decode, Encode};
use pkcs8::{ObjectIdentifier, PrivateKeyInfoRef};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sec1::EcPrivateKey;
use x509_cert::Certificate;

/// Of keys on an elliptic curve: `id-ecPublicKey`.
const ON_A_CURVE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

/// The key with its public half, which the TLS library asks for, and which the first certificate of the chain has. A
/// key that has it, or is of another kind, stays as it is; so does one that makes no sense, for the TLS library says
/// so.
pub(crate) fn whole(key: PrivateKeyDer<'static>, chain: &[CertificateDer<'_>]) -> PrivateKeyDer<'static> {
    let completed = match (&key, chain.first()) {
        (PrivateKeyDer::Pkcs8(key), Some(certificate)) => {
            completed(key.secret_pkcs8_der(), certificate).ok().flatten()
        }
        _ => None,
    };
    completed.map_or(key, |completed| PrivatePkcs8KeyDer::from(completed).into())
}

fn completed(key: &[u8], certificate: &[u8]) -> pkcs8::der::Result<Option<Vec<u8>>> {
    let mut key = PrivateKeyInfoRef::from_der(key)?;
    if key.algorithm.oid != ON_A_CURVE {
        return Ok(None);
    }
    let mut half = EcPrivateKey::from_der(key.private_key.as_bytes())?;
    if half.public_key.is_some() {
        return Ok(None);
    }
    let certificate = Certificate::from_der(certificate)?;
    let public = &certificate.tbs_certificate().subject_public_key_info().subject_public_key;
    half.public_key = public.as_bytes();
    let whole = half.to_der()?;
    key.private_key = OctetStringRef::new(&whole)?;
    key.to_der().map(Some)
}
