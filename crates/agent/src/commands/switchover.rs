//! `understudy switchover`: orders it, and follows in the ledger what the agents make of it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use recovery::journal::{Entry, EpochJournal};
use recovery::model::{BrokerId, Cause, Epoch, HostName, Instruction, Outcome, human};
use recovery::plan::Phase;
use recovery::policy::Mode;
use recovery::ports::{Ledger, LedgerError, chain};
use recovery::progress::phases;
use serde::Serialize;
use tokio::time::sleep;

use super::agreed;
use super::order::{desk, later, told};
use super::story::{Told, since};
use crate::cli::{Global, Output, Switchover};
use crate::config::Config;
use crate::exit::Exit;
use crate::orders::{Given, Request};
use crate::output::{print, say};
use crate::refusal::{Refusal, Refused};
use crate::who::who;
use crate::world;

/// How often the ledger is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A claim that is made at the last moment shows a little later.
const GRACE: Duration = Duration::from_secs(5);

/// How it ended.
#[derive(Serialize)]
struct Report {
    broker: BrokerId,
    epoch: Epoch,
    /// The host that owns the broker now.
    owner: HostName,
    outcome: Outcome,
    phases: Vec<(Phase, Duration)>,
    ordered: Given,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (phase, took) in &self.phases {
            writeln!(f, "  {phase:<8} {:>8}", human(*took))?;
        }
        let Self { broker, epoch, owner, outcome, .. } = self;
        write!(f, "broker {broker} (epoch {epoch}): {outcome}; it belongs to {owner}")
    }
}

/// Shows, asks, orders, follows.
pub(super) async fn run(global: &Global, options: &Switchover, config: &Config) -> anyhow::Result<Exit> {
    let (broker, to) = (BrokerId(options.broker), HostName(options.to.clone()));
    let now = Timestamp::now();
    let at = options.at.unwrap_or(now);
    let request = Request::Switchover { broker, to: to.clone(), at, until: later(at, options.within)? };
    let desk = desk(config)?;
    let standing = desk.consider(&request).await.map_err(told)?;
    say(format!(
        "switchover of broker {broker}: {} -> {to}, epoch {} -> {}",
        standing.owner,
        standing.epoch,
        standing.epoch.next()
    ));
    if to == config.topology.here && config.policy.mode == Mode::Observe {
        say(
            "mode = \"observe\" here: this host's agent takes no order up; set it to approve or auto, and restart it",
        );
    }
    if !options.yes && !agreed(&format!("Let {to} take broker {broker} over from {}?", standing.owner))? {
        say("not done");
        return Ok(Exit::Held);
    }
    let given = desk.give(who().await, request).await.map_err(told)?;
    if options.no_wait || at > now {
        print(&given, global.output)?;
        return Ok(Exit::Done);
    }
    say(&given);
    let ledger = world::ledger(config)?;
    let follow = Follow::new(ledger.as_ref(), broker, &given);
    let end = tokio::select! {
        end = follow.run() => end?,
        _ = tokio::signal::ctrl_c() => {
            say("no longer followed; the order stands. `understudy history` shows what comes of it");
            return Ok(Exit::Failed);
        }
    };
    finish(global.output, end, given)
}

fn finish(
    format: Output,
    (journal, outcome): (EpochJournal, Outcome),
    ordered: Given,
) -> anyhow::Result<Exit> {
    let (exit, owner) = match &outcome {
        Outcome::Recovered { .. } => (Exit::Done, &journal.claim.plan.to),
        Outcome::Abandoned { .. } | Outcome::Withdrawn { .. } => (Exit::Failed, &journal.claim.plan.from),
        // Where it is stuck Kafka may run on the new host: nobody else is to touch the broker.
        Outcome::Stuck { .. } => (Exit::Stuck, &journal.claim.plan.to),
    };
    let (broker, epoch, owner, phases) = (journal.broker, journal.epoch, owner.clone(), phases(&journal));
    print(&Report { broker, epoch, owner, outcome, phases, ordered }, format)?;
    Ok(exit)
}

/// What has been seen of an order so far.
struct Follow<'a> {
    ledger: &'a dyn Ledger,
    broker: BrokerId,
    /// The epoch that the switchover must win.
    epoch: Epoch,
    to: HostName,
    ordered: Timestamp,
    until: Timestamp,
    shown: u64,
    released: BTreeSet<HostName>,
    unreadable: bool,
}

impl<'a> Follow<'a> {
    fn new(ledger: &'a dyn Ledger, broker: BrokerId, given: &Given) -> Self {
        let ordered = given.order.at;
        let (epoch, to, until) = match &given.order.what {
            Instruction::Switchover { epoch, to, until, .. } => (epoch.next(), to.clone(), *until),
            _ => (Epoch::default(), given.order.host.clone(), ordered),
        };
        let (shown, released) = (0, BTreeSet::new());
        Self { ledger, broker, epoch, to, ordered, until, shown, released, unreadable: false }
    }

    /// Looks until there is an end. A ledger that cannot be read is tried again: the agents wait for it too.
    async fn run(mut self) -> Result<(EpochJournal, Outcome), Refused> {
        loop {
            match self.look().await {
                Ok(Some(end)) => return end,
                Ok(None) => self.unreadable = false,
                Err(error) if !self.unreadable => {
                    say(format!("the ledger cannot be read; trying on: {}", chain(&error)));
                    self.unreadable = true;
                }
                Err(_) => {}
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// The end, a refusal, or neither yet.
    async fn look(&mut self) -> Result<Option<Result<(EpochJournal, Outcome), Refused>>, LedgerError> {
        let Some(newest) = self.ledger.latest(self.broker).await?.filter(|j| j.epoch >= self.epoch) else {
            let late = Timestamp::now().duration_since(self.until);
            let expired = Duration::try_from(late).is_ok_and(|late| late > GRACE);
            return Ok(expired.then(|| Err(self.not_taken_up())));
        };
        let ours = if newest.epoch == self.epoch {
            newest
        } else {
            match self.ledger.all(self.broker).await?.into_iter().find(|j| j.epoch == self.epoch) {
                Some(ours) => ours,
                None => return Ok(None),
            }
        };
        if ours.claim.cause != Cause::Planned || ours.claim.by != self.to {
            return Ok(Some(Err(self.void(&ours))));
        }
        self.show(&ours).await?;
        let Some(outcome) = ours.outcome().cloned() else {
            let latest = self.ledger.latest(self.broker).await?;
            let successor = latest.filter(|latest| latest.epoch > self.epoch);
            return Ok(successor.map(|successor| Err(self.void(&successor))));
        };
        Ok(Some(Ok((ours, outcome))))
    }

    async fn show(&mut self, journal: &EpochJournal) -> Result<(), LedgerError> {
        for order in self.ledger.orders().await?.0 {
            if let Instruction::Released { broker, epoch, found } = &order.what
                && (*broker, *epoch) == (self.broker, self.epoch)
                && self.released.insert(order.host.clone())
            {
                let host = &order.host;
                say(format!(
                    "[{:>9}] {host} has released the broker: {found}",
                    since(self.ordered, order.at)
                ));
            }
        }
        for record in journal.records.iter().filter(|record| record.seq >= self.shown) {
            if record.entry != Entry::Alive {
                say(format!("[{:>9}] {}", since(self.ordered, record.at), Told { journal, record }));
            }
        }
        self.shown = journal.records.len() as u64;
        Ok(())
    }

    fn not_taken_up(&self) -> Refused {
        let Self { to, broker, until, .. } = self;
        Refusal::NotTakenUp.because(format!(
            "the agent of {to} did not take the order up until {until:.0}, when it expired; broker {broker} stays \
             where it is. `understudy status` on {to} says what it waits for"
        ))
    }

    fn void(&self, other: &EpochJournal) -> Refused {
        let (by, epoch, broker) = (&other.claim.by, other.epoch, self.broker);
        Refusal::OrderVoid.because(format!(
            "{by} has claimed epoch {epoch} of broker {broker} for another reason, so this order is void: \
             `understudy history --broker {broker}` tells which"
        ))
    }
}
