//! A ledger that is known, to an agent that is known to it.
//!
//! That a place answers does not make it the ledger: a directory whose mount is missing answers too, and is
//! empty. So a ledger has an identity, which is written once (`understudy ledger init`), and every host keeps
//! the one that it has used first in its state directory. And that an agent says a host's name does not make
//! it that host: a copied configuration says it as well. So a host is its name *and* an instance, which is
//! made once in its state directory; the first instance that says a name has it.
//!
//! Every call asks for both first, at most once in [`TRUSTED_FOR`]. What does not fit is refused as
//! [`LedgerError::Distrusted`], reads and writes alike.

mod back;
mod homes;
mod machine;
mod name;
mod rivals;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::back::{Newest, went_back};
pub use self::machine::{Machine, Met};
pub use self::name::{NameHolder, give_name, leave_name, name_holder};
use crate::event::Event;
use crate::format;
use crate::journal::{Claim, Entry, EpochJournal, Record};
use crate::model::{BrokerId, Cell, Distrust, Epoch, HostName, Note, Order, Orders};
use crate::ports::{Clock, Ledger, LedgerError};

/// For how long what was found is not asked for again.
const TRUSTED_FOR: Duration = Duration::from_secs(1);

/// The same, of the homes: they change by a person's word only.
const HOMES_TRUSTED_FOR: Duration = Duration::from_secs(10);

const IDENTITY: &str = "identity";

/// Which ledger it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Random, and never written again.
    pub id: String,
    /// The version of what is in the ledger.
    pub format: u32,
    /// When it was made.
    pub at: Timestamp,
    /// The host on which it was made.
    pub by: HostName,
}

impl Identity {
    /// One with an `id` that no ledger has yet.
    #[must_use]
    pub fn new(id: String, by: HostName, at: Timestamp) -> Self {
        Self { id, format: 1, at, by }
    }
}

/// Where a broker's home is: written by the host itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeHolder {
    /// The host.
    pub home: HostName,
    /// Since when.
    pub at: Timestamp,
}

/// The identity of a ledger; `None` if it was never initialised.
///
/// # Errors
/// When it cannot be read.
pub async fn identity(ledger: &dyn Ledger) -> Result<Option<Identity>, LedgerError> {
    read(ledger, IDENTITY).await
}

/// Gives a ledger the identity `ours` unless it has one. Returns the one that it has, and whether it was made here.
///
/// # Errors
/// When it cannot be read or written.
pub async fn init(ledger: &dyn Ledger, ours: &Identity) -> Result<(Identity, bool), LedgerError> {
    let stands: Identity = first(ledger, IDENTITY, ours).await?;
    let made = stands == *ours;
    Ok((stands, made))
}

/// The machine that said a host's name last without having it; `None` if none ever did.
///
/// # Errors
/// When it cannot be read.
pub async fn rival(ledger: &dyn Ledger, host: &HostName) -> Result<Option<NameHolder>, LedgerError> {
    read(ledger, &rival_cell(host)).await
}

/// The home of a broker, as its host itself has registered it; `None` if none has.
///
/// # Errors
/// When it cannot be read.
pub async fn home_holder(ledger: &dyn Ledger, broker: BrokerId) -> Result<Option<HomeHolder>, LedgerError> {
    read(ledger, &home_cell(broker)).await
}

/// Registers another home of a broker, whoever was registered. For a person.
///
/// # Errors
/// When it cannot be written.
pub async fn give_home(
    ledger: &dyn Ledger,
    broker: BrokerId,
    home: &HostName,
    at: Timestamp,
) -> Result<(), LedgerError> {
    let holder = HomeHolder { home: home.clone(), at };
    write_next(ledger, &home_cell(broker), &holder).await
}

fn rival_cell(host: &HostName) -> String {
    format!("rival-{host}")
}

fn home_cell(broker: BrokerId) -> String {
    format!("home-{broker}")
}

async fn read<T: DeserializeOwned>(ledger: &dyn Ledger, name: &str) -> Result<Option<T>, LedgerError> {
    ledger.cell(name).await?.map(|cell| parse(name, &cell)).transpose()
}

fn parse<T: DeserializeOwned>(name: &str, cell: &Cell) -> Result<T, LedgerError> {
    format::read(cell.text.as_bytes()).map_err(|error| {
        error.at(format!("{name}, version {}", cell.version), "restore the ledger from a snapshot")
    })
}

fn cell<T: Serialize>(version: u64, value: &T) -> Result<Cell, LedgerError> {
    let text = format::write(value).map_err(|error| unavailable("write a cell as JSON", error))?;
    Ok(Cell { version, text })
}

/// Writes the first version, or reads what is there.
async fn first<T>(ledger: &dyn Ledger, name: &str, value: &T) -> Result<T, LedgerError>
where
    T: Serialize + DeserializeOwned,
{
    parse(name, &ledger.set_cell(name, &cell(1, value)?).await?)
}

/// Writes the version after the newest.
async fn write_next<T: Serialize>(ledger: &dyn Ledger, name: &str, value: &T) -> Result<(), LedgerError> {
    let newest = ledger.cell(name).await?.map_or(0, |newest| newest.version);
    let ours = cell(newest + 1, value)?;
    if ledger.set_cell(name, &ours).await? == ours {
        return Ok(());
    }
    Err(unavailable(&format!("write {name}"), "somebody else did so at the same moment: look, and try again"))
}

fn unavailable(action: &str, source: impl Into<crate::ports::BoxError>) -> LedgerError {
    LedgerError::Unavailable { action: action.to_owned(), source: source.into() }
}

/// Who uses a ledger.
#[derive(Debug, Clone)]
pub struct Member {
    /// The host's name.
    pub here: HostName,
    /// Where it keeps what it is and what it has seen.
    pub machine: Arc<dyn Machine>,
    /// The home of every broker in its configuration.
    pub homes: BTreeMap<BrokerId, HostName>,
    /// Where the ledger is, for people.
    pub place: String,
    /// Whether it makes itself known, and keeps what it meets: agents and `guard` do, commands that only look
    /// do not.
    pub joins: bool,
}

/// A ledger that is asked who it is before anything else.
pub struct KnownLedger {
    inner: Arc<dyn Ledger>,
    who: Member,
    clock: Arc<dyn Clock>,
    trusted: Mutex<Trusted>,
    newest: Newest,
}

/// When what was last found to be right.
#[derive(Debug, Default, Clone, Copy)]
struct Trusted {
    all: Option<Instant>,
    joined: bool,
    homes: Option<Instant>,
    /// Whether it was told that another machine says this host's name.
    told: bool,
}

impl KnownLedger {
    /// `inner`, for `who`. Touches nothing yet.
    #[must_use]
    pub fn new(inner: Arc<dyn Ledger>, who: Member, clock: Arc<dyn Clock>) -> Self {
        Self { inner, who, clock, trusted: Mutex::default(), newest: Newest::default() }
    }

    fn now(&self) -> Timestamp {
        self.clock.now().wall
    }

    fn trusted(&self) -> MutexGuard<'_, Trusted> {
        self.trusted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a ledger that is not the one, and an agent that is not the one. `joins`: whether this host may
    /// make itself known.
    async fn ask(&self, joins: bool) -> Result<(), LedgerError> {
        let begun = Instant::now();
        let trusted = *self.trusted();
        let fresh = |at: Option<Instant>, within| at.is_some_and(|at: Instant| at.elapsed() < within);
        if fresh(trusted.all, TRUSTED_FOR) && (trusted.joined || !joins) {
            return Ok(());
        }
        self.trusted().all = None;
        self.ledger(joins).await?;
        self.name(joins).await?;
        if !fresh(trusted.homes, HOMES_TRUSTED_FOR) || (joins && !trusted.joined) {
            self.homes(joins).await?;
            self.trusted().homes = Some(begun);
        }
        let mut trusted = self.trusted();
        trusted.all = Some(begun);
        trusted.joined |= joins;
        Ok(())
    }

    async fn ledger(&self, joins: bool) -> Result<(), LedgerError> {
        let place = &self.who.place;
        // Who only looks may not be allowed to read this host's own files.
        let met = if joins { self.who.machine.met()? } else { self.who.machine.met().unwrap_or_default() };
        let distrusted = |distrust, why| Err(LedgerError::Distrusted { distrust, why });
        match (identity(self.inner.as_ref()).await?, met) {
            (Some(found), Some(met)) if found.id == met.id => Ok(()),
            (Some(found), None) if joins => self.who.machine.meet(&found, place),
            (Some(_), None) => Ok(()),
            (Some(found), Some(met)) => {
                let why = format!(
                    "{place} holds ledger {} (made {:.0} on {}), and this host knows ledger {} (since {:.0}): is the \
                     right storage mounted there? If the ledger was replaced on purpose, run `understudy ledger adopt` here",
                    found.id, found.at, found.by, met.id, met.since
                );
                distrusted(Distrust::LedgerForeign, why)
            }
            (None, Some(met)) => {
                let why = format!(
                    "{place} holds no ledger, and this host knows ledger {} (since {:.0}): is its storage mounted? \
                     Nothing is done until it is there",
                    met.id, met.since
                );
                distrusted(Distrust::LedgerUnknown, why)
            }
            (None, None) => {
                let why = format!(
                    "{place} holds no ledger: if it was never initialised, run `understudy ledger init` once for the \
                     whole cluster; if it was, its storage is not mounted here"
                );
                distrusted(Distrust::LedgerUnknown, why)
            }
        }
    }

    /// An epoch that was claimed under this host's name by another machine is somebody else's.
    fn seen(&self, mut journal: EpochJournal) -> Result<EpochJournal, LedgerError> {
        if journal.claim.by != self.who.here {
            return Ok(journal);
        }
        let ours = self.who.machine.instance().unwrap_or_default();
        if let Some(other) = journal.claim.instance.as_ref().filter(|other| Some(*other) != ours.as_ref()) {
            let short = other.get(..8).unwrap_or(other);
            journal.claim.by = HostName(format!("{} (instance {short})", self.who.here));
        }
        Ok(journal)
    }
}

#[async_trait]
impl Ledger for KnownLedger {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn sync(&self) -> Result<(), LedgerError> {
        self.inner.sync().await?;
        self.ask(self.who.joins).await
    }

    async fn latest(&self, broker: BrokerId) -> Result<Option<EpochJournal>, LedgerError> {
        self.ask(self.who.joins).await?;
        let mut newest = self.inner.latest(broker).await?;
        if self.newest.is_older(&self.who, broker, epoch_of(newest.as_ref()))? {
            // A member of a quorum that was cut off may tell an old state for a while.
            self.inner.sync().await?;
            newest = self.inner.latest(broker).await?;
            if self.newest.is_older(&self.who, broker, epoch_of(newest.as_ref()))? {
                return Err(went_back(&self.who, broker, epoch_of(newest.as_ref())));
            }
        }
        newest.map(|journal| self.seen(journal)).transpose()
    }

    async fn newest_epochs(
        &self,
        brokers: &BTreeSet<BrokerId>,
    ) -> Result<BTreeMap<BrokerId, Epoch>, LedgerError> {
        self.ask(self.who.joins).await?;
        let mut told = BTreeMap::new();
        for (broker, epoch) in self.inner.newest_epochs(brokers).await? {
            // What is older than it was is read, and looked into then.
            if !self.newest.is_older(&self.who, broker, epoch)? {
                told.insert(broker, epoch);
            }
        }
        Ok(told)
    }

    async fn all(&self, broker: BrokerId) -> Result<Vec<EpochJournal>, LedgerError> {
        self.ask(self.who.joins).await?;
        let mut all = self.inner.all(broker).await?;
        if self.newest.is_older(&self.who, broker, epoch_of(all.last()))? {
            self.inner.sync().await?;
            all = self.inner.all(broker).await?;
            if self.newest.is_older(&self.who, broker, epoch_of(all.last()))? {
                return Err(went_back(&self.who, broker, epoch_of(all.last())));
            }
        }
        all.into_iter().map(|journal| self.seen(journal)).collect()
    }

    async fn claim(&self, claim: &Claim) -> Result<Record, LedgerError> {
        self.ask(true).await?;
        let claim = Claim { instance: self.who.machine.instance()?, ..claim.clone() };
        self.inner.claim(&claim).await
    }

    async fn append(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        at: Timestamp,
        by: &HostName,
        entries: &[Entry],
    ) -> Result<Vec<Record>, LedgerError> {
        self.ask(true).await?;
        self.inner.append(broker, epoch, at, by, entries).await
    }

    async fn remember(&self, broker: BrokerId, event: &Event) -> Result<(), LedgerError> {
        self.ask(self.who.joins).await?;
        self.inner.remember(broker, event).await
    }

    async fn remembered(&self, broker: BrokerId) -> Result<Vec<Event>, LedgerError> {
        self.ask(self.who.joins).await?;
        self.inner.remembered(broker).await
    }

    async fn order(&self, order: &Order) -> Result<(), LedgerError> {
        self.ask(self.who.joins).await?;
        self.inner.order(order).await
    }

    async fn orders(&self) -> Result<Orders, LedgerError> {
        self.ask(self.who.joins).await?;
        self.inner.orders().await
    }

    async fn cell(&self, name: &str) -> Result<Option<Cell>, LedgerError> {
        self.inner.cell(name).await
    }

    async fn set_cell(&self, name: &str, cell: &Cell) -> Result<Cell, LedgerError> {
        self.inner.set_cell(name, cell).await
    }

    async fn check(&self) -> Result<Note, LedgerError> {
        self.ask(self.who.joins).await?;
        let mut note = self.inner.check().await?;
        if let Some(identity) = identity(self.inner.as_ref()).await? {
            note.text
                .push_str(&format!("; ledger {}, made {:.0} on {}", identity.id, identity.at, identity.by));
            note = note.with("ledger", identity.id);
        }
        if let Some(holder) = name_holder(self.inner.as_ref(), &self.who.here).await?
            && let Some(why) = self.rivalry(&holder).await?
        {
            note = note.warn([why]);
        }
        Ok(note)
    }
}

fn epoch_of(newest: Option<&EpochJournal>) -> Epoch {
    newest.map_or(Epoch::default(), |journal| journal.epoch)
}
