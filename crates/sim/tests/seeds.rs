//! Some hundred seeds on every commit, a place to paste one into, and what the simulation itself must be.

use std::thread;

use sim::scenario::{Fault, Scenario, Timed};
use sim::{End, generate, run, shrink};

/// Paste a failing seed here, and run `cargo test -p understudy-sim pasted -- --nocapture`.
const PASTED: u64 = 394;

#[test]
fn a_pasted_seed() {
    let scenario = generate::scenario(PASTED);
    let report = run(&scenario, true);
    let transcript = report.transcript.join("\n");
    let shown = || format!("{}\n{transcript}", shrink::shrink(&scenario));
    assert!(report.violation.is_none(), "{}\n{:?}", shown(), report.violation);
}

/// Each broke a promise once: a standby took a second broker over beside its own claim, and the first one's home fenced
/// it; a wall clock that jumped back kept a claimant waiting, and one that had died meanwhile; a takeover that nobody saw in `status`. What a seed makes may
/// change with the generator; then these are seeds like any other.
#[test]
fn seeds_that_failed_once() {
    for seed in [59_648, 210_726, 244_468, 285_032, 404_123, 511_221, 613_198, 805_883] {
        let report = run(&generate::scenario(seed), false);
        assert!(report.violation.is_none(), "seed {seed}: {:?}", report.violation);
    }
}

#[test]
fn some_hundred_seeds_keep_every_promise() {
    let half = |from: u64| (from..400).step_by(2).map(|seed| (seed, run(&generate::scenario(seed), false)));
    let reports: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = [0, 1].map(|from| scope.spawn(move || half(from).collect::<Vec<_>>())).into();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let broken: Vec<_> = reports.iter().filter(|(_, report)| report.violation.is_some()).collect();
    assert!(broken.is_empty(), "{broken:?}");
    // A simulation in which nothing happens would keep every promise as well.
    let ended = |end| reports.iter().filter(|(_, report)| report.ends.contains(&end)).count();
    assert!(ended(End::Recovered) > 200, "only {} runs had a recovery", ended(End::Recovered));
    assert!(
        ended(End::Held) > 5 && ended(End::Escalated) > 2,
        "{:?}",
        [End::Held, End::Escalated].map(ended)
    );
    assert!(reports.iter().map(|(_, report)| report.acts).sum::<u64>() > 2_000);
}

#[test]
fn a_run_is_the_same_twice() {
    for seed in 0..20 {
        let scenario = generate::scenario(seed);
        assert_eq!(run(&scenario, true).transcript, run(&scenario, true).transcript, "seed {seed}");
    }
}

#[test]
fn a_dead_host_among_healthy_ones_is_recovered() {
    for seed in 0..10 {
        let events = vec![Timed { at: 5_000, lasts: 0, what: Fault::HostDies(0) }];
        let scenario = Scenario { events, approve: false, ..generate::scenario(seed) };
        let report = run(&scenario, true);
        assert_eq!(report.violation, None);
        assert_eq!(
            report.ends.first(),
            Some(&End::Recovered),
            "{scenario}\n{}",
            report.transcript.join("\n")
        );
    }
}

#[test]
fn a_broker_that_lost_its_registration_is_started_again() {
    let lost = |at| Timed { at, lasts: 0, what: Fault::Unregistered(0) };
    let dies = Timed { at: 5_000, lasts: 0, what: Fault::HostDies(0) };
    for seed in 0..10 {
        for events in [vec![lost(10_000)], vec![dies.clone(), lost(60_000)]] {
            let scenario = Scenario { events, approve: false, home_agents: true, ..generate::scenario(seed) };
            let report = run(&scenario, true);
            assert_eq!(report.violation, None, "{scenario}\n{}", report.transcript.join("\n"));
            let killed = report.transcript.iter().filter(|line| line.contains("is killed on host")).count();
            assert_eq!((report.ends.first(), killed), (Some(&End::Recovered), 1), "{scenario}");
        }
    }
}

#[test]
fn nothing_is_done_where_nothing_is_wrong() {
    for seed in 0..10 {
        let scenario = Scenario { events: Vec::new(), ..generate::scenario(seed) };
        let report = run(&scenario, false);
        assert!(report.ends.iter().all(|end| *end == End::Untouched) && report.acts == 0, "{report:?}");
    }
}
