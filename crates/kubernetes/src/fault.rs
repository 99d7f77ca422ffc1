//! Why the API server did not do as asked: told by the code and the reason of its answer, and with what to do.

use std::error::Error as _;
use std::time::Duration;

use kube::core::Status;
use recovery::ports::chain;

use crate::crd::{GROUP, INSTALL, VERSION};

/// What a request came to, if to nothing good.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The API server answered, and not with what was asked for.
    #[error("{}", words(asked, status))]
    Said {
        /// The request.
        asked: Asked,
        /// The answer.
        status: Box<Status>,
    },
    /// Nobody answered, or not so that it can be understood.
    #[error("{server} did not answer ({why}): see that an API server is up and can be reached from here")]
    Mute {
        /// The API server.
        server: String,
        /// What went wrong.
        why: String,
        /// Whether the request may have left this host, so that it may have taken effect.
        sent: bool,
    },
    /// What was answered is none of what is asked for.
    #[error(
        "{server} gave an answer that this understudy does not understand ({why}): see who else writes {resource}"
    )]
    Garbled {
        /// The API server.
        server: String,
        /// What was asked for.
        resource: String,
        /// What is wrong with it.
        why: String,
    },
    /// The time for one attempt was over.
    #[error("{server} did not answer within {limit:?}: see that an API server is up, and etcd behind it")]
    Late {
        /// The API server.
        server: String,
        /// The time.
        limit: Duration,
    },
    /// It is not known whom to ask, or as whom.
    #[error("it is not known which cluster to ask: {0}")]
    Setup(String),
}

/// A request, as a refusal names it.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// As in a role, such as `update`.
    pub(crate) verb: &'static str,
    /// As in `kubectl auth can-i`, such as `ledgercells.understudy.dev`.
    pub(crate) resource: String,
    /// `None` where it is the cluster's.
    pub(crate) namespace: Option<String>,
    pub(crate) user: User,
}

/// What of this crate asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    /// Its section of the configuration.
    pub(crate) section: &'static str,
    /// The manifest with its role.
    pub(crate) role: &'static str,
}

impl Fault {
    /// What `error` means for a request.
    pub(crate) fn of(error: kube::Error, asked: Asked, server: &str) -> Self {
        match error {
            kube::Error::Api(status) => Self::Said { asked, status },
            kube::Error::SerdeError(error) => {
                Self::Garbled { server: server.to_owned(), resource: asked.resource, why: error.to_string() }
            }
            error => {
                let why = error.source().map_or_else(|| chain(&error), chain);
                Self::Mute { server: server.to_owned(), why, sent: !is_unconnected(&error) }
            }
        }
    }

    /// The code of the answer; 0 without one.
    pub(crate) fn code(&self) -> u16 {
        if let Self::Said { status, .. } = self { status.code } else { 0 }
    }

    /// Whether the same request may be answered later.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Said { status, .. } => matches!(status.code, 408 | 410 | 429 | 500 | 502..=504),
            Self::Mute { .. } | Self::Late { .. } => true,
            Self::Garbled { .. } | Self::Setup(_) => false,
        }
    }

    /// Whether a write that ended so may have taken effect, now or later.
    pub(crate) fn may_have_written(&self) -> bool {
        match self {
            Self::Said { status, .. } => matches!(status.code, 408 | 500 | 502..=504),
            Self::Mute { sent, .. } => *sent,
            Self::Late { .. } | Self::Garbled { .. } => true,
            Self::Setup(_) => false,
        }
    }

    /// Whether the answer is that there is no object `name`, and not that nobody knows such objects.
    pub(crate) fn is_absent(&self, name: &str) -> bool {
        let Self::Said { status, .. } = self else { return false };
        status.code == 404 && status.details.as_ref().is_some_and(|details| details.name == name)
    }
}

/// Nothing was sent where no connection came about.
fn is_unconnected(error: &kube::Error) -> bool {
    let mut next = error.source();
    while let Some(cause) = next {
        if cause.downcast_ref::<hyper_util::client::legacy::Error>().is_some_and(|error| error.is_connect()) {
            return true;
        }
        next = cause.source();
    }
    false
}

fn words(asked: &Asked, status: &Status) -> String {
    let Asked { verb, resource, user: User { section, role }, .. } = asked;
    let message = &status.message;
    let namespace = asked.namespace.as_deref().unwrap_or_default();
    let (place, option) = match asked.namespace {
        Some(_) => (format!("in namespace {namespace}"), format!(" -n {namespace}")),
        None => ("of the cluster".to_owned(), String::new()),
    };
    let no_namespace = status.details.as_ref().is_some_and(|details| details.kind == "namespaces");
    match status.code {
        401 => "the API server does not accept the credentials: renew the kubeconfig, or see that the service account \
                of this pod is there"
            .to_owned(),
        403 if message.contains("being terminated") => {
            format!("the namespace {namespace} is being deleted: what it holds goes, and nothing may be written")
        }
        403 => format!(
            "these credentials may not {verb} {resource} {place} ({message}): bind the role of \
             deploy/kubernetes/{role} to them, and ask `kubectl auth can-i {verb} {resource}{option}`"
        ),
        404 if no_namespace => format!(
            "there is no namespace {namespace}: correct {section}.namespace, or run `kubectl create namespace {namespace}`"
        ),
        404 => format!(
            "the cluster does not know {resource} in version {VERSION}: install the definitions of {GROUP} by \
             `{INSTALL}`"
        ),
        400 if message.contains("unknown field") => format!(
            "the cluster's definition of {resource} is older than this understudy ({message}): bring it up to date by \
             `{INSTALL}`"
        ),
        413 => format!("the API server refuses to {verb} {resource}, for it is too large ({message})"),
        code => format!("the API server refuses to {verb} {resource} {place} ({code}: {message})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: u16, message: &str) -> Fault {
        let asked = Asked {
            verb: "update",
            resource: "ledgercells.understudy.dev".to_owned(),
            namespace: Some("kafka".to_owned()),
            user: User { section: "ledger", role: "ledger-rbac.yaml" },
        };
        Fault::Said { asked, status: Status::failure(message, "").with_code(code).boxed() }
    }

    #[test]
    fn an_answer_is_told_with_verb_resource_namespace_and_remedy() {
        let words = |code, message| said(code, message).to_string();
        let denied = words(403, "no role");
        assert!(denied.contains("may not update ledgercells.understudy.dev in namespace kafka"), "{denied}");
        assert!(denied.contains("ledger-rbac.yaml"), "{denied}");
        assert!(words(404, "404 page not found").contains("understudy kubernetes crd | kubectl apply -f -"));
        let skew = words(400, "strict decoding error: unknown field \"spec.closed\"");
        assert!(skew.contains("older than this understudy") && skew.contains("spec.closed"), "{skew}");
        assert!(words(422, "an epoch never goes down").contains("422: an epoch never goes down"));
    }

    #[test]
    fn only_what_is_known_to_pass_is_asked_again() {
        for code in [408, 410, 429, 500, 502, 503, 504] {
            assert!(said(code, "").passes(), "{code}");
        }
        for code in [400, 401, 403, 404, 409, 413, 422] {
            assert!(!said(code, "").passes() && !said(code, "").may_have_written(), "{code}");
        }
        assert!(!said(429, "").may_have_written(), "it was turned away at the door");
        assert!(said(504, "").may_have_written());
    }
}
