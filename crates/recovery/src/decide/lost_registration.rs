//! A broker that serves and has no registration: it was removed from a broker that lives, by a request that
//! came late or twice, or by a person.
//!
//! It never registers anew, is in sync with nothing, and does not even end when it is asked to (measured on
//! 3.9.2 and 4.3.1). The agent of its own host kills it and starts it again. Deliberately absent: any path to
//! that for a broker whose listener does not answer. Kafka opens it last, so whoever starts, reads its logs
//! or waits to be registered is not meant; nor is one that is fenced, because its heartbeats are late, for it
//! is still registered.

use std::time::Duration;

use super::{Case, Decision, EscalateReason, HoldReason, sentences};
use crate::model::{Cause, EpochState, LedgerStanding, LocalProcess, Outcome};
use crate::observe::ProbeSeen;

/// How long a broker must have served from one process, without a registration. Longer than Kafka's default
/// session (9 s): whoever told it has then either lost its own session or heard the newest.
const SERVED_FOR: Duration = Duration::from_secs(10);

/// How long the agent of its own host may take, before all others call a person: longer than it needs for
/// that and for one attempt that fails.
const LEFT_FOR: Duration = Duration::from_secs(60);

impl Case<'_> {
    /// A broker that answers and is not in the broker list.
    pub(super) fn unlisted(&self, probe: &ProbeSeen) -> Decision {
        let suspect = |clue: String| Decision::Suspect { clue };
        let Some(lasting) = self.here.unregistered else {
            return suspect("it answers, but the controller has fenced it".to_owned());
        };
        let Some(standing) = self.standing else {
            let clue = "it answers, but has no registration, and the ledger does not say whose it is";
            return suspect(clue.to_owned());
        };
        if standing.owner != self.topology.here {
            let owner = &standing.owner;
            if lasting >= LEFT_FOR {
                let why = format!("the agent of {owner} has not done it, or there is none");
                return Decision::Escalate { reasons: vec![EscalateReason::Unregistered { why }] };
            }
            return suspect(format!(
                "it answers, but has no registration any more; the agent of {owner} has to start it again"
            ));
        }
        let Some((process, unchanged)) = self.here.local else {
            return suspect(
                "it answers, but has no registration, and its process was not looked at".to_owned(),
            );
        };
        if lasting.min(probe.lasting).min(unchanged) < SERVED_FOR {
            let after = crate::model::human(SERVED_FOR);
            return suspect(format!("it answers, but has no registration; due after {after} of that"));
        }
        match self.not_by_itself(standing, process) {
            Some(why) => Decision::Escalate { reasons: vec![EscalateReason::Unregistered { why }] },
            None => self.started_again(standing, lasting),
        }
    }

    /// Why only a person can start it again.
    fn not_by_itself(&self, standing: &LedgerStanding, process: LocalProcess) -> Option<String> {
        let acked = self.orders().and_then(|orders| orders.acked(self.broker));
        let seen = standing.attempts.last().is_some_and(|last| acked.is_some_and(|acked| acked.covers(last)));
        let stuck = matches!(&standing.state, Some(EpochState::Ended { outcome: Outcome::Stuck { .. }, .. }));
        if stuck && !seen {
            return Some(format!("its last takeover, epoch {}, is stuck", standing.epoch));
        }
        if process != LocalProcess::Running {
            return Some("this agent did not start it, and whoever did would start it again".to_owned());
        }
        let spent = self.restarts() >= self.policy.restart_tries;
        spent.then(|| "this agent may not start it again so soon (policy.restart_tries)".to_owned())
    }

    fn started_again(&self, standing: &LedgerStanding, lasting: Duration) -> Decision {
        let reasons = self.objections_to_kill();
        if !reasons.is_empty() {
            return Decision::Hold { reasons };
        }
        let mut takeover = self.takeover(standing, &standing.owner, Cause::Automatic);
        takeover.unregistered = true;
        // It served all the while; what was lost is its place among the replicas.
        let now = self.seen.now.wall;
        takeover.fault_at = now.checked_sub(lasting).unwrap_or(now);
        takeover.because = sentences(self.broker, self.seen);
        Decision::RestartInPlace(takeover)
    }

    /// Every reason not to kill it now.
    fn objections_to_kill(&self) -> Vec<HoldReason> {
        let mut reasons = self.blindness();
        reasons.extend(self.fenced_here());
        reasons.extend(self.storage_stalled());
        reasons.extend(self.carries());
        reasons.extend(self.paused());
        reasons.extend(self.unfenceable());
        reasons.extend(self.mode());
        reasons
    }
}
