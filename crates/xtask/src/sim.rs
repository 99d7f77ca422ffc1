//! `cargo xtask sim`: whole clusters in one process, one from each seed.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::preflight::{self, Scope};
use crate::shell;
use crate::workspace::{Profile, Workspace};

/// A run of `cargo xtask test` whose seeds take longer has one that does not end: 20,000 take two minutes.
const LIMIT: Duration = Duration::from_secs(1200);

/// Seeds of one round of a search: two minutes' work.
pub(crate) const AFRESH: u64 = 20_000;

/// Simulate whole clusters with every fault, one from each seed; show the first that breaks a promise.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = AFRESH)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Threads; as many as there are processors by default.
    #[arg(long)]
    jobs: Option<u32>,
    /// Show the transcript of the first seed, whether it fails or not, and run no other.
    #[arg(long)]
    show: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    preflight::ensure(Scope::Build)?;
    simulate(&Workspace::find()?, args)
}

/// As `cargo xtask test` runs it: always the same clusters, from seed 0 on.
pub(crate) fn run_for_test(workspace: &Workspace, seeds: u64) -> Result<()> {
    let mut sim = command(workspace, &Args { seeds, from: 0, jobs: None, show: false })?;
    shell::run_within(LIMIT, &mut sim)
}

/// The command that simulates clusters that no run has had before, for `cargo xtask search`.
///
/// # Errors
/// It does not compile.
pub(crate) fn afresh(workspace: &Workspace, from: u64) -> Result<Command> {
    command(workspace, &Args { seeds: AFRESH, from, jobs: None, show: false })
}

fn simulate(workspace: &Workspace, args: &Args) -> Result<()> {
    shell::run(&mut command(workspace, args)?)
}

fn command(workspace: &Workspace, args: &Args) -> Result<Command> {
    let program = workspace.build(&["understudy-sim"], Profile::Dev)?.path("sim")?;
    let mut sim = Command::new(program);
    sim.args(["--seeds", &args.seeds.to_string(), "--from", &args.from.to_string()]);
    if let Some(jobs) = args.jobs {
        sim.args(["--jobs", &jobs.to_string()]);
    }
    if args.show {
        sim.arg("--show");
    }
    Ok(sim)
}
