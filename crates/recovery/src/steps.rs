//! One step, one or a few calls to ports. Nothing is decided here: every choice was made in the plan.

mod address;
mod await_isr;
mod locks;
mod lost_registration;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::event::{Event, What};
use crate::journal::{Direction, EpochJournal};
use crate::model::{BrokerId, HostName, Moment, Note, Proof, Unregistered, human};
use crate::plan::{Plan, Proves, Step, Unregister};
use crate::ports::{Fence, MOVED, Ports, StepError, chain};

/// How long Kafka may take to stop cleanly. It is never killed.
pub(crate) const STOPS_WITHIN: Duration = Duration::from_secs(120);

/// Pause between two looks at a broker that comes back. The gone interval can be shorter than 0.4 s
/// (measured on Kafka 4.3.1), so a look must be several times more frequent.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Pause between two looks at a session that has to expire: each opens a session of its own at every server of
/// ZooKeeper, which itself looks at expiry once a tick (2 s by default).
const EXPIRY_LOOK: Duration = Duration::from_millis(500);

/// How long the old owner's agent may take to stop Kafka cleanly and to release what belongs to the broker.
/// Longer than it gives Kafka itself.
const RELEASED_WITHIN: Duration = Duration::from_secs(150);

/// The longest session that ZooKeeper gives by default: 20 of its ticks, of 2 s.
const EXPIRED_WITHIN: Duration = Duration::from_secs(45);

/// What a run knows beside its journal. None of it survives a crash, on purpose.
pub(crate) struct Context<'a> {
    pub(crate) ports: &'a Ports,
    pub(crate) plan: &'a Plan,
    /// How long the epoch had been open when this run began, and when that was.
    open: (Duration, Moment),
    proofs: Mutex<Vec<Proof>>,
    gone: Mutex<bool>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(ports: &'a Ports, journal: &EpochJournal, plan: &'a Plan) -> Self {
        let now = ports.clock.now();
        let open = (journal.open_for(now.wall), now.mono);
        Self { ports, plan, open, proofs: Mutex::default(), gone: Mutex::new(false) }
    }

    /// Carries out one step, or undoes it.
    pub(crate) async fn act(&self, step: &Step, direction: Direction) -> Result<Note, StepError> {
        match direction {
            Direction::Forward => self.forward(step).await,
            Direction::Back => self.back(step).await,
        }
    }

    async fn forward(&self, step: &Step) -> Result<Note, StepError> {
        let epoch = self.plan.epoch;
        let ports = self.ports;
        match step {
            Step::Fence { host, .. } => self.fence(host)?.fence(host, epoch).await,
            Step::Prove { host, .. } => Ok(self.keep(self.fence(host)?.prove(host, epoch).await?)),
            Step::EndUnregistered { broker } => self.end_unregistered(*broker).await,
            Step::ProveStopped { broker } => {
                Ok(self.keep(ports.broker_host.prove_stopped(*broker, epoch).await?))
            }
            Step::AwaitRelease { broker, host } => Ok(self.keep(self.await_release(*broker, host).await?)),
            Step::FreeAddress { broker, hosts, .. } => {
                self.free_address(port(&ports.addresses, *broker, step)?, hosts).await
            }
            Step::FinishFence { broker, host } => {
                self.finish_fence(port(&ports.addresses, *broker, step)?, host).await
            }
            Step::MoveAddress { broker, .. } => port(&ports.addresses, *broker, step)?.acquire(epoch).await,
            Step::ConfirmAddress { broker, .. } => port(&ports.addresses, *broker, step)?.confirm().await,
            Step::AttachStorage { broker, .. } => port(&ports.storage, *broker, step)?.attach(epoch).await,
            Step::RenderConfig { broker } => ports.broker_host.render(*broker, epoch).await,
            Step::BreakLocks { broker } => port(&ports.storage, *broker, step)?.break_locks().await,
            Step::AwaitLocks { broker, at_most, .. } => {
                self.await_locks(port(&ports.storage, *broker, step)?, step, *at_most).await
            }
            Step::VerifyLogDirs { broker, .. } => {
                let cluster_id = match ports.cluster.id().await {
                    Ok(id) => Some(id),
                    // It told, and it is the wrong cluster.
                    Err(error @ StepError::Refused { .. }) => return Err(error),
                    // Without a survivor there is nothing to compare with but the log dirs among themselves.
                    Err(_) => None,
                };
                ports.broker_host.verify(*broker, cluster_id.as_deref()).await
            }
            Step::Unregister { broker, decision, zookeeper } => {
                // Of a Kafka that somebody has started here since, it would take the registration.
                let proofs = self.proofs(step)?;
                let moved = proofs.iter().find_map(|proof| proof.note.details.get(MOVED).cloned());
                let note = match (moved, self.look_here_again(*broker, proofs).await) {
                    (None, Ok(_)) => self.unregister(*broker, decision, *zookeeper).await,
                    (Some(why), _) => Note::new(format!("not sent: {why}")),
                    (None, Err(error)) => Note::new(format!("not sent: {}", chain(&error))),
                };
                let waits = *zookeeper && !self.is_gone();
                Ok(if waits { note.and(self.await_expiry(*broker).await) } else { note })
            }
            Step::ResetClients { broker } => port(&ports.addresses, *broker, step)?.reset_clients().await,
            Step::StartBroker { broker } => {
                let proofs = self.proofs(step)?;
                let proofs = self.look_here_again(*broker, proofs).await?;
                ports.broker_host.start(*broker, epoch, &proofs).await
            }
            Step::Reschedule { broker, from, .. } => {
                ports.broker_host.reschedule(*broker, from, &self.proofs(step)?).await
            }
            Step::AwaitIsr { broker, patience, restarts } => {
                self.await_isr(*broker, *patience, *restarts).await
            }
            Step::ElectPreferred { broker } => ports.cluster.elect_preferred(*broker).await,
        }
    }

    async fn back(&self, step: &Step) -> Result<Note, StepError> {
        match step {
            Step::MoveAddress { broker, .. } => port(&self.ports.addresses, *broker, step)?.release().await,
            Step::AttachStorage { broker, .. } => port(&self.ports.storage, *broker, step)?.release().await,
            // Replicas alone reach it. Whoever may be better placed can have the broker.
            Step::ConfirmAddress { broker, .. } => self.ports.broker_host.stop(*broker, STOPS_WITHIN).await,
            // Whatever else it had is taken from under it only after this.
            Step::StartBroker { broker } => Ok(self.prove_ended(*broker).await?.note),
            other => Ok(Note::new(format!("nothing to undo of {}", other.name()))),
        }
    }

    fn fence(&self, host: &HostName) -> Result<Arc<dyn Fence>, StepError> {
        let refused = |why| StepError::Refused { driver: "fence", action: format!("fence {host}"), why };
        let fence = self.ports.fences.get(host).cloned().ok_or_else(|| {
            refused(format!(
                "no fence is configured for it; add [[host]] name = \"{host}\" with a [[host.fence]]"
            ))
        })?;
        let Some(machine) = self.plan.machine_of(host) else { return Ok(fence) };
        fence.on(machine, self.plan.reschedules()).ok_or_else(|| {
            let name = &machine.name;
            refused(format!("it was on {name}, and there is no [[node]] name = \"{name}\" with a fence"))
        })
    }

    fn keep(&self, proof: Proof) -> Note {
        let note = proof.note.clone().with("proven_by", &proof.by).with("host", &proof.host);
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner).push(proof);
        note
    }

    /// What was proven counts no more: it is proven anew.
    fn forget_proofs(&self) {
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Whether the controller has confirmed that the old registration is gone.
    fn is_gone(&self) -> bool {
        *self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The proofs made in this run, one for every host that the plan wants one of. What was only written down
    /// does not count.
    fn proofs(&self, step: &Step) -> Result<Vec<Proof>, StepError> {
        let proofs = self.proofs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let wanted = self.plan.steps().filter_map(|(_, step)| step.proves()).map(|whom| match whom {
            Proves::Host(host) => host,
            Proves::Here => &self.plan.to,
        });
        let mut missing = wanted.filter(|host| !proofs.iter().any(|proof| proof.host == **host));
        let refused = |why| StepError::Refused { driver: "understudy", action: step.to_string(), why };
        match missing.next() {
            Some(host) => Err(refused(format!("there is no proof that {host} cannot write"))),
            None if proofs.is_empty() => Err(refused("the plan has no proof in it".to_owned())),
            None => Ok(proofs),
        }
    }

    /// That nothing of the broker runs on this host was seen some steps ago, and whoever starts Kafka here
    /// may have done so since. So that proof is made anew, right before the start.
    async fn look_here_again(
        &self,
        broker: BrokerId,
        mut proofs: Vec<Proof>,
    ) -> Result<Vec<Proof>, StepError> {
        let here = &self.plan.to;
        if proofs.iter().any(|proof| proof.host == *here) {
            let again = self.ports.broker_host.prove_stopped(broker, self.plan.epoch).await?;
            proofs.retain(|proof| proof.host != *here);
            proofs.push(again);
        }
        Ok(proofs)
    }

    /// Waits for the old owner's word in the ledger.
    async fn await_release(&self, broker: BrokerId, host: &HostName) -> Result<Proof, StepError> {
        let clock = &self.ports.clock;
        // Counted from the claim, so that a crash and a resume do not begin to wait anew; and since this run
        // began by the clock that does not jump.
        let (before, begun) = self.open;
        loop {
            let read = self.ports.ledger.orders().await;
            if let Some(found) = read.as_ref().ok().and_then(|o| o.released(broker, self.plan.epoch, host)) {
                let note = Note::new(found);
                return Ok(Proof { host: host.clone(), by: format!("the agent of {host}"), note });
            }
            let waited = before.saturating_add(clock.now().mono.since(begun));
            if waited > RELEASED_WITHIN && read.is_ok() {
                let action = format!("have broker {broker} stopped and released by {host}");
                return Err(StepError::Unconfirmed { driver: "understudy", action, limit: RELEASED_WITHIN });
            }
            clock.sleep(LOOK_AGAIN).await;
        }
    }

    async fn unregister(&self, broker: BrokerId, decision: &Unregister, zookeeper: bool) -> Note {
        let sharing = match decision {
            Unregister::Use { sharing } => sharing,
            Unregister::Wait { why } => return Note::new(format!("not used: {why}")),
        };
        let who = if zookeeper { "ZooKeeper" } else { "the active controller" };
        match self.ports.cluster.unregister(broker, sharing).await {
            Unregistered::Gone => {
                *self.gone.lock().unwrap_or_else(PoisonError::into_inner) = true;
                Note::new(format!("{who} removed the dead broker's registration"))
            }
            Unregistered::NotSent { why } => Note::new(format!("not sent: {why}")),
            Unregistered::Refused { why } => Note::new(format!("refused by {who}: {why}")),
            Unregistered::NoAnswer { why } => Note::new(format!(
                "no answer, and never sent again: {why}; the session has to expire, and should it hit the new \
                     incarnation, that is started once more"
            )),
        }
    }

    /// Waits until the session of the dead broker has ended: before, Kafka would end at once.
    async fn await_expiry(&self, broker: BrokerId) -> Note {
        let clock = &self.ports.clock;
        let begun = clock.now().mono;
        loop {
            let registered = self.ports.cluster.registered(broker).await;
            let waited = clock.now().mono.since(begun);
            match registered {
                Ok(false) => return Note::new(format!("its registration was gone after {}", human(waited))),
                Ok(true) | Err(_) if waited < EXPIRED_WITHIN => {}
                Ok(true) => return Note::new(format!("it was still registered after {}", human(waited))),
                Err(error) => {
                    return Note::new(format!("nobody knows whether it is gone: {}", chain(&error)));
                }
            }
            clock.sleep(EXPIRY_LOOK).await;
        }
    }

    /// What a person must be told of partitions that nobody else has a replica of. A host that was fenced
    /// took with it what its kernel had not written to storage; a process that died on a host which lives did
    /// not.
    fn lost(&self, alone: usize) -> String {
        let fenced = self.plan.steps().any(|(_, step)| matches!(step, Step::Fence { .. }));
        if alone == 0 || !fenced {
            return String::new();
        }
        format!(
            "; {alone} of them have no other replica: records that were acknowledged there shortly before the fault \
             may be lost"
        )
    }

    pub(crate) fn emit(&self, what: What) {
        let (broker, epoch) = (Some(self.plan.broker), Some(self.plan.epoch));
        let at = self.ports.clock.now().wall;
        self.ports.events.emit(&Event { at, host: self.plan.to.clone(), broker, epoch, what });
    }
}

fn port<'p, T: ?Sized>(
    ports: &'p std::collections::BTreeMap<BrokerId, Arc<T>>,
    broker: BrokerId,
    step: &Step,
) -> Result<&'p T, StepError> {
    ports.get(&broker).map(AsRef::as_ref).ok_or_else(|| StepError::Refused {
        driver: "understudy",
        action: step.to_string(),
        why: format!("broker {broker} is not configured on this host"),
    })
}
