//! The broker's side of a login, for scripts of [`fakes::kafka`](crate::kafka).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{
    ApiKey, SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};
use kafka_protocol::protocol::StrBytes;
use ring::{digest, hmac, pbkdf2};

use crate::kafka::{Call, Reply};

const SALT: &[u8] = b"salt";
const ITERATIONS: u32 = 4096;

/// Who may log in, and how.
#[derive(Debug, Clone)]
pub struct Login {
    /// `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`.
    pub mechanism: &'static str,
    /// The user.
    pub user: &'static str,
    /// Its password, or its token.
    pub password: &'static str,
    /// Proves nothing about itself, as somebody does who stands in a broker's place.
    pub forged: bool,
}

impl Login {
    /// The answer to a message of a login.
    #[must_use]
    pub fn answer(&self, call: &Call) -> Option<Reply> {
        match call.key {
            ApiKey::SaslHandshake => {
                let known = call.read::<SaslHandshakeRequest>().mechanism.as_str() == self.mechanism;
                let code = if known { 0 } else { ResponseError::UnsupportedSaslMechanism.code() };
                let offered = vec![StrBytes::from_static_str(self.mechanism)];
                Some(
                    call.say(
                        &SaslHandshakeResponse::default().with_error_code(code).with_mechanisms(offered),
                    ),
                )
            }
            ApiKey::SaslAuthenticate => {
                let said = call.read::<SaslAuthenticateRequest>().auth_bytes;
                let said = std::str::from_utf8(&said).unwrap();
                let answer = match self.mechanism {
                    "PLAIN" => self.plain(said),
                    "OAUTHBEARER" => self.bear(said),
                    _ => self.scram(said),
                };
                let response = SaslAuthenticateResponse::default();
                Some(
                    call.say(&match answer {
                        Some(answer) => response.with_auth_bytes(Bytes::from(answer)),
                        // A broker that repeats what it was told.
                        None => response
                            .with_error_code(ResponseError::SaslAuthenticationFailed.code())
                            .with_error_message(Some(StrBytes::from_string(format!("no: {said:?}")))),
                    }),
                )
            }
            _ => None,
        }
    }

    fn plain(&self, said: &str) -> Option<String> {
        (said == format!("\0{}\0{}", self.user, self.password)).then(String::new)
    }

    /// As Kafka does: a token that is not taken is answered, and only the next message refused.
    fn bear(&self, said: &str) -> Option<String> {
        let taken = said == format!("n,,\u{1}auth=Bearer {}\u{1}\u{1}", self.password);
        let answer = if taken { "" } else { r#"{"status":"invalid_token"}"# };
        (said != "\u{1}").then(|| answer.to_owned())
    }

    /// Needs no memory: all of the exchange is in the last message.
    fn scram(&self, said: &str) -> Option<String> {
        let attribute = |name: &str| said.split(',').find_map(|part| part.strip_prefix(name));
        let nonce = attribute("r=").unwrap();
        let first = |nonce: &str| format!("r={nonce},s={},i={ITERATIONS}", STANDARD.encode(SALT));
        if said.starts_with("n,,") {
            return (attribute("n=") == Some(self.user)).then(|| first(&format!("{nonce}server")));
        }
        let (algorithm, derivation, hash) = match self.mechanism {
            "SCRAM-SHA-256" => (hmac::HMAC_SHA256, pbkdf2::PBKDF2_HMAC_SHA256, &digest::SHA256),
            _ => (hmac::HMAC_SHA512, pbkdf2::PBKDF2_HMAC_SHA512, &digest::SHA512),
        };
        let mut salted = vec![0; hash.output_len()];
        pbkdf2::derive(
            derivation,
            ITERATIONS.try_into().unwrap(),
            SALT,
            self.password.as_bytes(),
            &mut salted,
        );
        let salted = hmac::Key::new(algorithm, &salted);
        let theirs = nonce.strip_suffix("server").unwrap();
        let signed = format!("n={},r={theirs},{},c=biws,r={nonce}", self.user, first(nonce));
        let client_key = hmac::sign(&salted, b"Client Key");
        let stored_key = digest::digest(hash, client_key.as_ref());
        let signature = hmac::sign(&hmac::Key::new(algorithm, stored_key.as_ref()), signed.as_bytes());
        let proof = STANDARD.decode(attribute("p=").unwrap()).unwrap();
        let shown: Vec<u8> = proof.iter().zip(signature.as_ref()).map(|(p, s)| p ^ s).collect();
        if shown != client_key.as_ref() {
            return None;
        }
        let server_key = hmac::Key::new(algorithm, hmac::sign(&salted, b"Server Key").as_ref());
        let signed = if self.forged { "anything" } else { &signed };
        Some(format!("v={}", STANDARD.encode(hmac::sign(&server_key, signed.as_bytes()))))
    }
}
