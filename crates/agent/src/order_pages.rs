//! Orders and reload as pages, for whoever may give them: root on the Unix socket, and over TLS by role.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Request as Asked, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use axum::{Extension, Router};
use jiff::Timestamp;
use recovery::model::{BrokerId, HostName};
use recovery::ports::chain;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::watch;

use crate::access::Role;
use crate::guest::Guest;
use crate::orders::{Desk, OrderError, Request};
use crate::reload::{NotReloaded, Reloads};

/// How long an approval is good for, if its end is not given.
const APPROVED_FOR: Duration = Duration::from_secs(15 * 60);

/// How long a switchover may wait to be taken up, if that is not given.
const TAKEN_UP_WITHIN: Duration = Duration::from_secs(10 * 60);

/// Where a reload is asked for.
pub(crate) const RELOAD: &str = "/v1/reload";

/// The longest body that is read, in bytes: a sentence and some times.
const LONGEST_BODY: usize = 16 << 10;

/// Who gives an order, by the name that is written down.
#[derive(Clone)]
struct Giver(String);

/// The pages.
pub(crate) fn routes(desk: watch::Receiver<Desk>, reloads: Arc<Reloads>) -> Router {
    let orders = Router::new()
        .route("/v1/{order}", post(of_all))
        .route("/v1/brokers/{id}/{order}", post(of_one))
        .route_layer(from_fn_with_state(Role::Operator, admit))
        .with_state(desk);
    let reload = Router::new()
        .route(RELOAD, post(reload))
        .route_layer(from_fn_with_state(Role::Admin, admit))
        .with_state(reloads);
    orders.merge(reload).layer(DefaultBodyLimit::max(LONGEST_BODY))
}

/// Lets in who has the role, before a body is read.
async fn admit(
    State(role): State<Role>,
    ConnectInfo(guest): ConnectInfo<Guest>,
    mut request: Asked,
    next: Next,
) -> Response {
    // A browser that has a certificate shows it for every page that has it ask here.
    let is_of_a_page = request.headers().contains_key(header::ORIGIN);
    let admitted = match guest.may(role).await {
        Ok(_) if is_of_a_page => Err("orders are not taken from web pages (header Origin)".to_owned()),
        admitted => admitted,
    };
    match admitted {
        Ok(name) => {
            request.extensions_mut().insert(Giver(name));
            next.run(request).await
        }
        Err(why) => {
            // Of strangers the log says nothing: they could fill it.
            if let Guest::Remote(from, Some(shown)) = &guest {
                let caller = shown.caller();
                tracing::warn!(%from, %caller, page = request.uri().path(), "an order was refused: {why}");
            }
            problem(StatusCode::FORBIDDEN, why)
        }
    }
}

/// What is said of a pause. All of it may be left out where it makes no difference.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    /// Why.
    #[serde(default)]
    reason: String,
    /// When it ends by itself.
    until: Option<Timestamp>,
}

/// What is said where a person has looked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Found {
    /// What was found.
    #[serde(default)]
    reason: String,
}

/// What is said of an approval.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Approval {
    /// When it ends by itself.
    until: Option<Timestamp>,
}

/// Nothing is to be said.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// What is said of a switchover.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    /// The host that takes the broker.
    to: Option<String>,
    /// Not before this; now, if it is not given.
    at: Option<Timestamp>,
    /// It is void if nobody has taken it up until then.
    until: Option<Timestamp>,
}

async fn of_all(
    State(desk): State<watch::Receiver<Desk>>,
    Extension(giver): Extension<Giver>,
    Path(order): Path<String>,
    body: Bytes,
) -> Response {
    give(&desk, giver, &order, None, &body).await
}

async fn of_one(
    State(desk): State<watch::Receiver<Desk>>,
    Extension(giver): Extension<Giver>,
    Path((broker, order)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    match broker.parse() {
        Ok(id) => give(&desk, giver, &order, Some(BrokerId(id)), &body).await,
        Err(_) => problem(StatusCode::NOT_FOUND, format!("`{broker}` is not a node id")),
    }
}

async fn give(
    desk: &watch::Receiver<Desk>,
    Giver(who): Giver,
    order: &str,
    broker: Option<BrokerId>,
    body: &[u8],
) -> Response {
    let request = match request(order, broker, body) {
        Ok(request) => request,
        Err(refused) => return refused,
    };
    let desk = desk.borrow().clone();
    match desk.give(who, request).await {
        Ok(given) => Json(given).into_response(),
        Err(error) => told(error),
    }
}

#[expect(clippy::result_large_err, reason = "it is the answer, once")]
fn request(order: &str, broker: Option<BrokerId>, body: &[u8]) -> Result<Request, Response> {
    let later = |time: Timestamp, by| time.saturating_add(by).unwrap_or(Timestamp::MAX);
    let now = Timestamp::now();
    Ok(match (order, broker) {
        ("switchover", Some(broker)) => {
            let Move { to, at, until } = read(body)?;
            let Some(to) = to.map(HostName) else {
                let why = "`to` is missing: the host that takes the broker".to_owned();
                return Err(problem(StatusCode::BAD_REQUEST, why));
            };
            let at = at.unwrap_or(now);
            let until = until.unwrap_or_else(|| later(at, TAKEN_UP_WITHIN));
            Request::Switchover { broker, to, at, until }
        }
        ("pause", broker) => {
            let Pause { reason, until } = read(body)?;
            Request::Pause { broker, reason, until }
        }
        ("resume", broker) => read(body).map(|Nothing {}| Request::Resume { broker })?,
        ("ack", broker) => read(body).map(|Found { reason }| Request::Ack { broker, reason })?,
        ("approve", Some(broker)) => {
            let Approval { until } = read(body)?;
            Request::Approve { broker, until: until.unwrap_or_else(|| later(now, APPROVED_FOR)) }
        }
        _ => return Err(problem(StatusCode::NOT_FOUND, format!("there is no order `{order}` here"))),
    })
}

/// What a body says; of none, what it says where everything is left out.
#[expect(clippy::result_large_err, reason = "it is the answer, once")]
fn read<T: Default + DeserializeOwned>(body: &[u8]) -> Result<T, Response> {
    let read = if body.is_empty() { Ok(T::default()) } else { serde_json::from_slice(body) };
    read.map_err(|error| {
        problem(
            StatusCode::BAD_REQUEST,
            format!("the body is not what is expected: {error}; a time is written as 2026-03-01T22:00:00Z"),
        )
    })
}

async fn reload(
    State(reloads): State<Arc<Reloads>>,
    Extension(Giver(who)): Extension<Giver>,
    body: Bytes,
) -> Response {
    let ask = match read(&body) {
        Ok(ask) => ask,
        Err(refused) => return refused,
    };
    match reloads.ask(who, ask).await {
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
