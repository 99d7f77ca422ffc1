//! `understudy guard`: may Kafka of one broker start on this host? Reads the ledger, and looks at the processes
//! of this host.
//!
//! Whatever it cannot prove is a no. While a takeover is under way there is one yes: where the agent of this
//! host starts a unit with this condition, for the very epoch that is open, after it has written down that it
//! does, which is after every proof. That start is known by the epoch in the unit's environment, which only
//! the agent puts there.
//!
//! As a mere condition it says what is so *now*: between its yes and Kafka's first open file there is time
//! for a second start. With `--exec` it becomes Kafka, and holds the broker's right on this host from before
//! its look at the ledger on.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drivers::broker_host::await_nobody;
use drivers::clock::SystemClock;
use recovery::journal::EpochJournal;
use recovery::known::KnownLedger;
use recovery::model::{BrokerId, Distrust, Epoch, HostName, Orders};
use recovery::ports::{Ledger, LedgerError, chain};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::UsageError;
use crate::cli::Global;
use crate::config::Small;
use crate::exit::Exit;
use crate::may_start::{Case, read};
use crate::output::{print, say};
use crate::refusal::{Refusal, Refused};

/// How long others on this host may take to go: a Kafka that was told to stop, another guard that is about to
/// give up.
const PATIENCE: Duration = Duration::from_secs(3);

/// Between two attempts to read the ledger.
const PAUSE: Duration = Duration::from_secs(1);

/// The answer where it is yes. A no is a [`Refused`].
#[derive(Serialize)]
struct Report {
    broker: BrokerId,
    host: HostName,
    may_start: bool,
    epoch: Epoch,
    /// Whether the answer stays true until Kafka is started, because this guard becomes that Kafka.
    holds_right: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { broker, host, epoch, .. } = self;
        write!(f, "Kafka may start: {host} owns broker {broker} (epoch {epoch}) and nobody else is at it")?;
        match self.holds_right {
            true => Ok(()),
            false => write!(f, ". That holds for this moment: start it with `guard --exec`"),
        }
    }
}

pub(super) mod exec;

pub(super) async fn run(
    global: &Global,
    broker: i32,
    wait: Duration,
    start_of: Option<u64>,
) -> anyhow::Result<Exit> {
    let config = Small::load(&global.config)?;
    let report = ask(global, &config, broker, wait, start_of, false).await?;
    // Nobody is to be kept from a start by this look, so the right is given back at once.
    drop(exec::take(&config.state_dir, BrokerId(broker), Duration::ZERO)?);
    nobody_runs(&config, BrokerId(broker), &[])?;
    print(&report, global.output)?;
    Ok(Exit::Done)
}

/// That no Kafka of the broker runs or starts on this host, whoever started it. `more`: log dirs beside those
/// of the configuration.
pub(super) fn nobody_runs(config: &Small, broker: BrokerId, more: &[PathBuf]) -> anyhow::Result<()> {
    let known = config.log_dirs.get(&broker).into_iter().flatten().chain(more).cloned();
    let log_dirs: Vec<PathBuf> = known.collect();
    await_nobody(broker, &log_dirs, PATIENCE).map_err(|who| {
        let mut why =
            format!("a Kafka of broker {broker} lives or starts on this host: {who}. Leave it, or stop it");
        if log_dirs.is_empty() {
            why.push_str(". (If it is another cluster's, name broker.log_dirs in the configuration)");
        }
        Refusal::KafkaRuns.because(why).into()
    })
}

/// The yes, or the refusal as an error.
async fn ask(
    global: &Global,
    config: &Small,
    broker: i32,
    wait: Duration,
    start_of: Option<u64>,
    holds_right: bool,
) -> anyhow::Result<Report> {
    let who = config.member(true);
    let (broker, host) = (BrokerId(broker), config.here.clone());
    let Some(home) = config.homes.get(&broker) else {
        let why = format!("broker {broker} has no [[broker]] section in {}", global.config.display());
        return Err(UsageError(why).into());
    };
    let inner = config.ledger.open().map_err(|said| UsageError(said.join("; ")))?;
    let ledger = KnownLedger::new(inner, who, Arc::new(SystemClock));
    let (journals, orders) = read_within(wait, &ledger, broker).await?;
    let case = Case { broker, home, here: &host, journals: &journals, orders: &orders };
    let epoch = case.may_start(start_of.map(Epoch))?;
    Ok(Report { broker, host, may_start: true, epoch, holds_right })
}

/// Reads until it works or `wait` is over.
async fn read_within(
    wait: Duration,
    ledger: &dyn Ledger,
    broker: BrokerId,
) -> Result<(Vec<EpochJournal>, Orders), Refused> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        let error = match read(ledger, broker).await {
            Ok(read) => return Ok(read),
            Err(error) => error,
        };
        let why = chain(&error);
        if let LedgerError::Distrusted { distrust, .. } = &error {
            // A mount may come yet; a name, a home or a version is not changed by waiting.
            let refusal = Refusal::from(*distrust);
            let settled = !matches!(distrust, Distrust::LedgerUnknown | Distrust::LedgerForeign);
            if settled || begun.elapsed() + PAUSE > wait {
                return Err(refusal.because(format!("Kafka of broker {broker} is not started: {why}")));
            }
        }
        // What is damaged is not mended by waiting.
        if begun.elapsed() + PAUSE > wait || matches!(error, LedgerError::Damaged { .. }) {
            return Err(Refusal::LedgerUnreadable.because(format!(
                "who owns broker {broker} cannot be read, so Kafka is not started: {why}. Repair the way to the \
                 ledger, then start Kafka again"
            )));
        }
        if !told {
            say(format!("the ledger cannot be read; trying for {} s: {why}", wait.as_secs()));
            told = true;
        }
        sleep(PAUSE).await;
    }
}
