//! What a plan is expected to take, and what that rests on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fakes::{BROKER, World};
use jiff::{SignedDuration, Timestamp};
use recovery::decide::Takeover;
use recovery::model::{
    Attempt, Basis, BrokerId, Cause, Epoch, Evidence, Fact, HostName, LedgerReading, LedgerStanding, LogTail,
    Moment, Now, Phase, Prediction, Topology, VolumeUse,
};
use recovery::observe::{Board, observe};
use recovery::plan::plan;

const OTHER: BrokerId = BrokerId(2);

fn wall() -> Timestamp {
    "2026-11-20T03:00:00Z".parse().expect("a time")
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// An attempt of `hours` ago that detected in 2 s, fenced in `fence` s and rejoined in `rejoin` s.
fn attempt(hours: i64, cause: Cause, in_place: bool, (fence, rejoin): (u64, u64)) -> Attempt {
    let phases = [(Phase::Detect, secs(2)), (Phase::Fence, secs(fence)), (Phase::Rejoin, secs(rejoin))];
    Attempt {
        epoch: Epoch(1),
        at: wall() - SignedDuration::from_hours(hours),
        by: "standby-1".into(),
        cause,
        in_place,
        ended: Some("recovered".to_owned()),
        ended_at: None,
        why: None,
        time_to_isr: Some(secs(2 + fence + rejoin)),
        phases: phases.into(),
    }
}

/// What is predicted two seconds and a half after the fault, with these takeovers in the ledger.
fn predicted(from: &str, cause: Cause, before: &[(BrokerId, Vec<Attempt>)]) -> Option<Prediction> {
    predicted_on(Board::default(), from, cause, before)
}

fn predicted_on(
    board: Board,
    from: &str,
    cause: Cause,
    before: &[(BrokerId, Vec<Attempt>)],
) -> Option<Prediction> {
    predicted_by(&World::topology(), board, from, cause, before)
}

fn predicted_by(
    topology: &Topology,
    mut board: Board,
    from: &str,
    cause: Cause,
    before: &[(BrokerId, Vec<Attempt>)],
) -> Option<Prediction> {
    let standing = |attempts: &Vec<Attempt>| LedgerStanding {
        attempts: attempts.clone(),
        ..LedgerStanding::untouched("kafka-1".into())
    };
    let brokers = before.iter().map(|(broker, attempts)| (*broker, standing(attempts))).collect();
    let fact = Fact::Ledger(LedgerReading { brokers, ..LedgerReading::default() });
    let mono = Moment(secs(100));
    board.record(Evidence { signal: "ledger", at: mono, fact });
    let seen = observe(&board, &topology.known, secs(3), Now { mono, wall: wall() });
    let writers: BTreeSet<HostName> = [from.into()].into();
    let takeover = Takeover {
        broker: BROKER,
        from: from.into(),
        to: "standby-1".into(),
        cause,
        epoch: Epoch(0),
        writers,
        machines: BTreeMap::new(),
        fault_at: wall() - SignedDuration::from_millis(2500),
        because: Vec::new(),
        succeeds: None,
        unregistered: false,
    };
    plan(&takeover, Epoch(1), topology, &World::policy(), &seen).expect("the broker is configured").predicted
}

fn parts(prediction: &Prediction) -> BTreeMap<Phase, (Duration, Basis)> {
    prediction.parts.iter().map(|part| (part.phase, (part.takes, part.basis))).collect()
}

#[test]
fn without_history_it_is_assumed_and_says_so() {
    let predicted = predicted("kafka-1", Cause::Automatic, &[]).expect("it has a fault");
    let parts = parts(&predicted);
    assert_eq!(parts[&Phase::Detect], (Duration::from_millis(2500), Basis::SoFar));
    let rest = parts.iter().filter(|(phase, _)| **phase != Phase::Detect);
    for (phase, (takes, basis)) in rest {
        assert_eq!(*basis, Basis::Assumed, "{phase}");
        assert!(*takes > Duration::ZERO, "{phase}");
    }
    assert!(!parts.contains_key(&Phase::Settle), "every partition is back before it");
    let whole: Duration = parts.values().map(|(takes, _)| *takes).sum();
    assert_eq!(predicted.time_to_isr(), whole);
    assert_eq!(predicted.in_place.basis, Basis::Assumed);
    let said = predicted.to_string();
    assert!(said.contains("detect 2.5 s (so far)") && said.contains("assumed"), "{said}");
}

#[test]
fn the_newest_takeovers_of_this_broker_count() {
    let automatic = |hours, figures| attempt(hours, Cause::Automatic, false, figures);
    let own = vec![
        // The oldest of six, a switchover and a restart in place do not.
        automatic(6, (90, 90)),
        automatic(5, (3, 9)),
        automatic(4, (1, 5)),
        automatic(3, (2, 6)),
        automatic(2, (2, 6)),
        automatic(1, (7, 7)),
        attempt(1, Cause::Planned, false, (80, 80)),
        attempt(1, Cause::Automatic, true, (0, 4)),
    ];
    let others = vec![automatic(0, (70, 70))];
    let predicted =
        predicted("kafka-1", Cause::Manual, &[(BROKER, own), (OTHER, others)]).expect("it has a fault");
    let parts = parts(&predicted);
    assert_eq!(parts[&Phase::Fence], (secs(2), Basis::Median { of: 5 }));
    assert_eq!(parts[&Phase::Rejoin], (secs(6), Basis::Median { of: 5 }));
    // What the ledger does not have of them.
    assert_eq!(parts[&Phase::Verify].1, Basis::Assumed);
    // From now on it would take what it took after its fault was seen.
    assert_eq!(predicted.in_place.takes, Duration::from_millis(2500) + secs(4));
    assert_eq!(predicted.in_place.basis, Basis::Median { of: 1 });
}

#[test]
fn others_stand_in_for_a_broker_without_history() {
    let others = vec![attempt(1, Cause::Automatic, false, (4, 8))];
    let before = [(BROKER, Vec::new()), (OTHER, others)];
    let predicted = predicted("kafka-1", Cause::Automatic, &before).expect("it has a fault");
    assert_eq!(parts(&predicted)[&Phase::Fence], (secs(4), Basis::Median { of: 1 }));
    let said = predicted.to_string();
    assert!(said.contains("fence 4.0 s (as the last time)"), "{said}");
}

#[test]
fn logs_that_must_be_read_count_as_far_as_nothing_was_measured() {
    let board = |bytes| {
        let mut board = Board::default();
        let tail = LogTail { replicas: 10, bytes, at_most: 10 * LogTail::SEGMENT };
        board.record(Evidence {
            signal: "kafka_logs",
            at: Moment(secs(1)),
            fact: Fact::Logs { broker: BROKER, tail },
        });
        board
    };
    let rejoin = |prediction: Option<Prediction>| parts(&prediction.expect("it has a fault"))[&Phase::Rejoin];
    let (without, _) = rejoin(predicted("kafka-1", Cause::Automatic, &[]));
    let (with, basis) = rejoin(predicted_on(board(10_000_000_000), "kafka-1", Cause::Automatic, &[]));
    assert_eq!((with, basis), (without + Duration::from_millis(8500), Basis::Assumed));

    let before = [(BROKER, vec![attempt(1, Cause::Automatic, false, (1, 6))])];
    let little = predicted_on(board(1_000_000_000), "kafka-1", Cause::Automatic, &before);
    assert_eq!(rejoin(little).0, secs(6));
    let much = predicted_on(board(100_000_000_000), "kafka-1", Cause::Automatic, &before);
    assert!(
        much.as_ref().is_some_and(|said| said.to_string().contains("1 min 25 s to read 100000 MB")),
        "{much:?}"
    );
    assert_eq!(rejoin(much).0, secs(85));
}

#[test]
fn a_switchover_has_no_fault_to_count_from() {
    assert_eq!(predicted("kafka-1", Cause::Planned, &[]), None);
}

#[test]
fn a_storage_that_has_moved_is_waited_for_from_now_on() {
    let verify = |grace: Option<Duration>| {
        let mut board = Board::default();
        let usage = VolumeUse { grace, ..VolumeUse::default() };
        let fact = Fact::Volumes { broker: BROKER, usage };
        board.record(Evidence { signal: "ontap_clients", at: Moment(secs(100)), fact });
        let predicted = predicted_on(board, "kafka-1", Cause::Automatic, &[]);
        parts(&predicted.expect("it has a fault"))[&Phase::Verify].0
    };
    // What is assumed of claim, fence, prove and prepare: 10 ms, 3 s, 100 ms, 1 s.
    assert_eq!(verify(Some(secs(40))), secs(40) - Duration::from_millis(4110));
    assert_eq!(verify(Some(secs(1))), verify(None), "it is over by then");
}

#[test]
fn a_dead_clients_lease_counts_from_the_fault_where_no_fence_breaks_its_locks() {
    let verify = |topology: &Topology, from: &str, before: &[(BrokerId, Vec<Attempt>)]| {
        let predicted = predicted_by(topology, Board::default(), from, Cause::Automatic, before);
        parts(&predicted.expect("it has a fault"))[&Phase::Verify].0
    };
    let mut topology = World::topology();
    let without = verify(&topology, "kafka-1", &[]);
    for broker in topology.brokers.values_mut() {
        (broker.locks.lease, broker.locks.told) = (Some(secs(60)), true);
    }
    // 2.5 s so far, and what is assumed of claim, fence, prove and prepare: 10 ms, 3 s, 100 ms, 1 s.
    assert_eq!(verify(&topology, "kafka-1", &[]), without + secs(60) - Duration::from_millis(6610));
    let slow_fence = [(BROKER, vec![attempt(1, Cause::Automatic, false, (70, 7))])];
    assert_eq!(verify(&topology, "kafka-1", &slow_fence), without, "the lease is over by then");
    assert_eq!(verify(&topology, "standby-1", &[]), without, "a process that ended here has no lease");
    topology.unlocked.insert("kafka-1".into());
    assert_eq!(verify(&topology, "kafka-1", &[]), without, "its fence breaks locks");
}
