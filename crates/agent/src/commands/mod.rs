//! One file a command. A command reads the world, makes one report, and ends with an exit code.

mod check;
mod enter;
mod failover;
mod guard;
mod history;
mod ledger;
mod ontap;
mod order;
mod rejoin;
mod reload;
mod run;
mod status;
mod story;
mod switchover;
mod warm;

use std::fmt;
use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

use drivers::health_signal::storage_canary;
use drivers::storage::probe::{self, ProbeAct};
use recovery::model::HostName;
use recovery::ports::EventSink;
use serde::Serialize;

use crate::UsageError;
use crate::cli::{Canary, Cli, Command, Global, Kubernetes, StorageProbe};
use crate::config::{self, Config};
use crate::evidence::propose;
use crate::exit::Exit;
use crate::output;
use crate::telemetry::LogSink;
use crate::world::World;

/// Runs the command.
///
/// # Errors
/// Whatever keeps it from making its report; the configuration's problems as a [`config::ConfigError`].
pub(crate) fn dispatch(cli: Cli) -> anyhow::Result<Exit> {
    match &cli.command {
        Command::Version => return version(&cli.global),
        // Reads no configuration: that may be on the very storage that stalls.
        Command::Canary(Canary { dir, host }) => {
            storage_canary::write(dir, &HostName(host.clone()))?;
            return Ok(Exit::Done);
        }
        Command::StorageProbe(StorageProbe { act, dir }) => {
            let node = rustix::system::uname().nodename().to_string_lossy().replace('/', "_");
            return probe(*act, dir, &HostName(node));
        }
        Command::ConfigReference => {
            return Ok(output::print(&config::reference(), cli.global.output).map(|()| Exit::Done)?);
        }
        Command::Kubernetes(Kubernetes::Crd) => {
            let definitions = kubernetes::definitions_yaml().map_err(anyhow::Error::msg)?;
            return Ok(output::print_text(&definitions).map(|()| Exit::Done)?);
        }
        // Kafka's container has no configuration of ours.
        Command::Enter { dir, install: true, .. } => return enter::install(dir),
        Command::Enter { dir, command, .. } => return enter::run(dir, command),
        // A broker host has no more of a configuration than this needs.
        Command::Guard { broker, wait, epoch, exec: false, .. } => {
            return block_on(guard::run(&cli.global, *broker, *wait, *epoch));
        }
        Command::Guard { broker, wait, epoch, user, command, .. } => {
            let start = guard::exec::Start { command: command.clone(), user: user.clone() };
            return guard::exec::run(&cli.global, *broker, *wait, *epoch, start);
        }
        Command::Ledger(command) => return block_on(ledger::run(&cli.global, command)),
        Command::Ontap(command) => return block_on(ontap::run(&cli.global, command)),
        _ => {}
    }
    let config = Config::load(&cli.global.config)?;
    let global = &cli.global;
    match cli.command {
        Command::Run => block_on(run::run(config)),
        Command::Failover(options) => block_on(failover::run(global, &options, &config)),
        Command::Plan { broker } => block_on(plan(global, broker, &config)),
        Command::Status => block_on(status::run(global, &config)),
        Command::History(options) => block_on(history::run(global, &options, &config)),
        Command::Check => block_on(check::run(global, &config)),
        Command::Warm(options) => block_on(warm::run(global, &options, &config)),
        Command::Switchover(options) => block_on(switchover::run(global, &options, &config)),
        Command::Pause(options) => block_on(order::pause(global, options, &config)),
        Command::Resume { broker } => block_on(order::resume(global, broker, &config)),
        Command::Ack { broker, reason } => block_on(order::ack(global, broker, reason, &config)),
        Command::Approve { broker, lasting } => block_on(order::approve(global, broker, lasting, &config)),
        Command::Reload(options) => block_on(reload::run(global, options, &config)),
        Command::Rejoin { yes } => block_on(rejoin::run(global, yes, &config)),
        Command::Version
        | Command::Canary(_)
        | Command::StorageProbe(_)
        | Command::ConfigReference
        | Command::Enter { .. }
        | Command::Guard { .. }
        | Command::Kubernetes(_)
        | Command::Ledger(_)
        | Command::Ontap(_) => Ok(Exit::Done),
    }
}

/// Its answer is one line for the process that sent it.
fn probe(act: ProbeAct, dir: &Path, here: &HostName) -> anyhow::Result<Exit> {
    let answer = probe::act(act, dir, here)?;
    writeln!(std::io::stdout(), "{answer}")?;
    Ok(Exit::Done)
}

fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // However many cores the host has: one thread decides while the other waits for the world.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(command);
    // A thread that hangs on a dead mount must not keep the process.
    runtime.shutdown_background();
    result
}

/// Asks a person. The answer is no unless it is a clear yes.
///
/// # Errors
/// When nobody can be asked.
fn agreed(question: &str) -> anyhow::Result<bool> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let why = "nobody can be asked here, for standard input is not a terminal; add --yes to act without";
        return Err(UsageError(why.to_owned()).into());
    }
    output::say(format!("{question} [y/N]"));
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "understudy {}", self.version)
    }
}

fn version(global: &Global) -> anyhow::Result<Exit> {
    output::print(&Version { version: env!("CARGO_PKG_VERSION") }, global.output)?;
    Ok(Exit::Done)
}

/// `understudy plan`: what a takeover would do. Acts on nothing.
async fn plan(global: &Global, broker: i32, config: &Config) -> anyhow::Result<Exit> {
    let events: Arc<dyn EventSink> = Arc::new(LogSink::default());
    let world = World::build(config, events)?;
    let proposal = propose(&world, &config.socket, broker).await?.with_properties();
    output::print(&proposal, global.output)?;
    Ok(if proposal.objections.is_empty() { Exit::Done } else { Exit::Held })
}
