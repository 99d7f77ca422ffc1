//! The main job, live: a real Kafka cluster, a broker host dies under load, Understudy recovers the broker.
//!
//! Run by `cargo xtask demo`. Its last line is `time-to-ISR N.N s, acknowledged M, lost 0`.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use e2e::agent::Agent;
use e2e::history::History;
use e2e::kafka::{ClusterSpec, Security};
use e2e::kubernetes::standby::{self, STANDBY};
use e2e::kubernetes::takeover::{self, Site};
use e2e::scenario::{Scenario, Setup, VICTIM};
use e2e::{Lab, Storage, performance, performance_within};
use serde_json::Value;

const NAME: &str = "demo";
/// A Kubernetes takes minutes to come up where the machine is busy.
const LIMIT: Duration = Duration::from_secs(900);
/// The producer's rate is drawn in steps of this.
const STEP: Duration = Duration::from_millis(100);

/// A takeover, live.
#[derive(Parser)]
struct Args {
    /// Where its picture goes
    #[arg(long, value_name = "FILE")]
    svg: PathBuf,
    /// Hosts are instances of an EC2, with log dirs on FSx for ONTAP
    #[arg(long)]
    ec2: bool,
    /// The broker is in a pod, and a standby pod takes it over
    #[arg(long, conflicts_with = "ec2")]
    kubernetes: bool,
    /// How the cluster's listeners are secured
    #[arg(long, value_enum, default_value = "plaintext")]
    security: Security,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.kubernetes {
        return performance_within(NAME, LIMIT, |lab| show_in_pods(lab, &args.svg));
    }
    performance(NAME, |lab| show(lab, &args))
}

/// The same in Kubernetes.
fn show_in_pods(lab: &Lab, svg: &Path) -> Result<()> {
    lab.note(
        "etcd, an API server and three nodes come up, each node with a broker in a pod: a minute or two",
    );
    let site = Site::begin(lab)?;
    let node = site.add_standby()?.node;
    lab.note(format!("a standby pod is on {node}: Kafka's container, which waits, and an agent beside it"));
    let over = AtomicBool::new(false);
    let broker = takeover::VICTIM;
    let (fault, took) = thread::scope(|scope| {
        let fault = Instant::now();
        let status = || standby::status(&site.kubernetes, STANDBY);
        let over = &over;
        scope.spawn(move || follow(lab, broker, status, fault, over));
        lab.note(format!("{}, the node of broker {broker}, loses its power", site.lost));
        let back = site.strike().and_then(|fault| Ok((fault, site.is_back(fault)?)));
        let back = back.and_then(|back| site.is_written_down().map(|()| back));
        over.store(true, Ordering::Relaxed);
        back
    })?;
    let cli = |arguments: &[&str]| {
        standby::cli(
            &site.kubernetes,
            STANDBY,
            &[&["history", "--broker", &broker.to_string()], arguments].concat(),
        )
    };
    let (history, picture) = (cli(&[])?, cli(&["--svg"])?);
    fs::write(svg, picture).with_context(|| format!("cannot write {}", svg.display()))?;
    let (written, verdict) = site.judge()?;
    // The producer wrote while the standby pod came up as well.
    let stall = written.since(fault).longest_wait();
    conclude(&history, (&written, stall), svg, took.as_secs_f64(), verdict.lost())
}

/// The agent at the broker's home tells the standby's which clients are connected.
fn setup(args: &Args) -> Setup {
    let cluster = ClusterSpec { security: args.security, ..ClusterSpec::default() };
    let rack = Setup { at_home: &[VICTIM], peers: true, ..Setup::default() };
    if !args.ec2 {
        return Setup { cluster, ..rack };
    }
    let cluster = ClusterSpec { storage: Storage::Fuse, ..cluster };
    Setup { cluster, ontap: Some("30s"), ec2: Some("60s"), then_switched_off: true, ..rack }
}

fn show(lab: &Lab, args: &Args) -> Result<()> {
    let svg = &args.svg;
    lab.note("three brokers and a controller come up, each on a host of its own; 50 partitions, 3 replicas");
    if args.security != Security::Plaintext {
        lab.note(
            "clients and agents log in by SCRAM within TLS; nodes show certificates; rights are checked",
        );
    }
    let scenario = Scenario::begin(lab, &setup(args))?;
    lab.note(format!(
        "{} records are acknowledged (acks=all); an agent starts on the standby and on the host of broker {VICTIM}",
        scenario.acked()
    ));
    scenario.start_agents()?;
    scenario.flows(1000)?;
    let victim = scenario.victim()?.clone();
    let over = AtomicBool::new(false);
    let rejoin = thread::scope(|scope| {
        let rejoin = scenario.recovered_after(Duration::from_secs(90), || {
            let fault = Instant::now();
            victim.power_off()?;
            lab.note(format!("the host of broker {VICTIM} is dead: processes and link together"));
            let (agent, over) = (&scenario.agent, &over);
            scope.spawn(move || follow(lab, VICTIM, || agent.status(), fault, over));
            Ok(())
        });
        over.store(true, Ordering::Relaxed);
        rejoin
    })?;
    scenario.decided("healthy", Duration::from_secs(30))?;
    let history = scenario.cli(&["history", "--broker", "1"], 0)?.stdout;
    let agent = Arc::clone(&scenario.agent);
    let end = scenario.verdict()?;
    draw(&agent, &end.history, svg)?;
    let stall = end.history.longest_wait();
    conclude(&history, (&end.history, stall), svg, rejoin.all_in_sync, end.lost)
}

/// Says how it ended. `stall`: the longest that the producer waited for an acknowledgement.
fn conclude(
    told: &str,
    (history, stall): (&History, Duration),
    svg: &Path,
    seconds: f64,
    lost: usize,
) -> Result<()> {
    let mut out = io::stdout();
    let acknowledged = history.acked.len();
    writeln!(out, "\n{told}")?;
    writeln!(out, "producer stall: {:.1} s (longest wait for an acknowledgement)", stall.as_secs_f64())?;
    writeln!(out, "acknowledged = read: {acknowledged} records, none lost, none doubled, order kept")?;
    writeln!(out, "picture: {}", svg.display())?;
    writeln!(out, "time-to-ISR {seconds:.1} s, acknowledged {acknowledged}, lost {lost}")
        .context("stdout is closed")
}

/// The takeover as the agent draws it, over what the producer was acknowledged.
fn draw(agent: &Agent, history: &History, svg: &Path) -> Result<()> {
    let mut rate = String::new();
    for (seconds, rate_then) in history.rate(STEP) {
        writeln!(rate, "{seconds:.3},{rate_then}")?;
    }
    let file = agent.host().local().join("rate.csv");
    fs::write(&file, rate).with_context(|| format!("cannot write {}", file.display()))?;
    let broker = VICTIM.to_string();
    let drawn = agent.cli(&["history", "--broker", &broker, "--svg", "--rate", "/srv/local/rate.csv"])?;
    ensure!(drawn.code == 0, "the picture could not be drawn: {}", drawn.stderr);
    fs::write(svg, drawn.stdout).with_context(|| format!("cannot write {}", svg.display()))
}

/// Shows each new state of the takeover, as the agent tells it.
fn follow(lab: &Lab, broker: i32, status: impl Fn() -> Result<Value>, fault: Instant, over: &AtomicBool) {
    let mut said = String::new();
    while !over.load(Ordering::Relaxed) {
        if let Some(state) = status().ok().and_then(|status| state(&status, broker))
            && state != said
        {
            lab.note(format!("+{:5.2} s  {state}", fault.elapsed().as_secs_f64()));
            said = state;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn state(status: &Value, broker: i32) -> Option<String> {
    let broker = status["brokers"].as_array()?.iter().find(|one| one["id"] == broker)?;
    let takeover = &broker["takeover"];
    if takeover.is_null() {
        return Some(format!("agent: {}", broker["says"].as_str()?));
    }
    let steps: Vec<&str> = takeover["steps"].as_array()?.iter().filter_map(|step| step.as_str()).collect();
    let rejoining = takeover["rejoining"].as_str().unwrap_or_default();
    Some(format!("takeover: {} {} {rejoining}", takeover["phase"].as_str()?, steps.join(", ")))
}
