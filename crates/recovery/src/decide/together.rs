//! What failed together: the brake that is for racks, networks and storage, and not for hosts.
//!
//! Two brokers failed together if both were down at some moment and went within the window of each other; and
//! so did whoever failed together with one of them. That is about when each of them went, however long ago: a
//! group stays one for as long as its members are down. What a person has seen to before the one or the other
//! went is no failure, and neither is a broker that only this host cannot reach, unless it was away with the
//! others before: then it came back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Case, Decision, HoldReason};
use crate::departure::LAST_FETCH;
use crate::model::{BrokerId, HostName, Moment, Topology, human};
use crate::observe::{Observation, Outage};
use crate::policy::Policy;

/// A broker that is down, and what counts with it when several failing together are a mass failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The broker.
    pub broker: BrokerId,
    /// The host that it went with.
    pub host: Option<HostName>,
    /// This agent's first look that it did not answer.
    pub since: Timestamp,
    /// The brokers that failed together with it and are down, itself among them.
    pub together: BTreeSet<BrokerId>,
    /// How many hosts that are.
    pub hosts: usize,
    /// More hosts than this are a mass failure.
    pub limit: usize,
    /// Why it does not count with brokers that fail later.
    pub accounted: Option<Accounted>,
}

/// Why a broker that is down is no failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accounted {
    /// It was stopped on purpose.
    Stopped,
    /// A person paused its takeovers.
    Paused,
    /// Its last takeover failed and waits for a person.
    NeedsPerson,
}

impl fmt::Display for Accounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped => "stopped on purpose",
            Self::Paused => "paused",
            Self::NeedsPerson => "waiting for a person",
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { broker, host, since, together, hosts, limit, accounted } = self;
        let host = host.as_ref().map_or_else(String::new, |host| format!(" on {host}"));
        write!(f, "broker {broker}{host} since {since:.0}")?;
        let others: Vec<String> =
            together.iter().filter(|id| *id != broker).map(ToString::to_string).collect();
        match others.is_empty() {
            true => write!(f, ", failed alone")?,
            false => write!(f, ", failed together with {}: {hosts} hosts, limit {limit}", others.join(", "))?,
        }
        accounted.map_or(Ok(()), |why| write!(f, "; {why}: does not count with brokers that fail later"))
    }
}

/// The brokers that failed together with one, itself among them.
struct Group {
    down: BTreeSet<BrokerId>,
    /// Those that came back by themselves, and when.
    back: BTreeMap<BrokerId, Moment>,
}

/// Every broker that is down, and who counts with it.
#[must_use]
pub fn failures(seen: &Observation, topology: &Topology, policy: &Policy) -> Vec<Failure> {
    let failure = |broker: BrokerId| {
        let here = seen.brokers.get(&broker)?;
        let case = Case { broker, here, standing: seen.standing(broker), seen, topology, policy };
        let together = case.together().down;
        Some(Failure {
            broker,
            host: case.owner(broker).cloned(),
            since: seen.now.wall_at(case.outage().from),
            hosts: case.hosts(together.iter().copied()),
            together,
            limit: case.limit_down(),
            accounted: case.accounted().map(|(why, _)| why),
        })
    };
    seen.down().filter_map(failure).collect()
}

impl Case<'_> {
    /// More hosts failed together than may.
    pub(super) fn mass_failure(&self) -> Option<HoldReason> {
        let brokers = self.together().down;
        let (down, limit) = (self.hosts(brokers.iter().copied()), self.limit_down());
        let of = self.hosts(self.seen.brokers.keys().copied());
        (down > limit).then_some(HoldReason::MassFailure { down, of, limit, brokers })
    }

    /// More hosts have failed together than may, if a broker that only this host cannot reach goes as well. The
    /// controller is asked about that one until it has outlived this one, or is heard no more.
    pub(super) fn others_may_follow(&self) -> Option<String> {
        let lives = |id: &BrokerId| self.other(*id).is_some_and(|other| other.is_out_of_reach());
        let (living, down): (Vec<_>, Vec<_>) = self.together().down.into_iter().partition(lives);
        let alone = self.hosts(down.into_iter()) <= self.limit_down();
        let waits = alone && self.mass_failure().is_some() && self.second_witness().is_none();
        waits.then(|| {
            let living: Vec<String> = living.iter().map(|id| format!("broker {id}")).collect();
            let living = living.join(", ");
            format!("{living}, which only this host cannot reach, lived a moment ago, and may go with it")
        })
    }

    /// More hosts failed together than may, and they come back one by one, as after a loss of power: whoever
    /// is late has the time of a boot after the last one.
    pub(super) fn may_come_back(&self) -> Option<String> {
        let Group { down, back } = self.together();
        let last = back.values().max()?;
        let of_mass = self.hosts(down.iter().chain(back.keys()).copied()) > self.limit_down();
        let (since, patience) = (self.seen.now.mono.since(*last), self.policy.boot_patience);
        let waits = of_mass && self.mass_failure().is_none() && since < patience;
        waits.then(|| {
            let (since, patience) = (human(since), human(patience));
            format!("what failed with it came back, the last one {since} ago; it may be booting, for up to {patience}")
        })
    }

    /// How many of the other brokers should answer: all, but for those that had gone before it, were taken
    /// out of service, or are heard by the controller and have outlived it. Those are left out only while the
    /// active controller answers, which shows by itself that this host is not the one that is cut off.
    pub(super) fn others_expected(&self) -> usize {
        let (_, others) = self.seen.others_answering(self.broker);
        if !self.seen.quorum_fresh {
            return others;
        }
        let together = self.together().down;
        others - self.seen.down().filter(|id| *id != self.broker && !together.contains(id)).count()
    }

    fn limit_down(&self) -> usize {
        let of = self.hosts(self.seen.brokers.keys().copied());
        let share = of * usize::from(self.policy.max_percent_down) / 100;
        // One host alone is no mass, however few there are.
        self.policy.max_brokers_down.min(share.max(1))
    }

    /// Brokers of one host go together. Where the owner is not known, each broker counts as a host.
    fn hosts(&self, brokers: impl Iterator<Item = BrokerId>) -> usize {
        let name = |b: BrokerId| self.owner(b).map_or_else(|| format!("broker {b}"), |host| host.0.clone());
        brokers.map(name).collect::<BTreeSet<String>>().len()
    }

    fn together(&self) -> Group {
        let mut apart: BTreeMap<BrokerId, Outage> = self.others_out().collect();
        let mut group = BTreeMap::from([(self.broker, self.outage())]);
        loop {
            let linked = |out: &Outage| group.values().any(|other| self.linked(out, other));
            let more: Vec<_> = apart.extract_if(.., |_, out| linked(out)).collect();
            if more.is_empty() {
                break;
            }
            group.extend(more);
        }
        let back = group.iter().filter_map(|(id, out)| Some((*id, out.until?))).collect();
        let down = group.into_iter().filter(|(_, out)| out.until.is_none());
        Group { down: down.map(|(id, _)| id).collect(), back }
    }

    /// Whether two were down at the same time, and may have gone within the window of each other.
    fn linked(&self, a: &Outage, b: &Outage) -> bool {
        let lasted = |out: &Outage, other: &Outage| out.until.is_none_or(|until| until >= other.from);
        let ((a_from, a_to), (b_from, b_to)) = (a.went(), b.went());
        let apart = a_from.since(b_to).max(b_from.since(a_to));
        lasted(a, b) && lasted(b, a) && apart <= self.policy.mass_failure_window
    }

    /// The outages of all other brokers that count with this one's.
    fn others_out(&self) -> impl Iterator<Item = (BrokerId, Outage)> {
        let ((gone, _), accounted) = (self.outage().went(), self.accounted());
        let others = self.seen.brokers.keys().filter(|id| **id != self.broker);
        others.filter_map(move |broker| {
            let (broker, other) = (*broker, self.other(*broker)?);
            let here = other.here;
            if here.answers() {
                return here.outage.filter(|out| !other.taken_over_since(*out)).map(|out| (broker, out));
            }
            here.probe.as_ref()?;
            if self.is_out_of_reach() {
                return None;
            }
            if other.outlives(self) {
                // It lives, and may have been away with this one: then it came back.
                let away = here.outage.and_then(|out| out.away(self.policy.host_down_after));
                return away.map(|out| (broker, out));
            }
            let out = other.outage();
            // Known to a person before the later one of the two went.
            let known = self.seen.now.wall_at(gone.max(out.went().0));
            let mut either = accounted.into_iter().chain(other.accounted());
            either.all(|(_, since)| since > known).then_some((broker, out))
        })
    }

    fn other(&self, broker: BrokerId) -> Option<Self> {
        let here = self.seen.brokers.get(&broker)?;
        Some(Case { broker, here, standing: self.seen.standing(broker), ..*self })
    }

    fn is_out_of_reach(&self) -> bool {
        self.here.out_of_reach(self.policy.controller_silent_for)
    }

    /// Whether this broker, which only this host cannot reach, has outlived another one: the controller heard
    /// it for so long afterwards that one within reach would have been seen to go. The other one's end is our
    /// first look that failed, or the controller's last word of it, whichever is later.
    fn outlives(&self, other: &Case<'_>) -> bool {
        let longer = self.policy.host_down_after + LAST_FETCH;
        let heard = self.outage().heard.is_some_and(|heard| heard.since(other.outage().from) >= longer);
        let silence = |case: &Case<'_>| case.here.controller_silence.unwrap_or_default();
        self.is_out_of_reach() && heard && silence(other).saturating_sub(silence(self)) >= longer
    }

    /// The present outage of a broker that is down. One of which no begin is known has just begun.
    fn outage(&self) -> Outage {
        let now = self.seen.now.mono;
        let present = self.here.outage.filter(|out| out.until.is_none());
        present.unwrap_or(Outage { from: now, to: now, heard: None, unheard: None, until: None })
    }

    /// Why this broker, which is down, is no failure, and since when a person has known.
    fn accounted(&self) -> Option<(Accounted, Timestamp)> {
        if self.stopped().is_some() {
            return Some((Accounted::Stopped, Timestamp::MIN));
        }
        let paused = || self.orders()?.pause(self.broker, self.seen.now.wall);
        if let Some(order) = paused() {
            return Some((Accounted::Paused, order.at));
        }
        let waits = matches!(self.failed_before(), Some(Decision::Escalate { .. }));
        let ended = self.standing?.attempts.last()?.ended_at.filter(|_| waits)?;
        Some((Accounted::NeedsPerson, ended))
    }

    /// Whether this broker, which answers, was brought back by another host since it went.
    fn taken_over_since(&self, out: Outage) -> bool {
        let from = self.seen.now.wall_at(out.from);
        let attempts = self.standing.iter().flat_map(|standing| &standing.attempts);
        let mut since = attempts.filter(|attempt| attempt.at >= from && !attempt.in_place);
        since.any(|attempt| attempt.ended.as_deref().is_none_or(|ended| ended == "recovered"))
    }
}
