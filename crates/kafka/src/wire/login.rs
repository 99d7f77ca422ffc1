//! Logging in, right after `ApiVersions`: SASL as Kafka frames it.

use bytes::{Buf, Bytes};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{SaslAuthenticateRequest, SaslHandshakeRequest};
use kafka_protocol::protocol::StrBytes;
use ring::rand::{SecureRandom, SystemRandom};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::Instant;

use super::{Asked, Connection, WireError};
use crate::security::{Hash, Login, Mechanism, Scram, of_login};
use recovery::model::Endpoint;

/// The version in which the mechanism's own messages are wrapped (Kafka 1.0).
const HANDSHAKE_VERSION: i16 = 1;

impl Connection {
    /// Logs in. `shown`: the password, or a token.
    pub(crate) async fn log_in(
        &mut self,
        login: &Login,
        shown: &SecretString,
        until: Instant,
    ) -> Result<(), WireError> {
        self.agree_on(login, until).await?;
        let (user, password) = (login.config.user(), shown.expose_secret());
        match login.config.mechanism {
            Mechanism::Plain => {
                let message = format!("\0{user}\0{password}");
                self.say(login, message, until).await.map(drop)
            }
            Mechanism::OauthBearer => self.bear(login, shown, until).await,
            Mechanism::ScramSha256 => self.scram(Hash::Sha256, login, until).await,
            Mechanism::ScramSha512 => self.scram(Hash::Sha512, login, until).await,
            Mechanism::DigestMd5 => Err(self.refused("DIGEST-MD5 is for ZooKeeper alone".to_owned())),
        }
    }

    /// Has the other side take the mechanism.
    async fn agree_on(&mut self, login: &Login, until: Instant) -> Result<(), WireError> {
        let mechanism = login.config.mechanism.name();
        let request = SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(mechanism));
        let asked = self.send(&request, HANDSHAKE_VERSION, until).await?;
        let frame = self.frame::<SaslHandshakeRequest>(until).await?;
        let Some((code, offered)) = offered(asked, frame) else {
            return Err(self.nonsense("its answer to SaslHandshake is cut short"));
        };
        let section = &login.section;
        match ResponseError::try_from_code(code) {
            None => Ok(()),
            Some(ResponseError::UnsupportedSaslMechanism) => Err(self.refused(format!(
                "it offers {} and not {mechanism}: set {section}.sasl.mechanism to one of them, or add that to \
                 sasl.enabled.mechanisms of the listener",
                if offered.is_empty() { "no mechanism".to_owned() } else { offered.join(", ") }
            ))),
            Some(ResponseError::IllegalSaslState) => Err(self.refused(format!(
                "this listener has no login: set {section}.protocol to {}, or name one with SASL",
                if login.encrypted { "SSL" } else { "PLAINTEXT" }
            ))),
            Some(other) => Err(self.refused(format!("it answers SaslHandshake with {other}"))),
        }
    }

    async fn scram(&mut self, hash: Hash, login: &Login, until: Instant) -> Result<(), WireError> {
        let scram = Scram::new(hash, login.config.user(), nonce(&self.at)?);
        let first = self.say(login, scram.first(), until).await?;
        let proof = scram.prove(&first, login.secret.expose_secret()).map_err(|why| self.refused(why))?;
        let last = self.say(login, proof.message.clone(), until).await?;
        proof.check(&last).map_err(|why| self.refused(why))
    }

    /// Shows a token (RFC 7628). One that is not taken is answered with why, and only the next message with an error.
    async fn bear(&mut self, login: &Login, token: &SecretString, until: Instant) -> Result<(), WireError> {
        let message = format!("n,,\u{1}auth=Bearer {}\u{1}\u{1}", token.expose_secret());
        let said = match self.message(message, until).await? {
            Ok(said) if said.is_empty() => return Ok(()),
            Ok(said) => {
                // It closes the connection then, whatever is said.
                let _closed = self.message("\u{1}".to_owned(), until).await;
                said
            }
            Err(said) => said,
        };
        login.refused(token);
        let said = secrets::Secrets::of([token.expose_secret(), login.secret.expose_secret()]).redact(&said);
        let remedy = match (&login.config.token_endpoint, login.secret_file()) {
            (Some(endpoint), _) => format!(
                "compare what {} gives client {} with the listener's sasl.oauthbearer.expected.issuer, \
                 expected.audience and scope",
                endpoint.url, endpoint.client_id
            ),
            (None, (file, key)) => format!("have one that is valid now put into {file} ({key})"),
        };
        Err(self
            .refused(format!("it does not take the token, `{said}`: {remedy}; the broker's log says more")))
    }

    /// One message of the mechanism, and the other side's answer.
    async fn say(&mut self, login: &Login, message: String, until: Instant) -> Result<String, WireError> {
        let message = match self.message(message, until).await? {
            Ok(said) => return Ok(said),
            Err(message) => secrets::Secrets::of([login.secret.expose_secret()]).redact(&message),
        };
        let (file, key) = login.secret_file();
        Err(self.refused(format!(
            "`{message}` for user {}: put its password into {file} ({key}), or set the broker's",
            login.config.user()
        )))
    }

    /// The same; an error of the other side's is within.
    async fn message(
        &mut self,
        message: String,
        until: Instant,
    ) -> Result<Result<String, String>, WireError> {
        let version = self.version::<SaslAuthenticateRequest>()?;
        let request = SaslAuthenticateRequest::default().with_auth_bytes(message.into());
        let asked = self.send(&request, version, until).await?;
        let said = self.answer::<SaslAuthenticateRequest>(asked, until).await?;
        if let Some(error) = ResponseError::try_from_code(said.error_code) {
            let message = said.error_message.filter(|message| !message.is_empty());
            return Ok(Err(message.map_or_else(|| error.to_string(), |message| message.to_string())));
        }
        let said = String::from_utf8(said.auth_bytes.to_vec());
        said.map(Ok).map_err(|_| self.refused("its answer is not text".to_owned()))
    }

    fn refused(&self, why: String) -> WireError {
        of_login(self.credentials.as_deref(), &self.at, &why)
    }
}

/// For a login at `at`: never used before, and without a comma.
pub(crate) fn nonce(at: &Endpoint) -> Result<String, WireError> {
    let mut bytes = [0; 24];
    let drawn = SystemRandom::new().fill(&mut bytes);
    let source = || std::io::Error::other("this host has no random numbers");
    drawn.map_err(|_| WireError::Local { at: at.clone(), source: source() })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The answer to `SaslHandshake`: an error code and what is offered. It is not in the flexible encoding, so the
/// generated decoder would reserve whatever it claims.
pub(super) fn offered(asked: Asked, mut frame: Bytes) -> Option<(i16, Vec<String>)> {
    if frame.try_get_i32().ok()? != asked.id {
        return None;
    }
    let (code, count) = (frame.try_get_i16().ok()?, frame.try_get_i32().ok()?);
    let mut offered = Vec::new();
    for _ in 0..count {
        let length = usize::try_from(frame.try_get_i16().ok()?).ok()?;
        let name = (frame.remaining() >= length).then(|| frame.split_to(length))?;
        offered.push(String::from_utf8_lossy(&name).into_owned());
    }
    Some((code, offered))
}
