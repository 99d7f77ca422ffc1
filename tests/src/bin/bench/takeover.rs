//! Measures takeovers, each beside its reference on the same cluster: the same broker, killed and restarted
//! at once in place, with stock flags and the default session.
//!
//! `cargo xtask bench takeover --runs N --json FILE`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use e2e::history::History;
use e2e::kafka::{ClusterSpec, Jvm, Security};
use e2e::scenario::{End, Scenario, Setup, VICTIM};
use e2e::{Lab, eventually};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::conditions::Conditions;
use crate::figures::{Figure, Row, cpu_seconds};
use crate::{in_its_own_lab, write};

/// On each broker, beside what the load adds.
const BYTES: u64 = 3 << 29;
/// Over which the brokers' use of the processor is taken.
const WINDOW: Duration = Duration::from_secs(5);
/// Cores that all brokers together use once they are warm, and for so many windows in a row.
const CALM: f64 = 0.6;
const CALM_WINDOWS: u32 = 2;
/// After this long they are taken as they are. Brokers that began to run together compile for minutes where
/// cores are few.
pub(crate) const WARM_UP: Duration = Duration::from_secs(240);
/// What a takeover of 50 partitions and 1.5 GB should take, and make a producer wait, on two idle cores.
const AIM_TIME_TO_ISR_S: f64 = 6.0;
const AIM_STALL_S: f64 = 4.0;
const AIM_AFTER_PROOF_S: f64 = 0.3;
/// Of a takeover's time-to-ISR to that of a restart in place.
const AIM_RATIO: f64 = 0.5;
/// The same of a secured cluster to that of one in plaintext.
const AIM_RATIO_SECURED: f64 = 1.15;
/// The phases of a takeover, as the agent's metrics name them.
pub(crate) const PHASES: [&str; 9] =
    ["detect", "claim", "fence", "prove", "prepare", "verify", "start", "rejoin", "settle"];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// For the Java that the standby starts, before those that Kafka's scripts would use.
    #[arg(long, allow_hyphen_values = true)]
    java_options: Option<String>,
    /// For every broker, beside those of the bed; `KEY=VALUE`.
    #[arg(long, value_parser = pair)]
    broker_property: Vec<(String, String)>,
    /// How the cluster is secured. Each takeover has one in plaintext beside it, on a cluster of its own.
    #[arg(long, value_enum, default_value = "plaintext")]
    security: Security,
    #[arg(long)]
    json: PathBuf,
}

impl Options {
    /// How one takeover is asked for.
    fn one(&self, security: Security) -> Vec<String> {
        let mut words = vec!["one".to_owned()];
        words.extend(self.java_options.iter().map(|options| format!("--java-options={options}")));
        let properties = self.broker_property.iter();
        words.extend(properties.map(|(key, value)| format!("--broker-property={key}={value}")));
        let security = security.to_possible_value();
        words.extend(security.map(|value| format!("--security={}", value.get_name())));
        words
    }
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
    /// The longest wait for one acknowledgement.
    producer_stall_s: f64,
    /// The same, counted from the proof of the fence on.
    producer_stall_after_proof_s: f64,
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
    /// What the standby's Java was told besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    java_options: Option<String>,
    /// What every broker was told besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    broker_properties: Vec<(String, String)>,
    /// How the cluster is secured, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    security: Option<String>,
    /// Seconds: the takeovers of clusters in plaintext, beside those of secured ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_plaintext: Option<Figure>,
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

pub(crate) fn all(runs: u32, options: &Options) -> Result<()> {
    ensure!(runs > 0, "--runs must be at least 1");
    let conditions = Conditions::read()?;
    let folder = tempfile::tempdir()?;
    let measure = |security, file: String| {
        let words = options.one(security);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        in_its_own_lab::<One>(&words, &folder.path().join(file))
    };
    let (mut figures, mut in_plaintext) = (Vec::new(), Vec::new());
    for run in 1..=runs {
        if options.security != Security::Plaintext {
            let plain = measure(Security::Plaintext, format!("{run}-plaintext.json"))?.run.time_to_isr_s;
            eprintln!("run {run} of {runs}: time-to-ISR {plain:.2} s in plaintext");
            in_plaintext.push(plain);
        }
        let one = measure(options.security, format!("{run}.json"))?;
        eprintln!(
            "run {run} of {runs}: time-to-ISR {:.2} s, in-place restart {:.2} s",
            one.run.time_to_isr_s, one.reference.time_to_isr_s
        );
        figures.push(one);
    }
    let in_plaintext = (!in_plaintext.is_empty()).then(|| Figure::of(in_plaintext)).transpose()?;
    let figures = Figures::of(conditions.until_now()?, options, figures, in_plaintext)?;
    let (takeover, reference) = (&figures.takeover.time_to_isr, &figures.reference.time_to_isr);
    eprintln!("median: {takeover} s against {reference} s, ratio {:.2}", figures.ratio);
    write(&options.json, &figures)
}

impl Figures {
    fn of(
        conditions: Conditions,
        options: &Options,
        measured: Vec<One>,
        in_plaintext: Option<Figure>,
    ) -> Result<Self> {
        let (runs, references): (Vec<_>, Vec<_>) =
            measured.into_iter().map(|one| (one.run, one.reference)).unzip();
        let of = |value: fn(&Run) -> f64| Figure::of(runs.iter().map(value));
        let takeover = Summary {
            time_to_isr: of(|run| run.time_to_isr_s)?,
            producer_stall: of(|run| run.producer_stall_s)?,
            consumer_stall: of(|run| run.consumer_stall_s)?,
        };
        let after_proof = of(|run| run.producer_stall_after_proof_s)?;
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
        let mut table = vec![
            Row::new("time-to-ISR of a takeover", "s", takeover.time_to_isr).aim(AIM_TIME_TO_ISR_S),
            Row::new("time-to-ISR of a restart in place", "s", reference.time_to_isr),
            Row::new("ratio of their medians", "×", Figure::once(ratio)).aim(AIM_RATIO),
            Row::new("longest wait of the producer, takeover", "s", takeover.producer_stall).aim(AIM_STALL_S),
            Row::new("longest wait of the producer from the proof on, takeover", "s", after_proof)
                .aim(AIM_AFTER_PROOF_S),
            Row::new("longest wait of the producer, restart in place", "s", reference.producer_stall),
            Row::new("longest wait of the consumer, takeover", "s", takeover.consumer_stall),
            Row::new("longest wait of the consumer, restart in place", "s", reference.consumer_stall),
        ];
        if let Some(plain) = in_plaintext {
            let ratio = takeover.time_to_isr.median / plain.median;
            eprintln!("median in plaintext: {plain} s, ratio {ratio:.2}");
            table.push(Row::new("time-to-ISR of a takeover in plaintext", "s", plain));
            let row = Row::new("ratio of the medians, secured to plaintext", "×", Figure::once(ratio));
            table.push(row.aim(AIM_RATIO_SECURED));
        }
        let secured = options.security.to_possible_value().filter(|_| in_plaintext.is_some());
        Ok(Self {
            conditions,
            java_options: options.java_options.clone(),
            broker_properties: options.broker_property.clone(),
            security: secured.map(|value| value.get_name().to_owned()),
            in_plaintext,
            table,
            takeover,
            reference,
            ratio,
            phases_s,
            runs,
            references,
        })
    }
}

pub(crate) fn one(lab: &Lab, options: &Options) -> Result<()> {
    // Most of a real broker's data is in closed segments, which Kafka has flushed: a crash makes it scan the
    // active ones only.
    let mut properties = vec![("log.segment.bytes".to_owned(), (8 << 20).to_string())];
    properties.extend_from_slice(&options.broker_property);
    let cluster = ClusterSpec {
        jvm: Jvm::stock("768m"),
        properties,
        security: options.security,
        // A broker that is back after a restart in place gets its partitions back by itself, and one that was
        // taken over from the agent.
        controller_properties: vec![("leader.imbalance.check.interval.seconds".to_owned(), "30".to_owned())],
        ..ClusterSpec::default()
    };
    // The agent at the broker's home tells the standby's who is connected.
    let setup = Setup { cluster, rate: 150, at_home: &[VICTIM], peers: true, ..Setup::default() };
    let mut scenario = Scenario::begin(lab, &setup)?;
    scenario.load(BYTES)?;
    scenario.cluster.wait_complete(Duration::from_secs(120))?;
    // What is measured is a takeover, not the disk that still takes in what was loaded.
    rustix::fs::sync();
    lab.note(format!("{} MiB on each broker", BYTES >> 20));

    // Reference and takeover both meet a cluster that has been through this before, and are measured alike.
    lab.note("rehearsal");
    in_place(&scenario)?;
    if let Some(words) = &options.java_options {
        tell_java(&scenario, words)?;
    }
    // A standby has its class-data archive made long before it is needed.
    scenario.cli(&["warm"], 0)?;
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
    let (recovered, proof) = (Instant::now(), proven(&scenario.journal())?);
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
        producer_stall_after_proof_s: wait_after(&end.history, proof, recovered),
        consumer_stall_s,
        acked: end.history.acked.len(),
        lost: end.lost,
    };
    let one = One { run, reference };
    write(&options.json, &one)
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Has the standby start Kafka with these options of Java as well.
fn tell_java(scenario: &Scenario, words: &str) -> Result<()> {
    let path = scenario.standby.local().join("understudy.toml");
    let environment = BTreeMap::from([("JDK_JAVA_OPTIONS", words)]);
    let section =
        toml::to_string(&BTreeMap::from([("broker_host", BTreeMap::from([("environment", environment)]))]))?;
    let config = std::fs::read_to_string(&path)?;
    Ok(std::fs::write(&path, format!("{config}\n{section}"))?)
}

/// The longest waits of producer and consumer, in seconds, from a fault until all was well again.
fn stalls(end: &End, fault: Instant, well: Instant) -> (f64, f64) {
    (longest_wait(&end.history, fault, well), end.read.longest_gap(fault, well).as_secs_f64())
}

/// The longest wait of a record for its acknowledgement, in seconds, from a second before a fault until all
/// was well again.
pub(crate) fn longest_wait(history: &History, fault: Instant, well: Instant) -> f64 {
    // From a second before on, for records that were on their way.
    let from = fault.checked_sub(Duration::from_secs(1)).unwrap_or(fault);
    let mut written = history.since(from);
    written.acked.retain(|record| record.sent <= well);
    written.longest_wait().as_secs_f64()
}

/// The longest that a record waited from `proof` on, in seconds.
fn wait_after(history: &History, proof: Instant, well: Instant) -> f64 {
    let records = history.acked.iter().filter(|record| record.acked >= proof && record.sent <= well);
    let waits = records.map(|record| record.acked.duration_since(record.sent.max(proof)));
    waits.max().unwrap_or_default().as_secs_f64()
}

/// When the last proof of a journal was there. The clock must not have been set since.
fn proven(journal: &str) -> Result<Instant> {
    let records = journal.lines().filter_map(|line| line.get(line.find('[')?..));
    let records = records.map(serde_json::from_str::<Vec<Value>>).collect::<Result<Vec<_>, _>>()?.concat();
    let stages = records.iter().find_map(|record| record["entry"]["claim"]["plan"]["stages"].as_array());
    let steps = stages.into_iter().flatten().filter_map(|stage| stage["steps"].as_array()).flatten();
    let proofs: Vec<usize> =
        steps.enumerate().filter(|(_, step)| step["step"] == "prove").map(|(place, _)| place).collect();
    let done = records.iter().rfind(|record| {
        record["entry"]["entry"] == "done" && proofs.iter().any(|place| record["entry"]["step"] == *place)
    });
    let at = done.and_then(|record| record["at"].as_str()).context("no proof in the journal")?;
    let ago = Timestamp::now().duration_since(at.parse()?).unsigned_abs();
    Instant::now().checked_sub(ago).context("a proof from before the boot")
}

/// Waits until everything is in sync, every leader where it prefers to be, every closed segment noted as
/// flushed, and the brokers calm or taken as they are: in its first minutes a Java virtual machine compiles
/// on every core there is, and one that starts gets what is left.
pub(crate) fn settle(lab: &Lab, scenario: &Scenario) -> Result<()> {
    scenario.cluster.wait_complete(Duration::from_secs(60))?;
    eventually("every leader to be where it prefers to be", Duration::from_secs(60), || {
        let view = scenario.cluster.view()?;
        let away = view.partitions.iter().filter(|p| p.replicas.first() != Some(&p.leader)).count();
        ensure!(away == 0, "{away} leaders are elsewhere");
        Ok(())
    })?;
    checkpointed(scenario)?;
    let begin = Instant::now();
    let used = || -> Result<f64> {
        let at_home = scenario.cluster.brokers().iter().filter_map(|broker| broker.process().ok());
        let at_home = at_home.filter(|process| process.is_running()).map(|process| process.pid());
        // After a takeover the victim's runs there.
        let moved = scenario.standby.processes(&["kafka.Kafka"])?;
        at_home.chain(moved.iter().map(|pid| pid.as_raw_nonzero().get())).map(cpu_seconds).sum()
    };
    let mut calm = 0;
    loop {
        let before = used()?;
        std::thread::sleep(WINDOW);
        let cores = (used()? - before) / WINDOW.as_secs_f64();
        calm = if cores < CALM { calm + 1 } else { 0 };
        if calm == CALM_WINDOWS || begin.elapsed() > WARM_UP {
            let after = begin.elapsed().as_secs_f64();
            lab.note(format!("the brokers use {cores:.2} cores after {after:.0} s"));
            return Ok(());
        }
    }
}

/// Waits until the broker has noted, as Kafka does once a minute, which segments it has flushed by now, which
/// are the closed ones: a crash makes it scan the active ones, and not all that was copied or loaded within
/// the last minute.
fn checkpointed(scenario: &Scenario) -> Result<()> {
    let now = SystemTime::now();
    let file = scenario.cluster.broker(VICTIM)?.log_dir().join("recovery-point-offset-checkpoint");
    eventually("Kafka to note how far it has flushed", Duration::from_secs(150), || {
        let written = std::fs::metadata(&file)?.modified()?;
        ensure!(written > now, "{} is older", file.display());
        Ok(())
    })
}

/// The reference: no takeover, no other host; the process dies and is started again at once where it was.
pub(crate) fn in_place(scenario: &Scenario) -> Result<f64> {
    let broker = scenario.cluster.broker(VICTIM)?;
    let rejoin = scenario.recovered_after(Duration::from_secs(120), || {
        broker.process()?.kill()?;
        broker.start().map(drop)
    })?;
    Ok(rejoin.all_in_sync)
}

#[cfg(test)]
mod tests {
    use super::*;
    use e2e::history::{Acked, RecordId};

    #[test]
    fn a_wait_from_the_proof_on_begins_with_it_and_ends_with_the_acknowledgement() {
        let fault = Instant::now();
        let at = |millis| fault + Duration::from_millis(millis);
        let record = |sent, acked| Acked {
            id: RecordId { writer: 1, sequence: sent },
            partition: 0,
            offset: None,
            sent: at(sent),
            acked: at(acked),
        };
        let acked = vec![record(0, 1900), record(100, 2400), record(2100, 2300), record(9000, 9900)];
        let history = History { topic: String::new(), writer: 1, sent: 4, acked, failed: Vec::new() };
        assert_eq!(wait_after(&history, at(2000), at(5000)), 0.4);
        assert_eq!(longest_wait(&history, fault, at(5000)), 2.3);
    }

    #[test]
    fn the_proof_is_found_in_the_journal() {
        let at = Timestamp::now() - Duration::from_secs(10);
        let journal = format!(
            "v1 0 9 [{{\"at\":\"{at}\",\"entry\":{{\"entry\":\"claimed\",\"claim\":{{\"plan\":{{\"stages\":[\
             {{\"steps\":[{{\"step\":\"fence\"}},{{\"step\":\"render_config\"}}]}},{{\"steps\":[{{\"step\":\"prove\"}}]}}]}}}}}}}}]\n\
             v1 0 9 [{{\"at\":\"1970-01-01T00:00:00Z\",\"entry\":{{\"entry\":\"done\",\"step\":1}}}}]\n\
             v1 0 9 [{{\"at\":\"{at}\",\"entry\":{{\"entry\":\"done\",\"step\":2}}}}]\n"
        );
        let ago = proven(&journal).unwrap().elapsed().as_secs_f64();
        assert!((ago - 10.0).abs() < 1.0, "{ago}");
        assert!(proven("").is_err());
    }
}
