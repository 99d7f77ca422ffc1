//! What a failed handshake means, in a sentence that names the listener, the file and the remedy.

use std::io;

use jiff::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error};

use super::Credentials;
use crate::wire::WireError;
use recovery::model::Endpoint;

impl Credentials {
    /// What it means that a listener answers in plaintext; nothing, if that is what is spoken.
    pub(crate) fn where_plaintext_answers(&self) -> Option<String> {
        let (section, protocol) = (self.section, self.config.protocol);
        protocol.encrypts().then(|| {
            format!(
                "answers in plaintext, and {section}.protocol is {protocol}: name its TLS listener, or set the \
                 protocol that this one has"
            )
        })
    }
}

/// A listener that answers in TLS where plaintext is spoken.
pub(crate) fn where_tls_answers(credentials: Option<&Credentials>) -> String {
    let (section, protocol) = credentials
        .map_or(("cluster.security", super::Protocol::Plaintext), |own| (own.section, own.config.protocol));
    format!(
        "answers in TLS, and {section}.protocol is {protocol}: set it to SSL or SASL_SSL, or name a listener \
         without TLS"
    )
}

/// The TLS library's own words, if it was that which failed.
pub(crate) fn tls_error(source: &io::Error) -> Option<&Error> {
    source.get_ref()?.downcast_ref()
}

/// A login that was refused. The files are read anew before the next one.
pub(crate) fn of_login(credentials: Option<&Credentials>, at: &Endpoint, why: &str) -> WireError {
    let stale = credentials.map(Credentials::refuted).unwrap_or_default();
    WireError::Unauthenticated { at: at.clone(), why: format!("{why}{stale}") }
}

/// A connection that ended because of TLS; `None` if that was not what failed. The files are read anew before the next
/// one.
pub(crate) fn of_handshake(
    credentials: Option<&Credentials>,
    at: &Endpoint,
    source: &io::Error,
) -> Option<WireError> {
    let (own, error) = (credentials?, tls_error(source)?);
    own.refused();
    Some(of_tls(own, at, error))
}

/// The other side answered, so its process lives; what fails is between its certificate and ours.
fn of_tls(credentials: &Credentials, at: &Endpoint, error: &Error) -> WireError {
    let section = credentials.section;
    let at = at.clone();
    let why = match error {
        Error::InvalidCertificate(wrong) => of_certificate(credentials, &at, wrong),
        Error::AlertReceived(alert) => of_alert(credentials, *alert),
        Error::InvalidMessage(_) => {
            let why = format!(
                "does not answer in TLS, and {section}.protocol is {}: name the listener that speaks it, or set \
                 the protocol that this one has",
                credentials.config.protocol
            );
            return WireError::Mismatched { at, why };
        }
        Error::PeerIncompatible(_) => format!(
            "it has no TLS version or cipher suite in common with this agent, which speaks TLS 1.2 and 1.3 with \
             ECDHE and AEAD ciphers ({error}): see ssl.enabled.protocols and ssl.cipher.suites of the listener"
        ),
        other => format!("{other}: see the broker's log for its side of it"),
    };
    let stale = credentials.wrong().map(|wrong| format!("; {wrong}")).unwrap_or_default();
    WireError::Untrusted { at, why: format!("{why}{stale}") }
}

fn of_certificate(credentials: &Credentials, at: &Endpoint, wrong: &CertificateError) -> String {
    let section = credentials.section;
    match wrong {
        CertificateError::UnknownIssuer => match credentials.config.trusts() {
            Some((key, file)) => format!(
                "its certificate is of no authority in {}: put the certificate of the one that signed it there \
                 ({section}.{key}), or have the broker send what lies between",
                file.display()
            ),
            None => format!(
                "its certificate is of no authority that this host trusts: name the file with its authority as \
                 {section}.ca"
            ),
        },
        CertificateError::NotValidForNameContext { presented, .. } => format!(
            "its certificate is not for {} ({}): name the listener as its certificate does, or add that name to \
             the certificate's SAN",
            at.host,
            if presented.is_empty() {
                "it has no SAN at all".to_owned()
            } else {
                format!("it is for {}", presented.join(", "))
            }
        ),
        CertificateError::ExpiredContext { time, not_after } => format!(
            "its certificate expired at {}, and this host's clock reads {}: renew it, or set the clock",
            date(*not_after),
            date(*time)
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "its certificate is not valid before {}, and this host's clock reads {}: the clock of this host, or \
             of who made the certificate, is likely to be off",
            date(*not_before),
            date(*time)
        ),
        other => format!("its certificate is not accepted: {other}"),
    }
}

fn of_alert(credentials: &Credentials, alert: AlertDescription) -> String {
    use AlertDescription as Alert;
    let section = credentials.section;
    let about_ours = matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::CertificateRequired
            | Alert::HandshakeFailure
    );
    match credentials.config.shows() {
        Some(ours) if about_ours => format!(
            "it refused our certificate {} (TLS alert {alert:?}): renew it, or have it signed by an authority in \
             the broker's truststore",
            ours.display()
        ),
        None if about_ours => format!(
            "it asks for a certificate of ours (TLS alert {alert:?}), and none is configured: set \
             {section}.certificate and {section}.key"
        ),
        _ => format!("it refused the handshake (TLS alert {alert:?}): see the broker's log for why"),
    }
}

fn date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}
