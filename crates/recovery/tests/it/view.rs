//! What a host tells its peers of what it sees.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use fakes::{BROKER, World};
use recovery::model::{
    Broker, BrokerId, CanaryOutcome, Candidate, Check, Checked, Endpoint, Evidence, Fact, LedgerReading,
    LedgerStanding, LocalProcess, Moment, Now, PeerSaw, PeerView, ProbeOutcome, Topology, Verdict,
};
use recovery::observe::{Board, Observation, observe};
use recovery::policy::Mode;
use recovery::view::{candidate, view};

const STALE: Duration = Duration::from_secs(3);
const ID2: BrokerId = BrokerId(2);

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn seen_at(seconds: u64, evidence: Vec<(u64, Fact)>) -> Observation {
    let mut board = Board::default();
    evidence.into_iter().for_each(|(s, fact)| board.record(Evidence { signal: "test", at: at(s), fact }));
    let now = Now { mono: at(seconds), wall: Timestamp::UNIX_EPOCH };
    observe(&board, &World::topology().known, STALE, now)
}

fn probe(broker: BrokerId, outcome: ProbeOutcome) -> Fact {
    Fact::Probe { broker, outcome }
}

fn canary(name: &str, broker: BrokerId, outcome: CanaryOutcome) -> Fact {
    Fact::Storage { canary: name.to_owned(), brokers: BTreeSet::from([broker]), outcome }
}

fn ledger(owner: &str) -> Fact {
    let standing = LedgerStanding::untouched(owner.into());
    Fact::Ledger(LedgerReading { brokers: [(BROKER, standing)].into(), ..LedgerReading::default() })
}

fn listed() -> Fact {
    let endpoint = Endpoint { host: "10.0.0.2".to_owned(), port: 9092 };
    Fact::Listed { brokers: [(ID2, endpoint)].into() }
}

fn view_of(seen: &Observation) -> PeerView {
    view(&World::topology(), Mode::Auto, seen)
}

#[test]
fn what_is_fresh_is_told_with_how_long_it_has_lasted() {
    let unreachable = || probe(BROKER, ProbeOutcome::Unreachable);
    let seen = seen_at(
        10,
        vec![
            (5, probe(ID2, ProbeOutcome::Answered)),
            (8, unreachable()),
            (10, unreachable()),
            (9, Fact::Local { broker: BROKER, process: LocalProcess::Exited }),
        ],
    );
    let view = view_of(&seen);
    assert_eq!(view.host.0, "standby-1");
    let saw = PeerSaw {
        outcome: ProbeOutcome::Unreachable,
        lasting: Duration::from_secs(2),
        answered: None,
        stopped: false,
        well_in: None,
    };
    assert_eq!(view.brokers, [(BROKER, saw)].into(), "the probe of broker 2 is stale");
    assert_eq!(view.local, [(BROKER, LocalProcess::Exited)].into());
    assert!(view.stalled.is_empty());
    let later =
        view_of(&seen_at(13, vec![(9, Fact::Local { broker: BROKER, process: LocalProcess::Exited })]));
    assert!(later.local.is_empty() && later.brokers.is_empty());
}

#[test]
fn a_storage_stalls_by_our_own_canary_only() {
    let mut peer = view_of(&seen_at(1, vec![]));
    (peer.host, peer.stalled) = ("standby-2".into(), BTreeSet::from([ID2]));
    let seen = seen_at(
        10,
        vec![
            (9, canary("/mnt/a", BROKER, CanaryOutcome::Stalled)),
            (9, canary("/mnt/b", ID2, CanaryOutcome::Wrote)),
            (9, Fact::Peer(peer)),
        ],
    );
    assert!(seen.brokers[&ID2].storage.as_ref().is_some_and(|storage| !storage.stalled_at.is_empty()));
    // What a peer said is not repeated: it would come back as if a third had seen it.
    assert_eq!(view_of(&seen).stalled, BTreeSet::from([BROKER]));
}

#[test]
fn a_host_that_sees_all_it_needs_is_a_candidate() {
    let seen = seen_at(10, vec![(9, ledger("standby-1")), (9, listed())]);
    let standing = view_of(&seen).candidate.unwrap();
    let expected = Candidate {
        rank: 100,
        rack: None,
        serves: BTreeSet::from([BROKER]),
        carries: BTreeSet::from([BROKER]),
        limit: 1,
        unfit: None,
        not_ready: BTreeMap::new(),
    };
    assert_eq!(standing, expected);
    let elsewhere = seen_at(10, vec![(9, ledger("kafka-1")), (9, listed())]);
    assert!(view_of(&elsewhere).candidate.unwrap().carries.is_empty());
}

#[test]
fn a_host_that_cannot_act_says_why() {
    let unfit = |mode, seen: Observation| candidate(&World::topology(), mode, &seen).unwrap().unfit;
    let blind = unfit(Mode::Auto, seen_at(10, vec![(9, listed())])).unwrap();
    assert!(blind.contains("ledger"), "{blind}");
    let stale = unfit(Mode::Auto, seen_at(10, vec![(9, ledger("kafka-1")), (6, listed())])).unwrap();
    assert!(stale.contains("broker list"), "{stale}");
    let all = || seen_at(10, vec![(9, ledger("kafka-1")), (9, listed())]);
    assert!(unfit(Mode::Observe, all()).unwrap().contains("observe"));
    assert_eq!(unfit(Mode::Approve, all()), None);
}

#[test]
fn a_failed_check_is_told_for_the_brokers_it_concerns_while_it_counts() {
    let first = World::topology().brokers[&BROKER].clone();
    let mut topology = World::topology();
    topology.brokers.insert(ID2, Broker { id: ID2, home: "kafka-2".into(), ..first });
    let found = |check, verdict| Fact::Checked {
        found: Checked { check, verdict, says: "wrong password".to_owned(), remedy: String::new() },
        counts_for: Duration::from_secs(900),
    };
    let at_kafka_1 = found(Check::Fence("kafka-1".into()), Verdict::Fail);
    let warned = found(Check::Fence("kafka-2".into()), Verdict::Warn);
    let told = |now, facts: Vec<(u64, Fact)>| {
        candidate(&topology, Mode::Auto, &seen_at(now, facts)).unwrap().not_ready
    };
    let expected: BTreeMap<_, _> = [(BROKER, "fence of kafka-1".to_owned())].into();
    // Before the ledger is read, a broker is at home.
    assert_eq!(told(10, vec![(9, at_kafka_1.clone()), (9, warned)]), expected);
    assert_eq!(told(900, vec![(9, at_kafka_1.clone()), (899, ledger("kafka-1"))]), expected);
    // Another host has it by now, and it is that one who is fenced.
    assert!(told(900, vec![(9, at_kafka_1.clone()), (899, ledger("standby-2"))]).is_empty());
    // Old, or mended.
    assert!(told(910, vec![(9, at_kafka_1.clone())]).is_empty());
    let mended = found(Check::Fence("kafka-1".into()), Verdict::Ok);
    assert!(told(10, vec![(8, at_kafka_1), (9, mended)]).is_empty());
    assert_eq!(told(10, vec![(9, found(Check::Ledger, Verdict::Fail))]).len(), 2);
    // A takeover goes without it.
    assert!(told(10, vec![(9, found(Check::ClassData, Verdict::Fail))]).is_empty());
}

#[test]
fn a_host_that_guards_nothing_is_no_candidate() {
    let topology = Topology { brokers: BTreeMap::new(), ..World::topology() };
    assert_eq!(view(&topology, Mode::Auto, &seen_at(1, vec![])).candidate, None);
}
