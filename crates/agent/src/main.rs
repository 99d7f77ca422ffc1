//! The binary. Everything is in the library beside it.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    understudy::run(understudy::cli::Cli::parse()).into()
}
