//! A Kafka of the broker that somebody else started here: a unit of the system, or a person. It is stopped as the site
//! stops it, never by a signal of ours: whoever started it would start it again.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::problem::Problem;
use super::{DRIVER, Inner, verify};
use crate::drivers::command::{self, CommandError, ending, last_words};
use crate::model::BrokerId;
use crate::ports::{BoxError, Note, StepError};

/// How often the processes are looked at. A look reads the whole of `/proc`.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl Inner {
    /// Who works on the broker's log dirs, in words.
    pub(super) fn others(&self, broker: BrokerId) -> Result<Vec<String>, Problem> {
        verify::holders(&self.broker(broker)?.log_dirs)
    }

    /// Waits until nobody works on the broker's log dirs.
    pub(super) fn await_no_others(&self, broker: BrokerId, limit: Duration) -> Result<(), Problem> {
        let begun = Instant::now();
        loop {
            let others = self.others(broker)?;
            if others.is_empty() {
                return Ok(());
            }
            if begun.elapsed() >= limit {
                let what = format!(
                    "broker_host.stop_command ended well, and this still runs: {}",
                    others.join("; ")
                );
                return Err(Problem::Unconfirmed { what, limit });
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Runs the site's own command, which stops `others`.
pub(super) async fn run(
    stop_command: &[String],
    others: &[String],
    action: &str,
    limit: Duration,
) -> Result<Note, StepError> {
    let others = others.join("; ");
    let refused = |why| StepError::Refused { driver: DRIVER, action: action.to_owned(), why };
    let Some((program, arguments)) = stop_command.split_first() else {
        return Err(refused(format!(
            "this agent did not start what runs here: {others}. Say how it is stopped in broker_host.stop_command, or \
             stop it as it was started"
        )));
    };
    let ended =
        command::run(Path::new(program), arguments, b"", limit).await.map_err(|error| match error {
            CommandError::TimedOut { .. } => {
                StepError::Unconfirmed { driver: DRIVER, action: format!("{action} ({program})"), limit }
            }
            error @ CommandError::NotStarted { .. } => {
                StepError::Failed { driver: DRIVER, action: action.to_owned(), source: BoxError::from(error) }
            }
        })?;
    if !ended.status.success() {
        let said = last_words(&format!("{}\n{}", ended.stdout, ended.stderr));
        let ending = ending(ended.status);
        return Err(refused(format!("broker_host.stop_command, {program}, ended with {ending}: {said}")));
    }
    Ok(Note::new(format!("{program} stopped what this agent had not started: {others}")))
}
