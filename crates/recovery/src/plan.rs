//! What a takeover will do: stages, each a set of steps that run side by side. Pure.
//!
//! A plan leaves execution no choices. It is plain data: printed by `understudy plan`, stored with the
//! claim, replayed after a crash.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decision::Takeover;
use crate::model::{Broker, BrokerId, Cause, Epoch, HostName, Topology};
use crate::observe::Observation;

/// Above this many partitions the controller refuses `UnregisterBroker` (error 44, measured on 4.3.1).
pub const UNREGISTER_PARTITION_LIMIT: usize = 10_000;

/// The phases of a takeover, in order. Every phase has a duration in the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// From the fault to the claim.
    Detect,
    /// Winning the next epoch in the ledger.
    Claim,
    /// Making it impossible for the old owner to write.
    Fence,
    /// Reading back that it is.
    Prove,
    /// Storage, address and configuration on this host.
    Prepare,
    /// Is this really the broker we mean to start?
    Verify,
    /// Freeing the broker's registration and starting Kafka.
    Start,
    /// Until every partition is back in ISR.
    Rejoin,
    /// Preferred leaders back.
    Settle,
}

impl Phase {
    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Detect => "detect",
            Self::Claim => "claim",
            Self::Fence => "fence",
            Self::Prove => "prove",
            Self::Prepare => "prepare",
            Self::Verify => "verify",
            Self::Start => "start",
            Self::Rejoin => "rejoin",
            Self::Settle => "settle",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// Whether the dead broker's registration is removed, and why (not).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "unregister", rename_all = "snake_case")]
pub enum Unregister {
    /// Sent once, to the active controller, if it still holds when the moment comes.
    Use {
        /// Brokers that share partitions with this one: each must be up at the moment of sending.
        sharing: BTreeSet<BrokerId>,
    },
    /// The old session has to expire first.
    Wait {
        /// The condition that does not hold.
        why: String,
    },
}

/// One change to the world, or one look at it. Plain data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// Make it impossible for `host` to write.
    Fence {
        /// The old owner.
        host: HostName,
        /// The drivers, in order.
        ladder: Vec<String>,
    },
    /// Read back that `host` cannot write. No proof, no start.
    Prove {
        /// The old owner.
        host: HostName,
        /// The drivers, in order.
        ladder: Vec<String>,
    },
    /// This host owns the broker already: prove that no Kafka of it runs here.
    ProveStopped {
        /// The broker.
        broker: BrokerId,
    },
    /// Wait until the agent of the old owner says, in the ledger, that it has stopped Kafka and released
    /// address and storage. That is the proof of a switchover.
    AwaitRelease {
        /// The broker.
        broker: BrokerId,
        /// The old owner.
        host: HostName,
    },
    /// Move the broker's address here.
    MoveAddress {
        /// The broker.
        broker: BrokerId,
        /// The address, for people.
        address: String,
    },
    /// Have the broker's log dirs mounted here.
    AttachStorage {
        /// The broker.
        broker: BrokerId,
        /// The log dirs.
        log_dirs: Vec<PathBuf>,
    },
    /// Write the `server.properties` Kafka will be started with.
    RenderConfig {
        /// The broker.
        broker: BrokerId,
    },
    /// Compare cluster id, node id and directory ids of every log dir with what they must be.
    VerifyLogDirs {
        /// The broker.
        broker: BrokerId,
        /// The log dirs.
        log_dirs: Vec<PathBuf>,
    },
    /// Remove the dead broker's registration, or say why not.
    Unregister {
        /// The broker.
        broker: BrokerId,
        /// The decision.
        decision: Unregister,
    },
    /// Start Kafka. Needs the proof.
    StartBroker {
        /// The broker.
        broker: BrokerId,
    },
    /// Wait until every partition of the broker is back in ISR.
    AwaitIsr {
        /// The broker.
        broker: BrokerId,
    },
    /// Give preferred leaders back, in batches.
    ElectPreferred {
        /// The broker.
        broker: BrokerId,
    },
}

/// Whom a proof is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proves<'a> {
    /// Another host.
    Host(&'a HostName),
    /// The host that takes over.
    Here,
}

/// What a failed step means for the takeover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// A person is needed: neither forward nor back is safe.
    Stuck,
    /// Undo what was prepared and release the claim.
    Abandon,
    /// Carry on and say so at the end.
    Remark,
}

/// What to do about a step that was begun, when a later one fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undo {
    /// Call the port's release.
    Release,
    /// There is nothing to undo.
    Nothing,
    /// Left in force on purpose.
    Keep(&'static str),
}

impl Step {
    /// The step's name in messages, metrics and the journal.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fence { .. } => "fence",
            Self::Prove { .. } => "prove",
            Self::ProveStopped { .. } => "prove_stopped",
            Self::AwaitRelease { .. } => "await_release",
            Self::MoveAddress { .. } => "move_address",
            Self::AttachStorage { .. } => "attach_storage",
            Self::RenderConfig { .. } => "render_config",
            Self::VerifyLogDirs { .. } => "verify_log_dirs",
            Self::Unregister { .. } => "unregister",
            Self::StartBroker { .. } => "start_broker",
            Self::AwaitIsr { .. } => "await_isr",
            Self::ElectPreferred { .. } => "elect_preferred",
        }
    }

    /// What the failure of this step means. `in_place`: for a plan that starts the broker again where it was.
    #[must_use]
    pub fn on_failure(&self, in_place: bool) -> OnFailure {
        match self {
            // The owner counts as a writer whatever becomes of it: another standby fences it and goes on.
            Self::StartBroker { .. } | Self::AwaitIsr { .. } if in_place => OnFailure::Abandon,
            // Without a proof nothing may start, and only a person can provide one.
            Self::Fence { .. } | Self::Prove { .. } => OnFailure::Stuck,
            // A Kafka may run here, and another standby can fence this host.
            Self::ProveStopped { .. } => OnFailure::Abandon,
            // Without the release the broker simply stays where it is: its owner starts it again if it had
            // stopped it already.
            Self::AwaitRelease { .. }
            | Self::MoveAddress { .. }
            | Self::AttachStorage { .. }
            | Self::RenderConfig { .. }
            | Self::VerifyLogDirs { .. } => OnFailure::Abandon,
            // The broker may hold the log dirs by now: nobody else may be invited to them.
            Self::StartBroker { .. } | Self::AwaitIsr { .. } => OnFailure::Stuck,
            // Slower or less balanced, but recovered.
            Self::Unregister { .. } | Self::ElectPreferred { .. } => OnFailure::Remark,
        }
    }

    /// What to do about this step when a later one fails.
    #[must_use]
    pub fn undo(&self) -> Undo {
        match self {
            Self::Fence { .. } => Undo::Keep("the fence: the old host may be alive; only a person lifts it"),
            Self::MoveAddress { .. } | Self::AttachStorage { .. } => Undo::Release,
            _ => Undo::Nothing,
        }
    }

    /// A step whose request must never be sent a second time, even if nobody knows what became of it.
    #[must_use]
    pub fn at_most_once(&self) -> bool {
        matches!(self, Self::Unregister { .. })
    }

    /// Of whom this step proves that nothing of the broker's writes there; `None` for any other step.
    #[must_use]
    pub fn proves(&self) -> Option<Proves<'_>> {
        match self {
            Self::Prove { host, .. } | Self::AwaitRelease { host, .. } => Some(Proves::Host(host)),
            Self::ProveStopped { .. } => Some(Proves::Here),
            _ => None,
        }
    }

    /// A look whose result is worth nothing after a crash: it is repeated until Kafka has been started.
    #[must_use]
    pub fn is_proof(&self) -> bool {
        self.proves().is_some()
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fence { host, ladder } => write!(f, "fence {host} by {}", ladder.join(", then ")),
            Self::Prove { host, ladder } => {
                write!(f, "prove by {} that {host} cannot write", ladder.join(" or "))
            }
            Self::ProveStopped { broker } => {
                write!(f, "prove that no Kafka of broker {broker} runs on this host")
            }
            Self::AwaitRelease { broker, host } => {
                write!(
                    f,
                    "wait until {host} has stopped broker {broker} and released its address and storage"
                )
            }
            Self::MoveAddress { address, .. } => write!(f, "move {address} to this host"),
            Self::AttachStorage { log_dirs, .. } => write!(f, "attach {}", paths(log_dirs)),
            Self::RenderConfig { broker } => write!(f, "render server.properties of broker {broker}"),
            Self::VerifyLogDirs { log_dirs, .. } => {
                write!(f, "verify cluster, node and directory ids in {}", paths(log_dirs))
            }
            Self::Unregister { broker, decision: Unregister::Use { .. } } => {
                write!(f, "unregister the dead broker {broker} at the active controller, once")
            }
            Self::Unregister { decision: Unregister::Wait { why }, .. } => {
                write!(f, "leave the registration to expire: {why}")
            }
            Self::StartBroker { broker } => write!(f, "start Kafka as broker {broker}"),
            Self::AwaitIsr { .. } => write!(f, "wait until every partition is back in ISR"),
            Self::ElectPreferred { .. } => write!(f, "give preferred leaders back, in batches"),
        }
    }
}

fn paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Steps that run side by side.
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
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { broker, from, to, epoch, .. } = self;
        writeln!(f, "takeover of broker {broker}: {from} -> {to}, epoch {epoch}")?;
        for clue in &self.because {
            writeln!(f, "  because {clue}")?;
        }
        writeln!(f, "  {:<8}  claim epoch {epoch} in the ledger", Phase::Claim)?;
        for (phase, step) in self.steps() {
            writeln!(f, "  {phase:<8}  {step}")?;
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
}

/// Plans the takeover. `epoch` is the one to be claimed.
///
/// # Errors
/// When the broker is not guarded here, or cannot be switched over.
pub fn plan(
    takeover: &Takeover,
    epoch: Epoch,
    topology: &Topology,
    seen: &Observation,
) -> Result<Plan, PlanError> {
    let id = takeover.broker;
    let broker = topology.brokers.get(&id).ok_or(PlanError::UnknownBroker(id))?;
    let own = takeover.from == takeover.to;
    let mut stages = proof(takeover, topology)?;
    stages.push(prepare(broker));
    let unregister = unregister(broker, topology, seen, own);
    stages.extend([
        Stage {
            phase: Phase::Verify,
            steps: vec![Step::VerifyLogDirs { broker: id, log_dirs: broker.log_dirs.clone() }],
        },
        Stage { phase: Phase::Start, steps: vec![Step::Unregister { broker: id, decision: unregister }] },
        Stage { phase: Phase::Start, steps: vec![Step::StartBroker { broker: id }] },
        Stage { phase: Phase::Rejoin, steps: vec![Step::AwaitIsr { broker: id }] },
        Stage { phase: Phase::Settle, steps: vec![Step::ElectPreferred { broker: id }] },
    ]);
    Ok(Plan {
        broker: id,
        from: takeover.from.clone(),
        to: takeover.to.clone(),
        epoch,
        fault_at: takeover.fault_at,
        because: takeover.because.clone(),
        stages,
    })
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
    let ladder = |host: &HostName| topology.fences.get(host).cloned().unwrap_or_default();
    let others: Vec<&HostName> = writers.iter().filter(|host| *host != to).collect();
    let fences = others.iter().map(|host| Step::Fence { host: (*host).clone(), ladder: ladder(host) });
    let proofs = others.iter().map(|host| Step::Prove { host: (*host).clone(), ladder: ladder(host) });
    let here = writers.contains(to).then_some(Step::ProveStopped { broker });
    let mut stages = Vec::new();
    if !others.is_empty() {
        stages.push(Stage { phase: Phase::Fence, steps: fences.collect() });
    }
    stages.push(Stage { phase: Phase::Prove, steps: proofs.chain(here).collect() });
    Ok(stages)
}

fn prepare(broker: &Broker) -> Stage {
    let id = broker.id;
    let mut steps = Vec::with_capacity(3);
    if let Some(address) = broker.address.clone() {
        steps.push(Step::MoveAddress { broker: id, address });
    }
    steps.push(Step::AttachStorage { broker: id, log_dirs: broker.log_dirs.clone() });
    steps.push(Step::RenderConfig { broker: id });
    Stage { phase: Phase::Prepare, steps }
}

/// The rule under which a dead broker's registration is removed. Each condition was measured to matter.
///
/// That the fence is proven (1) and that this host is ready to start (6) hold by the order of the
/// stages. The step looks again at (2) and (4) on the controller, right before it sends.
fn unregister(broker: &Broker, topology: &Topology, seen: &Observation, own: bool) -> Unregister {
    let id = broker.id;
    let wait = |why: String| Unregister::Wait { why };
    if own {
        return wait("this host owned the broker already and its session is its own".into());
    }
    if !topology.controllers_known {
        return wait("the controllers' listeners are not configured (cluster.controllers)".into());
    }
    let Some(view) = &seen.partitions else {
        return wait("the partitions of the cluster have not been read".into());
    };
    match seen.brokers.get(&id).and_then(|b| b.listed) {
        Some(true) => {}
        Some(false) => {
            return wait("the controller has fenced the broker already, or it was stopped cleanly".into());
        }
        None => return wait("no surviving broker said whether the broker is still registered".into()),
    }
    let count = view.of(id).count();
    if count >= UNREGISTER_PARTITION_LIMIT {
        return wait(format!("{count} partitions: the controller refuses from {UNREGISTER_PARTITION_LIMIT}"));
    }
    let sharing = view.sharing(id);
    if let Some(down) = sharing.iter().find(|b| !seen.is_well(**b)) {
        return wait(format!("broker {down}, which shares partitions with it, is down or suspect"));
    }
    Unregister::Use { sharing }
}
