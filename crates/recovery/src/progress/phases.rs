//! How long the phases of a takeover took.

use std::time::Duration;

use jiff::Timestamp;

use super::between;
use crate::journal::{Direction, Entry, EpochJournal, Intents};
use crate::model::Phase;

/// How long each phase took: from its first `Started` to its last result, and detection and claim before. A
/// step that outlasts its phase does not count.
#[must_use]
pub fn phases(journal: &EpochJournal) -> Vec<(Phase, Duration)> {
    let claim = &journal.claim;
    let claimed_at = journal.records.first().map_or(claim.at, |r| r.at);
    let mut phases = vec![
        (Phase::Detect, between(claim.plan.fault_at, claim.at)),
        (Phase::Claim, between(claim.at, claimed_at)),
    ];
    let mut spans: Vec<(Phase, Timestamp, Timestamp)> = Vec::new();
    let intents = Intents::of(&journal.records);
    for record in &journal.records {
        if matches!(record.entry, Entry::Started { direction: Direction::Forward, .. })
            && !intents.stands(record.seq)
        {
            continue;
        }
        let (Entry::Started { step, .. } | Entry::Done { step, .. } | Entry::Failed { step, .. }) =
            &record.entry
        else {
            continue;
        };
        let Some((phase, step)) = claim.plan.step(*step) else { continue };
        if step.outlasts(phase) {
            continue;
        }
        match spans.iter_mut().find(|(p, ..)| *p == phase) {
            Some(span) => span.2 = record.at,
            None => spans.push((phase, record.at, record.at)),
        }
    }
    phases.extend(spans.into_iter().map(|(phase, from, to)| (phase, between(from, to))));
    phases
}
