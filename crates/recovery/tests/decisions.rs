//! Decisions on pictures drawn by hand: several brokers on one host, and time in which nobody looked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use recovery::decide::{Decision, HoldReason, decide};
use recovery::model::{
    Broker, BrokerId, Evidence, Fact, LedgerReading, LedgerStanding, LocalProcess, Moment, Now, ProbeOutcome,
    QuorumView, Topology,
};
use recovery::observe::{Board, Observation, observe};
use recovery::testing::{BROKER, World};

const ALL: [i32; 5] = [1, 2, 3, 4, 5];
const OTHER: BrokerId = BrokerId(2);

/// Brokers 1 and 2 are guarded, and kafka-1 owns both.
fn topology() -> Topology {
    let mut topology = World::topology();
    let second = Broker { id: OTHER, ..topology.brokers[&BROKER].clone() };
    topology.brokers.insert(OTHER, second);
    topology.known = ALL.map(BrokerId).into_iter().collect();
    topology
}

fn seconds(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

/// Everything was well until second 100; from then on `down` come out as given, and are looked at until `until`.
fn board(down: &BTreeMap<BrokerId, ProbeOutcome>, until: u64) -> Board {
    let mut board = Board::default();
    for now in 90..=until {
        let at = seconds(now);
        let mut record = |fact| board.record(Evidence { signal: "test", at, fact });
        for broker in ALL.map(BrokerId) {
            let outcome = down.get(&broker).filter(|_| now >= 100).cloned().unwrap_or(ProbeOutcome::Answered);
            record(Fact::Probe { broker, outcome });
        }
        let endpoint = World::topology().brokers[&BROKER].listener.clone();
        record(Fact::Listed {
            brokers: ALL.map(|id| (BrokerId(id), endpoint.clone())).into_iter().collect(),
        });
        let silence = |id: BrokerId| match down.contains_key(&id) && now >= 100 {
            true => Duration::from_secs(now - 100),
            false => Duration::ZERO,
        };
        let silence = ALL.map(BrokerId).into_iter().map(|id| (id, silence(id))).collect();
        record(Fact::Quorum(QuorumView { leader: 101, leader_epoch: 1, silence }));
        let standing = LedgerStanding::untouched("kafka-1".into());
        let brokers = [(BROKER, standing.clone()), (OTHER, standing)].into();
        record(Fact::Ledger(LedgerReading { brokers, ..LedgerReading::default() }));
    }
    board
}

fn seen(board: &Board, at: u64) -> Observation {
    let now = Now { mono: seconds(at), wall: Timestamp::UNIX_EPOCH };
    let known: BTreeSet<BrokerId> = topology().known;
    observe(board, &known, World::policy().stale_after, now)
}

#[test]
fn a_host_that_carries_a_healthy_broker_is_not_fenced_for_the_other() {
    let board = board(&[(BROKER, ProbeOutcome::Refused)].into(), 200);
    let decision = decide(BROKER, &seen(&board, 200), &topology(), &World::policy());
    let Decision::Hold { reasons } = decision else { panic!("{decision:?}") };
    assert_eq!(reasons, vec![HoldReason::HostCarries { host: "kafka-1".into(), broker: OTHER }]);
}

#[test]
fn two_brokers_of_one_dead_host_are_one_failure() {
    let down = [(BROKER, ProbeOutcome::Unreachable), (OTHER, ProbeOutcome::Unreachable)].into();
    let board = board(&down, 104);
    for broker in [BROKER, OTHER] {
        let decision = decide(broker, &seen(&board, 104), &topology(), &World::policy());
        assert!(matches!(decision, Decision::TakeOver(_)), "{decision:?}");
    }
}

#[test]
fn time_in_which_nobody_looked_proves_nothing() {
    // One failed probe, and then this agent stood still for two and a half seconds.
    let board = board(&[(BROKER, ProbeOutcome::Unreachable)].into(), 100);
    let decision = decide(BROKER, &seen(&board, 102), &topology(), &World::policy());
    assert!(matches!(decision, Decision::Suspect { .. }), "{decision:?}");
}

/// What was looked at around the end of a process, in milliseconds; it was first seen to have ended at [`ENDED`].
#[derive(Clone, Copy)]
struct Looks {
    /// When it was last seen to run.
    ran: Option<u64>,
    process: LocalProcess,
    /// When the broker list was read last, and whether it was there.
    listed: (u64, bool),
    /// When the controller was asked last, and when it had heard of the broker last by then.
    quorum: (u64, u64),
}

const ENDED: u64 = 10_000;

/// A process that is killed.
const KILLED: Looks = Looks {
    ran: Some(ENDED - 250),
    process: LocalProcess::Exited,
    listed: (ENDED + 100, true),
    quorum: (ENDED + 600, ENDED - 100),
};

fn crashed(looks: Looks) -> bool {
    let mut board = Board::default();
    let mut record = |at: u64, fact| {
        board.record(Evidence { signal: "test", at: Moment(Duration::from_millis(at)), fact });
    };
    let Looks { ran, process, listed: (read, there), quorum: (asked, heard) } = looks;
    let local = |process| Fact::Local { broker: BROKER, process };
    ran.into_iter().for_each(|at| record(at, local(LocalProcess::Running)));
    record(ENDED, local(process));
    let endpoint = World::topology().brokers[&BROKER].listener.clone();
    record(read, Fact::Listed { brokers: there.then_some((BROKER, endpoint)).into_iter().collect() });
    let silence = [(BROKER, Duration::from_millis(asked - heard))].into();
    record(asked, Fact::Quorum(QuorumView { leader: 101, leader_epoch: 1, silence }));
    seen(&board, 11).brokers[&BROKER].crashed
}

#[test]
fn only_a_process_that_was_seen_to_end_and_is_heard_no_more_has_crashed() {
    assert!(crashed(KILLED));
    // Its last fetch is answered when it is dead.
    assert!(crashed(Looks { quorum: (ENDED + 600, ENDED + 500), ..KILLED }));
    for (what, looks) in [
        ("another process is heard", Looks { quorum: (ENDED + 600, ENDED + 501), ..KILLED }),
        ("the controller was not asked since", Looks { quorum: (ENDED - 1, ENDED - 100), ..KILLED }),
        ("it left the broker list first", Looks { listed: (ENDED + 100, false), ..KILLED }),
        ("the broker list was not read since", Looks { listed: (ENDED - 1, true), ..KILLED }),
        ("it ended before this agent watched", Looks { ran: None, ..KILLED }),
        ("nobody looked for long before its end", Looks { ran: Some(ENDED - 1_001), ..KILLED }),
        ("it was never started here", Looks { process: LocalProcess::Absent, ..KILLED }),
        ("it runs", Looks { process: LocalProcess::Running, ..KILLED }),
    ] {
        assert!(!crashed(looks), "{what}");
    }
}
