//! `understudy warm`: makes the class-data archive of this host's Kafka, if there is none that fits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use drivers::broker_host::class_data::{Look, Made};
use recovery::model::BrokerId;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Global, Warm};
use crate::config::Config;
use crate::exit::Exit;
use crate::output::print;

/// What was done.
#[derive(Debug, Serialize)]
#[serde(tag = "did", rename_all = "snake_case")]
enum Report {
    /// One was made.
    Made(Made),
    /// Nothing: see the look.
    Nothing(Look),
    /// Nothing, so as to take nothing from a takeover.
    Held {
        /// What is more important.
        why: String,
    },
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Made(Made { archive, bytes, seconds, cpu_seconds, java, from }) => write!(
                f,
                "made {} ({} MB) in {seconds:.1} s, {cpu_seconds:.1} s of processors, with {java}, by {from}",
                archive.display(),
                bytes / 1_000_000
            ),
            Self::Nothing(Look::Fits { archive, made, .. }) => {
                write!(f, "still fits: {}, made {made:.0}", archive.display())
            }
            Self::Nothing(Look::Unwanted { why }) => write!(f, "none is wanted: {why}"),
            Self::Nothing(Look::None { why }) => write!(f, "none: {why}"),
            Self::Held { why } => write!(f, "not done: {why}; try again when that is over"),
        }
    }
}

pub(super) async fn run(global: &Global, options: &Warm, config: &Config) -> anyhow::Result<Exit> {
    let class_data = config.class_data();
    let look = class_data.look().await?;
    let wanted = match &look {
        Look::None { .. } => true,
        Look::Fits { .. } => options.force,
        Look::Unwanted { .. } => false,
    };
    if !wanted {
        print(&Report::Nothing(look), global.output)?;
        return Ok(Exit::Done);
    }
    let busy = || class_data.busy_with().ok().flatten();
    let held = |broker: BrokerId| {
        let why = format!("broker {broker} is being taken over, restarted or handed over on this host");
        print(&Report::Held { why }, global.output).map(|()| Exit::Held)
    };
    if let Some(broker) = busy() {
        return Ok(held(broker)?);
    }
    let asked = until_asked_to_stop()?;
    let stop = move || asked.load(Ordering::Relaxed).then(|| "asked to stop".to_owned());
    match class_data.make(options.broker.map(BrokerId), stop).await {
        Ok(made) => {
            print(&Report::Made(made), global.output)?;
            Ok(Exit::Done)
        }
        Err(error) => match busy() {
            Some(broker) => Ok(held(broker)?),
            None => Err(error.into()),
        },
    }
}

/// Becomes true at the first SIGTERM or SIGINT.
fn until_asked_to_stop() -> anyhow::Result<Arc<AtomicBool>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let asked = Arc::new(AtomicBool::new(false));
    let says = asked.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        says.store(true, Ordering::Relaxed);
    });
    Ok(asked)
}
