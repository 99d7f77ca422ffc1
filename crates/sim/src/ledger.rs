//! The simulated ledger: compare-and-set in memory, with every way to fail that the contract allows.

use std::collections::BTreeMap;
use std::future::pending;

use async_trait::async_trait;
use jiff::Timestamp;
use recovery::event::Event;
use recovery::journal::{Claim, Entry, EpochJournal, Record, may_claim};
use recovery::model::{BrokerId, Epoch, EpochState, HostName, LedgerStanding, Order, Orders};
use recovery::ports::{Cell, Ledger, LedgerError, Note};

use crate::agent::{Agent, index};
use crate::scenario::{Bug, LedgerFault, Ms, Node, Write};
use crate::world::State;

/// A ledger driver's own deadline (the file driver's default).
const DEADLINE: Ms = 5_000;
/// How old a reading may be where readings lag behind.
const LAG: Ms = 3_000;

/// One epoch, with the time at which each record became durable.
#[derive(Debug)]
struct Stored {
    journal: EpochJournal,
    landed: Vec<Ms>,
}

impl Stored {
    fn as_of(&self, then: Ms, reader: &HostName) -> Option<EpochJournal> {
        let own = self.journal.claim.by == *reader;
        let count =
            if own { self.landed.len() } else { self.landed.iter().filter(|at| **at <= then).count() };
        let EpochJournal { broker, epoch, claim, records } = &self.journal;
        let records = records.get(..count).unwrap_or_default().to_vec();
        (count > 0).then(|| EpochJournal { broker: *broker, epoch: *epoch, claim: claim.clone(), records })
    }
}

/// What is durable.
#[derive(Debug, Default)]
pub(crate) struct Book {
    epochs: Vec<Vec<Stored>>,
    orders: Vec<(Ms, Order)>,
    cells: BTreeMap<String, Cell>,
}

impl Book {
    /// An empty ledger, for so many brokers.
    pub(crate) fn new(brokers: usize) -> Self {
        let epochs = (0..brokers).map(|_| Vec::new()).collect();
        Self { epochs, orders: Vec::new(), cells: BTreeMap::new() }
    }

    /// Every epoch of a broker.
    pub(crate) fn journals(&self, broker: usize) -> impl DoubleEndedIterator<Item = &EpochJournal> {
        self.epochs[broker].iter().map(|stored| &stored.journal)
    }

    /// How many records the journal of an epoch has.
    fn length(&self, broker: usize, epoch: Epoch) -> u64 {
        self.journals(broker).find(|j| j.epoch == epoch).map_or(0, |journal| journal.records.len() as u64)
    }

    /// Where a broker really stands.
    pub(crate) fn standing(&self, broker: usize, home: &HostName) -> LedgerStanding {
        self.journals(broker).fold(LedgerStanding::untouched(home.clone()), LedgerStanding::then)
    }

    /// Where it stood at that time, to a host whose own records are never late to it.
    pub(crate) fn stood(
        &self,
        broker: usize,
        home: &HostName,
        then: Ms,
        reader: &HostName,
    ) -> LedgerStanding {
        let journals = self.as_of(broker, then, reader);
        journals.iter().fold(LedgerStanding::untouched(home.clone()), LedgerStanding::then)
    }

    /// The owner, while no other host has an open epoch.
    pub(crate) fn owner_alone(&self, broker: usize, home: &HostName) -> Option<HostName> {
        let standing = self.standing(broker, home);
        match standing.state {
            Some(EpochState::Open { by, .. }) if by != standing.owner => None,
            _ => Some(standing.owner),
        }
    }

    pub(crate) fn orders(&self) -> impl Iterator<Item = &Order> {
        self.orders.iter().map(|(_, order)| order)
    }

    pub(crate) fn add_order(&mut self, now: Ms, order: Order) {
        self.orders.push((now, order));
    }

    /// What was durable at `then`; what `reader` wrote itself it always sees.
    fn as_of(&self, broker: usize, then: Ms, reader: &HostName) -> Vec<EpochJournal> {
        self.epochs[broker].iter().filter_map(|stored| stored.as_of(then, reader)).collect()
    }

    /// The newest epoch of what was durable at `then`.
    fn latest(&self, broker: usize, then: Ms, reader: &HostName) -> Option<EpochJournal> {
        self.epochs[broker].iter().rev().find_map(|stored| stored.as_of(then, reader))
    }

    fn claim(&mut self, claim: &Claim, now: Ms, bug: Option<Bug>) -> Result<Record, LedgerError> {
        let (broker, epoch) = (claim.plan.broker, claim.plan.epoch);
        let entry = Entry::Claimed { claim: Box::new(claim.clone()) };
        let record = Record { seq: 0, at: claim.at, by: claim.by.clone(), entry };
        let epochs = &mut self.epochs[index(broker)];
        let holder = epochs.iter().find(|stored| stored.journal.epoch == epoch);
        let holder = holder.map(|had| &had.journal.claim.by);
        if holder.is_some() && bug == Some(Bug::DoubleClaim) {
            return Ok(record);
        }
        let newest = epochs.last().map(|stored| &stored.journal);
        may_claim(claim, newest, holder).map_err(|refused| LedgerError::refused(broker, refused))?;
        let journal = EpochJournal { broker, epoch, claim: claim.clone(), records: vec![record.clone()] };
        epochs.push(Stored { journal, landed: vec![now] });
        Ok(record)
    }

    fn append(&mut self, written: &Written, now: Ms, bug: Option<Bug>) -> Result<Vec<Record>, LedgerError> {
        let Written { broker, epoch, at, by, entries, after } = written;
        let (broker, epoch) = (*broker, *epoch);
        let epochs = &mut self.epochs[index(broker)];
        let newest = epochs.last().map_or(Epoch(0), |stored| stored.journal.epoch);
        if newest > epoch && bug != Some(Bug::OldEpochWrites) {
            return Err(LedgerError::Superseded { broker, ours: epoch, theirs: newest });
        }
        let Some(stored) = epochs.iter_mut().find(|stored| stored.journal.epoch == epoch) else {
            return Err(unavailable("append to an epoch that nobody claimed"));
        };
        let journal = &mut stored.journal;
        if journal.claim.by != *by && bug != Some(Bug::DoubleClaim) {
            return Err(LedgerError::Taken { broker, epoch, by: journal.claim.by.clone() });
        }
        if journal.outcome().is_some() {
            return Err(unavailable("append: the takeover has ended"));
        }
        let first = journal.records.len() as u64;
        if *after != first && !matches!(bug, Some(Bug::BlindAppend | Bug::DoubleClaim)) {
            return Err(unavailable("append: the journal has gone on since this was asked for"));
        }
        let records = (first..).zip(entries);
        let records: Vec<Record> = records
            .map(|(seq, entry)| Record { seq, at: *at, by: by.clone(), entry: entry.clone() })
            .collect();
        journal.records.extend(records.iter().cloned());
        stored.landed.extend(records.iter().map(|_| now));
        Ok(records)
    }
}

impl State {
    /// What a host finds where the ledger should be.
    pub(crate) fn book_at(&mut self, host: usize) -> &mut Book {
        let missing = self.now < self.hosts[host].ledger_missing_until;
        if missing { &mut self.hosts[host].stray } else { &mut self.book }
    }
}

/// Whether everything that an epoch had to prove is proven.
pub(crate) fn fence_is_proven(journal: &EpochJournal) -> bool {
    let done = |index: usize| {
        journal
            .records
            .iter()
            .any(|record| matches!(&record.entry, Entry::Done { step, .. } if *step == index))
    };
    let mut proofs = journal.claim.plan.steps().enumerate().filter(|(_, (_, step))| step.is_proof());
    proofs.all(|(index, _)| done(index))
}

fn unavailable(action: &str) -> LedgerError {
    LedgerError::Unavailable { action: action.to_owned(), source: "the simulation".into() }
}

struct Written {
    broker: BrokerId,
    epoch: Epoch,
    at: Timestamp,
    by: HostName,
    entries: Vec<Entry>,
    /// How many records the journal had when this was asked for.
    after: u64,
}

/// What becomes of one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    Lost,
    Unconfirmed,
    Late,
}

impl Agent {
    fn fate(&self, state: &State) -> Fate {
        let fails = |kind| state.ledger_fails(kind, self.host);
        let (here, there) = (Node::Host(self.host), Node::Ledger);
        if fails(LedgerFault::Down) || !state.passes(here, there) {
            Fate::Lost
        } else if fails(LedgerFault::LostAcks) || !state.passes(there, here) {
            Fate::Unconfirmed
        } else if fails(LedgerFault::Late) {
            Fate::Late
        } else {
            Fate::Done
        }
    }

    fn latency(&self) -> Ms {
        let mut state = self.world.state();
        if state.ledger_fails(LedgerFault::Slow, self.host) {
            state.latency.between(800, 4_500)
        } else {
            state.latency.between(3, 30)
        }
    }

    /// The agent dies here, if this is the write at which it should.
    async fn may_die(&self, when: Write) {
        let dies = {
            let mut state = self.world.state();
            let machine = &mut state.hosts[self.host];
            match &mut machine.crash {
                Some((left, w)) if *w == when => {
                    *left = left.saturating_sub(1);
                    *left == 0
                }
                _ => false,
            }
        };
        if dies {
            self.die(when);
            pending::<()>().await;
        }
    }

    fn die(&self, when: Write) {
        let mut state = self.world.state();
        state.hosts[self.host].crash = None;
        let again = state.now + state.latency.between(500, 6_000);
        let name = state.name(self.host);
        state.say(|| format!("the agent of {name} dies {when:?} a ledger write"));
        state.end_agent(self.host, Some(again));
    }

    async fn write<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        self.awake().await;
        self.may_die(Write::Before).await;
        let fate = self.fate(&self.world.state());
        if fate == Fate::Lost {
            self.world.sleep(DEADLINE).await;
            self.awake().await;
            return Err(unavailable("write"));
        }
        if fate == Fate::Late {
            let (world, more) = (self.world.clone(), self.world.state().latency.between(100, 6_000));
            tokio::spawn(async move {
                world.sleep(DEADLINE + more).await;
                let mut state = world.state();
                state.say(|| "a ledger write lands late".to_owned());
                let _ = act(&mut state);
            });
            self.world.sleep(DEADLINE).await;
            self.awake().await;
            return Err(unavailable("write in time"));
        }
        self.world.sleep(self.latency()).await;
        // The request of a host that stands still has left it, or not.
        if self.world.state().latency.percent(50) {
            self.awake().await;
        }
        let result = act(&mut self.world.state());
        self.may_die(Write::After).await;
        if fate == Fate::Unconfirmed {
            self.world.sleep(DEADLINE).await;
            self.awake().await;
            return Err(unavailable("confirm"));
        }
        self.awake().await;
        result
    }

    async fn read<T>(&self, look: impl FnOnce(&Book, &HostName, Ms) -> T) -> Result<T, LedgerError> {
        self.awake().await;
        let (fate, slow) = {
            let state = self.world.state();
            (self.fate(&state), state.ledger_fails(LedgerFault::Slow, self.host))
        };
        if matches!(fate, Fate::Lost | Fate::Unconfirmed) {
            self.world.sleep(1_000).await;
            self.awake().await;
            return Err(unavailable("read"));
        }
        if slow {
            let wait = self.latency();
            self.world.sleep(wait).await;
            self.awake().await;
        }
        let mut state = self.world.state();
        let lag = if state.ledger_fails(LedgerFault::Stale, self.host) { LAG } else { 0 };
        let (name, then) = (state.name(self.host), state.now.saturating_sub(lag));
        Ok(look(state.book_at(self.host), &name, then))
    }
}

#[async_trait]
impl Ledger for Agent {
    fn name(&self) -> &'static str {
        "simulated"
    }

    async fn sync(&self) -> Result<(), LedgerError> {
        self.read(|_, _, _| ()).await
    }

    async fn latest(&self, broker: BrokerId) -> Result<Option<EpochJournal>, LedgerError> {
        self.read(|book, name, then| book.latest(index(broker), then, name)).await
    }

    async fn all(&self, broker: BrokerId) -> Result<Vec<EpochJournal>, LedgerError> {
        self.read(|book, name, then| book.as_of(index(broker), then, name)).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Record, LedgerError> {
        self.check_claim(claim);
        let (claim, who) = (claim.clone(), self.clone());
        self.write(move |state| {
            let (now, bug) = (state.now, state.setup.bug);
            let result = state.book_at(who.host).claim(&claim, now, bug);
            let (broker, epoch, won) = (claim.plan.broker, claim.plan.epoch, result.is_ok());
            let word = if won { "claims" } else { "does not win" };
            state.say(|| format!("host {} {word} epoch {epoch} of broker {broker}", who.host));
            result
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
        self.awake().await;
        let after = self.world.state().book_at(self.host).length(index(broker), epoch);
        let written = Written { broker, epoch, at, by: by.clone(), entries: entries.to_vec(), after };
        let host = self.host;
        self.write(move |state| {
            let (now, bug) = (state.now, state.setup.bug);
            let appended = state.book_at(host).append(&written, now, bug);
            if appended.is_ok() {
                state.check_end(host, index(written.broker), &written.entries);
            }
            appended
        })
        .await
    }

    async fn remember(&self, _broker: BrokerId, _event: &Event) -> Result<(), LedgerError> {
        self.read(|_, _, _| ()).await
    }

    async fn remembered(&self, _broker: BrokerId) -> Result<Vec<Event>, LedgerError> {
        Ok(Vec::new())
    }

    async fn order(&self, order: &Order) -> Result<(), LedgerError> {
        let (host, order) = (self.host, order.clone());
        self.write(move |state| {
            let now = state.now;
            state.say(|| format!("into the order book: {order}"));
            state.book_at(host).add_order(now, order);
            Ok(())
        })
        .await
    }

    async fn orders(&self) -> Result<Orders, LedgerError> {
        self.read(|book, _, then| {
            let known = book.orders.iter().filter(|(landed, _)| *landed <= then);
            Orders(known.map(|(_, order)| order.clone()).collect())
        })
        .await
    }

    /// As fast as ever where reads are slow: a claim that waits for it is written late, touches nobody and is
    /// withdrawn, and the rules count from here.
    async fn cell(&self, name: &str) -> Result<Option<Cell>, LedgerError> {
        self.awake().await;
        let lost = self.fate(&self.world.state());
        if matches!(lost, Fate::Lost | Fate::Unconfirmed) {
            return self.read(|_, _, _| None).await;
        }
        Ok(self.world.state().book_at(self.host).cells.get(name).cloned())
    }

    async fn set_cell(&self, name: &str, cell: &Cell) -> Result<Cell, LedgerError> {
        let (host, name, cell) = (self.host, name.to_owned(), cell.clone());
        self.write(move |state| {
            let cells = &mut state.book_at(host).cells;
            let newest = cells.get(&name).cloned();
            if cell.version == newest.as_ref().map_or(0, |newest| newest.version) + 1 {
                cells.insert(name, cell.clone());
                return Ok(cell);
            }
            newest.ok_or_else(|| unavailable("write: version 1 is due"))
        })
        .await
    }

    async fn check(&self) -> Result<Note, LedgerError> {
        self.read(|_, _, _| Note::new("simulated")).await
    }
}
