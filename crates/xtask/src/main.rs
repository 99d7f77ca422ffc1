//! `cargo xtask`: the one runner that people and CI use. What it needs and does is in `docs/development.md`.

mod bed;
mod bench;
mod cache;
mod chaos;
mod conformance;
mod demo;
mod docs;
mod ec2_bed;
mod fuzz;
mod go;
mod image;
mod kafka;
mod kubernetes_bed;
mod nfs_bed;
mod older;
mod preflight;
mod report;
mod search;
mod setup;
mod shell;
mod sim;
mod speed;
mod suite;
mod terraform_bed;
mod test;
mod tools;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// Builds, tests, shows and measures Understudy.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Xtask {
    Setup(setup::Args),
    Test(test::Args),
    Search(search::Args),
    Demo(demo::Args),
    #[command(subcommand)]
    Bench(bench::Bench),
    Chaos(chaos::Args),
    Docs(docs::Args),
    Sim(sim::Args),
    Fuzz(fuzz::Args),
    Conformance(conformance::Args),
    Image(image::Args),
}

/// Exit codes: 0 all well, 1 something failed, 2 wrong usage or something is missing on this machine.
fn main() -> ExitCode {
    let result = match Xtask::parse() {
        Xtask::Setup(args) => setup::run(&args).map(|()| ExitCode::SUCCESS),
        Xtask::Test(args) => test::run(&args),
        Xtask::Search(args) => search::run(&args),
        Xtask::Demo(args) => demo::run(&args).map(|()| ExitCode::SUCCESS),
        Xtask::Bench(bench) => bench::run(&bench).map(|()| ExitCode::SUCCESS),
        Xtask::Chaos(args) => chaos::run(&args).map(|()| ExitCode::SUCCESS),
        Xtask::Fuzz(args) => fuzz::run(&args),
        Xtask::Conformance(args) => conformance::run(&args).map(|()| ExitCode::SUCCESS),
        Xtask::Image(args) => image::run(&args).map(|()| ExitCode::SUCCESS),
        Xtask::Docs(args) => docs::run(&args).map(|()| ExitCode::SUCCESS),
        Xtask::Sim(args) => sim::run(&args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        if error.is::<preflight::Missing>() { ExitCode::from(2) } else { ExitCode::FAILURE }
    })
}
