//! What the amount of data makes of a recovery: a takeover of shared log dirs against a rebuild on an empty
//! disk, which copies all of it from the other brokers.
//!
//! The data is linked, so a takeover of any size takes hardly any disk. A rebuild writes real bytes: one that
//! does not fit is left out, and the figures say so.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::kafka::{Cluster, ClusterSpec, Jvm, Node};
use e2e::scenario::{PARTITIONS, Scenario, Setup, VICTIM};
use e2e::{Lab, room};
use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;
use crate::figures::{Figure, Line, Row, cpu_seconds};
use crate::takeover::settle;
use crate::{SETUP, in_its_own_lab, write};

/// One such segment in each of [`BULK_PARTITIONS`] is a GB (10⁹ bytes) on each broker. Kafka's default is ten
/// times as large, and Kafka does something for each when it loads its logs.
const SEGMENT: u64 = 100_000_000;
/// The topic with the data.
const BULK: &str = "bulk";
const BULK_PARTITIONS: i32 = 10;
/// What a disk must have left beside what is rebuilt: for the template, logs and what the load writes.
const MARGIN: u64 = 8_000_000_000;
/// What is promised.
const AIM_GROWTH: f64 = 1.1;
const AIM_AGAINST_REBUILD: [(u32, f64); 2] = [(10, 5.0), (40, 9.0)];
/// What a disk and a network must at least do for a rebuild to end in time.
const SLOWEST_BYTES_PER_SECOND: u64 = 20_000_000;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    json: PathBuf,
    /// GB on each broker.
    #[arg(long, value_delimiter = ',', required = true)]
    sizes: Vec<u32>,
    /// How often each.
    #[arg(long)]
    runs: u32,
}

#[derive(clap::Args)]
pub(crate) struct OneOptions {
    #[arg(long)]
    json: PathBuf,
    #[arg(long)]
    gb: u32,
    #[arg(long)]
    rebuild: bool,
}

impl OneOptions {
    pub(crate) fn limit(&self) -> Duration {
        let rebuild = if self.rebuild { rebuild_limit(self.gb) } else { Duration::ZERO };
        SETUP + rebuild
    }
}

fn rebuild_limit(gb: u32) -> Duration {
    Duration::from_secs(300 + bytes(gb) / SLOWEST_BYTES_PER_SECOND)
}

fn bytes(gb: u32) -> u64 {
    u64::from(gb) * 1_000_000_000
}

/// What one cluster told.
#[derive(Clone, Serialize, Deserialize)]
struct One {
    /// On each broker, in GB.
    gb: f64,
    takeover: Recovery,
    rebuild: Option<Recovery>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Recovery {
    pub(crate) time_to_isr_s: f64,
    /// What all brokers together took of the processors meanwhile, the one that came back included.
    pub(crate) cpu_s: f64,
}

/// All of one size.
#[derive(Serialize)]
struct Point {
    gb: f64,
    takeover_s: Figure,
    takeover_cpu_s: Figure,
    rebuild_s: Option<Figure>,
    rebuild_cpu_s: Option<Figure>,
}

/// Somebody else's measurement: the clock runs from the start of the broker to the end of its loading.
#[derive(Serialize)]
struct Told {
    gb: f64,
    shared_s: f64,
    rebuild_s: f64,
}

#[derive(Serialize)]
struct Lines {
    takeover: Option<Line>,
    rebuild: Option<Line>,
}

#[derive(Serialize)]
struct Figures {
    conditions: Conditions,
    table: Vec<Row>,
    partitions: i32,
    points: Vec<Point>,
    /// Seconds, and seconds for each GB, by least squares through the medians.
    lines: Lines,
    /// What NetApp's TR-4947 tells, on other machines.
    told: Vec<Told>,
    /// What was not measured, and why.
    left_out: Vec<String>,
    runs: Vec<One>,
}

/// Measures every size.
pub(crate) fn all(options: &Options) -> Result<()> {
    ensure!(options.runs > 0 && !options.sizes.contains(&0), "--runs and --sizes must be at least 1");
    let conditions = Conditions::read()?;
    let folder = tempfile::tempdir()?;
    let (mut measured, mut left_out) = (BTreeMap::<u32, Vec<One>>::new(), Vec::new());
    for gb in &options.sizes {
        let (needed, there) = (bytes(*gb) + MARGIN, room()?);
        let fits = there >= needed;
        if !fits {
            let (needed, there) = (needed as f64 / 1e9, there as f64 / 1e9);
            let why = format!(
                "the rebuild of {gb} GB: it takes {needed:.0} GB of disk, and {there:.0} GB are free"
            );
            eprintln!("NOT MEASURED: {why}");
            left_out.push(why);
        }
        for run in 1..=options.runs {
            let one = in_a_cluster_of_its_own(*gb, fits, &folder.path().join(format!("{gb}-{run}.json")))?;
            let rebuild =
                one.rebuild.map_or("not measured".to_owned(), |it| format!("{:.2} s", it.time_to_isr_s));
            eprintln!("{gb} GB, run {run}: takeover {:.2} s, rebuild {rebuild}", one.takeover.time_to_isr_s);
            measured.entry(*gb).or_default().push(one);
        }
    }
    let figures = Figures::of(conditions.until_now()?, &measured, left_out)?;
    write(&options.json, &figures)
}

fn in_a_cluster_of_its_own(gb: u32, rebuild: bool, file: &Path) -> Result<One> {
    let gb = gb.to_string();
    let mut arguments = vec!["growth-one", "--gb", &gb];
    arguments.extend(rebuild.then_some("--rebuild"));
    in_its_own_lab(&arguments, file)
}

impl Figures {
    fn of(conditions: Conditions, measured: &BTreeMap<u32, Vec<One>>, left_out: Vec<String>) -> Result<Self> {
        let points: Vec<Point> = measured.values().map(|ones| Point::of(ones)).collect::<Result<_>>()?;
        let through = |of: &dyn Fn(&Point) -> Option<f64>| {
            Line::through(&points.iter().filter_map(|point| Some((point.gb, of(point)?))).collect::<Vec<_>>())
        };
        let lines = Lines {
            takeover: through(&|point| Some(point.takeover_s.median)),
            rebuild: through(&|point| point.rebuild_s.map(|figure| figure.median)),
        };
        let told = [(110.0, 192.0, 571.0), (1000.0, 300.0, 2880.0)];
        let told = told.map(|(gb, shared_s, rebuild_s)| Told { gb, shared_s, rebuild_s }).into();
        let table = table(&measured.keys().copied().zip(&points).collect(), lines.rebuild);
        let runs = measured.values().flatten().cloned().collect();
        Ok(Self {
            conditions,
            table,
            partitions: PARTITIONS + BULK_PARTITIONS,
            points,
            lines,
            told,
            left_out,
            runs,
        })
    }
}

impl Point {
    fn of(ones: &[One]) -> Result<Self> {
        let of = |value: fn(&Recovery) -> f64| Figure::of(ones.iter().map(|one| value(&one.takeover)));
        let rebuilt: Vec<Recovery> = ones.iter().filter_map(|one| one.rebuild).collect();
        let rebuild = |value: fn(&Recovery) -> f64| -> Result<Option<Figure>> {
            if rebuilt.is_empty() { Ok(None) } else { Figure::of(rebuilt.iter().map(value)).map(Some) }
        };
        Ok(Self {
            gb: Figure::of(ones.iter().map(|one| one.gb))?.median,
            takeover_s: of(|it| it.time_to_isr_s)?,
            takeover_cpu_s: of(|it| it.cpu_s)?,
            rebuild_s: rebuild(|it| it.time_to_isr_s)?,
            rebuild_cpu_s: rebuild(|it| it.cpu_s)?,
        })
    }
}

fn table(points: &BTreeMap<u32, &Point>, rebuild: Option<Line>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (gb, point) in points {
        rows.push(Row::new(format!("{gb} GB, takeover"), "s", point.takeover_s));
        rows.extend(point.rebuild_s.map(|figure| Row::new(format!("{gb} GB, rebuild"), "s", figure)));
    }
    for (gb, point) in points {
        let follows = |line: Line| line.from + line.slope * point.gb;
        let (rebuild, how) = match (point.rebuild_s, rebuild) {
            (Some(measured), _) => (measured.median, "rebuild"),
            (None, Some(line)) => (follows(line), "rebuild, by the line through the others,"),
            (None, None) => continue,
        };
        let ratio = Figure::once(rebuild / point.takeover_s.median);
        let row = Row::new(format!("{gb} GB, {how} against takeover"), "×", ratio);
        let aim = AIM_AGAINST_REBUILD.iter().find(|(size, _)| size == gb);
        rows.push(match aim {
            Some((_, aim)) => row.aim_at_least(*aim),
            None => row,
        });
    }
    if let (Some((least, one)), Some((most, other))) = (points.first_key_value(), points.last_key_value())
        && least < most
    {
        let ratio = Figure::once(other.takeover_s.median / one.takeover_s.median);
        rows.push(Row::new(format!("takeover of {most} GB against {least} GB"), "×", ratio).aim(AIM_GROWTH));
    }
    for (gb, point) in points {
        let unit = "s of processor";
        rows.push(Row::new(format!("{gb} GB, all brokers during a takeover"), unit, point.takeover_cpu_s));
        let rebuild = point.rebuild_cpu_s;
        rows.extend(rebuild.map(|it| Row::new(format!("{gb} GB, all brokers during a rebuild"), unit, it)));
    }
    rows
}

/// One cluster with so much data: a rebuild, if it is wanted, then a takeover.
pub(crate) fn one(lab: &Lab, options: &OneOptions) -> Result<()> {
    let owned = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let cluster = ClusterSpec {
        jvm: Jvm::stock("768m"),
        properties: vec![owned("log.segment.bytes", &SEGMENT.to_string())],
        controller_properties: vec![owned("leader.imbalance.check.interval.seconds", "30")],
        ..ClusterSpec::default()
    };
    let setup = Setup { cluster, rate: 150, ..Setup::default() };
    let mut linked = 0;
    let scenario = Scenario::begin_after(lab, &setup, |cluster| {
        cluster.create_topic(BULK, BULK_PARTITIONS, 3, 2)?;
        linked = cluster.graft(BULK, BULK_PARTITIONS, options.gb, SEGMENT)?;
        Ok(())
    })?;
    let gb = linked as f64 / 1e9;
    lab.note(format!("{gb:.2} GB on each broker"));
    rustix::fs::sync();
    // A standby has its class-data archive made long before it is needed.
    scenario.cli(&["warm"], 0)?;
    settle(lab, &scenario)?;

    let mut rebuild = None;
    if options.rebuild {
        rebuild = Some(rebuilt(&scenario, linked, rebuild_limit(options.gb))?);
        // What is measured next is a takeover, not the disk that still takes in what was copied.
        rustix::fs::sync();
        settle(lab, &scenario)?;
    }
    scenario.start_agents()?;
    scenario.flows(1000)?;
    let takeover = taken_over(&scenario)?;
    scenario.decided("healthy", Duration::from_secs(60))?;
    scenario.verdict()?;
    write(&options.json, &One { gb, takeover, rebuild })
}

/// The broker dies and its disk with it: it is started at once, with an empty one in its place.
fn rebuilt(scenario: &Scenario, linked: u64, limit: Duration) -> Result<Recovery> {
    let (broker, before) = (scenario.cluster.broker(VICTIM)?, survivors(&scenario.cluster)?);
    let rejoin = scenario.recovered_after(limit, || {
        broker.process()?.kill()?;
        replace_disk(broker)?;
        broker.start().map(drop)
    })?;
    let cpu_s = survivors(&scenario.cluster)? - before + cpu_seconds(broker.process()?.pid())?;
    let copied = length_of(broker.log_dir())?;
    ensure!(copied >= linked, "{copied} bytes were rebuilt of {linked}");
    Ok(Recovery { time_to_isr_s: rejoin.all_in_sync, cpu_s })
}

/// Puts all that the log dir holds aside, but for what a new disk is formatted with.
pub(crate) fn replace_disk(broker: &Node) -> Result<()> {
    let old = broker.log_dir().with_extension("old");
    fs::create_dir_all(&old)?;
    for entry in fs::read_dir(broker.log_dir())? {
        let (entry, kept) = (entry?, ["meta.properties", "bootstrap.checkpoint"]);
        if !kept.iter().any(|name| entry.file_name() == *name) {
            fs::rename(entry.path(), old.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Of all segments in a log dir.
fn length_of(log_dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for dir in fs::read_dir(log_dir)? {
        let dir = dir?.path();
        for file in if dir.is_dir() { fs::read_dir(&dir)?.collect() } else { Vec::new() } {
            let file = file?;
            if file.path().extension().is_some_and(|kind| kind == "log") {
                bytes += file.metadata()?.len();
            }
        }
    }
    Ok(bytes)
}

fn taken_over(scenario: &Scenario) -> Result<Recovery> {
    let (victim, before) = (scenario.victim()?.clone(), survivors(&scenario.cluster)?);
    let begin = Instant::now();
    let rejoin = scenario.recovered_after(Duration::from_secs(180), || victim.power_off())?;
    let kafkas = scenario.standby.processes(&["kafka.Kafka"])?;
    let kafka =
        kafkas.first().with_context(|| format!("no Kafka on the standby after {:?}", begin.elapsed()))?;
    let cpu_s = survivors(&scenario.cluster)? - before + cpu_seconds(kafka.as_raw_nonzero().get())?;
    Ok(Recovery { time_to_isr_s: rejoin.all_in_sync, cpu_s })
}

/// What the brokers that live have used of the processors so far, in seconds.
fn survivors(cluster: &Cluster) -> Result<f64> {
    let others = cluster.brokers().iter().filter(|node| node.id() != VICTIM);
    others.map(|node| cpu_seconds(node.process()?.pid())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(gb: f64, takeover: f64, rebuild: Option<f64>) -> One {
        let recovery = |time_to_isr_s| Recovery { time_to_isr_s, cpu_s: 2.0 * time_to_isr_s };
        One { gb, takeover: recovery(takeover), rebuild: rebuild.map(recovery) }
    }

    #[test]
    fn growth_and_ratios_are_of_what_was_measured() {
        let measured: BTreeMap<u32, Vec<One>> = BTreeMap::from([
            (1, vec![one(1.0, 5.0, Some(15.0)), one(1.0, 5.0, Some(15.0))]),
            (10, vec![one(10.0, 5.0, Some(60.0))]),
            (40, vec![one(40.0, 6.0, None)]),
        ]);
        let points: Vec<Point> = measured.values().map(|ones| Point::of(ones).unwrap()).collect();
        let line = Line { from: 10.0, slope: 5.0 };
        let rows = table(&measured.keys().copied().zip(&points).collect(), Some(line));
        let text = serde_json::to_value(&rows).unwrap();
        let find = |what: &str| text.as_array().unwrap().iter().find(|row| row["what"] == what).cloned();
        assert_eq!(find("1 GB, rebuild").unwrap()["runs"], 2);
        let ratio = find("10 GB, rebuild against takeover").unwrap();
        assert_eq!((ratio["median"].as_f64(), ratio["aim_at_least"].as_f64()), (Some(12.0), Some(5.0)));
        assert_eq!(find("40 GB, rebuild"), None);
        assert_eq!(find("40 GB, rebuild against takeover"), None);
        let follows = find("40 GB, rebuild, by the line through the others, against takeover").unwrap();
        assert_eq!((follows["median"].as_f64(), follows["aim_at_least"].as_f64()), (Some(35.0), Some(9.0)));
        let growth = find("takeover of 40 GB against 1 GB").unwrap();
        assert_eq!((growth["median"].as_f64(), growth["aim"].as_f64()), (Some(1.2), Some(1.1)));
    }

    #[test]
    fn segments_are_counted_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bulk-0")).unwrap();
        fs::write(dir.path().join("bulk-0/00000000000000000000.log"), "12345").unwrap();
        fs::write(dir.path().join("bulk-0/00000000000000000000.index"), "12345").unwrap();
        fs::write(dir.path().join("meta.properties"), "x").unwrap();
        assert_eq!(length_of(dir.path()).unwrap(), 5);
    }
}
