//! One log line an event. The level says who should read it: error pages, warn explains, info tells.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use recovery::decide::Decision;
use recovery::event::{Event, What};
use recovery::model::{Checked, Outcome, human};
use recovery::ports::EventSink;
use tracing::{debug, error, info, warn};

/// Writes events as log lines.
#[derive(Debug, Default)]
pub struct LogSink {
    /// Why the takeover of each broker stops, if that was the last that was heard of it.
    stopped: Mutex<BTreeMap<Option<i32>, String>>,
}

impl LogSink {
    /// A takeover that cannot get on is tried again every second or so. Whoever was paged once need not be
    /// again.
    fn interrupted(&self, broker: Option<i32>, epoch: Option<u64>, why: &str) {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        if stopped.insert(broker, why.to_owned()).is_some_and(|before| before == why) {
            return debug!(broker, epoch, why, "the takeover still stands still");
        }
        error!(broker, epoch, why, "the takeover stops without an end; it will be carried on");
    }

    /// It is carried on, or over.
    fn moves(&self, broker: Option<i32>) {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).remove(&broker);
    }
}

impl EventSink for LogSink {
    fn emit(&self, event: &Event) {
        let broker = event.broker.map(|b| b.0);
        let epoch = event.epoch.map(|e| e.0);
        if matches!(event.what, What::Resumed | What::Claimed { .. } | What::Ended { .. }) {
            self.moves(broker);
        }
        match &event.what {
            What::AgentStarted { mode, version } => info!(host = %event.host, mode, version, "watching"),
            What::Reloaded { by, differences } => {
                info!(by, "the configuration was reloaded\n  {}", differences.join("\n  "));
            }
            What::NotReloaded { by, why } => {
                error!(by, "not reloaded, and the configuration before stays in force: {why}");
            }
            What::SignalBlind { signal, why } => warn!(signal, why, "a signal cannot see"),
            What::SignalSees { signal } => info!(signal, "the signal sees again"),
            What::NotRejoined => warn!(
                broker,
                epoch,
                "this host was fenced and has not rejoined, so it takes no broker over: \
                 run `understudy rejoin` here"
            ),
            What::CheckFailed { found } => {
                let Checked { check, says, remedy, .. } = found;
                error!(check = check.label(), of = check.of(), says, remedy, "not ready: a check fails");
            }
            What::CheckPassed { found } => {
                let Checked { check, says, .. } = found;
                info!(check = check.label(), of = check.of(), says, "the check passes again");
            }
            What::Decided { decision, evidence } => decided(event, decision, evidence),
            What::WouldTakeOver { plan } => {
                warn!(broker, epoch, "would act, if the mode allowed it:\n{plan}");
            }
            What::NotPlanned { why } => {
                error!(broker, epoch, why, "nothing is done: no plan can be made for this decision");
            }
            What::HandedOver { to, found } => warn!(broker, epoch, %to, found, "the broker is handed over"),
            What::StoodDown { found } => {
                warn!(broker, epoch, found, "what was left of the broker here is ended");
            }
            What::Claimed { from, fault_at } => {
                warn!(broker, epoch, %from, %fault_at, "takeover begins: the claim is won");
            }
            What::NotClaimed { why } => warn!(broker, epoch, why, "no takeover: the claim is not won"),
            What::Resumed => warn!(broker, epoch, "an unfinished takeover is carried on"),
            What::Interrupted { why } => self.interrupted(broker, epoch, why),
            What::NotRemembered { why } => {
                warn!(
                    broker,
                    why, "a decision could not be kept in the ledger; this line is its only record"
                );
            }
            What::Ended { outcome, .. } => ended(event, outcome),
            step => self::step(broker, epoch, step),
        }
    }
}

fn step(broker: Option<i32>, epoch: Option<u64>, what: &What) {
    match what {
        What::StepStarted { phase, step, undo } => debug!(broker, epoch, %phase, step, undo, "step begins"),
        What::StepDone { phase, step, undo, took, note } => {
            let (took, note) = (human(*took), note.to_string());
            info!(broker, epoch, %phase, step, undo, took, note, "step done");
        }
        What::StepFailed { phase, step, undo, kind, error } => {
            error!(broker, epoch, %phase, step, undo, kind, error, "step failed");
        }
        What::PhaseDone { phase, took } => info!(broker, epoch, %phase, took = human(*took), "phase done"),
        What::Rejoining { state, in_isr, replicas } => {
            info!(broker, epoch, in_isr, replicas, "rejoining: {state}");
        }
        What::Waiting { step, state } => info!(broker, epoch, step, "waiting: {state}"),
        _ => {}
    }
}

fn decided(event: &Event, decision: &Decision, evidence: &[String]) {
    let broker = event.broker.map(|b| b.0);
    let evidence = evidence.join("; ");
    match decision {
        Decision::Healthy => info!(broker, "healthy"),
        Decision::Suspect { .. } => info!(broker, evidence, "{decision}"),
        _ if decision.pages() => error!(broker, evidence, "{decision}"),
        _ => warn!(broker, evidence, "{decision}"),
    }
}

fn ended(event: &Event, outcome: &Outcome) {
    let (broker, epoch) = (event.broker.map(|b| b.0), event.epoch.map(|e| e.0));
    match outcome {
        Outcome::Recovered { .. } | Outcome::Withdrawn { .. } => info!(broker, epoch, "takeover {outcome}"),
        Outcome::Abandoned { .. } | Outcome::Stuck { .. } => error!(broker, epoch, "takeover {outcome}"),
    }
}
