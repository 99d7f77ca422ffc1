//! `cargo xtask chaos`: the fault marathon.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::demo::become_program;
use crate::preflight::{self, Scope};
use crate::shell;
use crate::workspace::{Profile, Workspace};

/// Let random faults befall a real cluster under load; fail if anything acknowledged is lost or doubled.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// For how long rounds are begun.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// What all faults come from; the time of day by default. It is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Where every round and the sums go.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command. Returns only when the marathon could not be started.
pub(crate) fn run(args: &Args) -> Result<()> {
    let json = args.json.as_ref().map(std::path::absolute).transpose();
    let json = json.context("--json is not a usable path")?;
    preflight::ensure(Scope::Stories)?;
    let workspace = Workspace::find()?;
    let bed = Bed::prepare(&workspace, &["understudy", "e2e"], Profile::Dev)?;
    let mut program = bed.program("chaos")?;
    program.args(["--minutes", &args.minutes.to_string()]);
    if let Some(seed) = args.seed {
        program.args(["--seed", &seed.to_string()]);
    }
    if let Some(json) = json {
        program.arg("--json").arg(json);
    }
    become_program(&mut program)
}

/// How long a part of a run, and a round of a search, lasts.
pub(crate) const MINUTES: u32 = 3;

/// Always the same faults: part of `cargo xtask test --tier all`.
pub(crate) fn run_for_test(bed: &Bed) -> Result<()> {
    shell::run(&mut afresh(bed, 1)?)
}

/// The command that throws the faults of `seed`, for `cargo xtask search`.
///
/// # Errors
/// There is no such program.
pub(crate) fn afresh(bed: &Bed, seed: u64) -> Result<Command> {
    let mut chaos = bed.program("chaos")?;
    chaos.args(["--minutes", &MINUTES.to_string(), "--seed", &seed.to_string()]);
    Ok(chaos)
}
