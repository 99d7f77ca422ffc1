//! The protocol of claim, fence, prove and start, checked in every state that it can reach within bounds.
//!
//! `docs/safety-model.md` says what is modelled and what is not. To see the counts and the counterexamples:
//! `cargo test -p understudy-recovery --test protocol -- --nocapture --test-threads 1`.

#![allow(clippy::print_stdout, reason = "counts and counterexamples are for people to read")]

mod hosts;
mod ledger;
mod model;
mod properties;

use std::collections::BTreeSet;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use model::{Ask, Protocol};
use properties::{ONE_WRITER, PROVEN, RECOVERABLE};

/// A rule of the protocol, broken, to see the checker find what the rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The successor of an open epoch fences the ledger's owner, and not the claimant, which may be frozen.
    OnlyOwnerFenced,
    /// After a crash, a proof in the journal is as good as one just made.
    WrittenProofCounts,
    /// The claimant of an open epoch counts as fenced once its lease ran out.
    TimerIsProof,
    /// A fence request that was accepted counts as a fence.
    AcceptedIsProof,
    /// The ledger takes appends to an epoch although a newer one exists.
    StaleAppendTaken,
    /// The same, but the writer is told that it is superseded: a claim won the race against an append, and
    /// what was appended stays.
    StaleAppendKept,
    /// The ledger takes appends to an epoch that has ended.
    AppendAfterEndTaken,
    /// The owner is whom the newest plan names, although it was read before the claim.
    OwnerFromPlan,
    /// `guard` asks who the owner is, and not whether somebody is taking the broker over.
    GuardBlindToClaims,
    /// A fence takes the storage away and leaves the processes; whoever lifts it does not look for them.
    FenceKillsNothing,
    /// An open epoch cannot be superseded.
    NoSuccession,
}

/// Explores every state, or until all of `wanted` are found violated. With one thread, for short paths.
fn check(protocol: Protocol, threads: usize, wanted: &[&'static str]) -> impl Checker<Protocol> {
    let begun = Instant::now();
    let builder = protocol.checker().threads(threads);
    let builder = if wanted.is_empty() {
        builder
    } else {
        builder.finish_when(HasDiscoveries::AllOf(BTreeSet::from_iter(wanted.iter().copied())))
    };
    let checker = builder.spawn_bfs().join();
    let (states, depth, took) = (checker.unique_state_count(), checker.max_depth(), begun.elapsed());
    println!("{protocol:?}: {states} states, at most {depth} steps deep, in {took:.1?}");
    checker
}

/// Asserts that the flaw breaks each of `broken`, and prints how it comes to that.
fn breaks(flaw: Flaw, ask: Ask, broken: &[&'static str]) {
    let protocol = Protocol { max_epochs: 2, flaw: Some(flaw), ask };
    let checker = check(protocol, 1, broken);
    for name in broken {
        let path = checker.assert_any_discovery(name).into_vec();
        let condition = protocol.property(name).condition;
        let intact = path.iter().take_while(|(state, _)| condition(&protocol, state)).count();
        assert!(0 < intact && intact < path.len(), "{flaw:?} does not lead from a good state to a bad one");
        println!("with {flaw:?}, this breaks \"{name}\":");
        for (number, (_, action)) in (1..).zip(&path[..intact]) {
            action.iter().for_each(|action| println!("  {number:>2}. {action:?}"));
        }
    }
}

/// Asserts that the property holds in every state in spite of the flaw.
fn keeps(flaw: Flaw, kept: &'static str) {
    let protocol = Protocol { max_epochs: 2, flaw: Some(flaw), ask: Ask::Safety };
    check(protocol, 2, &[]).assert_no_discovery(kept);
}

#[test]
fn the_protocol_is_safe_in_every_reachable_state() {
    let protocol = Protocol { max_epochs: 3, flaw: None, ask: Ask::Safety };
    check(protocol, 2, &[]).assert_properties();
}

#[test]
fn a_live_standby_can_recover_the_broker_from_every_reachable_state() {
    let protocol = Protocol { max_epochs: 2, flaw: None, ask: Ask::Recovery };
    check(protocol, 2, &[]).assert_properties();
}

#[test]
fn a_successor_must_fence_the_frozen_claimant() {
    breaks(Flaw::OnlyOwnerFenced, Ask::Safety, &[ONE_WRITER, PROVEN]);
}

/// `guard` keeps a host from coming back while the epoch is open, so there is no second writer here. A host
/// without `guard` has only the proof.
#[test]
fn a_proof_must_be_made_anew_after_a_crash() {
    breaks(Flaw::WrittenProofCounts, Ask::Safety, &[PROVEN]);
    keeps(Flaw::WrittenProofCounts, ONE_WRITER);
}

#[test]
fn a_lease_that_ran_out_must_not_count_as_proof() {
    breaks(Flaw::TimerIsProof, Ask::Safety, &[ONE_WRITER, PROVEN]);
}

#[test]
fn an_accepted_fence_request_must_not_count_as_proof() {
    breaks(Flaw::AcceptedIsProof, Ask::Safety, &[ONE_WRITER, PROVEN]);
}

/// The fences hold without this rule: every start is still proven. What breaks is `guard`, which believes the
/// ledger that nobody is at it any more.
#[test]
fn the_ledger_must_refuse_a_superseded_epoch() {
    breaks(Flaw::StaleAppendTaken, Ask::Safety, &[ONE_WRITER]);
    keeps(Flaw::StaleAppendTaken, PROVEN);
}

/// It is not enough that the writer does not act on it: everybody else reads it.
#[test]
fn what_a_superseded_epoch_appends_must_not_count() {
    breaks(Flaw::StaleAppendKept, Ask::Safety, &[ONE_WRITER]);
}

#[test]
fn the_ledger_must_refuse_an_ended_epoch() {
    breaks(Flaw::AppendAfterEndTaken, Ask::Safety, &[ONE_WRITER, PROVEN]);
}

#[test]
fn the_owner_must_be_read_from_all_journals() {
    breaks(Flaw::OwnerFromPlan, Ask::Safety, &[ONE_WRITER]);
}

#[test]
fn guard_must_refuse_while_somebody_takes_the_broker_over() {
    breaks(Flaw::GuardBlindToClaims, Ask::Safety, &[ONE_WRITER]);
}

#[test]
fn a_fence_must_not_be_lifted_from_running_processes() {
    breaks(Flaw::FenceKillsNothing, Ask::Safety, &[ONE_WRITER]);
}

#[test]
fn without_succession_a_dead_claimant_blocks_recovery() {
    breaks(Flaw::NoSuccession, Ask::Recovery, &[RECOVERABLE]);
}
