//! `cargo xtask sim`: whole clusters in one process, one from each seed.

use anyhow::Result;

use crate::preflight::{self, Scope};
use crate::shell;
use crate::workspace::{Profile, Workspace};

/// Seeds of one run of `cargo xtask test`.
pub(crate) const SEEDS_OF_A_TEST: u64 = 20_000;

/// Simulate whole clusters with every fault, one from each seed; show the first that breaks a promise.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = SEEDS_OF_A_TEST)]
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

/// As `cargo xtask test` runs it: the same seeds on every commit, so that a failure is the commit's.
pub(crate) fn run_for_test(workspace: &Workspace) -> Result<()> {
    simulate(workspace, &Args { seeds: SEEDS_OF_A_TEST, from: 0, jobs: None, show: false })
}

fn simulate(workspace: &Workspace, args: &Args) -> Result<()> {
    let program = workspace.build(&["understudy-sim"], Profile::Release)?.path("sim")?;
    let mut sim = std::process::Command::new(program);
    sim.args(["--seeds", &args.seeds.to_string(), "--from", &args.from.to_string()]);
    if let Some(jobs) = args.jobs {
        sim.args(["--jobs", &jobs.to_string()]);
    }
    if args.show {
        sim.arg("--show");
    }
    shell::run(&mut sim)
}
