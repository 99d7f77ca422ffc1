//! The ledger in custom resources of a Kubernetes cluster. See `names.rs` for the objects.
//!
//! An epoch is won by making its object: the API server makes one of a name once. Its journal grows by replacing
//! exactly the version that was read. Both are decided by a quorum of etcd.
//!
//! No transaction spans two objects, so a claim that succeeds a silent claimant closes that one's journal first, as it
//! was seen, and makes its own epoch then. A journal that is closed gets no entry any more, by a rule that the API
//! server itself keeps. If the successor dies between the two, the next claim goes on from there.

mod book;
mod cell;
mod check;
mod index;
mod names;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use recovery::event::Event;
use recovery::journal::{Claim, Entry, EpochJournal, Head, Record, Refused, may_append, may_claim};
use recovery::model::{BrokerId, Epoch, HostName, Order, Orders};
use recovery::ports::{BoxError, Cell, Ledger, LedgerError, Note};
use schemars::JsonSchema;
use serde::Deserialize;

use self::book::{Book, Full};
use self::names::{Journal, Names};
use crate::client::{Asking, Cluster};
use crate::crd::Closed;
use crate::fault::{Fault, User};
use crate::names::{is_label, place_problems};

const USER: User = User { section: "ledger", role: "ledger-rbac.yaml" };

/// A ledger in custom resources of a Kubernetes cluster, 1.29 or newer. See `docs/kubernetes.md`.
///
/// The definitions are installed once, by `understudy kubernetes crd | kubectl apply -f -`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesLedgerConfig {
    /// The namespace of the objects. Without it: that of the kubeconfig's context, or of this pod.
    #[serde(default)]
    pub namespace: Option<String>,
    /// A kubeconfig, whose current context says which cluster it is. Without it: `KUBECONFIG`, `~/.kube/config`, or the
    /// service account of this pod.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// What the name of every object begins with. Clusters of Kafka that share a namespace need one each.
    #[serde(default = "default_name")]
    pub name: String,
    /// How long one operation may take. After that the ledger counts as unreachable.
    #[serde(default = "five_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
}

fn default_name() -> String {
    "understudy".to_owned()
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

impl KubernetesLedgerConfig {
    /// Where it is, for people.
    #[must_use]
    pub fn place(&self) -> String {
        let namespace = self.namespace.as_deref().unwrap_or("of its own");
        match &self.kubeconfig {
            Some(path) => format!("Kubernetes of {}, namespace {namespace}, {}", path.display(), self.name),
            None => format!("Kubernetes, namespace {namespace}, {}", self.name),
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        problems.extend(place_problems(self.namespace.as_deref(), self.kubeconfig.as_deref()));
        if !is_label(&self.name, 40) {
            let name = &self.name;
            problems.push(format!(
                "name: `{name}` must be 1 to 40 lower-case letters, digits and dashes, with a letter or digit at both \
                 ends"
            ));
        }
        if self.timeout < Duration::from_secs(1) {
            let timeout = self.timeout;
            problems.push(format!("timeout: {timeout:?} is too short for an API server; give it 5s or more"));
        }
        problems
    }
}

/// The `kubernetes` ledger.
#[derive(Debug)]
pub struct KubernetesLedger {
    cluster: Cluster,
    names: Names,
    timeout: Duration,
    full: Full,
}

/// Why an operation ends early.
#[derive(Debug)]
enum Stop {
    Fault(Fault),
    Ledger(LedgerError),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<LedgerError> for Stop {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

fn unavailable(action: impl Into<String>, source: impl Into<BoxError>) -> LedgerError {
    LedgerError::Unavailable { action: action.into(), source: source.into() }
}

/// A text that no other write has, of whichever process.
fn mark() -> String {
    static OWN: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (now, n) = (Timestamp::now().as_microsecond(), COUNT.fetch_add(1, Ordering::Relaxed));
    format!("{:016x}-{now:x}-{n:x}", *OWN)
}

impl KubernetesLedger {
    /// The ledger that is configured. Touches nothing yet.
    ///
    /// # Errors
    /// Everything that is wrong, each as `key: what is wrong and what to do`.
    pub fn new(config: &KubernetesLedgerConfig) -> Result<Self, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let KubernetesLedgerConfig { namespace, kubeconfig, name, timeout } = config.clone();
        // Half of it, so that another API server may answer after one that does not.
        let cluster = Cluster::new(kubeconfig, namespace, timeout / 2, USER);
        Ok(Self { cluster, names: Names::of(&name), timeout, full: Full::default() })
    }

    /// Gives up at the deadline. `action` says what is done.
    async fn within<T>(
        &self,
        asking: &Asking<'_>,
        action: String,
        work: impl Future<Output = Result<T, Stop>>,
    ) -> Result<T, LedgerError> {
        let fault = match tokio::time::timeout(self.timeout, work).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(Stop::Ledger(error))) => return Err(error),
            Ok(Err(Stop::Fault(fault))) => fault.to_string(),
            Err(_) => match asking.trouble() {
                Some(fault) => fault.to_string(),
                None => {
                    format!("the API server was too slow: {:?} were not enough for all of it", self.timeout)
                }
            },
        };
        let unsure = "; it may have been written or not, and is read anew before anything goes on";
        let why = format!("{fault}{}", if asking.is_unsure() { unsure } else { "" });
        Err(unavailable(action, why))
    }

    async fn book(&self, asking: &Asking<'_>, journal: Journal) -> Result<Option<Book>, Stop> {
        Book::read(asking, &self.names, &self.full, journal).await
    }

    async fn newest(&self, asking: &Asking<'_>, broker: BrokerId) -> Result<Option<(Epoch, Book)>, Stop> {
        index::newest(asking, &self.names, &self.full, broker).await
    }

    async fn journals(&self, asking: &Asking<'_>, broker: BrokerId) -> Result<Vec<EpochJournal>, Stop> {
        let Some((newest, last)) = self.newest(asking, broker).await? else { return Ok(Vec::new()) };
        let mut journals = Vec::new();
        for epoch in (1..newest.0).map(Epoch) {
            let book = self.book(asking, Journal::Epoch(broker, epoch)).await?;
            let book = book.ok_or_else(|| index::gone(&self.names, broker, epoch))?;
            journals.push(book.journal(broker, epoch)?);
        }
        journals.push(last.journal(broker, newest)?);
        Ok(journals)
    }

    async fn make_claim(&self, asking: &Asking<'_>, claim: &Claim) -> Result<Record, Stop> {
        let (broker, epoch) = (claim.plan.broker, claim.plan.epoch);
        let journal = Journal::Epoch(broker, epoch);
        let claimed = Entry::Claimed { claim: Box::new(claim.clone()) };
        let record = Record { seq: 0, at: Timestamp::now(), by: claim.by.clone(), entry: claimed };
        let line = book::line(&mark(), std::slice::from_ref(&record))?;
        let mut tried = false;
        loop {
            let seen = self.newest(asking, broker).await?;
            let before = Epoch(epoch.0.saturating_sub(1));
            if let Some((newest, book)) = &seen
                && tried
                && *newest == epoch
                && book.has(&line)
            {
                // The answer to an earlier attempt was lost.
                break;
            }
            if !self.may_claim(asking, claim, seen).await? {
                continue;
            }
            index::raise(asking, &self.names, broker, (epoch, before)).await?;
            tried = true;
            if book::begin(asking, &self.names, journal, journal.of(&claim.by), &line).await? {
                break;
            }
        }
        // It is won; that it is missing should its object be removed is told from now on.
        if let Err(Stop::Fault(fault)) = index::raise(asking, &self.names, broker, (epoch, epoch)).await {
            tracing::warn!(%broker, %epoch, %fault, "the epoch is claimed, and the index does not say so yet");
        }
        Ok(record)
    }

    /// Whether `claim` may follow what was seen. `false`: that has changed; look again.
    async fn may_claim(
        &self,
        asking: &Asking<'_>,
        claim: &Claim,
        seen: Option<(Epoch, Book)>,
    ) -> Result<bool, Stop> {
        let (broker, epoch) = (claim.plan.broker, claim.plan.epoch);
        let due = seen.as_ref().map(|(newest, _)| *newest).unwrap_or_default().next();
        let mut holder = None;
        if epoch < due && epoch > Epoch::default() {
            let had = self.book(asking, Journal::Epoch(broker, epoch)).await?;
            holder =
                Some(had.and_then(|book| book.of().by.clone()).map_or_else(|| claim.by.clone(), HostName));
        }
        let journal = seen.as_ref().map(|(newest, book)| book.journal(broker, *newest)).transpose()?;
        may_claim(claim, journal.as_ref(), holder.as_ref())
            .map_err(|refused| LedgerError::refused(broker, refused))?;
        let (Some((newest, book)), Some(journal)) = (seen, journal) else { return Ok(true) };
        if journal.outcome().is_some() || book.closed() == Some(Closed::Succeeded) {
            return Ok(true);
        }
        // What is added to it meanwhile voids this, and from here on nothing is added.
        let of = Journal::Epoch(broker, newest);
        book.add(asking, &self.names, of, "", Some(Closed::Succeeded)).await
    }

    async fn add(
        &self,
        asking: &Asking<'_>,
        (broker, epoch): (BrokerId, Epoch),
        at: Timestamp,
        by: &HostName,
        entries: &[Entry],
    ) -> Result<Vec<Record>, Stop> {
        let (journal, mark) = (Journal::Epoch(broker, epoch), mark());
        let ends = entries.iter().any(|entry| matches!(entry, Entry::Ended { .. }));
        let mut sent: Option<(String, Vec<Record>)> = None;
        loop {
            let book = self.book(asking, journal).await?;
            if let (Some(book), Some((line, records))) = (&book, &sent)
                && book.has(line)
            {
                // The answer was lost.
                return Ok(records.clone());
            }
            let book = self.writable(asking, (broker, epoch), by, book).await?;
            let first = book.journal(broker, epoch)?.records.len() as u64;
            let record =
                |(seq, entry): (u64, &Entry)| Record { seq, at, by: by.clone(), entry: entry.clone() };
            let records: Vec<Record> = (first..).zip(entries).map(record).collect();
            if records.is_empty() {
                return Ok(records);
            }
            let line = book::line(&mark, &records)?;
            let closed = ends.then_some(Closed::Ended);
            let written = book.add(asking, &self.names, journal, &line, closed).await?;
            if written {
                return Ok(records);
            }
            sent = Some((line, records));
        }
    }

    /// The journal of an epoch, if `by` may add to it.
    async fn writable(
        &self,
        asking: &Asking<'_>,
        (broker, epoch): (BrokerId, Epoch),
        by: &HostName,
        book: Option<Book>,
    ) -> Result<Book, Stop> {
        let refused = |refused| LedgerError::refused(broker, refused);
        let Some(book) = book else { return Err(refused(Refused::NeverClaimed { epoch }).into()) };
        let newest = match book.closed() {
            None => epoch,
            closed => {
                let newest = self.newest(asking, broker).await?.map_or(epoch, |(newest, _)| newest);
                // A claim that closed it may not have made its own epoch yet.
                if closed == Some(Closed::Succeeded) { newest.max(epoch.next()) } else { newest }
            }
        };
        let claimant = book.of().by.clone().map_or_else(|| by.clone(), HostName);
        let head = Head { epoch: newest, by: claimant, ended: book.closed().is_some() };
        may_append(Some(&head), epoch, by).map_err(refused)?;
        Ok(book)
    }

    async fn add_order(&self, asking: &Asking<'_>, order: &Order) -> Result<(), Stop> {
        let (journal, line) = (Journal::Orders, book::line(&mark(), order)?);
        loop {
            let written = match self.book(asking, journal).await? {
                Some(book) if book.has(&line) => true,
                Some(book) => book.add(asking, &self.names, journal, &line, None).await?,
                None => book::begin(asking, &self.names, journal, journal.of(&order.host), &line).await?,
            };
            if written {
                return Ok(());
            }
        }
    }
}

#[async_trait]
impl Ledger for KubernetesLedger {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    async fn sync(&self) -> Result<(), LedgerError> {
        // Every read is one of a quorum of etcd. What was not answered is not promised.
        let asking = self.cluster.ask();
        let read = async { index::read(&asking, &self.names).await.map(drop) };
        self.within(&asking, "read the newest epochs".to_owned(), read).await
    }

    async fn latest(&self, broker: BrokerId) -> Result<Option<EpochJournal>, LedgerError> {
        let asking = self.cluster.ask();
        self.within(&asking, format!("read the newest epoch of broker {broker}"), async {
            let newest = self.newest(&asking, broker).await?;
            Ok(newest.map(|(epoch, book)| book.journal(broker, epoch)).transpose()?)
        })
        .await
    }

    async fn newest_epochs(
        &self,
        brokers: &BTreeSet<BrokerId>,
    ) -> Result<BTreeMap<BrokerId, Epoch>, LedgerError> {
        let asking = self.cluster.ask();
        let read = async { index::read(&asking, &self.names).await };
        let index = self.within(&asking, "read the newest epochs".to_owned(), read).await?;
        let told = brokers.iter().filter_map(|broker| {
            let (begun, claimed) = index::of(index.as_ref(), *broker);
            // Of one that somebody set out to claim, only its object says whether it is.
            (begun == claimed).then_some((*broker, claimed))
        });
        Ok(told.collect())
    }

    async fn all(&self, broker: BrokerId) -> Result<Vec<EpochJournal>, LedgerError> {
        let asking = self.cluster.ask();
        let action = format!("read every epoch of broker {broker}");
        self.within(&asking, action, self.journals(&asking, broker)).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Record, LedgerError> {
        let asking = self.cluster.ask();
        let action = format!("claim epoch {} of broker {}", claim.plan.epoch, claim.plan.broker);
        self.within(&asking, action, self.make_claim(&asking, claim)).await
    }

    async fn append(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        at: Timestamp,
        by: &HostName,
        entries: &[Entry],
    ) -> Result<Vec<Record>, LedgerError> {
        let asking = self.cluster.ask();
        let action = format!("add to epoch {epoch} of broker {broker}");
        self.within(&asking, action, self.add(&asking, (broker, epoch), at, by, entries)).await
    }

    async fn remember(&self, broker: BrokerId, event: &Event) -> Result<(), LedgerError> {
        let asking = self.cluster.ask();
        let action = format!("keep a decision on broker {broker}");
        self.within(&asking, action, cell::remember(&asking, &self.names, broker, event)).await
    }

    async fn remembered(&self, broker: BrokerId) -> Result<Vec<Event>, LedgerError> {
        let asking = self.cluster.ask();
        let action = format!("read the decisions on broker {broker}");
        self.within(&asking, action, cell::remembered(&asking, &self.names, broker)).await
    }

    async fn order(&self, order: &Order) -> Result<(), LedgerError> {
        let asking = self.cluster.ask();
        self.within(&asking, "add to the order book".to_owned(), self.add_order(&asking, order)).await
    }

    async fn orders(&self) -> Result<Orders, LedgerError> {
        let asking = self.cluster.ask();
        let mut orders: Vec<Order> = self
            .within(&asking, "read the order book".to_owned(), async {
                let book = self.book(&asking, Journal::Orders).await?;
                Ok(book.map(|book| book.values()).transpose()?.unwrap_or_default())
            })
            .await?;
        orders.sort_by_key(|order| order.at);
        Ok(Orders(orders))
    }

    async fn cell(&self, name: &str) -> Result<Option<Cell>, LedgerError> {
        let asking = self.cluster.ask();
        self.within(&asking, format!("read {name}"), cell::read(&asking, &self.names, name)).await
    }

    async fn set_cell(&self, name: &str, cell: &Cell) -> Result<Cell, LedgerError> {
        let asking = self.cluster.ask();
        self.within(&asking, format!("write {name}"), cell::write(&asking, &self.names, name, cell)).await
    }

    async fn check(&self) -> Result<Note, LedgerError> {
        let asking = self.cluster.ask();
        let action = "write and read a probe in Kubernetes".to_owned();
        self.within(&asking, action, check::check(&asking, &self.names)).await
    }
}
