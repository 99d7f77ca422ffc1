//! What every ledger driver must do when the world below it fails, as tests. A driver's rig has the switches.
//!
//! Run these beside [`contract`](super::contract::contract), or after it: they leave epochs and orders
//! behind.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]
#![allow(clippy::missing_panics_doc, reason = "they panic when the contract is broken")]

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::time::{Instant, sleep, timeout};

use super::contract::{append, claim, decision, done, ended, started};
use recovery::journal::{Entry, Record};
use recovery::model::{BrokerId, Instruction, Order};
use recovery::ports::{Ledger, LedgerError};

/// How long a ledger may need to be of use again once what it stands on is.
const HEALED_WITHIN: Duration = Duration::from_secs(60);

/// What a call may need beyond its deadline on a machine that is busy with other tests.
const GRACE: Duration = Duration::from_secs(2);

/// A ledger and the switches on what it stands on.
#[async_trait]
pub trait Rig: Send + Sync {
    /// Another instance of the ledger, as another process would have.
    fn ledger(&self) -> Arc<dyn Ledger>;
    /// The deadline that its calls have.
    fn deadline(&self) -> Duration;
    /// Takes away what the ledger stands on, until `up`.
    async fn down(&self);
    /// Gives it back. It need not be of use at once.
    async fn up(&self);
    /// Begins to append `entries` as a process of its own, and dies when `percent` of the write have left it:
    /// at 0 nothing has, at 100 everything has and only the answer is missing.
    async fn tear(&self, writer: (i32, u64, &str), entries: &[Entry], percent: u8);
}

/// A ledger that can run out of space.
#[async_trait]
pub trait Fill: Rig {
    /// Takes all space away, until `empty`.
    async fn fill(&self);
    /// Gives it back. It need not be of use at once.
    async fn empty(&self);
}

/// While the ledger is down every call fails in time, and when it is back nothing is half done and work goes
/// on.
pub async fn survives_an_outage(rig: &impl Rig) {
    let ledger = rig.ledger();
    ledger.claim(&claim(30, 1, "a")).await.unwrap();
    append(&*ledger, (30, 1, "a"), &[started(0)]).await.unwrap();
    let before = records(&*ledger, 30).await;

    rig.down().await;
    // One process that was connected, and one that was not.
    let other = rig.ledger();
    tokio::join!(every_call_fails(rig, &*ledger), every_call_fails(rig, &*other));
    rig.up().await;
    healed(|| ledger.latest(BrokerId(30))).await;

    let after = records(&*ledger, 30).await;
    assert_eq!(after[..before.len()], before, "what was confirmed is there");
    let torn: Vec<Entry> = after[before.len()..].iter().map(|record| record.entry.clone()).collect();
    assert!(torn.iter().all(|entry| *entry == lost()), "only what was asked for: {torn:?}");
    let resumed = [Entry::Resumed, started(0)];
    for ledger in [&*ledger, &*rig.ledger()] {
        healed(|| append(ledger, (30, 1, "a"), &resumed)).await;
    }
    let seqs: Vec<u64> = records(&*ledger, 30).await.iter().map(|record| record.seq).collect();
    assert_eq!(seqs, (0..seqs.len() as u64).collect::<Vec<_>>());

    // A claim without an answer was won or not, and not a bit of both.
    match ledger.latest(BrokerId(31)).await.unwrap() {
        None => drop(ledger.claim(&claim(31, 1, "b")).await.unwrap()),
        Some(won) => assert_eq!((won.claim, won.records.len()), (claim(31, 1, "b"), 1)),
    }
    append(&*ledger, (31, 1, "b"), &[started(0)]).await.unwrap();
    append(&*ledger, (30, 1, "a"), &[ended()]).await.unwrap();
    rig.ledger().claim(&claim(30, 2, "b")).await.unwrap();
    match append(&*ledger, (30, 1, "a"), &[started(1)]).await {
        Err(LedgerError::Superseded { .. }) => {}
        other => panic!("a stale writer must be refused after an outage too, is {other:?}"),
    }
    ledger.order(&order()).await.unwrap();
    assert!(rig.ledger().orders().await.unwrap().0.contains(&order()));
    ledger.check().await.expect("a ledger that is healed passes its check");
}

async fn every_call_fails(rig: &impl Rig, ledger: &dyn Ledger) {
    let (event, entries) = (decision("a", 1, "one"), [lost()]);
    tokio::join!(
        unavailable(rig, "latest", ledger.latest(BrokerId(30))),
        unavailable(rig, "all", ledger.all(BrokerId(30))),
        unavailable(rig, "claim", async { ledger.claim(&claim(31, 1, "b")).await }),
        unavailable(rig, "append", append(ledger, (30, 1, "a"), &entries)),
        unavailable(rig, "remember", ledger.remember(BrokerId(30), &event)),
        unavailable(rig, "remembered", ledger.remembered(BrokerId(30))),
        unavailable(rig, "order", async { ledger.order(&order()).await }),
        unavailable(rig, "orders", ledger.orders()),
        unavailable(rig, "check", ledger.check()),
    );
}

/// A writer that dies at any point of an append leaves all of it or nothing, and the next append works.
pub async fn survives_torn_writes(rig: &impl Rig) {
    rig.ledger().claim(&claim(40, 1, "a")).await.unwrap();
    let entries = [done(0, 300), started(1)];
    for percent in (0..=100).step_by(10) {
        let before = records(&*rig.ledger(), 40).await.len();
        rig.tear((40, 1, "a"), &entries, percent).await;
        let seen = records(&*rig.ledger(), 40).await.len() - before;
        assert!(seen == 0 || seen == entries.len(), "{seen} entries are seen, torn at {percent} %");
        let next = [Entry::Resumed, started(0)];
        append(&*rig.ledger(), (40, 1, "a"), &next).await.unwrap();

        let after = records(&*rig.ledger(), 40).await;
        let seqs: Vec<u64> = after.iter().map(|record| record.seq).collect();
        assert_eq!(seqs, (0..after.len() as u64).collect::<Vec<_>>(), "torn at {percent} %");
        let added: Vec<Entry> = after[before..].iter().map(|record| record.entry.clone()).collect();
        let (torn, appended) = added.split_at(added.len() - next.len());
        assert_eq!(appended, next);
        match percent {
            0 => assert_eq!(torn, [], "nothing was sent"),
            100 => assert_eq!(torn, entries, "everything was sent"),
            _ => assert!(
                torn.is_empty() || torn == entries,
                "half of it is there, torn at {percent} %: {torn:?}"
            ),
        }
    }
}

/// Without space no write is half done and everything can be read; with space again, work goes on.
pub async fn survives_a_full_disk(rig: &impl Fill) {
    let ledger = rig.ledger();
    ledger.claim(&claim(50, 1, "a")).await.unwrap();
    append(&*ledger, (50, 1, "a"), &[started(0)]).await.unwrap();
    let before = records(&*ledger, 50).await;

    rig.fill().await;
    let large = done(0, 20_000);
    unavailable(rig, "append", append(&*ledger, (50, 1, "a"), std::slice::from_ref(&large))).await;
    unavailable(rig, "claim", async { ledger.claim(&claim(51, 1, "a")).await }).await;
    unavailable(rig, "check", ledger.check()).await;
    for ledger in [&*ledger, &*rig.ledger()] {
        assert_eq!(records(ledger, 50).await, before);
        assert_eq!(ledger.latest(BrokerId(51)).await.unwrap(), None);
    }
    rig.empty().await;
    let seqs = healed(|| append(&*ledger, (50, 1, "a"), std::slice::from_ref(&large))).await;
    assert_eq!(seqs, [before.len() as u64]);
    ledger.claim(&claim(51, 1, "a")).await.unwrap();
    ledger.check().await.unwrap();
}

/// What is tried while the ledger is down.
fn lost() -> Entry {
    done(0, 10)
}

fn order() -> Order {
    let at = Timestamp::from_second(7).unwrap();
    let what = Instruction::Resume { broker: Some(BrokerId(30)) };
    Order { at, host: "a".into(), who: "ada".to_owned(), what }
}

async fn records(ledger: &dyn Ledger, broker: i32) -> Vec<Record> {
    ledger.latest(BrokerId(broker)).await.unwrap().expect("the broker has an epoch").records
}

async fn unavailable<T: Debug>(
    rig: &impl Rig,
    call: &str,
    asked: impl Future<Output = Result<T, LedgerError>>,
) {
    let limit = rig.deadline() + GRACE;
    match timeout(limit, asked).await {
        Ok(Err(LedgerError::Unavailable { .. })) => {}
        Ok(other) => panic!("{call} must be Unavailable, is {other:?}"),
        Err(_) => panic!("{call} did not return within {limit:?}"),
    }
}

/// Calls until it works.
async fn healed<T, F: Future<Output = Result<T, LedgerError>>>(call: impl Fn() -> F) -> T {
    let begun = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(LedgerError::Unavailable { .. }) if begun.elapsed() < HEALED_WITHIN => {
                sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("the ledger must be of use again, is {error:?}"),
        }
    }
}
