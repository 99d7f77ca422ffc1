//! Certificates and keys as PEM, for clients that take nothing else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::SecretString;

/// How many characters a line has.
const LINE: usize = 64;

/// What stores hold, as PEM.
#[derive(Debug, Default)]
pub struct Pem {
    /// The authorities that are trusted, if a store says so.
    pub ca: Option<String>,
    /// The certificate that is shown and what lies between it and its authority, if a store has one.
    pub certificate: Option<String>,
    /// Its key.
    pub key: Option<SecretString>,
}

pub(super) fn certificates(all: &[CertificateDer<'_>]) -> String {
    all.iter().map(|certificate| block("CERTIFICATE", certificate)).collect()
}

pub(super) fn key(key: &PrivateKeyDer<'_>) -> SecretString {
    let label = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    block(label, key.secret_der()).into()
}

fn block(label: &str, der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let mut lines = String::new();
    for (at, letter) in encoded.chars().enumerate() {
        if at % LINE == 0 {
            lines.push('\n');
        }
        lines.push(letter);
    }
    format!("-----BEGIN {label}-----{lines}\n-----END {label}-----\n")
}
