//! SCRAM (RFC 5802, RFC 7677), the client's side: proves that it knows the password without saying it, and
//! has the server prove that it knows it too.
//!
//! As Kafka does, names and passwords are taken as they are, without SASLprep.

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac, pbkdf2};

/// The header of a client without channel binding, and what it is in base64.
const HEADER: &str = "n,,";
const HEADER_BASE64: &str = "biws";
/// Fewer say that who answers wants to guess (RFC 7677), and more cost the caller's thread too much: Kafka's
/// own limit is 16384.
const ITERATIONS: std::ops::RangeInclusive<u32> = 4096..=100_000;

/// One of the two hashes that Kafka offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hash {
    Sha256,
    Sha512,
}

/// One login.
#[derive(Debug)]
pub(crate) struct Scram {
    hash: Hash,
    nonce: String,
    first_bare: String,
}

/// What is sent last, and what the server must answer.
pub(crate) struct Proof {
    pub(crate) message: String,
    key: hmac::Key,
    signed: String,
}

impl Scram {
    /// For `user`, with a nonce that was never used before and has no comma.
    pub(crate) fn new(hash: Hash, user: &str, nonce: String) -> Self {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        let first_bare = format!("n={user},r={nonce}");
        Self { hash, nonce, first_bare }
    }

    /// What is sent first.
    pub(crate) fn first(&self) -> String {
        format!("{HEADER}{}", self.first_bare)
    }

    /// Proves the password, on what the server answered to the first message.
    ///
    /// # Errors
    /// Why that answer is none.
    pub(crate) fn prove(&self, server_first: &str, password: &str) -> Result<Proof, String> {
        let nonce = attribute(server_first, 'r')?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err("its nonce does not continue ours".to_owned());
        }
        let salt = STANDARD.decode(attribute(server_first, 's')?).map_err(|_| "its salt is not base64")?;
        let iterations = attribute(server_first, 'i')?.parse().ok().filter(|n| ITERATIONS.contains(n));
        let iterations = iterations.and_then(NonZeroU32::new).ok_or_else(|| {
            format!("its number of iterations is not one of {} to {}", ITERATIONS.start(), ITERATIONS.end())
        })?;
        let (algorithm, derivation, hash) = match self.hash {
            Hash::Sha256 => (hmac::HMAC_SHA256, pbkdf2::PBKDF2_HMAC_SHA256, &digest::SHA256),
            Hash::Sha512 => (hmac::HMAC_SHA512, pbkdf2::PBKDF2_HMAC_SHA512, &digest::SHA512),
        };
        let mut salted = vec![0; hash.output_len()];
        pbkdf2::derive(derivation, iterations, &salt, password.as_bytes(), &mut salted);
        let salted = hmac::Key::new(algorithm, &salted);
        let client_key = hmac::sign(&salted, b"Client Key");
        let stored_key = digest::digest(hash, client_key.as_ref());
        let without_proof = format!("c={HEADER_BASE64},r={nonce}");
        let signed = format!("{},{server_first},{without_proof}", self.first_bare);
        let signature = hmac::sign(&hmac::Key::new(algorithm, stored_key.as_ref()), signed.as_bytes());
        let proof: Vec<u8> = client_key
            .as_ref()
            .iter()
            .zip(signature.as_ref())
            .map(|(key, signature)| key ^ signature)
            .collect();
        let key = hmac::Key::new(algorithm, hmac::sign(&salted, b"Server Key").as_ref());
        let message = format!("{without_proof},p={}", STANDARD.encode(proof));
        Ok(Proof { message, key, signed })
    }
}

impl Proof {
    /// Whether the server knows the password too, by its last message.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self, server_last: &str) -> Result<(), String> {
        if let Ok(error) = attribute(server_last, 'e') {
            return Err(format!("it says {error}"));
        }
        let signature =
            STANDARD.decode(attribute(server_last, 'v')?).map_err(|_| "its proof is not base64")?;
        hmac::verify(&self.key, self.signed.as_bytes(), &signature)
            .map_err(
                |_| "it does not prove that it knows the password itself: is it a broker of this cluster?",
            )
            .map_err(str::to_owned)
    }
}

fn attribute(message: &str, name: char) -> Result<&str, String> {
    let found = message.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    found.ok_or_else(|| format!("it leaves out `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
    const FIRST: &str =
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    fn scram() -> Scram {
        Scram::new(Hash::Sha256, "user", NONCE.to_owned())
    }

    /// The exchange of RFC 7677, section 3.
    #[test]
    fn speaks_as_the_standard_has_it() {
        assert_eq!(scram().first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let proof = scram().prove(FIRST, "pencil").unwrap();
        assert_eq!(
            proof.message,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
             p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        proof.check("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").unwrap();
    }

    #[test]
    fn a_server_that_does_not_know_the_password_is_refused() {
        let proof = scram().prove(FIRST, "pencil").unwrap();
        let forged = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=";
        for last in [forged, "v=", "v=*", "", "e=invalid-proof"] {
            proof.check(last).unwrap_err();
        }
    }

    #[test]
    fn answers_that_are_none_are_refused() {
        let (r, s) = ("rOprNGfwEbeRWgbNEkqO%hvY", "W22ZaJ0SNY7soEsUEjb6gQ==");
        for first in [
            String::new(),
            format!("s={s},i=4096"),
            format!("r={NONCE},s={s},i=4096"),
            format!("r=another,s={s},i=4096"),
            format!("r={r},s=*,i=4096"),
            format!("r={r},s={s},i=1"),
            format!("r={r},s={s},i=4294967295"),
        ] {
            assert!(scram().prove(&first, "pencil").is_err(), "{first}");
        }
    }

    #[test]
    fn a_name_may_have_what_the_syntax_has() {
        let first = Scram::new(Hash::Sha512, "a=b,c", "n".to_owned()).first();
        assert_eq!(first, "n,,n=a=3Db=2Cc,r=n");
    }
}
