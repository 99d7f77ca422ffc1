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
        })
    }
}

fn said(command: &[&str]) -> Result<String> {
    let output = Command::new(command[0]).args(&command[1..]).output()?;
    anyhow::ensure!(output.status.success(), "{command:?} failed");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
