//! Carries a claimed plan out: intent into the journal, the act, the result into the journal.
//!
//! Deliberately absent: any choice. What comes next is [`Progress::next`], what a step does is in the plan.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::event::What;
use crate::journal::{Direction, Entry, EpochJournal, Intents};
use crate::model::{Cause, HostName, Moment, Note, Outcome, Prediction, human};
use crate::plan::Phase;
use crate::ports::{LedgerError, Ports, StepError, chain};
use crate::progress::{IllegalEntry, Next, Progress, phases};
use crate::steps::Context;

/// How often the claimant writes that it is at work. Several of these fit into the shortest time after which
/// a claimant counts as silent.
pub const HEARTBEAT: Duration = Duration::from_secs(3);

/// The ledger's word that this run is the newest is good for this long, counted from when it was asked. An
/// agent that was frozen in between asks again before it acts. (What was frozen in the middle of an act is
/// the reason why a successor fences the claimant's host as well.)
const CONFIRMED_FOR: Duration = Duration::from_secs(5);

/// A decision that is older than this is not acted upon: whoever stood still in between decides anew.
pub const DECIDED_WITHIN: Duration = Duration::from_secs(5);

/// Pause before it is tried again to take intents back.
const TAKE_BACK_AGAIN: Duration = Duration::from_secs(1);

/// Why a run ended without writing an end. The takeover is still open, or somebody newer has it.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The ledger did not take an entry: without it nothing more is done.
    #[error("the takeover cannot go on without the ledger")]
    Ledger(#[from] LedgerError),
    /// The journal does not make sense.
    #[error("the journal of this takeover does not make sense")]
    Journal(#[from] IllegalEntry),
    /// A newer epoch exists: this run is over and undoes nothing.
    #[error("the takeover was superseded")]
    Superseded(#[source] StepError),
    /// Nothing was touched: what was seen when it was decided may be over.
    #[error("it was decided {age} ago and is decided anew", age = human(*.0))]
    Outdated(Duration),
}

/// One step's future, done.
struct Tried {
    step: usize,
    direction: Direction,
    took: Duration,
    result: Result<Note, StepError>,
}

struct Run<'a> {
    ports: &'a Ports,
    host: &'a HostName,
    journal: EpochJournal,
    progress: Progress,
    announced: Option<Phase>,
    /// When an agent decided it, as long as nothing has been touched.
    decided: Option<Moment>,
}

/// Carries `journal`'s plan out from where it stands, until an end is written. `decided`: when an agent
/// decided so by itself; `None` if a person did. It must be no older than [`DECIDED_WITHIN`] when the first
/// step is tried, whatever stood still since: this agent, its host, the ledger. From then on it counts no
/// more.
///
/// # Errors
/// When the ledger refuses an entry, the decision is too old, or the journal does not make sense. The
/// takeover is then still open: it can be resumed, by calling this again with the journal as the ledger has
/// it.
pub async fn execute(
    ports: &Ports,
    host: &HostName,
    journal: EpochJournal,
    decided: Option<Moment>,
) -> Result<Outcome, ExecuteError> {
    let progress = Progress::replay(&journal)?;
    let plan = journal.claim.plan.clone();
    let context = Context::new(ports, &journal, &plan);
    // A switchover is decided by a person's order, and nothing but that.
    let decided = decided.filter(|_| journal.claim.cause == Cause::Automatic && !progress.touched());
    let resumed = progress.touched();
    let mut run = Run { ports, host, journal, progress, announced: None, decided };
    if resumed {
        run.append(vec![Entry::Resumed]).await?;
        context.emit(What::Resumed);
    }
    let mut running = FuturesUnordered::new();
    let mut under_way: Vec<(usize, Direction)> = Vec::new();
    loop {
        match run.progress.next() {
            Next::Run(steps, direction) => {
                let fresh: Vec<usize> =
                    steps.into_iter().filter(|s| !under_way.contains(&(*s, direction))).collect();
                run.begin(&fresh, direction, &context).await?;
                for step in fresh {
                    under_way.push((step, direction));
                    running.push(attempt(&context, step, direction));
                }
            }
            Next::GiveUp(step) => run.give_up(step).await?,
            Next::Finish(outcome) => return run.finish(outcome, &context).await,
            Next::Ended => return Ok(run.outcome()),
        }
        tokio::select! {
            biased;
            Some(tried) = running.next() => {
                under_way.retain(|(step, direction)| (*step, *direction) != (tried.step, tried.direction));
                run.end(tried, &context).await?;
                run.announce_phases(&context);
            }
            () = ports.clock.sleep(HEARTBEAT), if !running.is_empty() => run.heartbeat().await?,
            else => {}
        }
    }
}

async fn attempt(context: &Context<'_>, step: usize, direction: Direction) -> Tried {
    let clock = &context.ports.clock;
    let begun: Moment = clock.now().mono;
    let result = match context.plan.step(step) {
        Some((_, what)) => context.act(what, direction).await,
        None => Ok(Note::new("no such step")),
    };
    Tried { step, direction, took: clock.now().mono.since(begun), result }
}

impl Run<'_> {
    async fn append(&mut self, entries: Vec<Entry>) -> Result<(), ExecuteError> {
        let at = self.ports.clock.now().wall;
        let (broker, epoch) = (self.journal.broker, self.journal.epoch);
        let records = self.ports.ledger.append(broker, epoch, at, self.host, &entries).await?;
        for record in records {
            self.progress.apply(&record)?;
            self.journal.records.push(record);
        }
        Ok(())
    }

    /// The intents of a whole stage are written in one go, before any of its steps is tried.
    async fn begin(
        &mut self,
        steps: &[usize],
        direction: Direction,
        context: &Context<'_>,
    ) -> Result<(), ExecuteError> {
        if steps.is_empty() {
            return Ok(());
        }
        let intents = steps.iter().map(|step| Entry::Started { step: *step, direction }).collect();
        let intended = self.intend(intents).await;
        // From here to the call of the driver nothing waits.
        match (self.outdated(), intended) {
            (Some(age), Ok(())) => {
                self.take_back(&format!("it was decided {} before", human(age))).await?;
                return Err(ExecuteError::Outdated(age));
            }
            (_, Err(error @ ExecuteError::Ledger(LedgerError::Unavailable { .. }))) => {
                if self.decided.is_some() {
                    self.take_back("the ledger did not confirm the intent").await?;
                }
                return Err(error);
            }
            (_, intended) => intended?,
        }
        self.decided = None;
        for (phase, step) in steps.iter().filter_map(|index| context.plan.step(*index)) {
            let (step, undo) = (step.name().to_owned(), direction == Direction::Back);
            context.emit(What::StepStarted { phase, step, undo });
        }
        Ok(())
    }

    async fn intend(&mut self, intents: Vec<Entry>) -> Result<(), ExecuteError> {
        let asked = self.ports.clock.now().mono;
        self.append(intents).await?;
        if self.ports.clock.now().mono.since(asked) > CONFIRMED_FOR { self.confirm().await } else { Ok(()) }
    }

    fn outdated(&self) -> Option<Duration> {
        let age = self.ports.clock.now().mono.since(self.decided?);
        (age > DECIDED_WITHIN).then_some(age)
    }

    /// Takes back what the ledger has of this run's intents, none of which was tried; also those that it did
    /// not confirm. Tried until the ledger answers: meanwhile the epoch looks touched to everybody, and it
    /// would to this agent too.
    async fn take_back(&mut self, why: &str) -> Result<(), ExecuteError> {
        let (broker, epoch) = (self.journal.broker, self.journal.epoch);
        loop {
            let result = async {
                let newest = self.ports.ledger.latest(broker).await?;
                let ours = |journal: &EpochJournal| journal.epoch == epoch && journal.claim.by == *self.host;
                let Some(journal) = newest.filter(ours) else { return Ok(()) };
                let intents = Intents::of(&journal.records).open();
                if intents.is_empty() {
                    return Ok(());
                }
                let entry = Entry::NotTried { intents, why: why.to_owned() };
                let at = self.ports.clock.now().wall;
                self.ports.ledger.append(broker, epoch, at, self.host, &[entry]).await.map(drop)
            };
            match result.await {
                Err(LedgerError::Unavailable { .. }) => self.ports.clock.sleep(TAKE_BACK_AGAIN).await,
                result => return Ok(result?),
            }
        }
    }

    async fn end(&mut self, tried: Tried, context: &Context<'_>) -> Result<(), ExecuteError> {
        let Tried { step, direction, took, result } = tried;
        let (entry, said) = match result {
            Ok(note) => (Entry::Done { step, direction, note: note.clone() }, Ok(note)),
            Err(error @ StepError::Superseded { .. }) => return Err(ExecuteError::Superseded(error)),
            Err(error) => {
                let (kind, error) = (error.kind().to_owned(), chain(&error));
                let entry = Entry::Failed { step, direction, error: error.clone(), kind: kind.clone() };
                (entry, Err((kind, error)))
            }
        };
        self.append(vec![entry]).await?;
        let Some((phase, step)) = context.plan.step(step) else { return Ok(()) };
        let (step, undo) = (step.name().to_owned(), direction == Direction::Back);
        context.emit(match said {
            Ok(note) => What::StepDone { phase, step, undo, took, note },
            Err((kind, error)) => What::StepFailed { phase, step, undo, kind, error },
        });
        Ok(())
    }

    /// Asks the ledger once more whether this run is still the newest.
    async fn confirm(&mut self) -> Result<(), ExecuteError> {
        let asked = self.ports.clock.now().mono;
        self.append(vec![Entry::Alive]).await?;
        if self.ports.clock.now().mono.since(asked) <= CONFIRMED_FOR {
            return Ok(());
        }
        let action = "confirm in time that this takeover is the newest".to_owned();
        let source = format!("it took longer than {CONFIRMED_FOR:?}").into();
        Err(LedgerError::Unavailable { action, source }.into())
    }

    /// Tells the others that this claimant lives. A ledger that is out for a moment does not stop a step.
    async fn heartbeat(&mut self) -> Result<(), ExecuteError> {
        match self.append(vec![Entry::Alive]).await {
            Err(ExecuteError::Ledger(LedgerError::Unavailable { .. })) => Ok(()),
            result => result,
        }
    }

    /// An earlier run died between sending a request that must not be repeated and writing its result.
    async fn give_up(&mut self, step: usize) -> Result<(), ExecuteError> {
        let error = "interrupted before its result was known; never sent again".to_owned();
        let entry =
            Entry::Failed { step, direction: Direction::Forward, error, kind: "interrupted".to_owned() };
        self.append(vec![entry]).await
    }

    async fn finish(&mut self, outcome: Outcome, context: &Context<'_>) -> Result<Outcome, ExecuteError> {
        self.append(vec![Entry::Ended { outcome: outcome.clone() }]).await?;
        self.announce_phases(context);
        let predicted = context.plan.predicted.as_ref().map(Prediction::time_to_isr);
        context.emit(What::Ended { outcome: outcome.clone(), predicted });
        Ok(outcome)
    }

    fn outcome(&self) -> Outcome {
        let none = || Outcome::Withdrawn { why: "the journal has no end".to_owned() };
        self.journal.outcome().cloned().unwrap_or_else(none)
    }

    /// Says the duration of every phase that is over and was not said yet.
    fn announce_phases(&mut self, context: &Context<'_>) {
        let current = match self.progress.next() {
            Next::Run(steps, _) => {
                steps.iter().filter_map(|step| context.plan.step(*step)).map(|(phase, _)| phase).max()
            }
            Next::GiveUp(step) => context.plan.step(step).map(|(phase, _)| phase),
            Next::Finish(_) | Next::Ended => None,
        };
        for (phase, took) in phases(&self.journal) {
            let over = current.is_none_or(|now| phase < now);
            if over && self.announced.is_none_or(|last| last < phase) {
                self.announced = Some(phase);
                context.emit(What::PhaseDone { phase, took });
            }
        }
    }
}
