//! What must hold for every observation and every journal, not only for those we thought of.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say why")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use recovery::decide::{Decision, decide, decide_manual};
use recovery::journal::{Claim, Direction, Entry, EpochJournal, Record};
use recovery::model::{
    Attempt, BrokerId, Candidate, Cause, Epoch, EpochState, HostName, Instruction, LedgerStanding,
    LocalProcess, Moment, Now, Order, Orders, Outcome, PeerSaw, PeerView, ProbeOutcome, VolumeUse,
};
use recovery::observe::{LedgerSeen, Observation, ProbeSeen, Seen, StorageSeen};
use recovery::plan::{Phase, Plan, Step, plan};
use recovery::policy::{Mode, Policy};
use recovery::ports::Note;
use recovery::progress::{Next, Progress};
use recovery::testing::{BROKER, World};

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
    (outcome, duration(), duration()).prop_map(|(outcome, lasting, longer)| {
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
    let all = (local, storage, prop::option::of(0..60_u64), volumes, unregistered, any::<bool>());
    all.prop_map(move |(local, here, quiet, volumes, unregistered, crashed)| Seen {
        local,
        crashed,
        unregistered,
        storage: here.map(|here| StorageSeen { here: Some(here), stalled_at: BTreeSet::new() }),
        claim_quiet: quiet.map(Duration::from_secs),
        volumes,
        ..seen.clone()
    })
}

/// What the storage may count.
fn volumes() -> impl Strategy<Value = VolumeUse> {
    let some = || prop::option::of(duration());
    (some(), some(), some(), any::<bool>()).prop_map(|(quiet, unwritten, client_idle, stopped)| VolumeUse {
        quiet,
        unwritten,
        client_idle,
        stopped,
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

fn observation() -> impl Strategy<Value = Observation> {
    let brokers = prop::collection::vec(seen().prop_flat_map(further), 1..6);
    let paused = prop::bool::weighted(0.1);
    (brokers, prop::option::of(standing()), any::<bool>(), any::<bool>(), peers(), paused).prop_map(
        |(brokers, standing, metadata_fresh, quorum_fresh, peers, paused)| {
            let now = Now { mono: Moment(Duration::from_secs(1000)), wall: Timestamp::UNIX_EPOCH };
            let what = Instruction::Pause { broker: None, reason: "patching".into(), until: None };
            let order = Order { at: now.wall, host: "h".into(), who: "ada".into(), what };
            let ledger = standing.map(|s| LedgerSeen {
                at: now.mono,
                brokers: BTreeMap::from([(BROKER, s)]),
                damaged: BTreeMap::new(),
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
                working: BTreeSet::new(),
            }
        },
    )
}

/// All that must be so before a takeover is decided, written down apart from the code that decides.
fn may_take_over(seen: &Observation, policy: &Policy) -> Result<(), &'static str> {
    let ensure = |holds: bool, what| if holds { Ok(()) } else { Err(what) };
    let broker = seen.brokers.get(&BROKER).ok_or("the broker was never seen")?;
    let probe = broker.probe.as_ref().ok_or("no fresh probe")?;
    let shortest = policy.host_down_after.min(policy.hung_after).min(policy.process_down_after);
    ensure(probe.outcome != ProbeOutcome::Answered, "it answers")?;
    ensure(probe.not_answering.is_some_and(|d| d >= shortest), "not for long enough")?;
    let silent = broker.controller_silence.is_some_and(|s| s >= policy.controller_silent_for);
    let gone = broker.listed == Some(false) && broker.controller_silence.is_none();
    ensure(silent || gone, "no second witness")?;
    let others: Vec<_> = seen.brokers.iter().filter(|(id, _)| **id != BROKER).collect();
    let up = others.iter().filter(|(_, s)| s.answers()).count();
    ensure(others.is_empty() && seen.quorum_fresh || up * 2 > others.len(), "no majority in sight")?;
    ensure(seen.metadata_fresh || others.is_empty(), "no broker list")?;
    let attempts =
        seen.ledger.iter().filter_map(|ledger| Some(&ledger.brokers.get(&BROKER)?.attempts)).flatten();
    let released = attempts.fold(false, |released, a| match a.ended.as_deref() {
        Some("recovered") => false,
        Some("withdrawn") => released,
        _ => released || a.cause == Cause::Planned,
    });
    let stopped = broker.left_first || broker.stop_told.is_some();
    ensure(!stopped || released, "it may have been stopped cleanly")?;
    ensure(seen.down().count() <= policy.max_brokers_down, "several brokers are down")?;
    let ledger = seen.ledger.as_ref().ok_or("the ledger was not read")?;
    let standing = ledger.brokers.get(&BROKER).ok_or("the ledger was not read")?;
    ensure(standing.writers.iter().all(can_fence), "a writer cannot be fenced")?;
    ensure(ledger.orders.0.is_empty(), "it is paused")?;
    ensure(broker.storage.as_ref().is_none_or(|s| s.here == Some(true)), "its storage stalls")?;
    let answers = |view: &PeerView| view.brokers.get(&BROKER).map(|saw| saw.outcome.clone());
    let seen_by = seen.peers.values().any(|view| answers(view) == Some(ProbeOutcome::Answered));
    ensure(!seen_by, "another agent sees it")?;
    let automatic = standing.attempts.iter().filter(|a| a.cause == Cause::Automatic && !a.in_place);
    let recent = automatic.filter(|a| a.at > Timestamp::from_second(-3600).expect("in range")).count();
    ensure(recent < policy.takeovers_per_broker, "the budget is spent")?;
    let stuck = matches!(&standing.state, Some(EpochState::Ended { outcome: Outcome::Stuck { .. }, .. }));
    ensure(!stuck || standing.attempts.is_empty(), "the last takeover is stuck")
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
    let others: Vec<_> = seen.brokers.iter().filter(|(id, _)| **id != BROKER).collect();
    let up = others.iter().filter(|(_, s)| s.answers()).count();
    ensure(others.is_empty() && seen.quorum_fresh || up * 2 > others.len(), "no majority in sight")?;
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

fn some_plan() -> Plan {
    let topology = World::topology();
    let now = Now { mono: Moment::default(), wall: Timestamp::UNIX_EPOCH };
    let seen = Observation {
        now,
        brokers: BTreeMap::new(),
        ledger: None,
        distrusted: None,
        partitions: None,
        metadata_fresh: false,
        quorum_fresh: false,
        peers: BTreeMap::new(),
        blind: BTreeMap::new(),
        working: BTreeSet::new(),
    };
    let standing = LedgerStanding::untouched("kafka-1".into());
    let (takeover, _) = decide_manual(BROKER, &standing, &seen, &topology, &World::policy());
    plan(&takeover, Epoch(1), &topology, &seen).expect("configured")
}

/// Mostly what a run would write next, at times anything at all.
#[derive(Debug, Clone)]
enum Move {
    /// Start what is due, or end what is started.
    On { which: usize, fails: bool },
    /// Whatever entry, legal or not.
    Any(Entry),
}

fn step_move() -> impl Strategy<Value = Move> {
    let direction = prop_oneof![4 => Just(Direction::Forward), 1 => Just(Direction::Back)];
    let any = (0..14_usize, direction, 0..7_u8).prop_map(|(step, direction, kind)| match kind {
        0..=2 => Entry::Started { step, direction },
        3 => Entry::Done { step, direction, note: Note::default() },
        4 if step % 2 == 0 => Entry::Alive,
        4 => Entry::Failed { step, direction, error: "e".into(), kind: "failed".into() },
        5 => Entry::NotTried { intents: vec![step as u64, step as u64 + 1], why: "old".into() },
        _ => Entry::Resumed,
    });
    let on = (0..3_usize, prop::bool::weighted(0.03)).prop_map(|(which, fails)| Move::On { which, fails });
    prop_oneof![8 => on, 1 => any.prop_map(Move::Any)]
}

/// The entries to try, the first legal one counts.
fn entries(progress: &Progress, step_move: Move) -> Vec<Entry> {
    let (which, fails) = match step_move {
        Move::Any(entry) => return vec![entry],
        Move::On { which, fails } => (which, fails),
    };
    let Next::Run(steps, direction) = progress.next() else { return Vec::new() };
    let step = steps[which % steps.len()];
    let end = if fails {
        Entry::Failed { step, direction, error: "e".into(), kind: "failed".into() }
    } else {
        Entry::Done { step, direction, note: Note::default() }
    };
    vec![Entry::Started { step, direction }, end]
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
                let others: Vec<_> = seen.brokers.iter().filter(|(id, _)| **id != BROKER).collect();
                let up = others.iter().filter(|(_, s)| s.answers()).count();
                let sighted = up * 2 > others.len() || others.is_empty() && seen.quorum_fresh;
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

    /// Applies whatever entries are legal, and looks at what would be done next.
    #[test]
    fn kafka_is_started_only_after_every_earlier_stage(moves in prop::collection::vec(step_move(), 0..60)) {
        let plan = some_plan();
        let claim = Claim { at: Timestamp::UNIX_EPOCH, by: "standby-1".into(), cause: Cause::Automatic, succeeds: None, instance: None, plan: plan.clone() };
        let mut progress = Progress::new(plan.clone());
        let mut done = vec![false; plan.steps().count()];
        let mut records = Vec::new();
        for step_move in moves {
            for entry in entries(&progress, step_move) {
                let seq = records.len() as u64;
                let record = Record { seq, at: Timestamp::UNIX_EPOCH, by: "standby-1".into(), entry };
                if progress.apply(&record).is_ok() {
                    note_done(&mut done, &record.entry, &plan);
                    records.push(record);
                    break;
                }
            }
            if let Next::Run(steps, Direction::Forward) = progress.next()
                && steps.iter().any(|s| matches!(plan.step(*s), Some((_, Step::StartBroker { .. }))))
            {
                let before = plan.steps().take_while(|(phase, _)| *phase < Phase::Start).count();
                prop_assert!(done[..before].iter().all(|d| *d), "started too early: {:?}", done);
            }
        }
        // A crash after any of these records and a replay lead to the same place.
        let journal = EpochJournal { broker: BROKER, epoch: plan.epoch, claim, records };
        let replayed = Progress::replay(&journal).expect("legal once is legal again");
        prop_assert_eq!(replayed.next(), progress.next());
    }
}

/// Keeps count of what is done, apart from the code under test: after a crash a proof counts for nothing,
/// unless Kafka has been started.
fn note_done(done: &mut [bool], entry: &Entry, plan: &Plan) {
    let steps: Vec<&Step> = plan.steps().map(|(_, step)| step).collect();
    match entry {
        Entry::Done { step, direction: Direction::Forward, .. } => done[*step] = true,
        Entry::Resumed => {
            let started = (0..steps.len()).any(|i| done[i] && matches!(steps[i], Step::StartBroker { .. }));
            for (index, step) in steps.iter().enumerate() {
                done[index] &= started || !step.is_proof();
            }
        }
        _ => {}
    }
}
