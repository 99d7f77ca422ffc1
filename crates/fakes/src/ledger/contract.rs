//! What every ledger driver must do, as tests. A driver runs [`contract`] against itself.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]
#![allow(clippy::missing_panics_doc, reason = "they panic when the contract is broken")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Barrier;
use tokio::time::{Instant, sleep};

use recovery::decide::{Decision, HoldReason};
use recovery::event::{Event, What};
use recovery::journal::{Claim, Direction, Entry, EpochJournal};
use recovery::known::{Identity, identity, init};
use recovery::model::{BrokerId, Cause, Epoch, HostName, Instruction, Order, Orders, Outcome, Succession};
use recovery::plan::{Phase, Plan, Stage, Step};
use recovery::ports::{Cell, Ledger, LedgerError, Note};

/// How often claimants race: enough that a driver which looks before it writes loses at least once.
const ROUNDS: u64 = 40;
const RIVALS: usize = 4;

/// A driver that hears from claimants by itself, such as by a lease, may ask for this much silence of its own
/// before it lets one be succeeded.
const SILENT_WITHIN: Duration = Duration::from_secs(30);

/// Runs the contract. Each call of `make` gives another instance, as another process would have, of one
/// ledger that is empty at first. Needs a runtime of several threads.
pub async fn contract(make: impl Fn() -> Arc<dyn Ledger>) {
    an_empty_ledger_has_no_epochs(&*make()).await;
    the_newest_epochs_are_told_at_once(&*make(), &*make()).await;
    a_claim_is_seen_by_others(&*make(), &*make()).await;
    one_of_many_claimants_wins(&make).await;
    an_open_epoch_is_not_succeeded(&*make(), &*make()).await;
    a_silent_claimant_is_succeeded(&*make(), &*make()).await;
    epochs_come_one_by_one(&*make()).await;
    a_stale_writer_is_refused(&*make(), &*make()).await;
    only_the_claimant_writes_and_not_after_the_end(&*make(), &*make()).await;
    a_takeover_is_carried_on_by_a_new_process(&make).await;
    appends_of_two_processes_keep_order(&make).await;
    decisions_are_remembered(&*make(), &*make()).await;
    orders_are_kept(&*make(), &*make()).await;
    a_cell_is_written_by_one_of_many(&make).await;
    an_identity_is_made_once(&make).await;
    make().check().await.expect("a ledger that works passes its check");
}

/// A claim of `epoch` by `host`.
pub fn claim(broker: i32, epoch: u64, host: &str) -> Claim {
    let broker = BrokerId(broker);
    let steps = vec![Step::RenderConfig { broker }, Step::StartBroker { broker }];
    let at: Timestamp = "2026-11-20T03:00:00Z".parse().unwrap();
    let plan = Plan {
        broker,
        from: "kafka-1".into(),
        to: host.into(),
        epoch: Epoch(epoch),
        fault_at: at,
        because: vec!["our probe: broker cannot be reached for 2.1 s".to_owned()],
        stages: vec![Stage { phase: Phase::Prepare, steps }],
        predicted: None,
    };
    Claim { at, by: host.into(), cause: Cause::Automatic, succeeds: None, instance: None, plan }
}

/// The end of a takeover.
pub fn ended() -> Entry {
    Entry::Ended { outcome: Outcome::Withdrawn { why: "the broker came back".to_owned() } }
}

/// A step that is about to be tried.
pub fn started(step: usize) -> Entry {
    Entry::Started { step, direction: Direction::Forward }
}

/// A step that is done, with a note of that many bytes.
pub fn done(step: usize, bytes: usize) -> Entry {
    Entry::Done { step, direction: Direction::Forward, note: Note::new("x".repeat(bytes)) }
}

/// A decision of `host`.
pub fn decision(host: &str, second: i64, clue: &str) -> Event {
    let decision = Decision::Hold { reasons: vec![HoldReason::OneWitness] };
    Event {
        at: Timestamp::from_second(second).unwrap(),
        host: host.into(),
        broker: Some(BrokerId(1)),
        epoch: None,
        what: What::Decided { decision, evidence: vec![clue.to_owned()] },
    }
}

/// Adds entries as `host`.
pub async fn append(
    ledger: &dyn Ledger,
    (broker, epoch, host): (i32, u64, &str),
    entries: &[Entry],
) -> Result<Vec<u64>, LedgerError> {
    let at = "2026-11-20T03:00:01Z".parse().unwrap();
    let records = ledger.append(BrokerId(broker), Epoch(epoch), at, &host.into(), entries).await?;
    let written: Vec<Entry> = records.iter().map(|record| record.entry.clone()).collect();
    assert_eq!(written, entries);
    Ok(records.into_iter().map(|record| record.seq).collect())
}

/// By another process than the one that writes. Brokers of their own, of which one never has an epoch.
async fn the_newest_epochs_are_told_at_once(writer: &dyn Ledger, reader: &dyn Ledger) {
    const FIRST: i32 = 7001;
    let brokers: BTreeSet<BrokerId> = (FIRST..FIRST + 250).map(BrokerId).collect();
    let mut expected: BTreeMap<_, _> = brokers.iter().map(|broker| (*broker, Epoch::default())).collect();
    let told = reader.newest_epochs(&brokers).await.unwrap();
    assert_eq!(told, expected);
    for (broker, epoch) in [(FIRST, 1), (FIRST + 1, 1), (FIRST, 2), (FIRST + 249, 1), (FIRST, 3)] {
        writer.claim(&claim(broker, epoch, "h1")).await.unwrap();
        expected.insert(BrokerId(broker), Epoch(epoch));
        assert_eq!(reader.newest_epochs(&brokers).await.unwrap(), expected, "a claim is seen");
        append(writer, (broker, epoch, "h1"), &[started(0), ended()]).await.unwrap();
        assert_eq!(reader.newest_epochs(&brokers).await.unwrap(), expected);
    }
}

async fn newest(ledger: &dyn Ledger, broker: i32) -> EpochJournal {
    ledger.latest(BrokerId(broker)).await.unwrap().expect("the broker has an epoch")
}

fn holder(result: Result<impl std::fmt::Debug, LedgerError>) -> HostName {
    match result {
        Err(LedgerError::Taken { by, .. }) => by,
        other => panic!("must be Taken, is {other:?}"),
    }
}

async fn an_empty_ledger_has_no_epochs(ledger: &dyn Ledger) {
    assert_eq!(ledger.latest(BrokerId(1)).await.unwrap(), None);
    assert_eq!(ledger.all(BrokerId(1)).await.unwrap(), []);
    assert_eq!(ledger.remembered(BrokerId(1)).await.unwrap(), []);
}

async fn a_claim_is_seen_by_others(ours: &dyn Ledger, theirs: &dyn Ledger) {
    let claim = claim(10, 1, "a");
    let record = ours.claim(&claim).await.unwrap();
    assert_eq!((record.seq, &record.by), (0, &claim.by));
    // The phase `claim` is what passes between the two.
    assert_ne!(record.at, claim.at, "a record is dated by the clock, and not by its claim");
    assert_eq!(record.entry, Entry::Claimed { claim: Box::new(claim.clone()) });
    theirs.sync().await.unwrap();
    let seen = newest(theirs, 10).await;
    assert_eq!((seen.broker, seen.epoch, &seen.claim), (BrokerId(10), Epoch(1), &claim));
    assert_eq!(seen.records, [record]);
    assert_eq!(theirs.latest(BrokerId(1)).await.unwrap(), None, "another broker has none");
}

async fn one_of_many_claimants_wins(make: &impl Fn() -> Arc<dyn Ledger>) {
    let ledger = make();
    for epoch in 1..=ROUNDS {
        let start = Arc::new(Barrier::new(RIVALS));
        let rivals: Vec<_> = (0..RIVALS)
            .map(|n| {
                let (ledger, start, claim) = (make(), Arc::clone(&start), claim(11, epoch, &format!("h{n}")));
                tokio::spawn(async move {
                    start.wait().await;
                    ledger.claim(&claim).await.map(|_| claim.by)
                })
            })
            .collect();
        let (mut winners, mut told) = (Vec::new(), BTreeSet::new());
        for rival in rivals {
            match rival.await.unwrap() {
                Ok(by) => winners.push(by),
                lost => drop(told.insert(holder(lost))),
            }
        }
        assert_eq!(winners.len(), 1, "epoch {epoch} was won by {winners:?}");
        assert_eq!(told, BTreeSet::from_iter(winners.clone()), "the losers are told who won epoch {epoch}");
        assert_eq!(newest(&*ledger, 11).await.claim.by, winners[0]);
        append(&*ledger, (11, epoch, &winners[0].0), &[ended()]).await.unwrap();
    }
    let epochs: Vec<u64> = ledger.all(BrokerId(11)).await.unwrap().iter().map(|j| j.epoch.0).collect();
    assert_eq!(epochs, (1..=ROUNDS).collect::<Vec<_>>());
}

async fn an_open_epoch_is_not_succeeded(ours: &dyn Ledger, theirs: &dyn Ledger) {
    ours.claim(&claim(12, 1, "a")).await.unwrap();
    for (ledger, host) in [(ours, "a"), (theirs, "b")] {
        assert_eq!(holder(ledger.claim(&claim(12, 2, host)).await), "a".into());
        assert_eq!(holder(ledger.claim(&claim(12, 1, host)).await), "a".into());
    }
    append(ours, (12, 1, "a"), &[ended()]).await.unwrap();
    theirs.claim(&claim(12, 2, "b")).await.unwrap();
}

async fn a_silent_claimant_is_succeeded(old: &dyn Ledger, new: &dyn Ledger) {
    old.claim(&claim(20, 1, "a")).await.unwrap();
    let succeeding =
        |records| Claim { succeeds: Some(Succession { epoch: Epoch(1), records }), ..claim(20, 2, "b") };
    append(old, (20, 1, "a"), &[started(0)]).await.unwrap();
    assert_eq!(holder(new.claim(&succeeding(1)).await), "a".into(), "it has gone on since");
    let foreign = Claim { succeeds: Some(Succession { epoch: Epoch(0), records: 2 }), ..claim(20, 2, "b") };
    assert_eq!(holder(new.claim(&foreign).await), "a".into());
    let begun = Instant::now();
    while let Err(error) = new.claim(&succeeding(2)).await {
        let patient = matches!(error, LedgerError::Taken { .. }) && begun.elapsed() < SILENT_WITHIN;
        assert!(patient, "a claimant that says nothing more must be succeeded: {error:?}");
        sleep(Duration::from_millis(100)).await;
    }
    match append(old, (20, 1, "a"), &[done(0, 1)]).await {
        Err(LedgerError::Superseded { ours: Epoch(1), theirs: Epoch(2), .. }) => {}
        other => panic!("the claimant wakes up and must be refused, is {other:?}"),
    }
    assert_eq!(append(new, (20, 2, "b"), &[Entry::Alive, started(0)]).await.unwrap(), [1, 2]);
    let all = old.all(BrokerId(20)).await.unwrap();
    assert_eq!(all.iter().map(|journal| journal.records.len()).collect::<Vec<_>>(), [2, 3]);
}

async fn orders_are_kept(ours: &dyn Ledger, theirs: &dyn Ledger) {
    assert_eq!(ours.orders().await.unwrap(), Orders::default());
    let order = |host: &str, second: i64, what| Order {
        at: Timestamp::from_second(second).unwrap(),
        host: host.into(),
        who: "ada".to_owned(),
        what,
    };
    let pause = Instruction::Pause { broker: None, reason: "patching\nday".to_owned(), until: None };
    let given = [
        order("a", 1, pause),
        order("b", 2, Instruction::Resume { broker: None }),
        order("a", 3, Instruction::Rejoined),
    ];
    ours.order(&given[0]).await.unwrap();
    theirs.order(&given[1]).await.unwrap();
    ours.order(&given[2]).await.unwrap();
    for ledger in [ours, theirs] {
        assert_eq!(ledger.orders().await.unwrap().0, given);
    }
}

fn cell(version: u64, text: &str) -> Cell {
    Cell { version, text: text.to_owned() }
}

async fn a_cell_is_written_by_one_of_many(make: &impl Fn() -> Arc<dyn Ledger>) {
    let name = "host-kafka.1";
    assert_eq!(make().cell(name).await.unwrap(), None);
    assert!(make().set_cell(name, &cell(2, "early")).await.is_err(), "version 1 is due");
    for version in 1..=ROUNDS / 4 {
        let start = Arc::new(Barrier::new(RIVALS));
        let rivals: Vec<_> = (0..RIVALS)
            .map(|n| {
                let (ledger, start, ours) =
                    (make(), Arc::clone(&start), cell(version, &format!("{{\"n\":{n}}}")));
                tokio::spawn(async move {
                    start.wait().await;
                    (ledger.set_cell(name, &ours).await.unwrap(), ours)
                })
            })
            .collect();
        let (mut won, mut stand) = (0, Vec::new());
        for rival in rivals {
            let (stands, ours) = rival.await.unwrap();
            won += usize::from(stands == ours);
            stand.push(stands);
        }
        assert_eq!(won, 1, "version {version}: {stand:?}");
        assert!(stand.iter().all(|other| *other == stand[0]), "all are told who won: {stand:?}");
        assert_eq!(make().cell(name).await.unwrap(), Some(stand[0].clone()));
    }
    let newest = make().cell(name).await.unwrap().unwrap();
    assert_eq!(make().set_cell(name, &cell(1, "late")).await.unwrap(), newest, "the late one is told");
    assert_eq!(make().cell("host-kafka").await.unwrap(), None, "another cell");
}

async fn an_identity_is_made_once(make: &impl Fn() -> Arc<dyn Ledger>) {
    assert_eq!(identity(&*make()).await.unwrap(), None, "a ledger with epochs and no identity has none");
    let random = |host: &str| {
        let at = Timestamp::now();
        Identity::new(format!("{host}-{}", at.as_nanosecond()), host.into(), at)
    };
    let start = Arc::new(Barrier::new(2));
    let rivals = ["a", "b"].map(|host| {
        let (ledger, start) = (make(), Arc::clone(&start));
        tokio::spawn(async move {
            start.wait().await;
            init(&*ledger, &random(host)).await.unwrap()
        })
    });
    let [one, two] = rivals;
    let ((one, made_one), (two, made_two)) = (one.await.unwrap(), two.await.unwrap());
    assert_eq!(one, two, "both are told the same");
    assert!(made_one != made_two, "one of them made it");
    assert_eq!(identity(&*make()).await.unwrap(), Some(one.clone()));
    assert_eq!(init(&*make(), &random("c")).await.unwrap(), (one, false));
}

async fn epochs_come_one_by_one(ledger: &dyn Ledger) {
    for wrong in [0, 2, 7] {
        assert!(ledger.claim(&claim(13, wrong, "a")).await.is_err(), "epoch {wrong} is not the next one");
    }
    assert_eq!(ledger.latest(BrokerId(13)).await.unwrap(), None);
    for (epoch, host) in [(1, "a"), (2, "b")] {
        ledger.claim(&claim(13, epoch, host)).await.unwrap();
        append(ledger, (13, epoch, host), &[ended()]).await.unwrap();
    }
    assert_eq!(holder(ledger.claim(&claim(13, 1, "c")).await), "a".into(), "who had that epoch");
    assert!(ledger.claim(&claim(13, 4, "c")).await.is_err());
    assert_eq!(newest(ledger, 13).await.epoch, Epoch(2));
}

async fn a_stale_writer_is_refused(old: &dyn Ledger, new: &dyn Ledger) {
    old.claim(&claim(14, 1, "a")).await.unwrap();
    append(old, (14, 1, "a"), &[ended()]).await.unwrap();
    new.claim(&claim(14, 2, "b")).await.unwrap();
    let before = old.all(BrokerId(14)).await.unwrap();
    match append(old, (14, 1, "a"), &[started(0)]).await {
        Err(LedgerError::Superseded { ours: Epoch(1), theirs: Epoch(2), .. }) => {}
        other => panic!("must be Superseded, is {other:?}"),
    }
    assert_eq!(old.all(BrokerId(14)).await.unwrap(), before);
}

async fn only_the_claimant_writes_and_not_after_the_end(ours: &dyn Ledger, theirs: &dyn Ledger) {
    assert!(append(ours, (15, 1, "a"), &[started(0)]).await.is_err(), "an epoch that nobody claimed");
    ours.claim(&claim(15, 1, "a")).await.unwrap();
    assert_eq!(holder(append(theirs, (15, 1, "b"), &[ended()]).await), "a".into());
    assert_eq!(append(ours, (15, 1, "a"), &[]).await.unwrap(), [0u64; 0]);
    assert_eq!(append(ours, (15, 1, "a"), &[started(0), started(1)]).await.unwrap(), [1, 2]);
    assert_eq!(append(ours, (15, 1, "a"), &[ended()]).await.unwrap(), [3]);
    assert!(append(ours, (15, 1, "a"), &[Entry::Resumed]).await.is_err(), "the takeover has ended");
    assert_eq!(newest(theirs, 15).await.records.len(), 4);
}

async fn a_takeover_is_carried_on_by_a_new_process(make: &impl Fn() -> Arc<dyn Ledger>) {
    make().claim(&claim(16, 1, "a")).await.unwrap();
    assert_eq!(append(&*make(), (16, 1, "a"), &[started(0)]).await.unwrap(), [1]);
    assert_eq!(append(&*make(), (16, 1, "a"), &[Entry::Resumed, started(0)]).await.unwrap(), [2, 3]);
    let entries: Vec<Entry> =
        newest(&*make(), 16).await.records.into_iter().skip(1).map(|r| r.entry).collect();
    assert_eq!(entries, [started(0), Entry::Resumed, started(0)]);
}

async fn appends_of_two_processes_keep_order(make: &impl Fn() -> Arc<dyn Ledger>) {
    make().claim(&claim(17, 1, "a")).await.unwrap();
    let writers: Vec<_> = (0..RIVALS)
        .map(|_| {
            let ledger = make();
            tokio::spawn(async move {
                let mut seqs = Vec::new();
                for _ in 0..10 {
                    seqs.extend(append(&*ledger, (17, 1, "a"), &[Entry::Resumed, started(0)]).await.unwrap());
                }
                seqs
            })
        })
        .collect();
    let mut given = Vec::new();
    for writer in writers {
        given.extend(writer.await.unwrap());
    }
    given.sort_unstable();
    let all: Vec<u64> = newest(&*make(), 17).await.records.iter().map(|r| r.seq).collect();
    assert_eq!(all, (0..=80).collect::<Vec<_>>());
    assert_eq!(given, all[1..]);
}

async fn decisions_are_remembered(ours: &dyn Ledger, theirs: &dyn Ledger) {
    let broker = BrokerId(18);
    let events = [decision("a", 1, "one"), decision("b.1", 2, "two"), decision("a", 3, "three")];
    ours.remember(broker, &events[0]).await.unwrap();
    ours.remember(broker, &events[2]).await.unwrap();
    theirs.remember(broker, &events[1]).await.unwrap();
    for ledger in [ours, theirs] {
        assert_eq!(ledger.remembered(broker).await.unwrap(), events);
    }
    assert_eq!(ours.remembered(BrokerId(19)).await.unwrap(), []);
    assert_eq!(ours.latest(broker).await.unwrap(), None, "a decision is no epoch");
}
