//! How a broker went: whether somebody saw it stop cleanly, and when anybody last saw it well. Pure.
//!
//! A clean stop has to be *seen*. The controller's word of a controlled shutdown stands in its metadata log
//! only, and no call tells it to clients (Kafka 3.9 to 4.3). What can be seen is the order: a broker that
//! stops cleanly leaves the broker list, is heard by the controller until then, and closes its listener after
//! that. One that dies falls silent first, and stays in the list until its session ends. Two looks with a
//! hole between them show no order at all.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::model::{BrokerId, Endpoint, Epoch, HostName, Moment, PeerView, QuorumView};

/// A broker that is still listed this long after it stopped answering, or after the controller last heard it,
/// did not stop cleanly. Shorter than any sensible session, longer than two looks at the list.
const LEAVING: Duration = Duration::from_secs(2);

/// The last look that saw something and the first one that did not are at most this far apart, or there is a
/// hole between them: six looks at the list, and more at the listener.
const LOOKS: Duration = Duration::from_secs(3);

/// From the last answer to the first list without the broker, at most. By Kafka's defaults no session ends so
/// soon after a death: it lasts 9 s from the last heartbeat, and heartbeats are 2 s apart.
const BEFORE_ANY_SESSION_ENDS: Duration = Duration::from_secs(6);

/// The controller holds a fetch back until its log grows, for at most this long, and counts the broker as
/// heard when it answers (`KafkaRaftClient`, `MAX_FETCH_WAIT_MS`), whether that still lives or not. No
/// process that starts meanwhile fetches so soon.
pub(crate) const LAST_FETCH: Duration = Duration::from_millis(500);

/// A broker that was not probed for longer than this says nothing of what this agent sees.
const UNPROBED: Duration = Duration::from_secs(10);

/// When somebody last saw a broker well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LastWell {
    /// When, by this host's clock; never later than it was.
    pub at: Moment,
    /// Who.
    pub by: SeenBy,
}

/// Who saw a broker well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SeenBy {
    /// Our own probe.
    Here,
    /// The probe of the agent on this host.
    Agent(HostName),
    /// The active controller, which the broker fetched from.
    Controller,
}

/// Our own probes of a broker.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Probes {
    pub(crate) last_answer: Option<Moment>,
    pub(crate) failing_since: Option<Moment>,
}

impl Probes {
    /// Whether nothing lies between the last answer and the first failure but the pause between two probes.
    fn without_a_hole(self) -> bool {
        self.last_answer.zip(self.failing_since).is_some_and(|(well, failed)| failed.since(well) <= LOOKS)
    }
}

/// What was seen of each broker's going.
#[derive(Debug, Clone, Default)]
pub(crate) struct Departures {
    brokers: BTreeMap<BrokerId, Departure>,
    /// When most brokers last did not answer us.
    dark: Option<Moment>,
}

#[derive(Debug, Clone, Default)]
struct Departure {
    /// The last broker list that had it.
    listed: Option<Moment>,
    /// The first one since that did not.
    unlisted: Option<Moment>,
    /// When the controller last heard it, as far as that named it.
    heard: Option<Moment>,
    /// The newest answer that another agent had.
    answered: Option<(Moment, HostName)>,
    /// An agent that saw it stop cleanly, and the newest epoch after whose end that agent had seen it well.
    /// Kept if that agent falls silent: its host may be switched off next.
    stopped: Option<(HostName, Option<Epoch>)>,
    /// The newest epoch after whose end it was listed and answered.
    well_in: Option<Epoch>,
}

impl Departures {
    /// Takes in the newest broker list.
    pub(crate) fn list(&mut self, at: Moment, brokers: &BTreeMap<BrokerId, Endpoint>) {
        for id in brokers.keys() {
            let departure = self.brokers.entry(*id).or_default();
            (departure.listed, departure.unlisted) = (Some(at), None);
        }
        for (_, departure) in self.brokers.iter_mut().filter(|(id, _)| !brokers.contains_key(id)) {
            departure.unlisted.get_or_insert(at);
        }
    }

    /// Takes in whom the active controller has heard.
    pub(crate) fn quorum(&mut self, at: Moment, view: &QuorumView) {
        for (id, silence) in &view.silence {
            let departure = self.brokers.entry(*id).or_default();
            departure.heard = departure.heard.max(Some(at - *silence));
        }
    }

    /// Takes in what the agent on `view.host` said; `answers` tells whether a broker answers us. One that
    /// does was not stopped, whatever a view says that is a moment old.
    pub(crate) fn told(&mut self, at: Moment, view: &PeerView, answers: impl Fn(BrokerId) -> bool) {
        for (id, saw) in &view.brokers {
            let departure = self.brokers.entry(*id).or_default();
            let well = saw.answered.map(|ago| (at - ago, view.host.clone()));
            departure.answered = departure.answered.take().max(well);
            if saw.stopped && !answers(*id) {
                departure.stopped = Some((view.host.clone(), saw.well_in));
            } else if departure.stopped.as_ref().is_some_and(|(host, _)| *host == view.host) {
                departure.stopped = None;
            }
        }
    }

    /// The broker answers us, after the end of `epoch` if that has ended.
    pub(crate) fn answered(&mut self, broker: BrokerId, epoch: Option<Epoch>) {
        let Some(departure) = self.brokers.get_mut(&broker) else { return };
        departure.stopped = None;
        if departure.listed.is_some() && departure.unlisted.is_none() {
            departure.well_in = departure.well_in.max(epoch);
        }
    }

    /// A broker did not answer us at `at`. `probes` are the newest of all brokers, each with whether it was
    /// answered: dark it is if no majority of the others was, whichever broker is left out. Whether it is.
    pub(crate) fn failed(&mut self, at: Moment, probes: impl Iterator<Item = (Moment, bool)>) -> bool {
        let probed = probes.filter(|(looked, _)| at.since(*looked) <= UNPROBED);
        let (up, all) = probed.fold((0, 0), |(up, all), (_, answers)| (up + usize::from(answers), all + 1));
        let dark = all > 1 && up * 2 < all;
        if dark {
            self.dark = Some(at);
        }
        dark
    }

    /// Whether it was ever in the list.
    pub(crate) fn was_listed(&self, broker: BrokerId) -> bool {
        self.brokers.get(&broker).is_some_and(|departure| departure.listed.is_some())
    }

    /// Whether these looks saw it stop cleanly, without a hole. `kept` tells whether it had its registration
    /// at a moment.
    pub(crate) fn stopped(&self, id: BrokerId, probes: Probes, kept: impl Fn(Moment) -> bool) -> bool {
        let Some(Departure { listed: Some(listed), unlisted: Some(unlisted), heard, .. }) =
            self.brokers.get(&id)
        else {
            return false;
        };
        let Probes { last_answer: Some(answered), failing_since: Some(failing) } = probes else {
            return false;
        };
        let watched = unlisted.since(*listed) <= LOOKS && probes.without_a_hole();
        let in_time = listed.since(failing) <= LEAVING && unlisted.since(answered) <= BEFORE_ANY_SESSION_ENDS;
        // It was listed while nobody heard it: it had fallen silent before.
        let heard = heard.is_none_or(|heard| listed.since(heard) <= LEAVING);
        watched && in_time && heard && kept(failing)
    }

    /// The agent that saw it stop cleanly, by its own word, after it had been well in `recovered` or later.
    pub(crate) fn stop_told(&self, broker: BrokerId, recovered: Option<Epoch>) -> Option<HostName> {
        let (host, well_in) = self.brokers.get(&broker)?.stopped.as_ref()?;
        (*well_in >= recovered).then(|| host.clone())
    }

    /// The newest epoch after whose end this agent saw it well.
    pub(crate) fn well_in(&self, broker: BrokerId) -> Option<Epoch> {
        self.brokers.get(&broker)?.well_in
    }

    /// The last moment at which anybody saw it well. The controller is asked only where our own probes do not
    /// tell when it went, for there is a hole in them or most brokers did not answer us either: what fetches
    /// may serve nobody.
    pub(crate) fn last_well(&self, id: BrokerId, probes: Probes) -> Option<LastWell> {
        let departure = self.brokers.get(&id);
        let here = probes.last_answer.map(|at| LastWell { at, by: SeenBy::Here });
        let there = departure.and_then(|departure| departure.answered.clone());
        let there = there.map(|(at, host)| LastWell { at, by: SeenBy::Agent(host) });
        let blind = probes
            .failing_since
            .is_some_and(|failing| !probes.without_a_hole() || self.dark.is_some_and(|dark| dark >= failing));
        let heard = departure.and_then(|departure| departure.heard).filter(|_| blind);
        let heard = heard.map(|heard| LastWell { at: heard - LAST_FETCH, by: SeenBy::Controller });
        [heard, there, here].into_iter().flatten().max_by_key(|well| well.at)
    }
}
