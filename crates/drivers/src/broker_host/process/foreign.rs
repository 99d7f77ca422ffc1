//! A Kafka of the broker that somebody else started here: a unit of the system, or a person. It is stopped as
//! the site stops it, never by a signal of ours: whoever started it would start it again.

use std::path::Path;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use secrets::Secrets;

use super::super::BROKER;
use super::super::problem::Problem;
use super::super::proc::{self, Holder, ProcessId};
use super::super::site::Site;
use super::super::verify;
use super::{DRIVER, Inner};
use crate::command::{self, CommandError, ending, last_words};
use recovery::model::BrokerId;
use recovery::ports::{BoxError, Note, StepError};
use secrets::in_words;

/// How often the processes are looked at. A look reads the whole of `/proc`.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl Inner {
    /// Who works on the broker's log dirs, or is about to.
    pub(super) fn others(&self, broker: BrokerId) -> Result<Vec<Holder>, Problem> {
        self.common.users(broker)
    }

    /// The process that has the broker's right here and was not started by this agent. It is looked for once
    /// and remembered: a look reads the open files of every process.
    pub(super) fn stranger(&self, broker: BrokerId, site: &Site) -> Result<Option<ProcessId>, Problem> {
        let mut known = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = known.get(&broker).copied()
            && proc::is_alive(id)?
        {
            return Ok(Some(id));
        }
        let found = site.holders()?.into_iter().find_map(|holder| holder.id);
        match found {
            Some(id) => known.insert(broker, id),
            None => known.remove(&broker),
        };
        Ok(found)
    }

    /// Waits until these processes are gone, and nobody else works on the broker's log dirs. Kafka lets go of
    /// its locks before it has written its last.
    pub(super) fn await_end(
        &self,
        broker: BrokerId,
        mut others: Vec<Holder>,
        limit: Duration,
    ) -> Result<(), Problem> {
        let begun = Instant::now();
        loop {
            let mut left = Vec::new();
            for holder in others {
                if holder.id.map(proc::is_alive).transpose()?.unwrap_or_default() {
                    left.push(holder);
                }
            }
            let known = |holder: &Holder| left.iter().any(|left: &Holder| left.id == holder.id);
            let further =
                self.others(broker)?.into_iter().filter(|holder| !known(holder)).collect::<Vec<_>>();
            left.extend(further);
            if left.is_empty() {
                return Ok(());
            }
            if begun.elapsed() >= limit {
                let left = verify::in_words(&left);
                let what = format!("broker_host.stop_command ended well, and this still runs: {left}");
                return Err(Problem::Unconfirmed { what, limit });
            }
            others = left;
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// The words of a command for one broker.
pub(super) fn for_broker(words: &[String], broker: BrokerId) -> Vec<String> {
    words.iter().map(|word| word.replace(BROKER, &broker.to_string())).collect()
}

/// Runs the site's own command, which stops `others`.
pub(super) async fn run(
    stop_command: &[String],
    (broker, others): (BrokerId, &[Holder]),
    action: &str,
    limit: Duration,
) -> Result<Note, StepError> {
    let refused = |why| StepError::Refused { driver: DRIVER, action: action.to_owned(), why };
    let words = verify::in_words(others);
    if others.iter().any(|holder| holder.id.is_none()) {
        return Err(refused(format!("whose this is cannot be seen: {words}. Run the agent as root")));
    }
    let Some((program, arguments)) = stop_command.split_first() else {
        return Err(refused(format!(
            "this agent did not start what runs here: {words}. Say how it is stopped in broker_host.stop_command, or \
             stop it as it was started"
        )));
    };
    let arguments = for_broker(arguments, broker);
    let ended =
        command::run(Path::new(program), &arguments, b"", limit).await.map_err(|error| match error {
            CommandError::TimedOut { .. } => {
                StepError::Unconfirmed { driver: DRIVER, action: format!("{action} ({program})"), limit }
            }
            error @ CommandError::NotStarted { .. } => {
                StepError::Failed { driver: DRIVER, action: action.to_owned(), source: BoxError::from(error) }
            }
        })?;
    if !ended.status.success() {
        let secrets = Secrets::of(in_words(arguments.iter().map(String::as_str)));
        let said = last_words(&secrets.redact(&format!("{}\n{}", ended.stdout, ended.stderr)));
        let ending = ending(ended.status);
        return Err(refused(format!("broker_host.stop_command, {program}, ended with {ending}: {said}")));
    }
    Ok(Note::new(format!("{program} stopped what this agent had not started: {words}")))
}
