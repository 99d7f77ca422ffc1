//! The fake ledger: compare-and-set in memory, with outages and with an agent that dies at a write.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use jiff::Timestamp;

use super::{Crash, World};
use recovery::event::Event;
use recovery::journal::{Claim, Entry, EpochJournal, Head, Record, may_append, may_claim};
use recovery::model::{BrokerId, Epoch, HostName, Order, Orders};
use recovery::ports::{Cell, Clock, Ledger, LedgerError, Note};

impl World {
    /// Whether this write reaches the ledger, and whether the agent lives to learn of it.
    async fn write(&self) -> Result<bool, LedgerError> {
        let slow = {
            let mut truth = self.truth();
            if truth.ledger_down {
                return Err(unavailable("write: it is down"));
            }
            truth.writes += 1;
            truth.slow_write.filter(|(n, _)| *n == truth.writes)
        };
        if let Some((_, takes)) = slow {
            tokio::time::sleep(takes).await;
        }
        let truth = self.truth();
        match truth.crash {
            Some(Crash::Before(n)) if n == truth.writes => Err(unavailable("write: the agent died before")),
            Some(Crash::After(n)) if n == truth.writes => Ok(false),
            _ => Ok(true),
        }
    }
}

fn unavailable(action: &str) -> LedgerError {
    LedgerError::Unavailable { action: action.to_owned(), source: "switched on by the test".into() }
}

#[async_trait]
impl Ledger for World {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn sync(&self) -> Result<(), LedgerError> {
        if self.truth().ledger_down { Err(unavailable("sync: it is down")) } else { Ok(()) }
    }

    async fn latest(&self, broker: BrokerId) -> Result<Option<EpochJournal>, LedgerError> {
        Ok(self.all(broker).await?.pop())
    }

    async fn newest_epochs(
        &self,
        brokers: &BTreeSet<BrokerId>,
    ) -> Result<BTreeMap<BrokerId, Epoch>, LedgerError> {
        let truth = self.truth();
        if truth.ledger_down {
            return Err(unavailable("read: it is down"));
        }
        let newest = |broker| truth.journals.get(broker).and_then(|journals| journals.last());
        Ok(brokers.iter().map(|id| (*id, newest(id).map_or(Epoch::default(), |it| it.epoch))).collect())
    }

    async fn all(&self, broker: BrokerId) -> Result<Vec<EpochJournal>, LedgerError> {
        let mut truth = self.truth();
        if truth.ledger_down {
            return Err(unavailable("read: it is down"));
        }
        truth.journals_read += 1;
        Ok(truth.journals.get(&broker).cloned().unwrap_or_default())
    }

    async fn claim(&self, claim: &Claim) -> Result<Record, LedgerError> {
        let survives = self.write().await?;
        let (broker, epoch) = (claim.plan.broker, claim.plan.epoch);
        let record = Record {
            seq: 0,
            at: self.now().wall,
            by: claim.by.clone(),
            entry: Entry::Claimed { claim: Box::new(claim.clone()) },
        };
        let mut truth = self.truth();
        let journals = truth.journals.entry(broker).or_default();
        let holder = journals.iter().find(|journal| journal.epoch == epoch).map(|had| &had.claim.by);
        may_claim(claim, journals.last(), holder).map_err(|no| LedgerError::refused(broker, no))?;
        let records = vec![record.clone()];
        journals.push(EpochJournal { broker, epoch, claim: claim.clone(), records });
        if survives { Ok(record) } else { Err(unavailable("confirm: the agent died after")) }
    }

    async fn append(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        at: Timestamp,
        by: &HostName,
        entries: &[Entry],
    ) -> Result<Vec<Record>, LedgerError> {
        // A claimant outlives a heartbeat that is not taken, so no agent dies of one here.
        let survives = entries == [Entry::Alive] || self.write().await?;
        let mut truth = self.truth();
        let newest = truth.journals.get_mut(&broker).and_then(|j| j.last_mut());
        let head = newest.as_deref().map(Head::of);
        may_append(head.as_ref(), epoch, by).map_err(|no| LedgerError::refused(broker, no))?;
        let Some(journal) = newest else { return Err(unavailable("append: there is no claim")) };
        let first = journal.records.len() as u64;
        let records: Vec<Record> = (first..)
            .zip(entries)
            .map(|(seq, entry)| Record { seq, at, by: by.clone(), entry: entry.clone() })
            .collect();
        journal.records.extend(records.clone());
        if survives { Ok(records) } else { Err(unavailable("confirm: the agent died after")) }
    }

    async fn remember(&self, broker: BrokerId, event: &Event) -> Result<(), LedgerError> {
        let mut truth = self.truth();
        if truth.ledger_down {
            return Err(unavailable("write: it is down"));
        }
        truth.remembered.push((broker, event.clone()));
        Ok(())
    }

    async fn remembered(&self, broker: BrokerId) -> Result<Vec<Event>, LedgerError> {
        let truth = self.truth();
        if truth.ledger_down {
            return Err(unavailable("read: it is down"));
        }
        let ours = truth.remembered.iter().filter(|(b, _)| *b == broker);
        let mut events: Vec<Event> = ours.map(|(_, event)| event.clone()).collect();
        events.sort_by_key(|event| event.at);
        Ok(events)
    }

    async fn order(&self, order: &Order) -> Result<(), LedgerError> {
        let mut truth = self.truth();
        if truth.ledger_down {
            return Err(unavailable("write: it is down"));
        }
        truth.orders.0.push(order.clone());
        Ok(())
    }

    async fn orders(&self) -> Result<Orders, LedgerError> {
        let truth = self.truth();
        if truth.ledger_down {
            return Err(unavailable("read: it is down"));
        }
        let mut orders = truth.orders.clone();
        orders.0.sort_by_key(|order| order.at);
        Ok(orders)
    }

    async fn cell(&self, name: &str) -> Result<Option<Cell>, LedgerError> {
        let truth = self.truth();
        if truth.ledger_down {
            return Err(unavailable("read: it is down"));
        }
        Ok(truth.cells.get(name).cloned())
    }

    async fn set_cell(&self, name: &str, cell: &Cell) -> Result<Cell, LedgerError> {
        let mut truth = self.truth();
        if truth.ledger_down {
            return Err(unavailable("write: it is down"));
        }
        let newest = truth.cells.get(name).cloned();
        if cell.version == newest.as_ref().map_or(0, |newest| newest.version) + 1 {
            truth.cells.insert(name.to_owned(), cell.clone());
            return Ok(cell.clone());
        }
        newest.ok_or_else(|| unavailable("write: version 1 is due"))
    }

    async fn check(&self) -> Result<Note, LedgerError> {
        if self.truth().ledger_down {
            return Err(unavailable("read: it is down"));
        }
        Ok(Note::new("fake"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::ledger::contract::{append, contract};
    use crate::ledger::faults::{Rig, survives_an_outage, survives_torn_writes};

    #[async_trait]
    impl Rig for World {
        fn ledger(&self) -> Arc<dyn Ledger> {
            Arc::new(self.clone())
        }

        fn deadline(&self) -> Duration {
            Duration::ZERO
        }

        async fn down(&self) {
            self.truth().ledger_down = true;
        }

        async fn up(&self) {
            self.truth().ledger_down = false;
        }

        async fn tear(&self, (broker, epoch, host): (i32, u64, &str), entries: &[Entry], percent: u8) {
            let next = self.truth().writes + 1;
            let crash = if percent < 100 { Crash::Before(next) } else { Crash::After(next) };
            self.truth().crash = Some(crash);
            append(self, (broker, epoch, host), entries).await.unwrap_err();
            self.truth().crash = None;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn the_fake_keeps_the_contract_of_the_drivers() {
        let world = World::new();
        contract(|| Arc::new(world.clone())).await;
        survives_torn_writes(&world).await;
        survives_an_outage(&world).await;
    }
}
