//! A journal: a chain of pages, each an object. A page that would become too large is closed as full first, and the
//! next one is made after that; both steps are such that one writer of many makes them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt;
use kube::api::ObjectMeta;
use recovery::format;
use recovery::journal::{Entry, EpochJournal, Record};
use recovery::model::{BrokerId, Epoch};
use recovery::ports::LedgerError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Stop;
use super::names::{Journal, Names};
use crate::client::Asking;
use crate::crd::{Closed, LABEL, LedgerJournal, LedgerJournalSpec, OF_BROKER, Takeover};

/// A page with so many bytes gets no more lines. Every append writes its page anew.
const PAGE: usize = 64 << 10;
/// The most that one line may have, in bytes. etcd refuses objects beyond 1.5 MiB (`--max-request-bytes`), and
/// text is up to four times as long there, where it is escaped twice.
pub(super) const LINE: usize = 256 << 10;
/// Journals whose full pages are kept in memory.
const KEPT: usize = 64;

pub(super) const RESTORE: &str =
    "restore the ledger's objects from a backup; until then nothing is done about this broker";

/// A journal as it was read: at least one page.
#[derive(Debug, Clone)]
pub(super) struct Book {
    pages: Vec<Arc<LedgerJournal>>,
}

/// Full pages by their journal: they never change.
pub(super) type Full = Mutex<BTreeMap<String, Vec<Arc<LedgerJournal>>>>;

impl Book {
    /// Reads a journal; `None` if it has no first page.
    pub(super) async fn read(
        asking: &Asking<'_>,
        names: &Names,
        full: &Full,
        journal: Journal,
    ) -> Result<Option<Self>, Stop> {
        let first = names.page(journal, 0);
        let known = full.lock().unwrap_or_else(PoisonError::into_inner).get(&first).cloned();
        let mut pages = known.unwrap_or_default();
        let known = pages.len();
        while pages.last().is_none_or(|last| last.spec.closed == Some(Closed::Full)) {
            let name = names.page(journal, pages.len());
            let Some(page) = asking.get::<LedgerJournal>(&name).await? else { break };
            fits(&pages, &page, journal)?;
            pages.push(Arc::new(page));
        }
        let closed = pages.iter().take_while(|page| page.spec.closed == Some(Closed::Full)).count();
        if closed > known {
            let mut full = full.lock().unwrap_or_else(PoisonError::into_inner);
            if full.len() >= KEPT {
                full.clear();
            }
            full.insert(first, pages[..closed].to_vec());
        }
        Ok(if pages.is_empty() { None } else { Some(Self { pages }) })
    }

    /// What it says that it is of.
    pub(super) fn of(&self) -> &Takeover {
        &self.last().spec.of
    }

    /// Why nothing may be added, if so.
    pub(super) fn closed(&self) -> Option<Closed> {
        self.last().spec.closed.filter(|closed| *closed != Closed::Full)
    }

    /// Whether it has this very line.
    pub(super) fn has(&self, line: &str) -> bool {
        self.pages.iter().any(|page| page.spec.log.contains(line))
    }

    fn last(&self) -> &LedgerJournal {
        &self.pages[self.pages.len() - 1]
    }

    /// The values of all lines, oldest first.
    pub(super) fn values<T: DeserializeOwned>(&self) -> Result<Vec<T>, LedgerError> {
        let lines = self.pages.iter().flat_map(|page| {
            let name = page.name_any();
            page.spec.log.lines().enumerate().map(move |(n, line)| (format!("{name}, line {}", n + 1), line))
        });
        let read = |(place, line): (String, &str)| match line.split_once(' ') {
            Some((_, json)) => format::read(json.as_bytes()).map_err(|error| error.at(place, RESTORE)),
            None => Err(damaged(place, "it is not what any understudy writes")),
        };
        lines.map(read).collect()
    }

    /// The same as the journal of an epoch.
    pub(super) fn journal(&self, broker: BrokerId, epoch: Epoch) -> Result<EpochJournal, LedgerError> {
        let name = self.pages[0].name_any();
        let batches: Vec<Vec<Record>> = self.values()?;
        let records: Vec<Record> = batches.into_iter().flatten().collect();
        if let Some((n, _)) = (0u64..).zip(&records).find(|(n, record)| record.seq != *n) {
            return Err(damaged(name, &format!("record {n} is missing")));
        }
        let claim = match records.first().map(|record| &record.entry) {
            Some(Entry::Claimed { claim }) => (**claim).clone(),
            _ => return Err(damaged(name, "it must begin with a claim")),
        };
        if (claim.plan.broker, claim.plan.epoch) != (broker, epoch) {
            let why = format!("it claims epoch {} of broker {}", claim.plan.epoch, claim.plan.broker);
            return Err(damaged(name, &why));
        }
        Ok(EpochJournal { broker, epoch, claim, records })
    }

    /// Adds a line, or nothing but the reason to close it. `false`: somebody else has written, or the page was full;
    /// read anew.
    pub(super) async fn add(
        &self,
        asking: &Asking<'_>,
        names: &Names,
        journal: Journal,
        line: &str,
        closed: Option<Closed>,
    ) -> Result<bool, Stop> {
        let mut last = self.last().clone();
        if last.spec.closed == Some(Closed::Full) {
            let lines = self.pages.iter().map(|page| page.spec.log.lines().count()).sum();
            let spec = page(self.of().clone(), self.pages.len(), lines, line, closed);
            return Ok(asking.create(&object(names, journal, spec)).await?.is_some());
        }
        if !last.spec.log.is_empty() && last.spec.log.len() + line.len() > PAGE {
            last.spec.closed = Some(Closed::Full);
            asking.replace(&last).await?;
            return Ok(false);
        }
        last.spec.log.push_str(line);
        last.spec.closed = closed;
        Ok(asking.replace(&last).await?.is_some())
    }
}

/// Makes the first page of a journal. `false`: there is one, which may be this very one.
pub(super) async fn begin(
    asking: &Asking<'_>,
    names: &Names,
    journal: Journal,
    of: Takeover,
    line: &str,
) -> Result<bool, Stop> {
    let spec = page(of, 0, 0, line, None);
    Ok(asking.create(&object(names, journal, spec)).await?.is_some())
}

/// A value as a line, with a mark by which whoever wrote it knows it again.
pub(super) fn line<T: Serialize + ?Sized>(mark: &str, value: &T) -> Result<String, Stop> {
    let json = format::write(value).map_err(|error| super::unavailable("write a record as JSON", error))?;
    let line = format!("{mark} {json}\n");
    if line.len() > LINE {
        let why = format!("it has {} bytes, and one write may have {LINE}", line.len());
        return Err(super::unavailable("write to the ledger", why).into());
    }
    Ok(line)
}

fn page(of: Takeover, page: usize, first: usize, log: &str, closed: Option<Closed>) -> LedgerJournalSpec {
    let page = i32::try_from(page).unwrap_or(i32::MAX);
    LedgerJournalSpec {
        of,
        page,
        first: i64::try_from(first).unwrap_or(i64::MAX),
        log: log.to_owned(),
        closed,
    }
}

fn object(names: &Names, journal: Journal, spec: LedgerJournalSpec) -> LedgerJournal {
    let name = names.page(journal, usize::try_from(spec.page).unwrap_or_default());
    let mut metadata = meta(names, name);
    let broker = spec.of.broker.map(|broker| (OF_BROKER.to_owned(), broker.to_string()));
    metadata.labels.get_or_insert_default().extend(broker);
    LedgerJournal { metadata, spec }
}

/// What an object of the ledger is called.
pub(super) fn meta(names: &Names, name: String) -> ObjectMeta {
    let labels = Some([(LABEL.to_owned(), names.ledger().to_owned())].into());
    ObjectMeta { name: Some(name), labels, ..ObjectMeta::default() }
}

fn fits(pages: &[Arc<LedgerJournal>], page: &LedgerJournal, journal: Journal) -> Result<(), LedgerError> {
    let lines: usize = pages.iter().map(|page| page.spec.log.lines().count()).sum();
    let place = (usize::try_from(page.spec.page), usize::try_from(page.spec.first));
    let whole = page.spec.log.is_empty() || page.spec.log.ends_with('\n');
    if place != (Ok(pages.len()), Ok(lines)) || !journal.is(&page.spec.of) || !whole {
        return Err(damaged(page.name_any(), "it is not what its name says"));
    }
    Ok(())
}

pub(super) fn damaged(place: impl Into<String>, why: &str) -> LedgerError {
    LedgerError::Damaged { place: place.into(), why: format!("{why}; {RESTORE}") }
}
