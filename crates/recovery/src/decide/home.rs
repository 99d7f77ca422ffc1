//! The broker is owned by this host: it is started again here, where that has a chance.

use std::time::Duration;

use jiff::Timestamp;

use super::{Case, Decision, EscalateReason, HoldReason, hold};
use crate::departure::LAST_FETCH;
use crate::model::{Cause, LedgerStanding, LocalProcess, ProbeOutcome, human};
use crate::observe::ProbeSeen;
use crate::policy::{Mode, Policy};

impl Case<'_> {
    /// This host is proven unable to write, and another one has the broker: what is left of it here is only
    /// in the way.
    pub(super) fn stands_down(&self) -> Option<Decision> {
        let epoch = self.standing?.out(&self.topology.here, self.orders()?)?;
        let runs = self.here.local.is_some_and(|(process, _)| process == LocalProcess::Running);
        let left = runs || self.here.address_here == Some(true);
        (left && self.policy.mode != Mode::Observe).then_some(Decision::StandDown { epoch })
    }

    /// A broker that this host owns does not answer.
    pub(super) fn at_home(&self, standing: &LedgerStanding) -> Decision {
        let Some(probe) = &self.here.probe else {
            return Decision::Suspect { clue: "it has not been probed lately".into() };
        };
        // A process that nobody could look at may well run.
        let process = self.here.local.map_or(LocalProcess::Running, |(process, _)| process);
        // And whatever accepts connections is some process, whoever started it.
        if process == LocalProcess::Running || probe.outcome == ProbeOutcome::Silent {
            return self.runs_and_does_not_answer(probe);
        }
        if probe.not_answering.is_none_or(|lasting| lasting < self.policy.restart_after) {
            let clue = format!("it {}, and its process does not run here", probe.outcome.word());
            return Decision::Suspect { clue };
        }
        let reasons = self.objections_at_home();
        if let Some(clue) = self.may_be_booting(probe) {
            // Nothing is due yet that the mode could hold back.
            let waits = reasons.iter().all(HoldReason::is_of_the_mode);
            return if waits { Decision::Suspect { clue } } else { Decision::Hold { reasons } };
        }
        if self.restarts() >= self.policy.restart_tries {
            return self.leave_to_others("ended again after every restart in place");
        }
        if reasons.is_empty() {
            Decision::RestartInPlace(self.takeover(standing, &standing.owner, Cause::Automatic))
        } else {
            Decision::Hold { reasons }
        }
    }

    /// What has not been seen well since this agent began did not end before its eyes: whoever starts Kafka
    /// on this host may be about to, as at every boot. One that was seen to run and to end is not waited for.
    fn may_be_booting(&self, probe: &ProbeSeen) -> Option<String> {
        let looked = probe.not_answering.unwrap_or_default();
        let unseen = probe.last_answer.is_none() && !self.here.crashed && self.silent_claim().is_none();
        (unseen && looked < self.policy.boot_patience).then(|| {
            let (word, patience) = (probe.outcome.word(), human(self.policy.boot_patience));
            format!("it {word}, and this agent has not seen it well yet; it may be booting here, for up to {patience}")
        })
    }

    /// The last sign of life of a broker that somebody starts here: its unit, or a person. One that this agent
    /// has not started, and that was heard after it stopped answering and after its process here was gone, may be
    /// silent for as long as a boot. One that is stopped is heard until its process ends.
    pub(super) fn started_by_others(&self) -> Option<Duration> {
        let silence = self.here.controller_silence.filter(|_| !self.here.crashed)?;
        let gone = self.here.local.filter(|(process, _)| *process == LocalProcess::Absent);
        let gone = gone.map_or(Duration::ZERO, |(_, gone)| gone);
        let failing = self.here.probe.as_ref().and_then(|probe| probe.not_answering).unwrap_or_default();
        let booting = failing.min(gone) > silence + LAST_FETCH;
        let Policy { boot_patience, controller_silent_for, .. } = *self.policy;
        let limit = if booting { boot_patience.max(controller_silent_for) } else { controller_silent_for };
        (silence < limit).then_some(silence)
    }

    /// Its process is alive, or was not seen: it is starting, it hangs, or the way to its listener is broken.
    fn runs_and_does_not_answer(&self, probe: &ProbeSeen) -> Decision {
        let heard = self.here.controller_silence.filter(|s| *s < self.policy.controller_silent_for);
        if let Some(silence) = heard {
            return hold(match probe.outcome {
                ProbeOutcome::Refused => HoldReason::Starting { silence },
                _ => HoldReason::OutOfReach { silence },
            });
        }
        match self.not_yet(probe, self.worth(self.policy.process_down_after)) {
            Some(clue) => Decision::Suspect { clue },
            // It may hold the log dirs: it is not for us to kill it. Whoever takes over fences this host.
            None => {
                self.leave_to_others(&format!("{}, though its process has not ended", probe.outcome.word()))
            }
        }
    }

    fn leave_to_others(&self, symptom: &str) -> Decision {
        let hosts = self.other_candidates();
        if hosts.is_empty() {
            let reason = EscalateReason::DownHere { symptom: symptom.to_owned() };
            return Decision::Escalate { reasons: vec![reason] };
        }
        hold(HoldReason::LeftToOthers { hosts })
    }

    /// How long a host that refuses connections is left to its own agent or unit: no longer, once that has
    /// tried as often as it may.
    pub(super) fn refused_limit(&self) -> Duration {
        let tried = self.restarts();
        let spent = tried > 0 && tried >= self.policy.restart_tries;
        if spent { self.policy.restart_after } else { self.worth(self.policy.process_down_after) }
    }

    /// How often the owner has tried to start the broker again lately. What others tried in between does not
    /// give it new tries.
    pub(super) fn restarts(&self) -> usize {
        let Some(standing) = self.standing else { return 0 };
        let window = self.policy.restart_window;
        let since = self.seen.now.wall.checked_sub(window).unwrap_or(Timestamp::MIN);
        let acked = self.orders().and_then(|orders| orders.acked(self.broker));
        let counts =
            standing.attempts.iter().filter(|attempt| attempt.in_place && attempt.by == standing.owner);
        let recent = counts.filter(|a| {
            a.at > since && a.cause == Cause::Automatic && !acked.is_some_and(|acked| acked.covers(a))
        });
        recent.count()
    }
}
