//! A host that lives on behind a fence of its storage, and still answers for the address.

use std::time::Duration;

use crate::dead::{dead_broker, planned_by, promises_hold};
use fakes::{Fault, World};
use recovery::model::{Cause, Moment, Outcome, Topology};
use recovery::plan::Plan;
use recovery::ports::Clock;
use recovery::takeover::take_over;

/// As `dead_broker`, of a host that lives on behind a fence of its storage and answers for the address until
/// `answers` from now.
async fn lives_on(world: &World, answers: Duration) -> Plan {
    let topology = Topology { outlive: ["kafka-1".into()].into(), ..World::topology() };
    let plan = planned_by(world, &topology, dead_broker(world).await).await;
    world.truth().answers_arp_until = Some(Moment(world.now().mono.0 + answers));
    plan
}

#[tokio::test(start_paused = true)]
async fn a_live_host_that_gives_the_address_up_is_waited_for() {
    let world = World::new();
    let plan = lives_on(&world, Duration::from_secs(6)).await;
    world.truth().faults.insert("finish_fence", Fault::Refuse);
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    promises_hold(&world, "it gave the address up");
}

#[tokio::test(start_paused = true)]
async fn a_live_host_that_keeps_the_address_is_stopped_by_the_next_fence() {
    let world = World::new();
    let plan = lives_on(&world, Duration::from_secs(86_400)).await;
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    let Outcome::Recovered { remarks, .. } = outcome else { panic!("{outcome:?}") };
    assert!(remarks.is_empty(), "{remarks:?}");
    promises_hold(&world, "it was stopped");
}

#[tokio::test(start_paused = true)]
async fn a_live_host_that_nothing_can_stop_calls_a_person_once_and_leaves_nothing_here() {
    let world = World::new();
    let plan = lives_on(&world, Duration::from_secs(86_400)).await;
    world.truth().faults.insert("finish_fence", Fault::Refuse);
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    let Outcome::Stuck { at, why } = outcome else { panic!("{outcome:?}") };
    assert_eq!(at, "free_address");
    for word in ["02:00:00:00:00:0b", "kafka-1", "ip address del"] {
        assert!(why.contains(word), "{word} is not told: {why}");
    }
    let truth = world.truth();
    assert!(!truth.address_here && !truth.storage_here, "what was prepared is undone");
    assert_eq!(truth.starts, 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_fence_after_the_start_is_told_and_ends_nothing() {
    let world = World::new();
    let plan = lives_on(&world, Duration::ZERO).await;
    // The start waits for it: time in which the link heals, once the address has moved.
    world.truth().render_takes = Duration::from_secs(1);
    world.truth().faults.insert("finish_fence", Fault::Refuse);
    let there = world.clone();
    let running =
        tokio::spawn(async move { take_over(&there.ports(), plan, Cause::Automatic, None, None).await });
    while !world.truth().address_here {
        world.sleep(Duration::from_millis(20)).await;
    }
    world.truth().answers_arp_until = Some(Moment(Duration::from_secs(86_400)));
    let outcome = running.await.expect("no panic").expect("runs to an end");
    let Outcome::Recovered { remarks, .. } = outcome else { panic!("{outcome:?}") };
    assert!(remarks.iter().any(|remark| remark.contains("the old host may still answer")), "{remarks:?}");
}
