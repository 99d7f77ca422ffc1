//! Kafka's locks on the log dirs: waited for before its start, since Kafka itself does not wait.

use std::time::Duration;

use super::Context;
use crate::event::What;
use crate::model::{HeldLock, Note, human};
use crate::plan::Step;
use crate::ports::{StepError, Storage, chain};

/// Pause between two questions. Each is a process and a call to the storage.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Pause between two questions whether the storage has moved.
const MOVED_AGAIN: Duration = Duration::from_secs(10);

impl Context<'_> {
    /// Asks until nobody holds a lock, or the time is up. A storage that does not answer is asked again: in
    /// its grace period an NFS server answers nobody.
    pub(super) async fn await_locks(
        &self,
        storage: &dyn Storage,
        step: &Step,
        at_most: Duration,
    ) -> Result<Note, StepError> {
        let clock = &self.ports.clock;
        let begun = clock.now().mono;
        let (mut said, mut grace, mut asked) = (String::new(), None, None);
        loop {
            let found = storage.locks().await;
            let waited = clock.now().mono.since(begun);
            let why = match found {
                Ok(held) if held.is_empty() => return Ok(free(&said, waited)),
                Ok(held) => in_words(&held),
                // A definite no does not pass by waiting.
                Err(error @ (StepError::Refused { .. } | StepError::Superseded { .. })) => return Err(error),
                Err(error) => format!("the storage does not say who holds .lock: {}", chain(&error)),
            };
            if asked.is_none_or(|asked| waited.saturating_sub(asked) >= MOVED_AGAIN) {
                (grace, asked) = (storage.grace().await, Some(waited));
            }
            let why = grace.iter().fold(why, |why, grace| format!("{why}; {grace}"));
            let left = at_most.saturating_sub(waited);
            if left.is_zero() {
                let why = format!(
                    "{why}, after {}. Kafka was not started, for it would end at once. End what holds it, or raise lock_wait \
                     above the server's lease and grace period",
                    human(waited)
                );
                let (driver, action) = ("understudy", step.to_string());
                return Err(StepError::Refused { driver, action, why });
            }
            if why != said {
                let state = format!(
                    "{why}. It ends with the lease of a client that is gone: {} at most",
                    human(left)
                );
                self.emit(What::Waiting { step: step.name().to_owned(), state });
                said = why;
            }
            clock.sleep(ASK_AGAIN.min(left)).await;
        }
    }
}

fn free(said: &str, waited: Duration) -> Note {
    let text = match said {
        "" => "nobody holds a lock".to_owned(),
        said => format!("nobody holds a lock any more, after {} ({said})", human(waited)),
    };
    Note::new(text).with("waited", human(waited))
}

fn in_words(held: &[HeldLock]) -> String {
    let one = |lock: &HeldLock| format!("{} is held by {}", lock.path.display(), lock.by);
    held.iter().map(one).collect::<Vec<_>>().join("; ")
}
