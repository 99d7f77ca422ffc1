//! Another configuration for a daemon that runs: never in the middle of its work, and with nothing of what was seen.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use fakes::{BROKER, World};
use recovery::cycle::Cycle;
use recovery::decide::{Decision, HoldReason};
use recovery::event::What;
use recovery::ledger_signal::LedgerSignal;
use recovery::model::{HostName, Outcome};
use recovery::policy::{Mode, Policy};
use recovery::ports::{Clock, HealthSignal, Ledger};
use recovery::status::Status;
use tokio::sync::{oneshot, watch};

fn signals(world: &World) -> Vec<Arc<dyn HealthSignal>> {
    let homes = [(BROKER, HostName::from("kafka-1"))].into();
    let ledger = LedgerSignal::new(Arc::new(world.clone()), homes, watch::channel(BTreeMap::new()).1);
    vec![Arc::new(world.clone()), Arc::new(ledger)]
}

fn policy(mode: Mode) -> Policy {
    Policy { mode, ..World::policy() }
}

/// A daemon in mode `first` that goes on in the mode which it is sent.
fn start(
    world: &World,
    first: Mode,
    seen: Vec<Arc<dyn HealthSignal>>,
) -> (watch::Receiver<Status>, oneshot::Sender<Mode>) {
    let (mut cycle, status) = Cycle::new(World::topology(), policy(first), world.ports());
    let (ask, asked) = oneshot::channel();
    let world = world.clone();
    tokio::spawn(async move {
        let mode = cycle.watch(seen, pending(), asked).await.expect("nobody stops it").expect("a mode");
        let told = What::Reloaded { by: "ada".to_owned(), differences: Vec::new() };
        cycle.renew(World::topology(), policy(mode), world.ports(), told);
        cycle.watch(signals(&world), pending(), pending::<()>()).await;
    });
    (status, ask)
}

async fn pass(world: &World, seconds: u64) {
    world.sleep(Duration::from_secs(seconds)).await;
}

fn decision(status: &watch::Receiver<Status>) -> Option<Decision> {
    status.borrow().brokers.first().and_then(|broker| broker.decision.clone())
}

#[tokio::test(start_paused = true)]
async fn it_waits_for_the_takeover_that_goes_on() {
    let world = World::new();
    let (mut status, ask) = start(&world, Mode::Auto, signals(&world));
    pass(&world, 5).await;
    world.kill();
    let begun =
        status.wait_for(|status| status.brokers[0].takeover.is_some()).await.expect("it runs").clone();
    ask.send(Mode::Observe).expect("it runs");
    let after = status.wait_for(|status| status.mode == Mode::Observe).await.expect("it runs").clone();
    assert!(after.at > begun.at);
    let end = world.latest(BROKER).await.expect("up").and_then(|journal| journal.outcome().cloned());
    assert!(matches!(end, Some(Outcome::Recovered { .. })), "{end:?}");
    assert_eq!(world.truth().starts, 1);
    assert!(world.truth().violations.is_empty(), "{:?}", world.truth().violations);
    assert_eq!(after.brokers[0].decision, None, "nothing has been looked at yet");
    pass(&world, 5).await;
    assert_eq!(decision(&status), Some(Decision::Healthy));
}

#[tokio::test(start_paused = true)]
async fn it_is_decided_by_the_new_one_from_then_on() {
    let world = World::new();
    let (mut status, ask) = start(&world, Mode::Auto, signals(&world));
    pass(&world, 5).await;
    ask.send(Mode::Observe).expect("it runs");
    status.wait_for(|status| status.mode == Mode::Observe).await.expect("it runs");
    pass(&world, 5).await;
    world.kill();
    pass(&world, 30).await;
    assert_eq!(decision(&status), Some(Decision::Hold { reasons: vec![HoldReason::Observing] }));
    assert!(world.truth().fenced.is_empty());
}

/// It was seen to die by nobody who may act now.
#[tokio::test(start_paused = true)]
async fn a_broker_that_went_before_it_is_not_taken_over_on_what_was_seen_then() {
    let world = World::new();
    let (status, ask) = start(&world, Mode::Observe, signals(&world));
    pass(&world, 5).await;
    world.kill();
    pass(&world, 30).await;
    ask.send(Mode::Auto).expect("it runs");
    pass(&world, 30).await;
    let Some(Decision::Hold { reasons }) = decision(&status) else { panic!("{:?}", decision(&status)) };
    assert!(reasons.contains(&HoldReason::NeverListed), "{reasons:?}");
    assert!(world.truth().fenced.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_old_signals_end() {
    let world = World::new();
    let old = signals(&world);
    let (mut status, ask) = start(&world, Mode::Auto, old.clone());
    pass(&world, 5).await;
    assert!(old.iter().all(|signal| Arc::strong_count(signal) > 1));
    ask.send(Mode::Observe).expect("it runs");
    status.wait_for(|status| status.mode == Mode::Observe).await.expect("it runs");
    while old.iter().any(|signal| Arc::strong_count(signal) > 1) {
        tokio::task::yield_now().await;
    }
}
