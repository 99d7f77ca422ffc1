//! Where a takeover stands: a fold over its journal. Pure.
//!
//! A crash and a resume take the same path as no crash, because there is no other state than the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::journal::{Claim, Direction, Entry, EpochJournal, Intents, Record};
use crate::model::{
    Attempt, Cause, EpochState, FencedIn, HostName, LedgerStanding, Outcome, PLACED, Removal,
};
use crate::plan::{OnFailure, Phase, Plan, Step, Undo, Unregister};

mod phases;

pub use phases::phases;

/// An entry that cannot follow what was before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("record {seq} ({entry}) cannot follow the records before it")]
pub struct IllegalEntry {
    seq: u64,
    entry: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Status {
    Pending,
    Started,
    /// Begun by a run that died before it wrote the result.
    Interrupted,
    Done,
    Failed(String),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Try these steps, side by side.
    Run(Vec<usize>, Direction),
    /// Write down that this step's fate is unknown: it must not be tried again.
    GiveUp(usize),
    /// Write down the end.
    Finish(Outcome),
    /// The end is written.
    Ended,
}

/// The fold.
#[derive(Debug, Clone)]
pub struct Progress {
    plan: Plan,
    forward: Vec<Status>,
    back: Vec<Status>,
    /// Steps that were ever begun. Unlike a status it outlives a crash: what a run that died has done to the
    /// world is still done.
    begun: Intents,
    /// Steps that said to have put something here that was not here before.
    placed: BTreeSet<usize>,
    remarks: Vec<String>,
    /// The step whose failure ends the takeover: the first one, or the first one that needs a person.
    failed: Option<usize>,
    rejoined_at: Option<Timestamp>,
    ended: bool,
}

impl Progress {
    /// A takeover whose claim was just won.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let n = plan.steps().count();
        Self {
            plan,
            forward: vec![Status::Pending; n],
            back: vec![Status::Pending; n],
            begun: Intents::default(),
            placed: BTreeSet::new(),
            remarks: Vec::new(),
            failed: None,
            rejoined_at: None,
            ended: false,
        }
    }

    /// Folds a whole journal.
    ///
    /// # Errors
    /// When an entry cannot follow what was before it.
    pub fn replay(journal: &EpochJournal) -> Result<Self, IllegalEntry> {
        let mut progress = Self::new(journal.claim.plan.clone());
        journal.records.iter().try_for_each(|record| progress.apply(record))?;
        Ok(progress)
    }

    /// Takes one record in.
    ///
    /// # Errors
    /// When it cannot follow what was before it.
    pub fn apply(&mut self, record: &Record) -> Result<(), IllegalEntry> {
        let illegal = || IllegalEntry { seq: record.seq, entry: format!("{:?}", record.entry) };
        if !self.expects(&record.entry) {
            return Err(illegal());
        }
        for step in self.begun.apply(record) {
            self.set(step, Direction::Forward, Status::Pending);
        }
        match &record.entry {
            Entry::Claimed { .. } | Entry::Alive | Entry::NotTried { .. } => {}
            Entry::Resumed => self.resumed(),
            Entry::Started { step, direction } => self.set(*step, *direction, Status::Started),
            Entry::Done { step, direction, note } => {
                if note.details.contains_key(PLACED) {
                    self.placed.insert(*step);
                }
                self.done(*step, *direction, record.at);
            }
            Entry::Failed { step, direction, error, .. } => self.fail(*step, *direction, error),
            Entry::Ended { .. } => self.ended = true,
        }
        Ok(())
    }

    fn expects(&self, entry: &Entry) -> bool {
        if self.ended {
            return false;
        }
        match entry {
            Entry::Claimed { .. } => self.forward.iter().all(|s| *s == Status::Pending),
            Entry::Resumed | Entry::Alive | Entry::NotTried { .. } => true,
            Entry::Started { step, direction } => match self.next() {
                Next::Run(steps, now) => {
                    let pending = self.status(*step, now) == Some(&Status::Pending);
                    now == *direction && steps.contains(step) && pending
                }
                _ => false,
            },
            Entry::Done { step, direction, .. } => {
                matches!(self.status(*step, *direction), Some(Status::Started))
            }
            Entry::Failed { step, direction, .. } => {
                matches!(self.status(*step, *direction), Some(Status::Started | Status::Interrupted))
            }
            // An older agent ends so where Kafka may have been started, without a proof that it is gone.
            Entry::Ended { outcome: Outcome::Stuck { .. } } => {
                let gives_up =
                    matches!(self.next(), Next::Run(_, Direction::Back)) && self.may_have_started();
                gives_up || matches!(self.next(), Next::Finish(_))
            }
            // A claim may be withdrawn while nothing was touched.
            Entry::Ended { outcome: Outcome::Withdrawn { .. } } => !self.touched(),
            Entry::Ended { .. } => matches!(self.next(), Next::Finish(_)),
        }
    }

    fn status(&self, step: usize, direction: Direction) -> Option<&Status> {
        match direction {
            Direction::Forward => self.forward.get(step),
            Direction::Back => self.back.get(step),
        }
    }

    fn set(&mut self, step: usize, direction: Direction, status: Status) {
        let side = match direction {
            Direction::Forward => &mut self.forward,
            Direction::Back => &mut self.back,
        };
        if let Some(slot) = side.get_mut(step) {
            *slot = status;
        }
    }

    fn done(&mut self, step: usize, direction: Direction, at: Timestamp) {
        self.set(step, direction, Status::Done);
        if let Some((_, Step::AwaitIsr { .. })) = self.plan.step(step) {
            self.rejoined_at = Some(at);
        }
    }

    fn fail(&mut self, index: usize, direction: Direction, error: &str) {
        self.set(index, direction, Status::Failed(error.to_owned()));
        let Some((_, step)) = self.plan.step(index) else { return };
        let name = step.name();
        match (direction, step.on_failure()) {
            (Direction::Back, _) => self.remarks.push(format!("undo of {name} failed: {error}")),
            (Direction::Forward, OnFailure::Remark) => self.remarks.push(format!("{name}: {error}")),
            // What needs a person is not hidden by a smaller trouble beside it.
            (Direction::Forward, fate) => {
                let before = self.failed.and_then(|index| self.plan.step(index));
                let before = before.map(|(_, step)| step.on_failure());
                if before.is_none_or(|before| fate < before) {
                    self.failed = Some(index);
                }
            }
        }
    }

    /// What a run left half-way is pending again, but for what must not be repeated. A proof is worth nothing
    /// after a crash, so it is made anew as long as Kafka may still have to be started; so is what a host has
    /// lost that was switched off in between.
    fn resumed(&mut self) {
        let started = self.start_is_done();
        // Kafka may run whose address was not confirmed yet, and may be gone.
        let asked = |(status, (_, step)): (&Status, (_, &Step))| {
            *status == Status::Started && matches!(step, Step::ConfirmAddress { .. })
        };
        let unconfirmed = self.forward.iter().zip(self.plan.steps()).any(asked);
        for (index, (_, step)) in self.plan.steps().enumerate() {
            let lost = !started && (step.is_proof() || step.is_lost_with_the_host());
            let moved = unconfirmed && matches!(step, Step::MoveAddress { .. });
            let status = &mut self.forward[index];
            match *status {
                Status::Started if step.at_most_once() => *status = Status::Interrupted,
                Status::Started => *status = Status::Pending,
                Status::Done if lost || moved => *status = Status::Pending,
                _ => {}
            }
        }
        for (status, (_, step)) in self.back.iter_mut().zip(self.plan.steps()) {
            let proof = matches!(step, Step::StartBroker { .. }) && *status == Status::Done;
            if *status == Status::Started || proof {
                *status = Status::Pending;
            }
        }
    }

    fn start_is_done(&self) -> bool {
        let mut steps = self.plan.steps().zip(&self.forward);
        steps.any(|((_, step), status)| step.starts() && *status == Status::Done)
    }

    /// Whether any step has begun, so that the world may have changed.
    #[must_use]
    pub fn touched(&self) -> bool {
        self.begun.steps().next().is_some()
    }

    fn in_place(&self) -> bool {
        self.plan.from == self.plan.to
    }

    fn may_have_started(&self) -> bool {
        let mut begun = self.begun.steps().filter_map(|index| self.plan.step(index));
        begun.any(|(_, step)| step.starts())
    }

    fn begun(&self, step: usize) -> bool {
        self.begun.steps().any(|begun| begun == step)
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What to do next.
    #[must_use]
    pub fn next(&self) -> Next {
        if self.ended {
            return Next::Ended;
        }
        if let Some(index) = self.forward.iter().position(|s| *s == Status::Interrupted) {
            return Next::GiveUp(index);
        }
        match self.failed {
            None => self.next_forward(),
            Some(failed) => self.next_after_failure(failed),
        }
    }

    fn next_forward(&self) -> Next {
        let mut open = Vec::new();
        let mut index = 0;
        for stage in &self.plan.stages {
            if stage.phase >= Phase::Start && !open.is_empty() {
                break;
            }
            let mut waits = false;
            for step in &stage.steps {
                if matches!(self.forward[index], Status::Pending | Status::Started) {
                    open.push(index);
                    waits |= !step.outlasts(stage.phase);
                }
                index += 1;
            }
            if waits {
                break;
            }
        }
        if open.is_empty() { Next::Finish(self.recovered()) } else { Next::Run(open, Direction::Forward) }
    }

    fn recovered(&self) -> Outcome {
        let time_to_isr = self.rejoined_at.map_or(Duration::ZERO, |at| between(self.plan.fault_at, at));
        Outcome::Recovered { time_to_isr, remarks: self.remarks.clone() }
    }

    fn next_after_failure(&self, failed: usize) -> Next {
        // Steps that ran beside the failed one are awaited first.
        if let Some(running) = self.forward.iter().position(|s| *s == Status::Started) {
            return Next::Run(vec![running], Direction::Forward);
        }
        let (at, why) = match (self.plan.step(failed), &self.forward[failed]) {
            (Some((_, step)), Status::Failed(why)) => (step, why.clone()),
            _ => return Next::Ended,
        };
        let own = self.in_place();
        if at.on_failure() == OnFailure::Stuck {
            return Next::Finish(Outcome::Stuck { at: at.name().to_owned(), why });
        }
        // Once Kafka may have run on a new host, nothing is taken from under it and nobody else is invited
        // before it is proven to be gone.
        if let Some(lacks) = self.not_given_back() {
            return Next::Finish(Outcome::Stuck { at: at.name().to_owned(), why: format!("{why}; {lacks}") });
        }
        // A host that owned the broker before keeps what it had, and gives up what this takeover has put
        // there.
        let ours = |i: &usize| !own || (self.placed.contains(i) && !self.may_have_started());
        let undo = self.plan.steps().enumerate().filter(|(i, (_, step))| {
            ours(i)
                && self.begun(*i)
                && (step.undo() == Undo::Release || step.undo() == Undo::OfItself && *i == failed)
                && matches!(self.back[*i], Status::Pending | Status::Started)
        });
        if let Some((index, _)) = undo.last() {
            return Next::Run(vec![index], Direction::Back);
        }
        let (at, fate) = (at.name().to_owned(), at.on_failure());
        Next::Finish(match fate {
            OnFailure::Escalate => Outcome::Stuck { at, why },
            _ => Outcome::Abandoned { at, why, kept: self.kept() },
        })
    }

    /// What was not proven, or not released, of a Kafka that may have been started on a new host.
    fn not_given_back(&self) -> Option<String> {
        if self.plan.reschedules() && self.may_have_started() {
            let host = &self.plan.from;
            return Some(format!("{host} is left as its controller has made it"));
        }
        let started = !self.in_place() && self.may_have_started();
        let mut undone = self.plan.steps().zip(&self.back).filter(|_| started);
        undone.find_map(|((_, step), status)| match (step, status) {
            (Step::StartBroker { .. }, Status::Failed(why)) => {
                Some(format!("it is not proven that nothing of it runs here: {why}"))
            }
            (step, Status::Failed(why)) => Some(format!("undo of {} failed: {why}", step.name())),
            _ => None,
        })
    }

    fn kept(&self) -> Vec<String> {
        let kept = self.plan.steps().enumerate().filter_map(|(index, (_, step))| match step.undo() {
            Undo::Keep(what) if self.begun(index) => Some(what.to_owned()),
            _ => None,
        });
        kept.chain(self.remarks.iter().cloned()).collect()
    }
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

impl LedgerStanding {
    /// Where a broker stands after all its epochs, given oldest first. `home` owns it before the first.
    #[must_use]
    pub fn after(home: &HostName, journals: &[EpochJournal]) -> Self {
        let journals = EpochJournal::valid(journals);
        journals.iter().fold(Self::untouched(home.clone()), Self::then)
    }

    /// Where a broker stands after one more epoch.
    ///
    /// The new host owns the broker as soon as its Kafka *may* have been started. Until then the owner is
    /// whoever it was before: what the plan took for the owner was read before the claim, and may be older
    /// than that.
    #[must_use]
    pub fn then(mut self, journal: &EpochJournal) -> Self {
        let Claim { by, plan, cause, .. } = &journal.claim;
        let (touched, started) = begun(journal);
        let outcome = journal.outcome().cloned();
        self.epoch = journal.epoch;
        if started {
            self.owner = plan.new_owner().clone();
        }
        self.records = journal.records.len() as u64;
        self.nonsense = Progress::replay(journal).err().map(|error| error.to_string());
        if started {
            // The start is begun only after everybody else was proven unable to write, and that stays so.
            self.writers = BTreeSet::from([plan.new_owner().clone()]);
        } else if outcome.is_none() && !plan.reschedules() {
            // It may act yet, even if it is succeeded. One that wrote an end had ended its own work before.
            self.writers.insert(plan.to.clone());
        }
        match &outcome {
            Some(Outcome::Recovered { .. }) => (self.removed, self.fault_at) = (None, None),
            _ => {
                self.removed = removal(journal).or(self.removed);
                let failed = touched && *cause != Cause::Planned;
                self.fault_at = self.fault_at.or(failed.then_some(plan.fault_at));
            }
        }
        self.attempts.push(Attempt {
            epoch: journal.epoch,
            at: journal.claim.at,
            by: by.clone(),
            cause: *cause,
            in_place: plan.from == plan.to,
            ended: outcome.as_ref().map(|outcome| outcome.label().to_owned()),
            ended_at: journal.ended_at(),
            why: outcome.as_ref().and_then(Outcome::failure),
            time_to_isr: match &outcome {
                Some(Outcome::Recovered { time_to_isr, .. }) => Some(*time_to_isr),
                _ => None,
            },
            phases: match &outcome {
                Some(Outcome::Recovered { .. }) => phases(journal).into_iter().collect(),
                _ => BTreeMap::new(),
            },
        });
        self.fenced.extend(fences(journal));
        if matches!(outcome, Some(Outcome::Recovered { .. })) {
            self.fenced.remove(plan.new_owner());
        }
        let (by, cause) = (by.clone(), *cause);
        self.state = Some(match outcome {
            Some(outcome) => EpochState::Ended { by, outcome },
            None => EpochState::Open { by, touched, cause },
        });
        self
    }
}

/// Whether any step was begun, and whether the start of Kafka was. Told by the intents alone, which also a
/// journal that makes no sense has: nobody withdraws what such a journal has begun, and whoever resumes it
/// gets the error.
fn begun(journal: &EpochJournal) -> (bool, bool) {
    Intents::of(&journal.records).steps().fold((false, false), |(_, started), step| {
        let step = journal.claim.plan.step(step).map(|(_, step)| step);
        (true, started || step.is_some_and(Step::starts))
    })
}

/// The request that removes the broker's registration, if it was begun: whether it arrived is not asked.
fn removal(journal: &EpochJournal) -> Option<Removal> {
    journal.records.iter().rev().find_map(|record| {
        let Entry::Started { step, direction: Direction::Forward } = record.entry else { return None };
        let (_, step) = journal.claim.plan.step(step)?;
        let removes = matches!(step, Step::Unregister { decision: Unregister::Use { .. }, .. });
        removes.then_some(Removal { epoch: journal.epoch, at: record.at })
    })
}

/// Whom this epoch has confirmed to have fenced, and of whom it has proven that it cannot write.
fn fences(journal: &EpochJournal) -> BTreeMap<HostName, FencedIn> {
    let mut fences: BTreeMap<HostName, FencedIn> = BTreeMap::new();
    for record in &journal.records {
        let Entry::Done { step, direction: Direction::Forward, .. } = record.entry else { continue };
        match journal.claim.plan.step(step) {
            Some((_, Step::Fence { host, .. })) => {
                let fence = FencedIn { epoch: journal.epoch, at: record.at, proven: false };
                fences.insert(host.clone(), fence);
            }
            Some((_, Step::Prove { host, .. })) => {
                fences.entry(host.clone()).and_modify(|fence| fence.proven = true);
            }
            _ => {}
        }
    }
    fences
}
