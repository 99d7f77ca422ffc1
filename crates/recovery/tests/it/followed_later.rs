//! A network that accepts the order to move an address and takes its time to follow: Kafka starts meanwhile.

use std::time::Duration;

use crate::dead::{dead_broker, ended_by_itself, journal, planned_by, promises_hold, standing};
use fakes::{BROKER, Crash, Fault, World};
use recovery::decide::decide;
use recovery::journal::Entry;
use recovery::model::{Cause, HostName, LedgerStanding, Outcome, Topology};
use recovery::observe::{Board, LedgerSeen, observe};
use recovery::plan::{Plan, Step};
use recovery::ports::{Clock, HealthSignal};
use recovery::takeover::{resume, take_over};

/// `plan`, of a broker whose address is followed later.
async fn followed_later(world: &World, plan: Plan) -> Plan {
    let mut topology = World::topology();
    topology.brokers.values_mut().for_each(|broker| broker.followed_later = true);
    planned_by(world, &topology, plan).await
}

async fn dead(world: &World) -> Plan {
    let plan = dead_broker(world).await;
    followed_later(world, plan).await
}

#[tokio::test(start_paused = true)]
async fn kafka_starts_beside_the_confirmation_and_the_isr_is_awaited_after_both() {
    let world = World::new();
    let plan = dead(&world).await;
    take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    promises_hold(&world, "followed later");
    let journal = journal(&world).await;
    let plan = &journal.claim.plan;
    let place = |begun: bool, wanted: &dyn Fn(&Step) -> bool| {
        let found = journal.records.iter().position(|record| match record.entry {
            Entry::Started { step, .. } if begun => wanted(plan.step(step).expect("in the plan").1),
            Entry::Done { step, .. } if !begun => wanted(plan.step(step).expect("in the plan").1),
            _ => false,
        });
        found.expect("it is in the journal")
    };
    let starts = |step: &Step| step.starts();
    let moves = |step: &Step| matches!(step, Step::MoveAddress { .. });
    let confirms = |step: &Step| matches!(step, Step::ConfirmAddress { .. });
    assert!(
        place(false, &moves) < place(true, &starts),
        "without an address on the link Kafka cannot listen"
    );
    assert!(place(true, &confirms) < place(false, &starts), "one of them waited for the other");
    let awaits = |step: &Step| matches!(step, Step::AwaitIsr { .. });
    assert!(place(false, &confirms) < place(true, &awaits), "a broker that nobody reaches is not back");
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_nobody_reaches_is_stopped_and_another_standby_may_try() {
    for fault in [Fault::Refuse, Fault::Unconfirmed] {
        let world = World::new();
        let plan = dead(&world).await;
        world.truth().faults.insert("confirm_address", fault);
        let outcome =
            take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
        let Outcome::Abandoned { at, .. } = outcome else { panic!("{fault:?}: {outcome:?}") };
        assert_eq!(at, "confirm_address");
        promises_hold(&world, "not followed");
        let truth = world.truth();
        assert_eq!(truth.starts, 1, "{fault:?}: it started beside");
        assert!(truth.started_at.is_none(), "{fault:?}: Kafka runs where nobody reaches it");
        assert!(!truth.address_here && !truth.storage_here, "{fault:?}: something was left here");
    }
}

/// Whoever comes next has to fence this host: Kafka may have been started here.
#[tokio::test(start_paused = true)]
async fn the_host_that_was_not_reached_counts_as_a_writer() {
    let world = World::new();
    let plan = dead(&world).await;
    world.truth().faults.insert("confirm_address", Fault::Refuse);
    take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert!(standing(&world).await.writers.contains(&HostName::from("standby-1")));
}

#[tokio::test(start_paused = true)]
async fn only_its_own_failure_stops_a_kafka_that_runs() {
    let world = World::new();
    let plan = dead(&world).await;
    world.truth().faults.insert("state", Fault::Refuse);
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "stuck", "{outcome:?}");
    assert!(world.truth().started_at.is_some(), "a Kafka that is reached was stopped");
}

/// An owner has a place to serve from: its Kafka is started once that is sure.
#[tokio::test(start_paused = true)]
async fn an_owner_that_is_not_confirmed_starts_nothing() {
    let (world, again) = ended_by_itself().await;
    let again = followed_later(&world, again).await;
    let starts = world.truth().starts;
    world.truth().faults.insert("confirm_address", Fault::Refuse);
    let outcome = take_over(&world.ports(), again, Cause::Manual, None, None).await.expect("runs to an end");
    let Outcome::Abandoned { at, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(at, "confirm_address");
    assert_eq!(world.truth().starts, starts, "it was started where nobody reaches it");
}

/// Nobody has stopped it who would not have it started.
#[tokio::test(start_paused = true)]
async fn a_kafka_that_was_not_reached_is_not_taken_for_one_that_a_person_stopped() {
    let world = World::new();
    let plan = dead(&world).await;
    world.truth().faults.insert("confirm_address", Fault::Refuse);
    take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    let standing = standing(&world).await;
    let (topology, policy) = (Topology { here: "standby-2".into(), ..World::topology() }, World::policy());
    let mut board = Board::default();
    for _ in 0..12 {
        world.sleep(Duration::from_millis(250)).await;
        world.look(&world).await.into_iter().for_each(|evidence| board.record(evidence));
    }
    let mut seen = observe(&board, &topology.known, policy.stale_after, world.now());
    seen.brokers.entry(BROKER).or_default().left_first = true;
    for (state, stopped) in [(standing.state.clone(), false), (None, true)] {
        // As where its registration could not be removed.
        let standing = LedgerStanding { state, removed: None, ..standing.clone() };
        let brokers = [(BROKER, standing)].into();
        let (unread, others, orders) = Default::default();
        seen.ledger = Some(LedgerSeen { at: world.now().mono, brokers, unread, others, orders });
        let decision = format!("{:?}", decide(BROKER, &seen, &topology, &policy));
        assert_eq!(decision.contains("StoppedCleanly"), stopped, "{decision}");
    }
}

/// What was confirmed before a loss of power is not, once the address is moved anew.
#[tokio::test(start_paused = true)]
async fn an_address_that_a_loss_of_power_took_is_moved_again_before_it_is_confirmed() {
    let mut lost = 0;
    for n in 2.. {
        let world = World::new();
        let plan = dead(&world).await;
        world.truth().crash = Some(Crash::After(n));
        if take_over(&world.ports(), plan, Cause::Automatic, None, None).await.is_ok() {
            break;
        }
        let journal = journal(&world).await;
        let confirmed = journal.records.iter().any(|record| {
            matches!(record.entry, Entry::Done { step, .. }
                if matches!(journal.claim.plan.step(step), Some((_, Step::ConfirmAddress { .. }))))
        });
        if confirmed || journal.outcome().is_some() || !world.truth().address_here {
            continue;
        }
        lost += 1;
        world.truth().address_here = false;
        resume(&world.ports(), &"standby-1".into(), BROKER, None).await.expect("runs to an end");
        assert!(world.truth().address_here, "write {n}: nothing leads to it");
    }
    assert!(lost > 2, "nothing was lost that was there: {lost}");
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_ends_like_no_crash_whether_it_is_confirmed_or_not() {
    for (faults, end) in [(None, "recovered"), (Some(("confirm_address", Fault::Refuse)), "abandoned")] {
        for n in 2.. {
            let world = World::new();
            let plan = dead(&world).await;
            world.truth().faults.extend(faults);
            world.truth().crash = Some(Crash::After(n));
            if take_over(&world.ports(), plan, Cause::Automatic, None, None).await.is_ok() {
                assert!(n > 15, "a takeover writes before and after every step, not {n} times");
                break;
            }
            let journal = journal(&world).await;
            if journal.outcome().is_none() {
                let outcome =
                    resume(&world.ports(), &"standby-1".into(), BROKER, None).await.expect("runs to an end");
                assert_eq!(outcome.label(), end, "write {n}: {outcome:?}");
            }
            promises_hold(&world, &format!("write {n}"));
            let runs = world.truth().started_at.is_some();
            assert_eq!(runs, faults.is_none(), "write {n}: Kafka runs: {runs}");
        }
    }
}
