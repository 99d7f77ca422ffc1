//! `understudy guard --exec`: takes the broker's right on this host, asks the ledger, and becomes Kafka.
//!
//! The right comes first. Whoever else starts Kafka here, an agent above all, takes it as well before it
//! looks: so either that one sees this start, or this one sees what that one has written to the ledger. The
//! processes of this host come last: a Kafka whose starter did not take the right is seen by nothing else.

use std::path::Path;
use std::process::exit;
use std::time::Duration;

use drivers::broker_host::{Meant, Right, RightError};
use recovery::model::BrokerId;

use crate::UsageError;
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
    let meant = Meant::by(&start.command, |key| std::env::var(key).ok());
    let right = means(&meant, broker)
        .and_then(|()| take(&config.state_dir, BrokerId(broker), PATIENCE))
        .unwrap_or_else(|error| refused(error));
    // The runtime's threads are gone before this process becomes another one.
    let asked = super::super::block_on(super::ask(global, &config, broker, wait, start_of, true));
    // Last, for the ledger may have been waited for.
    let looked = |report| super::nobody_runs(&config, BrokerId(broker), &meant.log_dirs).map(|()| report);
    match asked.and_then(looked) {
        Ok(report) => say(report.to_string()),
        Err(error) => refused(error),
    }
    let program = start.command.first().cloned().unwrap_or_default();
    let error = right.become_kafka(&start.command, start.user.as_deref());
    say(format!("error: {program} cannot be executed: {error}"));
    exit(REFUSED)
}

/// That the command starts the broker whose right is asked for, as far as it tells.
fn means(meant: &Meant, broker: i32) -> anyhow::Result<()> {
    let Some(id) = &meant.node_id else {
        say(format!(
            "warning: the command names no properties that can be read here: that it starts broker {broker} is not \
             checked"
        ));
        return Ok(());
    };
    if id.parse() == Ok(broker) {
        return Ok(());
    }
    let of = match &meant.properties {
        Some(properties) => format!("node.id of {} and its --override", properties.display()),
        None => "KAFKA_NODE_ID".to_owned(),
    };
    let why = format!("--broker is {broker}, and the command starts broker {id} ({of}): correct one of them");
    Err(UsageError(why).into())
}

/// The broker's right on this host.
pub(super) fn take(state_dir: &Path, broker: BrokerId, patience: Duration) -> anyhow::Result<Right> {
    Right::take(state_dir, broker, patience).map_err(|error| match error {
        held @ RightError::Held { .. } => {
            let why = format!(
                "a Kafka of broker {broker} lives or starts on this host: {held}. Leave it, or stop it"
            );
            Refusal::KafkaRuns.because(why).into()
        }
        failed => failed.into(),
    })
}
