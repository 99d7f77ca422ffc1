//! What is written down of a takeover: one journal an epoch, the claim first. Plain data, and the rules by
//! which a ledger takes it.

mod rules;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::{BrokerId, Cause, Epoch, HostName, Note, Outcome, Succession};
use crate::plan::Plan;

pub use rules::{Head, Refused, may_append, may_claim, must_be_newest};

/// The first record of every epoch's journal: who won it, when, and what they are going to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// When the claim was made.
    pub at: Timestamp,
    /// The host that claims.
    pub by: HostName,
    /// Who or what asked for it.
    pub cause: Cause,
    /// The open epoch whose silent claimant this claim succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeds: Option<Succession>,
    /// Which machine that is, among all that ever had the host's name; `None` in a claim of an older agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// What will be done.
    pub plan: Plan,
}

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Place in the journal; the claim is 0.
    pub seq: u64,
    /// When it was written.
    pub at: Timestamp,
    /// The host that wrote it.
    pub by: HostName,
    /// What happened.
    pub entry: Entry,
}

/// Forward, or undoing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Carrying the plan out.
    Forward,
    /// Undoing what was prepared.
    Back,
}

/// What happened. `step` is the step's index in the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Entry {
    /// The epoch was won.
    Claimed {
        /// By whom, and what for.
        claim: Box<Claim>,
    },
    /// An agent carries on with what another run left.
    Resumed,
    /// The claimant is at work: written every few seconds, so that nobody takes its silence for its death.
    Alive,
    /// A step is about to be tried.
    Started {
        /// The step.
        step: usize,
        /// Forward or undoing.
        direction: Direction,
    },
    /// The run lives and has tried nothing of these intents, and will not: what it was decided on had grown
    /// old.
    NotTried {
        /// The `seq` of every intent that is taken back.
        intents: Vec<u64>,
        /// What kept it.
        why: String,
    },
    /// A step is done and confirmed.
    Done {
        /// The step.
        step: usize,
        /// Forward or undoing.
        direction: Direction,
        /// What was found.
        note: Note,
    },
    /// A step failed.
    Failed {
        /// The step.
        step: usize,
        /// Forward or undoing.
        direction: Direction,
        /// The error chain.
        error: String,
        /// The error's kind.
        kind: String,
    },
    /// The end.
    Ended {
        /// How.
        outcome: Outcome,
    },
}

/// The intents that stand: of whatever they name, something may have been done. A fold over the records that
/// needs no journal that makes sense.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Intents(Vec<Intent>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Intent {
    seq: u64,
    step: usize,
    /// Of the run that is at work, and without a result: it alone can know that nothing was tried.
    open: bool,
}

impl Intents {
    /// The intents that stand after `records`.
    #[must_use]
    pub fn of(records: &[Record]) -> Self {
        let mut intents = Self::default();
        for record in records {
            intents.apply(record);
        }
        intents
    }

    /// Takes one record in. Gives the steps whose intents it takes back.
    pub(crate) fn apply(&mut self, record: &Record) -> Vec<usize> {
        let mut back = Vec::new();
        match &record.entry {
            Entry::Started { step, direction: Direction::Forward } => {
                self.0.push(Intent { seq: record.seq, step: *step, open: true });
            }
            Entry::Done { step, direction: Direction::Forward, .. }
            | Entry::Failed { step, direction: Direction::Forward, .. } => {
                self.0.iter_mut().filter(|had| had.step == *step).for_each(|had| had.open = false);
            }
            // What a run that died has tried, nobody knows.
            Entry::Resumed => self.0.iter_mut().for_each(|had| had.open = false),
            // One that lands late or twice names what is gone or has a result by then: it takes nothing back.
            Entry::NotTried { intents, .. } => self.0.retain(|had| {
                let void = had.open && intents.contains(&had.seq);
                if void {
                    back.push(had.step);
                }
                !void
            }),
            _ => {}
        }
        back
    }

    /// The steps, in the order of their intents.
    pub fn steps(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|intent| intent.step)
    }

    /// Whether the intent that is this record stands.
    #[must_use]
    pub fn stands(&self, seq: u64) -> bool {
        self.0.iter().any(|intent| intent.seq == seq)
    }

    /// What a run that has tried nothing may take back.
    pub(crate) fn open(&self) -> Vec<u64> {
        self.0.iter().filter(|intent| intent.open).map(|intent| intent.seq).collect()
    }
}

/// One epoch with its whole journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochJournal {
    /// The broker.
    pub broker: BrokerId,
    /// The epoch.
    pub epoch: Epoch,
    /// The claim.
    pub claim: Claim,
    /// Every record, the claim first.
    pub records: Vec<Record>,
}

impl EpochJournal {
    /// How it ended; `None` while it is open.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        self.end().map(|(_, outcome)| outcome)
    }

    /// When its outcome was written.
    #[must_use]
    pub fn ended_at(&self) -> Option<Timestamp> {
        self.end().map(|(record, _)| record.at)
    }

    fn end(&self) -> Option<(&Record, &Outcome)> {
        self.records.iter().rev().find_map(|record| match &record.entry {
            Entry::Ended { outcome } => Some((record, outcome)),
            _ => None,
        })
    }

    /// Whether `claim` may follow this newest epoch: one that has ended, or one whose claimant is silent and
    /// that is still exactly as its successor saw it. (Had it gone on, and even recovered the broker, the
    /// successor would fence a host that is well.)
    #[must_use]
    pub fn may_be_followed_by(&self, claim: &Claim) -> bool {
        match claim.succeeds {
            None => self.outcome().is_some(),
            Some(seen) => seen == Succession { epoch: self.epoch, records: self.records.len() as u64 },
        }
    }

    /// How long the epoch has been open, as its records tell it: the times from each to the next, and to
    /// `now`, added up. Where the claimant's wall clock was set back, what passed meanwhile is missing, and
    /// nothing else.
    #[must_use]
    pub fn open_for(&self, now: Timestamp) -> Duration {
        let times: Vec<Timestamp> = self.records.iter().map(|record| record.at).chain([now]).collect();
        let passed = times.windows(2).map(|pair| pair[1].duration_since(pair[0]));
        passed.filter_map(|passed| Duration::try_from(passed).ok()).sum()
    }

    /// The journal as `next` found it: what a silent claimant adds after it was succeeded is void.
    fn until(&self, next: Option<&Self>) -> Self {
        let mut journal = self.clone();
        let seen = next.and_then(|next| next.claim.succeeds).filter(|seen| seen.epoch == self.epoch);
        if let Some(Succession { records, .. }) = seen {
            journal.records.truncate(usize::try_from(records).unwrap_or(usize::MAX));
        }
        journal
    }

    /// Every journal of a broker, oldest first, without what is void.
    #[must_use]
    pub fn valid(journals: &[Self]) -> Vec<Self> {
        let next = journals.iter().skip(1).map(Some).chain([None]);
        journals.iter().zip(next).map(|(journal, next)| journal.until(next)).collect()
    }
}
