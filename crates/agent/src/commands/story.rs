//! A takeover's journal in words: for `history`, and for `switchover`, which shows it as it grows.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use recovery::journal::{Direction, Entry, EpochJournal, Record};
use recovery::model::human;
use recovery::plan::{Phase, Proves};

/// One record of a journal, in words.
pub(super) struct Told<'a> {
    pub(super) journal: &'a EpochJournal,
    pub(super) record: &'a Record,
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { record, .. } = self;
        let by = &record.by;
        match &record.entry {
            Entry::Claimed { .. } => write!(f, "{:<8}  {by} claims the broker", Phase::Claim),
            Entry::Alive => write!(f, "{by} is at work"),
            Entry::Resumed => write!(f, "{by} carries on with what another run left"),
            Entry::Started { step, direction } => {
                let (head, what) = self.step(*step, *direction);
                write!(f, "{head}: {what}")
            }
            Entry::NotTried { intents, why } => {
                let name = |seq: &u64| self.intended(*seq).unwrap_or_else(|| format!("record {seq}"));
                let names: Vec<String> = intents.iter().map(name).collect();
                write!(f, "{by} has not tried {}: {why}", names.join(", "))
            }
            Entry::Done { step, direction, note } => {
                let (head, _) = self.step(*step, *direction);
                write!(f, "{head}: done in {}: {}", self.took(*step, *direction), note)
            }
            Entry::Failed { step, direction, error, kind } => {
                let (head, _) = self.step(*step, *direction);
                write!(f, "{head}: FAILED ({kind}) after {}: {error}", self.took(*step, *direction))
            }
            Entry::Ended { outcome } => write!(f, "{outcome}"),
        }
    }
}

impl Told<'_> {
    /// The step by its phase and name, and in words.
    fn step(&self, index: usize, direction: Direction) -> (String, String) {
        let undo = if direction == Direction::Back { "undo of " } else { "" };
        match self.journal.claim.plan.step(index) {
            Some((phase, step)) => (format!("{phase:<8}  {undo}{}", step.name()), step.to_string()),
            None => (format!("step {index}"), "which is not in the plan".to_owned()),
        }
    }

    /// The name of the step that a record meant to begin.
    fn intended(&self, seq: u64) -> Option<String> {
        let record = self.journal.records.iter().find(|record| record.seq == seq)?;
        let Entry::Started { step, .. } = record.entry else { return None };
        self.journal.claim.plan.step(step).map(|(_, step)| step.name().to_owned())
    }

    /// From the last time the step was begun to this record.
    fn took(&self, step: usize, direction: Direction) -> String {
        let (begin, end) = (Entry::Started { step, direction }, self.record);
        let begun = self.journal.records.iter().rev().find(|r| r.seq < end.seq && r.entry == begin);
        let took = begun.and_then(|begun| Duration::try_from(end.at.duration_since(begun.at)).ok());
        took.map_or_else(|| "an unknown time".to_owned(), human)
    }

    /// If the record confirms a proof: the host that it is about.
    pub(super) fn proven(&self) -> Option<String> {
        let Entry::Done { step, direction: Direction::Forward, .. } = &self.record.entry else { return None };
        match self.journal.claim.plan.step(*step)?.1.proves()? {
            Proves::Host(host) => Some(host.to_string()),
            Proves::Here => Some(self.journal.claim.plan.to.to_string()),
        }
    }
}

/// `+12.3 s` since `begun`.
pub(super) fn since(begun: Timestamp, at: Timestamp) -> String {
    let since = Duration::try_from(at.duration_since(begun)).unwrap_or_default();
    format!("+{:.1} s", since.as_secs_f64())
}

/// A class path is thousands of letters long: the whole value is in the JSON.
pub(super) fn detail(f: &mut fmt::Formatter<'_>, name: &str, value: &str) -> fmt::Result {
    const LONGEST: usize = 200;
    if value.is_empty() {
        return Ok(());
    }
    let (shown, rest) = match value.char_indices().nth(LONGEST) {
        Some((at, _)) => (&value[..at], " …"),
        None => (value, ""),
    };
    writeln!(f, "        {name}: {shown}{rest}")
}
