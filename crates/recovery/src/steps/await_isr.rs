//! Waits for a broker to be back in every ISR: as long as it gets on, and no longer.
//!
//! | what is seen | what is done |
//! |---|---|
//! | a look at the process fails | another look |
//! | Kafka runs, and something moves | it is waited for, without a limit |
//! | Kafka runs, and nothing moves for the plan's patience | the step fails, with what is in the way |
//! | the quorum has no leader | it is waited for: no other host could do better |
//! | Kafka ended by itself | it is started again on fresh proofs, as often as the plan says |
//! | Kafka ended while the quorum had no leader | the same once it has one, and that does not count |
//! | somebody stopped Kafka | the step fails |

use std::time::Duration;

use super::lost_registration::Unlisted;
use super::{Context, LOOK_AGAIN};
use crate::event::What;
use crate::model::{Advertised, BrokerId, Moment, Note, ProcessState, Proof, Standing, human};
use crate::ports::{StepError, chain};
use crate::rejoin::{Headway, Measured, Rejoin, RejoinState};

/// What moves slowly is measured this often: the answers of large brokers are not small.
const MEASURE_EVERY: Duration = Duration::from_secs(10);

/// While Kafka cannot run without a quorum, that is asked for this often.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Pause before Kafka is started again: what ended it may be over in a moment.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// How long the last of a Kafka that has ended may take to be gone, its helpers and its unit included.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// Pause between two tries to prove that.
const PROVE_AGAIN: Duration = Duration::from_secs(1);

/// One wait for one broker.
struct Wait<'c, 'a> {
    context: &'c Context<'a>,
    broker: BrokerId,
    patience: Duration,
    /// Starts that are left.
    restarts: usize,
    rejoin: Rejoin,
    unlisted: Unlisted,
    headway: Headway,
    measured: Measured,
    measured_at: Option<Moment>,
    /// Why nothing can be expected to move, whatever this host does.
    excuse: Option<String>,
    asked_at: Option<Moment>,
    /// Kafka ended while the quorum had no leader: its next start does not count.
    ended_without_quorum: bool,
    /// Why the last try to start it again came to nothing.
    not_started: Option<String>,
    said: String,
    /// What was done again, for the record.
    again: String,
}

impl Context<'_> {
    /// Waits for the broker as long as it gets on. A broker that makes progress is never given up.
    pub(super) async fn await_isr(
        &self,
        broker: BrokerId,
        patience: Duration,
        restarts: usize,
    ) -> Result<Note, StepError> {
        let now = self.ports.clock.now().mono;
        let mut wait = Wait {
            context: self,
            broker,
            patience,
            restarts,
            rejoin: Rejoin::new(self.is_gone()),
            unlisted: Unlisted::default(),
            headway: Headway::new(now),
            measured: Measured::default(),
            measured_at: None,
            excuse: None,
            asked_at: None,
            ended_without_quorum: false,
            not_started: None,
            said: String::new(),
            again: String::new(),
        };
        loop {
            if let Some(note) = wait.look().await? {
                return Ok(note);
            }
            self.ports.clock.sleep(LOOK_AGAIN).await;
        }
    }

    /// Does again what comes before Kafka's start, the proofs first, and starts it. Not the fences, which
    /// are in force, and not what is sent at most once.
    async fn start_again(&self, broker: BrokerId) -> Result<Note, StepError> {
        let here = self.prove_ended(broker).await?;
        self.forget_proofs();
        self.keep(here);
        // What is looked at beside a start elsewhere is looked at before this one.
        let again = || self.plan.steps().map(|(_, step)| step).filter(|step| step.belongs_to_a_start());
        let mut started = Note::default();
        for step in again().filter(|step| !step.starts()).chain(again().filter(|step| step.starts())) {
            started = Box::pin(self.forward(step)).await?;
        }
        Ok(started)
    }

    /// Proves that nothing of the broker runs here any more, not even what this very takeover has started.
    pub(super) async fn prove_ended(&self, broker: BrokerId) -> Result<Proof, StepError> {
        let (host, clock) = (&self.ports.broker_host, &self.ports.clock);
        // No Kafka was ever started for the epoch to come, so that whatever runs is somebody else's to it.
        let epoch = self.plan.epoch.next();
        let begun = clock.now().mono;
        loop {
            let error = match host.prove_stopped(broker, epoch).await {
                Ok(proof) => return Ok(proof),
                Err(error) => error,
            };
            let runs = matches!(host.state(broker).await, Ok(ProcessState::Running { .. }));
            if runs || clock.now().mono.since(begun) >= GONE_WITHIN {
                return Err(error);
            }
            clock.sleep(PROVE_AGAIN).await;
        }
    }

    /// Whether this takeover is still the newest, asked of the ledger itself.
    async fn still_newest(&self, broker: BrokerId) -> Result<(), StepError> {
        let ledger = &self.ports.ledger;
        let newest = async {
            ledger.sync().await?;
            ledger.latest(broker).await
        };
        let ours = self.plan.epoch;
        match newest.await {
            Ok(newest) => match newest.map(|journal| journal.epoch).filter(|theirs| *theirs > ours) {
                Some(theirs) => Err(StepError::Superseded { ours, theirs }),
                None => Ok(()),
            },
            Err(error) => {
                let action = "confirm that this takeover is the newest".to_owned();
                Err(StepError::Failed { driver: "understudy", action, source: Box::new(error) })
            }
        }
    }
}

impl Wait<'_, '_> {
    /// One look; a note once the broker is back.
    async fn look(&mut self) -> Result<Option<Note>, StepError> {
        match self.context.ports.broker_host.state(self.broker).await {
            Ok(ProcessState::Running { pid }) => self.runs(pid).await,
            Ok(ProcessState::Exited { why }) => self.ended(&why).await.map(|()| None),
            Ok(ProcessState::Absent) => {
                Err(self.refused("Kafka is not there any more: somebody stopped it".to_owned()))
            }
            // One look that fails is no end of a broker that may be well.
            Err(error) => {
                let state = format!("the process of Kafka cannot be looked at: {}", chain(&error));
                self.wait(state, (0, 0)).await.map(|()| None)
            }
        }
    }

    async fn runs(&mut self, pid: i32) -> Result<Option<Note>, StepError> {
        let (context, broker) = (self.context, self.broker);
        let look = match context.ports.cluster.standing(broker).await {
            Ok(look) => look,
            Err(error) => {
                let state = format!("the cluster cannot be asked: {}", chain(&error));
                return self.wait(state, (0, 0)).await.map(|()| None);
            }
        };
        if self.unlisted.see(&look, self.now())
            && let Some(note) = context.start_once_more(broker, &mut self.unlisted).await?
        {
            self.begin_anew(true, &note.text);
            return Ok(None);
        }
        let state = self.rejoin.see(&look);
        if let RejoinState::Complete { replicas } = state {
            let text = format!("{state}{}{}", context.lost(look.alone), self.again);
            let note = Note::new(text).with("partitions", replicas).with("read_from_broker", look.via);
            return Ok(Some(match look.advertised {
                Some(advertised) => reached(note, &advertised),
                None => note,
            }));
        }
        self.measure(pid, state, &look).await;
        self.headway.see(self.now(), state, look.answers, self.measured);
        let led = match (state, &look.advertised) {
            (RejoinState::Misled { .. }, Some(advertised)) => led_elsewhere(broker, advertised),
            _ => String::new(),
        };
        let state = format!("{state}{led}{}", in_words(self.measured));
        self.wait(state, (look.in_isr, look.replicas)).await.map(|()| None)
    }

    /// Measures what moves slowly, once in a while.
    async fn measure(&mut self, pid: i32, state: RejoinState, look: &Standing) {
        let now = self.now();
        if self.measured_at.is_some_and(|at| now.since(at) < MEASURE_EVERY) {
            return;
        }
        self.measured_at = Some(now);
        let ports = self.context.ports;
        // What serves reads all the time, whatever becomes of a partition.
        self.measured = match state {
            RejoinState::CatchingUp { in_isr, replicas } if look.answers && in_isr < replicas => {
                Measured { behind: ports.cluster.behind(self.broker).await.ok(), read: None }
            }
            RejoinState::CatchingUp { .. } | RejoinState::Misled { .. } | RejoinState::Complete { .. }
                if look.answers =>
            {
                Measured::default()
            }
            _ => Measured { read: ports.broker_host.bytes_read(self.broker, pid).await, behind: None },
        };
    }

    /// Says what is waited for, and for how long nothing has moved. An error: that is too long.
    async fn wait(&mut self, state: String, (in_isr, replicas): (usize, usize)) -> Result<(), StepError> {
        let now = self.now();
        self.look_for_an_excuse(now).await;
        if let Some(excuse) = &self.excuse {
            self.headway = Headway::new(now);
            let state = format!("{excuse}; {state}");
            self.tell(state, in_isr, replicas);
            return Ok(());
        }
        if self.headway.still_for(now) < self.patience {
            self.tell(state, in_isr, replicas);
            return Ok(());
        }
        let patience = human(self.patience);
        Err(self.refused(format!(
            "nothing has moved for {patience} (policy.rejoin_patience): {state}. Read Kafka's log on this host"
        )))
    }

    /// While nothing moves: whether the quorum has a leader, asked once in a while.
    async fn look_for_an_excuse(&mut self, now: Moment) {
        let due = self.asked_at.is_none_or(|at| now.since(at) >= MEASURE_EVERY);
        if due && (self.excuse.is_some() || self.headway.still_for(now) >= MEASURE_EVERY) {
            self.ask_for_quorum(now).await;
        }
    }

    /// The words of the first answer stay as long as there is no leader: the next ones say it otherwise.
    async fn ask_for_quorum(&mut self, now: Moment) {
        self.asked_at = Some(now);
        self.excuse = match self.context.ports.cluster.quorum().await {
            Ok(()) => None,
            Err(error) => {
                let words = || format!("no active controller answers ({})", chain(&error));
                Some(self.excuse.take().unwrap_or_else(words))
            }
        };
    }

    /// Kafka ended by itself: it is started again, if that may help.
    async fn ended(&mut self, why: &str) -> Result<(), StepError> {
        let (context, now) = (self.context, self.now());
        if self.ended_without_quorum && self.asked_at.is_some_and(|at| now.since(at) < ASK_AGAIN) {
            return Ok(());
        }
        self.ask_for_quorum(now).await;
        if let Some(excuse) = &self.excuse {
            self.ended_without_quorum = true;
            let state = format!("{excuse}; Kafka has ended, and is started again once there is one");
            self.tell(state, 0, 0);
            return Ok(());
        }
        if self.restarts == 0 && !self.ended_without_quorum {
            let before = self.not_started.as_ref().map(|why| format!("; it was not started again: {why}"));
            let before = before.unwrap_or_default();
            return Err(self.refused(format!("Kafka ended by itself: {why}{before}")));
        }
        self.tell("Kafka ended by itself, and is started again".to_owned(), 0, 0);
        context.ports.clock.sleep(AGAIN_AFTER).await;
        match context.still_newest(self.broker).await {
            Ok(()) => {}
            Err(error @ StepError::Superseded { .. }) => return Err(error),
            Err(error) => {
                self.tell(format!("Kafka has ended, and is not started again yet: {}", chain(&error)), 0, 0);
                return Ok(());
            }
        }
        if !std::mem::take(&mut self.ended_without_quorum) {
            self.restarts -= 1;
        }
        match context.start_again(self.broker).await {
            Ok(note) => {
                let again = format!("Kafka ended by itself and was started again ({}): {why}", note.text);
                self.begin_anew(false, &again);
            }
            Err(error @ StepError::Superseded { .. }) => return Err(error),
            Err(error) => self.not_started = Some(chain(&error)),
        }
        Ok(())
    }

    /// Another process is waited for from now on. `gone`: the registration of the one before is.
    fn begin_anew(&mut self, gone: bool, why: &str) {
        self.rejoin = Rejoin::new(gone);
        self.headway = Headway::new(self.now());
        (self.measured, self.measured_at) = (Measured::default(), None);
        self.again = format!("; {why}");
    }

    fn tell(&mut self, state: String, in_isr: usize, replicas: usize) {
        if state != self.said {
            self.said.clone_from(&state);
            self.context.emit(What::Rejoining { state, in_isr, replicas });
        }
    }

    fn now(&self) -> Moment {
        self.context.ports.clock.now().mono
    }

    fn refused(&self, why: String) -> StepError {
        let action = format!("see broker {} back in ISR", self.broker);
        StepError::Refused { driver: self.context.ports.broker_host.name(), action, why }
    }
}

/// From where it was seen that clients are led to the broker: from other hosts they may not be.
fn reached(note: Note, advertised: &Advertised) -> Note {
    let note = note.with("reached_from_here_at", &advertised.at);
    if advertised.reached_by.is_empty() {
        return note;
    }
    let hosts: Vec<_> = advertised.reached_by.iter().map(|host| host.0.as_str()).collect();
    note.with("reached_by_peers", hosts.join(", "))
}

fn led_elsewhere(broker: BrokerId, advertised: &Advertised) -> String {
    let Advertised { at, fails, .. } = advertised;
    let why = fails.as_deref().unwrap_or("it was not looked at");
    format!(
        ": broker {broker} advertises {at}, and {why}. Correct advertised.listeners (`understudy check` compares \
         it with the broker's `listener`), or open the way to {at}"
    )
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes / 1_000_000)
}

fn in_words(measured: Measured) -> String {
    match measured {
        Measured { behind: Some(behind), .. } => format!("; {} behind", megabytes(behind)),
        Measured { read: Some(read), .. } => format!("; its process has read {}", megabytes(read)),
        Measured { .. } => String::new(),
    }
}
