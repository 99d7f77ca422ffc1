//! `cargo xtask demo`: a takeover, live.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::preflight::{self, Scope};
use crate::workspace::{Profile, Workspace};

/// Show a takeover live: a real Kafka cluster, a broker's host killed under load, nothing lost.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Passed on to the demonstration; `-- --help` lists what it takes.
    #[arg(last = true)]
    rest: Vec<String>,
}

/// Runs the command. Returns only when the demonstration could not be started.
pub(crate) fn run(args: &Args) -> Result<()> {
    preflight::ensure(Scope::Stories)?;
    let workspace = Workspace::find()?;
    let bed = Bed::prepare(&workspace, &["understudy", "e2e"], Profile::Dev)?;
    become_program(bed.program("demo")?.args(&args.rest))
}

/// Replaces this process, so that Ctrl-C reaches the one who has hosts to remove, and its last line is the last.
pub(crate) fn become_program(command: &mut Command) -> Result<()> {
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", command.get_program().display()))
}
