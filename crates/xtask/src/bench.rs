//! `cargo xtask bench`: figures, with their reference in the same run.

mod render;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::demo::become_program;
use crate::preflight::{self, Scope};
use crate::shell;
use crate::workspace::{Profile, Workspace};

/// Measure, beside a reference taken in the same run.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Several of the others, and what they measured as tables and pictures.
    Suite {
        /// Where everything goes. Figures of other benchmarks that are there already are shown as well.
        #[arg(long, value_name = "DIR", default_value = "docs/performance")]
        out: PathBuf,
        /// How many takeovers.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Only these [default: all].
        #[arg(long, value_delimiter = ',', value_name = "NAME")]
        only: Option<Vec<Member>>,
        /// Measure nothing: only show anew what was measured.
        #[arg(long, conflicts_with_all = ["only", "runs"])]
        render: bool,
    },
    /// From the fault to the last partition back in ISR, beside a restart in place with stock settings.
    Takeover {
        /// How many takeovers, and as many restarts in place.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// What the agent takes while it watches three real brokers: memory and processor.
    Footprint {
        /// For how long.
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(10..=3600))]
        seconds: u32,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// The same, and how long a tick takes, while it watches a large cluster whose brokers answer and hold nothing.
    Scale {
        /// How many brokers.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(16..50_000))]
        brokers: u32,
        /// How many partitions, with three replicas each.
        #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
        partitions: u32,
        /// For how long.
        #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(30..=3600))]
        seconds: u32,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// The fence `ontap_export`, its proof and the grant, against the fake ONTAP: time and requests.
    Ontap {
        /// How many times.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
}

/// The benchmarks of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Member {
    Footprint,
    Scale,
    Takeover,
}

impl Member {
    const ALL: [Self; 3] = [Self::Footprint, Self::Scale, Self::Takeover];

    fn name(self) -> &'static str {
        match self {
            Self::Footprint => "footprint",
            Self::Scale => "scale",
            Self::Takeover => "takeover",
        }
    }

    fn options(self, runs: u32) -> Vec<(&'static str, u32)> {
        match self {
            Self::Footprint => vec![("seconds", 60)],
            Self::Scale => vec![("brokers", 1000), ("partitions", 200_000), ("seconds", 120)],
            Self::Takeover => vec![("runs", runs)],
        }
    }
}

/// Runs the command. One on the test bed returns only when it could not be started.
pub(crate) fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Suite { out, render: true, .. } => render::all(out),
        Bench::Suite { out, runs, only, .. } => suite(out, *runs, only.as_deref().unwrap_or(&Member::ALL)),
        Bench::Takeover { runs, json } => on_the_bed("takeover", &[("runs", *runs)], json),
        Bench::Footprint { seconds, json } => on_the_bed("footprint", &[("seconds", *seconds)], json),
        Bench::Scale { brokers, partitions, seconds, json } => {
            let options = [("brokers", *brokers), ("partitions", *partitions), ("seconds", *seconds)];
            on_the_bed("scale", &options, json)
        }
        Bench::Ontap { runs, json } => ontap(*runs, json),
    }
}

fn ontap(runs: u32, json: &Path) -> Result<()> {
    let json = std::path::absolute(json).context("--json is not a usable path")?;
    preflight::ensure(Scope::Build)?;
    let mut cargo = Workspace::find()?.cargo("run");
    cargo.args(["--release", "--package", "understudy-recovery", "--example", "bench_ontap", "--"]);
    shell::run(cargo.arg(runs.to_string()).arg(json))
}

fn suite(out: &Path, runs: u32, members: &[Member]) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let out = std::path::absolute(out).context("--out is not a usable path")?;
    for member in members {
        let json = out.join(format!("{}.json", member.name()));
        shell::run(&mut program(member.name(), &member.options(runs), &json)?)?;
    }
    render::all(&out)
}

fn on_the_bed(what: &str, options: &[(&str, u32)], json: &Path) -> Result<()> {
    become_program(&mut program(what, options, json)?)
}

/// A benchmark that needs the test bed.
fn program(what: &str, options: &[(&str, u32)], json: &Path) -> Result<Command> {
    let json = std::path::absolute(json).context("--json is not a usable path")?;
    preflight::ensure(Scope::Stories)?;
    let workspace = Workspace::find()?;
    let bed = Bed::prepare(&workspace, &["understudy", "e2e"], Profile::Release)?;
    let mut program = bed.program("bench")?;
    program.arg(what);
    for (option, value) in options {
        program.arg(format!("--{option}")).arg(value.to_string());
    }
    program.arg("--json").arg(json);
    Ok(program)
}
