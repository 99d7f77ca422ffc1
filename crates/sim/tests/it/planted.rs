//! The simulation can fail: each planted bug is found within some seeds, and by the right rule.

use sim::scenario::Bug;
use sim::{Report, generate, run};

fn found(bug: Bug, within: u64, rules: &[&str]) {
    let by_rule = |report: &Report| report.rule().is_some_and(|rule| rules.contains(&rule));
    let mut runs = (0..within).map(|seed| run(&generate::planted(seed, bug), false));
    assert!(runs.any(|report| by_rule(&report)), "{bug:?} was not found by {rules:?} in {within} seeds");
}

#[test]
fn a_proof_of_what_was_not_done_is_found() {
    let rules = ["unregistered only after the proof", "no start without a proof of every possible writer"];
    found(Bug::EmptyProof, 40, &rules);
}

#[test]
fn a_ledger_that_lets_an_epoch_be_won_twice_is_found() {
    found(Bug::DoubleClaim, 400, &["an act belongs to an epoch that was won"]);
}

#[test]
fn a_ledger_that_takes_writes_of_old_epochs_is_found() {
    found(Bug::OldEpochWrites, 1_500, &["no act by an old epoch after a newer one has proven its fence"]);
}

#[test]
fn a_claimant_that_is_not_named_as_a_writer_is_found() {
    found(Bug::ForgottenWriter, 400, &["every possible writer is in the plan"]);
}

#[test]
fn evidence_that_lies_is_found() {
    found(Bug::FalseAlarm, 20, &["a healthy broker is left alone"]);
}

#[test]
fn agents_that_never_act_are_found() {
    found(Bug::Paralysis, 20, &["every run comes to an end"]);
}

#[test]
fn a_kafka_that_boots_and_is_not_seen_is_found() {
    found(Bug::BlindToBoots, 400, &["two writers"]);
}

#[test]
fn an_address_that_nobody_defends_is_found() {
    found(Bug::AddressUndefended, 400, &["every run comes to an end"]);
}

#[test]
fn a_fence_that_is_forgotten_is_found() {
    found(Bug::ForgottenFence, 2_000, &["a fenced host claims nothing"]);
}

#[test]
fn a_decision_that_has_grown_old_is_found() {
    found(Bug::OldDecision, 400, &["a healthy broker is left alone"]);
}

#[test]
fn a_removal_of_our_own_that_is_taken_for_a_stop_is_found() {
    found(Bug::OwnRemovalIsStop, 400, &["every run comes to an end"]);
}

#[test]
fn a_stop_that_nobody_saw_is_found() {
    found(Bug::BlindStop, 400, &["every run comes to an end"]);
}

#[test]
fn an_append_that_lands_where_it_does_not_belong_is_found() {
    found(Bug::BlindAppend, 800, &["every run comes to an end"]);
}

#[test]
fn a_lock_that_nobody_asks_for_is_found() {
    found(Bug::LocksUnasked, 400, &["no start against a lock that is held"]);
}

#[test]
fn an_empty_directory_that_is_taken_for_the_ledger_is_found() {
    found(Bug::AnyLedger, 400, &["an act belongs to an epoch that was won"]);
}

#[test]
fn a_broker_long_dead_that_disables_every_takeover_is_found() {
    found(Bug::EndlessWindow, 20, &["every run comes to an end"]);
}

#[test]
fn a_machine_that_says_anothers_name_is_found() {
    found(Bug::AnyMachine, 400, &["every possible writer is in the plan"]);
}

#[test]
fn a_kafka_that_hangs_and_is_taken_for_gone_is_found() {
    found(Bug::HungIsGone, 400, &["nothing is left of what was abandoned"]);
}
