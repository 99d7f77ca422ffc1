//! What must hold for every observation and every journal, not only for those we thought of.

mod may_take_over;
mod stages;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fakes::{BROKER, World};
use jiff::Timestamp;
use proptest::prelude::*;
use recovery::decide::{Decision, HoldReason, decide, decide_manual};
use recovery::journal::{Claim, Direction, Entry, EpochJournal, Record};
use recovery::model::{
    Attempt, BrokerId, Candidate, Cause, Check, CheckSeen, Checked, Epoch, EpochState, HostName, Instruction,
    LedgerStanding, LocalProcess, MachineState, Moment, Now, Order, Orders, Outcome, PeerSaw, PeerView,
    ProbeOutcome, Verdict, VolumeUse,
};
use recovery::observe::{LedgerSeen, MachineSeen, Observation, Outage, ProbeSeen, Seen, StorageSeen};
use recovery::plan::{Phase, Plan, Step, plan};
use recovery::policy::{Mode, Policy};
use recovery::ports::Note;
use recovery::progress::{Next, Progress};

use may_take_over::{majority, may_take_over, seen_elsewhere};

/// The moment of every observation.
const NOW: Moment = Moment(Duration::from_secs(1000));

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![0..4_000_u64, 0..120_000_u64].prop_map(Duration::from_millis)
}

fn probe() -> impl Strategy<Value = ProbeSeen> {
    let outcome = prop_oneof![
        Just(ProbeOutcome::Answered),
        Just(ProbeOutcome::Refused),
        Just(ProbeOutcome::Silent),
        Just(ProbeOutcome::Unreachable),
    ];
    // Most runs of failures are all of one kind.
    let longer = prop_oneof![2 => Just(Duration::ZERO), 1 => duration()];
    (outcome, duration(), longer).prop_map(|(outcome, lasting, longer)| {
        let answered = outcome == ProbeOutcome::Answered;
        ProbeSeen {
            outcome,
            lasting,
            not_answering: (!answered).then(|| lasting + longer),
            last_answer: None,
            failing_since: None,
        }
    })
}

fn seen() -> impl Strategy<Value = Seen> {
    let left = (prop::bool::weighted(0.1), prop::bool::weighted(0.05));
    (prop::option::of(probe()), prop::option::of(any::<bool>()), prop::option::of(duration()), left).prop_map(
        |(probe, listed, controller_silence, (left_first, told))| Seen {
            probe,
            listed,
            controller_silence,
            left_first,
            stop_told: told.then(|| "standby-2".into()),
            ..Seen::default()
        },
    )
}

/// What a broker's process, its storage and its claimant may be like beside that.
fn further(seen: Seen) -> impl Strategy<Value = Seen> {
    let process =
        prop_oneof![Just(LocalProcess::Absent), Just(LocalProcess::Running), Just(LocalProcess::Exited)];
    let storage = prop::option::weighted(0.2, any::<bool>());
    let local = prop::option::weighted(0.3, (process, duration()));
    let volumes = prop::option::weighted(0.3, volumes());
    let unregistered = prop::option::weighted(0.5, duration());
    let outage = prop::option::weighted(0.7, outage(seen.answers()));
    let all = (local, storage, prop::option::of(0..60_u64), volumes, unregistered, any::<bool>(), outage);
    all.prop_map(move |(local, here, quiet, volumes, unregistered, crashed, outage)| Seen {
        local,
        outage,
        crashed,
        unregistered,
        storage: here.map(|here| StorageSeen { here: Some(here), stalled_at: BTreeSet::new() }),
        claim_quiet: quiet.map(Duration::from_secs),
        volumes,
        ..seen.clone()
    })
}

/// Gone within the last 900 s, and back since where the broker answers.
fn outage(answers: bool) -> impl Strategy<Value = Outage> {
    let unheard = prop::option::of((0..900_u64, 0..60_u64));
    let all = (0..900_u64, 0..10_u64, 0..900_u64, any::<bool>(), unheard);
    all.prop_map(move |(ago, unsure, lasted, heard, unheard)| {
        let from = NOW - Duration::from_secs(ago);
        let back = Moment(from.0 + Duration::from_secs(lasted.min(ago)));
        let to = Moment(from.0 + Duration::from_secs(unsure.min(ago))).min(back);
        // What answers was heard at some time meanwhile, and what is down may be heard now.
        let heard = heard.then_some(if answers { back } else { NOW });
        // Heard again at some time since it went.
        let unheard = unheard.map(|(ago, lasted)| {
            let until = from.max(NOW - Duration::from_secs(ago));
            (from.max(until - Duration::from_secs(lasted)), until)
        });
        Outage { from, to, heard, unheard, until: answers.then_some(back) }
    })
}

/// What the storage may count.
fn volumes() -> impl Strategy<Value = VolumeUse> {
    let some = || prop::option::of(duration());
    let all = (some(), some(), some(), any::<bool>(), some());
    all.prop_map(|(quiet, unwritten, client_idle, stopped, grace)| VolumeUse {
        quiet,
        unwritten,
        client_idle,
        stopped,
        grace,
    })
}

fn peers() -> impl Strategy<Value = BTreeMap<HostName, PeerView>> {
    let saw = prop_oneof![Just(ProbeOutcome::Answered), Just(ProbeOutcome::Unreachable)];
    let view = (prop::option::of(saw), prop::option::of(0..3_u32)).prop_map(|(saw, rank)| PeerView {
        host: "standby-2".into(),
        brokers: saw
            .map(|outcome| {
                let lasting = Duration::from_secs(1);
                (BROKER, PeerSaw { outcome, lasting, answered: None, stopped: false, well_in: None })
            })
            .into_iter()
            .collect(),
        stalled: BTreeSet::new(),
        local: BTreeMap::new(),
        nfs_client: None,
        candidate: rank.map(|rank| Candidate {
            rank,
            rack: None,
            serves: BTreeSet::from([BROKER]),
            carries: BTreeSet::new(),
            limit: 1,
            unfit: None,
            not_ready: BTreeMap::new(),
        }),
    });
    prop::option::of(view).prop_map(|view| view.into_iter().map(|v| (v.host.clone(), v)).collect())
}

fn standing() -> impl Strategy<Value = LedgerStanding> {
    let host = prop_oneof![Just("kafka-1"), Just("standby-1"), Just("standby-2"), Just("nobody-fences-me")];
    let outcome = prop_oneof![
        Just(Outcome::Recovered { time_to_isr: Duration::ZERO, remarks: Vec::new() }),
        Just(Outcome::Abandoned { at: "verify_log_dirs".into(), why: "w".into(), kept: Vec::new() }),
        Just(Outcome::Stuck { at: "prove".into(), why: "w".into() }),
        Just(Outcome::Withdrawn { why: "w".into() }),
    ];
    let by = prop_oneof![Just("standby-1"), Just("standby-2")];
    let cause = prop_oneof![3 => Just(Cause::Automatic), 1 => Just(Cause::Manual), 1 => Just(Cause::Planned)];
    let state =
        prop_oneof![
            Just(None),
            (by.clone(), any::<bool>(), cause.clone())
                .prop_map(|(by, touched, cause)| Some(EpochState::Open { by: by.into(), touched, cause })),
            (by.clone(), outcome)
                .prop_map(|(by, outcome)| Some(EpochState::Ended { by: by.into(), outcome })),
        ];
    let attempt = (by, cause, any::<bool>(), 0..5_i64).prop_map(|(by, cause, in_place, hour)| Attempt {
        epoch: Epoch(1),
        at: Timestamp::from_second(-1000 * hour).expect("in range"),
        by: by.into(),
        cause,
        in_place,
        ended: Some("abandoned".to_owned()),
        ended_at: None,
        why: None,
        time_to_isr: None,
        phases: BTreeMap::new(),
    });
    let parts = (host, any::<bool>(), state, prop::collection::vec(attempt, 0..4));
    parts.prop_map(|(owner, another, state, attempts)| LedgerStanding {
        epoch: Epoch(3),
        writers: [owner].into_iter().chain(another.then_some("kafka-1")).map(HostName::from).collect(),
        owner: owner.into(),
        state,
        records: 4,
        attempts,
        nonsense: None,
        removed: None,
        fault_at: None,
        fenced: BTreeMap::new(),
    })
}

fn machines() -> impl Strategy<Value = BTreeMap<HostName, MachineSeen>> {
    let state = prop_oneof![
        3 => Just(MachineState::Off { state: "stopped".into() }),
        1 => Just(MachineState::Ails { why: "w".into() }),
        1 => Just(MachineState::Changes { to: "stopping".into() }),
        1 => Just(MachineState::Runs),
    ];
    let told = (state, duration()).prop_map(|(state, age)| MachineSeen { state, age });
    let host = prop_oneof![Just("kafka-1"), Just("standby-1"), Just("standby-2")].prop_map(HostName::from);
    prop::collection::btree_map(host, told, 0..3)
}

fn observation() -> impl Strategy<Value = Observation> {
    let brokers = prop::collection::vec(seen().prop_flat_map(further), 1..6);
    let paused = prop::bool::weighted(0.1);
    let fresh = (any::<bool>(), any::<bool>());
    (brokers, prop::option::of(standing()), fresh, peers(), machines(), paused).prop_map(
        |(brokers, standing, (metadata_fresh, quorum_fresh), peers, machines, paused)| {
            let now = Now { mono: NOW, wall: Timestamp::UNIX_EPOCH };
            let what = Instruction::Pause { broker: None, reason: "patching".into(), until: None };
            let order = Order { at: now.wall, host: "h".into(), who: "ada".into(), what };
            let ledger = standing.map(|s| LedgerSeen {
                at: now.mono,
                brokers: BTreeMap::from([(BROKER, s)]),
                unread: BTreeMap::new(),
                others: BTreeMap::new(),
                orders: Arc::new(Orders(paused.then_some(order).into_iter().collect())),
            });
            Observation {
                now,
                brokers: (1..).map(BrokerId).zip(brokers).collect(),
                ledger,
                distrusted: None,
                partitions: None,
                metadata_fresh,
                quorum_fresh,
                peers,
                blind: BTreeMap::new(),
                machines,
                places: BTreeMap::new(),
                checks: BTreeMap::new(),
                working: BTreeSet::new(),
            }
        },
    )
}

/// All that must be so before a Kafka is killed, written down apart from the code that decides.
fn may_kill(seen: &Observation) -> Result<(), &'static str> {
    let ensure = |holds: bool, what| if holds { Ok(()) } else { Err(what) };
    let long = |lasting: Duration| lasting >= Duration::from_secs(10);
    let broker = seen.brokers.get(&BROKER).ok_or("the broker was never seen")?;
    let probe = broker.probe.as_ref().ok_or("no fresh probe")?;
    ensure(probe.outcome == ProbeOutcome::Answered && long(probe.lasting), "it may be starting")?;
    ensure(broker.listed == Some(false), "it is listed, or nobody read the list")?;
    ensure(broker.unregistered.is_some_and(long), "it is registered, or was a moment ago")?;
    let runs = |(process, lasting)| process == LocalProcess::Running && long(lasting);
    ensure(broker.local.is_some_and(runs), "its process was not seen for long enough")?;
    ensure(majority(seen, &World::policy()), "no majority in sight")?;
    ensure(broker.storage.as_ref().is_none_or(|s| s.here == Some(true)), "its storage stalls")?;
    let ledger = seen.ledger.as_ref().ok_or("the ledger was not read")?;
    ensure(ledger.orders.0.is_empty(), "it is paused")?;
    let standing = ledger.brokers.get(&BROKER).ok_or("the ledger was not read")?;
    ensure(standing.owner == World::topology().here, "it is another host's")?;
    let open = matches!(standing.state, Some(EpochState::Open { .. }));
    ensure(!open || silent(seen, &World::policy()), "somebody is at it")?;
    let stuck = matches!(&standing.state, Some(EpochState::Ended { outcome: Outcome::Stuck { .. }, .. }));
    ensure(!stuck, "the last takeover is stuck")
}

fn failed_checks() -> [Check; 4] {
    [Check::Ledger, Check::Fence("kafka-1".into()), Check::Storage(BROKER), Check::Fence("standby-2".into())]
}

fn can_fence(host: &HostName) -> bool {
    *host == World::topology().here || World::topology().fences.contains_key(host)
}

/// Whether the open takeover of another host has been silent for long enough to be succeeded.
fn silent(seen: &Observation, policy: &Policy) -> bool {
    let quiet = seen.brokers.get(&BROKER).and_then(|broker| broker.claim_quiet);
    quiet.is_some_and(|quiet| quiet >= policy.claim_silent_after)
}

fn state(seen: &Observation) -> Option<EpochState> {
    seen.ledger.as_ref()?.brokers.get(&BROKER)?.state.clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn a_takeover_is_decided_only_when_everything_speaks_for_it(seen in observation(), mode in 0..3_u8) {
        let mode = [Mode::Observe, Mode::Approve, Mode::Auto][usize::from(mode)];
        let policy = Policy { mode, ..World::policy() };
        match decide(BROKER, &seen, &World::topology(), &policy) {
            Decision::TakeOver(takeover) => {
                prop_assert_eq!(mode, Mode::Auto);
                prop_assert_eq!(may_take_over(&seen, &policy), Ok(()));
                if matches!(state(&seen), Some(EpochState::Open { .. })) {
                    prop_assert!(silent(&seen, &policy), "a takeover is open and its claimant is alive");
                    prop_assert!(takeover.succeeds.is_some());
                } else {
                    prop_assert!(takeover.succeeds.is_none());
                }
                prop_assert!(takeover.from != takeover.to, "nobody takes over from himself");
                prop_assert!(takeover.writers.contains(&takeover.from));
            }
            Decision::RestartInPlace(takeover) => {
                prop_assert_eq!(mode, Mode::Auto);
                prop_assert_eq!(&takeover.from, &takeover.to);
                let broker = &seen.brokers[&BROKER];
                if takeover.unregistered {
                    prop_assert_eq!(may_kill(&seen), Ok(()));
                } else {
                    prop_assert!(broker.local.is_none_or(|(process, _)| process != LocalProcess::Running));
                    prop_assert!(!broker.answers(), "it answers");
                    let heard = broker.controller_silence.is_some_and(|s| s < policy.controller_silent_for);
                    prop_assert!(!heard || broker.crashed, "some process of it may live");
                }
                prop_assert!(takeover.writers.iter().all(can_fence));
                let sighted = majority(&seen, &policy);
                let alone = takeover.writers.iter().all(|host| *host == takeover.to);
                prop_assert!(alone || sighted, "a host is fenced by one that may be cut off itself");
            }
            Decision::SwitchOver(_) => prop_assert!(false, "nobody ordered it"),
            Decision::Resume { .. } => {
                prop_assert_ne!(mode, Mode::Observe);
                let Some(EpochState::Open { by, touched, cause }) = state(&seen) else {
                    panic!("nothing is open")
                };
                prop_assert_eq!(&by, &HostName::from("standby-1"));
                // A claim under which nothing was done is worth what the evidence is worth now.
                let owner = &seen.standing(BROKER).expect("read").owner;
                if !touched && cause == Cause::Automatic && *owner != by {
                    prop_assert_eq!(may_take_over(&seen, &policy), Ok(()));
                }
            }
            Decision::Withdraw { .. } => {
                let untouched = matches!(
                    state(&seen),
                    Some(EpochState::Open { by, touched: false, .. }) if by == HostName::from("standby-1")
                );
                prop_assert!(untouched, "it is not ours to give up");
                let broker = &seen.brokers[&BROKER];
                let heard = broker.controller_silence.is_some_and(|s| s < policy.controller_silent_for);
                prop_assert!(broker.answers() || heard || seen_elsewhere(&seen), "nobody says that it lives");
            }
            Decision::Hold { reasons } => prop_assert!(!reasons.is_empty()),
            Decision::Escalate { reasons } => prop_assert!(!reasons.is_empty()),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// It is shown, and neither speaks for a takeover nor against one.
    #[test]
    fn what_the_storage_counts_decides_nothing(seen in observation(), volumes in volumes()) {
        let decided = |volumes| {
            let mut seen = seen.clone();
            seen.brokers.values_mut().for_each(|broker| broker.volumes = volumes);
            let mut decision = decide(BROKER, &seen, &World::topology(), &World::policy());
            if let Decision::TakeOver(takeover) | Decision::RestartInPlace(takeover) = &mut decision {
                takeover.because.clear();
            }
            decision
        };
        prop_assert_eq!(decided(Some(volumes)), decided(None));
    }

    /// They say whose turn it is, and never whether a takeover is due.
    #[test]
    fn failed_checks_only_order_the_standbys(seen in observation(), not_ready in any::<(bool, bool)>()) {
        let (here, there) = not_ready;
        let decided = |here: bool, there: bool| {
            let mut seen = seen.clone();
            for check in failed_checks().into_iter().filter(|_| here) {
                let (says, remedy) = ("no".to_owned(), String::new());
                let found = Checked { check: check.clone(), verdict: Verdict::Fail, says, remedy };
                seen.checks.insert(check, CheckSeen { found, age: Duration::ZERO });
            }
            let candidates = seen.peers.values_mut().filter_map(|view| view.candidate.as_mut());
            for peer in candidates.filter(|_| there) {
                peer.not_ready.insert(BROKER, "fence".to_owned());
            }
            let mut decision = decide(BROKER, &seen, &World::topology(), &World::policy());
            match &mut decision {
                Decision::TakeOver(takeover) | Decision::RestartInPlace(takeover) => takeover.because.clear(),
                Decision::Hold { reasons } => {
                    reasons.retain(|reason| !matches!(reason, HoldReason::OthersFirst { .. }));
                }
                _ => {}
            }
            decision
        };
        let turn = Decision::Hold { reasons: Vec::new() };
        let (with, without) = (decided(here, there), decided(false, false));
        let both = |decision: &Decision| matches!(decision, Decision::TakeOver(_)) || *decision == turn;
        prop_assert!(with == without || both(&with) && both(&without), "{with:?}, else {without:?}");
        if here && there && without != turn {
            prop_assert_eq!(with, without, "with nobody ready all is as without checks");
        }
    }
}
