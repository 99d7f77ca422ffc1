//! What an agent takes that watches three real brokers, while nothing happens.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use e2e::Lab;
use e2e::ec2::Ec2;
use e2e::kafka::{ClusterSpec, Security};
use e2e::scenario::{Scenario, Setup};
use serde::Serialize;
use serde_json::Value;

use crate::conditions::Conditions;
use crate::ec2;
use crate::figures::{Figure, Footprint, Histogram, Row, Ticks};
use crate::write;

const WINDOW: Duration = Duration::from_secs(10);
/// What is promised with three brokers.
const AIM_RSS_MB: f64 = 30.0;
const AIM_CPU_PERCENT: f64 = 1.0;
/// With TLS, and certificates of both sides.
const AIM_CPU_SECURED_PERCENT: f64 = 1.5;
/// With the drivers of EC2 in use.
const AIM_RSS_EC2_MB: f64 = 40.0;
const AIM_CALLS: f64 = 1.0;
const BROKERS: u8 = 3;
/// Records a second that the brokers have to do meanwhile.
const RATE: u32 = 150;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    json: PathBuf,
    #[arg(long)]
    seconds: u32,
    #[arg(long, default_value = "rack")]
    hosts: Hosts,
    /// How the cluster is secured.
    #[arg(long, value_enum, default_value = "plaintext")]
    security: Security,
}

/// What the hosts are.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Hosts {
    Rack,
    Ec2,
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
    brokers: u8,
    records_per_second: u32,
    watching: Footprint,
    ticks: Ticks,
    /// Of EC2, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<BTreeMap<String, u32>>,
}

pub(crate) fn run(lab: &Lab, options: &Options) -> Result<()> {
    let conditions = Conditions::read()?;
    let setup = match options.hosts {
        Hosts::Ec2 => ec2::setup(RATE),
        Hosts::Rack => Setup { rate: RATE, ..Setup::default() },
    };
    let cluster = ClusterSpec { security: options.security, ..setup.cluster.clone() };
    let setup = Setup { cluster, ..setup };
    let scenario = Scenario::begin(lab, &setup)?;
    scenario.ec2.as_ref().map_or(Ok(()), ec2::slow)?;
    scenario.start_agents()?;
    scenario.decided("healthy", Duration::from_secs(60))?;
    scenario.flows(1000)?;
    let ticks = || Histogram::read(&scenario.agent.get("/metrics")?.1, "understudy_tick_seconds");
    let log = || scenario.ec2.as_ref().map(Ec2::log).transpose();
    let (before, called) = (ticks()?, log()?.map(|log| log.len()));
    let watching = Footprint::watch(scenario.agent.running()?.pid(), options.window(), WINDOW)?;
    let ticks = ticks()?.since(&before)?;
    let calls = log()?.zip(called).map(|(log, called)| by_name(&log[called..]));
    scenario.decided("healthy", Duration::from_secs(60))?;
    scenario.verdict()?;
    lab.note(format!("{} MB, {} % of a core", watching.rss_mb, watching.cpu_percent));
    let rss = if options.hosts == Hosts::Ec2 { AIM_RSS_EC2_MB } else { AIM_RSS_MB };
    let secured = options.security != Security::Plaintext;
    let cpu = if secured { AIM_CPU_SECURED_PERCENT } else { AIM_CPU_PERCENT };
    let mut table = vec![
        Row::new("resident memory", "MB", watching.rss_mb).aim(rss),
        Row::new("of one core", "%", watching.cpu_percent).aim(cpu),
        Row::new("99 of 100 ticks, at most", "ms", Figure::once(ticks.p99_at_most_ms)),
    ];
    if let Some(calls) = &calls {
        let minutes = options.window().as_secs_f64() / 60.0;
        let each = f64::from(calls.values().sum::<u32>()) / minutes / f64::from(BROKERS);
        lab.note(format!("{each:.2} calls of EC2 a minute and broker: {calls:?}"));
        table.push(Row::new("calls of EC2 for each broker", "a minute", Figure::once(each)).aim(AIM_CALLS));
    }
    let conditions = conditions.until_now()?;
    let figures =
        Figures { conditions, table, brokers: BROKERS, records_per_second: RATE, watching, ticks, calls };
    write(&options.json, &figures)
}

fn by_name(log: &[Value]) -> BTreeMap<String, u32> {
    let mut calls = BTreeMap::new();
    for call in log {
        *calls.entry(call["action"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
    }
    calls
}
