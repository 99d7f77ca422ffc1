//! The Unix socket: the pages that HTTP has, and orders, for root on this host.
//!
//! Who may connect is decided by the file's mode alone, and the file has that mode from its first moment.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use axum::Router;
use axum::extract::State;
use axum::response::Json;
use axum::routing::get;
use drivers::clients::{KnownClients, daemon};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixListener;

use crate::guest::Guest;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// Listens at `path`. What a dead agent has left there is replaced.
///
/// # Errors
/// When another agent answers there, something else is there, or the socket cannot be made.
pub(crate) fn bind(path: &Path) -> anyhow::Result<UnixListener> {
    let place = || format!("cannot listen on {} (agent.socket)", path.display());
    make_way(path).with_context(place)?;
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(place)?;
    }
    listen(path).with_context(place)
}

/// A socket whose agent is gone refuses; that of a living one accepts.
fn make_way(path: &Path) -> anyhow::Result<()> {
    let kind = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(metadata) => metadata.file_type(),
    };
    if !kind.is_socket() {
        bail!("something that is not a socket is there; move it away, or set another path");
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!("another agent answers there; stop it first"),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(std::fs::remove_file(path)?),
        Err(error) => Err(error).context("it cannot be told whether another agent lives there"),
    }
}

fn listen(path: &Path) -> std::io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before it is bound: Linux gives the file the mode that its socket has.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into())
}

/// Answers until the task is dropped.
///
/// # Errors
/// When the listener fails.
pub(crate) async fn serve(
    listener: UnixListener,
    pages: Router,
    clients: Arc<KnownClients>,
) -> std::io::Result<()> {
    let known = Router::new().route(daemon::PATH, get(known_clients)).with_state(clients);
    let service = pages.merge(known).into_make_service_with_connect_info::<Guest>();
    axum::serve(listener, service).await
}

/// Who is connected to brokers on other hosts, as their agents told, for a takeover by hand.
async fn known_clients(State(clients): State<Arc<KnownClients>>) -> Json<Vec<daemon::Told>> {
    Json(clients.all())
}
