//! `cargo xtask sim`: whole clusters in one process, one from each seed.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

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

/// As `cargo xtask test` runs it: seeds that no run has had before, for those that every run has are soon
/// obeyed. The base is printed, so that a run can be repeated.
pub(crate) fn run_for_test(workspace: &Workspace) -> Result<()> {
    let from = base(SystemTime::now());
    let again = format!("cargo xtask sim --seeds {SEEDS_OF_A_TEST} --from {from}");
    eprintln!("{SEEDS_OF_A_TEST} clusters; the same ones again: {again}");
    let result = simulate(workspace, &Args { seeds: SEEDS_OF_A_TEST, from, jobs: None, show: false });
    result.with_context(|| format!("the same clusters again: {again}"))
}

/// The milliseconds since 1970: runs that begin within the same twenty seconds share seeds, and no others do.
fn base(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
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
