//! What one broker takes of the processor under one and the same load: restarted in place with stock
//! settings, rebuilt on an empty disk, and taken over by another host.
//!
//! All three are the same broker of the same cluster, one after the other, each once the brokers are calm and
//! it leads what it prefers to lead.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use e2e::Lab;
use e2e::kafka::{ClusterSpec, Jvm};
use e2e::scenario::{Scenario, Setup, VICTIM};
use serde::Serialize;

use crate::conditions::Conditions;
use crate::figures::{Figure, Footprint, Row};
use crate::growth::replace_disk;
use crate::takeover::{in_place, settle};
use crate::write;

const WINDOW: Duration = Duration::from_secs(5);
/// How long any recovery may take here.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    json: PathBuf,
    /// Records a second.
    #[arg(long)]
    rate: u32,
    /// For how long each kind is watched.
    #[arg(long)]
    seconds: u32,
}

impl Options {
    fn window(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    pub(crate) fn limit(&self) -> Duration {
        3 * self.window()
    }
}

#[derive(Serialize)]
struct Figures {
    conditions: Conditions,
    table: Vec<Row>,
    records_per_second: u32,
    in_place: Footprint,
    rebuilt: Footprint,
    taken_over: Footprint,
}

pub(crate) fn run(lab: &Lab, options: &Options) -> Result<()> {
    let conditions = Conditions::read()?;
    let cluster = ClusterSpec {
        jvm: Jvm::stock("768m"),
        controller_properties: vec![("leader.imbalance.check.interval.seconds".to_owned(), "5".to_owned())],
        ..ClusterSpec::default()
    };
    let scenario = Scenario::begin(lab, &Setup { cluster, rate: options.rate, ..Setup::default() })?;
    let watch = |pid: i32| -> Result<Footprint> {
        settle(lab, &scenario)?;
        Footprint::watch(pid, options.window(), WINDOW)
    };
    let broker = scenario.cluster.broker(VICTIM)?;
    in_place(&scenario)?;
    let in_place = watch(broker.process()?.pid())?;
    scenario.recovered_after(LIMIT, || {
        broker.process()?.kill()?;
        replace_disk(broker)?;
        broker.start().map(drop)
    })?;
    let rebuilt = watch(broker.process()?.pid())?;
    scenario.start_agents()?;
    let victim = scenario.victim()?.clone();
    scenario.recovered_after(LIMIT, || victim.power_off())?;
    scenario.decided("healthy", Duration::from_secs(60))?;
    let kafkas = scenario.standby.processes(&["kafka.Kafka"])?;
    let kafka = kafkas.first().context("no Kafka on the standby")?.as_raw_nonzero().get();
    let taken_over = watch(kafka)?;
    scenario.verdict()?;
    let row = |what: &str, of: &Footprint| Row::new(what, "% of a core", of.cpu_percent);
    let memory = |what: &str, of: &Footprint| Row::new(what, "MB", of.rss_mb);
    let ratio = taken_over.cpu_percent.median / in_place.cpu_percent.median;
    let table = vec![
        row("broker restarted in place", &in_place),
        row("broker rebuilt on an empty disk", &rebuilt),
        row("broker taken over", &taken_over),
        Row::new("taken over against restarted in place", "×", Figure::once(ratio)),
        memory("broker restarted in place, resident", &in_place),
        memory("broker taken over, resident", &taken_over),
    ];
    let (conditions, records_per_second) = (conditions.until_now()?, options.rate);
    let figures = Figures { conditions, table, records_per_second, in_place, rebuilt, taken_over };
    write(&options.json, &figures)
}
