//! What a plan is expected to take, by what takeovers took before. Pure.

use std::time::Duration;

use super::{Plan, Step, Unregister};
use crate::experience::{self, like_it, median};
use crate::model::{Attempt, Basis, LogScan, Part, Phase, Prediction};
use crate::observe::Observation;

/// Kafka's default for `broker.session.timeout.ms`. A registration that is not removed keeps a new
/// incarnation out for so long, counted from the last heartbeat.
const SESSION: Duration = Duration::from_secs(9);

/// From the exec of Kafka to the last partition in ISR, without logs to read: between what the demonstration
/// and the benchmark take on two cores, 5 and 10 s.
const REJOIN: Duration = Duration::from_secs(7);

/// What a phase is taken to take as long as nobody has measured it here. A fence by export rules waits for
/// silence, one by power is quicker; the others are what they take on small machines (docs/performance.md,
/// docs/nfs.md).
fn assumed(phase: Phase) -> Duration {
    Duration::from_millis(match phase {
        Phase::Detect | Phase::Settle => 0,
        Phase::Claim => 10,
        Phase::Fence => 3000,
        Phase::Prove | Phase::Verify => 100,
        Phase::Prepare => 1000,
        Phase::Start => 300,
        Phase::Rejoin => return REJOIN,
    })
}

/// The expectation for `plan`, made when `seen` was.
pub(super) fn predict(plan: &Plan, seen: &Observation) -> Prediction {
    let in_place = plan.from == plan.to;
    let so_far = Duration::try_from(seen.now.wall.duration_since(plan.fault_at)).unwrap_or_default();
    let detect = Part { phase: Phase::Detect, takes: so_far, basis: Basis::SoFar };
    let mut phases: Vec<Phase> = plan.stages.iter().map(|stage| stage.phase).collect();
    phases.insert(0, Phase::Claim);
    phases.retain(|phase| *phase <= Phase::Rejoin);
    phases.dedup();
    let before = like_it(plan.broker, seen, in_place);
    let log_scan = log_scan(plan, seen);
    let reads = log_scan.map_or(Duration::ZERO, |scan| scan.takes);
    // What a dead client's lock is waited for is counted from its death, beside all else.
    let (lease, mut until) = (lease(plan), so_far);
    let grace = grace(plan, seen);
    let rest = phases.into_iter().map(|phase| {
        let took = before.iter().filter_map(|attempt| attempt.phases.get(&phase)).copied().collect();
        let (takes, basis) = measured(took).unwrap_or((assumed(phase), Basis::Assumed));
        let takes = match (phase, basis) {
            (Phase::Rejoin, Basis::Assumed) if waits_for_session(plan) => {
                (takes + reads).max(SESSION.saturating_sub(so_far))
            }
            (Phase::Rejoin, Basis::Assumed) => takes + reads,
            // What was measured had logs to read as well; but more may have to be read now than ever took so
            // long.
            (Phase::Rejoin, _) => takes.max(reads),
            (Phase::Verify, Basis::Assumed) => takes + lease.saturating_sub(until),
            _ => takes,
        };
        let takes = match phase {
            Phase::Verify => takes.max((so_far + grace).saturating_sub(until)),
            _ => takes,
        };
        until += takes;
        Part { phase, takes, basis }
    });
    let restarts = like_it(plan.broker, seen, true);
    let took =
        restarts.iter().filter_map(|attempt| Some(attempt.time_to_isr? - detected(attempt)?)).collect();
    let (takes, basis) = measured(took).unwrap_or((SESSION.max(REJOIN + reads), Basis::Assumed));
    let in_place = Part { phase: Phase::Rejoin, takes: so_far + takes, basis };
    Prediction { parts: std::iter::once(detect).chain(rest).collect(), log_scan, in_place }
}

/// What the broker reads through of its logs.
fn log_scan(plan: &Plan, seen: &Observation) -> Option<LogScan> {
    let dirs = plan.steps().find_map(|(_, step)| match step {
        Step::VerifyLogDirs { log_dirs, .. } => Some(log_dirs.len()),
        _ => None,
    })?;
    experience::log_scan(plan.broker, dirs, seen)
}

/// How long the storage keeps the lock of the owner that has died.
fn lease(plan: &Plan) -> Duration {
    let lease = plan.steps().find_map(|(_, step)| match step {
        Step::AwaitLocks { lease, .. } => *lease,
        _ => None,
    });
    lease.unwrap_or_default()
}

/// For how long from now the storage may grant no new lock, since it moved.
fn grace(plan: &Plan, seen: &Observation) -> Duration {
    let here = seen.brokers.get(&plan.broker);
    here.and_then(|here| here.volumes?.grace).unwrap_or_default()
}

fn detected(attempt: &Attempt) -> Option<Duration> {
    let detected = *attempt.phases.get(&Phase::Detect)?;
    // Told by two clocks where a host was succeeded.
    attempt.time_to_isr.map(|whole| detected.min(whole))
}

fn waits_for_session(plan: &Plan) -> bool {
    plan.steps().any(|(_, step)| matches!(step, Step::Unregister { decision: Unregister::Wait { .. }, .. }))
}

fn measured(took: Vec<Duration>) -> Option<(Duration, Basis)> {
    let of = took.len();
    Some((median(took)?, Basis::Median { of }))
}
