//! Stores of Java's, as keytool makes them: `stores/make.sh` has how.

use crate::tls::Issued;

/// The password of each.
pub const PASSWORD: &str = "store-password";
/// The password of the key in [`AGENT_JKS`].
pub const KEY_PASSWORD: &str = "key-password";

/// The certificate of the authority that has signed all of them, as PEM.
pub const CA: &str = include_str!("stores/ca.pem");
/// Trusts the authority.
pub const TRUST_P12: &[u8] = include_bytes!("stores/trust.p12");
/// Trusts the authority.
pub const TRUST_JKS: &[u8] = include_bytes!("stores/trust.jks");

/// The agent's key, on an elliptic curve, with its certificate.
pub const AGENT_P12: &[u8] = include_bytes!("stores/agent.p12");
/// The same; the key has a password of its own.
pub const AGENT_JKS: &[u8] = include_bytes!("stores/agent.jks");
/// The same with the ciphers that keytool had before Java 8u301.
pub const AGENT_LEGACY_P12: &[u8] = include_bytes!("stores/agent-legacy.p12");
/// The same key as PEM, as `openssl pkcs12` gets it out of the store: without its public half.
pub const AGENT_KEY: &str = include_str!("stores/agent.key.pem");
/// An RSA key with its certificate.
pub const AGENT_RSA_P12: &[u8] = include_bytes!("stores/agent-rsa.p12");
/// A key with a certificate that ended with 2020.
pub const AGENT_EXPIRED_P12: &[u8] = include_bytes!("stores/agent-expired.p12");

/// The certificate of a listener at 127.0.0.1, and its key.
#[must_use]
pub fn listener() -> Issued {
    let [pem, key] = [include_str!("stores/listener.pem"), include_str!("stores/listener.key.pem")];
    Issued { pem: pem.to_owned(), key: key.to_owned() }
}
