//! A Kafka that serves without a registration is killed; nothing else of a broker's ever is.
//!
//! What was seen before is not enough: right before the kill, the process is named, and from then on it is
//! looked at for a while. A process that is started meanwhile is another one, and is not killed.

use std::time::Duration;

use super::Context;
use crate::model::{BrokerId, Moment, Note, ProcessState, Standing, human};
use crate::plan::Step;
use crate::ports::{StepError, chain};

/// For so long it must be seen, without a break, to serve and to have no registration, before it is killed.
/// Other brokers hear of a registration within a second or so.
const SEEN_FOR: Duration = Duration::from_secs(2);

/// Between two of these looks, which are a few requests each.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a process may take to end that was killed. What hangs in a write to a dead server does not end.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// For so long a broker that is waited for must serve and not be listed before its registration is asked
/// after. A new one is listed before it opens its listener.
const UNLISTED_FOR: Duration = Duration::from_secs(5);

/// Whether a broker that is waited for lost the registration that it had made.
#[derive(Debug, Default)]
pub(super) struct Unlisted {
    since: Option<Moment>,
    /// It was started once more already.
    again: bool,
}

impl Unlisted {
    /// Takes in one look. Whether to ask after the registration now; asked once in a while.
    pub(super) fn see(&mut self, look: &Standing, now: Moment) -> bool {
        if look.listed || !look.answers {
            self.since = None;
            return false;
        }
        let due = now.since(*self.since.get_or_insert(now)) >= UNLISTED_FOR;
        if due {
            self.since = None;
        }
        due
    }
}

impl Context<'_> {
    fn refused(&self, broker: BrokerId, why: impl Into<String>) -> StepError {
        let action = format!("kill the Kafka of broker {broker}, which has no registration");
        StepError::Refused { driver: "understudy", action, why: why.into() }
    }

    /// Kills the broker's process on this host, if it serves without a registration.
    pub(super) async fn end_unregistered(&self, broker: BrokerId) -> Result<Note, StepError> {
        let host = &self.ports.broker_host;
        let ProcessState::Running { pid } = host.state(broker).await? else {
            return Ok(Note::new("it has ended already"));
        };
        let begun = self.ports.clock.now().mono;
        loop {
            let look = self.ports.cluster.standing(broker).await?;
            if look.listed {
                return Err(self.refused(broker, "it is registered"));
            }
            if !look.answers {
                return Err(self.refused(broker, "its listener does not answer: it may be starting"));
            }
            if self.ports.cluster.registered(broker).await? {
                return Err(self.refused(broker, "it is registered, though the controller has fenced it"));
            }
            if self.ports.clock.now().mono.since(begun) >= SEEN_FOR {
                break;
            }
            self.ports.clock.sleep(LOOK_EVERY).await;
        }
        let note = host.kill(broker, pid, ENDS_WITHIN).await?;
        Ok(note.with("why", format!("it served for {} without a registration", human(SEEN_FOR))))
    }

    /// Starts a broker once more that lost its registration while it was waited for: a request to remove the
    /// old one was carried out late. What was done; `None` if it is registered.
    ///
    /// The proofs of this very run are needed for that. Without them nothing is killed, and a person is
    /// asked.
    pub(super) async fn start_once_more(
        &self,
        broker: BrokerId,
        unlisted: &mut Unlisted,
    ) -> Result<Option<Note>, StepError> {
        // Who cannot tell has not seen anything wrong.
        if self.ports.cluster.registered(broker).await.unwrap_or(true) {
            return Ok(None);
        }
        if std::mem::replace(&mut unlisted.again, true) {
            return Err(self.refused(broker, "it lost its registration again after it was started anew"));
        }
        let step = Step::StartBroker { broker };
        let mut proofs = self.proofs(&step)?;
        let ended = match self.end_unregistered(broker).await {
            Ok(note) => note,
            // It was looked at for longer, and is well or was not well seen.
            Err(error @ StepError::Refused { .. }) => {
                unlisted.again = false;
                tracing::info!(%broker, error = chain(&error), "it is waited for as before");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        proofs.push(self.ports.broker_host.prove_stopped(broker, self.plan.epoch).await?);
        let started = self.ports.broker_host.start(broker, self.plan.epoch, &proofs).await?;
        let text =
            format!("its registration was removed once it had come back: {}; {}", ended.text, started.text);
        Ok(Some(Note::new(text)))
    }
}
