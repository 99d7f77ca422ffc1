//! What is measured more than once, and what the kernel says of a process.

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Several measurements of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// How many there are.
    pub(crate) runs: usize,
}

impl Figure {
    /// Measured once.
    pub(crate) fn once(value: f64) -> Self {
        Self { median: value, min: value, max: value, runs: 1 }
    }

    /// Of at least one measurement.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Result<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (values.first(), values.last()) else {
            anyhow::bail!("nothing was measured");
        };
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Ok(Self { median, min: *min, max: *max, runs: values.len() })
    }
}

/// A line of the table that is made of every benchmark.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    what: String,
    unit: &'static str,
    #[serde(flatten)]
    figure: Figure,
    /// What it should be at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    aim: Option<f64>,
    /// What it should be at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    aim_at_least: Option<f64>,
}

impl Row {
    pub(crate) fn new(what: impl Into<String>, unit: &'static str, figure: Figure) -> Self {
        Self { what: what.into(), unit, figure, aim: None, aim_at_least: None }
    }

    /// It should be this at most.
    pub(crate) fn aim(self, at_most: f64) -> Self {
        Self { aim: Some(at_most), ..self }
    }

    /// It should be this at least.
    pub(crate) fn aim_at_least(self, at_least: f64) -> Self {
        Self { aim_at_least: Some(at_least), ..self }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.min, self.max)
    }
}

/// A straight line through measured points.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Line {
    /// Where it begins, at x = 0.
    pub(crate) from: f64,
    /// What it gains with each unit of x.
    pub(crate) slope: f64,
}

impl Line {
    /// That with the least squares; `None` of fewer than two different x.
    pub(crate) fn through(points: &[(f64, f64)]) -> Option<Self> {
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        if points.len() < 2 || spread < f64::EPSILON {
            return None;
        }
        let slope = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>() / spread;
        Some(Self { from: y - slope * x, slope })
    }
}

/// User and system time of a process, by its kernel (fields 14 and 15 of its `stat`, in hundredths).
pub(crate) fn cpu_seconds(pid: i32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}

/// A number of `/proc/PID/status`: memory in MB (10⁶ bytes), anything else as it is.
fn status(pid: i32, key: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let line = line.with_context(|| format!("no {key} in /proc/{pid}/status"))?.trim();
    Ok(match line.strip_suffix(" kB") {
        Some(kibibytes) => kibibytes.parse::<f64>()? * 1024.0 / 1e6,
        None => line.parse()?,
    })
}

/// What a process takes, over several windows of time.
#[derive(Debug, Serialize)]
pub(crate) struct Footprint {
    /// Resident memory at the end of each window, in MB.
    pub(crate) rss_mb: Figure,
    /// The most it ever had, in MB.
    pub(crate) peak_rss_mb: f64,
    /// Of one core, in percent, in each window.
    pub(crate) cpu_percent: Figure,
    /// At the end.
    pub(crate) threads: f64,
    /// Length of a window.
    pub(crate) window_s: f64,
}

impl Footprint {
    /// Watches `pid` for as many whole windows as fit into `total`.
    pub(crate) fn watch(pid: i32, total: Duration, window: Duration) -> Result<Self> {
        let windows = total.as_secs() / window.as_secs().max(1);
        ensure!(windows >= 1, "a window takes {window:?}: measure for longer than {total:?}");
        let (mut rss, mut cpu) = (Vec::new(), Vec::new());
        for _ in 0..windows {
            let (begin, before) = (Instant::now(), cpu_seconds(pid)?);
            std::thread::sleep(window);
            cpu.push((cpu_seconds(pid)? - before) / begin.elapsed().as_secs_f64() * 100.0);
            rss.push(status(pid, "VmRSS")?);
        }
        Ok(Self {
            rss_mb: Figure::of(rss)?,
            peak_rss_mb: status(pid, "VmHWM")?,
            cpu_percent: Figure::of(cpu)?,
            threads: status(pid, "Threads")?,
            window_s: window.as_secs_f64(),
        })
    }
}

/// How long ticks took, as far as a histogram tells: each figure is the upper bound of its bucket.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Ticks {
    pub(crate) count: f64,
    pub(crate) mean_ms: f64,
    /// Half of them took no longer.
    pub(crate) p50_at_most_ms: f64,
    pub(crate) p99_at_most_ms: f64,
    /// None took longer.
    pub(crate) max_at_most_ms: f64,
}

/// A Prometheus histogram without labels: the count of each bucket and of all below it, by its upper bound.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram {
    buckets: Vec<(f64, f64)>,
    sum: f64,
}

impl Histogram {
    /// Finds the histogram `name` in the text of `/metrics`.
    pub(crate) fn read(text: &str, name: &str) -> Result<Self> {
        let mut buckets = Vec::new();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix("_bucket{le=\""))
            else {
                continue;
            };
            let (bound, count) = rest.split_once("\"} ").with_context(|| format!("{line:?}"))?;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse()? };
            buckets.push((bound, count.trim().parse()?));
        }
        ensure!(!buckets.is_empty(), "there is no histogram {name}");
        let sum = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("_sum "));
        let sum = sum.with_context(|| format!("{name} has no sum"))?.trim().parse()?;
        Ok(Self { buckets, sum })
    }

    /// What came since `earlier`, of seconds.
    pub(crate) fn since(&self, earlier: &Self) -> Result<Ticks> {
        let counts = self.buckets.iter().zip(&earlier.buckets);
        let counts: Vec<(f64, f64)> = counts.map(|((bound, now), (_, had))| (*bound, now - had)).collect();
        let count = counts.last().map_or(0.0, |(_, count)| *count);
        ensure!(count > 0.0, "nothing was counted");
        let at_most = |share: f64| {
            let bucket = counts.iter().find(|(_, below)| *below >= share * count);
            bucket.map_or(f64::INFINITY, |(bound, _)| bound * 1000.0)
        };
        Ok(Ticks {
            count,
            mean_ms: (self.sum - earlier.sum) / count * 1000.0,
            p50_at_most_ms: at_most(0.5),
            p99_at_most_ms: at_most(0.99),
            max_at_most_ms: at_most(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_median_and_range() {
        let figure = Figure::of([3.0, 1.0, 2.0, 10.0]).unwrap();
        assert_eq!((figure.median, figure.min, figure.max, figure.runs), (2.5, 1.0, 10.0, 4));
        assert_eq!(Figure::of([7.0]).unwrap().median, 7.0);
        assert!(Figure::of([]).is_err());
    }

    #[test]
    fn a_line_is_the_one_with_the_least_squares() {
        let line = Line::through(&[(1.0, 12.0), (5.0, 20.0), (10.0, 30.0)]).unwrap();
        assert!((line.from - 10.0).abs() < 1e-9 && (line.slope - 2.0).abs() < 1e-9, "{line:?}");
        let line = Line::through(&[(0.0, 0.0), (1.0, 3.0), (2.0, 0.0)]).unwrap();
        assert!((line.from - 1.0).abs() < 1e-9 && line.slope.abs() < 1e-9, "{line:?}");
        assert_eq!(Line::through(&[(1.0, 12.0), (1.0, 13.0)]), None);
        assert_eq!(Line::through(&[]), None);
    }

    #[test]
    fn a_histogram_is_read_as_what_came_since() {
        let text = |small, all| {
            format!(
                "# TYPE x_seconds histogram\nx_seconds_sum {}\nx_seconds_count {all}\nx_seconds_bucket{{le=\"0.001\"}} {small}\n\
                 x_seconds_bucket{{le=\"0.01\"}} {all}\nx_seconds_bucket{{le=\"+Inf\"}} {all}\n",
                f64::from(all) * 0.002
            )
        };
        let before = Histogram::read(&text(10, 10), "x_seconds").unwrap();
        let after = Histogram::read(&text(100, 110), "x_seconds").unwrap();
        let ticks = after.since(&before).unwrap();
        assert_eq!((ticks.count, ticks.p50_at_most_ms), (100.0, 1.0));
        assert_eq!((ticks.p99_at_most_ms, ticks.max_at_most_ms), (10.0, 10.0));
        assert!((ticks.mean_ms - 2.0).abs() < 1e-9, "{ticks:?}");
        assert!(after.since(&after).is_err());
        assert!(Histogram::read("", "x_seconds").is_err());
    }

    #[test]
    fn the_kernel_tells_of_this_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(cpu_seconds(pid).unwrap() >= 0.0);
        assert!(status(pid, "VmRSS").unwrap() > 0.5, "MB");
        assert!(status(pid, "Threads").unwrap() >= 1.0);
        assert!(status(pid, "Nonsense").is_err());
    }
}
