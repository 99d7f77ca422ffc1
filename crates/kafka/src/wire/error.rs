//! How a broker can fail to answer. The difference is evidence, so it is kept.

use std::io;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::ApiKey;

use recovery::model::Endpoint;

/// Why there is no answer. Says only its own layer: causes are in `source()`.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The fault is on this host: the name does not resolve, no socket, no free port. Says nothing about the
    /// other side.
    #[error("this host could not try to connect to {at}")]
    Local {
        /// The other side.
        at: Endpoint,
        /// The cause.
        source: io::Error,
    },
    /// The host answered that nothing listens there.
    #[error("{at} refuses connections: the host lives, and nothing listens there")]
    Refused {
        /// The other side.
        at: Endpoint,
    },
    /// Nobody answered: no connection in time, or the network says that there is no way.
    #[error("{at} cannot be reached")]
    Unreachable {
        /// The other side.
        at: Endpoint,
        /// The cause.
        source: io::Error,
    },
    /// The connection opened, and no answer came in time.
    #[error("{at} accepted the connection and did not answer {api} in time")]
    Silent {
        /// The other side.
        at: Endpoint,
        /// What was asked.
        api: String,
    },
    /// The connection opened, and ended without an answer.
    #[error("{at} closed the connection without answering {api}")]
    Closed {
        /// The other side.
        at: Endpoint,
        /// What was asked.
        api: String,
        /// The cause.
        source: io::Error,
    },
    /// What came is not an answer.
    #[error("{at} does not answer as Kafka does: {why}")]
    Nonsense {
        /// The other side.
        at: Endpoint,
        /// What is wrong.
        why: String,
    },
    /// TLS with the other side fails although it answers: its certificate is not trusted, or ours is refused.
    /// Says nothing about how it is.
    #[error("no TLS with {at}: {why}")]
    Untrusted {
        /// The other side.
        at: Endpoint,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The other side does not take our login, or does not prove who it is. Says nothing about how it is.
    #[error("no login at {at}: {why}")]
    Unauthenticated {
        /// The other side.
        at: Endpoint,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The other side answers, by another protocol than the configured one.
    #[error("{at} {why}")]
    Mismatched {
        /// The other side.
        at: Endpoint,
        /// What it speaks, and what to do.
        why: String,
    },
    /// The other side is too old, too new, or not the right kind of node for this request.
    #[error("{at} offers no version of {api} that this agent speaks")]
    Unsupported {
        /// The other side.
        at: Endpoint,
        /// What was to be asked.
        api: String,
    },
    /// A definite no, as a Kafka error code.
    #[error("{at} answered {api} with error {code} ({name}){message}")]
    Code {
        /// The other side.
        at: Endpoint,
        /// What was asked.
        api: String,
        /// Kafka's error code.
        code: i16,
        /// Its name.
        name: String,
        /// What the other side adds, after a colon; or empty.
        message: String,
    },
}

impl WireError {
    /// Sorts what connecting came to. Whatever is not known to be news from the other side is a local fault,
    /// so that a host that has run out of sockets does not take the others for dead.
    pub(crate) fn of_connecting(at: &Endpoint, source: io::Error) -> Self {
        use io::ErrorKind as Kind;
        let at = at.clone();
        let host_down = source.raw_os_error() == Some(libc::EHOSTDOWN);
        match source.kind() {
            Kind::ConnectionRefused => Self::Refused { at },
            Kind::TimedOut | Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::ConnectionReset => {
                Self::Unreachable { at, source }
            }
            _ if host_down => Self::Unreachable { at, source },
            _ => Self::Local { at, source },
        }
    }

    /// `Ok` for error code 0.
    pub(super) fn check(at: &Endpoint, key: i16, code: i16, message: Option<&str>) -> Result<(), Self> {
        let Some(known) = ResponseError::try_from_code(code) else { return Ok(()) };
        Err(Self::Code {
            at: at.clone(),
            api: api(key),
            code,
            name: known.to_string(),
            message: message.filter(|m| !m.is_empty()).map(|m| format!(": {m}")).unwrap_or_default(),
        })
    }

    /// Kafka's error code, where the answer was one.
    #[must_use]
    pub fn code(&self) -> Option<i16> {
        match self {
            Self::Code { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether a controller answered that another one is the active one.
    #[must_use]
    pub fn is_not_leader(&self) -> bool {
        self.code() == Some(ResponseError::NotLeaderOrFollower.code())
    }
}

/// The name of a request, for messages.
pub(super) fn api(key: i16) -> String {
    ApiKey::try_from(key).map_or_else(|()| format!("request {key}"), |known| format!("{known:?}"))
}
