//! The rule of `guard`: may Kafka of one broker start on this host? Whatever cannot be proven is a no.

use recovery::journal::{Direction, Entry, EpochJournal, Intents};
use recovery::model::{BrokerId, Epoch, HostName, LedgerStanding, Orders};
use recovery::plan::Step;
use recovery::ports::{Ledger, LedgerError};

use crate::refusal::{Refusal, Refused};

/// What the ledger has of a broker, as new as it can be told.
pub(crate) async fn read(
    ledger: &dyn Ledger,
    broker: BrokerId,
) -> Result<(Vec<EpochJournal>, Orders), LedgerError> {
    // A start is not taken back: an old state must not allow it.
    ledger.sync().await?;
    // The orders first: a host that rejoins in between is then fenced, at worst, and asks again.
    let orders = ledger.orders().await?;
    Ok((ledger.all(broker).await?, orders))
}

/// Everything that the answer is made of.
pub(crate) struct Case<'a> {
    pub(crate) broker: BrokerId,
    pub(crate) home: &'a HostName,
    pub(crate) here: &'a HostName,
    pub(crate) journals: &'a [EpochJournal],
    pub(crate) orders: &'a Orders,
}

impl Case<'_> {
    /// The epoch by which this host may start Kafka, or why it may not. `start_of`: the epoch whose takeover
    /// this start is part of, by the unit's environment.
    pub(crate) fn may_start(&self, start_of: Option<Epoch>) -> Result<Epoch, Refused> {
        let Self { broker, here, .. } = self;
        let standing = LedgerStanding::after(self.home, self.journals);
        let LedgerStanding { epoch, owner, writers, .. } = &standing;
        if let Some(unknown) = start_of.filter(|start_of| start_of > epoch) {
            return Err(Refusal::LedgerUnreadable.because(format!(
                "this start belongs to epoch {unknown} of broker {broker}, and the ledger knows of none after {epoch}: was \
                 it restored from an old copy, or is it another one? Keep Kafka off here until that is known"
            )));
        }
        if let Some(open) = self.journals.last().filter(|journal| journal.outcome().is_none()) {
            self.open(open, &standing, start_of)?;
        }
        if owner != *here {
            return Err(Refusal::NotOwner.because(format!(
                "broker {broker} belongs to {owner} (epoch {epoch}), not to this host, {here}: keep Kafka off \
                 here. `understudy rejoin` makes this host a standby, with the whole configuration of an agent"
            )));
        }
        if let Some(other) = writers.iter().find(|host| *host != *here) {
            return Err(Refusal::OtherWriter.because(format!(
                "{other} may also be writing to broker {broker}, for its takeover has not ended: keep Kafka off \
                 here, and run `understudy failover --broker {broker}` on the host that shall have it"
            )));
        }
        if let Some(epoch) = self.fenced() {
            return Err(Refusal::FencedHere.because(format!(
                "this host, {here}, was fenced in epoch {epoch} of broker {broker} and nobody has lifted that: run \
                 `understudy rejoin` here, then start Kafka again"
            )));
        }
        Ok(*epoch)
    }

    /// An epoch that is open lets nobody in but its own start of Kafka.
    fn open(
        &self,
        journal: &EpochJournal,
        standing: &LedgerStanding,
        start_of: Option<Epoch>,
    ) -> Result<(), Refused> {
        let (broker, epoch, by) = (self.broker, journal.epoch, &journal.claim.by);
        let ours = by == self.here && journal.claim.plan.to == *self.here;
        // A journal that makes sense begins the start only after every proof of the plan.
        if ours && start_of == Some(epoch) && start_is_begun(journal) && standing.nonsense.is_none() {
            return Ok(());
        }
        let why = if by == self.here {
            format!(
                "the agent of this host is at work on broker {broker} (epoch {epoch}) and starts Kafka itself, once \
                 everybody else is proven unable to write: leave it off"
            )
        } else {
            format!(
                "{by} is at work on broker {broker} (epoch {epoch}): keep Kafka off here. When that has ended and \
                 `understudy status` still names this host as the owner, start Kafka again; else run `understudy \
                 rejoin`"
            )
        };
        Err(Refusal::EpochOpen.because(why))
    }

    /// The epoch that fenced this host, if nothing shows that the fence is gone: a recovery here, or a
    /// rejoin.
    pub(crate) fn fenced(&self) -> Option<Epoch> {
        let standing = LedgerStanding::after(self.home, self.journals);
        standing.fenced_here(self.here, self.orders).map(|fence| fence.epoch)
    }
}

/// Whether Kafka was started in this epoch, or the run that is at work has written down that it starts it. A
/// run that carries on after a crash proves everything anew before it starts Kafka, so an intent from before
/// it counts no more.
fn start_is_begun(journal: &EpochJournal) -> bool {
    let is_start = |step: usize| matches!(journal.claim.plan.step(step), Some((_, Step::StartBroker { .. })));
    let done = journal.records.iter().any(|record| match record.entry {
        Entry::Done { step, direction: Direction::Forward, .. } => is_start(step),
        _ => false,
    });
    let this_run = journal.records.iter().rev().take_while(|record| record.entry != Entry::Resumed);
    let tried = Intents::of(&journal.records);
    let mut intents = this_run.filter_map(|record| match record.entry {
        Entry::Started { step, direction: Direction::Forward } if tried.stands(record.seq) => Some(step),
        _ => None,
    });
    done || intents.any(is_start)
}
