//! A takeover's journal as spans of time, and which of them bounded the whole. Pure.

use std::time::Duration;

use jiff::Timestamp;
use recovery::journal::{Direction, Entry, EpochJournal};
use recovery::plan::Phase;
use serde::Serialize;

/// From when to when something was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Span {
    /// The phase that it counts to.
    pub(super) phase: Phase,
    /// The step's name, `undo of` before it where it was undone; the phase's name where no step did it.
    pub(super) what: String,
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    pub(super) failed: bool,
    /// Whether the whole took as long as it did because of this: had it been quicker, the next would have
    /// begun earlier.
    pub(super) bounds: bool,
}

impl Span {
    pub(super) fn took(&self) -> Duration {
        Duration::try_from(self.to.duration_since(self.from)).unwrap_or_default()
    }
}

/// Everything that has come to an end, in the order in which it was begun.
pub(super) fn spans(journal: &EpochJournal) -> Vec<Span> {
    let claim = &journal.claim;
    let won_at = journal.records.first().map_or(claim.at, |record| record.at);
    let whole = |phase: Phase, from, to| Span {
        phase,
        what: phase.to_string(),
        from,
        to,
        failed: false,
        bounds: false,
    };
    let mut spans =
        vec![whole(Phase::Detect, claim.plan.fault_at, claim.at), whole(Phase::Claim, claim.at, won_at)];
    let mut begun: Vec<((usize, Direction), Timestamp)> = Vec::new();
    for record in &journal.records {
        let (step, direction, failed) = match &record.entry {
            Entry::Started { step, direction } => {
                begun.push(((*step, *direction), record.at));
                continue;
            }
            Entry::Done { step, direction, .. } => (*step, *direction, false),
            Entry::Failed { step, direction, .. } => (*step, *direction, true),
            _ => continue,
        };
        // What a run that died has begun was begun again.
        let from = begun.iter().rev().find(|(which, _)| *which == (step, direction)).map(|(_, at)| *at);
        let (Some(from), Some((phase, planned))) = (from, claim.plan.step(step)) else { continue };
        let undo = if direction == Direction::Back { "undo of " } else { "" };
        let what = format!("{undo}{}", planned.name());
        spans.push(Span { phase, what, from, to: record.at, failed, bounds: false });
    }
    spans.sort_by_key(|span| (span.from, span.to));
    mark_bounds(&mut spans);
    spans
}

/// From the end backwards: what ended last before the next one began is what that one waited for.
fn mark_bounds(spans: &mut [Span]) {
    let mut next = None;
    loop {
        let waited_for = (0..spans.len())
            .filter(|&index| !spans[index].bounds && next.is_none_or(|next| spans[index].to <= next))
            .max_by_key(|&index| spans[index].to);
        let Some(index) = waited_for else { return };
        spans[index].bounds = true;
        next = Some(spans[index].from);
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use recovery::journal::{Claim, Record};
    use recovery::model::{BrokerId, Cause, Epoch};
    use recovery::plan::{Plan, Stage, Step};
    use recovery::ports::Note;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millis).unwrap()
    }

    /// Fault at 0, claim at 2 s; the fence takes until 3 s; then address (until 3.1 s) and storage (until 4
    /// s, at the second try) side by side; then Kafka, until 4.2 s.
    pub(in super::super) fn takeover() -> EpochJournal {
        let broker = BrokerId(1);
        let fence = Step::Fence { host: "b1".into(), ladder: vec!["exec".to_owned()], on: None };
        let prepare = vec![
            Step::MoveAddress { broker, address: "10.0.0.1/24".to_owned() },
            Step::AttachStorage { broker, log_dirs: Vec::new(), admission: Vec::new() },
        ];
        let plan = Plan {
            broker,
            from: "b1".into(),
            to: "standby-1".into(),
            epoch: Epoch(2),
            fault_at: at(0),
            because: Vec::new(),
            stages: vec![
                Stage { phase: Phase::Fence, steps: vec![fence] },
                Stage { phase: Phase::Prepare, steps: prepare },
                Stage { phase: Phase::Start, steps: vec![Step::StartBroker { broker }] },
            ],
            predicted: None,
        };
        let claim = Claim {
            at: at(2000),
            by: "standby-1".into(),
            cause: Cause::Automatic,
            succeeds: None,
            instance: None,
            plan,
        };
        let direction = Direction::Forward;
        let started = |step| Entry::Started { step, direction };
        let done = |step| Entry::Done { step, direction, note: Note::new("done") };
        let failed =
            Entry::Failed { step: 2, direction, error: "busy".to_owned(), kind: "failed".to_owned() };
        let entries = [
            (2010, Entry::Claimed { claim: Box::new(claim.clone()) }),
            (2010, started(0)),
            (3000, done(0)),
            (3000, started(1)),
            (3000, started(2)),
            (3100, done(1)),
            (3400, failed),
            (3400, started(2)),
            (4000, done(2)),
            (4000, started(3)),
            (4200, done(3)),
        ];
        let records = entries.into_iter().zip(0..).map(|((millis, entry), seq)| Record {
            seq,
            at: at(millis),
            by: "standby-1".into(),
            entry,
        });
        EpochJournal { broker, epoch: Epoch(2), records: records.collect(), claim }
    }

    #[test]
    fn each_try_is_a_span_and_what_ran_beside_a_longer_one_did_not_bound() {
        let found = spans(&takeover());
        let told: Vec<_> = found
            .iter()
            .map(|span| (span.what.as_str(), span.took().as_millis(), span.failed, span.bounds))
            .collect();
        assert_eq!(
            told,
            [
                ("detect", 2000, false, true),
                ("claim", 10, false, true),
                ("fence", 990, false, true),
                ("move_address", 100, false, false),
                ("attach_storage", 400, true, true),
                ("attach_storage", 600, false, true),
                ("start_broker", 200, false, true),
            ]
        );
    }
}
