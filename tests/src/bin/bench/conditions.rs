//! On what something was measured.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use e2e::kafka::Kafka;
use serde::Serialize;

/// What a figure depends on, beside what it measures.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Conditions {
    /// When, in UTC.
    date: String,
    /// Of what; with `+` behind it, of what had changed since as well.
    commit: String,
    /// Processors that this process may use.
    cpus: usize,
    memory_gb: f64,
    kernel: String,
    java: String,
    kafka: String,
    /// What else the machine did: processes that ran or wanted to, on average over the minute before.
    load: f64,
    /// Of the processors' time while it was measured, in percent: what the machine below gave to others.
    steal_percent: f64,
    #[serde(skip)]
    before: Ticks,
}

/// Hundredths of a second of all processors since the boot.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    stolen: f64,
    all: f64,
}

impl Ticks {
    fn read() -> Result<Self> {
        Self::of(&fs::read_to_string("/proc/stat")?)
    }

    /// Of the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal. What follows
    /// is in user already.
    fn of(stat: &str) -> Result<Self> {
        let line =
            stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).context("no cpu in stat")?;
        let fields: Vec<f64> =
            line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().context("stat")?;
        Ok(Self { stolen: *fields.get(7).context("no steal in stat")?, all: fields.iter().sum() })
    }

    fn stolen_since(&self, before: &Self) -> f64 {
        100.0 * (self.stolen - before.stolen) / (self.all - before.all).max(1.0)
    }
}

impl Conditions {
    pub(crate) fn read() -> Result<Self> {
        let memory = fs::read_to_string("/proc/meminfo")?;
        let memory =
            memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
        let load = fs::read_to_string("/proc/loadavg")?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let kafka = Kafka::home()?;
        let java = Command::new(kafka.java()).arg("-version").output()?;
        let java = String::from_utf8_lossy(&java.stderr);
        // A tree that is no repository has no commit.
        let commit =
            said(&["git", "rev-parse", "--short=10", "HEAD"]).unwrap_or_else(|_| "unknown".to_owned());
        let changed = said(&["git", "status", "--porcelain", "--untracked-files=no"]);
        let changed = if changed.is_ok_and(|changed| !changed.is_empty()) { "+" } else { "" };
        Ok(Self {
            date: said(&["date", "--utc", "+%Y-%m-%d %H:%M"])?,
            commit: commit + changed,
            cpus: std::thread::available_parallelism()?.get(),
            memory_gb: memory.context("no MemTotal")?.trim().parse::<f64>()? * 1024.0 / 1e9,
            // Without what its builder calls it.
            kernel: kernel.trim().split('-').next().unwrap_or_default().to_owned(),
            java: java.lines().next().unwrap_or_default().to_owned(),
            kafka: kafka.version().to_owned(),
            load: load.split_whitespace().next().context("no load")?.parse()?,
            steal_percent: 0.0,
            before: Ticks::read()?,
        })
    }

    /// With what was taken from the machine since they were read.
    pub(crate) fn until_now(self) -> Result<Self> {
        let stolen = Ticks::read()?.stolen_since(&self.before);
        Ok(Self { steal_percent: stolen, ..self })
    }
}

fn said(command: &[&str]) -> Result<String> {
    let output = Command::new(command[0]).args(&command[1..]).output()?;
    anyhow::ensure!(output.status.success(), "{command:?} failed");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stolen_is_a_share_of_all_time() {
        let before = Ticks::of("cpu  100 0 100 700 0 0 0 100 50 0\ncpu0 1").unwrap();
        let after = Ticks::of("cpu  150 0 150 750 0 0 0 150 90 0\n").unwrap();
        assert_eq!(after.stolen_since(&before), 25.0);
        assert!(Ticks::of("cpu  1 2 3").is_err());
        assert!(Ticks::read().unwrap().all > 0.0);
    }
}
