//! What a dead owner's lock does to its takeover.

use std::time::Duration;

use crate::dead::{dead_broker_with, ended_by_itself, journal, promises_hold};
use fakes::{Fault, World};
use recovery::event::What;
use recovery::model::{Cause, Grace, Locks, Outcome};
use recovery::takeover::take_over;

fn waits(world: &World) -> Vec<String> {
    let events = world.truth().events.clone();
    let wait = |what| match what {
        What::Waiting { step, state } => Some(format!("{step}: {state}")),
        _ => None,
    };
    events.into_iter().filter_map(|event| wait(event.what)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_dead_owners_lock_is_waited_for_and_kafka_is_started_once() {
    let world = World::new();
    world.truth().lease = Duration::from_secs(60);
    let plan =
        dead_broker_with(&world, Locks { lease: Some(Duration::from_secs(60)), ..Locks::default() }).await;
    let shown = plan.to_string();
    assert!(shown.contains(
        "nobody holds .lock in /mnt/kafka/broker1, 3 min at most (a dead client's lease is 1 min)"
    ));
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    promises_hold(&world, "a lease of 60 s");
    let waited = waits(&world);
    let words = ["await_locks: /mnt/kafka/broker1/.lock is held by a client of the storage", "3 min at most"];
    assert!(matches!(&waited[..], [one] if words.iter().all(|word| one.contains(word))), "{waited:?}");
    let said = format!("{:?}", journal(&world).await.records);
    assert!(said.contains("nobody holds a lock any more, after 5"), "{said}");
    let truth = world.truth();
    let (died, started) = (truth.died_at.expect("killed"), truth.started_at.expect("started"));
    let took = started.since(died);
    assert!(took >= Duration::from_secs(60) && took < Duration::from_secs(62), "{took:?}");
}

/// A filer that has just failed over grants nobody a lock, and nobody holds one.
#[tokio::test(start_paused = true)]
async fn a_storage_that_has_moved_is_waited_for_and_says_how_long() {
    let world = World::new();
    world.truth().lease = Duration::from_secs(45);
    let plan = dead_broker_with(&world, Locks::default()).await;
    let why = "ONTAP shows that node node-01 is taken_over".to_owned();
    world.truth().grace = Some(Grace { why, at_most: Some(Duration::from_secs(45)) });
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    let waited = waits(&world);
    let words =
        ["node-01 is taken_over: for 45.0 s after such a move it grants no new lock", "3 min at most"];
    assert!(matches!(&waited[..], [one] if words.iter().all(|word| one.contains(word))), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_stays_ends_the_try_and_not_the_broker() {
    let world = World::new();
    world.truth().lock_stays = true;
    let at_most = Duration::from_secs(20);
    let locks = Locks { at_most, ..Locks::default() };
    let plan = dead_broker_with(&world, locks.clone()).await;
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    let Outcome::Abandoned { at, why, .. } = outcome else { panic!("{outcome:?}") };
    let words = ["/mnt/kafka/broker1/.lock is held by a client of the storage, after 20.0 s", "lock_wait"];
    assert!(at == "await_locks" && words.iter().all(|word| why.contains(word)), "{at}: {why}");
    promises_hold(&world, "a lock for ever");
    {
        let truth = world.truth();
        assert_eq!((truth.starts, truth.unregister_sent), (0, 0), "nothing of Kafka was begun");
    }
    world.truth().lock_stays = false;
    let plan = dead_broker_with(&world, locks).await;
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    promises_hold(&world, "once it is free");
}

#[tokio::test(start_paused = true)]
async fn storage_that_can_breaks_the_lock_after_the_proof() {
    for (fault, waits_for) in [(None, 0), (Some(Fault::Refuse), 60)] {
        let world = World::new();
        world.truth().lease = Duration::from_secs(60);
        let plan = dead_broker_with(&world, Locks { broken: true, ..Locks::default() }).await;
        let place = |name| plan.steps().position(|(_, step)| step.name() == name);
        assert!(place("prove") < place("break_locks") && place("break_locks") < place("await_locks"));
        assert!(place("await_locks") < place("unregister") && place("unregister") < place("start_broker"));
        world.truth().faults.extend(fault.map(|fault| ("break_locks", fault)));
        let outcome =
            take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
        let Outcome::Recovered { remarks, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(remarks.len(), usize::from(fault.is_some()), "{remarks:?}");
        promises_hold(&world, "locks are broken");
        let truth = world.truth();
        let took = truth.started_at.expect("started").since(truth.died_at.expect("killed"));
        let (least, most) = (Duration::from_secs(waits_for), Duration::from_secs(waits_for + 5));
        assert!(took >= least && took <= most, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_process_that_ended_here_has_no_lease() {
    let (world, plan) = ended_by_itself().await;
    let shown = plan.to_string();
    assert!(shown.contains("wait until nobody holds .lock") && !shown.contains("lease"), "{shown}");
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    assert_eq!(waits(&world), Vec::<String>::new());
}
