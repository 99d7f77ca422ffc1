//! One request: sent, repeated where that is safe, and its answer sorted.
//!
//! A change whose answer is lost may be in force. Repeating it is safe if it sets absolute values or deletes
//! by key; anything else is repeated only if ONTAP certainly did not take it up: no connection, or 429. Once
//! any attempt has left its effect open, the whole request ends as `Unconfirmed`, however the last attempt
//! failed.

use std::error::Error as StdError;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use secrecy::ExposeSecret;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::client::{Call, Client};
use crate::error::{Error, Fault, Refusal, Request, Result};
use crate::job::after_change;
use crate::query::Query;
use crate::tls::Auth;
use crate::unique::Unique;
use secrets::Secrets;

/// How much of an answer that is not ONTAP's own is shown.
const EXCERPT: usize = 200;

/// Twice a page of 10 000 locks.
const LONGEST_BODY: usize = 16 << 20;

/// Whether a request may be repeated when its answer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// A second time changes nothing: reads, absolute values, deletions by key. An attempt that hung may be
    /// taken up after the one that was confirmed, and set the same values again: do not set others before the
    /// attempt limit has passed, or read those back once more when it has.
    Safe,
    /// It must not happen twice.
    Once,
}

/// What is sent.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) body: Option<Value>,
    pub(crate) repeat: Repeat,
    /// Not even repeated if nothing was taken up: the caller looks again first whether it is still what is
    /// wanted.
    pub(crate) only_once: bool,
}

impl Ask {
    fn new(method: Method, url: Url, body: Option<Value>, repeat: Repeat) -> Self {
        Self { method, url, body, repeat, only_once: false }
    }

    pub(crate) fn get(url: Url) -> Self {
        Self::new(Method::GET, url, None, Repeat::Safe)
    }

    pub(crate) fn post(url: Url, body: Value) -> Self {
        Self::new(Method::POST, url, Some(body), Repeat::Once)
    }

    pub(crate) fn patch(url: Url, body: Value, repeat: Repeat) -> Self {
        Self::new(Method::PATCH, url, Some(body), repeat)
    }

    pub(crate) fn delete(url: Url, repeat: Repeat) -> Self {
        Self::new(Method::DELETE, url, None, repeat)
    }

    pub(crate) fn request(&self) -> Request {
        let method = match self.method {
            Method::POST => "POST",
            Method::PATCH => "PATCH",
            Method::DELETE => "DELETE",
            _ => "GET",
        };
        Request { method, path: self.url.path().to_owned() }
    }

    pub(crate) fn is_change(&self) -> bool {
        self.method != Method::GET
    }
}

/// An answer that is no refusal.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) request: Request,
    pub(crate) status: StatusCode,
    /// Null if there was none.
    pub(crate) body: Value,
    pub(crate) is_change: bool,
    /// Whether an attempt before this one may be in force, whatever is said here.
    effect_open: bool,
    secrets: Secrets,
}

impl Answer {
    pub(crate) fn not_understood(&self, what: impl ToString) -> Error {
        unreadable(&self.request, self.is_change, self.secrets.redact(&what.to_string()))
    }

    /// The error that the request ends with, for what was found in its answer.
    pub(crate) fn ending(&self, error: Error) -> Error {
        if self.effect_open { after_change(self.request.clone())(error) } else { error }
    }

    /// Reads the whole body as one object.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(&self.body).map_err(|e| self.not_understood(e))
    }
}

fn unreadable(request: &Request, is_change: bool, what: String) -> Error {
    let error = Error::Decode { request: request.clone(), what };
    if is_change { Error::Unconfirmed { request: request.clone(), source: Box::new(error) } } else { error }
}

/// How an attempt failed.
struct Miss {
    error: Error,
    again: Again,
    /// Whether a change may be in force nevertheless.
    effect_open: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    Never,
    IfSafe,
    /// Nothing was taken up.
    Always,
}

impl Client {
    /// The URL of a path below `/api`, each part of which is encoded.
    pub(crate) fn url(&self, path: &[&str], query: &Query) -> Result<Url> {
        let mut url = self.shared.origin.clone();
        // A part like these would lead to another object, for instance from one volume to all.
        let astray = |part: &str| matches!(part, "" | "." | "..") || part.contains(char::is_control);
        if let Some(part) = path.iter().find(|part| astray(part)) {
            return Err(Error::usage(format!(
                "{part:?} is no key of an object (/{})",
                path.join("/").escape_debug()
            )));
        }
        match url.path_segments_mut() {
            Ok(mut parts) => parts.clear().push("api").extend(path),
            Err(()) => return Err(Error::usage("the address of ONTAP cannot have a path")),
        };
        if !query.pairs().is_empty() {
            url.query_pairs_mut().extend_pairs(query.pairs());
        }
        Ok(url)
    }

    fn build(&self, ask: &Ask) -> RequestBuilder {
        let mut request = self
            .shared
            .http
            .request(ask.method.clone(), ask.url.clone())
            .header(ACCEPT, "application/hal+json")
            .header("X-Dot-Client-App", &self.shared.app);
        if let Some(svm) = &self.svm {
            request = request.header("X-Dot-SVM-Name", svm);
        }
        if let Some(body) = &ask.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        match &self.shared.auth {
            Auth::Basic { user, password } => request.basic_auth(user, Some(password.expose_secret())),
            Auth::Bearer(token) => request.bearer_auth(token.expose_secret()),
            Auth::Certificate { .. } => request,
        }
    }
}

impl Call<'_> {
    /// Sends it until there is an answer, it may not be repeated, or the time is up.
    pub(crate) async fn send(&self, ask: Ask) -> Result<Answer> {
        let retry = self.client.shared.retry;
        let mut effect_open = false;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let miss = match self.attempt(&ask).await {
                Ok(answer) => return Ok(Answer { effect_open, ..answer }),
                Err(miss) => miss,
            };
            effect_open |= miss.effect_open && ask.is_change();
            let may = match miss.again {
                Again::Never => false,
                Again::IfSafe => ask.repeat == Repeat::Safe,
                Again::Always => true,
            };
            if !may || ask.only_once || attempts >= retry.attempts {
                return Err(ending(&ask, effect_open, miss.error));
            }
            let asked_for = miss.error.refusal().and_then(|refusal| refusal.retry_after);
            let wait = retry.wait(attempts).max(asked_for.unwrap_or_default());
            if wait >= self.until.left() {
                let so_far = format!("{attempts} attempts; the next one would be in {wait:.1?}");
                return Err(ending(
                    &ask,
                    effect_open,
                    self.late(&ask.request(), Some(so_far), Some(miss.error)),
                ));
            }
            tracing::debug!(request = %ask.request(), attempts, ?wait, error = %miss.error, "asking again");
            sleep(wait).await;
        }
    }

    /// Waits before the next attempt of what was sent `attempts` times, or fails with `last` if there is to
    /// be none.
    pub(crate) async fn pause(&self, attempts: u32, last: Error) -> Result<()> {
        let retry = self.client.shared.retry;
        let asked_for = last.refusal().and_then(|refusal| refusal.retry_after);
        let wait = retry.wait(attempts).max(asked_for.unwrap_or_default());
        if attempts >= retry.attempts || wait >= self.until.left() {
            return Err(last);
        }
        tracing::debug!(attempts, ?wait, error = %last, "asking again");
        sleep(wait).await;
        Ok(())
    }

    /// The error of a call that took too long.
    pub(crate) fn late(&self, request: &Request, so_far: Option<String>, last: Option<Error>) -> Error {
        let (request, limit) = (request.clone(), self.until.limit);
        Error::Deadline { request, limit, so_far, source: last.map(Box::new) }
    }

    async fn attempt(&self, ask: &Ask) -> Result<Answer, Miss> {
        let left = self.until.left();
        if left.is_zero() {
            let error = self.late(&ask.request(), None, None);
            return Err(Miss { error, again: Again::Never, effect_open: false });
        }
        let limit = match ask.repeat {
            Repeat::Safe => left.min(self.client.shared.attempt_limit),
            // It has one chance, and that is all of the time.
            Repeat::Once => left,
        };
        match timeout(limit, self.exchange(ask)).await {
            Ok(outcome) => outcome,
            Err(_) if limit == left => {
                let error = self.late(&ask.request(), Some("no answer yet".to_owned()), None);
                Err(Miss { error, again: Again::Never, effect_open: true })
            }
            Err(elapsed) => {
                let error = Error::Lost { request: ask.request(), source: elapsed.into() };
                Err(Miss { error, again: Again::IfSafe, effect_open: true })
            }
        }
    }

    async fn exchange(&self, ask: &Ask) -> Result<Answer, Miss> {
        let request = ask.request();
        let response = match self.client.build(ask).send().await {
            Ok(response) => response,
            Err(error) => return Err(not_answered(request, error)),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = body(response, &request).await?;
        let secrets = self.client.shared.secrets.clone();
        if !status.is_success() {
            return Err(refused(request, status, &headers, &bytes, &secrets));
        }
        let is_change = ask.is_change();
        let answer = |request, mut body| {
            secrets.redact_answer(&mut body);
            Answer { request, status, body, is_change, effect_open: false, secrets }
        };
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(answer(request, Value::Null));
        }
        match serde_json::from_slice(&bytes) {
            Ok(Unique(body)) => Ok(answer(request, body)),
            Err(error) => {
                let error = Error::Decode { request, what: format!("no sound JSON: {error}") };
                Err(Miss { error, again: Again::Never, effect_open: true })
            }
        }
    }
}

/// The body of an answer, up to a bound: more than that is not from ONTAP.
async fn body(mut response: Response, request: &Request) -> Result<Vec<u8>, Miss> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| not_answered(request.clone(), error))? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > LONGEST_BODY {
            let what = format!("longer than {LONGEST_BODY} bytes");
            let error = Error::Decode { request: request.clone(), what };
            return Err(Miss { error, again: Again::Never, effect_open: true });
        }
    }
    Ok(bytes)
}

fn ending(ask: &Ask, effect_open: bool, error: Error) -> Error {
    if effect_open {
        return Error::Unconfirmed { request: ask.request(), source: Box::new(error) };
    }
    error
}

fn not_answered(request: Request, error: reqwest::Error) -> Miss {
    // The URL is left out, since its query is of no use to an operator; the path is in `request`.
    let error = error.without_url();
    if error.is_builder() {
        let error = Error::setup("a header or body of the request cannot be sent", error);
        return Miss { error, again: Again::Never, effect_open: false };
    }
    if refused_by_tls(&error) {
        return Miss {
            error: Error::Tls { request, source: error.into() },
            again: Again::Never,
            effect_open: false,
        };
    }
    if error.is_connect() {
        let error = Error::Unreachable { request, source: error.into() };
        return Miss { error, again: Again::Always, effect_open: false };
    }
    Miss { error: Error::Lost { request, source: error.into() }, again: Again::IfSafe, effect_open: true }
}

/// Whether a certificate was not accepted. With TLS 1.3 a server says so only after the handshake.
fn refused_by_tls(error: &reqwest::Error) -> bool {
    use rustls::AlertDescription as Alert;
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(current) = cause {
        match current.downcast_ref() {
            Some(rustls::Error::AlertReceived(
                Alert::BadCertificate
                | Alert::UnknownCA
                | Alert::CertificateRequired
                | Alert::CertificateExpired
                | Alert::CertificateRevoked
                | Alert::CertificateUnknown
                | Alert::UnsupportedCertificate
                | Alert::AccessDenied,
            )) => return true,
            Some(_) => return error.is_connect(),
            // An I/O error's source is its content's source: the content itself would be passed over.
            None => {
                cause = match current.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref()) {
                    Some(content) => Some(content),
                    None => current.source(),
                };
            }
        }
    }
    false
}

#[derive(Debug, Default, serde::Deserialize)]
struct ErrorBody {
    #[serde(default)]
    error: Fault,
}

fn refused(
    request: Request,
    status: StatusCode,
    headers: &HeaderMap,
    bytes: &[u8],
    secrets: &Secrets,
) -> Miss {
    let fault = serde_json::from_slice::<ErrorBody>(bytes).unwrap_or_default().error;
    let message = fault.message.map(|message| secrets.redact(&message));
    // Before it is cut, or the begin of a secret would be left.
    let message = message.unwrap_or_else(|| excerpt(&secrets.redact(&String::from_utf8_lossy(bytes))));
    let refusal = Refusal {
        request,
        status: status.as_u16(),
        code: fault.code,
        message,
        target: fault.target.map(|target| secrets.redact(&target)),
        retry_after: retry_after(headers),
    };
    let again = match refusal.status {
        429 => Again::Always,
        _ if refusal.is_passing() => Again::IfSafe,
        _ => Again::Never,
    };
    let effect_open = refusal.leaves_effect_open();
    Miss { error: refusal.into_error(), again, effect_open }
}

/// `Retry-After` in seconds. ONTAP sends no dates there.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

fn excerpt(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        return "no reason given".to_owned();
    }
    text.chars().filter(|c| !c.is_control()).take(EXCERPT).collect()
}

/// The refusal in an answer that has a good status: the command line passthrough may do that.
pub(crate) fn fault_in(body: &Value) -> Option<Fault> {
    let error = body.get("error").filter(|error| !error.is_null())?;
    Some(serde_json::from_value(error.clone()).unwrap_or_default())
}

/// The first of the failures that an answer lists beside what was done. An entry is an error, or holds one.
pub(crate) fn failure_in(body: &Value) -> Option<Fault> {
    let errors = body.get("errors").filter(|errors| !errors.is_null())?;
    let first = errors.as_array().map_or(Some(errors), |errors| errors.first())?;
    Some(fault_in(first).unwrap_or_else(|| serde_json::from_value(first.clone()).unwrap_or_default()))
}

impl Answer {
    /// The answer, unless it holds an error in spite of its status.
    pub(crate) fn whole(self) -> Result<Self> {
        self.check().map(|()| self)
    }

    /// As [`whole`](Self::whole).
    pub(crate) fn check(&self) -> Result<()> {
        let Some(fault) = fault_in(&self.body) else { return self.check_failures() };
        let refusal = Refusal {
            request: self.request.clone(),
            status: self.status.as_u16(),
            code: fault.code,
            message: fault.message.unwrap_or_else(|| "no reason given".to_owned()),
            target: fault.target,
            retry_after: None,
        };
        Err(self.ending(refusal.into_error()))
    }

    /// What is listed as failed is no refusal: the rest was done.
    fn check_failures(&self) -> Result<()> {
        let Some(fault) = failure_in(&self.body) else { return Ok(()) };
        let request = self.request.clone();
        let error = Error::Partial { request: request.clone(), got: 0, why: fault.to_string() };
        Err(if self.is_change { after_change(request)(error) } else { error })
    }
}
