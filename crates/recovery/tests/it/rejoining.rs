//! How long a broker that was started is waited for, and what becomes of one that does not come back.

use std::time::Duration;

use crate::dead::{dead_broker, journal, standing};
use fakes::{BROKER, Crash, Fault, World};
use recovery::event::What;
use recovery::journal::{Claim, Direction, Entry, EpochJournal, Record};
use recovery::model::{Cause, HostName, LedgerStanding, Moment, Outcome, Succession};
use recovery::ports::{Clock, Ledger};
use recovery::takeover::{resume, take_over};

const HERE: &str = "standby-1";
/// As in the policy of these tests.
const PATIENCE: Duration = Duration::from_secs(300);

/// A takeover of a dead broker in a world that is prepared by `prepare`, carried out to its end.
async fn taken_over(prepare: impl FnOnce(&World)) -> (World, Outcome) {
    let world = World::new();
    let plan = dead_broker(&world).await;
    prepare(&world);
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    let violations = world.truth().violations.clone();
    assert!(violations.is_empty(), "{violations:?}");
    (world, outcome)
}

/// What the rejoin said of itself on its way.
fn told(world: &World) -> Vec<String> {
    let said = world.truth().events.clone().into_iter().filter_map(|event| match event.what {
        What::Rejoining { state, .. } => Some(state),
        _ => None,
    });
    said.collect()
}

fn failure(outcome: &Outcome) -> String {
    outcome.failure().unwrap_or_else(|| panic!("{outcome:?}"))
}

#[tokio::test(start_paused = true)]
async fn looks_that_fail_are_patience_and_no_end() {
    let (world, outcome) = taken_over(|world| {
        world.truth().faults.insert("state", Fault::Refuse);
        let later = world.clone();
        tokio::spawn(async move {
            later.sleep(Duration::from_secs(60)).await;
            later.truth().faults.remove("state");
        });
    })
    .await;
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    assert!(told(&world).iter().any(|state| state.contains("cannot be looked at")), "{:?}", told(&world));
}

#[tokio::test(start_paused = true)]
async fn a_kafka_that_ends_is_started_again() {
    let (world, outcome) = taken_over(|world| world.truth().starts_that_end = 2).await;
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    let truth = world.truth();
    assert_eq!((truth.starts, truth.unregister_sent), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn a_kafka_that_ends_again_and_again_is_abandoned_and_leaves_nothing_here() {
    let (world, outcome) = taken_over(|world| world.truth().starts_that_end = 9).await;
    assert_eq!(outcome.label(), "abandoned", "{outcome:?}");
    let why = failure(&outcome);
    assert!(why.starts_with("await_isr: ") && why.contains("exit status 1"), "{why}");
    let standing = standing(&world).await;
    let truth = world.truth();
    assert_eq!((truth.starts, truth.unregister_sent), (3, 1), "the first start, and two more");
    assert!(!truth.address_here && !truth.storage_here, "something was left here");
    assert!(truth.fenced.contains(&"kafka-1".into()), "the fence was lifted");
    // Whoever is next must fence this host, which has been writing.
    assert_eq!(standing.owner, HostName::from(HERE));
    assert_eq!(standing.writers, [HERE.into()].into());
    assert_eq!(standing.nonsense, None);
    assert!(standing.gave_up(None).contains(&HostName::from(HERE)), "others need not wait for it");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_proven_to_have_ended_is_stuck() {
    // What fails, what is said of it, and whether storage and address are still here then.
    for (fault, says, here) in [
        ("prove_stopped", "not proven", (true, true)),
        ("undo attach_storage", "attach_storage", (true, true)),
        ("undo move_address", "move_address", (false, true)),
    ] {
        let (world, outcome) = taken_over(|world| {
            let mut truth = world.truth();
            truth.starts_that_end = 9;
            truth.faults.insert(fault, Fault::Unconfirmed);
        })
        .await;
        assert_eq!(outcome.label(), "stuck", "{fault}: {outcome:?}");
        let why = failure(&outcome);
        assert!(why.contains("exit status 1") && why.contains(says), "{fault}: {why}");
        let truth = world.truth();
        assert_eq!((truth.storage_here, truth.address_here), here, "{fault}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kafka_that_hangs_is_given_up_after_the_patience_and_nothing_is_taken_from_under_it() {
    let (world, outcome) = taken_over(|world| world.truth().hangs = true).await;
    assert_eq!(outcome.label(), "stuck", "{outcome:?}");
    let why = failure(&outcome);
    assert!(why.contains("5 min") && why.contains("not proven"), "{why}");
    let truth = world.truth();
    assert!(truth.storage_here && truth.address_here && truth.kills == 0, "it may write yet");
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_cannot_join_is_told_after_the_patience() {
    let (_, outcome) = taken_over(|world| world.truth().cannot_join = 1).await;
    assert_eq!(outcome.label(), "stuck", "{outcome:?}");
    let why = failure(&outcome);
    assert!(why.contains("9 of 10 partitions in ISR"), "{why}");
}

/// It is in every ISR and its listener answers, but the cluster sends clients elsewhere.
#[tokio::test(start_paused = true)]
async fn a_broker_that_no_client_is_sent_to_is_not_back_and_gets_no_leaders() {
    let (world, outcome) = taken_over(|world| world.truth().advertises_elsewhere = true).await;
    assert_eq!(outcome.label(), "stuck", "{outcome:?}");
    let why = failure(&outcome);
    assert!(why.contains("broker 1 advertises 10.0.0.1:9092, and nobody answers there"), "{why}");
    assert!(why.contains("advertised.listeners"), "{why}");
    assert_eq!(world.truth().kills, 0);
    // Once the way there is open, it is back by itself.
    let (world, outcome) = taken_over(|world| {
        world.truth().advertises_elsewhere = true;
        let later = world.clone();
        tokio::spawn(async move {
            later.sleep(PATIENCE / 2).await;
            later.truth().advertises_elsewhere = false;
        });
    })
    .await;
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    // Who else reached it stands in the record.
    let journal = journal(&world).await;
    let notes = journal.records.iter().filter_map(|record| match &record.entry {
        Entry::Done { note, .. } => note.details.get("reached_by_peers"),
        _ => None,
    });
    assert_eq!(notes.collect::<Vec<_>>(), ["kafka-3"]);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_loads_its_logs_is_waited_for_however_long_it_takes() {
    let loads = (20 << 20, (20 << 20) * PATIENCE.as_secs() * 4);
    let (world, outcome) = taken_over(|world| world.truth().loads = loads).await;
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    assert!(world.now().mono.0 > PATIENCE * 4, "it was not waited for");
    assert!(told(&world).iter().any(|state| state.contains("read")), "{:?}", told(&world));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_gets_nearer_is_waited_for_however_long_it_takes() {
    let (world, outcome) = taken_over(|world| {
        let mut truth = world.truth();
        (truth.cannot_join, truth.catches_up) = (2, 1 << 20);
        let later = world.clone();
        tokio::spawn(async move {
            later.sleep(PATIENCE * 4).await;
            later.truth().cannot_join = 0;
        });
    })
    .await;
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    assert!(told(&world).iter().any(|state| state.contains("behind")), "{:?}", told(&world));
}

/// Kafka waits 60 s for its controllers, and ends. It is started again once they are back, by the same run,
/// and none of its tries is used up by that.
#[tokio::test(start_paused = true)]
async fn a_kafka_that_ended_without_a_quorum_is_started_again_when_there_is_one() {
    for ends in [1, 3] {
        let mut back = Moment::default();
        let (world, outcome) = taken_over(|world| {
            back = Moment(world.now().mono.0 + PATIENCE * 3);
            let mut truth = world.truth();
            (truth.no_quorum_until, truth.starts_that_end) = (Some(back), ends);
        })
        .await;
        assert_eq!(outcome.label(), "recovered", "{ends}: {outcome:?}");
        assert!(world.now().mono > back, "{ends}");
        assert_eq!(world.truth().starts, ends + 1, "one without a quorum, and two tries");
        assert_eq!(journal(&world).await.epoch.0, 1, "{ends}: another run did it");
        let said = told(&world).into_iter().filter(|state| state.contains("active controller")).count();
        assert_eq!(said, 1, "{ends}: {:?}", told(&world));
    }
}

/// A Kafka that lives and waits for its controllers makes no progress, and that is no fault of this host.
#[tokio::test(start_paused = true)]
async fn patience_does_not_run_out_while_there_is_no_quorum() {
    let (world, outcome) = taken_over(|world| {
        let back = Moment(world.now().mono.0 + PATIENCE * 3);
        world.truth().no_quorum_until = Some(back);
    })
    .await;
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    assert_eq!(world.truth().starts, 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_started_again_without_fresh_proofs() {
    let (world, outcome) = taken_over(|world| {
        let later = world.clone();
        later.truth().starts_that_end = 1;
        tokio::spawn(async move {
            // Somebody switches the old host on again once Kafka has been started.
            while later.truth().starts == 0 {
                later.sleep(Duration::from_millis(10)).await;
            }
            later.truth().fenced.clear();
        });
    })
    .await;
    assert_eq!(outcome.label(), "abandoned", "{outcome:?}");
    assert_eq!(world.truth().starts, 1);
    assert!(failure(&outcome).contains("the host is on"), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_superseded_run_starts_nothing_again() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    world.truth().starts_that_end = 1;
    let (later, mut newer) = (world.clone(), plan.clone());
    tokio::spawn(async move {
        while later.truth().starts == 0 {
            later.sleep(Duration::from_millis(10)).await;
        }
        let seen = later.latest(BROKER).await.expect("the ledger is up").expect("it was claimed");
        newer.epoch = seen.epoch.next();
        let succeeds = Some(Succession { epoch: seen.epoch, records: seen.records.len() as u64 });
        let claim = Claim { by: "standby-2".into(), succeeds, plan: newer, ..seen.claim };
        later.claim(&claim).await.expect("won");
    });
    take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect_err("superseded");
    let truth = world.truth();
    assert_eq!(truth.starts, 1);
    assert!(truth.storage_here && truth.address_here, "somebody newer is at work: nothing is undone");
}

/// Every write of a takeover whose Kafka ends again and again, until it is abandoned.
#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_after_the_start_ends_abandoned_too() {
    let run = async |crash: Option<Crash>| {
        let world = World::new();
        let plan = dead_broker(&world).await;
        (world.truth().starts_that_end, world.truth().crash) = (99, crash);
        let mut result = take_over(&world.ports(), plan, Cause::Automatic, None, None).await;
        for _ in 0..2 {
            if result.is_err() {
                result = resume(&world.ports(), &HERE.into(), BROKER, None).await;
            }
        }
        (world, result)
    };
    let (world, result) = run(None).await;
    assert_eq!(result.expect("runs to an end").label(), "abandoned");
    let writes = world.truth().writes;
    for n in 2..=writes {
        for crash in [Crash::Before(n), Crash::After(n)] {
            let (world, result) = run(Some(crash)).await;
            let ended = journal(&world).await.records.last().map(|record| record.entry.clone());
            let abandoned = matches!(&ended, Some(Entry::Ended { outcome: Outcome::Abandoned { .. } }));
            assert!(abandoned, "{crash:?}: {result:?}, {ended:?}");
            let truth = world.truth();
            assert!(!truth.address_here && !truth.storage_here, "{crash:?}: something was left here");
            assert!(truth.unregister_sent <= 1, "{crash:?}: sent {} times", truth.unregister_sent);
            assert!(truth.violations.is_empty(), "{crash:?}: {:?}", truth.violations);
        }
    }
}

/// The proof that nothing runs here is history once the agent has died: a Kafka that somebody starts
/// meanwhile is found.
#[tokio::test(start_paused = true)]
async fn the_proof_of_an_end_does_not_outlive_a_crash() {
    let begun = |entry: &Entry, journal: &EpochJournal| {
        let Entry::Done { step, direction: Direction::Back, .. } = entry else { return false };
        journal.claim.plan.step(*step).is_some_and(|(_, step)| step.name() == "start_broker")
    };
    let mut found = false;
    for n in 18.. {
        let world = World::new();
        let plan = dead_broker(&world).await;
        (world.truth().starts_that_end, world.truth().crash) = (3, Some(Crash::After(n)));
        if take_over(&world.ports(), plan, Cause::Automatic, None, None).await.is_ok() {
            break;
        }
        let before = journal(&world).await;
        if !before.records.last().is_some_and(|record| begun(&record.entry, &before)) {
            continue;
        }
        found = true;
        world.truth().exited = false;
        let outcome = resume(&world.ports(), &HERE.into(), BROKER, None).await.expect("runs to an end");
        assert_eq!(outcome.label(), "stuck", "{outcome:?}");
        assert!(world.truth().storage_here, "taken from under what runs");
    }
    assert!(found, "no crash came right after the proof");
}

/// A journal that an agent wrote which ended stuck as soon as Kafka had ended.
#[tokio::test(start_paused = true)]
async fn a_journal_of_an_older_agent_still_makes_sense() {
    let (world, _) = taken_over(|world| world.truth().starts_that_end = 9).await;
    let mut old = journal(&world).await;
    let failed = old.records.iter().position(|record| matches!(record.entry, Entry::Failed { .. }));
    old.records.truncate(failed.expect("it failed") + 1);
    let outcome = Outcome::Stuck { at: "await_isr".to_owned(), why: "Kafka ended".to_owned() };
    let last = old.records.last().expect("records").clone();
    old.records.push(Record { seq: last.seq + 1, entry: Entry::Ended { outcome }, ..last });
    let text = serde_json::to_string(&old).expect("plain data");
    let text = text.replace(",\"patience\":[300,0],\"restarts\":2", "");
    let text = text.replace(",\"patience\":{\"secs\":300,\"nanos\":0},\"restarts\":2", "");
    assert!(!text.contains("patience"), "{text}");
    let old: EpochJournal = serde_json::from_str(&text).expect("an older plan is read");
    let standing = LedgerStanding::after(&"kafka-1".into(), &[old]);
    assert_eq!(standing.nonsense, None);
    assert_eq!(standing.owner, HostName::from(HERE));
}
