//! What `/v1/status` and `understudy status` show: one snapshot a tick, and the takeovers under way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::{Decision, Failure, failures, sentences};
use crate::event::{Event, What};
use crate::model::{BrokerId, CheckSeen, Epoch, EpochState, HostName, PeerView, Topology, VolumeUse};
use crate::observe::Observation;
use crate::plan::Phase;
use crate::policy::{Mode, Policy};
use crate::ports::EventSink;
use crate::view::view;

/// A snapshot of the whole agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// This host.
    pub host: HostName,
    /// What the agent may do by itself.
    pub mode: Mode,
    /// When the snapshot was made; `None` before the first tick.
    pub at: Option<Timestamp>,
    /// Whether the ledger was read lately.
    pub ledger_read: bool,
    /// Why a ledger that answers must not be used by this agent: its name is another machine's, for instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distrusted: Option<String>,
    /// Whether a surviving broker gave its broker list lately.
    pub metadata_read: bool,
    /// Signals that cannot see, with the reason.
    pub blind: BTreeMap<String, String>,
    /// What the checks found of what a takeover by this host needs, as far as it still counts.
    #[serde(default)]
    pub checks: Vec<CheckSeen>,
    /// The guarded brokers.
    pub brokers: Vec<BrokerStatus>,
    /// Every broker that is down, guarded or not, and who failed together with it.
    #[serde(default)]
    pub down: Vec<Failure>,
    /// What peers are told, on a page of its own; `None` before the first tick.
    #[serde(skip)]
    pub view: Option<PeerView>,
}

/// One guarded broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BrokerStatus {
    /// Its node id.
    pub id: BrokerId,
    /// The host that owns it, by the ledger; `None` while the ledger cannot be read.
    pub owner: Option<HostName>,
    /// The newest epoch.
    pub epoch: Option<Epoch>,
    /// What became of the newest epoch.
    pub last: Option<EpochState>,
    /// The last decision; `None` before the first.
    pub decision: Option<Decision>,
    /// The decision as a sentence.
    pub says: String,
    /// The evidence, as sentences.
    pub evidence: Vec<String>,
    /// The takeover that this process carries out.
    pub takeover: Option<TakeoverStatus>,
    /// How its volumes are used, as the storage counts.
    #[serde(default)]
    pub volumes: Option<VolumeUse>,
}

/// A takeover that this process carries out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TakeoverStatus {
    /// Its epoch.
    pub epoch: Epoch,
    /// When it was claimed or resumed here.
    pub since: Timestamp,
    /// The phase it is in.
    pub phase: Phase,
    /// Steps that are being tried.
    pub steps: Vec<String>,
    /// How far the broker is or what is waited for, in words.
    pub rejoining: Option<String>,
}

impl Status {
    /// Why nothing is decided by the ledger; `None` while it is read.
    #[must_use]
    pub fn ledger_missing(&self) -> Option<&str> {
        let unread = (!self.ledger_read).then_some("the ledger has not been read lately");
        self.distrusted.as_deref().or(unread)
    }

    /// Before the first tick.
    pub(crate) fn starting(topology: &Topology, mode: Mode) -> Self {
        Self {
            host: topology.here.clone(),
            mode,
            at: None,
            ledger_read: false,
            distrusted: None,
            metadata_read: false,
            blind: BTreeMap::new(),
            checks: Vec::new(),
            brokers: Vec::new(),
            down: Vec::new(),
            view: None,
        }
    }
}

/// Passes events on, and remembers of them where each takeover stands.
pub(crate) struct Tracker {
    next: Arc<dyn EventSink>,
    takeovers: Mutex<BTreeMap<BrokerId, TakeoverStatus>>,
}

impl EventSink for Tracker {
    fn emit(&self, event: &Event) {
        self.track(event);
        self.next.emit(event);
    }

    fn ticked(&self, took: Duration) {
        self.next.ticked(took);
    }
}

impl Tracker {
    pub(crate) fn new(next: Arc<dyn EventSink>) -> Self {
        Self { next, takeovers: Mutex::new(BTreeMap::new()) }
    }

    fn track(&self, event: &Event) {
        let (Some(broker), epoch) = (event.broker, event.epoch.unwrap_or_default()) else { return };
        let mut takeovers = self.takeovers.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = TakeoverStatus {
            epoch,
            since: event.at,
            phase: Phase::Claim,
            steps: Vec::new(),
            rejoining: None,
        };
        match event.what {
            What::Claimed { .. } | What::Resumed => drop(takeovers.insert(broker, fresh)),
            // A claim whose confirmation was lost is carried out without having been announced.
            What::StepStarted { .. } => drop(takeovers.entry(broker).or_insert(fresh)),
            _ => {}
        }
        if matches!(event.what, What::Ended { .. } | What::Interrupted { .. }) {
            takeovers.remove(&broker);
        }
        let Some(takeover) = takeovers.get_mut(&broker) else { return };
        match &event.what {
            What::StepStarted { phase, step, .. } => {
                takeover.phase = *phase;
                takeover.steps.push(step.clone());
            }
            What::StepDone { step, .. } | What::StepFailed { step, .. } => {
                takeover.steps.retain(|s| s != step);
                // Another step beside it may be the one that waits, and says so once.
                if takeover.steps.is_empty() {
                    takeover.rejoining = None;
                }
            }
            What::Rejoining { state, .. } | What::Waiting { state, .. } => {
                takeover.rejoining = Some(state.clone());
            }
            _ => {}
        }
    }

    pub(crate) fn status(
        &self,
        topology: &Topology,
        policy: &Policy,
        seen: &Observation,
        decisions: &BTreeMap<BrokerId, Decision>,
    ) -> Status {
        let takeovers = self.takeovers.lock().unwrap_or_else(PoisonError::into_inner);
        let brokers = topology.brokers.keys().map(|id| {
            let standing = seen.standing(*id);
            let decision = decisions.get(id).cloned();
            BrokerStatus {
                id: *id,
                owner: standing.map(|s| s.owner.clone()),
                epoch: standing.map(|s| s.epoch),
                last: standing.and_then(|s| s.state.clone()),
                says: decision.as_ref().map_or_else(|| "not looked at yet".to_owned(), ToString::to_string),
                decision,
                evidence: sentences(*id, seen),
                takeover: takeovers.get(id).cloned(),
                volumes: seen.brokers.get(id).and_then(|seen| seen.volumes),
            }
        });
        Status {
            host: topology.here.clone(),
            mode: policy.mode,
            at: Some(seen.now.wall),
            ledger_read: seen.ledger.is_some(),
            distrusted: seen.distrusted.as_ref().map(|(_, why)| why.clone()),
            metadata_read: seen.metadata_fresh,
            blind: seen.blind.iter().map(|(signal, why)| ((*signal).to_owned(), why.clone())).collect(),
            checks: seen.checks.values().cloned().collect(),
            brokers: brokers.collect(),
            down: failures(seen, topology, policy),
            view: Some(view(topology, policy.mode, seen)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Note;

    struct Nobody;

    impl EventSink for Nobody {
        fn emit(&self, _: &Event) {}
    }

    /// `await_locks` says once what it waits for, and the address is moved beside it.
    #[test]
    fn what_a_step_waits_for_stays_told_when_another_one_is_done() {
        let tracker = Tracker::new(Arc::new(Nobody));
        let (broker, undo) = (Some(BrokerId(1)), false);
        let tell = |what| {
            let host = "standby-1".into();
            tracker.emit(&Event { at: Timestamp::UNIX_EPOCH, host, broker, epoch: Some(Epoch(1)), what });
        };
        let waits = || tracker.takeovers.lock().unwrap()[&BrokerId(1)].rejoining.clone();
        let started = |step: &str| What::StepStarted { phase: Phase::Verify, step: step.to_owned(), undo };
        let done = |step: &str| {
            let (step, took, note) = (step.to_owned(), Duration::ZERO, Note::new(""));
            What::StepDone { phase: Phase::Verify, step, undo, took, note }
        };
        tell(started("move_address"));
        tell(started("await_locks"));
        tell(What::Waiting { step: "await_locks".to_owned(), state: "a lock is held".to_owned() });
        tell(done("move_address"));
        assert_eq!(waits().as_deref(), Some("a lock is held"));
        tell(done("await_locks"));
        assert_eq!(waits(), None);
    }
}
