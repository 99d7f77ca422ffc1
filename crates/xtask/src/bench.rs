//! `cargo xtask bench`: figures, with their reference in the same run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::demo::become_program;
use crate::preflight::{self, Scope};
use crate::shell;
use crate::workspace::{Profile, Workspace};

/// Measure, beside a reference taken in the same run.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// From the fault to the last partition back in ISR, beside a restart in place with stock settings.
    Takeover {
        /// How many takeovers, and as many restarts in place.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// The fence `ontap_export`, its proof and the grant, against the fake ONTAP: time and requests.
    Ontap {
        /// How many times.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
}

/// Runs the command. One on the test bed returns only when it could not be started.
pub(crate) fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Takeover { runs, json } => takeover(*runs, json),
        Bench::Ontap { runs, json } => ontap(*runs, json),
    }
}

fn ontap(runs: u32, json: &Path) -> Result<()> {
    let json = std::path::absolute(json).context("--json is not a usable path")?;
    preflight::ensure(Scope::Build)?;
    let mut cargo = Workspace::find()?.cargo("run");
    cargo.args(["--release", "--package", "understudy-recovery", "--example", "bench_ontap", "--"]);
    shell::run(cargo.arg(runs.to_string()).arg(json))
}

fn takeover(runs: u32, json: &Path) -> Result<()> {
    let json = std::path::absolute(json).context("--json is not a usable path")?;
    preflight::ensure(Scope::Stories)?;
    let workspace = Workspace::find()?;
    let bed = Bed::prepare(&workspace, &["understudy", "e2e"], Profile::Release)?;
    let mut program = bed.program("bench")?;
    become_program(program.args(["takeover", "--runs", &runs.to_string(), "--json"]).arg(json))
}
