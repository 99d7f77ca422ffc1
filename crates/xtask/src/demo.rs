//! `cargo xtask demo`: a takeover, live.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bed::{Bed, Hosts};
use crate::ec2_bed;
use crate::kafka;
use crate::kubernetes_bed;
use crate::preflight::{self, Scope};
use crate::workspace::{Profile, Workspace};

/// Show a takeover live: a real Kafka cluster, a broker's host killed under load, nothing lost.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the picture of the takeover goes [default: `timeline.svg` in the target directory].
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// What the hosts are.
    #[arg(long, value_enum, default_value_t = Hosts::Rack)]
    bed: Hosts,
    /// How the cluster's listeners are secured: with `sasl_ssl` there are certificates, logins and rights as well.
    #[arg(long, value_name = "PROTOCOL", default_value = "plaintext", value_parser = ["plaintext", "sasl_ssl"])]
    security: String,
    /// Which Kafka: that of today, 3.9.2, or 3.2.3 with ZooKeeper.
    #[arg(long, value_name = "VERSION", default_value = kafka::CURRENT.version, value_parser = kafka::VERSIONS)]
    kafka: String,
}

/// Runs the command. Returns only when the demonstration could not be started.
pub(crate) fn run(args: &Args) -> Result<()> {
    let alone = args.security == "plaintext" && kafka::other(&args.kafka).is_none();
    ensure!(alone || args.bed != Hosts::Kubernetes, "--bed kubernetes takes neither --security nor --kafka");
    preflight::ensure(Scope::Stories)?;
    let workspace = Workspace::find()?;
    let bed = Bed::prepare(&workspace, &["understudy", "e2e"], Profile::Dev)?;
    let bed = match kafka::other(&args.kafka) {
        Some(release) => bed.with_kafka(release)?,
        None => bed,
    };
    let svg = args.svg.clone().unwrap_or_else(|| workspace.root.join("target/timeline.svg"));
    let svg = std::path::absolute(svg).context("--svg is not a usable path")?;
    let mut demo = bed.program("demo")?;
    demo.arg("--svg").arg(svg).args(["--security", &args.security]);
    match args.bed {
        Hosts::Rack => {}
        Hosts::Ec2 => drop(demo.arg("--ec2").env(ec2_bed::VARIABLE, ec2_bed::ensure()?)),
        Hosts::Kubernetes => {
            demo.arg("--kubernetes").env(kubernetes_bed::VARIABLE, kubernetes_bed::with_nodes()?);
        }
    }
    become_program(&mut demo)
}

/// Replaces this process, so that Ctrl-C reaches the one who has hosts to remove, and its last line is the
/// last.
pub(crate) fn become_program(command: &mut Command) -> Result<()> {
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", command.get_program().display()))
}
