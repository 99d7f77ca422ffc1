//! What an agent takes that watches three real brokers, while nothing happens.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use e2e::Lab;
use e2e::scenario::{Scenario, Setup};
use serde::Serialize;

use crate::conditions::Conditions;
use crate::figures::{Figure, Footprint, Histogram, Row, Ticks};
use crate::write;

const WINDOW: Duration = Duration::from_secs(10);
/// What is promised with three brokers.
const AIM_RSS_MB: f64 = 30.0;
const AIM_CPU_PERCENT: f64 = 1.0;
/// Records a second that the brokers have to do meanwhile.
const RATE: u32 = 150;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    json: PathBuf,
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
    records_per_second: u32,
    watching: Footprint,
    ticks: Ticks,
}

pub(crate) fn run(lab: &Lab, options: &Options) -> Result<()> {
    let conditions = Conditions::read()?;
    let scenario = Scenario::begin(lab, &Setup { rate: RATE, ..Setup::default() })?;
    scenario.start_agents()?;
    scenario.decided("healthy", Duration::from_secs(60))?;
    scenario.flows(1000)?;
    let ticks = || Histogram::read(&scenario.agent.get("/metrics")?.1, "understudy_tick_seconds");
    let before = ticks()?;
    let watching = Footprint::watch(scenario.agent.running()?.pid(), options.window(), WINDOW)?;
    let ticks = ticks()?.since(&before)?;
    scenario.decided("healthy", Duration::from_secs(60))?;
    scenario.verdict()?;
    lab.note(format!("{} MB, {} % of a core", watching.rss_mb, watching.cpu_percent));
    let table = vec![
        Row::new("resident memory", "MB", watching.rss_mb).aim(AIM_RSS_MB),
        Row::new("of one core", "%", watching.cpu_percent).aim(AIM_CPU_PERCENT),
        Row::new("99 of 100 ticks, at most", "ms", Figure::once(ticks.p99_at_most_ms)),
    ];
    let conditions = conditions.until_now()?;
    let figures = Figures { conditions, table, brokers: 3, records_per_second: RATE, watching, ticks };
    write(&options.json, &figures)
}
