//! The Unix socket: the pages that HTTP has, and orders, for root on this host.
//!
//! Who may connect is decided by the file's mode alone, and the file has that mode from its first moment.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use axum::body::Bytes;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Path as UrlPath, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use drivers::clients::{KnownClients, daemon};
use jiff::Timestamp;
use recovery::model::BrokerId;
use recovery::ports::chain;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::net::UnixListener;
use tokio::sync::watch;

use crate::orders::{Desk, OrderError, Request};
use crate::reload::{NotReloaded, Reloads};
use crate::who::named;

/// How long an approval is good for, if its end is not given.
const APPROVED_FOR: Duration = Duration::from_secs(15 * 60);

/// Where a reload is asked for.
pub(crate) const RELOAD: &str = "/v1/reload";

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

/// The user at the other end, as the kernel knew it when the connection was made.
#[derive(Debug, Clone, Copy)]
struct Peer(Option<u32>);

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self(stream.io().peer_cred().ok().map(|peer| peer.uid()))
    }
}

/// Answers until the task is dropped.
///
/// # Errors
/// When the listener fails.
pub(crate) async fn serve(
    listener: UnixListener,
    pages: Router,
    clients: Arc<KnownClients>,
    desk: watch::Receiver<Desk>,
    reloads: Arc<Reloads>,
) -> std::io::Result<()> {
    let known = Router::new().route(daemon::PATH, get(known_clients)).with_state(clients);
    let orders = Router::new()
        .route("/v1/{order}", post(of_all))
        .route("/v1/brokers/{id}/{order}", post(of_one))
        .with_state(desk);
    let reload = Router::new().route(RELOAD, post(reload)).with_state(reloads);
    let service =
        pages.merge(known).merge(orders).merge(reload).into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, service).await
}

/// Who is connected to brokers on other hosts, as their agents told, for a takeover by hand.
async fn known_clients(State(clients): State<Arc<KnownClients>>) -> Json<Vec<daemon::Told>> {
    Json(clients.all())
}

/// What may be said of an order. All of it may be left out where it makes no difference.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    /// Why.
    #[serde(default)]
    reason: String,
    /// When it ends by itself.
    until: Option<Timestamp>,
}

async fn of_all(
    State(desk): State<watch::Receiver<Desk>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    UrlPath(order): UrlPath<String>,
    body: Bytes,
) -> Response {
    give(&desk, peer, &order, None, &body).await
}

async fn of_one(
    State(desk): State<watch::Receiver<Desk>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    UrlPath((broker, order)): UrlPath<(String, String)>,
    body: Bytes,
) -> Response {
    match broker.parse() {
        Ok(id) => give(&desk, peer, &order, Some(BrokerId(id)), &body).await,
        Err(_) => problem(StatusCode::NOT_FOUND, format!("`{broker}` is not a node id")),
    }
}

async fn give(
    desk: &watch::Receiver<Desk>,
    peer: Peer,
    order: &str,
    broker: Option<BrokerId>,
    body: &[u8],
) -> Response {
    let Body { reason, until } = match read(body) {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let soon = || Timestamp::now().saturating_add(APPROVED_FOR).unwrap_or(Timestamp::MAX);
    let request = match (order, broker) {
        ("pause", broker) => Request::Pause { broker, reason, until },
        ("resume", broker) => Request::Resume { broker },
        ("ack", broker) => Request::Ack { broker, reason },
        ("approve", Some(broker)) => Request::Approve { broker, until: until.unwrap_or_else(soon) },
        _ => return problem(StatusCode::NOT_FOUND, format!("there is no order `{order}` here")),
    };
    let desk = desk.borrow().clone();
    match desk.give(who(peer).await, request).await {
        Ok(given) => Json(given).into_response(),
        Err(error) => told(error),
    }
}

/// What a body says; of none, what it says where everything is left out.
#[expect(clippy::result_large_err, reason = "it is the answer, once")]
fn read<T: Default + DeserializeOwned>(body: &[u8]) -> Result<T, Response> {
    let read = if body.is_empty() { Ok(T::default()) } else { serde_json::from_slice(body) };
    read.map_err(|error| {
        problem(StatusCode::BAD_REQUEST, format!("the body is not what is expected: {error}"))
    })
}

async fn who(peer: Peer) -> String {
    match peer.0 {
        Some(uid) => named(uid).await,
        None => "unknown user".to_owned(),
    }
}

async fn reload(
    State(reloads): State<Arc<Reloads>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Bytes,
) -> Response {
    let ask = match read(&body) {
        Ok(ask) => ask,
        Err(refused) => return refused,
    };
    match reloads.ask(who(peer).await, ask).await {
        Ok(report) => Json(report).into_response(),
        Err(NotReloaded::Config(problems)) => (StatusCode::BAD_REQUEST, Json(problems)).into_response(),
        Err(NotReloaded::Refused(refused)) => (StatusCode::CONFLICT, Json(refused)).into_response(),
        Err(error) => problem(StatusCode::SERVICE_UNAVAILABLE, chain(&error)),
    }
}

fn told(error: OrderError) -> Response {
    match error {
        OrderError::Usage(why) => problem(StatusCode::BAD_REQUEST, why),
        OrderError::UnknownBroker(why) => problem(StatusCode::NOT_FOUND, why),
        OrderError::Refused(refused) => (StatusCode::CONFLICT, Json(refused)).into_response(),
        error => problem(StatusCode::SERVICE_UNAVAILABLE, chain(&error)),
    }
}

fn problem(code: StatusCode, why: String) -> Response {
    (code, Json(json!({ "error": why }))).into_response()
}
