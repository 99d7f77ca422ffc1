//! The steps of a plan, and what each means when it fails.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::unregister::Unregister;
use crate::model::{BrokerId, CONFIRM_ADDRESS, HostName, Machine, Phase, human};

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
        /// The machine that it was on, whose fences they are; `None` where they are the host's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on: Option<Machine>,
    },
    /// Read back that `host` cannot write. No proof, no start.
    Prove {
        /// The old owner.
        host: HostName,
        /// The drivers, in order.
        ladder: Vec<String>,
    },
    /// Kill the broker's Kafka on this host, which serves without a registration, if it still does.
    EndUnregistered {
        /// The broker.
        broker: BrokerId,
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
    /// Have nobody else answer for the broker's address: a host whose storage alone is denied lives on with
    /// it. Its own agent gives it up, else the next fence that stops the host takes it.
    FreeAddress {
        /// The broker.
        broker: BrokerId,
        /// The address, for people.
        address: String,
        /// The possible writers whose fence may leave them running.
        hosts: BTreeSet<HostName>,
    },
    /// Stop `host` itself, whose storage alone may be denied so far: a proof is enough for a start, and not
    /// the end of a fence.
    FinishFence {
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
    /// Wait until packets for the broker's address come to this host and to no other. Only where a network takes its time
    /// to follow an order that it has accepted: a dead owner's Kafka starts meanwhile, and is stopped if they do not come.
    ConfirmAddress {
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
        /// What the storage is told first, in order, for people. Unsaid in a plan of an older agent.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        admission: Vec<String>,
    },
    /// Write the `server.properties` Kafka will be started with.
    RenderConfig {
        /// The broker.
        broker: BrokerId,
    },
    /// Have the storage break what locks of the log dirs are still held, after the proof that their holders
    /// cannot write.
    BreakLocks {
        /// The broker.
        broker: BrokerId,
    },
    /// Wait until nobody holds Kafka's lock in any log dir: Kafka does not wait, it ends.
    AwaitLocks {
        /// The broker.
        broker: BrokerId,
        /// The log dirs.
        log_dirs: Vec<PathBuf>,
        /// How long at most.
        at_most: Duration,
        /// How long the storage keeps the lock of the owner that has died; `None` where it does not.
        lease: Option<Duration>,
    },
    /// Compare cluster id, node id and directory ids of every log dir with what they must be.
    VerifyLogDirs {
        /// The broker.
        broker: BrokerId,
        /// The log dirs.
        log_dirs: Vec<PathBuf>,
    },
    /// Have another controller make the host anew, which is a pod, on another machine: it is deleted by force, once its
    /// machine is proven to be off.
    Reschedule {
        /// The broker.
        broker: BrokerId,
        /// The host, which keeps the broker.
        host: HostName,
        /// The machine that it was on, and which of all pods of its name it was.
        from: Machine,
    },
    /// Remove the dead broker's registration, or say why not.
    Unregister {
        /// The broker.
        broker: BrokerId,
        /// The decision.
        decision: Unregister,
        /// It is in ZooKeeper, and Kafka of that time ends at once as long as it is there: where it is not removed, its
        /// end is waited for.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        zookeeper: bool,
    },
    /// Reset what connections clients still have to the old owner. Not before its registration is gone, if it
    /// can be removed: whoever hears of the fault looks for new leaders at once, and librdkafka, if there are
    /// none yet, again only up to a second later.
    ResetClients {
        /// The broker.
        broker: BrokerId,
    },
    /// Start Kafka. Needs the proof.
    StartBroker {
        /// The broker.
        broker: BrokerId,
    },
    /// Wait until every partition of the broker is back in ISR, as long as it gets on.
    AwaitIsr {
        /// The broker.
        broker: BrokerId,
        /// For how long nothing may move. Five minutes in a plan of an older agent.
        #[serde(default = "five_minutes")]
        patience: Duration,
        /// How often a Kafka that ended by itself is started again. Never in a plan of an older agent.
        #[serde(default)]
        restarts: usize,
    },
    /// Give preferred leaders back, in batches.
    ElectPreferred {
        /// The broker.
        broker: BrokerId,
    },
}

fn five_minutes() -> Duration {
    Duration::from_secs(300)
}

/// Whom a proof is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proves<'a> {
    /// Another host.
    Host(&'a HostName),
    /// The host that takes over.
    Here,
}

/// What a failed step means for the takeover, the gravest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnFailure {
    /// A person is needed: neither forward nor back is safe.
    Stuck,
    /// Undo what was prepared; a person is needed, for no other standby can do better.
    Escalate,
    /// Undo what was prepared and release the claim.
    Abandon,
    /// Carry on and say so at the end.
    Remark,
}

/// What to do about a step that was begun, when a later one fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undo {
    /// Call the port's release; of Kafka's start, prove that nothing of it is left.
    Release,
    /// Nothing, but where this very step is the one that failed: stop the Kafka that nobody reaches.
    OfItself,
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
            Self::EndUnregistered { .. } => "end_unregistered",
            Self::ProveStopped { .. } => "prove_stopped",
            Self::AwaitRelease { .. } => "await_release",
            Self::FreeAddress { .. } => "free_address",
            Self::FinishFence { .. } => "finish_fence",
            Self::MoveAddress { .. } => "move_address",
            Self::ConfirmAddress { .. } => CONFIRM_ADDRESS,
            Self::AttachStorage { .. } => "attach_storage",
            Self::RenderConfig { .. } => "render_config",
            Self::BreakLocks { .. } => "break_locks",
            Self::AwaitLocks { .. } => "await_locks",
            Self::VerifyLogDirs { .. } => "verify_log_dirs",
            Self::Unregister { .. } => "unregister",
            Self::ResetClients { .. } => "reset_clients",
            Self::StartBroker { .. } => "start_broker",
            Self::Reschedule { .. } => "reschedule",
            Self::AwaitIsr { .. } => "await_isr",
            Self::ElectPreferred { .. } => "elect_preferred",
        }
    }

    /// What the failure of this step means.
    #[must_use]
    pub fn on_failure(&self) -> OnFailure {
        match self {
            // Without a proof nothing may start, and only a person can provide one.
            Self::Fence { .. } | Self::Prove { .. } => OnFailure::Stuck,
            // Another agent would switch the next machine off.
            Self::Reschedule { .. } => OnFailure::Stuck,
            // Who answers here answers every standby.
            Self::FreeAddress { .. } => OnFailure::Escalate,
            // Whoever may have started Kafka counts as a writer whatever becomes of it: another standby fences
            // it and goes on. On a new host it has to be proven first that nothing of it is left.
            Self::StartBroker { .. } | Self::ConfirmAddress { .. } | Self::AwaitIsr { .. } => {
                OnFailure::Abandon
            }
            // A Kafka may run here, and another standby can fence this host.
            Self::EndUnregistered { .. } | Self::ProveStopped { .. } => OnFailure::Abandon,
            // Without the release the broker simply stays where it is: its owner starts it again if it had
            // stopped it already.
            Self::AwaitRelease { .. }
            | Self::MoveAddress { .. }
            | Self::AttachStorage { .. }
            | Self::RenderConfig { .. }
            | Self::AwaitLocks { .. }
            | Self::VerifyLogDirs { .. } => OnFailure::Abandon,
            // Slower or less balanced, but recovered. A lock that could not be broken is waited for.
            Self::BreakLocks { .. }
            | Self::Unregister { .. }
            | Self::ResetClients { .. }
            | Self::FinishFence { .. }
            | Self::ElectPreferred { .. } => OnFailure::Remark,
        }
    }

    /// What to do about this step when a later one fails.
    #[must_use]
    pub fn undo(&self) -> Undo {
        match self {
            Self::Fence { .. } => {
                Undo::Keep("the fence: only a person lifts it, by `understudy rejoin` on that host")
            }
            Self::MoveAddress { .. } | Self::AttachStorage { .. } | Self::StartBroker { .. } => Undo::Release,
            Self::ConfirmAddress { .. } => Undo::OfItself,
            _ => Undo::Nothing,
        }
    }

    /// A step whose request must never be sent a second time, even if nobody knows what became of it.
    #[must_use]
    pub fn at_most_once(&self) -> bool {
        matches!(self, Self::Unregister { .. })
    }

    /// Whether it is done again before a Kafka that ended by itself is started once more: every proof, what
    /// the start needs, and the start.
    #[must_use]
    pub fn belongs_to_a_start(&self) -> bool {
        let needed = matches!(
            self,
            Self::MoveAddress { .. }
                | Self::AttachStorage { .. }
                | Self::RenderConfig { .. }
                | Self::AwaitLocks { .. }
                | Self::VerifyLogDirs { .. }
                | Self::StartBroker { .. }
                | Self::ConfirmAddress { .. }
        );
        needed || self.is_proof()
    }

    /// Whether Kafka may run because of it, here or on another host.
    #[must_use]
    pub fn starts(&self) -> bool {
        matches!(self, Self::StartBroker { .. } | Self::Reschedule { .. })
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

    /// Whether the stages after `phase` go on beside this step. It is awaited before anything of
    /// [`Phase::Start`].
    #[must_use]
    pub fn outlasts(&self, phase: Phase) -> bool {
        match self {
            Self::RenderConfig { .. } => phase < Phase::Prepare,
            // The link is asked for a while whether somebody else has the address: time in which log dirs are
            // read.
            Self::MoveAddress { .. } => phase < Phase::Verify,
            _ => false,
        }
    }

    /// What it puts here is gone if this host itself loses its power in the middle of its takeover: it is
    /// repeated after a crash until Kafka has been started. What is there still is left as it is, so that
    /// nothing is lost where a Kafka of this very start runs already; looks at the log dirs would take that
    /// one for somebody else's, and are not repeated.
    #[must_use]
    pub fn is_lost_with_the_host(&self) -> bool {
        matches!(self, Self::MoveAddress { .. } | Self::AttachStorage { .. } | Self::ConfirmAddress { .. })
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
            Self::Fence { host, ladder, on } => {
                let on = on.as_ref().map(|on| format!(" with its machine, {},", on.name)).unwrap_or_default();
                write!(f, "fence {host}{on} by {}", ladder.join(", then "))
            }
            Self::Prove { host, ladder } => {
                write!(f, "prove by {} that {host} cannot write", ladder.join(" or "))
            }
            Self::EndUnregistered { broker } => {
                write!(f, "kill the Kafka of broker {broker} on this host, which has no registration")
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
            Self::FreeAddress { address, hosts, .. } => {
                let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
                write!(f, "have {address} given up by {}, or stop that host", hosts.join(", "))
            }
            Self::FinishFence { host, .. } => write!(f, "stop {host} itself, so that it answers nobody"),
            Self::MoveAddress { address, .. } => write!(f, "move {address} to this host"),
            Self::ConfirmAddress { address, .. } => {
                write!(f, "wait until packets for {address} come to this host")
            }
            Self::AttachStorage { log_dirs, admission, .. } => {
                admission.iter().try_for_each(|first| write!(f, "{first}, then "))?;
                write!(f, "attach {}", paths(log_dirs))
            }
            Self::RenderConfig { broker } => write!(f, "render server.properties of broker {broker}"),
            Self::BreakLocks { broker } => write!(f, "break what locks of broker {broker} are left"),
            Self::AwaitLocks { log_dirs, at_most, lease, .. } => {
                let at_most = human(*at_most);
                write!(f, "wait until nobody holds .lock in {}, {at_most} at most", paths(log_dirs))?;
                match lease {
                    Some(lease) => write!(f, " (a dead client's lease is {})", human(*lease)),
                    None => Ok(()),
                }
            }
            Self::VerifyLogDirs { log_dirs, .. } => {
                write!(f, "verify cluster, node and directory ids in {}", paths(log_dirs))
            }
            Self::Unregister { broker, decision, zookeeper } => {
                write!(f, "{}", unregistering(*broker, decision, *zookeeper))
            }
            Self::ResetClients { .. } => write!(f, "reset what connections clients have to the old host"),
            Self::StartBroker { broker } => write!(f, "start Kafka as broker {broker}"),
            Self::Reschedule { host, from: Machine { name, .. }, .. } => {
                write!(f, "have {host} made anew by its own controller, on another machine than {name}")
            }
            Self::AwaitIsr { patience, restarts, .. } => {
                let patience = human(*patience);
                write!(f, "wait until every partition is back in ISR, at most {patience} without progress")?;
                match restarts {
                    0 => Ok(()),
                    n => write!(f, "; start Kafka again up to {n} times if it ends"),
                }
            }
            Self::ElectPreferred { .. } => write!(f, "give preferred leaders back, in batches"),
        }
    }
}

fn unregistering(broker: BrokerId, decision: &Unregister, zookeeper: bool) -> String {
    match (decision, zookeeper) {
        (Unregister::Use { .. }, true) => {
            format!("remove the registration of the dead broker {broker} from ZooKeeper, once")
        }
        (Unregister::Use { .. }, false) => {
            format!("unregister the dead broker {broker} at the active controller, once")
        }
        (Unregister::Wait { why }, true) => {
            format!("wait until the registration in ZooKeeper has expired: {why}")
        }
        (Unregister::Wait { why }, false) => format!("leave the registration to expire: {why}"),
    }
}

fn paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_what_the_storage_is_told_first_and_an_older_one_is_still_read() {
        let older = r#"{"step":"attach_storage","broker":1,"log_dirs":["/mnt/a"]}"#;
        let mut step: Step = serde_json::from_str(older).unwrap();
        assert_eq!(step.to_string(), "attach /mnt/a");
        assert_eq!(serde_json::to_string(&step).unwrap(), older);
        if let Step::AttachStorage { admission, .. } = &mut step {
            *admission = ["take a snapshot of k1", "let 10.0.0.9 in to k1 of svm1"].map(str::to_owned).into();
        }
        let told = "take a snapshot of k1, then let 10.0.0.9 in to k1 of svm1, then attach /mnt/a";
        assert_eq!(step.to_string(), told);
        assert_eq!(serde_json::from_str::<Step>(&serde_json::to_string(&step).unwrap()).unwrap(), step);
    }
}
