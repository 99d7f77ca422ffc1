//! Takeovers on a simulated EC2 and FSx for ONTAP whose calls take as long as they were seen to take, each beside two
//! references on the same cluster: a script that steals the address and fences nobody, and a restart in place.
//!
//! `cargo xtask bench takeover --bed ec2 --runs N --json FILE`.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::ec2::{self, Ec2, interface};
use e2e::kafka::ClusterSpec;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Lab, Process};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::conditions::Conditions;
use crate::figures::{Figure, Row};
use crate::takeover::{PHASES, in_place, longest_wait, settle};
use crate::{Runs, in_its_own_lab, write};

const SCRIPT: &str = include_str!("steal_address.sh");
/// What calls take, in seconds; docs/performance.md has where from. Those that change something:
const ACT_S: f64 = 0.51;
const ACTS: [&str; 2] = ["AssignPrivateIpAddresses", "StopInstances"];
/// All others.
const READ_S: f64 = 0.19;
/// Until what is told, and packets, follow an address that was moved. Nobody has published a measurement.
const FOLLOWS_S: f64 = 1.0;
/// Until an instance that is stopped by force has stopped.
const STOPS_S: f64 = 30.0;
/// How long a takeover may take, and the script.
const LIMIT: Duration = Duration::from_secs(120);
const AIM_TIME_TO_ISR_S: f64 = 6.0;
/// Records a second.
const RATE: u32 = 150;

/// Of one cluster, in seconds.
#[derive(Clone, Serialize, Deserialize)]
struct Run {
    takeover: Times,
    phases: BTreeMap<String, f64>,
    script: Times,
    in_place: f64,
    acked: usize,
    lost: usize,
}

#[derive(Clone, Serialize, Deserialize)]
struct Times {
    to_isr: f64,
    /// The longest wait for one acknowledgement.
    stall: f64,
}

#[derive(Serialize)]
struct Figures {
    conditions: Conditions,
    /// What the simulator was told, in seconds.
    delays_s: BTreeMap<&'static str, f64>,
    table: Vec<Row>,
    phases_s: BTreeMap<String, Figure>,
    runs: Vec<Run>,
}

/// Hosts are instances, log dirs are on FSx: `ontap_export`, then `ec2_stop`; `ec2_secondary_ip`. Whoever starts Kafka does
/// it as stories do, with the least work for Java: what differs is all that comes before.
pub(crate) fn setup(rate: u32) -> Setup {
    // After the script's takeover nobody else gives leaders back.
    let controller_properties = vec![("leader.imbalance.check.interval.seconds".to_owned(), "30".to_owned())];
    let on_fsx = Setup::on_fsx();
    let cluster = ClusterSpec { controller_properties, ..on_fsx.cluster };
    Setup { cluster, rate, then_switched_off: true, ..on_fsx }
}

/// Has the calls of a cloud take what they take.
pub(crate) fn slow(cloud: &Ec2) -> Result<()> {
    let delay = |action: &str, seconds: f64| json!({"action": action, "kind": "delay", "seconds": seconds, "times": u32::MAX});
    // The first one that fits counts.
    let delays = ACTS.map(|action| delay(action, ACT_S)).into_iter().chain([delay("*", READ_S)]);
    let delays: Vec<_> = delays.collect();
    cloud.change(&json!({"faults": delays, "remap": FOLLOWS_S, "effect": FOLLOWS_S, "stop": STOPS_S}))
}

pub(crate) fn cloud<'s>(scenario: &'s Scenario<'_>) -> Result<&'s Ec2> {
    scenario.ec2.as_ref().context("no EC2")
}

pub(crate) fn all(options: &Runs) -> Result<()> {
    let conditions = Conditions::read()?;
    let folder = tempfile::tempdir()?;
    let mut runs: Vec<Run> = Vec::new();
    for run in 1..=options.runs {
        let one: Run = in_its_own_lab(&["ec2-one"], &folder.path().join(format!("{run}.json")))?;
        eprintln!(
            "run {run} of {}: time-to-ISR {:.2} s, script {:.2} s, restart in place {:.2} s",
            options.runs, one.takeover.to_isr, one.script.to_isr, one.in_place
        );
        runs.push(one);
    }
    let figures = Figures::of(conditions.until_now()?, runs)?;
    write(&options.json, &figures)
}

impl Figures {
    fn of(conditions: Conditions, runs: Vec<Run>) -> Result<Self> {
        let of = |value: fn(&Run) -> f64| Figure::of(runs.iter().map(value));
        let (takeover, script) = (of(|run| run.takeover.to_isr)?, of(|run| run.script.to_isr)?);
        let ratio = takeover.median / script.median;
        eprintln!("median: {takeover} s against {script} s of the script, ratio {ratio:.2}");
        let table = vec![
            Row::new("time-to-ISR of a takeover", "s", takeover).aim(AIM_TIME_TO_ISR_S),
            Row::new("time-to-ISR of a script that steals the address", "s", script),
            Row::new("ratio of their medians", "×", Figure::once(ratio)),
            Row::new("time-to-ISR of a restart in place", "s", of(|run| run.in_place)?),
            Row::new("longest wait of the producer, takeover", "s", of(|run| run.takeover.stall)?),
            Row::new("longest wait of the producer, script", "s", of(|run| run.script.stall)?),
        ];
        let phases = PHASES.iter().map(|phase| {
            let seconds = runs.iter().filter_map(|run| run.phases.get(*phase).copied());
            Ok(((*phase).to_owned(), Figure::of(seconds)?))
        });
        let phases_s = phases.collect::<Result<_>>()?;
        let delays_s =
            [("acts", ACT_S), ("reads", READ_S), ("follows", FOLLOWS_S), ("stops", STOPS_S)].into();
        Ok(Self { conditions, delays_s, table, phases_s, runs })
    }
}

pub(crate) fn one(lab: &Lab, json: &Path) -> Result<()> {
    let scenario = Scenario::begin(lab, &setup(RATE))?;
    slow(cloud(&scenario)?)?;
    lab.note("rehearsal");
    let in_place = in_place(&scenario)?;
    settle(lab, &scenario)?;

    let script_begin = Instant::now();
    let (script_to_isr, thief) = steal(&scenario)?;
    let script_end = Instant::now();
    go_home(&scenario, &thief)?;
    settle(lab, &scenario)?;

    scenario.start_agents()?;
    scenario.flows(1000)?;
    let fault = Instant::now();
    let victim = Arc::clone(scenario.victim()?);
    let rejoin = scenario.recovered_after(LIMIT, || victim.power_off())?;
    scenario.decided("healthy", Duration::from_secs(60))?;
    let recovered = Instant::now();
    let owner = cloud(&scenario)?.owner(address(&scenario)?)?;
    ensure!(owner == "standby-1", "EC2 has the address on {owner}");
    let mut phases = BTreeMap::new();
    for phase in PHASES {
        let series = format!("understudy_phase_seconds_sum{{broker=\"{VICTIM}\",phase=\"{phase}\"}}");
        let seconds = scenario.agent.metric(&series)?.with_context(|| format!("no duration of {phase}"))?;
        phases.insert(phase.to_owned(), seconds);
    }
    let end = scenario.verdict()?;
    let takeover = Times { to_isr: rejoin.all_in_sync, stall: longest_wait(&end.history, fault, recovered) };
    let script = Times { to_isr: script_to_isr, stall: longest_wait(&end.history, script_begin, script_end) };
    let run = Run { takeover, phases, script, in_place, acked: end.history.acked.len(), lost: end.lost };
    write(json, &run)
}

fn address(scenario: &Scenario) -> Result<Ipv4Addr> {
    match scenario.cluster.broker(VICTIM)?.address() {
        SocketAddr::V4(at) => Ok(*at.ip()),
        at @ SocketAddr::V6(_) => anyhow::bail!("{at} is no IPv4 address"),
    }
}

/// The script on the standby, and the storage as who runs such a script has it: open to both hosts. Returns the
/// time-to-ISR, and the Kafka that the script has become.
fn steal(scenario: &Scenario) -> Result<(f64, Arc<Process>)> {
    let (node, victim, standby) = (scenario.cluster.broker(VICTIM)?, scenario.victim()?, &scenario.standby);
    let storage = scenario.ontap.as_ref().context("no storage system")?;
    storage.let_in(VICTIM, &[victim, standby])?;
    fs::write(standby.local().join("steal_address.sh"), SCRIPT)?;
    let on_link = node.on_link();
    let (address, prefix) = on_link.split_once('/').context("no prefix")?;
    let (python, endpoint) = (ec2::python()?.display().to_string(), cloud(scenario)?.endpoint());
    let (interface, port) = (interface(standby), node.address().port().to_string());
    let words =
        ["bash", "/srv/local/steal_address.sh", &python, &endpoint, &interface, address, prefix, &port];
    let mut command = words.map(str::to_owned).to_vec();
    let properties = node.properties().display().to_string();
    command.extend(scenario.cluster.command().iter().map(|word| word.replace("{properties}", &properties)));
    let thief = standby.spawn("steal-address", &command)?;
    let rejoin = scenario.recovered_after(LIMIT, || victim.power_off())?;
    Ok((rejoin.all_in_sync, thief))
}

/// By hand, as after such a script: Kafka stops on the standby, and starts at home with the address.
fn go_home(scenario: &Scenario, thief: &Process) -> Result<()> {
    let (node, victim) = (scenario.cluster.broker(VICTIM)?, scenario.victim()?);
    thief.signal(Signal::TERM)?;
    thief.wait(PATIENCE)?;
    let removed = scenario.standby.run(&["ip", "addr", "del", &node.on_link(), "dev", "eth0"])?;
    ensure!(removed.code == 0, "the address stays on the standby: {}", removed.stderr);
    let storage = scenario.ontap.as_ref().context("no storage system")?;
    storage.let_in(VICTIM, &[victim])?;
    cloud(scenario)?.reassign(address(scenario)?, victim)?;
    victim.power_on()?;
    node.start()?;
    scenario.cluster.wait_complete(PATIENCE)
}
