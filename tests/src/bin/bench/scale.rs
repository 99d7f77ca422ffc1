//! What an agent takes that watches a thousand brokers: the brokers hold nothing, but each has its own
//! address and answers in Kafka's protocol, so that what is measured is the agent as it is installed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::agent::{Agent, fence_lab};
use e2e::hollow::{FULL_METADATA, Hollow, HollowSpec};
use e2e::{Lab, Storage, eventually};
use serde::Serialize;

use crate::conditions::Conditions;
use crate::detection::would_act;
use crate::figures::{Figure, Footprint, Histogram, Row, Ticks};
use crate::write;

/// How many of the brokers the agent guards: those with the lowest ids.
const GUARDED: i32 = 16;
/// The one whose host dies in the end.
const VICTIM: i32 = 7;
/// Memory and processor are taken over windows as long as the agent's longest period, the reading of all
/// partitions.
const WINDOW: Duration = Duration::from_secs(30);
/// The agent's metric.
const TICK: &str = "understudy_tick_seconds";
/// What is promised at 1,000 brokers with 200,000 partitions.
const AIM_RSS_MB: f64 = 300.0;
const AIM_TICK_MS: f64 = 50.0;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    json: PathBuf,
    #[arg(long)]
    brokers: i32,
    #[arg(long)]
    partitions: i32,
    #[arg(long)]
    seconds: u32,
}

impl Options {
    pub(crate) fn window(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

#[derive(Serialize)]
struct Figures {
    conditions: Conditions,
    table: Vec<Row>,
    brokers: i32,
    partitions: i32,
    guarded: i32,
    quiet: Footprint,
    /// While all is well.
    ticks: Ticks,
    /// From the death of a guarded broker's host until its session is over and the partitions were read
    /// again.
    ticks_while_a_broker_dies: Ticks,
    /// From that death to the decision that only the mode forbids.
    decided_after_s: f64,
    peak_rss_mb: f64,
    /// What the agent asked the cluster, a second, and how many bytes it got.
    asked_per_second: BTreeMap<String, [f64; 2]>,
}

pub(crate) fn run(lab: &Lab, options: &Options) -> Result<()> {
    let conditions = Conditions::read()?;
    let (brokers, partitions) = (options.brokers, options.partitions);
    let hollow = Hollow::start(lab, HollowSpec { brokers, partitions, per_topic: 100 })?;
    let host = lab.host("watcher", "10.77.0.31")?;
    hollow.reach_from(&host)?;
    host.mount(Storage::Bind, &e2e::standby::ledger_dir(lab)?, "/srv/ledger")?;
    let agent = lab.agent(&host, &config(lab, &hollow)?)?;
    agent.wait_ready(Duration::from_secs(60))?;
    all_seen(&hollow, &agent, brokers)?;
    lab.note("the agent sees everything; it is watched from here on");

    let pid = agent.running()?.pid();
    let (begin, before, asked) = (Instant::now(), ticks(&agent)?, hollow.asked());
    let quiet = Footprint::watch(pid, options.window(), WINDOW)?;
    let (after, asked_later) = (ticks(&agent)?, hollow.asked());
    let seconds = begin.elapsed().as_secs_f64();
    all_seen(&hollow, &agent, brokers)?;

    let (decided_after_s, dying) = a_broker_dies(lab, &hollow, &agent)?;
    let end = Footprint::watch(pid, Duration::from_secs(1), Duration::from_secs(1))?;
    hollow.ensure_understood()?;
    let asked_per_second = asked_later.iter().map(|(what, (times, bytes))| {
        let (had_times, had_bytes) = asked.get(what).copied().unwrap_or_default();
        let rate = |now: u64, had: u64| (now - had) as f64 / seconds;
        ((*what).to_owned(), [rate(*times, had_times), rate(*bytes, had_bytes)])
    });
    let ticks = after.since(&before)?;
    let table = vec![
        Row::new("resident memory", "MB", quiet.rss_mb).aim(AIM_RSS_MB),
        Row::new("most resident memory, a broker's death included", "MB", Figure::once(end.peak_rss_mb))
            .aim(AIM_RSS_MB),
        Row::new("of one core", "%", quiet.cpu_percent),
        Row::new("a tick, on average", "ms", Figure::once(ticks.mean_ms)).aim(AIM_TICK_MS),
        Row::new("99 of 100 ticks, at most", "ms", Figure::once(ticks.p99_at_most_ms)).aim(AIM_TICK_MS),
        Row::new("every tick, at most", "ms", Figure::once(ticks.max_at_most_ms)).aim(AIM_TICK_MS),
        Row::new("every tick while a broker dies, at most", "ms", Figure::once(dying.max_at_most_ms))
            .aim(AIM_TICK_MS),
    ];
    let figures = Figures {
        conditions: conditions.until_now()?,
        table,
        brokers,
        partitions,
        guarded: GUARDED,
        ticks,
        ticks_while_a_broker_dies: dying,
        decided_after_s,
        peak_rss_mb: end.peak_rss_mb,
        asked_per_second: asked_per_second.collect(),
        quiet,
    };
    lab.note(format!(
        "{} MB, {} % of a core, peak {:.0} MB; no tick took longer than {} ms, while a broker died {} ms",
        figures.quiet.rss_mb,
        figures.quiet.cpu_percent,
        figures.peak_rss_mb,
        figures.ticks.max_at_most_ms,
        figures.ticks_while_a_broker_dies.max_at_most_ms
    ));
    write(&options.json, &figures)
}

/// Every broker is probed and answers, no signal is blind, and all partitions were read twice: from then on
/// there is nothing that the agent does for the first time.
fn all_seen(hollow: &Hollow, agent: &Agent, brokers: i32) -> Result<()> {
    eventually("the agent to see the whole cluster", Duration::from_secs(180), || {
        let status = agent.status()?;
        let blind = status["blind"].as_object().context("no `blind` in the status")?;
        ensure!(blind.is_empty(), "blind: {blind:?}");
        for broker in status["brokers"].as_array().context("no brokers in the status")? {
            ensure!(broker["decision"]["decision"] == "healthy", "{broker}");
        }
        let (_, view) = agent.get("/v1/view")?;
        let view: serde_json::Value = serde_json::from_str(&view)?;
        let seen = view["brokers"].as_object().context("no brokers in the view")?;
        let well = seen.values().filter(|saw| saw["probe"] == "answered").count();
        ensure!(
            well == usize::try_from(brokers)?,
            "{well} of {} brokers answer: {:?}",
            seen.len(),
            seen.values().next()
        );
        let (read, _) = hollow.asked().get(FULL_METADATA).copied().unwrap_or_default();
        ensure!(read >= 2, "all partitions were read {read} times");
        Ok(())
    })
}

/// The host of a guarded broker dies. How long until the agent says what only its mode forbids, and how long
/// its ticks took meanwhile and until the cluster itself has noticed.
fn a_broker_dies(lab: &Lab, hollow: &Hollow, agent: &Agent) -> Result<(f64, Ticks)> {
    let (before, read) = (ticks(agent)?, hollow.asked().get(FULL_METADATA).copied().unwrap_or_default().0);
    let fault = Instant::now();
    hollow.stop(VICTIM)?;
    let mut decided = fault;
    eventually("the agent to say what it would do", Duration::from_secs(60), || {
        let status = agent.status()?;
        let brokers = status["brokers"].as_array().context("no brokers in the status")?;
        let victim = brokers.iter().find(|broker| broker["id"] == VICTIM).context("no victim")?;
        let decision = &victim["decision"];
        ensure!(would_act(decision), "{victim}");
        decided = Instant::now();
        Ok(())
    })?;
    let decided_after = decided.duration_since(fault).as_secs_f64();
    lab.note(format!("decided {decided_after:.1} s after the host of broker {VICTIM} died"));
    eventually("the agent to read all partitions without that broker", Duration::from_secs(60), || {
        let now = hollow.asked().get(FULL_METADATA).copied().unwrap_or_default().0;
        ensure!(now > read && fault.elapsed() > Duration::from_secs(10), "{now} readings");
        Ok(())
    })?;
    Ok((decided_after, ticks(agent)?.since(&before)?))
}

fn ticks(agent: &Agent) -> Result<Histogram> {
    Histogram::read(&agent.get("/metrics")?.1, TICK)
}

/// An agent that guards some of the brokers, and only observes.
fn config(lab: &Lab, hollow: &Hollow) -> Result<String> {
    let template = lab.artifacts().join("server.properties");
    fs::write(&template, "process.roles=broker\nnode.id=1\n")?;
    let bootstrap: Vec<String> = (1..=3).map(|id| format!("\"{}\"", hollow.address(id))).collect();
    let (bootstrap, template, fence) = (bootstrap.join(", "), template.display(), fence_lab()?);
    let mut text = format!(
        r#"mode = "observe"
[agent]
host = "watcher"
state_dir = "/srv/local/state"
[cluster]
bootstrap = [{bootstrap}]
controllers = ["{}"]
[ledger]
driver = "file"
local = true
dir = "/srv/ledger"
[broker_host]
driver = "process"
command = ["/bin/false", "{{properties}}"]
template = "{template}"
"#,
        hollow.controller()
    );
    for id in 1..=GUARDED {
        write!(
            text,
            r#"[[host]]
name = "home-{id}"
[[host.fence]]
driver = "fence_agent"
agent = "{}"
[[broker]]
id = {id}
home = "home-{id}"
listener = "{}"
log_dirs = ["/srv/kafka/broker-{id}"]
[broker.storage]
driver = "mounted"
local = true
"#,
            fence.display(),
            hollow.address(id)
        )?;
    }
    Ok(text)
}
