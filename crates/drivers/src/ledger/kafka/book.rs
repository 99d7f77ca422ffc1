//! What the topic says, folded record by record in the order of their offsets. Pure.
//!
//! Every host folds the same records in the same order, so that all agree which of two rival claims counts:
//! the one that comes first. A proposal that is late, because somebody else was faster, is *void*: it stays
//! in the topic and counts for nothing. One that could never have been made (it builds on records that are
//! not there) means that records were lost, and nothing is guessed then.

use std::collections::{BTreeMap, VecDeque};

use super::record::{CELL, Flaw, PROBE, Proposal, Scope, What};
use recovery::event::Event;
use recovery::format;
use recovery::journal::{Claim, Entry, EpochJournal, Head, Record, Refused, may_append, may_claim};
use recovery::model::{BrokerId, Epoch, HostName, Order, Orders};
use recovery::ports::{Cell, LedgerError};

/// How many decisions of each host are kept for each broker.
pub(super) const DECISIONS: u32 = 256;
/// How many verdicts are kept. Whoever waits for one looks after every read; that many never come at once.
const VERDICTS: usize = 4096;

/// The fold over the topic.
#[derive(Debug)]
pub(super) struct Book {
    /// The topic's name, for messages.
    topic: String,
    epochs: BTreeMap<BrokerId, Vec<EpochJournal>>,
    /// By broker, host and slot, with the offset.
    decisions: BTreeMap<(BrokerId, HostName, u32), (i64, Event)>,
    orders: Vec<Order>,
    cells: BTreeMap<String, Cell>,
    /// What is not understood, by key, until somebody removes it.
    damage: BTreeMap<String, (Scope, String, Flaw)>,
    /// The proposals read last, and whether they count: for whoever made them.
    verdicts: VecDeque<(String, bool)>,
}

/// What becomes of a proposal.
enum Verdict {
    Counts,
    Void,
    /// It could not have been made from the records before it.
    Impossible(String),
}

impl Book {
    /// The book of an empty topic.
    pub(super) fn new(topic: &str) -> Self {
        Self {
            topic: topic.to_owned(),
            epochs: BTreeMap::new(),
            decisions: BTreeMap::new(),
            orders: Vec::new(),
            cells: BTreeMap::new(),
            damage: BTreeMap::new(),
            verdicts: VecDeque::new(),
        }
    }

    /// Takes the next record in.
    pub(super) fn apply(&mut self, offset: i64, key: &[u8], value: Option<&[u8]>) {
        let key = String::from_utf8_lossy(key).into_owned();
        let Some(value) = value else {
            // A tombstone is how a person removes what is not understood. What counts it cannot remove: then
            // it is missed sooner or later, and said to be.
            self.damage.remove(&key);
            return;
        };
        if key.starts_with(PROBE) && !key.starts_with(CELL) {
            return;
        }
        let taken = Proposal::decode(&key, value).and_then(|proposal| {
            let counts = self.take(offset, proposal.what).map_err(Flaw::Foreign)?;
            if self.verdicts.len() == VERDICTS {
                self.verdicts.pop_front();
            }
            self.verdicts.push_back((proposal.id, counts));
            Ok(())
        });
        if let Err(flaw) = taken {
            let place = format!("topic {}, partition 0, offset {offset}, key {key}", self.topic);
            let scope = Scope::of(&key);
            let flaw = match flaw {
                Flaw::Foreign(why) => Flaw::Foreign(format!("{why}; {}", remedy(scope))),
                newer => newer,
            };
            self.damage.insert(key, (scope, place, flaw));
        }
    }

    /// Takes in what a record proposes. Returns whether it counts.
    fn take(&mut self, offset: i64, what: What) -> Result<bool, String> {
        match what {
            What::Records { broker, epoch, records } => match self.judge(broker, epoch, &records) {
                Verdict::Counts => self.add(broker, epoch, records),
                Verdict::Void => return Ok(false),
                Verdict::Impossible(why) => return Err(why),
            },
            What::Decision { broker, slot, event } => {
                self.decisions.insert((broker, event.host.clone(), slot), (offset, *event));
            }
            What::Order(order) => self.orders.push(order),
            What::Cell { name, cell } => {
                let due = self.cells.get(&name).map_or(0, |newest| newest.version) + 1;
                if cell.version > due {
                    return Err(format!("version {due} of {name} is missing before it"));
                }
                if cell.version < due {
                    return Ok(false);
                }
                self.cells.insert(name, cell);
            }
        }
        Ok(true)
    }

    fn judge(&self, broker: BrokerId, epoch: Epoch, records: &[Record]) -> Verdict {
        let impossible = |why: &str| Verdict::Impossible(why.to_owned());
        let Some(first) = records.first() else { return impossible("it holds no record") };
        let numbers = (first.seq..).zip(records);
        if numbers.into_iter().any(|(seq, record)| record.seq != seq || record.by != first.by) {
            return impossible("its records do not belong together");
        }
        let newest = self.newest(broker);
        if let Entry::Claimed { claim } = &first.entry {
            let same = (claim.plan.broker, claim.plan.epoch, &claim.by) == (broker, epoch, &first.by);
            if !same || records.len() > 1 || first.seq > 0 || epoch == Epoch::default() {
                return impossible("it claims something else than its key says");
            }
            return match may_claim(claim, newest, None) {
                Ok(()) => Verdict::Counts,
                Err(Refused::NotDue { due, .. }) if epoch > due => missing(broker, due),
                Err(_) => Verdict::Void,
            };
        }
        let allowed = may_append(newest.map(Head::of).as_ref(), epoch, &first.by);
        let length = newest.map_or(0, |newest| newest.records.len() as u64);
        match allowed {
            Err(Refused::Superseded { .. }) => Verdict::Void,
            Err(Refused::NeverClaimed { .. }) => missing(broker, due(newest)),
            _ if first.seq > length || first.seq == 0 => Verdict::Impossible(format!(
                "record {} of epoch {epoch} of broker {broker} is here, and record {length} is missing",
                first.seq
            )),
            Ok(()) if first.seq == length => Verdict::Counts,
            _ => Verdict::Void,
        }
    }

    /// Adds records that count.
    fn add(&mut self, broker: BrokerId, epoch: Epoch, records: Vec<Record>) {
        let journals = self.epochs.entry(broker).or_default();
        match (records.first().map(|record| &record.entry), journals.last_mut()) {
            (Some(Entry::Claimed { claim }), _) => {
                journals.push(EpochJournal { broker, epoch, claim: (**claim).clone(), records });
            }
            (_, Some(journal)) => journal.records.extend(records),
            (_, None) => {}
        }
    }

    fn newest(&self, broker: BrokerId) -> Option<&EpochJournal> {
        self.epochs.get(&broker).and_then(|journals| journals.last())
    }

    /// Refuses when something of `scope` is damaged.
    fn sound(&self, scope: Scope) -> Result<(), LedgerError> {
        let mut hits = self.damage.values().filter(|(of, ..)| *of == scope || *of == Scope::Everything);
        // What builds on a record that is not understood looks as if that one were missing.
        let newer = hits.clone().find(|(.., flaw)| matches!(flaw, Flaw::Newer(_)));
        match newer.or_else(|| hits.next()) {
            Some((_, place, Flaw::Newer(why))) => Err(format::newer(place, why)),
            Some((_, place, Flaw::Foreign(why))) => {
                Err(LedgerError::Damaged { place: place.clone(), why: why.clone() })
            }
            None => Ok(()),
        }
    }

    /// Every epoch of a broker, oldest first.
    pub(super) fn epochs(&self, broker: BrokerId) -> Result<&[EpochJournal], LedgerError> {
        self.sound(Scope::Epochs(broker))?;
        Ok(self.epochs.get(&broker).map_or(&[], Vec::as_slice))
    }

    /// The decisions on a broker, oldest first.
    pub(super) fn decisions(&self, broker: BrokerId) -> Result<Vec<Event>, LedgerError> {
        self.sound(Scope::Decisions(broker))?;
        let mut found: Vec<_> =
            self.decisions.iter().filter(|((of, ..), _)| *of == broker).map(|(_, kept)| kept).collect();
        found.sort_by_key(|(offset, event)| (event.at, *offset));
        Ok(found.into_iter().map(|(_, event)| event.clone()).collect())
    }

    /// The order book, oldest first.
    pub(super) fn orders(&self) -> Result<Orders, LedgerError> {
        self.sound(Scope::Orders)?;
        let mut orders = self.orders.clone();
        orders.sort_by_key(|order| order.at);
        Ok(Orders(orders))
    }

    /// What a cell holds.
    pub(super) fn cell(&self, name: &str) -> Result<Option<Cell>, LedgerError> {
        self.sound(Scope::Everything)?;
        Ok(self.cells.get(name).cloned())
    }

    /// The slot that comes after the one `host` used last: by offset, so that a new process goes on where the
    /// last one ended.
    pub(super) fn next_slot(&self, broker: BrokerId, host: &HostName) -> u32 {
        let of_host = self.decisions.iter().filter(|((of, by, _), _)| *of == broker && by == host);
        let last = of_host.max_by_key(|(_, (offset, _))| *offset);
        last.map_or(0, |((_, _, slot), _)| (slot + 1) % DECISIONS)
    }

    /// Whether `claim` would count if nothing else came first.
    ///
    /// # Errors
    /// Who has it; or why it cannot be.
    pub(super) fn may_claim(&self, claim: &Claim) -> Result<(), LedgerError> {
        let (broker, epoch) = (claim.plan.broker, claim.plan.epoch);
        let journals = self.epochs(broker)?;
        let holder = journals.iter().find(|journal| journal.epoch == epoch);
        may_claim(claim, journals.last(), holder.map(|holder| &holder.claim.by))
            .map_err(|refused| LedgerError::refused(broker, refused))
    }

    /// The number of the next record of `epoch`, if `by` may add to it.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn may_append(
        &self,
        broker: BrokerId,
        ours: Epoch,
        by: &HostName,
    ) -> Result<u64, LedgerError> {
        let newest = self.epochs(broker)?.last();
        may_append(newest.map(Head::of).as_ref(), ours, by)
            .map_err(|refused| LedgerError::refused(broker, refused))?;
        Ok(newest.map_or(0, |newest| newest.records.len() as u64))
    }

    /// Whether proposal `id` counts; `None` until it was read.
    pub(super) fn verdict(&self, id: &str) -> Option<bool> {
        self.verdicts.iter().rev().find(|(of, _)| of == id).map(|(_, counts)| *counts)
    }
}

fn due(newest: Option<&EpochJournal>) -> Epoch {
    newest.map_or(Epoch::default(), |newest| newest.epoch).next()
}

fn missing(broker: BrokerId, due: Epoch) -> Verdict {
    Verdict::Impossible(format!("epoch {due} of broker {broker} is missing before it"))
}

/// What to do about a record that is not understood.
fn remedy(scope: Scope) -> &'static str {
    match scope {
        Scope::Epochs(_) => {
            "until a person has looked, nothing is done about this broker. If records were lost, find out why \
             (unclean leader election? a topic made anew?) before anything else"
        }
        Scope::Decisions(_) | Scope::Orders | Scope::Everything => {
            "if it is not an understudy's, write a tombstone (no value) under its key; restart no agent for it"
        }
    }
}

/// `Unavailable`, with its cause.
pub(super) fn unavailable(
    action: impl Into<String>,
    source: impl Into<recovery::ports::BoxError>,
) -> LedgerError {
    LedgerError::Unavailable { action: action.into(), source: source.into() }
}

#[cfg(test)]
mod tests;
