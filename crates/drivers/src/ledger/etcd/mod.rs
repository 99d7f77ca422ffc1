//! etcd: for clusters that have one. It is asked through its documented JSON gateway, so that building needs
//! no protocol compiler and every repetition of a request is decided in `gateway.rs`.
//!
//! An epoch is won, and a journal grows, by one transaction each, on the condition that the broker's head is
//! as it was read (see `layout.rs`). So a claim that follows an open epoch is exact: an append in between
//! voids it. A stale writer's append is refused by etcd itself.
//!
//! The claimant holds a lease, which its appends keep alive; an execution that works writes every three
//! seconds. While the lease lives nobody else may succeed the claimant, even if its journal looks silent to
//! them. That is for liveness alone: a lease that has run out proves nothing about its holder, who is fenced
//! like anybody else.

mod gateway;
mod layout;
#[cfg(test)]
mod tests;
mod tls;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use self::gateway::{Failure, Gateway, Login};
use self::layout::{Head, Keys, number_of, numbered, understand};
pub use self::tls::EtcdTls;
use self::wire::{Change, Compare, KeyValue, Number, Range, Txn};
use crate::fence::OptionValue;
use recovery::event::Event;
use recovery::format;
use recovery::journal::{self, Claim, Entry, EpochJournal, Record, Refused, may_append, may_claim};
use recovery::model::{BrokerId, Epoch, HostName, Order, Orders};
use recovery::ports::{BoxError, Cell, Ledger, LedgerError, Note};

/// Decisions that are kept of each host about each broker.
const DECISIONS_KEPT: u64 = 1000;

/// The most that one write may bring, in bytes. etcd refuses requests beyond 1.5 MiB (`--max-request-bytes`).
const WRITE_LIMIT: usize = 1 << 20;

/// How long the claimant's lease lives after its last renewal: three of its heartbeats, and less than an
/// observer waits before it calls a claimant silent (`policy.claim_silent_after`).
const LEASE: Duration = Duration::from_secs(10);

/// A ledger in an etcd cluster, 3.4 or newer, with its JSON gateway on, as it is by default.
///
/// etcd keeps every old version of a key until it is told otherwise: run it with
/// `--auto-compaction-retention=1h` or the like.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EtcdLedgerConfig {
    /// The client addresses of the members, such as `["http://10.0.0.1:2379", "http://10.0.0.2:2379"]`. Name
    /// all of them, so that the ledger can be reached while one is down.
    pub endpoints: Vec<String>,
    /// What every key begins with. Clusters of Kafka that share an etcd need one each.
    #[serde(default = "prefix")]
    pub prefix: String,
    /// How long one operation may take, over all members. After that the ledger counts as unreachable.
    #[serde(default = "five_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// The user to log in as, where etcd has authentication on. It needs `readwrite` on the prefix.
    #[serde(default)]
    pub user: Option<String>,
    /// The user's password: `{ file = "…" }`, `{ env = "…" }` or `{ credential = "…" }`.
    #[serde(default)]
    pub password: Option<OptionValue>,
    /// Certificates, for `https` endpoints.
    #[serde(default)]
    pub tls: Option<EtcdTls>,
}

fn prefix() -> String {
    "/understudy/".to_owned()
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

impl EtcdLedgerConfig {
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.endpoints.is_empty() {
            problems.push("endpoints: empty; name the client addresses of etcd's members".to_owned());
        }
        for (n, endpoint) in self.endpoints.iter().enumerate() {
            problems.extend(self.endpoint_problem(endpoint).map(|why| format!("endpoints[{n}]: {why}")));
        }
        if self.tls.is_some() && !self.endpoints.iter().any(|endpoint| endpoint.starts_with("https:")) {
            problems.push("tls: no endpoint is https; write https:// or remove the section".to_owned());
        }
        if !self.prefix.ends_with('/') || !self.prefix.is_ascii() {
            problems.push(format!("prefix: `{}` must be ASCII and end with a slash", self.prefix));
        }
        if self.timeout < Duration::from_millis(500) {
            let timeout = self.timeout;
            problems.push(format!(
                "timeout: {timeout:?} is too short for etcd to confirm a write; give it 2s or more"
            ));
        }
        match (&self.user, &self.password) {
            (Some(_), None) => problems.push("password: missing; the user needs one".to_owned()),
            (None, Some(_)) => problems.push("user: missing; whose password is it?".to_owned()),
            (Some(_), Some(OptionValue::Plain(_))) => problems.push(
                "password: it does not belong here; write { file = \"…\" }, { env = \"…\" } or { credential = \"…\" }"
                    .to_owned(),
            ),
            _ => {}
        }
        problems.extend(self.tls.iter().flat_map(EtcdTls::problems));
        problems
    }

    fn endpoint_problem(&self, endpoint: &str) -> Option<String> {
        let example = "write it as http://10.0.0.1:2379";
        let Ok(url) = reqwest::Url::parse(endpoint) else {
            return Some(format!("`{endpoint}` is not an address; {example}"));
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Some("a login does not belong into it; use user and password".to_owned());
        }
        let bare = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
        match url.scheme() {
            "http" | "https" if !url.has_host() || !bare => Some(format!("`{endpoint}`: {example}")),
            "https" if self.tls.is_none() => Some("https needs tls.ca".to_owned()),
            "http" | "https" => None,
            _ => Some(format!("`{endpoint}` is neither http nor https; {example}")),
        }
    }
}

/// The `etcd` ledger.
#[derive(Debug)]
pub struct EtcdLedger {
    gateway: Gateway,
    keys: Keys,
    timeout: Duration,
    lease: Duration,
    /// The leases of the claims that this process works on.
    leases: Mutex<BTreeMap<BrokerId, Lease>>,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    epoch: Epoch,
    id: Number,
    /// When it was asked for.
    renewed: Instant,
}

/// The newest epoch as it was read.
struct Seen {
    head: Option<Head>,
    /// The head's own, which a write compares; 0 if there is none.
    token: Number,
    /// When it was read, in etcd's count.
    revision: Number,
}

impl EtcdLedger {
    /// The ledger that is configured. Touches nothing yet.
    ///
    /// # Errors
    /// Everything that is wrong, each as `key: what is wrong and what to do`.
    pub fn new(config: &EtcdLedgerConfig) -> Result<Self, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let endpoints = config.endpoints.iter().map(|e| e.trim_end_matches('/').to_owned()).collect();
        let login = config.user.clone().zip(config.password.clone());
        let login = login.map(|(user, password)| Login { user, password });
        Ok(Self {
            gateway: Gateway::new(endpoints, config.timeout, login, config.tls.clone()),
            keys: Keys::below(&config.prefix),
            timeout: config.timeout,
            lease: LEASE,
            leases: Mutex::default(),
        })
    }

    /// Gives up at the deadline. `action` says what is done.
    async fn within<T>(
        &self,
        action: String,
        work: impl Future<Output = Result<T, Stop>>,
    ) -> Result<T, LedgerError> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(Stop::Ledger(error))) => Err(error),
            Ok(Err(Stop::Etcd(Failure::WentBack { what }))) => {
                let why = Failure::WentBack { what }.to_string();
                Err(LedgerError::Damaged { place: "etcd".to_owned(), why })
            }
            Ok(Err(Stop::Etcd(failure))) => Err(unavailable(action, failure)),
            Err(_) => {
                let limit = self.timeout;
                let why = format!(
                    "etcd did not answer within {limit:?}: see that most of {} are up; if something was to be \
                     written, it may have been or not",
                    self.gateway.endpoints().join(", ")
                );
                Err(unavailable(action, why))
            }
        }
    }

    async fn seen(&self, broker: BrokerId) -> Result<Seen, Stop> {
        let (kv, revision) = self.gateway.get(&self.keys.head(broker)).await?;
        let token = kv.as_ref().map_or(Number(0), |kv| kv.mod_revision);
        let head = kv.as_ref().map(layout::head).transpose()?;
        Ok(Seen { head, token, revision })
    }

    /// The journals from `first` on, at the moment of `seen`.
    async fn journals(&self, broker: BrokerId, first: Epoch, seen: &Seen) -> Result<Vec<EpochJournal>, Stop> {
        let Some(head) = &seen.head else { return Ok(Vec::new()) };
        let dir =
            if first == head.epoch { self.keys.journal(broker, first) } else { self.keys.journals(broker) };
        let kvs = self.gateway.all(Range::below(&dir).at(seen.revision)).await?;
        Ok(layout::journals(&self.keys, broker, first, head, &kvs)?)
    }

    async fn newest(&self, broker: BrokerId, seen: &Seen) -> Result<Option<EpochJournal>, Stop> {
        let Some(head) = &seen.head else { return Ok(None) };
        Ok(self.journals(broker, head.epoch, seen).await?.pop())
    }

    async fn make_claim(&self, claim: &Claim) -> Result<Record, Stop> {
        let (broker, epoch) = (claim.plan.broker, claim.plan.epoch);
        let claimed = Entry::Claimed { claim: Box::new(claim.clone()) };
        let record = Record { seq: 0, at: Timestamp::now(), by: claim.by.clone(), entry: claimed };
        loop {
            let seen = self.seen(broker).await?;
            let mut only_if = vec![Compare::written_at(&self.keys.head(broker), seen.token)];
            only_if.extend(self.may_claim(claim, &seen).await?);
            let lease = self.gateway.grant(self.lease).await?;
            let renewed = Instant::now();
            let changes = vec![
                Change::put(&self.keys.head(broker), &json(&Head::of_claim(claim))?),
                Change::put(&self.keys.batch(broker, epoch, 0), &json(std::slice::from_ref(&record))?),
                Change::put_leased(&self.keys.claimant(broker, epoch), &claim.by.0, lease),
            ];
            // A lease of a claim that was lost runs out by itself.
            if self.commit(only_if, changes).await? {
                self.hold(broker, Some(Lease { epoch, id: lease, renewed }));
                return Ok(record);
            }
        }
    }

    /// Whether `claim` may follow what was seen; if so, on what condition besides.
    async fn may_claim(&self, claim: &Claim, seen: &Seen) -> Result<Option<Compare>, Stop> {
        let (broker, epoch) = (claim.plan.broker, claim.plan.epoch);
        let due = seen.head.as_ref().map(|head| head.epoch).unwrap_or_default().next();
        let mut holder = None;
        if epoch < due && epoch > Epoch::default() {
            let all = self.journals(broker, Epoch(1), seen).await?;
            let had = all.into_iter().find(|journal| journal.epoch == epoch);
            holder = Some(had.map(|journal| journal.claim.by).unwrap_or_else(|| claim.by.clone()));
        }
        let newest = self.newest(broker, seen).await?;
        may_claim(claim, newest.as_ref(), holder.as_ref())
            .map_err(|refused| LedgerError::refused(broker, refused))?;
        let Some(newest) = newest else { return Ok(None) };
        if newest.outcome().is_some() {
            return Ok(None);
        }
        let claimant = self.keys.claimant(broker, newest.epoch);
        match self.gateway.get(&claimant).await? {
            (Some(_), _) => {
                let (epoch, by) = (newest.epoch, newest.claim.by);
                Err(LedgerError::Taken { broker, epoch, by }.into())
            }
            (None, _) => Ok(Some(Compare::absent(&claimant))),
        }
    }

    async fn add(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        at: Timestamp,
        by: &HostName,
        entries: &[Entry],
    ) -> Result<Vec<Record>, Stop> {
        loop {
            let seen = self.seen(broker).await?;
            let head = writable(broker, epoch, by, seen.head)?;
            let record =
                |(seq, entry): (u64, &Entry)| Record { seq, at, by: by.clone(), entry: entry.clone() };
            let records: Vec<Record> = (head.records..).zip(entries).map(record).collect();
            if records.is_empty() {
                return Ok(records);
            }
            let next = head.and(&records);
            let claimant = self.keys.claimant(broker, epoch);
            let alive = if next.ended {
                Change::delete(&claimant)
            } else {
                Change::put_leased(&claimant, &by.0, self.lease(broker, epoch).await?)
            };
            let changes = vec![
                Change::put(&self.keys.head(broker), &json(&next)?),
                Change::put(&self.keys.batch(broker, epoch, head.records), &json(&records)?),
                alive,
            ];
            let only_if = vec![Compare::written_at(&self.keys.head(broker), seen.token)];
            match self.commit(only_if, changes).await {
                Ok(true) if next.ended => self.hold(broker, None),
                Ok(true) => {}
                // Another process of this host has added to it.
                Ok(false) => continue,
                // This process slept for longer than the lease lived.
                Err(Stop::Etcd(Failure::Refused { message, .. })) if message.contains("lease not found") => {
                    self.hold(broker, None);
                    continue;
                }
                Err(other) => return Err(other),
            }
            return Ok(records);
        }
    }

    /// A lease that lives, for the claimant of an epoch.
    async fn lease(&self, broker: BrokerId, epoch: Epoch) -> Result<Number, Stop> {
        let held = self.leases.lock().unwrap_or_else(PoisonError::into_inner).get(&broker).copied();
        let renewed = Instant::now();
        let lease = match held.filter(|lease| lease.epoch == epoch) {
            Some(lease) if lease.renewed.elapsed() < self.lease / 3 => return Ok(lease.id),
            Some(lease) if self.gateway.renew(lease.id).await? => Lease { renewed, ..lease },
            _ => Lease { epoch, id: self.gateway.grant(self.lease).await?, renewed },
        };
        self.hold(broker, Some(lease));
        Ok(lease.id)
    }

    fn hold(&self, broker: BrokerId, lease: Option<Lease>) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        match lease {
            Some(lease) => drop(leases.insert(broker, lease)),
            None => drop(leases.remove(&broker)),
        }
    }

    async fn commit(&self, only_if: Vec<Compare>, changes: Vec<Change>) -> Result<bool, Stop> {
        let size: usize = changes.iter().map(Change::size).sum();
        if size > WRITE_LIMIT {
            let why = format!("it has {size} bytes, and one write to etcd may have {WRITE_LIMIT}");
            return Err(unavailable("write to etcd".to_owned(), why).into());
        }
        Ok(self.gateway.commit(&Txn { only_if, changes }).await?)
    }

    /// Adds one value to a directory, which keeps the newest `keep`.
    async fn add_value<T: serde::Serialize>(&self, dir: &str, value: &T, keep: u64) -> Result<(), Stop> {
        let value = json(value)?;
        loop {
            let last = self.gateway.range(&Range::below(dir).last_key()).await?.kvs.pop();
            let n = last.and_then(|kv| number_of(dir, &kv)).map_or(0, |n| n + 1);
            let key = numbered(dir, n);
            let mut changes = vec![Change::put(&key, &value)];
            if let Some(end) = (n + 1).checked_sub(keep).filter(|end| *end > 0) {
                changes.push(Change::delete_until(&numbered(dir, 0), &numbered(dir, end)));
            }
            if self.commit(vec![Compare::absent(&key)], changes).await? {
                return Ok(());
            }
        }
    }

    /// Every value below `dir`, in the order they were written.
    async fn values<T: DeserializeOwned>(&self, dir: &str) -> Result<Vec<T>, Stop> {
        let mut kvs: Vec<KeyValue> = self.gateway.all(Range::below(dir)).await?;
        kvs.sort_by_key(|kv| kv.create_revision);
        Ok(kvs.iter().map(understand).collect::<Result<_, _>>()?)
    }

    /// A cell, and its key's revision, which a write compares.
    async fn read_cell(&self, name: &str) -> Result<(Option<Cell>, Number), Stop> {
        let (kv, _) = self.gateway.get(&self.keys.cell(name)).await?;
        let token = kv.as_ref().map_or(Number(0), |kv| kv.mod_revision);
        Ok((kv.as_ref().map(understand).transpose()?, token))
    }

    async fn write_cell(&self, name: &str, cell: &Cell) -> Result<Cell, Stop> {
        let key = self.keys.cell(name);
        loop {
            let (newest, token) = self.read_cell(name).await?;
            let due = newest.as_ref().map_or(0, |newest| newest.version) + 1;
            if let Some(newest) = newest.filter(|_| cell.version != due) {
                return Ok(newest);
            }
            if cell.version != due {
                let action = format!("write version {} of {name}", cell.version);
                return Err(unavailable(action, format!("version {due} is due")).into());
            }
            let change = vec![Change::put(&key, &json(cell)?)];
            if self.commit(vec![Compare::written_at(&key, token)], change).await? {
                return Ok(cell.clone());
            }
        }
    }

    async fn probe(&self) -> Result<Note, Stop> {
        let begun = Instant::now();
        let name = format!("{}-{}", std::process::id(), Timestamp::now().as_nanosecond());
        let key = self.keys.probe(&name);
        self.commit(vec![Compare::absent(&key)], vec![Change::put(&key, "understudy")]).await?;
        let (read, _) = self.gateway.get(&key).await?;
        self.commit(Vec::new(), vec![Change::delete(&key)]).await?;
        if read.is_none() {
            let why = "it does not hold what was written to it";
            return Err(unavailable(format!("read back key {key}"), why).into());
        }
        let took = begun.elapsed().as_millis();
        let status = self.gateway.status().await?;
        let text = format!(
            "etcd {}: written and read back in {took} ms, {} KiB in use",
            status.version,
            status.db_size.0 >> 10
        );
        let mut note = Note::new(text);
        if !status.errors.is_empty() {
            note = note.warn([format!("etcd says {}", status.errors.join(", "))]);
        }
        if self.gateway.endpoints().len() < 3 {
            let why = "fewer than three endpoints: with one member down there may be no ledger";
            note = note.warn([why.to_owned()]);
        }
        Ok(note.with("probe_ms", took).with("db_bytes", status.db_size.0))
    }
}

/// What the newest epoch is like, if `by` may add to `epoch`.
fn writable(broker: BrokerId, epoch: Epoch, by: &HostName, head: Option<Head>) -> Result<Head, LedgerError> {
    let newest = head.as_ref().map(|head| {
        let Head { epoch, by, ended, .. } = head.clone();
        journal::Head { epoch, by, ended }
    });
    let refused = |refused| LedgerError::refused(broker, refused);
    may_append(newest.as_ref(), epoch, by).map_err(refused)?;
    head.ok_or_else(|| refused(Refused::NeverClaimed { epoch }))
}

/// Why an operation ends early.
enum Stop {
    Etcd(Failure),
    Ledger(LedgerError),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Etcd(failure)
    }
}

impl From<LedgerError> for Stop {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

fn unavailable(action: String, source: impl Into<BoxError>) -> LedgerError {
    LedgerError::Unavailable { action, source: source.into() }
}

fn json<T: serde::Serialize + ?Sized>(value: &T) -> Result<String, LedgerError> {
    format::write(value).map_err(|error| unavailable("write a record as JSON".to_owned(), error))
}

#[async_trait]
impl Ledger for EtcdLedger {
    fn name(&self) -> &'static str {
        "etcd"
    }

    async fn sync(&self) -> Result<(), LedgerError> {
        // Every read is: etcd asks a quorum unless it is told not to.
        Ok(())
    }

    async fn latest(&self, broker: BrokerId) -> Result<Option<EpochJournal>, LedgerError> {
        self.within(format!("read the newest epoch of broker {broker}"), async {
            self.newest(broker, &self.seen(broker).await?).await
        })
        .await
    }

    async fn newest_epochs(
        &self,
        brokers: &BTreeSet<BrokerId>,
    ) -> Result<BTreeMap<BrokerId, Epoch>, LedgerError> {
        let keys: Vec<String> = brokers.iter().map(|broker| self.keys.head(*broker)).collect();
        let heads = async { Ok(self.gateway.each(&keys).await?) };
        let heads = self.within("read the newest epochs".to_owned(), heads).await?;
        let told = brokers.iter().zip(heads).filter_map(|(broker, kv)| match kv.as_ref().map(layout::head) {
            None => Some((*broker, Epoch::default())),
            Some(Ok(head)) => Some((*broker, head.epoch)),
            // Whoever reads it is told, and this broker alone is concerned.
            Some(Err(_)) => None,
        });
        Ok(told.collect())
    }

    async fn all(&self, broker: BrokerId) -> Result<Vec<EpochJournal>, LedgerError> {
        self.within(format!("read every epoch of broker {broker}"), async {
            self.journals(broker, Epoch(1), &self.seen(broker).await?).await
        })
        .await
    }

    async fn claim(&self, claim: &Claim) -> Result<Record, LedgerError> {
        let (broker, epoch) = (claim.plan.broker, claim.plan.epoch);
        self.within(format!("claim epoch {epoch} of broker {broker}"), self.make_claim(claim)).await
    }

    async fn append(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        at: Timestamp,
        by: &HostName,
        entries: &[Entry],
    ) -> Result<Vec<Record>, LedgerError> {
        let action = format!("add to epoch {epoch} of broker {broker}");
        self.within(action, self.add(broker, epoch, at, by, entries)).await
    }

    async fn remember(&self, broker: BrokerId, event: &Event) -> Result<(), LedgerError> {
        let dir = self.keys.decisions_of(broker, &event.host);
        let action = format!("keep a decision on broker {broker}");
        self.within(action, self.add_value(&dir, event, DECISIONS_KEPT)).await
    }

    async fn remembered(&self, broker: BrokerId) -> Result<Vec<Event>, LedgerError> {
        let dir = self.keys.decisions(broker);
        let read = self.within(format!("read the decisions on broker {broker}"), self.values(&dir));
        let mut events: Vec<Event> = read.await?;
        events.sort_by_key(|event| event.at);
        Ok(events)
    }

    async fn order(&self, order: &Order) -> Result<(), LedgerError> {
        let dir = self.keys.orders_of(&order.host);
        self.within("add to the order book".to_owned(), self.add_value(&dir, order, u64::MAX)).await
    }

    async fn orders(&self) -> Result<Orders, LedgerError> {
        let dir = self.keys.orders();
        let mut orders: Vec<Order> = self.within("read the order book".to_owned(), self.values(&dir)).await?;
        orders.sort_by_key(|order| order.at);
        Ok(Orders(orders))
    }

    async fn cell(&self, name: &str) -> Result<Option<Cell>, LedgerError> {
        self.within(format!("read {name}"), async { Ok(self.read_cell(name).await?.0) }).await
    }

    async fn set_cell(&self, name: &str, cell: &Cell) -> Result<Cell, LedgerError> {
        self.within(format!("write {name}"), self.write_cell(name, cell)).await
    }

    async fn check(&self) -> Result<Note, LedgerError> {
        self.within("write and read a probe key".to_owned(), self.probe()).await
    }
}
