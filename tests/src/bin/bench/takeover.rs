//! Measures takeovers, each beside its reference on the same cluster: the same broker, killed and restarted at
//! once in place, with stock flags and the default session.
//!
//! `cargo xtask bench takeover --runs N --json FILE`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::kafka::{ClusterSpec, Jvm};
use e2e::scenario::{End, PARTITIONS, Scenario, Setup, VICTIM};
use e2e::{Lab, eventually};
use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;
use crate::figures::{Figure, Row, cpu_seconds};
use crate::write;

/// Bulk on each broker, beside what the writer adds.
const BYTES: u64 = 1 << 30;
/// Over which the brokers' use of the processor is taken.
const WINDOW: Duration = Duration::from_secs(5);
/// Cores that all brokers together use once they are warm.
const CALM: f64 = 0.6;
/// After this long they are taken as they are.
const WARM_UP: Duration = Duration::from_secs(45);
/// What a takeover of 50 partitions and 1.5 GB should take, and make a producer wait, on two idle cores.
const AIM_TIME_TO_ISR_S: f64 = 6.0;
const AIM_STALL_S: f64 = 4.0;
/// The phases of a takeover, as the agent's metrics name them.
const PHASES: [&str; 9] =
    ["detect", "claim", "fence", "prove", "prepare", "verify", "start", "rejoin", "settle"];

#[derive(Serialize, Deserialize)]
struct One {
    run: Run,
    reference: Reference,
}

#[derive(Clone, Serialize, Deserialize)]
struct Run {
    time_to_isr_s: f64,
    phases_s: BTreeMap<String, f64>,
    /// The longest wait for one acknowledgement.
    producer_stall_s: f64,
    /// The longest that one partition gave the group nothing to read.
    consumer_stall_s: f64,
    acked: usize,
    lost: usize,
}

/// The same of a restart in place.
#[derive(Clone, Serialize, Deserialize)]
struct Reference {
    time_to_isr_s: f64,
    producer_stall_s: f64,
    consumer_stall_s: f64,
}

#[derive(Serialize)]
struct Figures {
    conditions: Conditions,
    table: Vec<Row>,
    takeover: Summary,
    reference: Summary,
    /// Of the medians.
    ratio: f64,
    /// Seconds, by phase.
    phases_s: BTreeMap<String, Figure>,
    runs: Vec<Run>,
    references: Vec<Reference>,
}

/// Seconds.
#[derive(Serialize)]
struct Summary {
    time_to_isr: Figure,
    producer_stall: Figure,
    consumer_stall: Figure,
}

pub(crate) fn all(runs: u32, json: &Path) -> Result<()> {
    ensure!(runs > 0, "--runs must be at least 1");
    let conditions = Conditions::read()?;
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
    let figures = Figures::of(conditions, figures)?;
    let (takeover, reference) = (&figures.takeover.time_to_isr, &figures.reference.time_to_isr);
    eprintln!("median: {takeover} s against {reference} s, ratio {:.2}", figures.ratio);
    write(json, &figures)
}

impl Figures {
    fn of(conditions: Conditions, measured: Vec<One>) -> Result<Self> {
        let (runs, references): (Vec<_>, Vec<_>) =
            measured.into_iter().map(|one| (one.run, one.reference)).unzip();
        let of = |value: fn(&Run) -> f64| Figure::of(runs.iter().map(value));
        let takeover = Summary {
            time_to_isr: of(|run| run.time_to_isr_s)?,
            producer_stall: of(|run| run.producer_stall_s)?,
            consumer_stall: of(|run| run.consumer_stall_s)?,
        };
        let of = |value: fn(&Reference) -> f64| Figure::of(references.iter().map(value));
        let reference = Summary {
            time_to_isr: of(|run| run.time_to_isr_s)?,
            producer_stall: of(|run| run.producer_stall_s)?,
            consumer_stall: of(|run| run.consumer_stall_s)?,
        };
        let phases = PHASES.iter().map(|phase| {
            let seconds = runs.iter().filter_map(|run| run.phases_s.get(*phase).copied());
            Ok(((*phase).to_owned(), Figure::of(seconds)?))
        });
        let phases_s = phases.collect::<Result<_>>()?;
        let ratio = takeover.time_to_isr.median / reference.time_to_isr.median;
        let table = vec![
            Row::new("time-to-ISR of a takeover", "s", takeover.time_to_isr).aim(AIM_TIME_TO_ISR_S),
            Row::new("time-to-ISR of a restart in place", "s", reference.time_to_isr),
            Row::new("longest wait of the producer, takeover", "s", takeover.producer_stall).aim(AIM_STALL_S),
            Row::new("longest wait of the producer, restart in place", "s", reference.producer_stall),
            Row::new("longest wait of the consumer, takeover", "s", takeover.consumer_stall),
            Row::new("longest wait of the consumer, restart in place", "s", reference.consumer_stall),
        ];
        Ok(Self { conditions, table, takeover, reference, ratio, phases_s, runs, references })
    }
}

pub(crate) fn one(lab: &Lab, json: &Path) -> Result<()> {
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
    let reference_begin = Instant::now();
    let reference = in_place(&scenario)?;
    let reference_end = Instant::now();
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
    let recovered = Instant::now();
    let end = scenario.verdict()?;
    let (producer_stall_s, consumer_stall_s) = stalls(&end, fault, recovered);
    let in_reference = stalls(&end, reference_begin, reference_end);
    let reference = Reference {
        time_to_isr_s: reference,
        producer_stall_s: in_reference.0,
        consumer_stall_s: in_reference.1,
    };
    let run = Run {
        time_to_isr_s: rejoin.all_in_sync,
        phases_s,
        producer_stall_s,
        consumer_stall_s,
        acked: end.history.acked.len(),
        lost: end.lost,
    };
    let one = One { run, reference };
    fs::write(json, serde_json::to_string(&one)?).with_context(|| format!("cannot write {}", json.display()))
}

/// The longest waits of producer and consumer, in seconds, from a fault until all was well again.
fn stalls(end: &End, fault: Instant, well: Instant) -> (f64, f64) {
    // From a second before on, for records that were on their way.
    let from = fault.checked_sub(Duration::from_secs(1)).unwrap_or(fault);
    let mut written = end.history.since(from);
    written.acked.retain(|record| record.sent <= well);
    (written.longest_wait().as_secs_f64(), end.read.longest_gap(fault, well).as_secs_f64())
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

/// The reference: no takeover, no other host; the process dies and is started again at once where it was.
fn in_place(scenario: &Scenario) -> Result<f64> {
    let broker = scenario.cluster.broker(VICTIM)?;
    let rejoin = scenario.recovered_after(Duration::from_secs(120), || {
        broker.process()?.kill()?;
        broker.start().map(drop)
    })?;
    Ok(rejoin.all_in_sync)
}
