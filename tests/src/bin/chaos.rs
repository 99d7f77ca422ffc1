//! The fault marathon: random faults on a real cluster under load.
//!
//! Run by `cargo xtask chaos --minutes M`. Its last line is `acknowledged N, lost 0, duplicated 0, seed S`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Parser;
use e2e::chaos::Marathon;
use e2e::performance_within;

/// The cluster comes up, the last round ends, and everything is read and judged.
const BESIDE: Duration = Duration::from_secs(15 * 60);

#[derive(Parser)]
struct Args {
    #[arg(long)]
    minutes: u64,
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let lasting = Duration::from_secs(60 * args.minutes);
    let seed = args.seed.unwrap_or_else(by_the_clock);
    performance_within("chaos", lasting + BESIDE, |lab| {
        Marathon { lasting, seed }.run(lab, args.json.as_deref())
    })
}

fn by_the_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs())
}
