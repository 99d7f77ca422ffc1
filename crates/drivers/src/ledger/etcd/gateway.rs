//! Asking etcd: which member, how long, and what an answer that did not come may mean.
//!
//! A read that gets no answer is asked of the next member. A write is not: once it has left this host, nobody
//! here knows whether it happened, and a second attempt could meet the effect of the first. Only when no
//! connection could be made, so that nothing was sent, does a write go to the next member.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use secrets::Secrets;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

use super::tls::{self, EtcdTls};
use super::wire::{
    AllRead, Committed, Found, Granted, Header, KeptAlive, KeyValue, Number, Range, Reads, Refusal, Status,
    Token, Txn,
};
use crate::fence::{OptionValue, resolve};
use recovery::ports::BoxError;

/// Keys that are read in one question. etcd refuses more than 128 (`--max-txn-ops`).
const AT_A_TIME: usize = 100;

/// Keys in one answer, so that a long history does not come as one.
const PAGE: i64 = 500;

/// No answer is longer: etcd itself sends no more than 2 MiB of one key, and pages are of 500 small ones.
const LONGEST_ANSWER: usize = 16 << 20;

/// No ledger has as many keys: what goes on beyond it has no end.
const MOST_KEYS: usize = 1_000_000;

/// gRPC statuses that say for certain that nothing was done: invalid argument, not found, permission denied,
/// resource exhausted, failed precondition, out of range, unauthenticated. All others leave it open.
const DEFINITE: [i32; 7] = [3, 5, 7, 8, 9, 11, 16];

/// Why etcd did not do as asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Nobody answered. If it was a write, it was not sent.
    #[error("no member of etcd answered: {}", tried.join("; "))]
    Unreachable { tried: Vec<String> },
    /// A definite no.
    #[error("{endpoint} refused: {message}{}", advice(message))]
    Refused { endpoint: String, message: String },
    /// A write was sent and not confirmed.
    #[error(
        "{endpoint} did not confirm it ({why}): it may have been written or not, and is read anew before anything \
         goes on"
    )]
    Lost { endpoint: String, why: String },
    /// Records that were there are gone.
    #[error(
        "{what}: it was restored from a backup, or these are other members. Takeovers may be missing in it: compare \
         `understudy history` with the hosts that run each broker, then restart this agent to accept it"
    )]
    WentBack { what: String },
    /// What is needed to ask at all is missing.
    #[error("{what}")]
    Setup { what: String, source: BoxError },
}

/// What an operator does about a refusal.
fn advice(message: &str) -> &'static str {
    const KNOWN: [(&str, &str); 8] = [
        ("database space exceeded", "; compact and defragment etcd, then run `etcdctl alarm disarm`"),
        ("user name is empty", "; set ledger.user and ledger.password"),
        ("authentication failed", "; see that ledger.user and ledger.password are right"),
        ("authentication is not enabled", "; remove ledger.user, or run `etcdctl auth enable`"),
        ("invalid auth token", "; see that ledger.user and ledger.password are right"),
        (
            "permission denied",
            "; grant the user's role readwrite on ledger.prefix (`etcdctl role grant-permission`)",
        ),
        ("no leader", "; most members of etcd are down or cut off"),
        ("timed out", "; most members of etcd are down or cut off, or their disks are slow"),
    ];
    KNOWN.iter().find(|(said, _)| message.contains(said)).map_or("", |(_, advice)| advice)
}

/// Whether a request may have changed something when its answer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Harmless to repeat.
    Read,
    Write,
}

/// A user of etcd.
#[derive(Debug, Clone)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: OptionValue,
}

#[derive(Serialize)]
struct Credentials<'a> {
    name: &'a str,
    password: &'a str,
}

/// The members of one etcd cluster.
#[derive(Debug)]
pub(super) struct Gateway {
    endpoints: Vec<String>,
    timeout: Duration,
    login: Option<Login>,
    tls: Option<EtcdTls>,
    http: OnceCell<reqwest::Client>,
    token: Mutex<Option<SecretString>>,
    /// What of the login a member could repeat.
    secrets: Mutex<Secrets>,
    /// The member that answered last, which is asked first.
    preferred: AtomicUsize,
    /// The cluster and the newest revision that this process has seen.
    seen: Mutex<Option<(String, Number)>>,
}

/// How an attempt at one member failed.
enum Miss {
    /// The next member may know better.
    Next(String),
    /// There is no point in asking further.
    Final(Failure),
}

impl Gateway {
    pub(super) fn new(
        endpoints: Vec<String>,
        timeout: Duration,
        login: Option<Login>,
        tls: Option<EtcdTls>,
    ) -> Self {
        let (http, token, seen) = (OnceCell::new(), Mutex::default(), Mutex::default());
        let (secrets, preferred) = (Mutex::default(), AtomicUsize::new(0));
        Self { endpoints, timeout, login, tls, http, token, secrets, preferred, seen }
    }

    pub(super) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Reads one page, as of now or later than any answer before.
    pub(super) async fn range(&self, range: &Range) -> Result<Found, Failure> {
        let before = lock(&self.seen).clone();
        let found: Found = self.ask("kv/range", range, Kind::Read).await?;
        self.note(before, &found.header)?;
        Ok(found)
    }

    /// Reads one key.
    pub(super) async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Number), Failure> {
        let found = self.range(&Range::of(key)).await?;
        Ok((found.kvs.into_iter().next(), found.header.revision))
    }

    /// Reads all of a range at one moment, page by page.
    pub(super) async fn all(&self, range: Range) -> Result<Vec<KeyValue>, Failure> {
        let mut page = self.range(&range.clone().limited(PAGE)).await?;
        let revision = page.header.revision;
        let mut kvs = page.kvs;
        while page.more
            && let Some(last) = kvs.last()
        {
            if kvs.len() > MOST_KEYS {
                let what = format!("etcd has more than {MOST_KEYS} keys of this ledger");
                return Err(Failure::Setup { what, source: "is it this cluster's ledger?".into() });
            }
            let next = range.clone().after(&last.key).at(revision).limited(PAGE);
            page = self.range(&next).await?;
            kvs.append(&mut page.kvs);
        }
        Ok(kvs)
    }

    /// Reads many single keys, [`AT_A_TIME`] in one question; in their order.
    pub(super) async fn each(&self, keys: &[String]) -> Result<Vec<Option<KeyValue>>, Failure> {
        let mut read = Vec::with_capacity(keys.len());
        for keys in keys.chunks(AT_A_TIME) {
            let before = lock(&self.seen).clone();
            // A transaction that only reads may be asked again.
            let all: AllRead = self.ask("kv/txn", &Reads::of(keys), Kind::Read).await?;
            self.note(before, &all.header)?;
            if all.responses.len() != keys.len() {
                let what = format!("{} of {} keys were read", all.responses.len(), keys.len());
                return Err(Failure::Setup { what, source: "is it etcd 3.4 or newer?".into() });
            }
            read.extend(all.responses.into_iter().map(|one| one.response_range.kvs.into_iter().next()));
        }
        Ok(read)
    }

    /// Makes the changes if every condition holds. `false`: one did not, and nothing was changed.
    pub(super) async fn commit(&self, txn: &Txn) -> Result<bool, Failure> {
        let before = lock(&self.seen).clone();
        let committed: Committed = self.ask("kv/txn", txn, Kind::Write).await?;
        self.note(before, &committed.header)?;
        Ok(committed.succeeded)
    }

    /// A new lease.
    pub(super) async fn grant(&self, ttl: Duration) -> Result<Number, Failure> {
        let seconds = Number(i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX));
        let wish = serde_json::json!({ "TTL": seconds, "ID": Number(0) });
        // One too many of them is harmless: it runs out.
        let granted: Granted = self.ask("lease/grant", &wish, Kind::Read).await?;
        Ok(granted.id)
    }

    /// Whether the lease still lived and begins anew.
    pub(super) async fn renew(&self, lease: Number) -> Result<bool, Failure> {
        let wish = serde_json::json!({ "ID": lease });
        let kept: KeptAlive = self.ask("lease/keepalive", &wish, Kind::Read).await?;
        Ok(kept.result.seconds > Number(0))
    }

    /// How a member is that answers.
    pub(super) async fn status(&self) -> Result<Status, Failure> {
        self.ask("maintenance/status", &serde_json::json!({}), Kind::Read).await
    }

    /// Refuses answers of a cluster that is not the one seen before or has lost revisions. `before`: what was
    /// seen when the request was sent, for answers may overtake each other.
    fn note(&self, before: Option<(String, Number)>, header: &Header) -> Result<(), Failure> {
        let Header { cluster_id, revision } = header;
        if let Some((cluster, newest)) = before {
            if cluster != *cluster_id {
                let what = format!("etcd is cluster {cluster_id} and was cluster {cluster}");
                return Err(Failure::WentBack { what });
            }
            if newest > *revision {
                let what = format!("etcd is at revision {} and was at {}", revision.0, newest.0);
                return Err(Failure::WentBack { what });
            }
        }
        let mut seen = lock(&self.seen);
        if seen.as_ref().is_none_or(|(_, newest)| newest < revision) {
            *seen = Some((cluster_id.clone(), *revision));
        }
        Ok(())
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        kind: Kind,
    ) -> Result<T, Failure> {
        let defect = |e: serde_json::Error| Failure::Setup { what: format!("/v3/{path}"), source: e.into() };
        let body = serde_json::to_vec(body).map_err(defect)?;
        let mut answer = self.ask_members(path, &body, kind).await;
        if answer.as_ref().is_err_and(|failure| self.wants_new_token(failure)) {
            // It was refused before anything was done, so that it may be asked again.
            *lock(&self.token) = None;
            answer = self.ask_members(path, &body, kind).await;
        }
        let (endpoint, answer) = answer?;
        serde_json::from_slice(&answer).map_err(|error| Failure::Lost {
            endpoint: endpoint.to_owned(),
            why: format!("its answer is not understood: {}; is it etcd 3.4 or newer?", self.hide(&error)),
        })
    }

    async fn ask_members(&self, path: &str, body: &[u8], kind: Kind) -> Result<(&str, Vec<u8>), Failure> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut tried = Vec::new();
        for n in 0..self.endpoints.len() {
            let at = (first + n) % self.endpoints.len();
            let endpoint = self.endpoints[at].as_str();
            match self.ask_member(endpoint, path, body, kind).await {
                Ok(answer) => {
                    self.preferred.store(at, Ordering::Relaxed);
                    return Ok((endpoint, answer));
                }
                Err(Miss::Next(why)) => tried.push(format!("{endpoint}: {why}")),
                Err(Miss::Final(failure)) => return Err(failure),
            }
        }
        Err(Failure::Unreachable { tried })
    }

    async fn ask_member(&self, endpoint: &str, path: &str, body: &[u8], kind: Kind) -> Result<Vec<u8>, Miss> {
        let token = match &self.login {
            Some(login) => Some(self.token(endpoint, login).await?),
            None => None,
        };
        self.post(endpoint, path, body.to_vec(), kind, token).await
    }

    async fn token(&self, endpoint: &str, login: &Login) -> Result<SecretString, Miss> {
        if let Some(token) = &*lock(&self.token) {
            return Ok(token.clone());
        }
        let setup = |what: &str| {
            let what = what.to_owned();
            move |source: BoxError| Miss::Final(Failure::Setup { what, source })
        };
        let password = resolve("password", &login.password).await;
        let password = password.map_err(|e| setup("the password for etcd cannot be read")(e.into()))?;
        *lock(&self.secrets) = Secrets::of([password.expose_secret()]);
        let credentials = Credentials { name: &login.user, password: password.expose_secret() };
        let body = serde_json::to_vec(&credentials).map_err(|e| setup("the login")(e.into()))?;
        let answer = self.post(endpoint, "auth/authenticate", body, Kind::Read, None).await?;
        let token: Token = serde_json::from_slice(&answer)
            .map_err(|_| Miss::Next("its answer to the login is not understood".to_owned()))?;
        *lock(&self.secrets) = Secrets::of([password.expose_secret(), &token.token]);
        let token = SecretString::from(token.token);
        *lock(&self.token) = Some(token.clone());
        Ok(token)
    }

    async fn post(
        &self,
        endpoint: &str,
        path: &str,
        body: Vec<u8>,
        kind: Kind,
        token: Option<SecretString>,
    ) -> Result<Vec<u8>, Miss> {
        let http = self.http.get_or_try_init(|| self.connect()).await.map_err(Miss::Final)?;
        let limit = match kind {
            // The time is for all members.
            Kind::Read => self.share(self.endpoints.len()),
            Kind::Write => self.timeout,
        };
        let mut request = http.post(format!("{endpoint}/v3/{path}")).body(body).timeout(limit);
        if let Some(token) = token {
            request = request.header("authorization", token.expose_secret());
        }
        let open = |why: String| match kind {
            Kind::Read => Miss::Next(why),
            Kind::Write => Miss::Final(Failure::Lost { endpoint: endpoint.to_owned(), why }),
        };
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) if error.is_connect() => return Err(Miss::Next(said(&error))),
            Err(error) => return Err(open(said(&error))),
        };
        let status = answer.status();
        let bytes = whole(answer).await.map_err(open)?;
        if status.is_success() {
            return Ok(bytes);
        }
        let Ok(refusal) = serde_json::from_slice::<Refusal>(&bytes) else {
            return Err(open(format!(
                "HTTP status {status}: is this a client address of etcd 3.4 or newer?"
            )));
        };
        let message = self.hide(&refusal.message);
        if DEFINITE.contains(&refusal.code) {
            return Err(Miss::Final(Failure::Refused { endpoint: endpoint.to_owned(), message }));
        }
        Err(open(format!("{message}{}", advice(&message))))
    }

    /// What a member said, without what it may have repeated of the login.
    fn hide(&self, said: &impl ToString) -> String {
        lock(&self.secrets).redact(&said.to_string())
    }

    /// Tokens run out, and every change of a user or role voids them.
    fn wants_new_token(&self, failure: &Failure) -> bool {
        let void = ["invalid auth token", "revision of auth store is old"];
        self.login.is_some()
            && matches!(failure, Failure::Refused { message, .. } if void.iter().any(|v| message.contains(v)))
    }

    async fn connect(&self) -> Result<reqwest::Client, Failure> {
        let tls = tls::client(self.tls.as_ref()).await?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(self.share(self.endpoints.len() + 1));
        http.build().map_err(|e| Failure::Setup { what: "no HTTP client".to_owned(), source: e.into() })
    }

    fn share(&self, parts: usize) -> Duration {
        self.timeout / u32::try_from(parts.max(1)).unwrap_or(u32::MAX)
    }
}

/// The body of an answer, up to a bound.
async fn whole(mut answer: reqwest::Response) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| said(&error))? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > LONGEST_ANSWER {
            return Err(format!("its answer is longer than {} MiB", LONGEST_ANSWER >> 20));
        }
    }
    Ok(bytes)
}

/// The innermost cause, which says what happened; the outer ones repeat the address.
fn said(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
impl Gateway {
    /// Has seen what the other one has.
    pub(super) fn remembers(&self, other: &Self) {
        lock(&self.seen).clone_from(&lock(&other.seen));
    }

    /// Uses this token from now on.
    pub(super) fn has_token(&self, token: &str) {
        *lock(&self.token) = Some(token.into());
    }
}
