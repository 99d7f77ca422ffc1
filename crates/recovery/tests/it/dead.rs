//! A broker whose host dies, and what the ledger says of it then.

#![allow(dead_code, reason = "each test binary uses what it needs")]

use std::time::Duration;

use fakes::{BROKER, World};
use recovery::journal::EpochJournal;
use recovery::model::{Cause, LedgerStanding, Locks, Topology};
use recovery::observe::{Board, observe};
use recovery::plan::{Plan, plan};
use recovery::ports::{Clock, HealthSignal, Ledger};
use recovery::takeover::take_over;

/// The plan the standby makes three seconds after the broker's host died.
pub(crate) async fn dead_broker(world: &World) -> Plan {
    dead_broker_with(world, Locks::default()).await
}

/// The same, where this becomes of the owner's locks.
pub(crate) async fn dead_broker_with(world: &World, locks: Locks) -> Plan {
    let mut board = Board::default();
    for evidence in world.look(world).await {
        board.record(evidence);
    }
    world.kill();
    for _ in 0..12 {
        world.sleep(Duration::from_millis(250)).await;
        for evidence in world.look(world).await {
            board.record(evidence);
        }
    }
    let mut topology = World::topology();
    topology.brokers.values_mut().for_each(|broker| broker.locks = locks.clone());
    let seen = observe(&board, &topology.known, World::policy().stale_after, world.now());
    let standing = standing(world).await;
    let (takeover, objections) =
        recovery::decide::decide_manual(BROKER, &standing, &seen, &topology, &World::policy());
    assert_eq!(objections, Vec::<String>::new());
    plan(&takeover, standing.epoch.next(), &topology, &World::policy(), &seen)
        .expect("the broker is configured")
}

/// `plan`, made anew by a host that is configured like this.
pub(crate) async fn planned_by(world: &World, topology: &Topology, plan: Plan) -> Plan {
    let (policy, standing) = (World::policy(), standing(world).await);
    let seen = observe(&Board::default(), &topology.known, policy.stale_after, world.now());
    let (takeover, _) = recovery::decide::decide_manual(BROKER, &standing, &seen, topology, &policy);
    let fresh = recovery::plan::plan(&takeover, standing.epoch.next(), topology, &policy, &seen);
    Plan { stages: fresh.expect("a plan").stages, ..plan }
}

/// The newest epoch.
pub(crate) async fn journal(world: &World) -> EpochJournal {
    world.latest(BROKER).await.expect("the ledger is up").expect("there was a claim")
}

/// Where the broker stands.
pub(crate) async fn standing(world: &World) -> LedgerStanding {
    LedgerStanding::after(&"kafka-1".into(), &world.all(BROKER).await.expect("the ledger is up"))
}

/// Fails if a promise was broken on the way.
pub(crate) fn promises_hold(world: &World, what: &str) {
    let truth = world.truth();
    assert!(truth.violations.is_empty(), "{what}: {:?}", truth.violations);
    assert!(truth.unregister_sent <= 1, "{what}: UnregisterBroker was sent {} times", truth.unregister_sent);
    assert!(truth.starts <= 1, "{what}: Kafka was started {} times", truth.starts);
}

/// A Kafka that ended by itself on its new host, and the plan to start it there again.
pub(crate) async fn ended_by_itself() -> (World, Plan) {
    let world = World::new();
    let plan = dead_broker(&world).await;
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    world.truth().exited = true;
    let again = dead_broker(&world).await;
    (world, again)
}
