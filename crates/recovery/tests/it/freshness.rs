//! A decision that has grown old before the first act: nothing is touched, and it is made anew.

use std::time::Duration;

use crate::dead::{dead_broker, journal, promises_hold, standing};
use fakes::{BROKER, Crash, World};
use recovery::journal::{Entry, Intents, Record};
use recovery::model::{Cause, EpochState, Moment, Outcome};
use recovery::plan::Phase;
use recovery::ports::Clock;
use recovery::progress::{Progress, phases};
use recovery::takeover::{TakeoverError, resume, take_over, withdraw};

const HERE: &str = "standby-1";

/// From a decision to a first act that came too late.
const STOOD_STILL: Duration = Duration::from_secs(18);

/// A takeover that an agent decides now, and whose n-th ledger write from now on takes long.
async fn decided_and_slow(n: usize, crash: Option<Crash>) -> (World, Result<Outcome, TakeoverError>) {
    let world = World::new();
    let plan = dead_broker(&world).await;
    world.truth().slow_write = Some((n, STOOD_STILL));
    world.truth().crash = crash;
    let decided = world.now().mono;
    let result = take_over(&world.ports(), plan, Cause::Automatic, None, Some(decided)).await;
    (world, result)
}

async fn not_tried(world: &World) -> usize {
    journal(world).await.records.iter().filter(|r| matches!(r.entry, Entry::NotTried { .. })).count()
}

async fn touched(world: &World) -> bool {
    let state = standing(world).await.state;
    let Some(EpochState::Open { touched, .. }) = state else { panic!("{state:?}") };
    touched
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_grew_old_before_the_first_act_touches_nothing_and_is_made_anew() {
    // The claim; the intents.
    for (n, taken_back) in [(1, 0), (2, 1)] {
        let (world, result) = decided_and_slow(n, None).await;
        assert!(matches!(result, Err(TakeoverError::Outdated(..))), "write {n}: {result:?}");
        assert!(world.truth().fenced.is_empty() && !touched(&world).await, "write {n}");
        assert_eq!(not_tried(&world).await, taken_back, "write {n}");
        // A resume that is decided as long ago as that does no better.
        let decided = Moment(world.now().mono.0 - STOOD_STILL);
        let result = resume(&world.ports(), &HERE.into(), BROKER, Some(decided)).await;
        assert!(matches!(result, Err(TakeoverError::Outdated(..))), "write {n}: {result:?}");
        assert!(world.truth().fenced.is_empty() && !touched(&world).await, "write {n}");
        assert_eq!(not_tried(&world).await, taken_back + 1, "write {n}");
        // One that is decided on what is so now goes through.
        let decided = Some(world.now().mono);
        let outcome = resume(&world.ports(), &HERE.into(), BROKER, decided).await.expect("runs to an end");
        assert_eq!(outcome.label(), "recovered", "write {n}: {outcome:?}");
        promises_hold(&world, &format!("write {n}"));
        let fence = phases(&journal(&world).await).into_iter().find(|(phase, _)| *phase == Phase::Fence);
        assert!(
            fence.is_some_and(|(_, took)| took < STOOD_STILL),
            "what was not tried took no time: {fence:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_intents_were_taken_back_can_be_withdrawn() {
    let (world, result) = decided_and_slow(2, None).await;
    result.expect_err("too old");
    let outcome = withdraw(&world.ports(), &HERE.into(), BROKER).await.expect("nothing was touched");
    assert_eq!(outcome.label(), "withdrawn");
    assert!(matches!(standing(&world).await.state, Some(EpochState::Ended { .. })));
    assert_eq!(standing(&world).await.nonsense, None);
}

#[tokio::test(start_paused = true)]
async fn what_a_person_ordered_does_not_grow_old() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    world.truth().slow_write = Some((2, STOOD_STILL));
    let outcome = take_over(&world.ports(), plan, Cause::Manual, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered");
}

#[tokio::test(start_paused = true)]
async fn what_was_touched_is_carried_on_however_old_the_decision_is() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    let decided = Some(world.now().mono);
    // Dies once the fence is written down as done.
    world.truth().render_takes = Duration::from_secs(4);
    world.truth().crash = Some(Crash::After(3));
    take_over(&world.ports(), plan, Cause::Automatic, None, decided).await.expect_err("it died");
    assert!(touched(&world).await);
    world.sleep(STOOD_STILL).await;
    let outcome = resume(&world.ports(), &HERE.into(), BROKER, decided).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered");
}

#[tokio::test(start_paused = true)]
async fn intents_that_the_ledger_did_not_confirm_are_taken_back_as_well() {
    let (world, result) = decided_and_slow(2, Some(Crash::After(2))).await;
    assert!(matches!(result, Err(TakeoverError::Unfinished(..))), "{result:?}");
    assert!(world.truth().fenced.is_empty() && !touched(&world).await);
    // Those that never got there are not missed.
    let (world, result) = decided_and_slow(2, Some(Crash::Before(2))).await;
    assert!(matches!(result, Err(TakeoverError::Unfinished(..))), "{result:?}");
    assert_eq!(journal(&world).await.records.len(), 1, "nothing to take back");
}

#[tokio::test(start_paused = true)]
async fn intents_are_taken_back_once_whatever_becomes_of_that_write() {
    for crash in [Crash::Before(3), Crash::After(3)] {
        let (world, result) = decided_and_slow(2, Some(crash)).await;
        assert!(matches!(result, Err(TakeoverError::Outdated(..))), "{crash:?}: {result:?}");
        assert!(!touched(&world).await, "{crash:?}");
        assert_eq!(not_tried(&world).await, 1, "{crash:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_run_that_meant_to_begin_can_say_that_it_did_not() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    world.truth().crash = Some(Crash::After(2));
    // Ordered by a person: it ends with the ledger's error, and the intents stand.
    take_over(&world.ports(), plan, Cause::Manual, None, None).await.expect_err("it died");
    let mut journal = journal(&world).await;
    let seqs: Vec<u64> = journal.records.iter().skip(1).map(|record| record.seq).collect();
    assert!(!seqs.is_empty());
    let back = Entry::NotTried { intents: seqs.clone(), why: "late".to_owned() };
    let record = |seq, entry| Record { seq, at: journal.claim.at, by: HERE.into(), entry };
    let next = journal.records.len() as u64;
    let (alive, dead) = (record(next, back.clone()), record(next, Entry::Resumed));
    let late = record(next + 1, back);
    let stand = |more: &[&Record]| {
        let records: Vec<Record> = journal.records.iter().chain(more.iter().copied()).cloned().collect();
        seqs.iter().filter(|seq| Intents::of(&records).stands(**seq)).count()
    };
    assert_eq!(stand(&[&alive]), 0);
    assert_eq!(stand(&[&alive, &late]), 0, "said twice");
    assert_eq!(stand(&[&dead, &late]), seqs.len(), "what a run that died has tried, nobody knows");
    journal.records.extend([dead, late]);
    assert!(Progress::replay(&journal).is_ok_and(|progress| progress.touched()));
}
