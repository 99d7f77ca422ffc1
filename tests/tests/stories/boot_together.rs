//! An agent and a Kafka that somebody else starts come up on one host in the same moment, as at every boot:
//! never two Kafkas, in whichever order and however far apart they begin.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::agent::Agent;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Host, eventually, story};
use rustix::process::{Pid, Signal, kill_process};

/// The agent begins up to so long after Kafka, or before it, in milliseconds.
const GAP_MS: u128 = 2000;

/// How long after Kafka the agent begins in each boot of this run, in milliseconds; less than zero: before.
/// Always the same ones, but for `UNDERSTUDY_SEED`; told when one fails. `UNDERSTUDY_BOOTS` says how many.
fn gaps_ms() -> Result<Vec<i64>> {
    let boots = std::env::var("UNDERSTUDY_BOOTS").map_or(Ok(4), |boots| boots.parse::<u128>())?;
    let first = std::env::var("UNDERSTUDY_SEED").map_or(Ok(250), |seed| seed.parse::<u128>())?;
    // Evenly over both orders.
    let gap = |n| i64::try_from((first + n * 2 * GAP_MS / boots) % (2 * GAP_MS));
    let gaps: Result<Vec<i64>, _> = (0..boots).map(gap).collect();
    Ok(gaps?.into_iter().map(|gap| gap - GAP_MS as i64).collect())
}

/// How Kafka is started by whoever is not the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Starter {
    /// `guard` as a condition, and then Kafka.
    Condition,
    /// `guard --exec`, which becomes Kafka.
    Exec,
}

/// The victim's Java processes on its home host.
fn javas(host: &Host) -> Vec<i32> {
    let found = host.processes(&["kafka.Kafka"]).unwrap_or_default();
    let found = found.into_iter().map(|pid| pid.as_raw_nonzero().get());
    found
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).next().is_some_and(|program| program.ends_with(b"java"))
        })
        .collect()
}

/// Kills Kafka, and not what supervises it.
fn kill_java(host: &Host) -> Result<()> {
    let found = javas(host);
    let [pid] = found[..] else { bail!("not one Kafka, but {found:?}") };
    Ok(kill_process(Pid::from_raw(pid).context("no process has the number 0")?, Signal::KILL)?)
}

/// Counts, as fast as it can, how many Kafkas a host runs at once.
struct Watchman {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicUsize>,
    looks: Option<thread::JoinHandle<()>>,
}

impl Watchman {
    fn of(host: &Arc<Host>) -> Self {
        let (stop, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (host, ended, seen) = (Arc::clone(host), Arc::clone(&stop), Arc::clone(&most));
        let looks = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                seen.fetch_max(javas(&host).len(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(10));
            }
        });
        Self { stop, most, looks: Some(looks) }
    }

    fn ensure_one(mut self, what: &str) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(looks) = self.looks.take() {
            ensure!(looks.join().is_ok(), "the watchman gave up");
        }
        let most = self.most.load(Ordering::Relaxed);
        ensure!(most == 1, "{what}: {most} Kafkas of broker {VICTIM} ran at once");
        Ok(())
    }
}

fn bring_down(host: &Host, home: &Agent) -> Result<()> {
    home.kill()?;
    host.signal(&["kafka.Kafka"], Signal::TERM)?;
    eventually("Kafka to end", PATIENCE, || {
        let left = host.processes(&["kafka.Kafka"])?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

/// Starts both, the agent `gap` ms after Kafka, and waits until one Kafka is in every ISR.
fn together(scenario: &Scenario<'_>, home: &Agent, starter: Starter, gap: i64) -> Result<()> {
    let (host, broker) = (scenario.victim()?, scenario.cluster.broker(VICTIM)?);
    bring_down(host, home)?;
    let watch = scenario.cluster.watch(VICTIM);
    watch.wait("to be gone", PATIENCE, |standing| !standing.listed)?;
    let watchman = Watchman::of(host);
    // A refusal is an answer as well: then the agent has started it.
    let kafka = || match starter {
        Starter::Condition => broker.start_if_guard_allows(home).map(drop),
        Starter::Exec => broker.start_by_guard(home).map(drop),
    };
    let pause = Duration::from_millis(gap.unsigned_abs());
    if gap < 0 {
        home.start()?;
        thread::sleep(pause);
        kafka()?;
    } else {
        kafka()?;
        thread::sleep(pause);
        home.start()?;
    }
    let what = format!("{starter:?}, the agent {gap} ms after Kafka");
    let back = watch.wait("to be in every ISR again", PATIENCE, e2e::kafka::Standing::is_complete);
    let ready = back.and_then(|_| home.wait_ready(PATIENCE));
    // Two Kafkas are a verdict, whatever was awaited in vain because of them.
    watchman.ensure_one(&what)?;
    ready.context(what)
}

#[test]
fn an_agent_waits_for_whoever_starts_kafka_at_boot() {
    story("an_agent_waits_for_whoever_starts_kafka_at_boot", |lab| {
        let setup = Setup { at_home: &[VICTIM], ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        let home = Arc::clone(scenario.at_home.first().context("no agent at home")?);
        home.start()?;
        home.wait_ready(PATIENCE)?;
        for gap in gaps_ms()? {
            together(&scenario, &home, Starter::Condition, gap)?;
        }
        ensure!(scenario.epochs()?.is_empty(), "it claimed {:?}", scenario.epochs()?);
        scenario.verdict()?;
        Ok(())
    });
}

#[test]
fn the_right_to_run_a_broker_on_a_host_is_one() {
    story("the_right_to_run_a_broker_on_a_host_is_one", |lab| {
        // Nothing but the proof and the right stand between the agent and a second start.
        let policy = &[("boot_patience", "0s"), ("restart_tries", "1000")];
        let setup = Setup { at_home: &[VICTIM], policy, ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        let home = Arc::clone(scenario.at_home.first().context("no agent at home")?);
        let host = Arc::clone(scenario.victim()?);
        home.start()?;
        home.wait_ready(PATIENCE)?;
        for gap in gaps_ms()? {
            together(&scenario, &home, Starter::Exec, gap)?;
        }

        // A supervisor that starts a killed Kafka again sooner than the agent would, and an agent that tries
        // as well.
        bring_down(&host, &home)?;
        let broker = scenario.cluster.broker(VICTIM)?;
        let supervisor = broker.supervise(&home, Duration::from_millis(450))?;
        home.start()?;
        home.wait_ready(PATIENCE)?;
        for round in 0..2 {
            let watchman = Watchman::of(&host);
            scenario.recovered_after(PATIENCE, || kill_java(&host))?;
            watchman.ensure_one(&format!("a supervisor restarts it, round {round}"))?;
        }
        supervisor.kill()?;
        scenario.ensure_runs_on("b1")?;
        scenario.verdict()?;
        Ok(())
    });
}
