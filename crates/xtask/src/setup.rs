//! `cargo xtask setup`: everything the other commands need, and nothing run.

use anyhow::Result;

use crate::preflight::{self, Scope};
use crate::workspace::Workspace;
use crate::{kafka, tools};

/// Get what the other commands need: packages (as root), cargo tools, Kafka.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_: &Args) -> Result<()> {
    preflight::ensure(Scope::Stories)?;
    let workspace = Workspace::find()?;
    for tool in [tools::DENY, tools::NEXTEST] {
        eprintln!("ready: {}", tool.ensure(&workspace)?.display());
    }
    eprintln!("ready: {}", kafka::ensure()?.display());
    Ok(())
}
