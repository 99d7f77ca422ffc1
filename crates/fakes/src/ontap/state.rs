//! The fake behind its server: the world, the faults, the jobs that are not done, and what was asked.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::answer::{Answer, job_link};
use super::faults::{Fate, Fault, fate, not_logged_in};
use super::ops::{Effect, Op, href, job_row, perform};
use super::read::{link, read};
use super::refusal::Refusal;
use super::shapes::{Table, is_passthrough};
use super::world::{Account, World, now};

/// A request that the fake has got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `POST`, `PATCH`, …
    pub method: String,
    /// Without the query, e.g. `/api/storage/volumes`.
    pub path: String,
    /// As it stood in the URL; empty if there was none.
    pub query: String,
    /// What was answered; `None` if the connection was closed instead.
    pub status: Option<u16>,
}

/// What a client sent.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) authorization: Option<String>,
    /// The client certificate, DER.
    pub(super) certificate: Option<Vec<u8>>,
    pub(super) accept: Option<String>,
    pub(super) svm: Option<String>,
    pub(super) body: Vec<u8>,
}

/// A change whose job has not ended.
#[derive(Debug)]
struct Pending {
    due: Instant,
    op: Op,
    jobs: Vec<String>,
    lie: bool,
    fails: Option<(u32, String)>,
    late: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) world: World,
    pub(super) faults: Vec<Fault>,
    pub(super) log: Vec<Request>,
    pending: Vec<Pending>,
}

#[derive(Debug)]
pub(super) struct State {
    inner: Mutex<Inner>,
    changes: watch::Sender<u64>,
    follower: Mutex<Option<Follower>>,
}

/// Whoever has to have followed a change before it is answered.
#[derive(Clone)]
pub(super) struct Follower(pub(super) Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Follower")
    }
}

impl State {
    pub(super) fn new(world: World) -> Arc<Self> {
        let inner = Inner { world, faults: Vec::new(), log: Vec::new(), pending: Vec::new() };
        Arc::new(Self {
            inner: Mutex::new(inner),
            changes: watch::Sender::new(0),
            follower: Mutex::default(),
        })
    }

    /// Everything, as it is now. Not to be held over an await.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.settle(Instant::now());
        inner
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Something may be different for a client now.
    pub(super) fn changed(&self) {
        self.changes.send_modify(|generation| *generation += 1);
    }

    pub(super) fn follow(&self, follower: Follower) {
        *self.follower.lock().unwrap_or_else(PoisonError::into_inner) = Some(follower);
    }

    /// Waits until what follows this storage has done so.
    async fn followed(&self) {
        let follower = self.follower.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(Follower(act)) = follower {
            // One that panics has said so itself.
            let _ = tokio::task::spawn_blocking(move || act()).await;
        }
    }

    pub(super) fn end_jobs(&self) {
        self.lock().end_jobs();
        self.changed();
    }

    /// Says again at `at` that something may be different, because then something is.
    fn changed_at(self: &Arc<Self>, at: Instant) {
        let state = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep_until(at.into()).await;
            drop(state.lock());
            state.changed();
        });
    }

    /// Answers a request; `None`: close the connection instead.
    pub(super) async fn handle(self: &Arc<Self>, incoming: Incoming) -> Option<Answer> {
        let fate = fate(&mut self.lock().faults, &incoming.method, &incoming.path);
        if !fate.slow.is_zero() {
            tokio::time::sleep(fate.slow).await;
        }
        let answer = match (&fate.says, &fate.refused) {
            (Some((status, body)), _) => Answer { status: *status, body: body.clone(), headers: Vec::new() },
            (None, Some((refusal, after))) => {
                let answer = Answer::refused(refusal);
                after.map_or(answer.clone(), |seconds| answer.with("retry-after", seconds.to_string()))
            }
            (None, None) => match self.answer(&incoming, &fate).await {
                Ok(answer) => answer,
                Err(refusal) => Answer::refused(&refusal),
            },
        };
        if !matches!(incoming.method.as_str(), "GET" | "HEAD") {
            self.followed().await;
        }
        let answer = Some(answer).filter(|_| !fate.dropped);
        let Incoming { method, path, query, .. } = incoming;
        let status = answer.as_ref().map(|answer| answer.status);
        self.lock().log.push(Request { method, path, query, status });
        answer
    }

    async fn answer(self: &Arc<Self>, incoming: &Incoming, fate: &Fate) -> Result<Answer, Refusal> {
        let op = {
            let inner = self.lock();
            let account = log_in(&inner.world, incoming).ok_or_else(not_logged_in)?;
            authorize(account, incoming)?;
            let mut op = understand(incoming)?;
            op.limit = fate.cut.page;
            op
        };
        if matches!(op.method.as_str(), "GET" | "HEAD") {
            let hal = incoming.accept.as_deref() != Some("application/json");
            return read(&self.lock().world, &op, hal, fate.cut);
        }
        let wait = op.number("return_timeout")?.unwrap_or(0);
        let done = self.lock().write(&op, fate)?;
        self.changed();
        if let Some(late) = fate.late {
            self.changed_at(Instant::now() + late);
        }
        let Done::Jobs { jobs, effect, due } = done else { return Ok(done.answer(&op)) };
        self.changed_at(due);
        let patience = Instant::now() + Duration::from_secs(u64::try_from(wait.min(120)).unwrap_or(120));
        if wait > 0 {
            tokio::time::sleep_until(due.min(patience).into()).await;
        }
        let ended = wait > 0 && self.lock().succeeded(&jobs);
        Ok(jobs_answer(&op, &jobs, &effect, ended))
    }
}

/// How a change came out so far.
enum Done {
    /// It is done.
    Now(Effect),
    /// Jobs are at it until `due`.
    Jobs { jobs: Vec<String>, effect: Effect, due: Instant },
}

impl Done {
    fn answer(self, op: &Op) -> Answer {
        let (Self::Now(effect) | Self::Jobs { effect, .. }) = self;
        let mut body = json!({});
        if effect.cli_output.is_some() || !op.target.instance && op.method != "POST" || op.wants_records() {
            body["num_records"] = effect.rows.len().into();
        }
        if op.wants_records() {
            body["records"] = effect.rows.clone().into();
        }
        if let Some(output) = effect.cli_output {
            body["cli_output"] = output.into();
            return Answer::ok(body);
        }
        created(Answer::ok(with_next(body, op, effect.next)), op, &effect.rows)
    }
}

/// Where to go on, if not all that was meant is done.
fn with_next(mut body: Value, op: &Op, next: Option<usize>) -> Value {
    if let Some(next) = next {
        body["_links"]["next"]["href"] = link(op, Some(next)).into();
    }
    body
}

/// 201 and where the new record is, if the request was for a new one.
fn created(mut answer: Answer, op: &Op, rows: &[Value]) -> Answer {
    if op.method == "POST" {
        answer.status = 201;
    }
    match rows.first().and_then(|row| href(&op.target, row)) {
        Some(href) if op.method == "POST" => answer.with("location", href),
        _ => answer,
    }
}

fn jobs_answer(op: &Op, jobs: &[String], effect: &Effect, ended: bool) -> Answer {
    let body = match jobs {
        [job] if op.target.instance || op.method == "POST" => json!({ "job": job_link(job) }),
        jobs => {
            let links: Vec<Value> = jobs.iter().map(|job| job_link(job)).collect();
            json!({ "jobs": links, "num_records": links.len() })
        }
    };
    let mut answer = created(Answer::ok(with_next(body, op, effect.next)), op, &effect.rows);
    if !ended {
        answer.status = 202;
    }
    answer
}

fn understand(incoming: &Incoming) -> Result<Op, Refusal> {
    let body = if incoming.body.is_empty() {
        Value::Null
    } else {
        let parsed = serde_json::from_slice(&incoming.body);
        parsed.map_err(|error| Refusal::bad(262_199, format!("JSON syntax error: {error}")))?
    };
    if !(body.is_null() || body.is_object()) {
        return Err(Refusal::bad(262_254, "Invalid JSON input, an object was expected"));
    }
    let mut op = Op::new(&incoming.method, &incoming.path, &incoming.query, body)?;
    if let Some(svm) = &incoming.svm {
        op.tunnel(svm)?;
    }
    Ok(op)
}

fn log_in<'a>(world: &'a World, incoming: &Incoming) -> Option<&'a Account> {
    let Some(authorization) = &incoming.authorization else {
        let shown = incoming.certificate.as_ref()?;
        return world.accounts.iter().find(|account| account.certificate.as_ref() == Some(shown));
    };
    let (scheme, credentials) = authorization.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return world.accounts.iter().find(|account| account.token.as_deref() == Some(credentials.trim()));
    }
    let decoded = String::from_utf8(STANDARD.decode(credentials.trim()).ok()?).ok()?;
    let (name, password) = decoded.split_once(':')?;
    let basic = scheme.eq_ignore_ascii_case("basic");
    world.accounts.iter().find(|account| basic && account.name == name && account.password == password)
}

fn authorize(account: &Account, incoming: &Incoming) -> Result<(), Refusal> {
    let reads = matches!(incoming.method.as_str(), "GET" | "HEAD");
    let denied = account.denied.iter().any(|prefix| incoming.path.starts_with(prefix));
    if denied || (account.readonly && !reads) {
        let mut refusal = Refusal::denied();
        if is_passthrough(&incoming.path) {
            refusal.message = format!("not authorized for {}", incoming.path);
        }
        return Err(refusal);
    }
    Ok(())
}

impl Inner {
    /// Carries out a change, or has jobs begin with it.
    fn write(&mut self, op: &Op, fate: &Fate) -> Result<Done, Refusal> {
        // On a copy: what is refused half way, or lied about, leaves nothing behind.
        let mut next = self.world.clone();
        next.lag = fate.late;
        let effect = perform(&mut next, op)?;
        next.lag = None;
        if op.option("validate_only") == Some("true") {
            return Ok(Done::Now(effect));
        }
        if !op.target.shape.jobs {
            if !fate.lie {
                self.world = next;
            }
            return Ok(Done::Now(effect));
        }
        self.world.skip_what(&next);
        let due = Instant::now() + self.world.job_time;
        let jobs = self.begin_jobs(op, &effect);
        let mut op = op.clone();
        if op.method == "POST" {
            op.assigned = effect.rows.first().and_then(|row| row["uuid"].as_str()).map(str::to_owned);
        }
        let (lie, fails, late) = (fate.lie, fate.job_fails.clone(), fate.late);
        self.pending.push(Pending { due, op, jobs: jobs.clone(), lie, fails, late });
        self.settle(Instant::now());
        Ok(Done::Jobs { jobs, effect, due })
    }

    /// One job for each record.
    fn begin_jobs(&mut self, op: &Op, effect: &Effect) -> Vec<String> {
        let begin = |row: &Value| {
            let uuid = self.world.uuid();
            let of = href(&op.target, row).unwrap_or_else(|| op.path.clone());
            self.world.insert(Table::Jobs, job_row(&uuid, &format!("{} {of}", op.method)));
            uuid
        };
        effect.rows.iter().map(begin).collect()
    }

    /// Ends the jobs whose time has come.
    fn settle(&mut self, now: Instant) {
        let (due, later) = self.pending.drain(..).partition(|pending| pending.due <= now);
        self.pending = later;
        let due: Vec<Pending> = due;
        due.into_iter().for_each(|pending| self.finish(pending));
    }

    fn finish(&mut self, pending: Pending) {
        let failure = match pending.fails {
            Some((code, message)) => Some(Refusal::bad(code, message)),
            None if pending.lie => None,
            None => {
                let mut next = self.world.clone();
                next.lag = pending.late;
                let done = perform(&mut next, &pending.op);
                next.lag = None;
                if done.is_ok() {
                    self.world = next;
                }
                done.err()
            }
        };
        let ended = match failure {
            None => json!({ "state": "success", "message": "success", "code": 0, "end_time": now() }),
            Some(refusal) => json!({
                "state": "failure", "message": refusal.message, "code": refusal.code, "end_time": now(),
                "error": refusal.body()["error"],
            }),
        };
        for job in &pending.jobs {
            self.world.update(Table::Jobs, &[("uuid", job)], ended.clone());
        }
    }

    /// Ends all jobs as if their time had come.
    fn end_jobs(&mut self) {
        std::mem::take(&mut self.pending).into_iter().for_each(|pending| self.finish(pending));
    }

    fn succeeded(&self, jobs: &[String]) -> bool {
        let success =
            |job: &String| self.world.find(Table::Jobs, &[("uuid", job), ("state", "success")]).is_some();
        jobs.iter().all(success)
    }
}
