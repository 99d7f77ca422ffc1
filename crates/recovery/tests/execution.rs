//! Failure at each step, a crash at each write, and the promises that must hold through all of them.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say why")]

use std::time::Duration;

use recovery::event::What;
use recovery::journal::{Entry, EpochJournal, Intents, Record};
use recovery::model::{Cause, EpochState, HostName, LedgerStanding, Locks, Moment, Outcome, Topology};
use recovery::observe::{Board, observe};
use recovery::plan::{Phase, Plan, Stage, Step, plan};
use recovery::ports::{Clock, HealthSignal, Ledger};
use recovery::progress::{Progress, phases};
use recovery::takeover::{TakeoverError, resume, take_over, withdraw};
use recovery::testing::{BROKER, Crash, Fault, World};

const HERE: &str = "standby-1";

/// The plan the standby makes three seconds after the broker's host died.
async fn dead_broker(world: &World) -> Plan {
    dead_broker_with(world, Locks::default()).await
}

/// The same, where this becomes of the owner's locks.
async fn dead_broker_with(world: &World, locks: Locks) -> Plan {
    let mut board = Board::default();
    for evidence in world.look(world).await {
        board.record(evidence);
    }
    world.kill();
    for _ in 0..12 {
        world.sleep(Duration::from_millis(250)).await;
        for evidence in world.look(world).await {
            board.record(evidence);
        }
    }
    let mut topology = World::topology();
    topology.brokers.values_mut().for_each(|broker| broker.locks = locks.clone());
    let seen = observe(&board, &topology.known, World::policy().stale_after, world.now());
    let standing = standing(world).await;
    let (takeover, objections) =
        recovery::decide::decide_manual(BROKER, &standing, &seen, &topology, &World::policy());
    assert_eq!(objections, Vec::<String>::new());
    plan(&takeover, standing.epoch.next(), &topology, &seen).expect("the broker is configured")
}

async fn journal(world: &World) -> EpochJournal {
    world.latest(BROKER).await.expect("the ledger is up").expect("there was a claim")
}

async fn standing(world: &World) -> LedgerStanding {
    LedgerStanding::after(&"kafka-1".into(), &world.all(BROKER).await.expect("the ledger is up"))
}

fn promises_hold(world: &World, what: &str) {
    let truth = world.truth();
    assert!(truth.violations.is_empty(), "{what}: {:?}", truth.violations);
    assert!(truth.unregister_sent <= 1, "{what}: UnregisterBroker was sent {} times", truth.unregister_sent);
    assert!(truth.starts <= 1, "{what}: Kafka was started {} times", truth.starts);
}

#[tokio::test(start_paused = true)]
async fn a_takeover_recovers_the_broker_and_measures_it_from_the_fault() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    let died = world.truth().died_at.expect("killed");
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    let Outcome::Recovered { time_to_isr, remarks } = outcome else { panic!("{outcome:?}") };
    assert!(remarks.is_empty(), "{remarks:?}");
    let truth_took = world.now().mono.since(died);
    let error = time_to_isr.abs_diff(truth_took);
    assert!(error <= Duration::from_millis(600), "measured {time_to_isr:?}, was {truth_took:?}");
    promises_hold(&world, "straight run");
    assert_eq!(world.truth().unregister_sent, 1);
    assert_eq!(standing(&world).await.owner, HostName::from(HERE));
}

#[tokio::test(start_paused = true)]
async fn what_a_host_may_have_taken_with_it_is_said() {
    for (alone, words) in [(0, false), (3, true)] {
        let world = World::new();
        world.truth().alone = alone;
        let plan = dead_broker(&world).await;
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
        let said = format!("{:?}", journal(&world).await.records);
        assert_eq!(said.contains("3 of them have no other replica"), words, "{said}");
    }
    // A process that ended took nothing with it: its host still has it.
    let (world, plan) = ended_by_itself().await;
    world.truth().alone = 3;
    take_over(&world.ports(), plan, Cause::Manual, None, None).await.expect("runs to an end");
    let said = format!("{:?}", journal(&world).await.records);
    assert!(said.contains("partitions in ISR") && !said.contains("no other replica"), "{said}");
}

/// What steps were waiting for, as it was told.
fn waits(world: &World) -> Vec<String> {
    let events = world.truth().events.clone();
    let wait = |what| match what {
        What::Waiting { step, state } => Some(format!("{step}: {state}")),
        _ => None,
    };
    events.into_iter().filter_map(|event| wait(event.what)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_dead_owners_lock_is_waited_for_and_kafka_is_started_once() {
    let world = World::new();
    world.truth().lease = Duration::from_secs(60);
    let plan =
        dead_broker_with(&world, Locks { lease: Some(Duration::from_secs(60)), ..Locks::default() }).await;
    let shown = plan.to_string();
    assert!(shown.contains(
        "nobody holds .lock in /mnt/kafka/broker1, 180.0 s at most (a dead client's lease is 60.0 s)"
    ));
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    promises_hold(&world, "a lease of 60 s");
    let waited = waits(&world);
    let words =
        ["await_locks: /mnt/kafka/broker1/.lock is held by a client of the storage", "180.0 s at most"];
    assert!(matches!(&waited[..], [one] if words.iter().all(|word| one.contains(word))), "{waited:?}");
    let said = format!("{:?}", journal(&world).await.records);
    assert!(said.contains("nobody holds a lock any more, after 5"), "{said}");
    let truth = world.truth();
    let (died, started) = (truth.died_at.expect("killed"), truth.started_at.expect("started"));
    let took = started.since(died);
    assert!(took >= Duration::from_secs(60) && took < Duration::from_secs(62), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_stays_ends_the_try_and_not_the_broker() {
    let world = World::new();
    world.truth().lock_stays = true;
    let at_most = Duration::from_secs(20);
    let locks = Locks { at_most, ..Locks::default() };
    let plan = dead_broker_with(&world, locks.clone()).await;
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    let Outcome::Abandoned { at, why, .. } = outcome else { panic!("{outcome:?}") };
    let words = ["/mnt/kafka/broker1/.lock is held by a client of the storage, after 20.0 s", "lock_wait"];
    assert!(at == "await_locks" && words.iter().all(|word| why.contains(word)), "{at}: {why}");
    promises_hold(&world, "a lock for ever");
    {
        let truth = world.truth();
        assert_eq!((truth.starts, truth.unregister_sent), (0, 0), "nothing of Kafka was begun");
    }
    world.truth().lock_stays = false;
    let plan = dead_broker_with(&world, locks).await;
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    promises_hold(&world, "once it is free");
}

#[tokio::test(start_paused = true)]
async fn storage_that_can_breaks_the_lock_after_the_proof() {
    for (fault, waits_for) in [(None, 0), (Some(Fault::Refuse), 60)] {
        let world = World::new();
        world.truth().lease = Duration::from_secs(60);
        let plan = dead_broker_with(&world, Locks { broken: true, ..Locks::default() }).await;
        let place = |name| plan.steps().position(|(_, step)| step.name() == name);
        assert!(place("prove") < place("break_locks") && place("break_locks") < place("await_locks"));
        assert!(place("await_locks") < place("unregister") && place("unregister") < place("start_broker"));
        world.truth().faults.extend(fault.map(|fault| ("break_locks", fault)));
        let outcome =
            take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
        let Outcome::Recovered { remarks, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(remarks.len(), usize::from(fault.is_some()), "{remarks:?}");
        promises_hold(&world, "locks are broken");
        let truth = world.truth();
        let took = truth.started_at.expect("started").since(truth.died_at.expect("killed"));
        let (least, most) = (Duration::from_secs(waits_for), Duration::from_secs(waits_for + 5));
        assert!(took >= least && took <= most, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_process_that_ended_here_has_no_lease() {
    let (world, plan) = ended_by_itself().await;
    let shown = plan.to_string();
    assert!(shown.contains("wait until nobody holds .lock") && !shown.contains("lease"), "{shown}");
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    assert_eq!(waits(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn every_step_that_fails_ends_as_its_row_says() {
    // Step, fault, expected end.
    let table: &[(&'static str, Fault, &str)] = &[
        ("fence", Fault::Refuse, "stuck"),
        ("fence", Fault::Unconfirmed, "stuck"),
        ("prove", Fault::Refuse, "stuck"),
        ("prove", Fault::Unconfirmed, "stuck"),
        ("move_address", Fault::Refuse, "abandoned"),
        ("attach_storage", Fault::Refuse, "abandoned"),
        ("attach_storage", Fault::Unconfirmed, "abandoned"),
        ("render_config", Fault::Refuse, "abandoned"),
        ("await_locks", Fault::Refuse, "abandoned"),
        ("await_locks", Fault::Unconfirmed, "abandoned"),
        ("verify_log_dirs", Fault::Refuse, "abandoned"),
        ("unregister", Fault::Unconfirmed, "recovered"),
        ("start_broker", Fault::Refuse, "stuck"),
        ("start_broker", Fault::Unconfirmed, "stuck"),
        ("state", Fault::Refuse, "stuck"),
        ("reset_clients", Fault::Refuse, "recovered"),
        ("elect_preferred", Fault::Refuse, "recovered"),
    ];
    for (step, fault, end) in table {
        let what = format!("{step} {fault:?}");
        let world = World::new();
        let plan = dead_broker(&world).await;
        world.truth().faults.insert(step, *fault);
        let outcome =
            take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
        assert_eq!(outcome.label(), *end, "{what}: {outcome:?}");
        promises_hold(&world, &what);
        let truth = world.truth();
        match outcome {
            Outcome::Abandoned { kept, .. } => {
                assert!(!truth.address_here && !truth.storage_here, "{what}: something was left here");
                assert!(truth.fenced.contains(&"kafka-1".into()), "{what}: the fence was lifted");
                assert!(kept.iter().any(|k| k.contains("fence")), "{what}: {kept:?}");
                assert_eq!(truth.starts, 0, "{what}");
            }
            Outcome::Stuck { at, .. } if at == "fence" || at == "prove" => {
                assert_eq!(truth.starts, 0, "{what}: started without a proof");
                assert!(!truth.address_here, "{what}: the address moved without a proof");
            }
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_start_waits_for_a_configuration_that_takes_its_time() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    let takes = Duration::from_secs(4);
    world.truth().render_takes = takes;
    take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    promises_hold(&world, "slow render");
    let journal = journal(&world).await;
    let place = |name: &str, begun: bool| {
        let found = journal.records.iter().position(|record| {
            let step = match record.entry {
                Entry::Started { step, .. } if begun => step,
                Entry::Done { step, .. } if !begun => step,
                _ => return false,
            };
            journal.claim.plan.step(step).is_some_and(|(_, step)| step.name() == name)
        });
        found.unwrap_or_else(|| panic!("{name} is not in the journal"))
    };
    let rendered = place("render_config", false);
    assert!(place("render_config", true) < place("fence", false), "begun beside the fence");
    for early in ["prove", "move_address", "attach_storage", "verify_log_dirs"] {
        assert!(place(early, false) < rendered, "{early} waited");
    }
    for late in ["unregister", "start_broker"] {
        assert!(rendered < place(late, true), "{late} did not wait");
    }
    let fence = phases(&journal).into_iter().find(|(phase, _)| *phase == Phase::Fence);
    assert!(fence.is_some_and(|(_, took)| took < takes), "it counts as time of the fence: {fence:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fence_that_fails_needs_a_person_whatever_fails_beside_it() {
    for takes in [0, 4] {
        let world = World::new();
        let plan = dead_broker(&world).await;
        world.truth().render_takes = Duration::from_secs(takes);
        world.truth().faults.extend([("render_config", Fault::Refuse), ("fence", Fault::Unconfirmed)]);
        let outcome =
            take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
        assert!(matches!(&outcome, Outcome::Stuck { at, .. } if at == "fence"), "{takes} s: {outcome:?}");
        promises_hold(&world, "fence and render fail");
    }
}

#[tokio::test(start_paused = true)]
async fn an_undo_that_fails_is_said_and_the_other_undos_go_on() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    world
        .truth()
        .faults
        .extend([("verify_log_dirs", Fault::Refuse), ("undo attach_storage", Fault::Unconfirmed)]);
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    let Outcome::Abandoned { kept, .. } = outcome else { panic!("{outcome:?}") };
    assert!(kept.iter().any(|k| k.contains("undo of attach_storage failed")), "{kept:?}");
    assert!(!world.truth().address_here);
}

/// Runs with the agent dying at one write, restarting it as often as it takes.
async fn crash_and_resume(crash: Crash, faults: &[(&'static str, Fault)]) -> (World, Outcome) {
    let world = World::new();
    let plan = dead_broker(&world).await;
    world.truth().faults.extend(faults.iter().copied());
    world.truth().crash = Some(crash);
    let mut result = take_over(&world.ports(), plan.clone(), Cause::Automatic, None, None).await;
    for _ in 0..3 {
        result = match result {
            Ok(outcome) => return (world, outcome),
            // The claim itself did not get through, or nobody knows whether it did.
            Err(TakeoverError::NotClaimed(..)) if world.all(BROKER).await.is_ok_and(|all| all.is_empty()) => {
                take_over(&world.ports(), plan.clone(), Cause::Automatic, None, None).await
            }
            Err(_) => match resume(&world.ports(), &HERE.into(), BROKER, None).await {
                // It died after writing the end.
                Err(TakeoverError::NothingToResume(_)) => {
                    let journal = journal(&world).await;
                    let Some(Entry::Ended { outcome }) = journal.records.last().map(|r| r.entry.clone())
                    else {
                        panic!("{crash:?}: neither open nor ended");
                    };
                    Ok(outcome)
                }
                other => other,
            },
        };
    }
    (world, result.expect("three restarts are enough for one crash"))
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_and_a_resume_end_like_no_crash() {
    let (world, _) = crash_and_resume(Crash::After(usize::MAX), &[]).await;
    let writes = world.truth().writes;
    assert!(writes > 15, "a takeover writes before and after every step, not {writes} times");
    for n in 1..=writes {
        for crash in [Crash::Before(n), Crash::After(n)] {
            let (world, outcome) = crash_and_resume(crash, &[]).await;
            assert_eq!(outcome.label(), "recovered", "{crash:?}: {outcome:?}");
            promises_hold(&world, &format!("{crash:?}"));
            assert_eq!(world.truth().starts, 1, "{crash:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_of_an_abandoned_takeover_ends_abandoned_too() {
    let faults = [("verify_log_dirs", Fault::Refuse)];
    let (world, _) = crash_and_resume(Crash::After(usize::MAX), &faults).await;
    let writes = world.truth().writes;
    for n in 1..=writes {
        for crash in [Crash::Before(n), Crash::After(n)] {
            let (world, outcome) = crash_and_resume(crash, &faults).await;
            assert_eq!(outcome.label(), "abandoned", "{crash:?}: {outcome:?}");
            let truth = world.truth();
            assert!(!truth.address_here && !truth.storage_here, "{crash:?}: something was left here");
            assert_eq!(truth.starts, 0, "{crash:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_proof_does_not_outlive_a_crash() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    let prove = plan.steps().position(|(_, step)| matches!(step, Step::Prove { .. })).expect("planned");
    // Claim, fence started and done, prove started and done: dies right after the proof is written.
    world.truth().render_takes = Duration::from_secs(4);
    world.truth().crash = Some(Crash::After(5));
    take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect_err("it died");
    let done = journal(&world).await.records;
    assert!(matches!(done.last().map(|r| &r.entry), Some(Entry::Done { step, .. }) if *step == prove));
    // Meanwhile somebody switches the old host on again.
    world.truth().fenced.clear();
    let outcome = resume(&world.ports(), &HERE.into(), BROKER, None).await.expect("runs to an end");
    assert!(matches!(&outcome, Outcome::Stuck { at, .. } if at == "prove"), "{outcome:?}");
    assert_eq!(world.truth().starts, 0);
}

#[tokio::test(start_paused = true)]
async fn a_kafka_that_may_run_is_not_forgotten_when_the_next_run_gets_stuck_earlier() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    // Dies after Kafka's start and before the result is written.
    world.truth().crash = Some(Crash::Before(17));
    take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect_err("it died");
    assert_eq!(world.truth().starts, 1);
    world.truth().faults.insert("prove", Fault::Unconfirmed);
    let outcome = resume(&world.ports(), &HERE.into(), BROKER, None).await.expect("runs to an end");
    assert!(matches!(&outcome, Outcome::Stuck { at, .. } if at == "prove"), "{outcome:?}");
    assert_eq!(standing(&world).await.owner, HostName::from(HERE), "whoever fences next must fence us");
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_run_has_prepared_is_undone_though_it_was_not_repeated() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    world.truth().faults.insert("attach_storage", Fault::Refuse);
    // Claim, fence, proof (5 writes), three intents, the address: dies with the address moved.
    world.truth().crash = Some(Crash::Before(7));
    take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect_err("it died");
    world.truth().faults.insert("move_address", Fault::Refuse);
    let outcome = resume(&world.ports(), &HERE.into(), BROKER, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "abandoned", "{outcome:?}");
    assert!(!world.truth().address_here, "the address was left behind");
}

#[tokio::test(start_paused = true)]
async fn a_restart_in_place_that_fails_takes_off_the_address_it_has_put_there() {
    for (was_here, stays) in [(false, false), (true, true)] {
        let (world, again) = ended_by_itself().await;
        world.truth().address_here = was_here;
        world.truth().faults.insert("verify_log_dirs", Fault::Refuse);
        let outcome =
            take_over(&world.ports(), again, Cause::Automatic, None, None).await.expect("runs to an end");
        assert_eq!(outcome.label(), "abandoned", "{outcome:?}");
        let truth = world.truth();
        assert_eq!(truth.address_here, stays, "it was here before: {was_here}");
        assert!(truth.storage_here, "the owner keeps its storage");
    }
}

#[tokio::test(start_paused = true)]
async fn a_superseded_run_stops_and_undoes_nothing() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    world.truth().faults.insert("verify_log_dirs", Fault::Supersede);
    let error = take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect_err("superseded");
    assert!(matches!(error, TakeoverError::Unfinished(..)), "{error:?}");
    let truth = world.truth();
    assert!(truth.address_here && truth.storage_here, "somebody newer is at work: nothing is undone");
    assert_eq!(truth.starts, 0);
}

/// As `dead_broker`, of a host that lives on behind a fence of its storage and answers for the address until `answers` from now.
async fn lives_on(world: &World, answers: Duration) -> Plan {
    let mut plan = dead_broker(world).await;
    let topology = Topology { outlive: ["kafka-1".into()].into(), ..World::topology() };
    let board = Board::default();
    let seen = observe(&board, &topology.known, World::policy().stale_after, world.now());
    let standing = standing(world).await;
    let (takeover, _) =
        recovery::decide::decide_manual(BROKER, &standing, &seen, &topology, &World::policy());
    let fresh = recovery::plan::plan(&takeover, standing.epoch.next(), &topology, &seen).expect("a plan");
    plan.stages = fresh.stages;
    world.truth().answers_arp_until = Some(Moment(world.now().mono.0 + answers));
    plan
}

#[tokio::test(start_paused = true)]
async fn a_live_host_that_gives_the_address_up_is_waited_for() {
    let world = World::new();
    let plan = lives_on(&world, Duration::from_secs(6)).await;
    world.truth().faults.insert("finish_fence", Fault::Refuse);
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    promises_hold(&world, "it gave the address up");
}

#[tokio::test(start_paused = true)]
async fn a_live_host_that_keeps_the_address_is_stopped_by_the_next_fence() {
    let world = World::new();
    let plan = lives_on(&world, Duration::from_secs(86_400)).await;
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    let Outcome::Recovered { remarks, .. } = outcome else { panic!("{outcome:?}") };
    assert!(remarks.is_empty(), "{remarks:?}");
    promises_hold(&world, "it was stopped");
}

#[tokio::test(start_paused = true)]
async fn a_live_host_that_nothing_can_stop_calls_a_person_once_and_leaves_nothing_here() {
    let world = World::new();
    let plan = lives_on(&world, Duration::from_secs(86_400)).await;
    world.truth().faults.insert("finish_fence", Fault::Refuse);
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    let Outcome::Stuck { at, why } = outcome else { panic!("{outcome:?}") };
    assert_eq!(at, "free_address");
    for word in ["02:00:00:00:00:0b", "kafka-1", "ip address del"] {
        assert!(why.contains(word), "{word} is not told: {why}");
    }
    let truth = world.truth();
    assert!(!truth.address_here && !truth.storage_here, "what was prepared is undone");
    assert_eq!(truth.starts, 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_fence_after_the_start_is_told_and_ends_nothing() {
    let world = World::new();
    let plan = lives_on(&world, Duration::ZERO).await;
    // The start waits for it: time in which the link heals, once the address has moved.
    world.truth().render_takes = Duration::from_secs(1);
    world.truth().faults.insert("finish_fence", Fault::Refuse);
    let there = world.clone();
    let running =
        tokio::spawn(async move { take_over(&there.ports(), plan, Cause::Automatic, None, None).await });
    while !world.truth().address_here {
        world.sleep(Duration::from_millis(20)).await;
    }
    world.truth().answers_arp_until = Some(Moment(Duration::from_secs(86_400)));
    let outcome = running.await.expect("no panic").expect("runs to an end");
    let Outcome::Recovered { remarks, .. } = outcome else { panic!("{outcome:?}") };
    assert!(remarks.iter().any(|remark| remark.contains("the old host may still answer")), "{remarks:?}");
}

/// A Kafka that ended by itself on its new host, and the plan to start it there again.
async fn ended_by_itself() -> (World, Plan) {
    let world = World::new();
    let plan = dead_broker(&world).await;
    // Dies once it waits for the ISR.
    world.truth().crash = Some(Crash::After(18));
    take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect_err("it died");
    world.truth().exited = true;
    let outcome = resume(&world.ports(), &HERE.into(), BROKER, None).await.expect("runs to an end");
    assert!(matches!(&outcome, Outcome::Stuck { at, .. } if at == "await_isr"), "{outcome:?}");
    let again = dead_broker(&world).await;
    (world, again)
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_of_a_restart_in_place_ends_like_no_crash() {
    let (world, plan) = ended_by_itself().await;
    let before = world.truth().writes;
    take_over(&world.ports(), plan, Cause::Manual, None, None).await.expect("runs to an end");
    let after = world.truth().writes;
    // The claim aside: a claim that nobody knows of is simply made again.
    for n in before + 2..=after {
        for crash in [Crash::Before(n), Crash::After(n)] {
            let (world, plan) = ended_by_itself().await;
            world.truth().crash = Some(crash);
            take_over(&world.ports(), plan, Cause::Manual, None, None).await.expect_err("it died");
            match resume(&world.ports(), &HERE.into(), BROKER, None).await {
                Ok(outcome) => assert_eq!(outcome.label(), "recovered", "{crash:?}: {outcome:?}"),
                Err(error) => {
                    let all_written = n == after && crash == Crash::After(n);
                    assert!(all_written && matches!(error, TakeoverError::NothingToResume(_)), "{error:?}");
                }
            }
            assert_eq!(world.truth().starts, 2, "{crash:?}: once by the takeover, once by the restart");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_ends_by_itself_is_stuck_and_can_be_started_again_without_a_fence() {
    let (world, again) = ended_by_itself().await;
    assert_eq!(again.from, HostName::from(HERE), "the ledger says who may have written");
    assert!(!again.steps().any(|(_, step)| matches!(step, Step::Fence { .. })), "nobody fences himself");
    let outcome = take_over(&world.ports(), again, Cause::Manual, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered", "{outcome:?}");
    assert_eq!(world.truth().starts, 2);
    assert!(world.truth().violations.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_of_a_kill_ends_like_no_crash() {
    let run = async |crash: Option<Crash>| {
        let (world, plan) = unregistered().await;
        let before = world.truth().writes;
        world.truth().crash = crash;
        let result = take_over(&world.ports(), plan, Cause::Automatic, None, None).await;
        (world, before, result)
    };
    let (world, before, result) = run(None).await;
    assert_eq!(result.expect("runs to an end").label(), "recovered");
    assert_eq!(world.truth().kills, 1);
    let after = world.truth().writes;
    for n in before + 2..=after {
        for crash in [Crash::Before(n), Crash::After(n)] {
            let (world, _, result) = run(Some(crash)).await;
            result.expect_err("it died");
            match resume(&world.ports(), &HERE.into(), BROKER, None).await {
                Ok(outcome) => assert_eq!(outcome.label(), "recovered", "{crash:?}: {outcome:?}"),
                Err(error) => {
                    let all_written = n == after && crash == Crash::After(n);
                    assert!(all_written && matches!(error, TakeoverError::NothingToResume(_)), "{error:?}");
                }
            }
            let truth = world.truth();
            assert_eq!((truth.kills, truth.starts), (1, 2), "{crash:?}");
            assert!(truth.violations.is_empty(), "{crash:?}: {:?}", truth.violations);
        }
    }
}

/// A broker that was taken over, serves here and has lost its registration, and the plan for that.
async fn unregistered() -> (World, Plan) {
    let world = World::new();
    let plan = dead_broker(&world).await;
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered");
    // The plan of a restart in place, but for the kill.
    world.truth().exited = true;
    let mut again = dead_broker(&world).await;
    world.truth().exited = false;
    world.truth().registration_lost = true;
    let end = Step::EndUnregistered { broker: BROKER };
    again.stages.insert(0, Stage { phase: Phase::Fence, steps: vec![end] });
    (world, again)
}

/// From a decision to a first act that came too late.
const STOOD_STILL: Duration = Duration::from_secs(18);

/// A takeover that an agent decides now, and whose n-th ledger write from now on takes long.
async fn decided_and_slow(n: usize, crash: Option<Crash>) -> (World, Result<Outcome, TakeoverError>) {
    let world = World::new();
    let plan = dead_broker(&world).await;
    world.truth().slow_write = Some((n, STOOD_STILL));
    world.truth().crash = crash;
    let decided = world.now().mono;
    let result = take_over(&world.ports(), plan, Cause::Automatic, None, Some(decided)).await;
    (world, result)
}

async fn not_tried(world: &World) -> usize {
    journal(world).await.records.iter().filter(|r| matches!(r.entry, Entry::NotTried { .. })).count()
}

async fn touched(world: &World) -> bool {
    let state = standing(world).await.state;
    let Some(EpochState::Open { touched, .. }) = state else { panic!("{state:?}") };
    touched
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_grew_old_before_the_first_act_touches_nothing_and_is_made_anew() {
    // The claim; the intents.
    for (n, taken_back) in [(1, 0), (2, 1)] {
        let (world, result) = decided_and_slow(n, None).await;
        assert!(matches!(result, Err(TakeoverError::Outdated(..))), "write {n}: {result:?}");
        assert!(world.truth().fenced.is_empty() && !touched(&world).await, "write {n}");
        assert_eq!(not_tried(&world).await, taken_back, "write {n}");
        // A resume that is decided as long ago as that does no better.
        let decided = Moment(world.now().mono.0 - STOOD_STILL);
        let result = resume(&world.ports(), &HERE.into(), BROKER, Some(decided)).await;
        assert!(matches!(result, Err(TakeoverError::Outdated(..))), "write {n}: {result:?}");
        assert!(world.truth().fenced.is_empty() && !touched(&world).await, "write {n}");
        assert_eq!(not_tried(&world).await, taken_back + 1, "write {n}");
        // One that is decided on what is so now goes through.
        let decided = Some(world.now().mono);
        let outcome = resume(&world.ports(), &HERE.into(), BROKER, decided).await.expect("runs to an end");
        assert_eq!(outcome.label(), "recovered", "write {n}: {outcome:?}");
        promises_hold(&world, &format!("write {n}"));
        let fence = phases(&journal(&world).await).into_iter().find(|(phase, _)| *phase == Phase::Fence);
        assert!(
            fence.is_some_and(|(_, took)| took < STOOD_STILL),
            "what was not tried took no time: {fence:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_intents_were_taken_back_can_be_withdrawn() {
    let (world, result) = decided_and_slow(2, None).await;
    result.expect_err("too old");
    let outcome = withdraw(&world.ports(), &HERE.into(), BROKER).await.expect("nothing was touched");
    assert_eq!(outcome.label(), "withdrawn");
    assert!(matches!(standing(&world).await.state, Some(EpochState::Ended { .. })));
    assert_eq!(standing(&world).await.nonsense, None);
}

#[tokio::test(start_paused = true)]
async fn what_a_person_ordered_does_not_grow_old() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    world.truth().slow_write = Some((2, STOOD_STILL));
    let outcome = take_over(&world.ports(), plan, Cause::Manual, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered");
}

#[tokio::test(start_paused = true)]
async fn what_was_touched_is_carried_on_however_old_the_decision_is() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    let decided = Some(world.now().mono);
    // Dies once the fence is written down as done.
    world.truth().render_takes = Duration::from_secs(4);
    world.truth().crash = Some(Crash::After(3));
    take_over(&world.ports(), plan, Cause::Automatic, None, decided).await.expect_err("it died");
    assert!(touched(&world).await);
    world.sleep(STOOD_STILL).await;
    let outcome = resume(&world.ports(), &HERE.into(), BROKER, decided).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered");
}

#[tokio::test(start_paused = true)]
async fn intents_that_the_ledger_did_not_confirm_are_taken_back_as_well() {
    let (world, result) = decided_and_slow(2, Some(Crash::After(2))).await;
    assert!(matches!(result, Err(TakeoverError::Unfinished(..))), "{result:?}");
    assert!(world.truth().fenced.is_empty() && !touched(&world).await);
    // Those that never got there are not missed.
    let (world, result) = decided_and_slow(2, Some(Crash::Before(2))).await;
    assert!(matches!(result, Err(TakeoverError::Unfinished(..))), "{result:?}");
    assert_eq!(journal(&world).await.records.len(), 1, "nothing to take back");
}

#[tokio::test(start_paused = true)]
async fn intents_are_taken_back_once_whatever_becomes_of_that_write() {
    for crash in [Crash::Before(3), Crash::After(3)] {
        let (world, result) = decided_and_slow(2, Some(crash)).await;
        assert!(matches!(result, Err(TakeoverError::Outdated(..))), "{crash:?}: {result:?}");
        assert!(!touched(&world).await, "{crash:?}");
        assert_eq!(not_tried(&world).await, 1, "{crash:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_run_that_meant_to_begin_can_say_that_it_did_not() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    world.truth().crash = Some(Crash::After(2));
    // Ordered by a person: it ends with the ledger's error, and the intents stand.
    take_over(&world.ports(), plan, Cause::Manual, None, None).await.expect_err("it died");
    let mut journal = journal(&world).await;
    let seqs: Vec<u64> = journal.records.iter().skip(1).map(|record| record.seq).collect();
    assert!(!seqs.is_empty());
    let back = Entry::NotTried { intents: seqs.clone(), why: "late".to_owned() };
    let record = |seq, entry| Record { seq, at: journal.claim.at, by: HERE.into(), entry };
    let next = journal.records.len() as u64;
    let (alive, dead) = (record(next, back.clone()), record(next, Entry::Resumed));
    let late = record(next + 1, back);
    let stand = |more: &[&Record]| {
        let records: Vec<Record> = journal.records.iter().chain(more.iter().copied()).cloned().collect();
        seqs.iter().filter(|seq| Intents::of(&records).stands(**seq)).count()
    };
    assert_eq!(stand(&[&alive]), 0);
    assert_eq!(stand(&[&alive, &late]), 0, "said twice");
    assert_eq!(stand(&[&dead, &late]), seqs.len(), "what a run that died has tried, nobody knows");
    journal.records.extend([dead, late]);
    assert!(Progress::replay(&journal).is_ok_and(|progress| progress.touched()));
}
