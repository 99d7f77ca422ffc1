//! What comes before what, however steps end.

use super::*;

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
        machines: BTreeMap::new(),
        places: BTreeMap::new(),
        checks: BTreeMap::new(),
        working: BTreeSet::new(),
    };
    let standing = LedgerStanding::untouched("kafka-1".into());
    let (takeover, _) = decide_manual(BROKER, &standing, &seen, &topology, &World::policy());
    plan(&takeover, Epoch(1), &topology, &World::policy(), &seen).expect("configured")
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
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Applies whatever entries are legal, and looks at what would be done next.
    #[test]
    fn kafka_is_started_only_after_every_earlier_stage(moves in prop::collection::vec(step_move(), 0..60)) {
        let plan = some_plan();
        let claim = Claim {
            at: Timestamp::UNIX_EPOCH,
            by: "standby-1".into(),
            cause: Cause::Automatic,
            succeeds: None,
            instance: None,
            plan: plan.clone(),
        };
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
