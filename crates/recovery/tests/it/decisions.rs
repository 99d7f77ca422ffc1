//! Decisions on pictures drawn by hand: several brokers on one host, and time in which nobody looked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fakes::{BROKER, World};
use jiff::Timestamp;
use recovery::decide::{Decision, HoldReason, decide};
use recovery::model::{
    Attempt, Broker, BrokerId, Candidate, Cause, Epoch, EpochState, Evidence, Fact, Instruction,
    LedgerReading, LedgerStanding, LocalProcess, Moment, Now, Order, Orders, Outcome, PeerSaw, PeerView,
    ProbeOutcome, QuorumView, Topology,
};
use recovery::observe::{Board, Observation, observe};

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

/// Everything was well until second 100; from then on `down` come out as given, and are looked at until
/// `until`.
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

/// The other standby is gone. The agent on the broker's own host, which could not restart it, still tells that
/// nobody serves there: this host is not the one that is cut off.
#[test]
fn the_agent_on_a_suspected_host_is_a_witness_as_well() {
    let mut topology = topology();
    topology.peers = ["kafka-1".into(), "standby-2".into()].into();
    let down = [BROKER, OTHER].map(|id| (id, ProbeOutcome::Refused)).into();
    let mut board = board(&down, 200);
    let decided = |board: &Board| decide(BROKER, &seen(board, 200), &topology, &World::policy());
    let alone = Decision::Hold { reasons: vec![HoldReason::LoneObserver { peers: 1 }] };
    assert_eq!(decided(&board), alone);

    let lasting = Duration::from_secs(100);
    let outcome = ProbeOutcome::Refused;
    let refused = PeerSaw { outcome, lasting, answered: None, stopped: false, well_in: None };
    let view = PeerView {
        host: "kafka-1".into(),
        brokers: [(BROKER, refused)].into(),
        stalled: BTreeSet::new(),
        local: BTreeMap::new(),
        candidate: None,
        nfs_client: None,
    };
    board.record(Evidence { signal: "test", at: seconds(200), fact: Fact::Peer(view) });
    let decision = decided(&board);
    assert!(matches!(decision, Decision::TakeOver { .. }), "{decision:?}");
}

/// Somebody who asks later why this standby and no other finds it with the plan.
#[test]
fn a_takeover_says_why_this_standby_and_no_other() {
    let down = [BROKER, OTHER].map(|id| (id, ProbeOutcome::Refused)).into();
    let mut board = board(&down, 200);
    let standby = |rank, carries: &[i32]| Candidate {
        rank,
        rack: None,
        serves: [BROKER, OTHER].into(),
        carries: carries.iter().copied().map(BrokerId).collect(),
        limit: 1,
        unfit: None,
        not_ready: BTreeMap::new(),
    };
    for (host, candidate) in
        [("standby-2", standby(10, &[])), ("standby-3", standby(200, &[])), ("standby-4", standby(1, &[9]))]
    {
        let (brokers, local) = (BTreeMap::new(), BTreeMap::new());
        let (candidate, nfs_client) = (Some(candidate), None);
        let view =
            PeerView { host: host.into(), brokers, stalled: BTreeSet::new(), local, candidate, nfs_client };
        board.record(Evidence { signal: "test", at: seconds(200), fact: Fact::Peer(view) });
    }
    // The better one has had its turn.
    let decision = decide(BROKER, &seen(&board, 200), &topology(), &World::policy());
    let Decision::TakeOver(takeover) = decision else { panic!("{decision:?}") };
    let why = "the standbys, best first: standby-2 (rank 10), standby-1 (rank 100, this host), standby-3 (rank 200); \
               fenced, full, suspected or given up: standby-4";
    assert!(takeover.because.iter().any(|clue| clue == why), "{:#?}", takeover.because);
}

/// The list is one broker's word, and may be old. An answer is the truth of the moment.
#[test]
fn a_host_is_not_fenced_either_while_a_broker_answers_there_that_the_list_lacks() {
    let mut board = board(&[(BROKER, ProbeOutcome::Refused)].into(), 200);
    let endpoint = World::topology().brokers[&BROKER].listener.clone();
    let brokers = ALL.map(BrokerId).into_iter().filter(|id| *id != OTHER);
    let brokers = brokers.map(|id| (id, endpoint.clone())).collect();
    board.record(Evidence { signal: "test", at: seconds(201), fact: Fact::Listed { brokers } });
    let seen = seen(&board, 201);
    assert!(!seen.is_well(OTHER));
    let decision = decide(BROKER, &seen, &topology(), &World::policy());
    let Decision::Hold { reasons } = decision else { panic!("{decision:?}") };
    assert_eq!(reasons, vec![HoldReason::HostCarries { host: "kafka-1".into(), broker: OTHER }]);
}

/// It claimed the other broker, for a switchover say, and died before it meant to start it: what answers is
/// not on that host.
#[test]
fn a_host_is_fenced_though_it_once_claimed_a_broker_that_answers_elsewhere() {
    let decided = |until| {
        let mut board = board(&[(BROKER, ProbeOutcome::Unreachable)].into(), 104);
        for now in 104..=until {
            let claimed = LedgerStanding {
                epoch: Epoch(1),
                writers: ["kafka-9".into(), "kafka-1".into()].into(),
                ..LedgerStanding::untouched("kafka-9".into())
            };
            let brokers = [(BROKER, LedgerStanding::untouched("kafka-1".into())), (OTHER, claimed)].into();
            let fact = Fact::Ledger(LedgerReading { brokers, ..LedgerReading::default() });
            board.record(Evidence {
                signal: "test",
                at: Moment(seconds(now).0 + Duration::from_millis(1)),
                fact,
            });
            for (broker, outcome) in [(BROKER, ProbeOutcome::Unreachable), (OTHER, ProbeOutcome::Answered)] {
                board.record(Evidence {
                    signal: "test",
                    at: seconds(now + 1),
                    fact: Fact::Probe { broker, outcome },
                });
            }
        }
        decide(BROKER, &seen(&board, until + 1), &topology(), &World::policy())
    };
    let Decision::Hold { reasons } = decided(105) else { panic!("{:?}", decided(105)) };
    assert!(
        reasons.contains(&HoldReason::HostCarries { host: "kafka-1".into(), broker: OTHER }),
        "{reasons:?}"
    );
    let carries = |decision: &Decision| match decision {
        Decision::Hold { reasons } => reasons.iter().any(|r| matches!(r, HoldReason::HostCarries { .. })),
        _ => false,
    };
    assert!(!carries(&decided(160)), "{:?}", decided(160));
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

/// Broker 5 does not answer this host, and broker 1 dies 7 s later. What comes of that after another 5 s.
struct Unreached {
    /// What the looks at broker 5 find in their first 3 s, and later.
    looks: [ProbeOutcome; 2],
    /// The active controller, and whether it is another one from when broker 1 dies on.
    leader: (i32, bool),
    /// When the controllers hear broker 5 last.
    heard: u64,
}

/// Only this host cannot reach it.
const UNREACHED: Unreached = Unreached {
    looks: [ProbeOutcome::Unreachable, ProbeOutcome::Unreachable],
    leader: (101, false),
    heard: u64::MAX,
};

fn beside(Unreached { looks: [first, later], leader: (leader, moves), heard }: Unreached) -> Decision {
    let (other, topology) = (BrokerId(5), Topology { known: topology().known, ..World::topology() });
    let mut board = Board::default();
    for now in 90..=112 {
        let mut record = |fact| board.record(Evidence { signal: "test", at: seconds(now), fact });
        for broker in ALL.map(BrokerId) {
            let outcome = match now {
                107.. if broker == BROKER => ProbeOutcome::Unreachable,
                100..103 if broker == other => first.clone(),
                103.. if broker == other => later.clone(),
                _ => ProbeOutcome::Answered,
            };
            record(Fact::Probe { broker, outcome });
        }
        let endpoint = World::topology().brokers[&BROKER].listener.clone();
        record(Fact::Listed {
            brokers: ALL.map(|id| (BrokerId(id), endpoint.clone())).into_iter().collect(),
        });
        let since = |last: u64| Duration::from_secs(now.saturating_sub(last));
        let moved = moves && now >= 107;
        let mut silence = BTreeMap::from([(BROKER, since(107)), (other, since(heard))]);
        silence.retain(|_, _| !moved);
        record(Fact::Quorum(QuorumView { leader, leader_epoch: 1 + i32::from(moved), silence }));
        let brokers = [(BROKER, LedgerStanding::untouched("kafka-1".into()))].into();
        record(Fact::Ledger(LedgerReading { brokers, ..LedgerReading::default() }));
    }
    decide(BROKER, &seen(&board, 112), &topology, &World::policy())
}

#[test]
fn only_a_broker_that_the_controller_hears_on_is_no_failure() {
    let alone = beside(UNREACHED);
    assert!(matches!(alone, Decision::TakeOver(_)), "{alone:?}");
    let looks = |first, later| Unreached { looks: [first, later], ..UNREACHED };
    for (what, other) in [
        ("it hung first", looks(ProbeOutcome::Silent, ProbeOutcome::Unreachable)),
        ("it hangs", looks(ProbeOutcome::Silent, ProbeOutcome::Silent)),
        ("it is starting", looks(ProbeOutcome::Unreachable, ProbeOutcome::Refused)),
        ("it is the controller itself", Unreached { leader: (5, false), ..UNREACHED }),
        ("the new controller has not heard it", Unreached { leader: (101, true), ..UNREACHED }),
        ("it went with the other one", Unreached { heard: 107, ..UNREACHED }),
        ("it went soon after", Unreached { heard: 110, ..UNREACHED }),
    ] {
        let decision = beside(other);
        let Decision::Hold { reasons } = &decision else { panic!("{what}: {decision:?}") };
        let mass = reasons.iter().any(|reason| matches!(reason, HoldReason::MassFailure { down: 2, .. }));
        assert!(mass, "{what}: {decision:?}");
    }
}

/// Brokers 1, 2 and 3 are cut off in second 100, from everybody. In second 130 the controller hears 2 and 3 again. This
/// host reaches none of the three. The decision about broker 1 in second `now`.
fn after_a_cut(now: u64) -> Decision {
    let topology = Topology { known: topology().known, ..World::topology() };
    let mut board = Board::default();
    for now in 90..=now {
        let mut record = |fact| board.record(Evidence { signal: "test", at: seconds(now), fact });
        for broker in ALL.map(BrokerId) {
            let cut = broker.0 <= 3 && now >= 100;
            let outcome = if cut { ProbeOutcome::Unreachable } else { ProbeOutcome::Answered };
            record(Fact::Probe { broker, outcome });
        }
        let endpoint = World::topology().brokers[&BROKER].listener.clone();
        record(Fact::Listed {
            brokers: ALL.map(|id| (BrokerId(id), endpoint.clone())).into_iter().collect(),
        });
        let silence = |id: i32| match id {
            2 | 3 if (100..130).contains(&now) => Duration::from_secs(now - 100),
            1 => Duration::from_secs(now.saturating_sub(100)),
            _ => Duration::ZERO,
        };
        let silence = ALL.map(|id| (BrokerId(id), silence(id))).into();
        record(Fact::Quorum(QuorumView { leader: 101, leader_epoch: 1, silence }));
        let brokers = [(BROKER, LedgerStanding::untouched("kafka-1".into()))].into();
        record(Fact::Ledger(LedgerReading { brokers, ..LedgerReading::default() }));
    }
    decide(BROKER, &seen(&board, now), &topology, &World::policy())
}

#[test]
fn one_of_several_that_were_cut_off_together_may_be_late_to_come_back() {
    let held = after_a_cut(129);
    assert!(matches!(held, Decision::Hold { .. }), "{held:?}");
    // Each of the other two may be unreachable for a moment longer than the controller is to them.
    let patience = World::policy().boot_patience.as_secs();
    for now in [130, 131, 135, 130 + patience - 1] {
        let decision = after_a_cut(now);
        assert!(matches!(decision, Decision::Suspect { .. } | Decision::Hold { .. }), "{now}: {decision:?}");
    }
    let decision = after_a_cut(130 + patience);
    assert!(matches!(decision, Decision::TakeOver(_)), "{decision:?}");
}

#[test]
fn time_in_which_nobody_looked_proves_nothing() {
    // One failed probe, and then this agent stood still for two and a half seconds.
    let board = board(&[(BROKER, ProbeOutcome::Unreachable)].into(), 100);
    let decision = decide(BROKER, &seen(&board, 102), &topology(), &World::policy());
    assert!(matches!(decision, Decision::Suspect { .. }), "{decision:?}");
}

/// What was looked at around the end of a process, in milliseconds; it was first seen to have ended at
/// [`ENDED`].
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

/// What was looked at around the going of broker 1, in milliseconds: every half second at the list, every
/// quarter at its listener, but for a window in which nobody was seen at all.
#[derive(Clone, Copy)]
struct Going {
    /// It answers no more from here on.
    silent: u64,
    /// It is off the list from here on.
    unlisted: u64,
    /// The controller hears it no more from here on; never asked if `None`.
    unheard: Option<u64>,
    /// The window, from and to.
    blind: (u64, u64),
}

/// Stopped cleanly: off the list, and its listener closed right after.
const STOPPED: Going = Going { silent: 30_100, unlisted: 30_000, unheard: Some(30_100), blind: (0, 0) };

/// A dead host, by Kafka's shortest session at its defaults.
const DIED: Going = Going { silent: 30_000, unlisted: 37_000, unheard: Some(30_400), blind: (0, 0) };

fn stopped_cleanly(going: Going) -> bool {
    let mut board = Board::default();
    let endpoint = World::topology().brokers[&BROKER].listener.clone();
    for now in (20_000..=60_000).step_by(250) {
        let mut record = |fact| {
            board.record(Evidence { signal: "test", at: Moment(Duration::from_millis(now)), fact });
        };
        let blind = (going.blind.0..going.blind.1).contains(&now);
        for broker in ALL.map(BrokerId) {
            let fails = blind || (broker == BROKER && now >= going.silent);
            let outcome = if fails { ProbeOutcome::Unreachable } else { ProbeOutcome::Answered };
            record(Fact::Probe { broker, outcome });
        }
        if blind || now % 500 != 0 {
            continue;
        }
        let listed = |id: &BrokerId| *id != BROKER || now < going.unlisted;
        let listed = ALL.map(BrokerId).into_iter().filter(listed);
        record(Fact::Listed { brokers: listed.map(|id| (id, endpoint.clone())).collect() });
        if let Some(unheard) = going.unheard {
            let silence = [(BROKER, Duration::from_millis(now.saturating_sub(unheard)))].into();
            record(Fact::Quorum(QuorumView { leader: 101, leader_epoch: 1, silence }));
        }
    }
    seen(&board, 60).brokers[&BROKER].left_first
}

#[test]
fn only_a_clean_stop_that_was_seen_counts_as_one() {
    for (what, going) in [
        ("a clean stop", STOPPED),
        ("nobody to ask for its silence", Going { unheard: None, ..STOPPED }),
        ("its listener closes first, by a little", Going { silent: 29_000, ..STOPPED }),
        ("its listener stays for long", Going { silent: 40_000, unheard: Some(40_000), ..STOPPED }),
        ("a look or two that failed", Going { blind: (29_600, 31_400), ..STOPPED }),
    ] {
        assert!(stopped_cleanly(going), "{what}");
    }
    for (what, going) in [
        ("a death", DIED),
        ("nobody to ask for its silence", Going { unheard: None, ..DIED }),
        ("a death in a blind window", Going { blind: (27_000, 42_000), ..DIED }),
        ("the same, without a controller", Going { blind: (27_000, 42_000), unheard: None, ..DIED }),
        ("a window that ends right after the session", Going { blind: (29_900, 37_100), ..DIED }),
        ("a window that begins with the death", Going { blind: (30_000, 45_000), ..DIED }),
        ("a stop in a blind window", Going { blind: (27_000, 42_000), ..STOPPED }),
        ("a hole in the looks at the list alone", Going { blind: (28_600, 31_600), ..STOPPED }),
        ("cut off from the controllers, and dead later", Going { silent: 50_000, ..DIED }),
    ] {
        assert!(!stopped_cleanly(going), "{what}");
    }
}

#[test]
fn no_window_of_any_length_makes_a_clean_stop_of_a_death() {
    for from in (20_000..45_000).step_by(500) {
        for length in (500..20_000).step_by(500) {
            for unheard in [None, DIED.unheard] {
                let going = Going { blind: (from, from + length), unheard, ..DIED };
                assert!(!stopped_cleanly(going), "blind from {from} ms for {length} ms");
            }
        }
    }
}

/// Its Kafka answers here, and the takeover has waited in vain for the rest: a person looks, and says so.
#[test]
fn a_broker_that_answers_and_did_not_come_back_needs_a_person() {
    for (at, acked, person) in
        [("await_isr", false, true), ("await_isr", true, false), ("prove", false, false)]
    {
        let mut board = board(&BTreeMap::new(), 200);
        let why = "9 of 10 partitions in ISR".to_owned();
        let attempt = Attempt {
            epoch: Epoch(1),
            at: Timestamp::UNIX_EPOCH,
            by: "standby-1".into(),
            cause: Cause::Automatic,
            in_place: false,
            ended: Some("stuck".to_owned()),
            ended_at: None,
            why: None,
            time_to_isr: None,
            phases: BTreeMap::new(),
        };
        let outcome = Outcome::Stuck { at: at.to_owned(), why };
        let standing = LedgerStanding {
            epoch: Epoch(1),
            state: Some(EpochState::Ended { by: "standby-1".into(), outcome }),
            attempts: vec![attempt],
            ..LedgerStanding::untouched("standby-1".into())
        };
        let ack =
            Instruction::Ack { broker: None, reason: "seen".to_owned(), epochs: [(BROKER, Epoch(1))].into() };
        let ack = Order { at: Timestamp::UNIX_EPOCH, host: "a".into(), who: "ada".to_owned(), what: ack };
        let orders = Arc::new(Orders(acked.then_some(ack).into_iter().collect()));
        let reading = LedgerReading { brokers: [(BROKER, standing)].into(), orders, ..Default::default() };
        board.record(Evidence { signal: "test", at: seconds(201), fact: Fact::Ledger(reading) });
        let decision = decide(BROKER, &seen(&board, 201), &topology(), &World::policy());
        match (&decision, person) {
            (Decision::Escalate { .. }, true) | (Decision::Healthy, false) => {}
            _ => panic!("{at}, acked: {acked}: {decision:?}"),
        }
    }
}
