//! How soon a dead host is noticed, and how often a living one is taken for dead: several settings of the
//! policy, under several disturbances. And how soon an agent at home notices that Kafka alone was killed
//! there.
//!
//! One agent a setting watches the same cluster at the same time, each with a ledger of its own, so that none
//! leaves it to another. All of these only observe; a false alarm is a takeover that nothing but the mode
//! forbade.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use e2e::agent::Agent;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, Host, Lab, Storage, eventually, standby};
use serde::Serialize;

use crate::conditions::Conditions;
use crate::figures::{Figure, Row};
use crate::write;

/// `host_down_after` and `controller_silent_for`: from what is allowed at least, by the default (the third),
/// to twice that.
const SETTINGS: [(&str, &str); 4] = [("750ms", "500ms"), ("1s", "750ms"), ("1500ms", "1s"), ("3s", "2s")];
/// What is promised of the default.
const DEFAULT: &str = "1500ms";
const AIM_DETECTION_S: f64 = 2.5;
/// The same of a killed Kafka whose host has an agent.
const AIM_KILLED_S: f64 = 1.0;
/// A death that was not noticed by then was not noticed.
const LIMIT: Duration = Duration::from_secs(60);
/// How often an agent is asked what it decides.
const POLL: Duration = Duration::from_millis(20);
/// Loops that only take processor time, for each processor.
const HOGS: usize = 4;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    json: PathBuf,
    /// For how long each disturbance is watched.
    #[arg(long)]
    seconds: u32,
    /// How often the host dies under each disturbance.
    #[arg(long)]
    deaths: u32,
}

impl Options {
    pub(crate) fn limit(&self) -> Duration {
        let rounds = DISTURBANCES.len() as u64;
        Duration::from_secs(rounds * (u64::from(self.seconds) + 300 * u64::from(self.deaths)))
    }
}

/// What goes on meanwhile.
#[derive(Debug, Clone, Copy)]
enum Disturbance {
    Nothing,
    /// Every processor is wanted by [`HOGS`] more.
    Starved,
    /// So many percent of the packets that arrive at any host are lost.
    Loss(u32),
}

const DISTURBANCES: [Disturbance; 4] =
    [Disturbance::Nothing, Disturbance::Starved, Disturbance::Loss(5), Disturbance::Loss(20)];

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "undisturbed"),
            Self::Starved => write!(f, "processors starved"),
            Self::Loss(percent) => write!(f, "{percent} % of packets lost"),
        }
    }
}

/// One setting under one disturbance.
#[derive(Serialize)]
struct Cell {
    disturbance: String,
    host_down_after: &'static str,
    controller_silent_for: &'static str,
    watched_s: f64,
    false_alarms: f64,
    /// From each death to the decision, in seconds; `None` where there was none in a minute.
    detected_s: Vec<Option<f64>>,
    /// How often the agent held while nothing was dead, by reason.
    holds: BTreeMap<String, f64>,
}

#[derive(Serialize)]
struct Figures {
    conditions: Conditions,
    table: Vec<Row>,
    cells: Vec<Cell>,
    /// From each kill of Kafka alone to the claim of its restart by the agent on its host, in seconds; `None`
    /// where there was none in a minute. The first Kafka was not started by that agent, the others were.
    killed_s: Vec<Option<f64>>,
}

struct Watcher {
    agent: Arc<Agent>,
    host_down_after: &'static str,
    controller_silent_for: &'static str,
}

pub(crate) fn run(lab: &Lab, options: &Options) -> Result<()> {
    let conditions = Conditions::read()?;
    let policy = &[("restart_tries", "100")];
    let setup = Setup { rate: 150, at_home: &[VICTIM], policy, ..Setup::default() };
    let scenario = Scenario::begin(lab, &setup)?;
    let killed_s = kafka_is_killed(lab, &scenario, options.deaths)?;
    let watchers = watchers(lab, &scenario)?;
    let mut cells = Vec::new();
    for disturbance in DISTURBANCES {
        cells.extend(under(lab, &scenario, &watchers, disturbance, options)?);
    }
    // No host was fenced, by anybody.
    ensure!(lab.switch().requests().iter().all(|request| !request.starts_with("off ")), "a host was fenced");
    let table = table(&cells, &killed_s)?;
    let figures = Figures { conditions: conditions.until_now()?, table, cells, killed_s };
    write(&options.json, &figures)
}

/// Kafka alone dies, so many times and once before that, on a host with an agent that starts it again. How
/// long it took each time until that was decided and claimed.
fn kafka_is_killed(lab: &Lab, scenario: &Scenario, times: u32) -> Result<Vec<Option<f64>>> {
    let agent = scenario.at_home.first().context("no agent at home")?;
    agent.start()?;
    agent.wait_ready(PATIENCE)?;
    let mut found = Vec::new();
    for _ in 0..=times {
        scenario.decided_by(agent, "healthy", PATIENCE)?;
        scenario.cluster.wait_complete(PATIENCE)?;
        let claims = scenario.epochs()?.len();
        let fault = Instant::now();
        scenario.strike(&Fault::KillKafka(agent.host().name().to_owned()))?;
        let seconds = since_fault(fault, || Ok(scenario.epochs()?.len() > claims));
        lab.note(format!("the restart of a killed Kafka was claimed after {seconds:.2?} s"));
        found.push(seconds);
        if seconds.is_none() {
            scenario.cluster.broker(VICTIM)?.start()?;
            break;
        }
    }
    scenario.decided_by(agent, "healthy", PATIENCE)?;
    scenario.cluster.wait_complete(PATIENCE)?;
    agent.kill()?;
    Ok(found)
}

/// One agent for each setting, on a host of its own.
fn watchers(lab: &Lab, scenario: &Scenario) -> Result<Vec<Watcher>> {
    let mut hosts = Vec::new();
    for number in 1..=SETTINGS.len() {
        let host = lab.host(&format!("watcher-{number}"), &format!("10.77.0.{}", 40 + number))?;
        standby::equip(lab, &scenario.cluster, &host, Storage::Bind)?;
        std::fs::create_dir_all(host.local().join("ledger"))?;
        standby::initialise(&host.local().join("ledger"))?;
        hosts.push(host);
    }
    let mut watchers = Vec::new();
    for (host, (host_down_after, controller_silent_for)) in hosts.iter().zip(SETTINGS) {
        let mut config = standby::config(lab, &scenario.cluster, host)?;
        config.insert("mode".to_owned(), "observe".into());
        standby::set(&mut config, "policy", "host_down_after", host_down_after);
        standby::set(&mut config, "policy", "controller_silent_for", controller_silent_for);
        standby::set(&mut config, "ledger", "dir", "/srv/local/ledger");
        let agent = lab.agent(host, &config.to_string())?;
        watchers.push(Watcher { agent, host_down_after, controller_silent_for });
    }
    watchers.iter().try_for_each(|watcher| watcher.agent.wait_ready(PATIENCE))?;
    all_is_well(scenario, &watchers)?;
    Ok(watchers)
}

/// The cluster is complete, and everybody knows.
fn all_is_well(scenario: &Scenario, watchers: &[Watcher]) -> Result<()> {
    scenario.cluster.wait_complete(PATIENCE)?;
    for watcher in watchers {
        scenario.decided_by(&watcher.agent, "healthy", PATIENCE)?;
    }
    Ok(())
}

fn under(
    lab: &Lab,
    scenario: &Scenario,
    watchers: &[Watcher],
    disturbance: Disturbance,
    options: &Options,
) -> Result<Vec<Cell>> {
    lab.note(format!("{disturbance}, for {} s", options.seconds));
    let disturbed = Disturbed::begin(lab, disturbance)?;
    let before: Vec<Counts> = watchers.iter().map(|watcher| counts(&watcher.agent)).collect::<Result<_>>()?;
    let begin = Instant::now();
    // The time watched is what is measured here.
    thread::sleep(Duration::from_secs(options.seconds.into()));
    let watched_s = begin.elapsed().as_secs_f64();
    let after: Vec<Counts> = watchers.iter().map(|watcher| counts(&watcher.agent)).collect::<Result<_>>()?;
    drop(disturbed);
    all_is_well(scenario, watchers)?;
    let mut detected: Vec<Vec<Option<f64>>> = vec![Vec::new(); watchers.len()];
    for _ in 0..options.deaths {
        let seconds = a_host_dies(lab, scenario, watchers, disturbance)?;
        lab.note(format!("{disturbance}: a death was noticed after {seconds:.2?} s"));
        detected.iter_mut().zip(seconds).for_each(|(all, one)| all.push(one));
    }
    let cells = watchers.iter().zip(before.iter().zip(&after)).zip(detected);
    let cells = cells.map(|((watcher, (before, after)), detected_s)| {
        let holds = since(&before.holds, &after.holds);
        Cell {
            disturbance: disturbance.to_string(),
            host_down_after: watcher.host_down_after,
            controller_silent_for: watcher.controller_silent_for,
            watched_s,
            false_alarms: after.would_act - before.would_act,
            detected_s,
            holds,
        }
    });
    Ok(cells.collect())
}

/// The victim's host loses its power under the disturbance; then all is mended. How long each agent took.
fn a_host_dies(
    lab: &Lab,
    scenario: &Scenario,
    watchers: &[Watcher],
    disturbance: Disturbance,
) -> Result<Vec<Option<f64>>> {
    let (disturbed, victim) = (Disturbed::begin(lab, disturbance)?, scenario.victim()?);
    let fault = Instant::now();
    victim.power_off()?;
    let found = thread::scope(|scope| {
        let waiting: Vec<_> =
            watchers.iter().map(|watcher| scope.spawn(|| noticed(scenario, &watcher.agent, fault))).collect();
        let found =
            waiting.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a watcher panicked")));
        found.collect::<Result<_>>()
    })?;
    drop(disturbed);
    victim.power_on()?;
    scenario.cluster.broker(VICTIM)?.start()?;
    all_is_well(scenario, watchers)?;
    Ok(found)
}

/// Seconds from `fault` until the agent would take the victim over if only the mode let it.
fn noticed(scenario: &Scenario, agent: &Agent, fault: Instant) -> Option<f64> {
    since_fault(fault, || Ok(would_act(&scenario.status_of(agent)?["decision"])))
}

/// Whether nothing but the mode forbids to act.
pub(crate) fn would_act(decision: &serde_json::Value) -> bool {
    let reasons = decision["reasons"].as_array().map(Vec::as_slice).unwrap_or_default();
    decision["decision"] == "hold" && matches!(reasons, [only] if only["reason"] == "observing")
}

/// Seconds from `fault` until something is so.
fn since_fault(fault: Instant, so: impl Fn() -> Result<bool>) -> Option<f64> {
    while fault.elapsed() < LIMIT {
        // An agent that is starved may answer late: that is asked again.
        if so().unwrap_or_default() {
            return Some(fault.elapsed().as_secs_f64());
        }
        thread::sleep(POLL);
    }
    None
}

/// How often an agent came to hold, by reason, over all brokers.
type Holds = BTreeMap<String, f64>;

/// What an agent has counted, over all brokers.
struct Counts {
    holds: Holds,
    /// How often nothing but the mode forbade to act.
    would_act: f64,
}

fn counts(agent: &Agent) -> Result<Counts> {
    // A starved agent may be slow to answer.
    eventually("an agent's metrics", PATIENCE, || counted(&agent.get("/metrics")?.1))
}

fn counted(metrics: &str) -> Result<Counts> {
    let mut counts = Counts { holds: Holds::new(), would_act: 0.0 };
    for line in metrics.lines() {
        let Some((name, rest)) = line.split_once('{') else { continue };
        let value =
            || -> Result<f64> { Ok(rest.split_once("} ").context(line.to_owned())?.1.trim().parse()?) };
        match name {
            "understudy_would_take_over_total" => counts.would_act += value()?,
            "understudy_holds_total" => {
                let reason = rest.split("reason=\"").nth(1).and_then(|rest| rest.split('"').next());
                let reason = reason.with_context(|| format!("no reason in {line:?}"))?;
                *counts.holds.entry(reason.to_owned()).or_default() += value()?;
            }
            _ => {}
        }
    }
    Ok(counts)
}

fn since(before: &Holds, after: &Holds) -> Holds {
    let more = after
        .iter()
        .map(|(reason, count)| (reason.clone(), count - before.get(reason).copied().unwrap_or_default()));
    more.filter(|(_, count)| *count > 0.0).collect()
}

/// A disturbance for as long as it lives.
struct Disturbed {
    hogs: Vec<Child>,
    hosts: Vec<Arc<Host>>,
}

impl Disturbed {
    fn begin(lab: &Lab, disturbance: Disturbance) -> Result<Self> {
        let mut disturbed = Self { hogs: Vec::new(), hosts: Vec::new() };
        match disturbance {
            Disturbance::Nothing => {}
            Disturbance::Starved => {
                for _ in 0..HOGS * thread::available_parallelism()?.get() {
                    let mut hog = Command::new("sh");
                    hog.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
                    disturbed.hogs.push(hog.spawn().context("cannot run sh")?);
                }
            }
            Disturbance::Loss(percent) => {
                for host in lab.hosts().into_values().filter(|host| host.is_on()) {
                    lose(&host, percent)?;
                    disturbed.hosts.push(host);
                }
            }
        }
        Ok(disturbed)
    }
}

impl Drop for Disturbed {
    fn drop(&mut self) {
        for hog in &mut self.hogs {
            // One that has ended disturbs nobody.
            let _ = hog.kill();
            let _ = hog.wait();
        }
        for host in self.hosts.iter().filter(|host| host.is_on()) {
            if let Err(error) = host.run(&["nft", "delete", "table", "inet", "loss"]) {
                eprintln!("{} goes on losing packets: {error:#}", host.name());
            }
        }
    }
}

/// Loses so many percent of what arrives at a host by its link.
fn lose(host: &Host, percent: u32) -> Result<()> {
    let rules = format!(
        "table inet loss {{ chain in {{ type filter hook input priority 0; iifname \"eth0\" \
         numgen random mod 100 < {percent} drop; }}; }}"
    );
    let output = host.run(&["nft", &rules])?;
    let name = host.name();
    ensure!(output.code == 0, "{name} cannot be made to lose packets (package nftables): {}", output.stderr);
    Ok(())
}

fn table(cells: &[Cell], killed_s: &[Option<f64>]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for cell in cells {
        let what = format!("{}, {}: false alarms", cell.disturbance, cell.host_down_after);
        let an_hour = cell.false_alarms / cell.watched_s * 3600.0;
        let row = Row::new(what, "an hour", Figure::once(an_hour));
        rows.push(if cell.host_down_after == DEFAULT { row.aim(0.0) } else { row });
    }
    for cell in cells {
        let what = format!("{}, {}: a death is noticed", cell.disturbance, cell.host_down_after);
        let Some(noticed) = seconds(&cell.detected_s)? else { continue };
        let row = Row::new(what, "s", noticed);
        let promised =
            cell.host_down_after == DEFAULT && cell.disturbance == Disturbance::Nothing.to_string();
        rows.push(if promised { row.aim(AIM_DETECTION_S) } else { row });
    }
    let (others, own) = killed_s.split_at(killed_s.len().min(1));
    let foreign = "a killed Kafka that the agent on its host had not started: its restart is claimed";
    rows.extend(seconds(others)?.map(|took| Row::new(foreign, "s", took)));
    let ours = "a killed Kafka that the agent on its host had started: its restart is claimed";
    rows.extend(seconds(own)?.map(|took| Row::new(ours, "s", took).aim(AIM_KILLED_S)));
    Ok(rows)
}

/// What was not noticed counts as [`LIMIT`]. `None` where nothing was tried.
fn seconds(noticed: &[Option<f64>]) -> Result<Option<Figure>> {
    let all = noticed.iter().map(|seconds| seconds.unwrap_or(LIMIT.as_secs_f64()));
    if noticed.is_empty() { Ok(None) } else { Figure::of(all).map(Some) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_came_since_counts_over_all_brokers() {
        let metrics = |observing: u32| {
            format!(
                "# HELP understudy_holds x\nunderstudy_holds_total{{broker=\"1\",reason=\"observing\"}} {observing}\n\
                 understudy_holds_total{{broker=\"2\",reason=\"observing\"}} 1\n\
                 understudy_holds_total{{broker=\"2\",reason=\"mass_failure\"}} 3\n\
                 understudy_would_take_over_total{{broker=\"1\"}} 1\nunderstudy_would_take_over_total{{broker=\"2\"}} 2\n"
            )
        };
        let (before, after) = (counted(&metrics(1)).unwrap(), counted(&metrics(3)).unwrap());
        assert_eq!((before.holds.get("observing"), before.would_act), (Some(&2.0), 3.0));
        assert_eq!(since(&before.holds, &after.holds), BTreeMap::from([("observing".to_owned(), 2.0)]));
        assert!(counted("understudy_holds_total{broker=\"1\"} 1\n").is_err());
    }

    #[test]
    fn what_something_else_forbids_as_well_is_not_noticed() {
        let hold = |reasons: &[&str]| {
            let reasons: Vec<_> = reasons.iter().map(|reason| json!({ "reason": reason })).collect();
            json!({ "decision": "hold", "reasons": reasons })
        };
        assert!(would_act(&hold(&["observing"])));
        assert!(
            !would_act(&hold(&["out_of_reach", "observing"]))
                && !would_act(&json!({ "decision": "suspect" }))
        );
    }

    #[test]
    fn false_alarms_are_told_by_the_hour_and_a_death_unnoticed_took_a_minute() {
        let cell = |detected_s| Cell {
            disturbance: Disturbance::Nothing.to_string(),
            host_down_after: DEFAULT,
            controller_silent_for: "1s",
            watched_s: 60.0,
            false_alarms: 2.0,
            detected_s,
            holds: Holds::new(),
        };
        let figure = |row: &serde_json::Value| (row["median"].as_f64(), row["aim"].as_f64());
        let rows = table(&[cell(vec![Some(2.0)])], &[Some(1.5), Some(0.9), None, Some(0.8)]).unwrap();
        let rows = serde_json::to_value(rows).unwrap();
        assert_eq!((figure(&rows[0]), figure(&rows[1])), ((Some(120.0), Some(0.0)), (Some(2.0), Some(2.5))));
        assert_eq!((figure(&rows[2]), figure(&rows[3])), ((Some(1.5), None), (Some(0.9), Some(1.0))));
        assert_eq!(rows[3]["max"].as_f64(), Some(60.0));
        assert_eq!(table(&[cell(vec![])], &[]).unwrap().len(), 1);
    }
}
