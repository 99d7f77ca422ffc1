//! Every reason not to act.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::{Budget, Case, HoldReason};
use crate::model::{
    Attempt, BrokerId, CONFIRM_ADDRESS, Cause, Distrust, Epoch, EpochState, HostName, Instruction,
    LedgerStanding, LocalProcess, Order, Outcome, PeerView, Place, ProbeOutcome, Unread,
};
use crate::observe::Seen;
use crate::policy::Mode;

impl Case<'_> {
    /// Every reason not to take the broker over. Empty means: act. Whose turn it is matters no more once this
    /// host has claimed it.
    pub(super) fn objections(&self, claimed: bool) -> Vec<HoldReason> {
        let mut reasons = self.doubts();
        reasons.extend(self.fenced_here());
        reasons.extend(self.stopped());
        reasons.extend(self.went_unseen(claimed));
        reasons.extend(self.paused());
        reasons.extend(self.budget_spent());
        reasons.extend(self.unfenceable());
        reasons.extend(self.astray());
        if !claimed {
            reasons.extend(self.owner_first().or_else(|| self.others_first()));
        }
        reasons.extend(self.ledger_trouble());
        reasons.extend(self.mode());
        reasons
    }

    /// Every reason not to start a broker of this host again: only what concerns the host itself, unless a
    /// claimant has to be fenced for it.
    pub(super) fn objections_at_home(&self) -> Vec<HoldReason> {
        let mut reasons: Vec<HoldReason> =
            self.fenced_here().into_iter().chain(self.storage_stalled()).collect();
        let fences = self.standing.is_some_and(|s| s.writers.iter().any(|host| *host != self.topology.here));
        if fences {
            reasons.extend(self.blindness());
            reasons.extend(self.carries());
        }
        // Whoever starts it here already: it registers before it opens its listener.
        reasons.extend(self.started_by_others().map(|silence| HoldReason::Starting { silence }));
        reasons.extend(self.stopped());
        // Whether it was stopped on purpose is seen in the list alone, unless it ended by itself.
        let ended = self.here.local.is_some_and(|(process, _)| process == LocalProcess::Exited);
        if !self.seen.metadata_fresh && !ended && !fences {
            reasons.push(HoldReason::MetadataBlind);
        }
        reasons.extend(self.paused());
        reasons.extend(self.unfenceable());
        reasons.extend(self.astray());
        reasons.extend(self.ledger_trouble());
        reasons.extend(self.mode());
        reasons
    }

    /// What makes it doubtful that this one broker's host is dead, and dead alone. A person hears of it too.
    pub(super) fn doubts(&self) -> Vec<HoldReason> {
        let mut reasons = self.blindness();
        reasons.extend(self.second_witness());
        reasons.extend(self.peers());
        reasons.extend(self.mass_failure());
        reasons.extend(self.storage_stalled());
        reasons.extend(self.carries());
        reasons
    }

    /// A blind agent does nothing.
    pub(super) fn blindness(&self) -> Vec<HoldReason> {
        let mut reasons = Vec::new();
        let (answering, others) = self.seen.others_answering(self.broker);
        if !self.sighted() {
            reasons.push(HoldReason::Isolated { answering, others });
        }
        if !self.seen.metadata_fresh && others > 0 {
            reasons.push(HoldReason::MetadataBlind);
        }
        reasons
    }

    /// Whether this agent sees a majority of the other brokers.
    pub(super) fn sighted(&self) -> bool {
        let (answering, others) = self.seen.others_answering(self.broker);
        // With no other broker to look at, only the controllers can say that we are not the one cut off.
        if others == 0 { self.seen.quorum_fresh } else { answering * 2 > self.others_expected() }
    }

    /// For how long a majority of the other brokers has answered, each without a break; `None` without any
    /// other, or without a majority now.
    pub(super) fn sight(&self) -> Option<Duration> {
        let others = self.seen.brokers.iter().filter(|(id, here)| **id != self.broker && here.answers());
        let mut lasting: Vec<Duration> =
            others.filter_map(|(_, here)| Some(here.probe.as_ref()?.lasting)).collect();
        lasting.sort_unstable_by(|a, b| b.cmp(a));
        lasting.get(self.others_expected() / 2).copied()
    }

    /// Our own probe is one witness. The other is the cluster: the broker list, or the controller's ear. Where those say
    /// nothing, it is the platform, if it has every host off that may write: never against a sign of life.
    pub(super) fn second_witness(&self) -> Option<HoldReason> {
        let refused = self.here.probe.as_ref().is_some_and(|probe| probe.outcome == ProbeOutcome::Refused);
        match (self.here.listed, self.here.controller_silence) {
            (_, Some(silence)) if silence < self.policy.controller_silent_for => Some(match refused {
                // Its host answers and the controller hears it: it opens its listener last.
                true => HoldReason::Starting { silence },
                false => HoldReason::OutOfReach { silence },
            }),
            (_, Some(_)) | (Some(false), None) => None,
            _ if self.machines_are_off() => None,
            _ => Some(HoldReason::OneWitness),
        }
    }

    /// The platform has said of every host that may write that its machine is off, since the broker answered last.
    fn machines_are_off(&self) -> bool {
        let silence = self.here.silence();
        let off = |host: &HostName| self.seen.machines.get(host).is_some_and(|seen| seen.off_within(silence));
        self.standing.is_some_and(|standing| !standing.writers.is_empty() && standing.writers.iter().all(off))
    }

    /// What the other agents say: one that gets an answer is enough to hold, and somebody must agree with us.
    fn peers(&self) -> Option<HoldReason> {
        let says = |view: &PeerView| view.brokers.get(&self.broker).map(|saw| saw.outcome.clone());
        let mut answered =
            self.seen.peers.iter().filter(|(_, view)| says(view) == Some(ProbeOutcome::Answered));
        if let Some((host, _)) = answered.next() {
            return Some(HoldReason::PeerSeesIt { host: host.clone() });
        }
        // The agents on hosts that are suspected themselves are not missed; but if one tells, it counts.
        let suspects: BTreeSet<&HostName> = self.standing.iter().flat_map(|s| &s.writers).collect();
        let asked = self.topology.peers.iter().filter(|host| !suspects.contains(host)).count();
        let tells = |host: &HostName| self.seen.peers.get(host).is_some_and(|view| says(view).is_some());
        let agreed = self.topology.peers.iter().any(tells);
        (asked > 0 && !agreed).then_some(HoldReason::LoneObserver { peers: asked })
    }

    pub(super) fn storage_stalled(&self) -> Option<HoldReason> {
        let storage = self.here.storage.as_ref()?;
        // A host that is suspected may have lost its own way to the storage. So may one peer, while we can
        // write.
        let suspects = self.standing.map(|standing| &standing.writers);
        let trusted = |host: &&HostName| suspects.is_none_or(|suspects| !suspects.contains(*host));
        let at: BTreeSet<HostName> = storage.stalled_at.iter().filter(trusted).cloned().collect();
        let here = storage.here == Some(false);
        let stalls = here || (storage.here.is_none() && !at.is_empty()) || at.len() > 1;
        stalls.then_some(HoldReason::StorageStalled { here, at })
    }

    /// Another broker that answers on a host that would be fenced: the owner's, or a silent claimant's.
    /// Whatever the broker list says of it: that list is one broker's word, which may be old, and a broker
    /// that the controller has fenced may be back in a moment.
    pub(super) fn carries(&self) -> Option<HoldReason> {
        let fenced = self.standing?.writers.iter().filter(|host| **host != self.topology.here);
        let others = || self.seen.brokers.keys().filter(|b| **b != self.broker);
        let answers = |b: &BrokerId| self.seen.brokers.get(b).is_some_and(Seen::answers);
        let serving = |host: &HostName| others().find(|b| self.may_run(**b, host) && answers(b)).copied();
        let mut carrying = fenced.filter_map(|host| Some((host, serving(host)?)));
        carrying.next().map(|(host, broker)| HoldReason::HostCarries { host: host.clone(), broker })
    }

    fn may_run(&self, broker: BrokerId, host: &HostName) -> bool {
        let Some(ledger) = &self.seen.ledger else { return self.owner(broker) == Some(host) };
        // Nobody knows where it is.
        if ledger.unread.contains_key(&broker) {
            return true;
        }
        if let Some(standing) = ledger.brokers.get(&broker) {
            // A claimant owns the broker once it means to start it. One that has been silent ever since it
            // claimed does not run what answers.
            return standing.owner == *host || standing.writers.contains(host) && !self.is_silent(broker);
        }
        match ledger.others.get(&broker) {
            Some(hosts) => hosts.contains(host),
            None => self.owner(broker) == Some(host),
        }
    }

    /// Whether the newest claim of a broker has been silent for so long that it may be succeeded.
    fn is_silent(&self, broker: BrokerId) -> bool {
        let quiet = self.seen.brokers.get(&broker).and_then(|seen| seen.claim_quiet);
        quiet.is_some_and(|quiet| quiet >= self.policy.claim_silent_after)
    }

    /// Whether a switchover that may have stopped the broker came to nothing, and nothing has brought it back
    /// since.
    pub(super) fn released(&self) -> bool {
        let attempts = self.standing.iter().flat_map(|standing| standing.attempts.iter().rev());
        let mut since = attempts.take_while(|attempt| attempt.ended.as_deref() != Some("recovered"));
        since.any(|attempt| attempt.cause == Cause::Planned && attempt.ended.as_deref() != Some("withdrawn"))
    }

    /// Somebody saw it stop cleanly. Who succeeds a claimant that has begun, or that was to switch it over, knows
    /// already that the broker is to be taken over.
    pub(super) fn stopped(&self) -> Option<HoldReason> {
        let state = self.standing.and_then(|standing| standing.state.as_ref());
        let begun = |touched: &bool, cause: &Cause| *touched || *cause == Cause::Planned;
        let begun = matches!(state, Some(EpochState::Open { touched, cause, .. }) if begun(touched, cause));
        let stopped_by_us = self.released() || self.removed_since_well() || self.not_reached();
        if begun && self.silent_claim().is_some() || stopped_by_us {
            return None;
        }
        let here = self.here.left_first.then_some(None);
        let seen_by = here.or_else(|| self.here.stop_told.clone().map(Some))?;
        Some(HoldReason::StoppedCleanly { seen_by })
    }

    /// Nobody here saw how it went. Whoever claimed it lately had seen that, and it counts for those who carry
    /// on with his claim: this host after a restart of its agent, or a successor.
    fn went_unseen(&self, claimed: bool) -> Option<HoldReason> {
        let carried_on = claimed && self.attempted_lately() || self.silent_claim().is_some();
        let known = carried_on || self.released() || self.removed_lately();
        (self.here.never_listed && !known).then_some(HoldReason::NeverListed)
    }

    /// The last takeover has stopped Kafka itself, for packets did not come to its new owner, and it was not seen well
    /// since.
    fn not_reached(&self) -> bool {
        let Some(standing) = self.standing else { return false };
        let Some(EpochState::Ended { outcome: Outcome::Abandoned { at, .. }, .. }) = &standing.state else {
            return false;
        };
        at == CONFIRM_ADDRESS && self.here.well_in.is_none_or(|well| well < standing.epoch)
    }

    /// A takeover of ours took it off the broker list, and it was not seen well since: that it is missing
    /// there shows nothing.
    fn removed_since_well(&self) -> bool {
        let Some(removal) = self.standing.and_then(|standing| standing.removed) else { return false };
        self.here.well_in.is_none_or(|well| well < removal.epoch)
    }

    /// The same for an agent that began to watch after it: a person may have brought the broker back
    /// meanwhile, and then stopped it. So only for as long as takeovers are counted, from the request or from
    /// the last `ack`.
    fn removed_lately(&self) -> bool {
        let Some(removal) = self.standing.and_then(|standing| standing.removed) else { return false };
        let acked = self.orders().and_then(|orders| orders.acked(self.broker));
        let since = acked.map_or(removal.at, |acked| acked.at.max(removal.at));
        self.removed_since_well() && self.is_recent(since)
    }

    fn attempted_lately(&self) -> bool {
        let last = self.standing.and_then(|standing| standing.attempts.last());
        last.is_some_and(|attempt| self.is_recent(attempt.at))
    }

    /// Whether takeovers of that time are still counted.
    fn is_recent(&self, at: Timestamp) -> bool {
        let age = Duration::try_from(self.seen.now.wall.duration_since(at)).unwrap_or_default();
        age <= self.policy.budget_window
    }

    pub(super) fn paused(&self) -> Option<HoldReason> {
        let Order { who, host, what, .. } = self.orders()?.pause(self.broker, self.seen.now.wall)?;
        let Instruction::Pause { reason, until, .. } = what else { return None };
        let who = format!("{who} on {host}");
        Some(HoldReason::Paused { who, why: reason.clone(), until: *until })
    }

    /// Automatic takeovers are counted in the ledger, so that no restart forgets them.
    fn budget_spent(&self) -> Option<HoldReason> {
        let window = self.policy.budget_window;
        let since = self.seen.now.wall.checked_sub(window).unwrap_or(Timestamp::MIN);
        let counts = |broker: BrokerId, attempt: &&Attempt| {
            let acked = self.orders().and_then(|orders| orders.acked(broker));
            // The claim that is open is not another one.
            let open = attempt.ended.is_none() && attempt.by == self.topology.here;
            attempt.counts(since, acked) && !open
        };
        let used = |broker: &BrokerId, standing: &LedgerStanding| {
            standing.attempts.iter().filter(|attempt| counts(*broker, attempt)).count()
        };
        let ledger = self.seen.ledger.as_ref()?;
        let own = ledger.brokers.get(&self.broker).map_or(0, |standing| used(&self.broker, standing));
        let all = ledger.brokers.iter().map(|(broker, standing)| used(broker, standing)).sum();
        if own >= self.policy.takeovers_per_broker {
            return Some(HoldReason::BudgetSpent { budget: Budget::Broker, used: own, window });
        }
        let spent = all >= self.policy.takeovers_per_cluster;
        spent.then_some(HoldReason::BudgetSpent { budget: Budget::Cluster, used: all, window })
    }

    /// A possible writer that nothing could be proven of.
    pub(super) fn unfenceable(&self) -> Option<HoldReason> {
        let mut writers = self.standing?.writers.iter().filter(|host| **host != self.topology.here);
        writers
            .find(|host| !self.topology.is_fenceable(host))
            .map(|host| HoldReason::NoFence { host: host.clone() })
    }

    /// A possible writer that is not where its fences act, or that nobody has seen there lately. The machine
    /// that it has left may be off, and prove nothing.
    pub(super) fn astray(&self) -> Option<HoldReason> {
        let others = self.standing?.writers.iter().filter(|host| **host != self.topology.here);
        let mut wandering = others.filter(|host| self.topology.wandering.contains(*host));
        wandering.find_map(|host| {
            let why = match self.seen.places.get(host) {
                Some(Place::AtItsFence { .. }) => return None,
                Some(place) => place.says().to_owned(),
                None => "nobody has looked lately where it is".to_owned(),
            };
            Some(HoldReason::FenceAstray { host: host.clone(), why })
        })
    }

    fn ledger_trouble(&self) -> Option<HoldReason> {
        if self.standing.is_some() {
            return None;
        }
        if let Some((distrust, why)) = &self.seen.distrusted {
            return Some(HoldReason::LedgerDistrusted { distrust: *distrust, why: why.clone() });
        }
        let unread = self.seen.ledger.as_ref().and_then(|ledger| ledger.unread.get(&self.broker));
        Some(match unread.cloned() {
            Some(Unread::Damaged(why)) => HoldReason::LedgerDamaged { why },
            Some(Unread::Newer(why)) => HoldReason::LedgerDistrusted { distrust: Distrust::LedgerNewer, why },
            None => HoldReason::LedgerUnreachable,
        })
    }

    pub(super) fn mode(&self) -> Option<HoldReason> {
        let approved = || {
            let LedgerStanding { epoch, state, .. } = self.standing?;
            let approval = |epoch| self.orders()?.approval(self.broker, epoch, self.seen.now.wall);
            // An approval is for the claim of the next epoch: it holds until that has ended.
            let open = matches!(state, Some(EpochState::Open { .. }));
            approval(*epoch).or_else(|| approval(Epoch(epoch.0.checked_sub(1)?)).filter(|_| open))
        };
        match self.policy.mode {
            Mode::Auto => None,
            Mode::Approve => approved().is_none().then_some(HoldReason::AwaitingApproval),
            Mode::Observe => Some(HoldReason::Observing),
        }
    }
}
