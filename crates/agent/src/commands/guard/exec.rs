//! `understudy guard --exec`: takes the broker's right on this host, asks the ledger, and becomes Kafka.
//!
//! The right comes first. Whoever else starts Kafka here, an agent above all, takes it as well before it
//! looks: so either that one sees this start, or this one sees what that one has written to the ledger.

use std::process::exit;
use std::time::Duration;

use recovery::drivers::broker_host::{Right, RightError};
use recovery::model::BrokerId;

use crate::cli::Global;
use crate::config::Small;
use crate::exit::Exit;
use crate::output::say;
use crate::refusal::Refusal;

/// What a refusal ends with: the code by which `env` and `timeout` tell their own failures from those of what
/// they run. Java itself ends with 3 where it is told to exit when memory is short.
const REFUSED: i32 = 125;

/// A Kafka that was told to stop a moment ago may still write its last.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is to be started.
pub(in crate::commands) struct Start {
    /// Program and arguments.
    pub(in crate::commands) command: Vec<String>,
    /// Whom it runs as.
    pub(in crate::commands) user: Option<String>,
}

pub(in crate::commands) fn run(
    global: &Global,
    broker: i32,
    wait: Duration,
    start_of: Option<u64>,
    start: Start,
) -> anyhow::Result<Exit> {
    let refused = |error: anyhow::Error| -> ! {
        say(format!("error: {error:#}"));
        exit(REFUSED)
    };
    let config = Small::load(&global.config)?;
    let right = take(&config, broker).unwrap_or_else(|error| refused(error));
    // The runtime's threads are gone before this process becomes another one.
    let asked = super::super::block_on(async {
        let report = super::ask(global, config, broker, wait, start_of).await?;
        say(report.to_string());
        Ok(Exit::Done)
    });
    if let Err(error) = asked {
        refused(error);
    }
    let program = start.command.first().cloned().unwrap_or_default();
    let error = right.become_kafka(&start.command, start.user.as_deref());
    say(format!("error: {program} cannot be executed: {error}"));
    exit(REFUSED)
}

fn take(config: &Small, broker: i32) -> anyhow::Result<Right> {
    let broker = BrokerId(broker);
    Right::take(&config.state_dir, broker, PATIENCE).map_err(|error| match error {
        held @ RightError::Held { .. } => {
            let why = format!(
                "a Kafka of broker {broker} lives or starts on this host: {held}. Leave it, or stop it"
            );
            Refusal::KafkaRuns.because(why).into()
        }
        failed => failed.into(),
    })
}
