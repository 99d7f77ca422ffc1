//! What the platform says of a host's machine: one that is off is the second witness, where the cluster says nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use fakes::{BROKER, World};
use recovery::decide::{Decision, HoldReason, decide, decide_manual, sentences};
use recovery::model::{
    BrokerId, Cause, Epoch, EpochState, Evidence, Fact, HostName, LedgerReading, LedgerStanding, Machine,
    MachineState, Moment, Now, Place, ProbeOutcome, Topology,
};
use recovery::observe::{Board, MachineSeen, Observation, ProbeSeen, Seen, observe};
use recovery::plan::{Plan, PlanError, plan};
use recovery::ports::Clock;

const COUNTS_FOR: Duration = Duration::from_secs(120);

fn off() -> MachineState {
    MachineState::Off { state: "stopped".to_owned() }
}

/// A broker that cannot be reached from second 40 to 160, and what was said of its owner's machine in second 40.
fn seen_at(second: u64, said: Option<MachineState>) -> Observation {
    let mut board = Board::default();
    let mut record = |at: u64, fact| {
        board.record(Evidence { signal: "test", at: Moment(Duration::from_secs(at)), fact });
    };
    for at in 40..=second {
        record(at, Fact::Probe { broker: BROKER, outcome: ProbeOutcome::Unreachable });
    }
    let standing = LedgerStanding::untouched("kafka-1".into());
    let reading = LedgerReading { brokers: [(BROKER, standing)].into(), ..LedgerReading::default() };
    record(second, Fact::Ledger(reading));
    if let Some(state) = said {
        record(40, Fact::Machine { host: "kafka-1".into(), state, counts_for: COUNTS_FOR });
    }
    let now = Now { mono: Moment(Duration::from_secs(second)), ..World::new().now() };
    observe(&board, &BTreeSet::from([BROKER]), Duration::from_secs(3), now)
}

#[test]
fn what_the_platform_says_is_told_for_as_long_as_it_counts() {
    let told = |seen: &Observation| sentences(BROKER, seen).into_iter().find(|said| said.contains("machine"));
    let expected = "the platform: the machine of kafka-1 is stopped (a witness)";
    assert_eq!(told(&seen_at(160, Some(off()))).as_deref(), Some(expected));
    assert_eq!(told(&seen_at(161, Some(off()))), None);
    assert_eq!(told(&seen_at(160, None)), None);
    let ails = MachineState::Ails { why: "it is to be retired".to_owned() };
    let expected = "the platform: the machine of kafka-1 runs; it is to be retired (no witness)";
    assert_eq!(told(&seen_at(60, Some(ails))).as_deref(), Some(expected));
}

#[test]
fn a_remark_is_told_for_as_long_as_it_counts_and_decides_nothing() {
    let says = "Kubernetes: there is no pod kafka-1-0";
    let told = |second: u64| {
        let mut board = Board::default();
        let fact = Fact::Remark { broker: BROKER, says: says.to_owned(), counts_for: COUNTS_FOR };
        board.record(Evidence { signal: "test", at: Moment(Duration::from_secs(40)), fact });
        let now = Now { mono: Moment(Duration::from_secs(second)), ..World::new().now() };
        let seen = observe(&board, &BTreeSet::from([BROKER]), Duration::from_secs(3), now);
        sentences(BROKER, &seen).contains(&format!("{says} (no witness)"))
    };
    assert!(told(160) && !told(161));
    let mut seen = seen_at(100, None);
    let before = decide(BROKER, &seen, &World::topology(), &World::policy());
    seen.brokers.get_mut(&BROKER).expect("observed").remarks.push(says.to_owned());
    let after = decide(BROKER, &seen, &World::topology(), &World::policy());
    assert_eq!(format!("{before:?}"), format!("{after:?}"));
}

#[test]
fn of_two_platforms_one_that_says_that_the_machine_runs_is_believed() {
    let told = |board: &[(u64, &'static str, MachineState)]| {
        let mut seen = Board::default();
        for (at, signal, state) in board {
            let fact = Fact::Machine { host: "kafka-1".into(), state: state.clone(), counts_for: COUNTS_FOR };
            seen.record(Evidence { signal, at: Moment(Duration::from_secs(*at)), fact });
        }
        let now = Now { mono: Moment(Duration::from_secs(100)), ..World::new().now() };
        let seen = observe(&seen, &BTreeSet::from([BROKER]), Duration::from_secs(3), now);
        let told = seen.machines.get(&"kafka-1".into()).expect("it counts");
        (told.state.clone(), told.age.as_secs())
    };
    let silent = || MachineState::Changes { to: "silent".to_owned() };
    let runs = || MachineState::Runs;
    assert_eq!(told(&[(60, "a", off()), (90, "b", silent())]), (off(), 40));
    assert_eq!(told(&[(60, "a", silent()), (90, "b", off())]), (off(), 10));
    assert_eq!(told(&[(60, "a", off()), (50, "b", runs())]), (runs(), 50));
    assert_eq!(told(&[(60, "a", runs()), (90, "b", off())]), (runs(), 40));
    assert_eq!(told(&[(60, "a", off()), (90, "b", off())]), (off(), 10));
    assert_eq!(told(&[(60, "a", off()), (90, "a", silent())]), (silent(), 10), "one platform's newest word");
}

/// As `decided_about`, where nobody but the owner may write.
fn decided(board: &[(u64, &str, MachineState)], heard: Option<u64>) -> Decision {
    decided_about(&["kafka-1"], board, heard)
}

/// What is decided in second 100 of a broker that fell silent in second 40, and is on the broker list still.
fn decided_about(writers: &[&str], board: &[(u64, &str, MachineState)], heard: Option<u64>) -> Decision {
    decide(BROKER, &seen_of(writers, board, heard), &World::topology(), &World::policy())
}

fn seen_of(writers: &[&str], board: &[(u64, &str, MachineState)], heard: Option<u64>) -> Observation {
    let mut seen = seen_at(100, None);
    let age = |at: u64| Duration::from_secs(100 - at);
    let told = board.iter().map(|(at, host, state)| {
        (HostName::from(*host), MachineSeen { state: state.clone(), age: age(*at) })
    });
    seen.machines = told.collect();
    let mut others = Seen::default();
    (seen.metadata_fresh, seen.quorum_fresh) = (true, true);
    others.probe = Some(ProbeSeen {
        outcome: ProbeOutcome::Answered,
        lasting: Duration::from_secs(60),
        not_answering: None,
        last_answer: None,
        failing_since: None,
    });
    seen.brokers.extend([BrokerId(2), BrokerId(3)].map(|id| (id, others.clone())));
    let broker = seen.brokers.get_mut(&BROKER).expect("observed");
    (broker.listed, broker.controller_silence) = (Some(true), heard.map(age));
    let standing =
        seen.ledger.as_mut().and_then(|ledger| ledger.brokers.get_mut(&BROKER)).expect("in the ledger");
    standing.writers = writers.iter().map(|host| HostName::from(*host)).collect();
    seen
}

fn is_one_witness(decision: &Decision) -> bool {
    matches!(decision, Decision::Hold { reasons } if reasons.contains(&HoldReason::OneWitness))
}

#[test]
fn a_machine_that_is_off_is_the_second_witness() {
    assert!(is_one_witness(&decided(&[], None)));
    let decision = decided(&[(60, "kafka-1", off())], None);
    let Decision::TakeOver(takeover) = decision else { panic!("{decision:?}") };
    let said = "the platform: the machine of kafka-1 is stopped (a witness)";
    assert!(takeover.because.iter().any(|because| because == said), "{:?}", takeover.because);
}

#[test]
fn nothing_less_than_off_and_since_it_fell_silent_is_a_witness() {
    let ails = MachineState::Ails { why: "EC2's check of its own system fails".to_owned() };
    let changes = MachineState::Changes { to: "stopping".to_owned() };
    for state in [MachineState::Runs, ails, changes] {
        assert!(is_one_witness(&decided(&[(60, "kafka-1", state.clone())], None)), "{state:?}");
    }
    // It was off before it answered last: it may have been started since.
    assert!(is_one_witness(&decided(&[(39, "kafka-1", off())], None)));
    // Another host's machine says nothing of this one.
    assert!(is_one_witness(&decided(&[(60, "kafka-2", off())], None)));
}

#[test]
fn every_host_that_may_write_has_to_be_off() {
    let writers = ["kafka-1", "standby-2"];
    let both = [(60, "kafka-1", off()), (60, "standby-2", off())];
    assert!(!is_one_witness(&decided_about(&writers, &both, None)));
    for one in both {
        assert!(is_one_witness(&decided_about(&writers, std::slice::from_ref(&one), None)), "{one:?}");
    }
}

#[test]
fn a_machine_that_is_off_says_nothing_against_the_controllers_ear() {
    let decision = decided(&[(60, "kafka-1", off())], Some(100));
    let Decision::Hold { reasons } = decision else { panic!("{decision:?}") };
    assert!(matches!(reasons[..], [HoldReason::OutOfReach { .. }]), "{reasons:?}");
}

/// A pod that has moved: its broker is dead by every witness, and its fence is that of another machine.
fn astray() -> Place {
    Place::Astray {
        says: "pod kafka-1-0 is on node-b, and the fences of kafka-1 act on node-a".to_owned(),
        on: None,
    }
}

fn there() -> Place {
    Place::AtItsFence {
        says: "pod kafka-1-0 is on node-a, as the fences of kafka-1 are".to_owned(),
        on: None,
    }
}

/// A broker that is to be taken over, as far as everything but the place of `writers` says.
fn dead(writers: &[&str], places: &[(&str, Place)]) -> (Observation, Topology) {
    let off: Vec<_> = writers.iter().map(|writer| (60, *writer, off())).collect();
    let mut seen = seen_of(writers, &off, None);
    seen.places = places.iter().map(|(host, place)| (HostName::from(*host), place.clone())).collect();
    let mut topology = World::topology();
    topology.wandering = writers.iter().map(|host| HostName::from(*host)).collect();
    for host in writers {
        topology.fences.insert((*host).into(), vec!["switch".to_owned()]);
    }
    (seen, topology)
}

/// The host whose fences are not believed, and why.
fn not_believed(decision: &Decision) -> Option<(String, String)> {
    let Decision::Hold { reasons } = decision else { return None };
    let [HoldReason::FenceAstray { host, why }] = &reasons[..] else { panic!("{reasons:?}") };
    Some((host.0.clone(), why.clone()))
}

#[test]
fn nobody_is_fenced_who_is_not_seen_where_his_fence_acts() {
    let decided = |writers: &[&str], places: &[(&str, Place)]| {
        let (seen, topology) = dead(writers, places);
        decide(BROKER, &seen, &topology, &World::policy())
    };
    let decision = decided(&["kafka-1"], &[("kafka-1", there())]);
    let Decision::TakeOver(takeover) = decision else { panic!("{decision:?}") };
    assert!(takeover.because.iter().any(|because| because == there().says()), "{:?}", takeover.because);

    let (host, why) = not_believed(&decided(&["kafka-1"], &[("kafka-1", astray())])).expect("held");
    assert!(host == "kafka-1" && why == astray().says(), "{host}: {why}");
    let unseen = Place::Unseen { says: "the API server did not answer".to_owned() };
    let (_, why) = not_believed(&decided(&["kafka-1"], &[("kafka-1", unseen.clone())])).expect("held");
    assert_eq!(why, unseen.says());
    let (_, why) = not_believed(&decided(&["kafka-1"], &[])).expect("held");
    assert!(why.contains("nobody has looked lately"), "{why}");
    // A claimant that fell silent is fenced as well.
    let both = [("kafka-1", there()), ("standby-2", astray())];
    let (host, _) = not_believed(&decided(&["kafka-1", "standby-2"], &both)).expect("held");
    assert_eq!(host, "standby-2");
    // A host that is bound to its machine needs nobody to look.
    let (seen, _) = dead(&["kafka-1"], &[]);
    assert!(matches!(decide(BROKER, &seen, &World::topology(), &World::policy()), Decision::TakeOver(_)));
}

#[test]
fn a_claim_that_has_touched_nothing_is_held_too_and_a_person_is_told() {
    let (mut seen, topology) = dead(&["kafka-1"], &[("kafka-1", astray())]);
    let standing = seen.standing(BROKER).expect("in the ledger").clone();
    let (_, against) = decide_manual(BROKER, &standing, &seen, &topology, &World::policy());
    assert!(against.iter().any(|why| why.contains("wrong machine")), "{against:?}");
    let standing = seen.ledger.as_mut().and_then(|ledger| ledger.brokers.get_mut(&BROKER)).expect("there");
    standing.epoch = Epoch(1);
    standing.state =
        Some(EpochState::Open { by: topology.here.clone(), touched: false, cause: Cause::Automatic });
    let decision = decide(BROKER, &seen, &topology, &World::policy());
    assert!(not_believed(&decision).is_some(), "{decision:?}");
}

#[test]
fn where_a_host_is_counts_for_as_long_as_it_says() {
    let seen = |second: u64| {
        let mut board = Board::default();
        let fact = Fact::Place { host: "kafka-1".into(), place: there(), counts_for: COUNTS_FOR };
        board.record(Evidence { signal: "test", at: Moment(Duration::from_secs(40)), fact });
        let now = Now { mono: Moment(Duration::from_secs(second)), ..World::new().now() };
        observe(&board, &BTreeSet::from([BROKER]), Duration::from_secs(3), now).places
    };
    assert_eq!(seen(160).get(&"kafka-1".into()), Some(&there()));
    assert_eq!(seen(161).get(&"kafka-1".into()), None);
}

/// A pod that is fenced with the node that it is on, and where it was seen.
fn following(place: Place) -> (Observation, Topology) {
    let (seen, mut topology) = dead(&["kafka-1"], &[("kafka-1", place)]);
    topology.fences.clear();
    topology.machines = [("node-a", "plug"), ("node-b", "ec2_stop")]
        .map(|(node, fence)| (node.to_owned(), vec![fence.to_owned()]))
        .into();
    (seen, topology)
}

fn node_b() -> Option<Machine> {
    Some(Machine { name: "node-b".to_owned(), guest: "uid-2".to_owned() })
}

#[test]
fn a_host_without_a_fence_is_fenced_with_the_machine_that_it_was_seen_on() {
    let says = "pod kafka-1-0 is on node-b".to_owned();
    let (seen, topology) = following(Place::AtItsFence { says: says.clone(), on: node_b() });
    let Decision::TakeOver(takeover) = decide(BROKER, &seen, &topology, &World::policy()) else { panic!() };
    let planned = plan(&takeover, Epoch(1), &topology, &World::policy(), &seen).unwrap();
    let host = HostName::from("kafka-1");
    assert_eq!(planned.machine_of(&host), node_b().as_ref());
    let shown = planned.to_string();
    assert!(shown.contains("fence kafka-1 with its machine, node-b, by ec2_stop"), "{shown}");
    // It is in the ledger with the claim.
    let written = serde_json::to_string(&planned).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&written).unwrap(), planned);

    // An agent holds for a doubt, and a person may act all the same. Nobody may where the machine is not known.
    let (seen, topology) = following(Place::Astray { says: says.clone(), on: node_b() });
    assert!(not_believed(&decide(BROKER, &seen, &topology, &World::policy())).is_some());
    let manual = |seen: &Observation| {
        let standing = seen.standing(BROKER).expect("in the ledger").clone();
        let (takeover, _) = decide_manual(BROKER, &standing, seen, &topology, &World::policy());
        plan(&takeover, Epoch(1), &topology, &World::policy(), seen)
    };
    assert_eq!(manual(&seen).unwrap().machine_of(&host), node_b().as_ref());
    let (seen, _) = following(Place::Unseen { says });
    assert_eq!(manual(&seen), Err(PlanError::Unplaced(host)));

    // Without any machine that can be fenced it has no fence.
    let (seen, mut topology) = following(there());
    topology.machines.clear();
    let Decision::Hold { reasons } = decide(BROKER, &seen, &topology, &World::policy()) else { panic!() };
    assert!(reasons.iter().any(|reason| matches!(reason, HoldReason::NoFence { .. })), "{reasons:?}");
}
