//! What a takeover will do: stages, each a set of steps that run side by side. Pure.
//!
//! A plan leaves execution no choices. It is plain data: printed by `understudy plan`, stored with the
//! claim, replayed after a crash.

mod predict;
mod step;
pub mod unregister;

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::Takeover;
use crate::model::{Broker, BrokerId, Cause, Epoch, HostName, Machine, Part, Prediction, Topology, human};
use crate::observe::Observation;
use crate::policy::Policy;

pub use crate::model::Phase;
pub use step::{OnFailure, Proves, Step, Undo};
pub use unregister::Unregister;

/// Steps that run side by side. The next stage waits for all of them, but for what [`Step::outlasts`] this
/// one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// The phase that the stage's time counts to.
    pub phase: Phase,
    /// The steps.
    pub steps: Vec<Step>,
}

/// A whole takeover, from the fence on; the claim itself is the record that carries the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The broker.
    pub broker: BrokerId,
    /// Its present owner.
    pub from: HostName,
    /// The host that takes over.
    pub to: HostName,
    /// The epoch to be claimed.
    pub epoch: Epoch,
    /// When the fault happened: the last time the broker was seen well.
    pub fault_at: Timestamp,
    /// Why: the evidence, as sentences.
    pub because: Vec<String>,
    /// The stages, in order.
    pub stages: Vec<Stage>,
    /// What it is expected to take; `None` for a switchover, which has no fault.
    #[serde(default)]
    pub predicted: Option<Prediction>,
}

impl Plan {
    /// The steps in order, each with its phase. A step's index in the journal is its place here.
    pub fn steps(&self) -> impl Iterator<Item = (Phase, &Step)> {
        self.stages.iter().flat_map(|stage| stage.steps.iter().map(|step| (stage.phase, step)))
    }

    /// The step with this index.
    #[must_use]
    pub fn step(&self, index: usize) -> Option<(Phase, &Step)> {
        self.steps().nth(index)
    }

    /// Whether the owner keeps the broker, and is made anew on another machine by a controller of its own.
    #[must_use]
    pub fn reschedules(&self) -> bool {
        self.steps().any(|(_, step)| matches!(step, Step::Reschedule { .. }))
    }

    /// Who owns the broker once Kafka may have been started.
    #[must_use]
    pub fn new_owner(&self) -> &HostName {
        if self.reschedules() { &self.from } else { &self.to }
    }

    /// The machine that `host` is fenced with, if it is not by fences of its own. It stays the same for the whole epoch,
    /// wherever the host is made anew meanwhile.
    #[must_use]
    pub fn machine_of(&self, host: &HostName) -> Option<&Machine> {
        self.steps().find_map(|(_, step)| match step {
            Step::Fence { host: fenced, on, .. } if fenced == host => on.as_ref(),
            _ => None,
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { broker, from, to, epoch, .. } = self;
        match (from == to, self.reschedules()) {
            (true, _) => writeln!(f, "restart of broker {broker} in place, on {to}, epoch {epoch}")?,
            (_, true) => writeln!(f, "rescheduling of broker {broker}: {from}, by {to}, epoch {epoch}")?,
            _ => writeln!(f, "takeover of broker {broker}: {from} -> {to}, epoch {epoch}")?,
        }
        for clue in &self.because {
            writeln!(f, "  because {clue}")?;
        }
        writeln!(f, "  {:<8}  claim epoch {epoch} in the ledger", Phase::Claim)?;
        for (phase, step) in self.steps() {
            writeln!(f, "  {phase:<8}  {step}")?;
        }
        if let Some(predicted) = &self.predicted {
            writeln!(f, "  predicted time-to-ISR {predicted}")?;
            if from != to {
                let Part { takes, basis, .. } = predicted.in_place;
                let restarts = human(takes.saturating_sub(predicted.so_far()));
                writeln!(
                    f,
                    "    a restart of Kafka on {from}, if that host lives: {} ({basis})",
                    human(takes)
                )?;
                writeln!(f, "    waiting: until {from} is repaired, and {restarts} from then on")?;
            }
        }
        Ok(())
    }
}

/// Why no plan can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The broker is not guarded here.
    #[error("broker {0} is not configured on this host; add a [[broker]] section for it")]
    UnknownBroker(BrokerId),
    /// A switchover with more than one possible writer.
    #[error(
        "{other} may also be writing to broker {broker}: an earlier takeover has not ended well. Use \
         `understudy failover`, which fences it"
    )]
    NotSettled {
        /// The broker.
        broker: BrokerId,
        /// The host beside the owner.
        other: HostName,
    },
    /// A possible writer is fenced with its machine, and nobody has seen which that is.
    #[error(
        "{0} is fenced with the machine that it is on, and this agent has not seen which that is: wait until it has, or \
         fence that machine yourself"
    )]
    Unplaced(HostName),
    /// A switchover of a broker whose host another controller makes.
    #[error(
        "{0} is kept by a controller of its own, and this agent can only have it made anew once its machine is off: to \
         move it while it is well, drain its node"
    )]
    KeptByAnother(HostName),
}

/// Plans the takeover. `epoch` is the one to be claimed.
///
/// # Errors
/// When the broker is not guarded here, or cannot be switched over.
pub fn plan(
    takeover: &Takeover,
    epoch: Epoch,
    topology: &Topology,
    policy: &Policy,
    seen: &Observation,
) -> Result<Plan, PlanError> {
    let id = takeover.broker;
    let broker = topology.brokers.get(&id).ok_or(PlanError::UnknownBroker(id))?;
    let stages = match topology.reschedules {
        true => rescheduled(takeover, broker, topology, policy, seen)?,
        false => moved(takeover, broker, topology, policy, seen)?,
    };
    let mut plan = Plan {
        broker: id,
        from: takeover.from.clone(),
        to: takeover.to.clone(),
        epoch,
        fault_at: takeover.fault_at,
        because: takeover.because.clone(),
        stages,
        predicted: None,
    };
    if takeover.cause != Cause::Planned {
        plan.predicted = Some(predict::predict(&plan, seen));
    }
    Ok(plan)
}

/// The owner stays the owner: it is made anew on another machine.
fn rescheduled(
    takeover: &Takeover,
    broker: &Broker,
    topology: &Topology,
    policy: &Policy,
    seen: &Observation,
) -> Result<Vec<Stage>, PlanError> {
    let (id, host) = (broker.id, &takeover.from);
    if takeover.cause == Cause::Planned {
        return Err(PlanError::KeptByAnother(host.clone()));
    }
    let from = takeover.machines.get(host).ok_or_else(|| PlanError::Unplaced(host.clone()))?;
    let decision = unregister::planned(broker, topology, seen);
    let removal = Step::Unregister { broker: id, decision, zookeeper: topology.zookeeper };
    let reschedule = Step::Reschedule { broker: id, host: host.clone(), from: from.clone() };
    let mut stages = proof(takeover, topology)?;
    // Nobody but its controller starts it again.
    let back = Step::AwaitIsr { broker: id, patience: policy.rejoin_patience, restarts: 0 };
    stages.extend([
        Stage { phase: Phase::Start, steps: vec![removal] },
        Stage { phase: Phase::Start, steps: vec![reschedule] },
        Stage { phase: Phase::Rejoin, steps: vec![back] },
        Stage { phase: Phase::Settle, steps: vec![Step::ElectPreferred { broker: id }] },
    ]);
    Ok(stages)
}

/// The broker comes to this host.
fn moved(
    takeover: &Takeover,
    broker: &Broker,
    topology: &Topology,
    policy: &Policy,
    seen: &Observation,
) -> Result<Vec<Stage>, PlanError> {
    let id = broker.id;
    let mut stages = proof(takeover, topology)?;
    let render = Step::RenderConfig { broker: id };
    let mut finishes = Vec::new();
    let free = free_address(takeover, broker, topology);
    let mut prepare = prepare(broker, free.is_some());
    match stages.first_mut() {
        // It touches nothing that the old owner has, and systemd may take seconds to read its units anew.
        // Where a Kafka of this very host may still run, nothing is laid out for the next one before that is
        // known.
        Some(fence) if fence.phase == Phase::Fence && !takeover.writers.contains(&takeover.to) => {
            fence.steps.push(render);
        }
        _ => prepare.steps.push(render),
    }
    if let Some((first, finish)) = free {
        prepare.steps.insert(0, first);
        stages.push(prepare);
        let address = broker.address.clone().unwrap_or_default();
        let steps = vec![Step::MoveAddress { broker: id, address }];
        stages.push(Stage { phase: Phase::Prepare, steps });
        finishes = finish;
    } else {
        stages.push(prepare);
    }
    let unregister = match takeover.unregistered {
        true => Unregister::Wait { why: "there is none: it was removed while the broker lived".to_owned() },
        false => unregister::planned(broker, topology, seen),
    };
    // Not beside Kafka's start, which would wait for its record, and not before, for it is of no use without
    // new leaders.
    let mut rejoin = vec![await_isr(takeover, policy)];
    if broker.address.is_some() && takeover.from != takeover.to {
        rejoin.push(Step::ResetClients { broker: id });
    }
    rejoin.extend(finishes);
    let removal = Step::Unregister { broker: id, decision: unregister, zookeeper: topology.zookeeper };
    stages.extend(locks(takeover, broker, topology));
    stages.extend([
        Stage {
            phase: Phase::Verify,
            steps: vec![Step::VerifyLogDirs { broker: id, log_dirs: broker.log_dirs.clone() }],
        },
        Stage { phase: Phase::Start, steps: vec![removal] },
    ]);
    stages.extend(start(broker, takeover));
    stages.extend([
        Stage { phase: Phase::Rejoin, steps: rejoin },
        Stage { phase: Phase::Settle, steps: vec![Step::ElectPreferred { broker: id }] },
    ]);
    Ok(stages)
}

/// Kafka's start, and what the network may still have to follow: beside it where the owner is dead. An owner that stays
/// one, or that hands over, has a place to serve from, and Kafka is started in no other before that is sure.
fn start(broker: &Broker, takeover: &Takeover) -> Vec<Stage> {
    let id = broker.id;
    let address = broker.address.clone().filter(|_| broker.followed_later);
    let confirm = address.map(|address| Step::ConfirmAddress { broker: id, address });
    let beside = takeover.cause != Cause::Planned && takeover.from != takeover.to;
    let mut stages = vec![vec![Step::StartBroker { broker: id }]];
    match confirm {
        Some(confirm) if beside => stages[0].push(confirm),
        Some(confirm) => stages.insert(0, vec![confirm]),
        None => {}
    }
    stages.into_iter().map(|steps| Stage { phase: Phase::Start, steps }).collect()
}

/// A restart in place is a start again itself, and how many of those there may be is counted elsewhere.
fn await_isr(takeover: &Takeover, policy: &Policy) -> Step {
    let restarts = if takeover.from == takeover.to { 0 } else { policy.rejoin_restarts };
    Step::AwaitIsr { broker: takeover.broker, patience: policy.rejoin_patience, restarts }
}

/// Whatever makes sure that nobody else writes: every possible writer is fenced and proven, side by side.
fn proof(takeover: &Takeover, topology: &Topology) -> Result<Vec<Stage>, PlanError> {
    let Takeover { broker, from, to, writers, .. } = takeover;
    let broker = *broker;
    if takeover.cause == Cause::Planned {
        // Whoever else may write has to be fenced, and that is no switchover.
        if let Some(other) = writers.iter().find(|host| *host != from) {
            return Err(PlanError::NotSettled { broker, other: other.clone() });
        }
        let release = Step::AwaitRelease { broker, host: from.clone() };
        return Ok(vec![Stage { phase: Phase::Prove, steps: vec![release] }]);
    }
    let others: Vec<&HostName> = writers.iter().filter(|host| *host != to).collect();
    let machine = |host: &HostName| takeover.machines.get(host);
    if let Some(host) = others.iter().find(|host| topology.roams(host) && machine(host).is_none()) {
        return Err(PlanError::Unplaced((*host).clone()));
    }
    let ladder = |host: &HostName| {
        let ladder = match machine(host) {
            Some(machine) => topology.machines.get(&machine.name),
            None => topology.fences.get(host),
        };
        ladder.cloned().unwrap_or_default()
    };
    let fences = others.iter().map(|host| Step::Fence {
        host: (*host).clone(),
        ladder: ladder(host),
        on: machine(host).cloned(),
    });
    let proofs = others.iter().map(|host| Step::Prove { host: (*host).clone(), ladder: ladder(host) });
    let here = writers.contains(to).then_some(Step::ProveStopped { broker });
    let ends = takeover.unregistered.then_some(Step::EndUnregistered { broker });
    let first: Vec<Step> = fences.chain(ends).collect();
    let mut stages = Vec::new();
    if !first.is_empty() {
        stages.push(Stage { phase: Phase::Fence, steps: first });
    }
    stages.push(Stage { phase: Phase::Prove, steps: proofs.chain(here).collect() });
    Ok(stages)
}

/// Whatever makes sure that Kafka will get its locks: it does not wait for them. Before the log dirs are
/// verified, since a server in its grace period grants no lock to try.
fn locks(takeover: &Takeover, broker: &Broker, topology: &Topology) -> Vec<Stage> {
    let (id, locks) = (broker.id, &broker.locks);
    // A process that ends on a host which lives gives its locks back itself.
    let mut dead =
        takeover.writers.iter().filter(|host| takeover.cause != Cause::Planned && **host != takeover.to);
    let breaks = locks.broken && dead.clone().next().is_some();
    let leased = !locks.broken && dead.any(|host| !topology.unlocked.contains(host));
    let wait = Step::AwaitLocks {
        broker: id,
        log_dirs: broker.log_dirs.clone(),
        at_most: locks.at_most,
        lease: locks.lease.filter(|_| leased),
    };
    let steps = breaks.then_some(Step::BreakLocks { broker: id }).into_iter().chain([wait]);
    steps.map(|step| Stage { phase: Phase::Verify, steps: vec![step] }).collect()
}

/// Where a possible writer may live on with the address, because a fence of it denies the storage and no
/// more: what frees the address before it is moved, and what ends the fence after the start.
fn free_address(takeover: &Takeover, broker: &Broker, topology: &Topology) -> Option<(Step, Vec<Step>)> {
    if takeover.cause == Cause::Planned {
        return None;
    }
    let address = broker.address.clone()?;
    let others = takeover.writers.iter().filter(|host| **host != takeover.to);
    let hosts: BTreeSet<HostName> = others.filter(|host| topology.outlive.contains(*host)).cloned().collect();
    let id = broker.id;
    let finish = hosts.iter().map(|host| Step::FinishFence { broker: id, host: host.clone() }).collect();
    (!hosts.is_empty()).then_some((Step::FreeAddress { broker: id, address, hosts }, finish))
}

/// `freed`: the address is moved in a stage of its own, once nobody else answers for it.
fn prepare(broker: &Broker, freed: bool) -> Stage {
    let id = broker.id;
    let mut steps = Vec::with_capacity(2);
    if let Some(address) = broker.address.clone().filter(|_| !freed) {
        steps.push(Step::MoveAddress { broker: id, address });
    }
    let (log_dirs, admission) = (broker.log_dirs.clone(), broker.admission.clone());
    steps.push(Step::AttachStorage { broker: id, log_dirs, admission });
    Stage { phase: Phase::Prepare, steps }
}
