//! How a run has ended: every broker recovered, or not acted upon for a reason that is true, or left to a
//! person.

use std::collections::BTreeSet;

use recovery::decide::{Decision, HoldReason};
use recovery::model::{Cause, EpochState, HostName, ProbeOutcome};
use recovery::status::Status;

use crate::agent::id;
use crate::remote::survivor;
use crate::run::{PER_BROKER, PER_CLUSTER};
use crate::scenario::Node;
use crate::signals::{guarded, limit};
use crate::world::State;

/// How one broker stands when nothing more goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// It was never touched.
    Untouched,
    /// It serves, after a takeover, a restart or a switchover.
    Recovered,
    /// It is down, and nobody acts for a reason that is true.
    Held,
    /// It is down, and a person was called.
    Escalated,
    /// It is down, and nobody is left who could act.
    Nobody,
}

/// The end of every broker; or the first thing that is neither an end nor an excuse.
pub(crate) fn judge(state: &State, statuses: &[Option<Status>]) -> Result<Vec<End>, String> {
    (0..state.brokers.len()).map(|broker| broker_end(state, statuses, broker)).collect()
}

fn broker_end(state: &State, statuses: &[Option<Status>], broker: usize) -> Result<End, String> {
    let standing = state.book.standing(broker, &state.name(broker));
    let open = matches!(standing.state, Some(EpochState::Open { .. }));
    let well = state.serves(broker);
    let deserted = match &standing.state {
        // It serves, and what was begun comes to nothing: the next one who has a reason to succeeds it.
        Some(EpochState::Open { by, cause, .. }) => {
            let runs =
                |name| state.host_of(name).is_some_and(|h| state.hosts[h].on && state.hosts[h].agent_runs);
            !runs(by) || *cause == Cause::Planned && !runs(&standing.owner)
        }
        _ => false,
    };
    if well && (!open || deserted) {
        return Ok(if standing.epoch.0 == 0 { End::Untouched } else { End::Recovered });
    }
    let mut end = End::Nobody;
    for host in 0..state.hosts.len() {
        let alive = state.hosts[host].on && state.hosts[host].agent_runs;
        if !alive || !guarded(state, host).contains(&broker) {
            continue;
        }
        let status = statuses.get(host).and_then(Option::as_ref);
        let ours = status.and_then(|s| s.brokers.iter().find(|b| b.id == id(broker)));
        let decision = ours.and_then(|b| b.decision.clone());
        let working = ours.is_some_and(|b| b.takeover.is_some());
        let said = match decision {
            // It waits for a survivor to tell it that the broker is back, and says so.
            _ if working && survivor(state, host, Some(broker)).is_none() => Ok(End::Held),
            _ if working => Err("is still at work".to_owned()),
            None => Err("has not decided".to_owned()),
            Some(Decision::Escalate { .. }) => Ok(End::Escalated),
            Some(Decision::Hold { reasons }) => {
                let excused = reasons.iter().find(|reason| excuses(state, host, broker, reason));
                excused.map(|_| End::Held).ok_or_else(|| format!("holds: {}", Decision::Hold { reasons }))
            }
            Some(other) => Err(format!("says: {other}")),
        };
        match said {
            Ok(said) => end = if end == End::Nobody { said } else { end.max(said) },
            Err(_) if !may_act(state, host, broker) => {}
            Err(why) => {
                let epoch = if open { ", its epoch is open" } else { "" };
                let word = if well { "serves" } else { "is down" };
                return Err(format!("broker {} {word}{epoch}, and {} {why}", broker + 1, state.name(host)));
            }
        }
    }
    Ok(end)
}

/// Whether this host is one from which something is to be expected.
fn may_act(state: &State, host: usize, broker: usize) -> bool {
    let owner = state.book.standing(broker, &state.name(broker)).owner;
    owner == state.name(host) || (host >= state.setup.brokers && !state.hosts[host].denied)
}

/// Whether a reason not to act is true, and one that lasts.
fn excuses(state: &State, host: usize, broker: usize, reason: &HoldReason) -> bool {
    let count = state.brokers.len();
    let down = |b: &usize| state.probe(host, *b) != ProbeOutcome::Answered;
    match reason {
        HoldReason::Isolated { .. } => state.out_of_sight(host, broker),
        HoldReason::MetadataBlind => (0..count).all(|b| down(&b)),
        HoldReason::OutOfReach { .. } => {
            state.brokers[broker].registration.is_some_and(|r| state.now - r.heard < 3_000)
        }
        HoldReason::Starting { .. } | HoldReason::OneWitness => false,
        HoldReason::LoneObserver { .. } => {
            let runs = |h: &usize| *h != host && state.hosts[*h].agent_runs;
            let hosts = 0..state.hosts.len();
            hosts.filter(runs).all(|h| !state.reaches(Node::Host(host), Node::Host(h)))
        }
        HoldReason::PeerSeesIt { host: peer } => {
            state.host_of(peer).is_some_and(|peer| state.probe(peer, broker) == ProbeOutcome::Answered)
        }
        HoldReason::LedgerUnreachable | HoldReason::OthersFirst { .. } => false,
        HoldReason::LedgerDamaged { .. }
        | HoldReason::LedgerDistrusted { .. }
        | HoldReason::NoFence { .. }
        | HoldReason::FenceAstray { .. } => false,
        HoldReason::MassFailure { limit, .. } => state.together(host, broker).len() > *limit,
        HoldReason::StorageStalled { .. } => (0..state.hosts.len()).any(|h| state.stalled(h)),
        HoldReason::HostCarries { host: carrier, broker } => {
            let other = crate::agent::index(*broker);
            let there = |carrier| state.brokers[other].processes.iter().any(|p| p.host == carrier);
            let answers = state.probe(host, other) == ProbeOutcome::Answered;
            answers && state.host_of(carrier).is_some_and(there)
        }
        HoldReason::StoppedCleanly { .. } => state.brokers[broker].stopped,
        HoldReason::NeverListed => {
            let machine = &state.hosts[host];
            machine.told_listed[broker] != Some(machine.life)
        }
        HoldReason::Paused { .. } => {
            let mut hosts = 0..state.hosts.len();
            hosts.any(|h| {
                let orders = recovery::model::Orders(state.book.orders().cloned().collect());
                orders.pause(id(broker), state.wall(h)).is_some()
            })
        }
        HoldReason::BudgetSpent { .. } => {
            takeovers(state, broker) >= PER_BROKER
                || (0..count).map(|b| takeovers(state, b)).sum::<usize>() >= PER_CLUSTER
        }
        HoldReason::ClaimedElsewhere { by, .. } => {
            // Whoever has claimed it answers for itself.
            state.host_of(by).is_some_and(|by| state.hosts[by].on && state.hosts[by].agent_runs)
        }
        HoldReason::FencedHere { left_to, .. } => {
            let orders = recovery::model::Orders(state.book.orders().cloned().collect());
            let standing = state.book.standing(broker, &state.name(broker));
            let fenced = standing.fenced_here(&state.name(host), &orders).is_some();
            fenced && (left_to.is_empty() || some_act(state, left_to))
        }
        // Each of them answers for itself.
        HoldReason::LeftToOthers { hosts } => some_act(state, hosts),
        HoldReason::StandbyFull { .. } => {
            let name = state.name(host);
            let carried = (0..count).filter(|b| *b != broker && carries(state, *b, &name));
            carried.count() >= limit(state, host)
        }
        HoldReason::Observing => false,
        HoldReason::AwaitingApproval => state.setup.approve,
    }
}

/// Whether an agent runs on one of `hosts`.
fn some_act(state: &State, hosts: &BTreeSet<HostName>) -> bool {
    let runs = |host: usize| state.hosts[host].on && state.hosts[host].agent_runs;
    hosts.iter().any(|host| state.host_of(host).is_some_and(runs))
}

/// Whether a broker is a host's, or about to be.
fn carries(state: &State, broker: usize, host: &HostName) -> bool {
    let standing = state.book.standing(broker, &state.name(broker));
    let open = matches!(&standing.state, Some(EpochState::Open { by, .. }) if by == host);
    standing.owner == *host || open
}

/// Takeovers of a broker that agents decided by themselves since a person last acknowledged what was wrong.
fn takeovers(state: &State, broker: usize) -> usize {
    let orders = recovery::model::Orders(state.book.orders().cloned().collect());
    let acked = orders.acked(id(broker));
    let standing = state.book.standing(broker, &state.name(broker));
    let counts = standing.attempts.iter().filter(|attempt| {
        !attempt.in_place
            && attempt.cause == Cause::Automatic
            && !acked.is_some_and(|acked| acked.covers(attempt))
    });
    counts.count()
}
