//! Takeovers of a broker in a pod whose node loses power: by a standby pod, and by rescheduling, each on a Kubernetes
//! of its own; and what the sidecar takes before.
//!
//! `cargo xtask bench takeover --bed kubernetes --runs N --json FILE`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use e2e::Lab;
use e2e::kubernetes::standby::{self, STANDBY};
use e2e::kubernetes::takeover::{Site, VICTIM};
use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;
use crate::figures::{Figure, Footprint, Row};
use crate::takeover::{PHASES, longest_wait};
use crate::{Runs, in_its_own_lab, write};

const AIM_STANDBY_S: f64 = 6.0;
const AIM_RESCHEDULING_S: f64 = 20.0;
const AIM_RSS_MB: f64 = 40.0;
const AIM_CPU_PERCENT: f64 = 1.5;
/// For how long the sidecar is watched, and in which windows.
const WATCHED: Duration = Duration::from_secs(60);
const WINDOW: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct OneOptions {
    #[arg(long, value_enum)]
    way: Way,
    #[arg(long)]
    json: PathBuf,
}

/// How the broker comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// In a pod that waits for it.
    Standby,
    /// Its StatefulSet makes its pod anew.
    Rescheduling,
}

/// One takeover, in seconds, and what its agent took before it.
#[derive(Clone, Serialize, Deserialize)]
struct Run {
    time_to_isr_s: f64,
    phases_s: BTreeMap<String, f64>,
    producer_stall_s: f64,
    rss_mb: f64,
    cpu_percent: f64,
    acked: usize,
}

#[derive(Serialize)]
struct Figures {
    conditions: Conditions,
    table: Vec<Row>,
    phases_s: BTreeMap<String, Figure>,
    standby: Vec<Run>,
    rescheduling: Vec<Run>,
}

pub(crate) fn all(options: &Runs) -> Result<()> {
    let conditions = Conditions::read()?;
    let folder = tempfile::tempdir()?;
    let (mut standby, mut rescheduling) = (Vec::new(), Vec::new());
    for run in 1..=options.runs {
        for (way, measured) in [(Way::Standby, &mut standby), (Way::Rescheduling, &mut rescheduling)] {
            let name = way.to_possible_value().context("a way without a name")?;
            let words = ["kubernetes-one", "--way", name.get_name()];
            let one: Run = in_its_own_lab(&words, &folder.path().join(format!("{run}.json")))?;
            eprintln!("run {run} of {}: {way:?} {:.2} s", options.runs, one.time_to_isr_s);
            measured.push(one);
        }
    }
    write(&options.json, &Figures::of(conditions.until_now()?, standby, rescheduling)?)
}

impl Figures {
    fn of(conditions: Conditions, standby: Vec<Run>, rescheduling: Vec<Run>) -> Result<Self> {
        let of = |runs: &[Run], value: fn(&Run) -> f64| Figure::of(runs.iter().map(value));
        let (by_pod, anew) =
            (of(&standby, |run| run.time_to_isr_s)?, of(&rescheduling, |run| run.time_to_isr_s)?);
        eprintln!("median: standby pod {by_pod} s, rescheduling {anew} s");
        let table = vec![
            Row::new("time-to-ISR by a standby pod", "s", by_pod).aim(AIM_STANDBY_S),
            Row::new("time-to-ISR by rescheduling", "s", anew).aim(AIM_RESCHEDULING_S),
            Row::new(
                "longest wait of the producer, standby pod",
                "s",
                of(&standby, |run| run.producer_stall_s)?,
            ),
            Row::new(
                "longest wait of the producer, rescheduling",
                "s",
                of(&rescheduling, |run| run.producer_stall_s)?,
            ),
            Row::new("resident memory of the sidecar", "MB", of(&standby, |run| run.rss_mb)?).aim(AIM_RSS_MB),
            Row::new("of one core, by the sidecar", "%", of(&standby, |run| run.cpu_percent)?)
                .aim(AIM_CPU_PERCENT),
        ];
        let phases = PHASES.iter().map(|phase| {
            let seconds = standby.iter().filter_map(|run| run.phases_s.get(*phase).copied());
            Ok(((*phase).to_owned(), Figure::of(seconds)?))
        });
        let phases_s = phases.collect::<Result<_>>()?;
        Ok(Self { conditions, table, phases_s, standby, rescheduling })
    }
}

pub(crate) fn one(lab: &Lab, options: &OneOptions) -> Result<()> {
    let site = Site::begin(lab)?;
    let (agents, node) = match options.way {
        Way::Standby => (vec![STANDBY.to_owned()], site.add_standby()?.node),
        Way::Rescheduling => {
            let agents = site.add_agents()?;
            (agents, site.others().into_iter().next().context("one node")?)
        }
    };
    let agent = site.agents_on(&node)?.first().copied().context("no agent runs there")?;
    let calm = Footprint::watch(agent.as_raw_nonzero().get(), WATCHED, WINDOW)?;
    let fault = site.strike()?;
    let time_to_isr_s = site.is_back(fault)?.as_secs_f64();
    let back = Instant::now();
    site.is_written_down()?;
    let phases_s = phases(&site, &agents);
    let complete =
        options.way == Way::Rescheduling || PHASES.iter().all(|phase| phases_s.contains_key(*phase));
    ensure!(complete, "the agent tells no more of its phases than {phases_s:?}");
    let (history, verdict) = site.judge()?;
    let run = Run {
        time_to_isr_s,
        phases_s,
        producer_stall_s: longest_wait(&history, fault, back),
        rss_mb: calm.rss_mb.median,
        cpu_percent: calm.cpu_percent.median,
        acked: verdict.acked,
    };
    write(Path::new(&options.json), &run)
}

/// Of whichever agent took the broker over.
fn phases(site: &Site<'_>, agents: &[String]) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for (agent, phase) in agents.iter().flat_map(|agent| PHASES.map(|phase| (agent, phase))) {
        let series = format!("understudy_phase_seconds_sum{{broker=\"{VICTIM}\",phase=\"{phase}\"}}");
        if let Ok(seconds) = standby::metric(&site.kubernetes, agent, &series) {
            all.insert(phase.to_owned(), seconds);
        }
    }
    all
}
