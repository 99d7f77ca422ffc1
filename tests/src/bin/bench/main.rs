//! Measures, each figure with its conditions and, where there is one, beside its reference.
//!
//! Run by `cargo xtask bench`; one file a benchmark.

mod conditions;
mod cpu;
mod detection;
mod ec2;
mod figures;
mod footprint;
mod growth;
mod kubernetes;
mod nfs;
mod scale;
mod takeover;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use e2e::performance_within;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a cluster of any kind takes to come up, and three times to calm down, beside what is measured.
const SETUP: Duration = Duration::from_secs(600 + 3 * takeover::WARM_UP.as_secs());

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

/// For a benchmark whose runs are all alike, each in a lab of its own.
#[derive(clap::Args)]
pub(crate) struct Runs {
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    #[arg(long)]
    json: PathBuf,
}

#[derive(Subcommand)]
enum What {
    /// Several takeovers, each on a cluster of its own.
    Takeover {
        #[arg(long)]
        runs: u32,
        #[command(flatten)]
        one: takeover::Options,
    },
    /// One of them: what `takeover` starts.
    One(takeover::Options),
    /// Several takeovers on a simulated EC2, each on a cluster of its own.
    Ec2(Runs),
    /// One of them.
    Ec2One {
        #[arg(long)]
        json: PathBuf,
    },
    /// Several takeovers on a Kubernetes of real parts, each on one of its own.
    Kubernetes(Runs),
    /// One of them.
    KubernetesOne(kubernetes::OneOptions),
    /// Takeovers and rebuilds with more and more data, each on a cluster of its own.
    Growth(growth::Options),
    /// One of them.
    GrowthOne(growth::OneOptions),
    /// What a broker takes of the processor where it was restarted, rebuilt and taken over.
    Cpu(cpu::Options),
    /// Several takeovers on real NFS, each on a bed of its own.
    Nfs(Runs),
    /// One of them.
    NfsOne {
        #[arg(long)]
        json: PathBuf,
    },
    /// False alarms and detection, by settings and disturbances.
    Detection(detection::Options),
    /// An agent that watches three real brokers.
    Footprint(footprint::Options),
    /// An agent that watches a cluster of any size.
    Scale(scale::Options),
}

fn main() -> Result<()> {
    match Args::parse().what {
        What::One(options) => performance_within("bench", SETUP, |lab| takeover::one(lab, &options)),
        What::Takeover { runs, one } => takeover::all(runs, &one),
        What::Ec2(options) => ec2::all(&options),
        What::Ec2One { json } => performance_within("bench", SETUP, |lab| ec2::one(lab, &json)),
        What::Kubernetes(options) => kubernetes::all(&options),
        What::KubernetesOne(options) => {
            performance_within("bench", SETUP, |lab| kubernetes::one(lab, &options))
        }
        What::Growth(options) => growth::all(&options),
        What::GrowthOne(options) => {
            performance_within("bench", options.limit(), |lab| growth::one(lab, &options))
        }
        What::Cpu(options) => {
            performance_within("bench", SETUP + options.limit(), |lab| cpu::run(lab, &options))
        }
        What::Nfs(options) => nfs::all(&options),
        What::NfsOne { json } => performance_within("bench", SETUP, |lab| nfs::one(lab, &json)),
        What::Detection(options) => {
            performance_within("bench", SETUP + options.limit(), |lab| detection::run(lab, &options))
        }
        What::Footprint(options) => {
            performance_within("bench", SETUP + options.window(), |lab| footprint::run(lab, &options))
        }
        What::Scale(options) => {
            performance_within("bench", SETUP + options.window(), |lab| scale::run(lab, &options))
        }
    }
}

/// Runs this program again, with a lab of its own, and reads what it wrote.
fn in_its_own_lab<T: DeserializeOwned>(arguments: &[&str], file: &Path) -> Result<T> {
    let mut command = Command::new(std::env::current_exe()?);
    let status = command.args(arguments).arg("--json").arg(file).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "{} failed ({status}); it has said why", arguments.join(" "));
    Ok(serde_json::from_slice(&fs::read(file)?)?)
}

/// Writes what was measured.
fn write(json: &Path, figures: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(figures)?;
    fs::write(json, text + "\n").with_context(|| format!("cannot write {}", json.display()))
}
