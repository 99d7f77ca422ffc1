//! What is read of the ledger, and how little of it twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use fakes::ledger::contract::{append, claim, ended, started};
use fakes::{BROKER, World};
use recovery::ledger_signal::LedgerSignal;
use recovery::model::{BrokerId, Epoch, Fact, HostName};
use recovery::ports::{HealthSignal, Ledger};
use tokio::sync::watch;

fn signal(world: &World) -> LedgerSignal {
    let homes = (1..=500).map(|id| (BrokerId(id), HostName::from("kafka-1"))).collect();
    LedgerSignal::new(Arc::new(world.clone()), homes, watch::channel(BTreeMap::new()).1)
}

/// After each write of another host the next reading is what one that knows nothing reads.
#[tokio::test]
async fn no_change_is_missed_and_what_has_ended_is_not_read_again() {
    let world = World::new();
    let (signal, (one, two)) = (signal(&world), ((1, 1, "s1"), (1, 2, "s2")));
    signal.read().await.unwrap();
    assert_eq!(world.truth().journals_read, 0, "no broker has one");
    for write in 0..6 {
        match write {
            0 => drop(world.claim(&claim(1, 1, "s1")).await.unwrap()),
            1 => drop(append(&world, one, &[started(0)]).await.unwrap()),
            2 => drop(append(&world, one, &[ended()]).await.unwrap()),
            3 => drop(world.claim(&claim(1, 2, "s2")).await.unwrap()),
            4 => drop(append(&world, two, &[started(0)]).await.unwrap()),
            _ => drop(append(&world, two, &[ended()]).await.unwrap()),
        }
        let anew = self::signal(&world).read().await.unwrap();
        assert_eq!(signal.read().await.unwrap().brokers, anew.brokers, "after write {write}");
        let before = world.truth().journals_read;
        signal.read().await.unwrap();
        // While it is open, anything may be added to it at any time.
        let open = usize::from(![2, 5].contains(&write));
        assert_eq!(world.truth().journals_read - before, open, "after write {write}");
    }
    // Two epochs in between.
    for epoch in [3, 4] {
        world.claim(&claim(1, epoch, "s3")).await.unwrap();
        append(&world, (1, epoch, "s3"), &[ended()]).await.unwrap();
    }
    let anew = self::signal(&world).read().await.unwrap();
    let seen = signal.read().await.unwrap();
    assert_eq!((seen.brokers[&BROKER].epoch, &seen.brokers), (Epoch(4), &anew.brokers));
}

#[tokio::test]
async fn a_ledger_that_does_not_answer_is_not_seen_though_nothing_changed() {
    let world = World::new();
    let signal = signal(&world);
    signal.read().await.unwrap();
    world.truth().ledger_down = true;
    let fact = signal.look(&world).await.remove(0).fact;
    assert!(matches!(&fact, Fact::Blind { why } if why.contains("down")), "{fact:?}");
}
