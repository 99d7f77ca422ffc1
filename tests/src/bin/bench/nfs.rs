//! A takeover on real NFS, by phase: a machine with a kernel of its own loses its power, and the storage's
//! export rules are the fence.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use e2e::Lab;
use e2e::nfs::scenario::{NfsScenario, NfsSetup};
use e2e::scenario::VICTIM;
use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;
use crate::figures::{Figure, Row};
use crate::takeover::{PHASES, longest_wait};
use crate::{Runs, in_its_own_lab, write};

/// What a takeover should take on this tier, whose hosts have one slow processor each.
const AIM_TIME_TO_ISR_S: f64 = 12.0;

#[derive(Clone, Serialize, Deserialize)]
struct Run {
    time_to_isr_s: f64,
    phases_s: BTreeMap<String, f64>,
    producer_stall_s: f64,
    acked: usize,
}

#[derive(Serialize)]
struct Figures {
    conditions: Conditions,
    table: Vec<Row>,
    runs: Vec<Run>,
}

pub(crate) fn all(options: &Runs) -> Result<()> {
    let conditions = Conditions::read()?;
    let folder = tempfile::tempdir()?;
    let mut runs: Vec<Run> = Vec::new();
    for run in 1..=options.runs {
        let file = folder.path().join(format!("{run}.json"));
        let one: Run = in_its_own_lab(&["nfs-one"], &file)?;
        eprintln!("run {run} of {}: time-to-ISR {:.2} s", options.runs, one.time_to_isr_s);
        runs.push(one);
    }
    let table = table(&runs)?;
    write(&options.json, &Figures { conditions: conditions.until_now()?, table, runs })
}

fn table(runs: &[Run]) -> Result<Vec<Row>> {
    let of = |value: &dyn Fn(&Run) -> f64| Figure::of(runs.iter().map(value));
    let mut rows = vec![
        Row::new("time-to-ISR of a takeover on NFS", "s", of(&|run| run.time_to_isr_s)?)
            .aim(AIM_TIME_TO_ISR_S),
        Row::new("longest wait of the producer", "s", of(&|run| run.producer_stall_s)?),
    ];
    for phase in PHASES {
        let seconds = runs.iter().filter_map(|run| run.phases_s.get(phase).copied());
        rows.push(Row::new(format!("phase {phase}"), "s", Figure::of(seconds)?));
    }
    Ok(rows)
}

pub(crate) fn one(lab: &Lab, json: &Path) -> Result<()> {
    let scenario = NfsScenario::begin(lab, &NfsSetup::default())?;
    let (agent, home) = (scenario.agent(), scenario.home.guest());
    scenario.start_agents()?;
    scenario.decided(agent, "healthy")?;
    scenario.flows(1000)?;
    let fault = Instant::now();
    let rejoin = scenario.recovered_after(|| home.crash())?;
    scenario.decided(agent, "healthy")?;
    scenario.ensure_runs_on(agent)?;
    scenario.note_phases(agent)?;
    let (_, metrics) = agent.get("/metrics")?;
    let phases_s = PHASES.iter().map(|phase| Ok(((*phase).to_owned(), duration(&metrics, phase)?)));
    let phases_s = phases_s.collect::<Result<_>>()?;
    let well = Instant::now();
    let history = scenario.verdict()?;
    let producer_stall_s = longest_wait(&history, fault, well);
    let (time_to_isr_s, acked) = (rejoin.all_in_sync, history.acked.len());
    write(json, &Run { time_to_isr_s, phases_s, producer_stall_s, acked })
}

/// Of the one takeover there was.
fn duration(metrics: &str, phase: &str) -> Result<f64> {
    let series = format!("understudy_phase_seconds_sum{{broker=\"{VICTIM}\",phase=\"{phase}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&series));
    Ok(value.with_context(|| format!("no duration of {phase} in the metrics"))?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_has_a_row_and_none_is_made_up() {
        let phases_s: BTreeMap<String, f64> = PHASES.iter().map(|phase| ((*phase).to_owned(), 0.5)).collect();
        let run = |time_to_isr_s| Run {
            time_to_isr_s,
            phases_s: phases_s.clone(),
            producer_stall_s: 3.0,
            acked: 9,
        };
        let rows = serde_json::to_value(table(&[run(9.0), run(11.0)]).unwrap()).unwrap();
        assert_eq!(rows.as_array().unwrap().len(), 2 + PHASES.len());
        assert_eq!((rows[0]["median"].as_f64(), rows[0]["runs"].as_u64()), (Some(10.0), Some(2)));
        assert!(table(&[Run { phases_s: BTreeMap::new(), ..run(9.0) }]).is_err());
        let metrics = "understudy_phase_seconds_sum{broker=\"1\",phase=\"fence\"} 0.25\n";
        assert_eq!(duration(metrics, "fence").unwrap(), 0.25);
        assert!(duration(metrics, "prove").is_err());
    }
}
