//! Observation × Policy × History → Decision. Pure: `now` is data, and nobody is asked.
//!
//! Deliberately absent: any path to [`Decision::TakeOver`] on one witness, on stale evidence, or on a
//! timer alone.

mod decision;
mod doubts;
mod escalate;
mod hold;
mod home;
mod lost_registration;
mod standbys;
mod together;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

pub use decision::{Decision, Takeover};
pub use escalate::EscalateReason;
pub use hold::{Budget, HoldReason};
pub use together::{Accounted, Failure, failures};

use crate::departure::SeenBy;
use crate::experience;
use crate::model::{
    BrokerId, Cause, Epoch, EpochState, HostName, LedgerStanding, Machine, Orders, Outcome, Place,
    ProbeOutcome, Succession, Topology, VolumeUse, human,
};
use crate::observe::{MachineSeen, Observation, ProbeSeen, Seen};
use crate::policy::{Mode, Policy};

/// A broker that may come back by itself is given at most this many times what the policy says, however long
/// a takeover of it is expected to take.
const STRETCH: u32 = 3;

/// The step, by its name in the ledger, that waits for a Kafka that runs.
const AWAITED: &str = "await_isr";

/// Decides about `broker`.
#[must_use]
pub fn decide(broker: BrokerId, seen: &Observation, topology: &Topology, policy: &Policy) -> Decision {
    let here = seen.brokers.get(&broker).cloned().unwrap_or_default();
    let case = Case { broker, here: &here, standing: seen.standing(broker), seen, topology, policy };
    case.stands_down()
        .or_else(|| case.unfinished())
        .or_else(|| case.ordered())
        .unwrap_or_else(|| case.by_health())
}

/// Everything that a decision about one broker is made of.
struct Case<'a> {
    broker: BrokerId,
    here: &'a Seen,
    standing: Option<&'a LedgerStanding>,
    seen: &'a Observation,
    topology: &'a Topology,
    policy: &'a Policy,
}

impl Case<'_> {
    /// A takeover that is open in the ledger comes before everything else, unless its claimant fell silent.
    fn unfinished(&self) -> Option<Decision> {
        let LedgerStanding { epoch, state, owner, nonsense, .. } = self.standing?;
        let Some(EpochState::Open { by, touched, cause }) = state else { return None };
        let epoch = *epoch;
        if self.silent_claim().is_some() {
            return None;
        }
        if let Some(why) = nonsense {
            return Some(hold(HoldReason::LedgerDamaged { why: why.clone() }));
        }
        if *by == self.topology.here {
            return Some(self.own_unfinished(epoch, *touched, *cause));
        }
        let released = self
            .orders()
            .is_some_and(|orders| orders.released(self.broker, epoch, &self.topology.here).is_some());
        if *cause == Cause::Planned && *owner == self.topology.here && !released {
            return Some(match self.policy.mode {
                Mode::Observe => hold(HoldReason::Observing),
                _ => Decision::HandOver { epoch, to: by.clone() },
            });
        }
        Some(hold(HoldReason::ClaimedElsewhere { by: by.clone(), epoch }))
    }

    fn own_unfinished(&self, epoch: Epoch, touched: bool, cause: Cause) -> Decision {
        if self.policy.mode == Mode::Observe {
            return hold(HoldReason::Observing);
        }
        if touched || cause != Cause::Automatic {
            return Decision::Resume { epoch };
        }
        // Nothing was touched yet: the claim is worth what the evidence is worth now.
        if self.here.answers() {
            return Decision::Withdraw { epoch };
        }
        if let Some(clue) = self.too_early() {
            return Decision::Suspect { clue };
        }
        let own = self.standing.is_some_and(|standing| standing.owner == self.topology.here);
        let reasons = if own { self.objections_at_home() } else { self.objections(true) };
        // It may never answer this host: a claim that stays open keeps its own home from starting it again.
        if reasons.iter().any(HoldReason::says_that_it_lives) {
            return Decision::Withdraw { epoch };
        }
        if reasons.is_empty() { Decision::Resume { epoch } } else { Decision::Hold { reasons } }
    }

    /// The open epoch of another host whose claimant has written nothing for too long. Its silence proves
    /// nothing: it only lets the next one claim, and fence it. A journal that makes no sense cannot be
    /// carried on by its own claimant either, which then succeeds itself.
    fn silent_claim(&self) -> Option<Succession> {
        let standing = self.standing?;
        let Some(EpochState::Open { by, .. }) = &standing.state else { return None };
        let quiet = self.here.claim_quiet.is_some_and(|quiet| quiet >= self.policy.claim_silent_after);
        let lost = *by != self.topology.here || standing.nonsense.is_some();
        (quiet && lost).then_some(Succession { epoch: standing.epoch, records: standing.records })
    }

    /// A switchover to this host that a person asked for, of a broker that is well.
    fn ordered(&self) -> Option<Decision> {
        let standing = self.standing?;
        let now = self.seen.now.wall;
        let (_, to) = self.orders()?.switchover(self.broker, standing.epoch, now)?;
        let settled = !matches!(standing.state, Some(EpochState::Open { .. }))
            && standing.writers.iter().all(|host| *host == standing.owner);
        let ours = *to == self.topology.here && standing.owner != self.topology.here;
        if !ours || !settled || !self.seen.is_well(self.broker) {
            return None;
        }
        if let Some(reason) = self.fenced_here().or_else(|| self.paused()) {
            return Some(hold(reason));
        }
        match self.policy.mode {
            Mode::Observe => Some(hold(HoldReason::Observing)),
            _ => Some(Decision::SwitchOver(self.takeover(standing, &standing.owner, Cause::Planned))),
        }
    }

    fn by_health(&self) -> Decision {
        let Some(probe) = &self.here.probe else {
            return Decision::Suspect { clue: "it has not been probed lately".into() };
        };
        if probe.outcome == ProbeOutcome::Answered {
            if let Some(decision) = self.runs_and_is_not_back() {
                return decision;
            }
            return match self.here.listed {
                Some(false) => self.unlisted(probe),
                _ => Decision::Healthy,
            };
        }
        if let Some(decision) = self.failed_before() {
            return decision;
        }
        match self.standing {
            Some(standing) if standing.owner == self.topology.here => self.at_home(standing),
            _ => self.elsewhere(),
        }
    }

    /// The broker of another host does not answer.
    fn elsewhere(&self) -> Decision {
        if let Some(clue) = self.too_early() {
            return Decision::Suspect { clue };
        }
        let reasons = self.objections(false);
        match self.standing {
            Some(standing) if reasons.is_empty() => {
                Decision::TakeOver(self.takeover(standing, &standing.owner, Cause::Automatic))
            }
            _ => Decision::Hold { reasons },
        }
    }

    /// How the newest epoch ended, unless a person has acknowledged that.
    fn ended_badly(&self) -> Option<&Outcome> {
        let standing = self.standing?;
        let acked = self.orders().and_then(|orders| orders.acked(self.broker));
        let last = standing.attempts.last()?;
        match &standing.state {
            Some(EpochState::Ended { outcome, .. }) if !acked.is_some_and(|acked| acked.covers(last)) => {
                Some(outcome)
            }
            _ => None,
        }
    }

    /// After a stuck takeover nobody tries again by himself; after an abandoned one, only those who have not
    /// tried.
    fn failed_before(&self) -> Option<Decision> {
        let standing = self.standing?;
        match self.ended_badly()? {
            Outcome::Stuck { at, why } => Some(Self::stuck(standing.epoch, at, why)),
            Outcome::Abandoned { at, why, .. } => {
                let acked = self.orders().and_then(|orders| orders.acked(self.broker));
                self.given_up(standing, acked, &format!("{at}: {why}"))
            }
            _ => None,
        }
    }

    /// Its takeover has waited in vain for it to be back, and left it running: that it answers us does not
    /// make it well. A person looks, and says so.
    fn runs_and_is_not_back(&self) -> Option<Decision> {
        match self.ended_badly()? {
            Outcome::Stuck { at, why } if at == AWAITED => Some(Self::stuck(self.standing?.epoch, at, why)),
            _ => None,
        }
    }

    fn stuck(epoch: Epoch, at: &str, why: &str) -> Decision {
        let reason = EscalateReason::Stuck { epoch, at: at.to_owned(), why: why.to_owned() };
        Decision::Escalate { reasons: vec![reason] }
    }

    /// Whether the symptom has lasted long enough; if not, what we wait for.
    fn too_early(&self) -> Option<String> {
        match self.symptom() {
            Some(probe) => self
                .not_yet(&probe, self.refused_limit())
                .or_else(|| self.may_come_back())
                .or_else(|| self.others_may_follow()),
            None => Some("it has not been probed lately".to_owned()),
        }
    }

    /// The freshest probe, as far as its length counts. A broker whose storage stalled could not answer, and
    /// may have ended and be starting again: once the stall is over it gets its time from then on. That a
    /// host cannot be reached is not explained by that. Time in which most brokers did not answer is none of
    /// this broker's: this host may have been cut off.
    fn symptom(&self) -> Option<ProbeSeen> {
        let probe = self.here.probe.clone()?;
        let since_stall = self.here.since_stall.filter(|_| self.storage_stalled().is_none());
        let explained = matches!(probe.outcome, ProbeOutcome::Silent | ProbeOutcome::Refused);
        let since = [since_stall.filter(|_| explained), self.sight()].into_iter().flatten().min();
        Some(match since {
            Some(since) => ProbeSeen {
                lasting: probe.lasting.min(since),
                not_answering: probe.not_answering.map(|lasting| lasting.min(since)),
                ..probe
            },
            None => probe,
        })
    }

    /// Whether a symptom has lasted long enough; if not, what we wait for.
    fn not_yet(&self, probe: &ProbeSeen, refused_limit: Duration) -> Option<String> {
        let limit = self.limit(probe, refused_limit);
        let due = probe.lasting >= limit || probe.not_answering.is_some_and(|d| d >= self.patient());
        let word = probe.outcome.word();
        (!due).then(|| format!("it {word}; a takeover is due after {} of that", human(limit)))
    }

    /// A broker that fails now this way, now that way, is judged by the most patient limit.
    fn patient(&self) -> Duration {
        let Policy { host_down_after, process_down_after, hung_after, .. } = *self.policy;
        host_down_after.max(self.worth(process_down_after)).max(self.worth(hung_after))
    }

    fn limit(&self, probe: &ProbeSeen, refused_limit: Duration) -> Duration {
        match probe.outcome {
            ProbeOutcome::Answered => Duration::MAX,
            ProbeOutcome::Unreachable => self.policy.host_down_after,
            ProbeOutcome::Refused => refused_limit,
            ProbeOutcome::Silent => self.worth(self.policy.hung_after),
        }
    }

    /// What may pass by itself is waited for at least as long as a takeover would take: then the whole is
    /// never twice what the better choice would have been. The configured limit is stretched so far and no
    /// further than [`STRETCH`] times.
    fn worth(&self, configured: Duration) -> Duration {
        let dirs = self.topology.brokers.get(&self.broker).map_or(1, |broker| broker.log_dirs.len());
        let takeover = experience::takeover(self.broker, dirs, self.seen);
        configured.max(takeover.min(configured * STRETCH))
    }

    fn orders(&self) -> Option<&Orders> {
        Some(self.seen.ledger.as_ref()?.orders.as_ref())
    }

    fn owner(&self, broker: BrokerId) -> Option<&HostName> {
        // Where the ledger says nothing of it, it is most likely at home.
        let home = || self.topology.brokers.get(&broker).map(|broker| &broker.home);
        self.seen.standing(broker).map(|standing| &standing.owner).or_else(home)
    }

    fn takeover(&self, standing: &LedgerStanding, from: &HostName, cause: Cause) -> Takeover {
        let (fault_at, source) = self.fault(standing);
        let mut because = sentences(self.broker, self.seen);
        because.extend((cause != Cause::Planned).then_some(source));
        because.extend((cause != Cause::Planned && *from != self.topology.here).then(|| self.ranking()));
        Takeover {
            broker: self.broker,
            from: from.clone(),
            to: self.topology.here.clone(),
            epoch: standing.epoch,
            cause,
            succeeds: self.silent_claim(),
            writers: standing.writers.clone(),
            machines: self.machines(&standing.writers),
            fault_at,
            because,
            unregistered: false,
        }
    }

    /// Where those hosts were seen that are fenced with the machine that they are on. A doubt about one holds an agent, and
    /// a person may override it.
    fn machines(&self, writers: &BTreeSet<HostName>) -> BTreeMap<HostName, Machine> {
        let seen = |host: &HostName| match self.seen.places.get(host)? {
            Place::AtItsFence { on, .. } | Place::Astray { on, .. } => on.clone(),
            Place::Unseen { .. } => None,
        };
        let roams = writers.iter().filter(|host| self.topology.roams(host));
        roams.filter_map(|host| Some((host.clone(), seen(host)?))).collect()
    }

    /// The last time that anybody saw the broker well, so that time-to-ISR errs on the long side, and who
    /// that was.
    fn fault(&self, standing: &LedgerStanding) -> (Timestamp, String) {
        let now = self.seen.now;
        let ago = |at: Timestamp| human(Duration::try_from(now.wall.duration_since(at)).unwrap_or_default());
        let told = |at: Timestamp, who: String| (at, format!("last seen well: {} ago, {who}", ago(at)));
        let well = self.here.last_well.as_ref().map(|well| (now.wall_at(well.at), &well.by));
        let before = standing.fault_at.filter(|_| !matches!(standing.state, Some(EpochState::Open { .. })));
        match (well, before) {
            (Some((at, SeenBy::Here)), _) => told(at, "by our probe".to_owned()),
            (Some((at, SeenBy::Agent(host))), _) => told(at, format!("by the agent on {host}")),
            // What a start that failed has fetched since is no sign of a broker that was well.
            (_, Some(at)) => told(at, "by the ledger: an earlier takeover did not recover it".to_owned()),
            (Some((at, SeenBy::Controller)), None) => told(at, "by the active controller".to_owned()),
            (None, None) => {
                let failing = self.here.probe.as_ref().and_then(|probe| probe.failing_since);
                let at = now.wall_at(failing.unwrap_or(now.mono));
                (at, format!("last seen well: not known; our first look, {} ago, was too late", ago(at)))
            }
        }
    }
}

fn hold(reason: HoldReason) -> Decision {
    Decision::Hold { reasons: vec![reason] }
}

/// The evidence on a broker, as sentences for people.
#[must_use]
pub fn sentences(broker: BrokerId, seen: &Observation) -> Vec<String> {
    let here = seen.brokers.get(&broker).cloned().unwrap_or_default();
    let mut said = vec![match &here.probe {
        Some(p) => format!("our probe: broker {broker} {} for {}", p.outcome.word(), human(p.lasting)),
        None => format!("our probe: no fresh look at broker {broker}"),
    }];
    said.push(match here.controller_silence {
        Some(silence) => format!("the active controller: heard it {} ago", human(silence)),
        None => "the active controller: could not be asked".to_owned(),
    });
    said.push(match here.listed {
        Some(true) => "the broker list: still has it".to_owned(),
        Some(false) => "the broker list: does not have it".to_owned(),
        None => "the broker list: not read lately".to_owned(),
    });
    said.extend(here.unregistered.map(|lasting| {
        format!("other brokers: the controller has no registration of it, for {}", human(lasting))
    }));
    let (answering, others) = seen.others_answering(broker);
    said.push(format!("{answering} of {others} other brokers answer us"));
    said.extend(here.volumes.and_then(counted));
    said.extend(here.volumes.and_then(|volumes| volumes.grace).map(|left| {
        format!("the storage has moved: it may grant no new lock for {} (no witness)", human(left))
    }));
    let owner = seen.standing(broker).map(|standing| &standing.owner);
    said.extend(
        owner
            .and_then(|owner| seen.machines.get(owner).map(|machine| (owner, machine)))
            .map(|(owner, machine)| platform(owner, machine, here.silence())),
    );
    said.extend(owner.and_then(|owner| seen.places.get(owner)).map(|place| place.says().to_owned()));
    said.extend(here.remarks.iter().map(|remark| format!("{remark} (no witness)")));
    said
}

/// What the platform says of the owner's machine, for people.
fn platform(owner: &HostName, machine: &MachineSeen, silence: Duration) -> String {
    let counts = if machine.off_within(silence) { "a witness" } else { "no witness" };
    format!("the platform: the machine of {owner} {} ({counts})", machine.state)
}

/// What the storage counts, for people. It may tell it late, so it is no witness.
fn counted(volumes: VolumeUse) -> Option<String> {
    let VolumeUse { quiet, unwritten, client_idle, stopped, .. } = volumes;
    let mut said = match (stopped, unwritten, quiet) {
        (true, Some(unwritten), _) => {
            format!(
                "the storage counts: its client stopped writing {} ago, while others write",
                human(unwritten)
            )
        }
        (_, _, Some(quiet)) => {
            format!("the storage counts: last operation in its volumes {} ago", human(quiet))
        }
        _ => return None,
    };
    if let Some(idle) = client_idle {
        said.push_str(&format!("; it calls the client idle for {}", human(idle)));
    }
    Some(said + " (no witness)")
}

/// A takeover that a person asks for: the same evidence, and what speaks against it. Each objection may be
/// overridden; the proof of the fence may not.
#[must_use]
pub fn decide_manual(
    broker: BrokerId,
    standing: &LedgerStanding,
    seen: &Observation,
    topology: &Topology,
    policy: &Policy,
) -> (Takeover, Vec<String>) {
    let here = seen.brokers.get(&broker).cloned().unwrap_or_default();
    let case = Case { broker, here: &here, standing: Some(standing), seen, topology, policy };
    let doubts =
        case.doubts().into_iter().chain(case.fenced_here()).chain(case.paused()).chain(case.unfenceable());
    let doubts = doubts.chain(case.astray());
    let mut against: Vec<String> = doubts.map(|reason| reason.to_string()).collect();
    if here.answers() {
        against.insert(0, format!("broker {broker} answers: its host would be fenced while it works"));
    }
    if let Some(EpochState::Open { by, .. }) = &standing.state
        && *by != topology.here
        && case.silent_claim().is_none()
    {
        against.push(HoldReason::ClaimedElsewhere { by: by.clone(), epoch: standing.epoch }.to_string());
    }
    (case.takeover(standing, &standing.owner, Cause::Manual), against)
}
