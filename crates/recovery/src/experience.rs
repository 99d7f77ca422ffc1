//! What recoveries took before, as the ledger has it, and so what the next one will take. Pure.

use std::time::Duration;

use crate::model::{Attempt, BrokerId, Cause, LogScan, LogTail, Phase};
use crate::observe::Observation;

/// The recoveries that count: conditions change, so the newest ones.
const NEWEST: usize = 5;

/// What a takeover of `broker`, which has `dirs` log dirs, takes from the claim on, as far as that was
/// measured here: what it reads of its logs counts at least, even if no takeover is known.
pub(crate) fn takeover(broker: BrokerId, dirs: usize, seen: &Observation) -> Duration {
    let before = like_it(broker, seen, false);
    let phase = |phase: Phase| {
        median(before.iter().filter_map(|attempt| attempt.phases.get(&phase)).copied().collect())
    };
    let acts = [Phase::Claim, Phase::Fence, Phase::Prove, Phase::Prepare, Phase::Verify, Phase::Start];
    let reads = log_scan(broker, dirs, seen).map_or(Duration::ZERO, |scan| scan.takes);
    let rejoins = phase(Phase::Rejoin).unwrap_or_default().max(reads);
    acts.into_iter().filter_map(phase).sum::<Duration>() + rejoins
}

/// What the broker reads through before it serves, with one thread for each log dir, which is Kafka's
/// default.
pub(crate) fn log_scan(broker: BrokerId, dirs: usize, seen: &Observation) -> Option<LogScan> {
    let bytes = seen.brokers.get(&broker)?.logs?.bytes;
    Some(LogScan { bytes, takes: LogTail::scan(bytes, dirs) })
}

/// The newest unplanned recoveries of this broker, or of any if it has none.
pub(crate) fn like_it(broker: BrokerId, seen: &Observation, in_place: bool) -> Vec<&Attempt> {
    let standings = || seen.ledger.iter().flat_map(|ledger| &ledger.brokers);
    let like = |attempt: &&Attempt| {
        attempt.time_to_isr.is_some() && attempt.in_place == in_place && attempt.cause != Cause::Planned
    };
    let of = |wanted: Option<BrokerId>| -> Vec<&Attempt> {
        let standings = standings().filter(|(id, _)| wanted.is_none_or(|wanted| **id == wanted));
        standings.flat_map(|(_, standing)| &standing.attempts).filter(like).collect()
    };
    let own = of(Some(broker));
    let mut found = if own.is_empty() { of(None) } else { own };
    found.sort_by_key(|attempt| std::cmp::Reverse(attempt.at));
    found.truncate(NEWEST);
    found
}

/// The one in the middle.
pub(crate) fn median(mut took: Vec<Duration>) -> Option<Duration> {
    took.sort_unstable();
    took.get(took.len() / 2).copied()
}
