//! Keeps this host ready: sees to it that Kafka's class-data archive fits, while nothing else is going on.
//!
//! Nothing waits for it and nothing depends on it. Whoever makes the archive ends by itself when a takeover
//! begins, so this need not be quick.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use drivers::broker_host::class_data::{ClassData, Look};
use recovery::decide::Decision;
use recovery::policy::Mode;
use recovery::status::Status;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::telemetry::Metrics;
use crate::world::OURSELVES;

/// From the start of the agent to the first attempt: it has more important things to find out first.
const SETTLED_AFTER: Duration = Duration::from_secs(30);

/// From one look to the next. Kafka and Java change when a person upgrades them.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);

/// Until the next look while something is going on.
const QUIET_AFTER: Duration = Duration::from_secs(60);

/// Until the next attempt after one that failed: it would most likely fail again, and costs seconds of
/// processors.
const RETRY_AFTER: Duration = Duration::from_secs(6 * 3_600);

/// Looks after the archive for as long as the agent runs. `config` is the file of its configuration.
pub(crate) async fn keep(
    class_data: ClassData,
    config: PathBuf,
    status: watch::Receiver<Status>,
    metrics: Arc<Metrics>,
) {
    look(&class_data, &metrics).await;
    let mut pause = SETTLED_AFTER;
    loop {
        sleep(pause).await;
        pause = LOOK_EVERY;
        let Some(Look::None { why }) = look(&class_data, &metrics).await else { continue };
        if !class_data.is_automatic() || status.borrow().mode == Mode::Observe {
            continue;
        }
        if !is_quiet(&class_data, &status.borrow()) {
            pause = QUIET_AFTER;
            continue;
        }
        tracing::info!(why, "no class-data archive fits: having one made");
        if let Err(error) = have_made(&class_data, &config).await {
            pause = if is_quiet(&class_data, &status.borrow()) { RETRY_AFTER } else { QUIET_AFTER };
            tracing::warn!(
                error = format!("{error:#}"),
                "no class-data archive was made: Kafka starts without one, and slower"
            );
        }
        look(&class_data, &metrics).await;
    }
}

async fn look(class_data: &ClassData, metrics: &Metrics) -> Option<Look> {
    match class_data.look().await {
        Ok(look) => {
            metrics.class_data(&look);
            Some(look)
        }
        Err(error) => {
            tracing::warn!(
                error = recovery::ports::chain(&error),
                "the class-data archive cannot be looked at"
            );
            None
        }
    }
}

/// Nothing is under way on this host, and no broker looks as if something soon will be.
fn is_quiet(class_data: &ClassData, status: &Status) -> bool {
    let well = |decision: &Option<Decision>| matches!(decision, Some(Decision::Healthy));
    let idle = matches!(class_data.busy_with(), Ok(None));
    idle && status.brokers.iter().all(|broker| broker.takeover.is_none() && well(&broker.decision))
}

/// By a unit of its own where the agent's unit would keep Java from running; else by this program in a
/// process of its own, which ends with the agent.
async fn have_made(class_data: &ClassData, config: &Path) -> anyhow::Result<()> {
    if class_data.is_made_by_a_unit() {
        return Ok(class_data.have_made().await?);
    }
    let mut warm = Command::new(OURSELVES);
    warm.arg("--config").arg(config).arg("warm").stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    let ended = warm.output().await.context("`understudy warm` could not be started")?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        bail!("`understudy warm` ended with {}: {}", ended.status, said.trim());
    }
    tracing::info!("{}", String::from_utf8_lossy(&ended.stdout).trim());
    Ok(())
}
