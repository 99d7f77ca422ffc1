//! `cargo xtask demo`: a takeover, live.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::preflight::{self, Scope};
use crate::workspace::{Profile, Workspace};

/// Show a takeover live: a real Kafka cluster, a broker's host killed under load, nothing lost.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the picture of the takeover goes [default: `timeline.svg` in the target directory].
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs the command. Returns only when the demonstration could not be started.
pub(crate) fn run(args: &Args) -> Result<()> {
    preflight::ensure(Scope::Stories)?;
    let workspace = Workspace::find()?;
    let bed = Bed::prepare(&workspace, &["understudy", "e2e"], Profile::Dev)?;
    let svg = args.svg.clone().unwrap_or_else(|| workspace.root.join("target/timeline.svg"));
    let svg = std::path::absolute(svg).context("--svg is not a usable path")?;
    become_program(bed.program("demo")?.arg("--svg").arg(svg))
}

/// Replaces this process, so that Ctrl-C reaches the one who has hosts to remove, and its last line is the
/// last.
pub(crate) fn become_program(command: &mut Command) -> Result<()> {
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", command.get_program().display()))
}
