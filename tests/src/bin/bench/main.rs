//! Measures, each figure with its conditions and, where there is one, beside its reference.
//!
//! Run by `cargo xtask bench`; one file a benchmark.

mod conditions;
mod figures;
mod footprint;
mod scale;
mod takeover;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use e2e::performance_within;
use serde::Serialize;

/// What a cluster of any kind takes to come up, beside what is measured.
const SETUP: Duration = Duration::from_secs(600);

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Several takeovers, each on a cluster of its own.
    Takeover {
        #[arg(long)]
        runs: u32,
        #[arg(long)]
        json: PathBuf,
    },
    /// One of them: what `takeover` starts.
    One {
        #[arg(long)]
        json: PathBuf,
    },
    /// An agent that watches three real brokers.
    Footprint(footprint::Options),
    /// An agent that watches a cluster of any size.
    Scale(scale::Options),
}

fn main() -> Result<()> {
    match Args::parse().what {
        What::One { json } => e2e::performance("bench", |lab| takeover::one(lab, &json)),
        What::Takeover { runs, json } => takeover::all(runs, &json),
        What::Footprint(options) => {
            performance_within("bench", SETUP + options.window(), |lab| footprint::run(lab, &options))
        }
        What::Scale(options) => {
            performance_within("bench", SETUP + options.window(), |lab| scale::run(lab, &options))
        }
    }
}

/// Writes what was measured.
fn write(json: &Path, figures: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(figures)?;
    fs::write(json, text + "\n").with_context(|| format!("cannot write {}", json.display()))
}
