//! `cargo xtask setup`: everything the other commands need, and nothing run.

use anyhow::Result;

use crate::preflight::{self, Scope};
use crate::workspace::Workspace;
use crate::{kafka, nfs_bed, tools};

/// Get what the other commands need: packages (as root), cargo tools, Kafka, the NFS tier's hosts.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_: &Args) -> Result<()> {
    preflight::ensure(Scope::Stories)?;
    let workspace = Workspace::find()?;
    for tool in [tools::DENY, tools::NEXTEST] {
        eprintln!("ready: {}", tool.ensure(&workspace)?.display());
    }
    let kafka_home = kafka::ensure(&kafka::CURRENT)?;
    eprintln!("ready: {}", kafka_home.display());
    eprintln!("ready: {}", kafka::classes::ensure(&kafka_home)?.display());
    match nfs_bed::obstacle() {
        Some(why) => eprintln!("left out: the NFS tier: {why}"),
        None => {
            preflight::ensure(Scope::Nfs)?;
            eprintln!("ready: {}", nfs_bed::ensure()?.display());
        }
    }
    Ok(())
}
