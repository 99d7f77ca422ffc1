//! Who is at the other end of a connection, and what they may do.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::UnixListener;
use tokio::sync::watch;

use crate::access::{AccessList, Caller, Role};
use crate::who::named;

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) enum Guest {
    /// A user of this host, on the socket, as the kernel knew it when the connection was made. The socket's file mode
    /// has decided that they may do everything.
    User(Option<u32>),
    /// Somebody at this address, and what they have shown over TLS.
    Remote(SocketAddr, Option<Shown>),
}

/// What somebody has shown over TLS.
#[derive(Debug, Clone)]
pub(crate) enum Shown {
    /// The token of this one, with this very request.
    Token(Caller),
    /// A certificate with these DNS names, with the connection: its role is that of the moment.
    Certificate(Arc<[String]>, watch::Receiver<AccessList>),
}

impl Shown {
    /// Who that is now.
    pub(crate) fn caller(&self) -> Caller {
        match self {
            Self::Token(caller) => caller.clone(),
            Self::Certificate(names, access) => access.borrow().by_certificate(names),
        }
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Guest {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self::User(stream.io().peer_cred().ok().map(|peer| peer.uid()))
    }
}

impl Connected<Guest> for Guest {
    fn connect_info(guest: Guest) -> Self {
        guest
    }
}

impl Guest {
    /// Where it asks from; none on this host's socket.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::User(_) => None,
            Self::Remote(from, _) => Some(from.ip()),
        }
    }

    /// The name by which an order is written down, if they may give one that takes `role`.
    ///
    /// # Errors
    /// In words: why they may not, and what to do.
    pub(crate) async fn may(&self, role: Role) -> Result<String, String> {
        match self {
            Self::User(Some(uid)) => Ok(named(*uid).await),
            Self::User(None) => Ok("unknown user".to_owned()),
            Self::Remote(from, Some(shown)) => match shown.caller() {
                caller if caller.role >= role => {
                    Ok(format!("{caller}, from {}", from.ip().to_canonical()))
                }
                caller => Err(format!(
                    "this takes the role {role}, and you are {caller}: a section [[agent.access]] of this agent gives \
                     roles"
                )),
            },
            Self::Remote(_, None) => Err(
                "over the network this takes TLS and a role: give this agent an [agent.tls] and an [[agent.access]], \
                 or ask as root on its Unix socket (agent.socket)"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(role: Option<Role>) -> Guest {
        let shown = role.map(|role| Shown::Token(Caller::of("ada", role)));
        Guest::Remote("[::ffff:10.0.0.9]:4711".parse().unwrap(), shown)
    }

    #[tokio::test]
    async fn a_role_may_do_what_those_below_it_may() {
        let all = [Role::Viewer, Role::Operator, Role::Admin];
        for (i, has) in all.into_iter().enumerate() {
            for (j, takes) in all.into_iter().enumerate() {
                assert_eq!(remote(Some(has)).may(takes).await.is_ok(), i >= j, "{has} for {takes}");
            }
        }
        let who = remote(Some(Role::Admin)).may(Role::Operator).await.unwrap();
        assert_eq!(who, "ada (admin by token), from 10.0.0.9");
        let why = remote(Some(Role::Viewer)).may(Role::Operator).await.unwrap_err();
        assert!(why.contains("the role operator") && why.contains("ada (viewer by token)"), "{why}");
    }

    #[tokio::test]
    async fn without_tls_nobody_may_do_anything_over_the_network() {
        for role in [Role::Viewer, Role::Operator, Role::Admin] {
            assert!(remote(None).may(role).await.unwrap_err().contains("[agent.tls]"));
        }
        assert_eq!(Guest::User(Some(0)).may(Role::Admin).await, Ok("root (uid 0)".to_owned()));
    }
}
