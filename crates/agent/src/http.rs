//! The agent's own HTTP: liveness, readiness, metrics, status, and the view for its peers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use drivers::clients::{self, own::OwnClients};
use drivers::cluster::advertised::{self, ReachPage};
use drivers::storage::nfs_client::NfsClient;
use drivers::tls::Tls;
use jiff::Timestamp;
use recovery::model::{BrokerId, PeerView, Verdict};
use recovery::ports::Cluster;
use recovery::status::Status;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower_service::Service;

use crate::access::AccessList;
use crate::guest::{Guest, Shown};
use crate::serve::Door;
use crate::telemetry::Metrics;

/// The decision loop counts as hung when its last snapshot is older than this. It ticks ten times a second.
const LIVE_WITHIN: Duration = Duration::from_secs(5);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What `/v1/status` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatusPage {
    /// Version of the agent that answers.
    pub version: String,
    /// The snapshot of its last tick.
    #[serde(flatten)]
    pub status: Status,
}

/// Where the pages come from.
#[derive(Clone)]
struct Source {
    status: watch::Receiver<Status>,
    metrics: Arc<Metrics>,
}

/// What only peers are told, by the configuration in force.
#[derive(Clone)]
pub struct ForPeers {
    /// Who is connected to brokers here, and who may know it.
    pub own: Arc<OwnClients>,
    /// Whether brokers are reached from here.
    pub cluster: Arc<dyn Cluster>,
}

/// Binds `listen`, so that a port in use is found before anything else starts.
///
/// # Errors
/// When the address cannot be bound.
pub async fn bind(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen).await.with_context(|| {
        format!(
            "cannot listen on {listen} (agent.listen); another agent may be running here, or the address is \
             not on this host"
        )
    })
}

/// Answers requests until the task is dropped, `others` beside the pages that everybody has. With TLS it takes a
/// certificate or a token to be told more than whether the agent lives.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    tls: Option<(Arc<Tls>, watch::Receiver<AccessList>)>,
    status: watch::Receiver<Status>,
    metrics: Arc<Metrics>,
    others: Router,
) -> std::io::Result<()> {
    let source = Source { status: status.clone(), metrics: metrics.clone() };
    let pages = pages(status, metrics).merge(others);
    let door = tls.map(|(tls, access)| {
        let open = for_everybody(source, tls.opens_metrics(), access.clone(), pages.clone());
        Door { tls, access, open }
    });
    crate::serve::serve(listener, pages, door).await
}

/// What only peers are told.
pub fn peer_pages(peers: watch::Receiver<ForPeers>) -> Router {
    Router::new()
        .route(clients::PATH, get(clients_page))
        .route(&format!("{}{{broker}}", advertised::PATH), get(reach_page))
        .with_state(peers)
}

/// The pages for who shows no certificate: all of them with a token, and without one what tells nothing of the brokers.
fn for_everybody(source: Source, metrics: bool, access: watch::Receiver<AccessList>, all: Router) -> Router {
    let open = Router::new().route("/livez", get(livez)).route("/readyz", get(readyz_in_short));
    let open = if metrics { open.route("/metrics", get(metrics_page)) } else { open };
    let with_token = move |ConnectInfo(guest): ConnectInfo<Guest>, mut request: Request| {
        let (access, mut all) = (access.borrow().clone(), all.clone());
        async move {
            let sent = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
            let sent = sent.and_then(|value| value.split_once(' '));
            let sent = sent.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            let sent = sent.map(|(_, token)| token.trim().to_owned());
            let Some(sent) = sent else { return who_are_you(false) };
            let (Some(caller), Guest::Remote(from, _)) = (access.by_token(&sent).await, guest) else {
                return who_are_you(true);
            };
            request.extensions_mut().insert(ConnectInfo(Guest::Remote(from, Some(Shown::Token(caller)))));
            let Ok(answer) = all.call(request).await;
            answer
        }
    };
    open.with_state(source).fallback(with_token)
}

fn who_are_you(sent: bool) -> Response {
    let why = match sent {
        true => "the token is that of no [[agent.access]]\n",
        false => {
            "show a certificate of the agents' authority, or send the token of an [[agent.access]] as Authorization: \
             Bearer\n"
        }
    };
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], why).into_response()
}

/// The pages that can be read, wherever they are served.
pub(crate) fn pages(status: watch::Receiver<Status>, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .route("/v1/status", get(status_page))
        .route("/v1/view", get(view_page))
        .with_state(Source { status, metrics })
}

/// Whether the decision loop turns.
async fn livez(State(source): State<Source>) -> Response {
    let at = source.status.borrow().at;
    verdict(not_ticking(at, Timestamp::now()).into_iter().collect())
}

/// Whether the agent could decide now, and which checks failed of what its takeover would need.
async fn readyz(State(source): State<Source>) -> Response {
    let status = source.status.borrow().clone();
    let mut missing: Vec<String> = not_ticking(status.at, Timestamp::now()).into_iter().collect();
    missing.extend(status.ledger_missing().map(str::to_owned));
    if !status.metadata_read {
        missing.push("no surviving broker gave its broker list lately".to_owned());
    }
    let mut answer = verdict_of(missing);
    // The detail: such a standby decides, and its takeover would fail.
    let failed = status.checks.iter().filter(|seen| seen.found.failed());
    failed.for_each(|seen| answer.1.push_str(&format!("not ready: {}\n", seen.found)));
    let warned = status.checks.iter().filter(|seen| seen.found.verdict == Verdict::Warn);
    warned.for_each(|seen| answer.1.push_str(&format!("warning: {}\n", seen.found)));
    answer.into_response()
}

/// The same without the detail, for who need not know it.
async fn readyz_in_short(state: State<Source>) -> Response {
    let status = readyz(state).await.status();
    (status, if status == StatusCode::OK { "ok\n" } else { "not ready\n" }).into_response()
}

fn not_ticking(at: Option<Timestamp>, now: Timestamp) -> Option<String> {
    let Some(at) = at else { return Some("no decision has been made yet".to_owned()) };
    let age = Duration::try_from(now.duration_since(at)).unwrap_or_default();
    (age > LIVE_WITHIN).then(|| format!("the last decision was made {} s ago", age.as_secs()))
}

fn verdict(missing: Vec<String>) -> Response {
    verdict_of(missing).into_response()
}

fn verdict_of(missing: Vec<String>) -> (StatusCode, String) {
    if missing.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n")
}

async fn metrics_page(State(source): State<Source>) -> Response {
    let status = source.status.borrow().clone();
    match source.metrics.text(&status) {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn status_page(State(source): State<Source>) -> Json<StatusPage> {
    let status = source.status.borrow().clone();
    Json(StatusPage { version: env!("CARGO_PKG_VERSION").to_owned(), status })
}

/// What this agent sees, for its peers. An agent that no longer looks must not be taken for one that does.
async fn view_page(State(source): State<Source>) -> Response {
    let (at, view) = {
        let status = source.status.borrow();
        (status.at, status.view.clone())
    };
    match (not_ticking(at, Timestamp::now()), view) {
        (None, Some(view)) => {
            // Read for each answer: the kernel's module may be loaded, or be given its id, at any time.
            let nfs_client = NfsClient::read().unwrap_or_default().id;
            Json(PeerView { nfs_client, ..view }).into_response()
        }
        (why, _) => verdict(vec![why.unwrap_or_else(|| "there is no view yet".to_owned())]),
    }
}

/// Who is connected to the brokers here, for the peers that may take them over.
async fn clients_page(
    State(peers): State<watch::Receiver<ForPeers>>,
    ConnectInfo(guest): ConnectInfo<Guest>,
) -> Response {
    let ForPeers { own, .. } = peers.borrow().clone();
    if !guest.address().is_some_and(|from| own.may_read(from)) {
        return only_peers(&guest);
    }
    match own.page().await {
        Ok(page) => Json(page.as_ref()).into_response(),
        Err(error) => verdict(vec![format!("the kernel does not tell its connections: {error}")]),
    }
}

/// Whether what the cluster advertises for a broker leads to it from this host. A peer asks that before it
/// calls the broker back; it names no address, so that nobody can have this agent dial what he likes.
async fn reach_page(
    State(peers): State<watch::Receiver<ForPeers>>,
    ConnectInfo(guest): ConnectInfo<Guest>,
    Path(broker): Path<i32>,
) -> Response {
    let ForPeers { own, cluster } = peers.borrow().clone();
    if !guest.address().is_some_and(|from| own.may_read(from)) {
        return only_peers(&guest);
    }
    let (host, found) = (own.host().clone(), cluster.reach(BrokerId(broker)).await);
    Json(ReachPage { host, found }).into_response()
}

fn only_peers(guest: &Guest) -> Response {
    let from = guest.address().map_or_else(|| "the socket".to_owned(), |from| from.to_string());
    let why = format!("only peers are told, and {from} is not the address in the url of a [[peer]] here\n");
    (StatusCode::FORBIDDEN, why).into_response()
}
