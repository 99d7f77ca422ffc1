//! Who of several standbys goes first.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Case, Decision, EscalateReason, HoldReason, hold};
use crate::model::{Acked, Broker, Candidate, Check, FencedIn, HostName, LedgerStanding};

/// Where a standby stands among those that may take the broker over: the least is the best.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    /// One of its own checks says that its takeover would fail.
    last: bool,
    /// By rack, then by rank.
    order: (usize, u32),
    host: &'a HostName,
}

impl Case<'_> {
    /// A better standby has `step_in_after` to act before the next one does. One whose own checks say that
    /// its takeover would fail comes after all for which they do not.
    pub(super) fn others_first(&self) -> Option<HoldReason> {
        let owns = self.carries_beside();
        if owns >= self.topology.standby.max_brokers {
            let hosts = self.other_candidates();
            let left = !hosts.is_empty();
            return Some(if left {
                HoldReason::LeftToOthers { hosts }
            } else {
                HoldReason::StandbyFull { owns }
            });
        }
        let places = self.places();
        let ahead = places.iter().take_while(|place| *place.host != self.topology.here).count();
        let (first, ahead) = (places.first()?, u32::try_from(ahead).unwrap_or(u32::MAX));
        let step_in = (self.policy.step_in_after * ahead).saturating_sub(self.due_for());
        (!step_in.is_zero()).then(|| HoldReason::OthersFirst {
            host: first.host.clone(),
            step_in,
            failing: self.failing().map(ToString::to_string),
        })
    }

    /// This host and the others that may take the broker over, the best first.
    fn places(&self) -> Vec<Place<'_>> {
        let place =
            |host, last, rank, rack: Option<&'_ String>| Place { last, order: self.order(rank, rack), host };
        let standby = &self.topology.standby;
        let here = place(&self.topology.here, self.failing().is_some(), standby.rank, standby.rack.as_ref());
        let others = self.candidates().into_iter().filter(|(_, candidate)| self.has_room(candidate));
        let others = others.map(|(host, candidate)| {
            let last = candidate.not_ready.contains_key(&self.broker);
            place(host, last, candidate.rank, candidate.rack.as_ref())
        });
        let mut places: Vec<Place<'_>> = others.chain([here]).collect();
        places.sort_unstable();
        places
    }

    /// Why this host and no other standby, as a sentence: in which order they go, and who does not.
    pub(super) fn ranking(&self) -> String {
        let places = self.places();
        let wanted = self.topology.brokers.get(&self.broker).map_or(0, |broker| broker.racks.len());
        let told = places.iter().map(|Place { last, order: (rack, rank), host }| {
            let here = if **host == self.topology.here { ", this host" } else { "" };
            let rack = if *rack < wanted { ", in a rack that the broker wants" } else { "" };
            let last = if *last { ", last because a check fails there" } else { "" };
            format!("{host} (rank {rank}{rack}{here}{last})")
        });
        let mut said = format!("the standbys, best first: {}", told.collect::<Vec<_>>().join(", "));
        let serves = |candidate: &Candidate| candidate.serves.contains(&self.broker);
        let peers = self.seen.peers.iter().filter(|(_, peer)| peer.candidate.as_ref().is_some_and(serves));
        let out = peers.map(|(host, _)| host).filter(|host| places.iter().all(|place| place.host != *host));
        let out: Vec<String> = out.map(ToString::to_string).collect();
        if !out.is_empty() {
            said.push_str(&format!("; fenced, full, suspected or given up: {}", out.join(", ")));
        }
        said
    }

    /// A switchover that came to nothing has left the broker stopped and its address with nobody. Its owner
    /// starts it again, and is given a turn for that before every other host, if the agent there answers.
    pub(super) fn owner_first(&self) -> Option<HoldReason> {
        let standing = self.standing?;
        let ended = standing.attempts.last()?.ended.as_deref()?;
        let answers = self.seen.peers.contains_key(&standing.owner);
        if !answers || ended == "recovered" || !self.released() {
            return None;
        }
        let step_in = self.policy.step_in_after.saturating_sub(self.here.claim_quiet.unwrap_or_default());
        let host = standing.owner.clone();
        (!step_in.is_zero()).then_some(HoldReason::OthersFirst { host, step_in, failing: None })
    }

    /// What a takeover by this host would fail at, by its own last checks. It only makes this host go last:
    /// no takeover ends for a check, and what was not checked lately counts as well.
    fn failing(&self) -> Option<&Check> {
        let broker = self.topology.brokers.get(&self.broker)?;
        self.seen.failed().find(|check| self.seen.concerns(check, broker, &self.topology.here))
    }

    /// The better comes first: by rack, then by rank. Equals go by name.
    fn order(&self, rank: u32, rack: Option<&String>) -> (usize, u32) {
        let racks = self.topology.brokers.get(&self.broker).map(|Broker { racks, .. }| racks.as_slice());
        let racks = racks.unwrap_or_default();
        let place = racks.iter().position(|wanted| Some(wanted) == rack).unwrap_or(racks.len());
        (place, rank)
    }

    /// For how long the takeover has been due.
    fn due_for(&self) -> Duration {
        if self.silent_claim().is_some() {
            return self.here.claim_quiet.unwrap_or_default().saturating_sub(self.policy.claim_silent_after);
        }
        let Some(probe) = self.symptom() else { return Duration::ZERO };
        let mixed = probe.not_answering.unwrap_or_default().saturating_sub(self.patient());
        probe.lasting.saturating_sub(self.limit(&probe, self.refused_limit())).max(mixed)
    }

    /// Whether a peer could take the broker; that it is at it already does not count against it.
    fn has_room(&self, candidate: &Candidate) -> bool {
        let beside = candidate.carries.iter().filter(|id| **id != self.broker).count();
        candidate.unfit.is_none() && beside < candidate.limit
    }

    /// How many other brokers are here already, or on their way.
    fn carries_beside(&self) -> usize {
        self.seen.carried(&self.topology.here).iter().filter(|id| **id != self.broker).count()
    }

    /// The other standbys of this broker that an agent answers for, but those that are suspected themselves
    /// or have given up.
    fn candidates(&self) -> Vec<(&HostName, &Candidate)> {
        let acked = self.orders().and_then(|orders| orders.acked(self.broker));
        let out: BTreeSet<&HostName> = self
            .standing
            .iter()
            .flat_map(|standing| standing.writers.iter().chain(standing.gave_up(acked)))
            .collect();
        let peers = self.seen.peers.iter();
        let peers = peers.filter(|(host, _)| !out.contains(host) && self.fence_of(host).is_none());
        let serving = peers.filter_map(|(host, view)| Some((host, view.candidate.as_ref()?)));
        serving.filter(|(_, candidate)| candidate.serves.contains(&self.broker)).collect()
    }

    /// The fence of `host` for this broker that nobody has lifted, by the ledger.
    fn fence_of(&self, host: &HostName) -> Option<FencedIn> {
        self.standing?.fenced_here(host, self.orders()?)
    }

    /// A host that is fenced for a broker claims nothing for it: it could not start it, and is in the way of
    /// those who can.
    pub(super) fn fenced_here(&self) -> Option<HoldReason> {
        let FencedIn { epoch, .. } = self.fence_of(&self.topology.here)?;
        Some(HoldReason::FencedHere { epoch, left_to: self.other_candidates() })
    }

    /// The other standbys that may yet take the broker over.
    pub(super) fn other_candidates(&self) -> BTreeSet<HostName> {
        let able = self.candidates().into_iter().filter(|(_, candidate)| self.has_room(candidate));
        able.map(|(host, _)| host.clone()).collect()
    }

    /// Takeovers were abandoned since the last recovery. Who has not tried yet may try.
    pub(super) fn given_up(
        &self,
        standing: &LedgerStanding,
        acked: Option<Acked>,
        why: &str,
    ) -> Option<Decision> {
        let gave_up = standing.gave_up(acked);
        if !gave_up.contains(&self.topology.here) {
            return None;
        }
        let hosts = self.other_candidates();
        if !hosts.is_empty() {
            return Some(hold(HoldReason::LeftToOthers { hosts }));
        }
        let hosts = gave_up.into_iter().cloned().collect();
        let first = standing.first_failure(acked).filter(|first| first.epoch != standing.epoch);
        let first = first.and_then(|first| {
            Some(format!("epoch {} on {}: {}", first.epoch, first.by, first.why.as_ref()?))
        });
        let why = why.to_owned();
        let reason = EscalateReason::AbandonedByAll { hosts, epoch: standing.epoch, why, first };
        Some(Decision::Escalate { reasons: vec![reason] })
    }
}
