//! Measures takeovers, each beside its reference on the same cluster: the same broker, killed and restarted at
//! once in place, with stock flags and the default session.
//!
//! Run by `cargo xtask bench takeover --runs N --json FILE`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use e2e::kafka::{ClusterSpec, Jvm};
use e2e::scenario::{PARTITIONS, Scenario, Setup, VICTIM};
use e2e::{Lab, eventually, performance};
use serde::{Deserialize, Serialize};

/// Bulk on each broker, beside what the writer adds.
const BYTES: u64 = 1 << 30;
/// Over which the brokers' use of the processor is taken.
const WINDOW: Duration = Duration::from_secs(5);
/// Cores that all brokers together use once they are warm.
const CALM: f64 = 0.6;
/// After this long they are taken as they are.
const WARM_UP: Duration = Duration::from_secs(45);
/// The phases of a takeover, as the agent's metrics name them.
const PHASES: [&str; 9] =
    ["detect", "claim", "fence", "prove", "prepare", "verify", "start", "rejoin", "settle"];

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Several takeovers, each on a cluster of its own.
    Takeover {
        #[arg(long)]
        runs: u32,
        #[arg(long)]
        json: PathBuf,
    },
    /// One of them: what `takeover` starts.
    One {
        #[arg(long)]
        json: PathBuf,
    },
}

#[derive(Serialize, Deserialize)]
struct One {
    run: Run,
    reference: Reference,
}

#[derive(Clone, Serialize, Deserialize)]
struct Run {
    time_to_isr_s: f64,
    phases_s: BTreeMap<String, f64>,
    producer_stall_s: f64,
    acked: usize,
    lost: usize,
}

#[derive(Clone, Serialize, Deserialize)]
struct Reference {
    time_to_isr_s: f64,
}

#[derive(Serialize)]
struct Figures {
    runs: Vec<Run>,
    reference: Vec<Reference>,
    median: Median,
}

#[derive(Serialize)]
struct Median {
    time_to_isr_s: f64,
    reference_s: f64,
    ratio: f64,
}

fn main() -> Result<()> {
    match Args::parse().what {
        What::One { json } => performance("bench", |lab| one(lab, &json)),
        What::Takeover { runs, json } => all(runs, &json),
    }
}

fn all(runs: u32, json: &PathBuf) -> Result<()> {
    ensure!(runs > 0, "--runs must be at least 1");
    let folder = tempfile::tempdir()?;
    let mut figures: Vec<One> = Vec::new();
    for run in 1..=runs {
        let file = folder.path().join(format!("{run}.json"));
        let mut command = Command::new(std::env::current_exe()?);
        let status = command.arg("one").arg("--json").arg(&file).stdin(Stdio::null()).status()?;
        ensure!(status.success(), "run {run} of {runs} failed ({status})");
        let one: One = serde_json::from_slice(&fs::read(&file)?)?;
        eprintln!(
            "run {run} of {runs}: time-to-ISR {:.2} s, in-place restart {:.2} s",
            one.run.time_to_isr_s, one.reference.time_to_isr_s
        );
        figures.push(one);
    }
    let runs: Vec<Run> = figures.iter().map(|one| one.run.clone()).collect();
    let reference: Vec<Reference> = figures.into_iter().map(|one| one.reference).collect();
    let time_to_isr_s = median(runs.iter().map(|run| run.time_to_isr_s));
    let reference_s = median(reference.iter().map(|run| run.time_to_isr_s));
    let median = Median { time_to_isr_s, reference_s, ratio: time_to_isr_s / reference_s };
    eprintln!("median: {time_to_isr_s:.2} s against {reference_s:.2} s, ratio {:.2}", median.ratio);
    let text = serde_json::to_string_pretty(&Figures { runs, reference, median })?;
    fs::write(json, text + "\n").with_context(|| format!("cannot write {}", json.display()))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

fn one(lab: &Lab, json: &PathBuf) -> Result<()> {
    let cluster = ClusterSpec {
        jvm: Jvm::stock("768m"),
        // Most of a real broker's data is in closed segments, which Kafka has flushed: a crash makes it scan
        // the active ones only.
        properties: vec![("log.segment.bytes".to_owned(), (8 << 20).to_string())],
        // A broker that is back after a restart in place gets its partitions back within seconds.
        controller_properties: vec![("leader.imbalance.check.interval.seconds".to_owned(), "5".to_owned())],
        ..ClusterSpec::default()
    };
    let scenario = Scenario::begin(lab, &Setup { cluster, rate: 150, ..Setup::default() })?;
    scenario.cluster.create_topic("bulk", PARTITIONS, 3, 2)?;
    scenario.cluster.load("bulk", PARTITIONS, BYTES)?;
    scenario.cluster.wait_complete(Duration::from_secs(120))?;
    // What is measured is a takeover, not the disk that still takes in what was loaded.
    rustix::fs::sync();
    lab.note(format!("{} MiB on each broker", BYTES >> 20));

    // Reference and takeover both meet a cluster that has been through this before, and are measured alike.
    lab.note("rehearsal");
    in_place(&scenario)?;
    settle(lab, &scenario)?;
    let reference = in_place(&scenario)?;
    settle(lab, &scenario)?;

    scenario.start_agents()?;
    scenario.flows(1000)?;
    let fault = Instant::now();
    let victim = scenario.victim()?.clone();
    let rejoin = scenario.recovered_after(Duration::from_secs(120), || victim.power_off())?;
    scenario.decided("healthy", Duration::from_secs(60))?;
    let mut phases_s = BTreeMap::new();
    for phase in PHASES {
        let series = format!("understudy_phase_seconds_sum{{broker=\"{VICTIM}\",phase=\"{phase}\"}}");
        let seconds = scenario.agent.metric(&series)?.with_context(|| format!("no duration of {phase}"))?;
        phases_s.insert(phase.to_owned(), seconds);
    }
    let end = scenario.verdict()?;
    // From a second before the fault on, for records that were on their way.
    let stall = end.history.since(fault.checked_sub(Duration::from_secs(1)).unwrap_or(fault)).longest_wait();
    let run = Run {
        time_to_isr_s: rejoin.all_in_sync,
        phases_s,
        producer_stall_s: stall.as_secs_f64(),
        acked: end.history.acked.len(),
        lost: end.lost,
    };
    let one = One { run, reference };
    fs::write(json, serde_json::to_string(&one)?).with_context(|| format!("cannot write {}", json.display()))
}

/// Waits until everything is in sync, every leader where it prefers to be, and the brokers calm: in its first
/// minutes a Java virtual machine compiles on every core there is, and one that starts gets what is left.
fn settle(lab: &Lab, scenario: &Scenario) -> Result<()> {
    scenario.cluster.wait_complete(Duration::from_secs(60))?;
    eventually("every leader to be where it prefers to be", Duration::from_secs(60), || {
        let view = scenario.cluster.view()?;
        let away = view.partitions.iter().filter(|p| p.replicas.first() != Some(&p.leader)).count();
        ensure!(away == 0, "{away} leaders are elsewhere");
        Ok(())
    })?;
    let begin = Instant::now();
    let used = || -> Result<f64> {
        scenario.cluster.brokers().iter().map(|broker| cpu_seconds(broker.process()?.pid())).sum()
    };
    loop {
        let before = used()?;
        std::thread::sleep(WINDOW);
        let cores = (used()? - before) / WINDOW.as_secs_f64();
        if cores < CALM || begin.elapsed() > WARM_UP {
            lab.note(format!(
                "the brokers use {cores:.2} cores after {:.0} s",
                begin.elapsed().as_secs_f64()
            ));
            return Ok(());
        }
    }
}

/// User and system time of a process, by its kernel (fields 14 and 15 of its `stat`, in hundredths).
fn cpu_seconds(pid: i32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}

/// The reference: no takeover, no other host; the process dies and is started again at once where it was.
fn in_place(scenario: &Scenario) -> Result<Reference> {
    let broker = scenario.cluster.broker(VICTIM)?;
    let rejoin = scenario.recovered_after(Duration::from_secs(120), || {
        broker.process()?.kill()?;
        broker.start().map(drop)
    })?;
    Ok(Reference { time_to_isr_s: rejoin.all_in_sync })
}
