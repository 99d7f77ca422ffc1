//! `sim`: runs many seeds, counts how they end, and shows the first that breaks a promise.
#![allow(clippy::print_stdout, reason = "this program's output is what it is for")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use sim::scenario::{Bug, Scenario};
use sim::{generate, run, shrink};

/// Simulate whole clusters, one from each seed.
#[derive(Parser)]
struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Threads; as many as there are processors by default.
    #[arg(long)]
    jobs: Option<usize>,
    /// Go on after a failing seed, and count the rules that were broken.
    #[arg(long)]
    keep_going: bool,
    /// Plant a bug, to see that it is found.
    #[arg(long)]
    bug: Option<Bug>,
    /// Show one seed's transcript, whether it fails or not.
    #[arg(long)]
    show: bool,
}

#[derive(Default)]
struct Tally {
    ends: BTreeMap<String, u64>,
    /// By rule: how often, and the first seed.
    broken: BTreeMap<String, (u64, u64)>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.show {
        print_run(&scenario(args.from, args.bug));
        return ExitCode::SUCCESS;
    }
    let begun = Instant::now();
    let (next, last) = (AtomicU64::new(args.from), args.from.saturating_add(args.seeds));
    let (ran, tally) = (AtomicU64::new(0), Mutex::new(Tally::default()));
    let jobs = args.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last {
                        return;
                    }
                    let failed = one(seed, args.bug, &tally);
                    ran.fetch_add(1, Ordering::Relaxed);
                    if failed && !args.keep_going {
                        next.store(last, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (ran, seconds) = (ran.into_inner(), begun.elapsed().as_secs_f64());
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{ran} seeds in {seconds:.1} s: {:.0} seeds/s", ran as f64 / seconds);
    for (end, count) in &tally.ends {
        println!("  {count:>8} brokers ended {end}");
    }
    let Some(first) = tally.broken.values().map(|(_, seed)| *seed).min() else { return ExitCode::SUCCESS };
    for (rule, (count, seed)) in &tally.broken {
        println!("  {count:>8} seeds broke \"{rule}\", the first is {seed}");
    }
    let bug = args.bug.and_then(|bug| bug.to_possible_value());
    let planted = bug.map(|bug| format!(" --bug {}", bug.get_name())).unwrap_or_default();
    println!("\nto see it again: cargo xtask sim --from {first} --show{planted}");
    println!("\nseed {first}, made as small as it gets:\n");
    print_run(&shrink::shrink(&scenario(first, args.bug)));
    ExitCode::FAILURE
}

fn one(seed: u64, bug: Option<Bug>, tally: &Mutex<Tally>) -> bool {
    let report = run(&scenario(seed, bug), false);
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    for end in &report.ends {
        *tally.ends.entry(format!("{end:?}")).or_default() += 1;
    }
    if let (Some(rule), Some(violation)) = (report.rule(), &report.violation) {
        eprintln!("seed {seed}: {violation}");
        let entry = tally.broken.entry(rule.to_owned()).or_insert((0, seed));
        *entry = (entry.0 + 1, entry.1.min(seed));
    }
    report.violation.is_some()
}

fn scenario(seed: u64, bug: Option<Bug>) -> Scenario {
    bug.map_or_else(|| generate::scenario(seed), |bug| generate::planted(seed, bug))
}

fn print_run(scenario: &Scenario) {
    println!("{scenario}");
    let report = run(scenario, true);
    for line in &report.transcript {
        println!("{line}");
    }
    println!("\n{:?} after {} simulated ms", report.ends, report.took);
    if let Some(violation) = &report.violation {
        println!("VIOLATION of {violation}");
    }
}
