//! The one typed event that feeds log, metrics, history and, later, the stream.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::Decision;
use crate::model::{BrokerId, Checked, Epoch, HostName, Note, Outcome};
use crate::plan::{Phase, Plan};

/// Something that happened, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// The host of the agent that says so.
    pub host: HostName,
    /// The broker it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker: Option<BrokerId>,
    /// The epoch it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// The agent began to watch.
    AgentStarted {
        /// The mode it runs in.
        mode: String,
        /// Its version.
        version: String,
    },
    /// Another configuration came into force while the agent ran. Observation begins anew.
    Reloaded {
        /// Who asked for it.
        by: String,
        /// What is different, a key a line.
        differences: Vec<String>,
    },
    /// Another configuration was refused as a whole: the one before stays in force.
    NotReloaded {
        /// Who asked for it.
        by: String,
        /// Why.
        why: String,
    },
    /// A signal that saw no longer sees.
    SignalBlind {
        /// The signal.
        signal: String,
        /// Why.
        why: String,
    },
    /// A signal sees again.
    SignalSees {
        /// The signal.
        signal: String,
    },
    /// This host was fenced in the event's epoch, and nobody has lifted that: it takes the broker over no
    /// more.
    NotRejoined,
    /// A check of what a takeover here needs failed, and did not before.
    CheckFailed {
        /// What it found, with what to do about it.
        #[serde(flatten)]
        found: Checked,
    },
    /// A check that had failed no longer does.
    CheckPassed {
        /// What it found.
        #[serde(flatten)]
        found: Checked,
    },
    /// A decision other than the one before.
    Decided {
        /// The decision, with its reasons.
        decision: Decision,
        /// The evidence behind it, as sentences.
        evidence: Vec<String>,
    },
    /// What would be done if it were allowed: the mode is `observe`, or `approve` and nobody has approved
    /// yet.
    WouldTakeOver {
        /// The whole plan.
        plan: Box<Plan>,
    },
    /// A takeover was decided, and there is no plan for it: nothing is done.
    NotPlanned {
        /// Why.
        why: String,
    },
    /// This host has stopped and released a broker for a switchover.
    HandedOver {
        /// The host that takes it.
        to: HostName,
        /// What was read back.
        found: String,
    },
    /// This host, which is fenced, has ended what was left of a broker that another one has, and given its
    /// address up.
    StoodDown {
        /// What was read back.
        found: String,
    },
    /// The claim was won.
    Claimed {
        /// The old owner.
        from: HostName,
        /// When the fault happened.
        fault_at: Timestamp,
    },
    /// Somebody else won the claim, or it could not be made.
    NotClaimed {
        /// Why.
        why: String,
    },
    /// An unfinished takeover is carried on.
    Resumed,
    /// A step is being tried.
    StepStarted {
        /// Its phase.
        phase: Phase,
        /// Its name.
        step: String,
        /// Whether it is being undone.
        undo: bool,
    },
    /// A step is done.
    StepDone {
        /// Its phase.
        phase: Phase,
        /// Its name.
        step: String,
        /// Whether it was undone.
        undo: bool,
        /// How long it took.
        took: Duration,
        /// What was found.
        note: Note,
    },
    /// A step failed.
    StepFailed {
        /// Its phase.
        phase: Phase,
        /// Its name.
        step: String,
        /// Whether it was being undone.
        undo: bool,
        /// The error's kind, a metric label.
        kind: String,
        /// The error chain.
        error: String,
    },
    /// A phase is over.
    PhaseDone {
        /// The phase.
        phase: Phase,
        /// From its first step to its last.
        took: Duration,
    },
    /// How far the broker is on its way back.
    Rejoining {
        /// The state, in words.
        state: String,
        /// Partitions with the broker in ISR.
        in_isr: usize,
        /// Partitions with a replica on it.
        replicas: usize,
    },
    /// What a step waits for.
    Waiting {
        /// Its name.
        step: String,
        /// What for, and how long at most.
        state: String,
    },
    /// The takeover ended.
    Ended {
        /// How.
        outcome: Outcome,
        /// The time-to-ISR that was expected when it was planned.
        #[serde(default)]
        predicted: Option<Duration>,
    },
    /// This process stopped working at a takeover, without an end: it can be resumed.
    Interrupted {
        /// Why.
        why: String,
    },
    /// A decision could not be kept in the ledger.
    NotRemembered {
        /// Why.
        why: String,
    },
}
