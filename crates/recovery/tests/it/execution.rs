//! Failure at each step, a crash at each write, and the promises that must hold through all of them.

use std::time::Duration;

use crate::dead::{dead_broker, ended_by_itself, journal, promises_hold, standing};
use fakes::{BROKER, Crash, Fault, World};
use recovery::journal::Entry;
use recovery::model::{Cause, HostName, Outcome};
use recovery::plan::{Phase, Plan, Stage, Step};
use recovery::ports::{Clock, Ledger};
use recovery::progress::phases;
use recovery::takeover::{TakeoverError, resume, take_over};

const HERE: &str = "standby-1";

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
async fn the_registration_of_a_host_that_moved_is_left_alone() {
    let world = World::new();
    let plan = dead_broker(&world).await;
    world.truth().moved.insert(plan.from.clone());
    let outcome =
        take_over(&world.ports(), plan, Cause::Automatic, None, None).await.expect("runs to an end");
    assert_eq!(outcome.label(), "recovered");
    assert_eq!(world.truth().unregister_sent, 0, "it may be that of a new incarnation");
    promises_hold(&world, "moved");
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
        ("start_broker", Fault::Refuse, "abandoned"),
        ("start_broker", Fault::Unconfirmed, "abandoned"),
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

/// The crash was a loss of power: whatever write it was at, what stood in the journal as done is gone from
/// the host.
#[tokio::test(start_paused = true)]
async fn a_loss_of_power_before_the_start_and_a_resume_end_with_address_and_storage() {
    let mut lost = 0;
    for n in 2.. {
        let world = World::new();
        let plan = dead_broker(&world).await;
        world.truth().crash = Some(Crash::After(n));
        if take_over(&world.ports(), plan, Cause::Automatic, None, None).await.is_ok()
            || world.truth().starts > 0
        {
            break;
        }
        lost += usize::from(world.truth().address_here && world.truth().storage_here);
        (world.truth().address_here, world.truth().storage_here) = (false, false);
        let outcome = resume(&world.ports(), &HERE.into(), BROKER, None).await.expect("runs to an end");
        assert_eq!(outcome.label(), "recovered", "write {n}: {outcome:?}");
        assert!(
            world.truth().address_here && world.truth().storage_here,
            "write {n}: Kafka runs without them"
        );
        promises_hold(&world, &format!("write {n}"));
    }
    assert!(lost > 2, "nothing was lost that was there: {lost}");
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
async fn a_broker_that_ends_by_itself_can_be_started_again_without_a_fence() {
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
