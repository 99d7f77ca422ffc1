//! `cargo xtask setup`: everything the other commands need, and nothing run.

use anyhow::Result;

use crate::preflight::{self, Missing, Scope};
use crate::workspace::Workspace;
use crate::{ec2_bed, kafka, kubernetes_bed, nfs_bed, terraform_bed, tools};

/// Get what the other commands need: packages (as root), Kafka and a simulated EC2; with `--tier`, what one part of the
/// tests needs besides.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also what this part needs.
    #[arg(long)]
    tier: Option<Tier>,
}

/// The parts of `cargo xtask test --tier all` that need something besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Tier {
    /// Whatever can be had here.
    All,
    /// Kernel, disk image and server of the hosts on real NFS.
    Nfs,
    /// OpenTofu; built with Go.
    Ec2,
    /// A Kubernetes: API server, etcd, nodes; built with Go.
    Kubernetes,
    /// cargo-deny.
    Licences,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    preflight::ensure(Scope::Stories)?;
    let kafka_home = kafka::ensure(&kafka::CURRENT)?;
    eprintln!("ready: {}", kafka_home.display());
    eprintln!("ready: {}", kafka::classes::ensure(&kafka_home)?.display());
    eprintln!("ready: {}={}", ec2_bed::VARIABLE, ec2_bed::ensure()?.display());
    if matches!(args.tier, Some(Tier::All | Tier::Licences)) {
        eprintln!("ready: {}", tools::DENY.ensure(&Workspace::find()?)?.display());
    }
    match (args.tier, terraform_bed::obstacle()) {
        (Some(Tier::Ec2), Some(why)) => return Err(Missing(format!("the EC2 tier: {why}")).into()),
        (Some(Tier::All), Some(why)) => eprintln!("left out: Terraform: {why}"),
        (Some(Tier::All | Tier::Ec2), None) => {
            eprintln!("ready: {}={}", terraform_bed::VARIABLE, terraform_bed::ensure()?.display());
        }
        _ => {}
    }
    match (args.tier, nfs_bed::obstacle()) {
        (Some(Tier::Nfs), Some(why)) => return Err(Missing(format!("the NFS tier: {why}")).into()),
        (Some(Tier::All), Some(why)) => eprintln!("left out: the NFS tier: {why}"),
        (Some(Tier::All | Tier::Nfs), None) => {
            preflight::ensure(Scope::Nfs)?;
            eprintln!("ready: {}", nfs_bed::ensure()?.display());
        }
        _ => {}
    }
    match (args.tier, kubernetes_bed::obstacle()) {
        (Some(Tier::Kubernetes), Some(why)) => {
            return Err(Missing(format!("the Kubernetes tier: {why}")).into());
        }
        (Some(Tier::All), Some(why)) => eprintln!("left out: the Kubernetes tier: {why}"),
        (Some(Tier::All | Tier::Kubernetes), None) => {
            eprintln!("ready: {}={}", kubernetes_bed::VARIABLE, kubernetes_bed::ensure()?.display());
        }
        _ => {}
    }
    Ok(())
}
