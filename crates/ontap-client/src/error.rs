//! Why a call did not do as asked.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use crate::job::JobState;
use crate::value;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A cause of an error.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// Codes that say that this account or this platform does not offer what was asked.
mod code {
    pub(super) const DUPLICATE: i64 = 1;
    pub(super) const UNSUPPORTED: i64 = 3;
    pub(super) const NO_ENTRY: i64 = 4;
    /// Any object; a UUID; a volume's UUID; an export policy.
    pub(super) const NOT_FOUND: [i64; 4] = [NO_ENTRY, 8_586_226, 918_235, 1_703_954];
    pub(super) const DENIED: i64 = 6;
    /// Anything; a volume whose job failed or is under way, that is being made, that another operation holds,
    /// or that is busy; a mirror in transfer.
    pub(super) const IN_USE: [i64; 8] =
        [8, 917_536, 13_107_405, 13_107_406, 524_486, 13_303_808, 13_303_812, 13_303_822];
    pub(super) const UNAUTHORIZED_OPERATION: i64 = 6_691_623;
    pub(super) const UNSUPPORTED_PLATFORM: i64 = 918_701;
    /// Codes of a system that may well do it the next time: resources, RPC, internal.
    pub(super) const PASSING: [i64; 8] = [7, 8, 65_541, 65_552, 65_562, 262_145, 262_160, 262_210];
}

/// Why a call did not do as asked. Says only its own layer; causes are in `source()`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client was set up or called with something that cannot work. Nothing was sent.
    #[error("{what}")]
    Usage {
        /// What is wrong, and what to do about it.
        what: String,
        /// The cause, if there is a deeper one.
        source: Option<BoxError>,
    },
    /// No connection could be made. Nothing was sent.
    #[error(
        "{request}: no connection to ONTAP; check the address, the route and that the management LIF is up"
    )]
    Unreachable {
        /// What was asked.
        request: Request,
        /// The cause.
        source: BoxError,
    },
    /// One side did not accept the other's certificate. Nothing was done.
    #[error("{request}: TLS was refused; check the trusted CA, the pin or the client certificate")]
    Tls {
        /// What was asked.
        request: Request,
        /// The cause.
        source: BoxError,
    },
    /// The question was sent, and no whole answer came.
    #[error("{request}: sent, but no whole answer came")]
    Lost {
        /// What was asked.
        request: Request,
        /// The cause.
        source: BoxError,
    },
    /// The time for the call ran out.
    #[error("{request}: not done within {limit:?}{}", so_far.as_deref().map(|s| format!(" ({s})")).unwrap_or_default())]
    Deadline {
        /// What was asked.
        request: Request,
        /// The time the whole call had.
        limit: Duration,
        /// What was known by then.
        so_far: Option<String>,
        /// How the last attempt failed.
        source: Option<Box<Error>>,
    },
    /// A change was sent, and nobody here knows whether it is in force. Read back before going on. The new
    /// value means that it is. The old one does not prove that it never will be: a request that hung may be
    /// taken up late. Read again once the attempt limit
    /// ([`ClientBuilder::attempt_limit`](crate::ClientBuilder::attempt_limit)) has passed, and do nothing
    /// that this change would undo, or that it must not meet, before you have made the change again and seen
    /// it confirmed.
    #[error("{request}: sent but not confirmed; it may be in force or not, so read it back")]
    Unconfirmed {
        /// What was asked.
        request: Request,
        /// How the last attempt failed.
        source: Box<Error>,
    },
    /// HTTP 401: ONTAP does not know this account, or its password, certificate or token is no longer good.
    #[error("{0}: login refused; check user and password, the certificate, or whether the token has expired")]
    Unauthorized(Box<Refusal>),
    /// The account may not do this (HTTP 403, code 6, code 6691623).
    #[error("{0}: permission denied; give the account's role access to this path: `{line}`", line = .0.role_line())]
    PermissionDenied(Box<Refusal>),
    /// There is no such object (HTTP 404 with a code of ONTAP's, code 4). A 404 without one is not ONTAP's
    /// own.
    #[error("{0}: not found")]
    NotFound(Box<Refusal>),
    /// Any other refusal.
    #[error("{0}")]
    Api(Box<Refusal>),
    /// Part of a list is missing, and what came is not handed out; or a change of many was made to some only.
    #[error("{request}: done in part only ({got} records): {why}")]
    Partial {
        /// What was asked.
        request: Request,
        /// How many records came or were changed.
        got: usize,
        /// What ONTAP said, or what did not add up.
        why: String,
    },
    /// ONTAP accepted the change and then failed to make it.
    #[error("{0}")]
    JobFailed(Box<FailedJob>),
    /// The answer is not what the API promises.
    #[error("{request}: the answer is not understood: {what}")]
    Decode {
        /// What was asked.
        request: Request,
        /// Where, and what is wrong there.
        what: String,
    },
    /// ONTAP said that the change was made, and reading back shows otherwise.
    #[error("{request}: ONTAP said it was done, but {what}")]
    NotApplied {
        /// What was asked.
        request: Request,
        /// What was read back.
        what: String,
    },
    /// A change by name matched nothing, so that nothing was changed.
    #[error("{request}: nothing matched, so nothing was changed; check the names")]
    NothingMatched {
        /// What was asked.
        request: Request,
    },
}

impl Error {
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), source: None }
    }

    pub(crate) fn setup(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Usage { what: what.into(), source: Some(source.into()) }
    }

    /// What ONTAP answered, if it answered; also when the change as a whole is unconfirmed.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Unauthorized(refusal)
            | Self::PermissionDenied(refusal)
            | Self::NotFound(refusal)
            | Self::Api(refusal) => Some(refusal),
            Self::Unconfirmed { source, .. } => source.refusal(),
            Self::Deadline { source, .. } => source.as_deref().and_then(Self::refusal),
            _ => None,
        }
    }

    /// ONTAP's code, of a refusal or of a failed job.
    #[must_use]
    pub fn code(&self) -> Option<i64> {
        match self {
            Self::JobFailed(job) => job.code,
            Self::Unconfirmed { source, .. } => source.code(),
            _ => self.refusal().and_then(|refusal| refusal.code),
        }
    }

    /// Whether a change was sent whose effect nobody knows. If not, an error means that nothing was changed,
    /// or that a job of ONTAP's failed, or ([`Partial`](Self::Partial), [`NotApplied`](Self::NotApplied))
    /// says what is so.
    #[must_use]
    pub fn is_unconfirmed(&self) -> bool {
        matches!(self, Self::Unconfirmed { .. })
    }

    /// Whether ONTAP's own answer to the request itself was that there is no such object.
    pub(crate) fn is_of_what_is_gone(&self) -> bool {
        match self {
            Self::NotFound(_) => true,
            Self::Unconfirmed { source, .. } => matches!(**source, Self::NotFound(_)),
            _ => false,
        }
    }

    /// Whether ONTAP's own answer was that there is no such entry, and nothing else: its status, its code and
    /// its words, about no field in particular. The command line has the same code for a name that it does
    /// not know, and for what it could not look at.
    pub(crate) fn is_no_entry(&self) -> bool {
        let Self::NotFound(refusal) = self else { return false };
        let said = refusal.message.trim();
        let said = said.strip_suffix('.').unwrap_or(said);
        matches!(refusal.status, 400 | 404)
            && refusal.code == Some(code::NO_ENTRY)
            && refusal.target.is_none()
            && said.eq_ignore_ascii_case("entry doesn't exist")
    }

    /// Whether something was not found: the object that was asked for or, if a job failed for it, any other.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::NotFound(_) => true,
            Self::Unconfirmed { source, .. } => source.is_not_found(),
            _ => self.code().is_some_and(|code| code::NOT_FOUND.contains(&code)),
        }
    }

    /// Whether the account may not do this. A login that was refused is not this.
    #[must_use]
    pub fn is_permission(&self) -> bool {
        match self {
            Self::PermissionDenied(_) => true,
            // It may carry the same code as a denied operation.
            Self::Unauthorized(_) => false,
            Self::Unconfirmed { source, .. } => source.is_permission(),
            _ => matches!(self.code(), Some(code::DENIED | code::UNAUTHORIZED_OPERATION)),
        }
    }

    /// Whether the login was refused (HTTP 401).
    #[must_use]
    pub fn is_unauthorized(&self) -> bool {
        self.refusal().is_some_and(|refusal| refusal.status == 401)
    }

    /// Whether an object with this name or these values exists already.
    #[must_use]
    pub fn is_duplicate(&self) -> bool {
        // Identifiers; a volume's name; an identical export rule; twice the same client in a rule.
        matches!(self.code(), Some(code::DUPLICATE | 917_526 | 1_704_070 | 1_704_050))
    }

    /// Whether what was asked for is in use, so that a later attempt may succeed.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.code().is_some_and(|code| code::IN_USE.contains(&code))
    }

    /// Whether this account or platform does not offer it, as FSx for ONTAP does not offer aggregates, nodes
    /// and HA (codes 3, 6, 6691623 and 918701; HTTP 403 and 405).
    #[must_use]
    pub fn is_not_visible(&self) -> bool {
        self.is_permission()
            || matches!(self.code(), Some(code::UNSUPPORTED | code::UNSUPPORTED_PLATFORM))
            || self.refusal().is_some_and(|refusal| refusal.status == 405)
    }

    /// Whether ONTAP may well do it the next time. The client has repeated what is safe to repeat by itself;
    /// for all else look at [`is_unconfirmed`](Self::is_unconfirmed) first.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Lost { .. } | Self::Deadline { .. } | Self::Partial { .. } => {
                true
            }
            Self::Unconfirmed { source, .. } => source.is_passing(),
            Self::JobFailed(job) => job.code.is_some_and(|code| code::PASSING.contains(&code)),
            _ => self.refusal().is_some_and(|refusal| refusal.is_passing()),
        }
    }

    /// The kind of error in one word, for metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Usage { .. } => "usage",
            Self::Unreachable { .. } => "unreachable",
            Self::Tls { .. } => "tls",
            Self::Lost { .. } => "lost",
            Self::Deadline { .. } => "deadline",
            Self::Unconfirmed { .. } => "unconfirmed",
            Self::Unauthorized(_) => "unauthorized",
            Self::PermissionDenied(_) => "permission_denied",
            Self::NotFound(_) => "not_found",
            Self::Api(_) => "api",
            Self::Partial { .. } => "partial",
            Self::JobFailed(_) => "job_failed",
            Self::Decode { .. } => "decode",
            Self::NotApplied { .. } => "not_applied",
            Self::NothingMatched { .. } => "nothing_matched",
        }
    }
}

/// The method and path of a request, without its query and body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The HTTP method.
    pub method: &'static str,
    /// The path, from `/api` on.
    pub path: String,
}

impl Request {
    /// Whether it is one of the passthrough.
    pub(crate) fn is_the_command_lines(&self) -> bool {
        self.path.starts_with("/api/private/cli/")
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// A job that did not succeed. What it had done by then is not said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedJob {
    /// What was asked.
    pub request: Request,
    /// The job.
    pub uuid: String,
    /// The state it ended in.
    pub state: JobState,
    /// ONTAP's code.
    pub code: Option<i64>,
    /// ONTAP's message.
    pub message: String,
}

impl fmt::Display for FailedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, uuid, state, code, message } = self;
        write!(f, "{request}: job {uuid} ended as {state}: {message}{}", code_suffix(*code))
    }
}

/// What ONTAP said when it refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What was asked.
    pub request: Request,
    /// The HTTP status.
    pub status: u16,
    /// ONTAP's code. `None`: the answer was not ONTAP's own, for instance a gateway's.
    pub code: Option<i64>,
    /// ONTAP's message, or the start of whatever was answered.
    pub message: String,
    /// The field or parameter that it is about.
    pub target: Option<String>,
    /// How long ONTAP asked to be left alone.
    pub retry_after: Option<Duration>,
}

/// What a role names where what is below it belongs together.
const ROLE_PATHS: [&str; 9] = [
    "/api/cluster",
    "/api/network/ip/interfaces",
    "/api/private/cli/volume",
    "/api/private/cli/vserver/export-policy",
    "/api/protocols/locks",
    "/api/protocols/nfs",
    "/api/storage/aggregates",
    "/api/storage/qtrees",
    "/api/storage/volumes",
];

fn is_below(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

impl Refusal {
    pub(crate) fn into_error(self) -> Error {
        let refusal = Box::new(self);
        match (refusal.status, refusal.code) {
            (401, _) => Error::Unauthorized(refusal),
            (_, Some(code::DENIED | code::UNAUTHORIZED_OPERATION)) | (403, _) => {
                Error::PermissionDenied(refusal)
            }
            // Neither a path that this release does not have nor one that a gateway does not know is an
            // object that is gone.
            (404, Some(code)) if code != code::UNSUPPORTED => Error::NotFound(refusal),
            (_, Some(code)) if code::NOT_FOUND.contains(&code) => Error::NotFound(refusal),
            _ => Error::Api(refusal),
        }
    }

    /// 429, and 5xx. The passthrough answers 500 also for plain refusals of the command line, which carry its
    /// code.
    pub(crate) fn is_passing(&self) -> bool {
        match self.status {
            429 => true,
            500 => {
                !self.request.is_the_command_lines()
                    || self.code.is_none_or(|code| code::PASSING.contains(&code))
            }
            status => status > 500,
        }
    }

    /// The line that a role lacks at least, for ONTAP's command line.
    #[must_use]
    pub fn role_line(&self) -> String {
        let Request { method, path } = &self.request;
        let known = ROLE_PATHS.iter().find(|known| path.strip_prefix(*known).is_some_and(is_below));
        let access = if *method == "GET" { "readonly" } else { "all" };
        format!(
            "security login rest-role create -role ROLE -api {} -access {access}",
            known.copied().unwrap_or(path)
        )
    }

    /// Whether the system, for all we know, may have begun on it before it failed.
    pub(crate) fn leaves_effect_open(&self) -> bool {
        self.status >= 500 && self.is_passing()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: HTTP {}: {}", self.request, self.status, self.message)?;
        if let Some(target) = &self.target {
            write!(f, " (about `{target}`)")?;
        }
        f.write_str(&code_suffix(self.code))
    }
}

fn code_suffix(code: Option<i64>) -> String {
    code.map(|code| format!(" [ONTAP {code}]")).unwrap_or_default()
}

/// `error` in an answer.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Fault {
    #[serde(default, deserialize_with = "value::number")]
    pub(crate) code: Option<i64>,
    #[serde(default, deserialize_with = "value::text")]
    pub(crate) message: Option<String>,
    #[serde(default, deserialize_with = "value::text")]
    pub(crate) target: Option<String>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.as_deref().unwrap_or("no reason given"))?;
        f.write_str(&code_suffix(self.code))
    }
}
