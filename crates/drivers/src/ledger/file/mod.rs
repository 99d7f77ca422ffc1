//! A directory on shared storage: the default ledger, which needs no other service.
//!
//! It is safe on NFS, where locks are hints and listings may be old. An epoch is won by `link(2)`, which is
//! exclusive on the server. The name appears with the claim already in it and on stable storage. See
//! `layout.rs` for the files and `record.rs` for a line.

mod cells;
#[doc(hidden)]
pub mod fuzz;
mod journal;
mod layout;
mod record;
#[cfg(test)]
mod tests;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Deserialize;

use self::journal::{Content, Tail};
pub(super) use self::layout::file_name as host_in_a_name;
use self::layout::{Root, failed, unavailable};
use crate::off_path::off_path;
use crate::storage::mountinfo::{Mount, Mounts};
use recovery::event::Event;
use recovery::format;
use recovery::journal::{Claim, Entry, EpochJournal, Head, Record, may_append, may_claim};
use recovery::ledger_signal::AT_ONCE;
use recovery::model::{BrokerId, Epoch, HostName, Order, Orders};
use recovery::ports::{Cell, Ledger, LedgerError, Note};

/// Decisions beyond this many bytes make a host begin a new file. The one before is kept, older ones are not.
const DECISIONS_LIMIT: usize = 1 << 20;

/// A ledger in a directory on shared storage.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileLedgerConfig {
    /// An absolute path on shared storage that outlives any broker host. It is never created: name a
    /// directory below the mount point rather than the mount point itself, so that it is missing while
    /// nothing is mounted.
    pub dir: PathBuf,
    /// Accept a directory on a disk of this host, as on a test host. Without it, `check` fails a directory that is
    /// not on a network file system (NFS, CephFS, GlusterFS, Lustre, GPFS, BeeGFS, GFS2 or OCFS2): a ledger that
    /// other hosts do not see protects nobody.
    #[serde(default)]
    pub local: bool,
    /// How long one operation may take. After that the ledger counts as unreachable.
    #[serde(default = "five_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

/// The `file` ledger.
#[derive(Debug, Clone)]
pub struct FileLedger {
    root: Arc<Root>,
    local: bool,
    timeout: Duration,
}

impl FileLedger {
    /// The ledger that is configured. Touches nothing yet.
    ///
    /// # Errors
    /// Everything that is wrong, each as `key: what is wrong and what to do`.
    pub fn new(config: &FileLedgerConfig) -> Result<Self, Vec<String>> {
        let FileLedgerConfig { dir, local, timeout } = config;
        let mut problems = Vec::new();
        if !dir.is_absolute() {
            problems.push(format!("dir: `{}` is not absolute; write the whole path", dir.display()));
        }
        if *timeout < Duration::from_millis(100) {
            problems
                .push(format!("timeout: {timeout:?} is too short for shared storage; give it 1s or more"));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        // Half of it, so that who waits for a call that hangs is told so before its own time is over.
        Ok(Self { root: Arc::new(Root::new(dir.clone(), *timeout / 2)), local: *local, timeout: *timeout })
    }

    /// Runs `f` on its own thread. `action` says what is done, and to what.
    async fn run<T: Send + 'static>(
        &self,
        action: String,
        f: impl FnOnce(&Root) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let root = Arc::clone(&self.root);
        // Two directories, two keys: one that hangs must not stand for the other.
        let what = format!("the attempt to {action} in {}", root.dir().display());
        match off_path(&what, self.timeout, move || f(&root)).await {
            Ok(result) => result,
            Err(error) => Err(unavailable(action, error)),
        }
    }
}

#[async_trait]
impl Ledger for FileLedger {
    fn name(&self) -> &'static str {
        "file"
    }

    async fn sync(&self) -> Result<(), LedgerError> {
        // Every read does: `layout::names` asks the file server.
        Ok(())
    }

    async fn latest(&self, broker: BrokerId) -> Result<Option<EpochJournal>, LedgerError> {
        self.run(format!("read the newest epoch of broker {broker}"), move |root| latest(root, broker)).await
    }

    async fn newest_epochs(
        &self,
        brokers: &BTreeSet<BrokerId>,
    ) -> Result<BTreeMap<BrokerId, Epoch>, LedgerError> {
        if !self.run("look at the directory".to_owned(), is_there).await? {
            return Ok(brokers.iter().map(|broker| (*broker, Epoch::default())).collect());
        }
        let told = stream::iter(brokers.iter().copied()).map(|broker| async move {
            let action = format!("list the epochs of broker {broker}");
            match self.run(action, move |root| newest_epoch(root, broker)).await {
                Ok(epoch) => Ok(Some((broker, epoch))),
                // Whoever reads it is told, and this broker alone is concerned.
                Err(LedgerError::Damaged { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        });
        told.buffer_unordered(AT_ONCE).try_filter_map(|told| async move { Ok(told) }).try_collect().await
    }

    async fn all(&self, broker: BrokerId) -> Result<Vec<EpochJournal>, LedgerError> {
        self.run(format!("read every epoch of broker {broker}"), move |root| all(root, broker)).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Record, LedgerError> {
        let (claim, broker, epoch) = (claim.clone(), claim.plan.broker, claim.plan.epoch);
        let deadline = Instant::now() + self.timeout;
        self.run(format!("claim epoch {epoch} of broker {broker}"), move |root| {
            make_claim(root, claim, deadline)
        })
        .await
    }

    async fn append(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        at: Timestamp,
        by: &HostName,
        entries: &[Entry],
    ) -> Result<Vec<Record>, LedgerError> {
        let (by, entries, deadline) = (by.clone(), entries.to_vec(), Instant::now() + self.timeout);
        let records = move |journal: &EpochJournal| number(journal, at, &by, entries);
        self.run(format!("add to epoch {epoch} of broker {broker}"), move |root| {
            append(root, broker, epoch, records, deadline)
        })
        .await
    }

    async fn remember(&self, broker: BrokerId, event: &Event) -> Result<(), LedgerError> {
        let (event, deadline) = (event.clone(), Instant::now() + self.timeout);
        self.run(format!("keep a decision on broker {broker}"), move |root| {
            remember(root, broker, &event, deadline)
        })
        .await
    }

    async fn remembered(&self, broker: BrokerId) -> Result<Vec<Event>, LedgerError> {
        self.run(format!("read the decisions on broker {broker}"), move |root| remembered(root, broker)).await
    }

    async fn order(&self, order: &Order) -> Result<(), LedgerError> {
        let (order, deadline) = (order.clone(), Instant::now() + self.timeout);
        self.run("add to the order book".to_owned(), move |root| give(root, &order, deadline)).await
    }

    async fn orders(&self) -> Result<Orders, LedgerError> {
        self.run("read the order book".to_owned(), orders).await
    }

    async fn cell(&self, name: &str) -> Result<Option<Cell>, LedgerError> {
        let cell = name.to_owned();
        self.run(format!("read {name}"), move |root| cells::read(root, &cell)).await
    }

    async fn set_cell(&self, name: &str, cell: &Cell) -> Result<Cell, LedgerError> {
        let (of, cell, deadline) = (name.to_owned(), cell.clone(), Instant::now() + self.timeout);
        self.run(format!("write {name}"), move |root| cells::write(root, &of, &cell, deadline)).await
    }

    async fn check(&self) -> Result<Note, LedgerError> {
        let local = self.local;
        self.run("write and read a probe file".to_owned(), move |root| check(root, local)).await
    }
}

fn latest(root: &Root, broker: BrokerId) -> Result<Option<EpochJournal>, LedgerError> {
    if !root.has_ledger()? {
        return Ok(None);
    }
    let newest = layout::epochs(&root.broker_dir(broker))?.pop();
    newest.map(|epoch| read(root, broker, epoch)).transpose()
}

/// Whether there is a ledger. The file server is asked for the directory besides: an NFS client remembers for
/// a while that a broker had no directory, and drops that when it learns that something was made.
fn is_there(root: &Root) -> Result<bool, LedgerError> {
    Ok(root.has_ledger()? && layout::ask(root.dir())?)
}

/// By its number alone, from a listing that is asked of the file server: see `layout::names`.
fn newest_epoch(root: &Root, broker: BrokerId) -> Result<Epoch, LedgerError> {
    Ok(layout::epochs(&root.broker_dir(broker))?.pop().unwrap_or_default())
}

fn all(root: &Root, broker: BrokerId) -> Result<Vec<EpochJournal>, LedgerError> {
    if !root.has_ledger()? {
        return Ok(Vec::new());
    }
    let epochs = layout::epochs(&root.broker_dir(broker))?;
    epochs.into_iter().map(|epoch| read(root, broker, epoch)).collect()
}

fn read(root: &Root, broker: BrokerId, epoch: Epoch) -> Result<EpochJournal, LedgerError> {
    let path = root.broker_dir(broker).join(layout::epoch_file(epoch));
    let bytes = root.read(&path)?.ok_or_else(|| failed("read", &path)(ErrorKind::NotFound.into()))?;
    Ok(journal::parse(broker, epoch, &path, &bytes)?.value)
}

fn make_claim(root: &Root, claim: Claim, deadline: Instant) -> Result<Record, LedgerError> {
    let (broker, epoch, by) = (claim.plan.broker, claim.plan.epoch, claim.by.clone());
    let dir = root.ensure_broker_dir(broker)?;
    let newest = layout::epochs(&dir)?.pop();
    let holder = match newest {
        Some(newest) if epoch <= newest && epoch > Epoch::default() => {
            Some(read(root, broker, epoch)?.claim.by)
        }
        _ => None,
    };
    let before = newest.map(|newest| read(root, broker, newest)).transpose()?;
    may_claim(&claim, before.as_ref(), holder.as_ref())
        .map_err(|refused| LedgerError::refused(broker, refused))?;
    let claimed = Entry::Claimed { claim: Box::new(claim) };
    let record = Record { seq: 0, at: Timestamp::now(), by, entry: claimed };
    let (name, owner) = (layout::epoch_file(epoch), layout::file_name(&record.by.0));
    let line = record::encode(&json(std::slice::from_ref(&record))?);
    journal::in_time(deadline, || format!("claim epoch {epoch} of broker {broker}"))?;
    if !layout::publish(&dir, &name, &owner, line.as_bytes())? {
        let by = read(root, broker, epoch)?.claim.by;
        return Err(LedgerError::Taken { broker, epoch, by });
    }
    layout::clean(&dir, &owner, &dir.join(&name));
    Ok(record)
}

fn append(
    root: &Root,
    broker: BrokerId,
    epoch: Epoch,
    records: impl FnOnce(&EpochJournal) -> Result<Vec<Record>, LedgerError>,
    deadline: Instant,
) -> Result<Vec<Record>, LedgerError> {
    let path = root.broker_dir(broker).join(layout::epoch_file(epoch));
    must_be_newest(root, broker, epoch)?;
    let mut tail = Tail::open(root.turns(), &path, false, deadline)?;
    let read: Content<EpochJournal> = journal::parse(broker, epoch, &path, &tail.read()?)?;
    let records = records(&read.value)?;
    if !records.is_empty() {
        tail.add(&read, &json(&records)?)?;
        // A newer epoch may have been won while we wrote. Then what we wrote is history, and not to be acted
        // on.
        must_be_newest(root, broker, epoch)?;
    }
    Ok(records)
}

fn must_be_newest(root: &Root, broker: BrokerId, ours: Epoch) -> Result<(), LedgerError> {
    root.has_ledger()?;
    let theirs = layout::epochs(&root.broker_dir(broker))?.pop().unwrap_or_default();
    recovery::journal::must_be_newest(theirs, ours).map_err(|refused| LedgerError::refused(broker, refused))
}

/// The entries as the journal's next records, if `by` may add to it.
fn number(
    journal: &EpochJournal,
    at: Timestamp,
    by: &HostName,
    entries: Vec<Entry>,
) -> Result<Vec<Record>, LedgerError> {
    let EpochJournal { broker, epoch, records, .. } = journal;
    may_append(Some(&Head::of(journal)), *epoch, by)
        .map_err(|refused| LedgerError::refused(*broker, refused))?;
    let numbers = records.len() as u64..;
    let record = |(seq, entry)| Record { seq, at, by: by.clone(), entry };
    Ok(numbers.zip(entries).map(record).collect())
}

fn remember(root: &Root, broker: BrokerId, event: &Event, deadline: Instant) -> Result<(), LedgerError> {
    let dir = root.ensure_broker_dir(broker)?;
    let (newest, before) = layout::decision_files(&event.host);
    let path = dir.join(newest);
    if fs::metadata(&path).is_ok_and(|m| m.len() > DECISIONS_LIMIT as u64) {
        fs::rename(&path, dir.join(before)).map_err(failed("rename", &path))?;
    }
    add_value(root, &path, event, deadline)
}

fn remembered(root: &Root, broker: BrokerId) -> Result<Vec<Event>, LedgerError> {
    let mut events: Vec<Event> = values(root, &root.broker_dir(broker), layout::is_decisions)?;
    events.sort_by_key(|event| event.at);
    Ok(events)
}

fn give(root: &Root, order: &Order, deadline: Instant) -> Result<(), LedgerError> {
    root.ensure()?;
    add_value(root, &root.dir().join(layout::orders_file(&order.host)), order, deadline)
}

fn orders(root: &Root) -> Result<Orders, LedgerError> {
    let mut orders: Vec<Order> = values(root, root.dir(), layout::is_orders)?;
    orders.sort_by_key(|order| order.at);
    Ok(Orders(orders))
}

/// Adds one value to a file of values, durably.
fn add_value<T>(root: &Root, path: &Path, value: &T, deadline: Instant) -> Result<(), LedgerError>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    let mut tail = Tail::open(root.turns(), path, true, deadline)?;
    let read: Content<Vec<T>> = journal::parse_each(path, &tail.read()?)?;
    let is_new = read.value.is_empty();
    tail.add(&read, &json(value)?)?;
    if is_new { layout::sync_dir(path.parent().unwrap_or(path)) } else { Ok(()) }
}

/// The values of every file in `dir` whose name fits.
fn values<T: serde::de::DeserializeOwned>(
    root: &Root,
    dir: &Path,
    fits: fn(&str) -> bool,
) -> Result<Vec<T>, LedgerError> {
    let names = if root.has_ledger()? { layout::names(dir)?.unwrap_or_default() } else { Vec::new() };
    let mut values: Vec<T> = Vec::new();
    for path in names.iter().filter(|name| fits(name)).map(|name| dir.join(name)) {
        // One that is missing was renamed by its host since the listing.
        if let Some(bytes) = root.read(&path)? {
            values.extend(journal::parse_each::<T>(&path, &bytes)?.value);
        }
    }
    Ok(values)
}

fn json<T: serde::Serialize + ?Sized>(value: &T) -> Result<String, LedgerError> {
    format::write(value).map_err(|error| unavailable("write a record as JSON".to_owned(), error))
}

fn check(root: &Root, local: bool) -> Result<Note, LedgerError> {
    let dir = root.dir();
    let begun = Instant::now();
    let has_ledger = root.has_ledger()?;
    let took = probe(dir).map(|()| begun.elapsed())?;
    let space =
        rustix::fs::statvfs(dir).map_err(|error| failed("ask for the free space of", dir)(error.into()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let state =
        if has_ledger { "a ledger of format 1" } else { "no ledger yet: run `understudy ledger init`" };
    let text = format!(
        "{}: written, linked and read back in {} ms, {} MiB free; {state}",
        dir.display(),
        took.as_millis(),
        free >> 20
    );
    if !local {
        must_be_shared(dir)?;
    }
    Ok(Note::new(text).with("free_bytes", free).with("probe_ms", took.as_millis()))
}

/// Goes the way of a claim with a file of no meaning.
fn probe(dir: &Path) -> Result<(), LedgerError> {
    let name = format!(".probe-{}-{}", std::process::id(), Timestamp::now().as_nanosecond());
    let path = dir.join(&name);
    let content = b"understudy checks that this directory can be written\n";
    layout::publish(dir, &name, "probe", content)?;
    let read = fs::read(&path).map_err(failed("read back", &path));
    fs::remove_file(&path).map_err(failed("remove", &path))?;
    if read? == content {
        return Ok(());
    }
    Err(unavailable(format!("read back {}", path.display()), "it does not hold what was written to it"))
}

/// Two hosts that have one each of what should be one claim the same broker.
fn must_be_shared(dir: &Path) -> Result<(), LedgerError> {
    let real = fs::canonicalize(dir).map_err(failed("look at", dir))?;
    let mounts = Mounts::read().map_err(failed("look for the mount of", dir))?;
    match mounts.covering(&real) {
        Some(mount) if mount.is_shared() => Ok(()),
        mount => Err(unavailable(
            format!("be the same for all hosts in {}", dir.display()),
            format!(
                "it is on {}, which is not known as a network file system: a ledger that the other hosts do not see \
                 protects nobody. Mount shared storage there; where it is a disk of this host on purpose, as on a test \
                 host, set ledger.local = true",
                mount.map_or_else(|| "no mount".to_owned(), Mount::words)
            ),
        )),
    }
}
