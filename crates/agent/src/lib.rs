//! The agent: configuration, command line, HTTP and telemetry around [`recovery`].
//!
//! A library only so that tests reach its parts; the binary `understudy` is [`run`].

pub mod access;
mod at_home;
mod checks;
pub mod cli;
mod commands;
pub mod config;
mod evidence;
pub mod exit;
mod guest;
pub mod http;
mod may_start;
mod order_pages;
mod orders;
mod output;
pub mod refusal;
mod reload;
mod serve;
pub mod service;
mod setup;
mod socket;
pub mod telemetry;
mod warmth;
mod who;
mod world;

use tracing::level_filters::LevelFilter;

use cli::{Cli, Command};
use config::ConfigError;
use exit::Exit;
use refusal::Refused;

/// A command that cannot mean anything, whatever the state of the world.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// Runs one command. Whatever fails is told here, once.
#[must_use]
pub fn run(cli: Cli) -> Exit {
    let usual = if matches!(cli.command, Command::Run | Command::Enter { .. }) {
        LevelFilter::INFO
    } else {
        LevelFilter::WARN
    };
    telemetry::init(cli.global.log_format, cli.global.log.unwrap_or(usual));
    let format = cli.global.output;
    let error = match commands::dispatch(cli) {
        Ok(exit) => return exit,
        Err(error) => error,
    };
    if let Some(problems) = error.downcast_ref::<ConfigError>() {
        match format {
            cli::Output::Text => output::say(problems),
            // A program reads the problems where it reads every other answer.
            cli::Output::Json => drop(output::print(problems, format)),
        }
        return Exit::Usage;
    }
    if let Some(refused) = error.downcast_ref::<Refused>() {
        match format {
            cli::Output::Text => output::say(format!("not done: {refused}")),
            cli::Output::Json => drop(output::print(refused, format)),
        }
        return Exit::Held;
    }
    output::say(format!("error: {error:#}"));
    if error.is::<UsageError>() { Exit::Usage } else { Exit::Failed }
}
