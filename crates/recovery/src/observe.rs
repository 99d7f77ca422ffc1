//! All evidence of one moment becomes one immutable [`Observation`]. Pure: never asks anybody.

mod outage;
mod seen;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::departure::{Departures, LAST_FETCH, Probes};
use crate::model::{
    BrokerId, CanaryOutcome, Check, CheckSeen, Checked, Distrust, Endpoint, Epoch, EpochState, Evidence,
    Fact, HostName, LedgerReading, LedgerStanding, LocalProcess, LogTail, MachineState, Moment, Now,
    PartitionView, PeerView, Place, ProbeOutcome, QuorumView, VolumeUse,
};

use outage::{Failed, Failing};

pub use outage::Outage;
pub use seen::{LedgerSeen, MachineSeen, Observation, ProbeSeen, Seen, StorageSeen};

/// A process that was seen to run longer ago than this before it was seen to have ended may have ended at any
/// time between: a few looks at it, of four a second.
const ENDING: Duration = Duration::from_secs(1);

/// Two readings of the ledger, or of a registration, that are further apart than this are not one look at it.
const UNREAD: Duration = Duration::from_secs(3);

/// The newest evidence of every kind, and since when it has said the same.
#[derive(Debug, Clone, Default)]
pub struct Board {
    probes: BTreeMap<BrokerId, ProbeTrack>,
    listed: Option<(Moment, BTreeMap<BrokerId, Endpoint>)>,
    departures: Departures,
    partitions: Option<(Moment, Arc<PartitionView>)>,
    quorum: Option<(Moment, QuorumView)>,
    leader_since: Moment,
    /// The newest look at which the cluster was heard: its controllers, or a broker with its list. A ledger and
    /// a peer may lie on this side of a link that is down.
    heard: Option<Moment>,
    ledger: Option<(Moment, LedgerReading)>,
    /// Why the ledger that was read last is not used.
    distrusted: Option<(Distrust, String)>,
    claims: BTreeMap<BrokerId, ClaimTrack>,
    canaries: BTreeMap<String, CanaryTrack>,
    /// When each broker's storage was last seen to stall from here.
    stalled: BTreeMap<BrokerId, Moment>,
    volumes: BTreeMap<BrokerId, (Moment, VolumeUse)>,
    logs: BTreeMap<BrokerId, LogTail>,
    peers: BTreeMap<HostName, (Moment, PeerView)>,
    local: BTreeMap<BrokerId, LocalTrack>,
    /// Whether each broker's address was on this host.
    addresses: BTreeMap<BrokerId, (Moment, bool)>,
    unregistered: BTreeMap<BrokerId, Absence>,
    /// What each platform said last of each host's machine, and for how long that counts.
    machines: BTreeMap<(HostName, &'static str), (Moment, MachineState, Duration)>,
    /// Where each host that is not bound to one machine was last, and for how long that counts.
    places: BTreeMap<HostName, (Moment, Place, Duration)>,
    /// What each signal remarked of a broker last, and for how long that counts.
    remarks: BTreeMap<(BrokerId, &'static str), (Moment, String, Duration)>,
    /// What each check found last, when it began, and for how long that counts.
    checks: BTreeMap<Check, (Moment, Checked, Duration)>,
    sighted: BTreeMap<&'static str, Moment>,
    blind: BTreeMap<&'static str, String>,
}

#[derive(Debug, Clone)]
struct ProbeTrack {
    at: Moment,
    outcome: ProbeOutcome,
    /// Begin of the present unbroken run of the same outcome.
    since: Moment,
    /// The present unbroken run of anything but an answer.
    failing: Option<Failing>,
    /// The last such run that is over.
    failed: Option<Failed>,
    last_answer: Option<Moment>,
}

/// Since when the newest epoch's journal has not grown.
#[derive(Debug, Clone)]
struct ClaimTrack {
    epoch: Epoch,
    records: u64,
    since: Moment,
    at: Moment,
}

#[derive(Debug, Clone)]
struct CanaryTrack {
    at: Moment,
    brokers: BTreeSet<BrokerId>,
    /// `None` after a definite error: that is this host's trouble, and says nothing about the storage.
    wrote: Option<bool>,
}

/// Since when a broker has had no registration.
#[derive(Debug, Clone, Copy)]
struct Absence {
    at: Moment,
    since: Moment,
}

#[derive(Debug, Clone)]
struct LocalTrack {
    at: Moment,
    process: LocalProcess,
    since: Moment,
    /// When it was last seen to run.
    ran: Option<Moment>,
}

impl Board {
    /// Takes one piece of evidence in. Evidence older than what is known already is dropped.
    pub fn record(&mut self, evidence: Evidence) {
        let Evidence { signal, at, fact } = evidence;
        if !matches!(fact, Fact::Blind { .. }) {
            self.blind.remove(signal);
            self.sighted.insert(signal, at);
        }
        if matches!(fact, Fact::Quorum(_) | Fact::Listed { .. }) {
            self.heard = self.heard.max(Some(at));
        }
        match fact {
            Fact::Probe { broker, outcome } => self.record_probe(at, broker, outcome),
            Fact::Listed { brokers } => {
                if self.listed.as_ref().is_none_or(|(had, _)| *had < at) {
                    self.departures.list(at, &brokers);
                }
                self.unregistered.retain(|id, _| !brokers.contains_key(id));
                newer(&mut self.listed, at, brokers);
            }
            Fact::Registration { broker, registered } => self.record_registration(at, broker, registered),
            Fact::Partitions(view) => newer(&mut self.partitions, at, view),
            Fact::Quorum(view) => self.record_quorum(at, view),
            Fact::Ledger(reading) => self.record_ledger(at, reading),
            Fact::Storage { canary, brokers, outcome } => {
                let wrote = match outcome {
                    CanaryOutcome::Wrote => Some(true),
                    CanaryOutcome::Stalled => Some(false),
                    CanaryOutcome::Failed { .. } => None,
                };
                if wrote == Some(false) {
                    self.stalled.extend(brokers.iter().map(|broker| (*broker, at)));
                }
                self.canaries.insert(canary, CanaryTrack { at, brokers, wrote });
            }
            Fact::Volumes { broker, usage } => drop(self.volumes.insert(broker, (at, usage))),
            Fact::Logs { broker, tail } => drop(self.logs.insert(broker, tail)),
            Fact::Peer(view) => {
                self.record_told(at, &view);
                self.peers.insert(view.host.clone(), (at, view));
            }
            Fact::Daemon(view) => self.record_told(at, &view),
            Fact::Local { broker, process } => {
                let last = self.local.get(&broker);
                let since = last.filter(|track| track.process == process).map_or(at, |track| track.since);
                let runs = (process == LocalProcess::Running).then_some(at);
                let ran = runs.or(last.and_then(|track| track.ran));
                self.local.insert(broker, LocalTrack { at, process, since, ran });
            }
            Fact::Distrusted { distrust, why } => {
                // What was read before was of another ledger, or under a name that is not ours.
                self.ledger = None;
                self.sighted.remove(signal);
                self.blind.insert(signal, why.clone());
                self.distrusted = Some((distrust, why));
            }
            Fact::Machine { host, state, counts_for } => {
                self.machines.insert((host, signal), (at, state, counts_for));
            }
            Fact::Place { host, place, counts_for } => {
                self.places.insert(host, (at, place, counts_for));
            }
            Fact::Remark { broker, says, counts_for } => {
                self.remarks.insert((broker, signal), (at, says, counts_for));
            }
            Fact::Address { broker, here } => drop(self.addresses.insert(broker, (at, here))),
            Fact::Checked { found, counts_for } => {
                self.checks.insert(found.check.clone(), (at, found, counts_for));
            }
            Fact::Blind { why } => {
                self.blind.insert(signal, why);
            }
        }
    }

    fn record_probe(&mut self, at: Moment, broker: BrokerId, outcome: ProbeOutcome) {
        let last = self.probes.get(&broker);
        if last.is_some_and(|track| track.at >= at) {
            return;
        }
        let answered = outcome == ProbeOutcome::Answered;
        let since = last.filter(|t| t.outcome == outcome).map_or(at, |t| t.since);
        let ran = last.and_then(|t| t.failing);
        let failing = (!answered).then(|| ran.unwrap_or_else(|| Failing::begin(at)));
        let over = ran.filter(|_| answered).map(|failing| failing.end(at));
        let failed = over.or_else(|| last.and_then(|t| t.failed));
        let last_answer = if answered { Some(at) } else { last.and_then(|t| t.last_answer) };
        self.probes.insert(broker, ProbeTrack { at, outcome, since, failing, failed, last_answer });
        if answered {
            let standing = self.ledger.as_ref().and_then(|(_, reading)| reading.brokers.get(&broker));
            let settled = standing.filter(|s| !matches!(s.state, Some(EpochState::Open { .. })));
            self.departures.answered(broker, settled.map(|standing| standing.epoch));
        } else {
            let probes = self.probes.values().map(|track| (track.at, track.answers()));
            let dark = self.departures.failed(at, probes);
            let failing = self.probes.get_mut(&broker).and_then(|track| track.failing.as_mut());
            failing.into_iter().for_each(|failing| failing.look(at, dark, self.heard));
        }
    }

    fn record_told(&mut self, at: Moment, view: &PeerView) {
        let answers = |id| self.probes.get(&id).is_some_and(ProbeTrack::answers);
        self.departures.told(at, view, answers);
    }

    fn record_registration(&mut self, at: Moment, broker: BrokerId, registered: bool) {
        if registered {
            self.unregistered.remove(&broker);
            return;
        }
        // Time in which nobody could be asked proves nothing.
        let last = self.unregistered.get(&broker).filter(|absence| at.since(absence.at) <= UNREAD);
        let since = last.map_or(at, |absence| absence.since);
        self.unregistered.insert(broker, Absence { at, since });
    }

    fn record_ledger(&mut self, at: Moment, reading: LedgerReading) {
        if self.ledger.as_ref().is_some_and(|(had, _)| *had >= at) {
            return;
        }
        for (broker, LedgerStanding { epoch, records, .. }) in &reading.brokers {
            // Time in which the ledger could not be read proves nothing about its claimants.
            let same = self.claims.get(broker).filter(|claim| {
                (claim.epoch, claim.records) == (*epoch, *records) && at.since(claim.at) <= UNREAD
            });
            let since = same.map_or(at, |claim| claim.since);
            self.claims.insert(*broker, ClaimTrack { epoch: *epoch, records: *records, since, at });
        }
        self.ledger = Some((at, reading));
        self.distrusted = None;
    }

    /// A peer's view without what it said of brokers before they stopped answering us: that an agent had an
    /// answer then is no news, least of all if its host died with the broker's.
    fn still_so(&self, mut view: PeerView, said: Moment) -> PeerView {
        let failing = |id: &BrokerId| self.probes.get(id).and_then(ProbeTrack::failing_since);
        view.brokers.retain(|id, saw| {
            saw.outcome != ProbeOutcome::Answered || failing(id).is_none_or(|since| said >= since)
        });
        view
    }

    /// The newest epoch in which a broker was recovered, as the ledger says. Whoever last saw the broker well
    /// before that saw it go before that.
    fn recovered_in(&self, broker: BrokerId) -> Option<Epoch> {
        let standing = self.ledger.as_ref().and_then(|(_, reading)| reading.brokers.get(&broker));
        standing.and_then(LedgerStanding::recovered_in)
    }

    /// For how long the active controller had heard nothing of a broker by `at`.
    fn silence(&self, broker: BrokerId, at: Moment, view: &QuorumView) -> Duration {
        view.silence.get(&broker).copied().unwrap_or_else(|| at.since(self.leader_since))
    }

    fn record_quorum(&mut self, at: Moment, view: QuorumView) {
        let same = self.quorum.as_ref().is_some_and(|(_, q)| q.leader_epoch == view.leader_epoch);
        if !same {
            self.leader_since = at;
        }
        self.departures.quorum(at, &view);
        // The controller's own entry is the time of its answer: nobody heard it.
        for (id, silence) in view.silence.iter().filter(|(id, _)| id.0 != view.leader) {
            self.probes.get_mut(id).into_iter().for_each(|track| track.hear(at - *silence));
        }
        newer(&mut self.quorum, at, view);
    }
}

fn newer<T>(slot: &mut Option<(Moment, T)>, at: Moment, value: T) {
    if slot.as_ref().is_none_or(|(had, _)| *had < at) {
        *slot = Some((at, value));
    }
}

/// Makes the observation of `now`. Evidence older than `stale_after` counts as not seen.
#[must_use]
pub fn observe(
    board: &Board,
    configured: &BTreeSet<BrokerId>,
    stale_after: Duration,
    now: Now,
) -> Observation {
    let fresh = |at: Moment| now.mono.since(at) <= stale_after;
    let listed = board.listed.as_ref().filter(|(at, _)| fresh(*at));
    let quorum = board.quorum.as_ref().filter(|(at, _)| fresh(*at));
    // Brokers that nobody lists or probes any more were taken out of the cluster.
    let ever = board.listed.iter().flat_map(|(_, brokers)| brokers.keys());
    let probed = board.probes.iter().filter(|(_, track)| fresh(track.at)).map(|(id, _)| id);
    let all: BTreeSet<BrokerId> = ever.chain(configured).chain(probed).copied().collect();
    let peers: BTreeMap<HostName, PeerView> = board
        .peers
        .iter()
        .filter(|(_, (at, _))| fresh(*at))
        .map(|(host, (at, view))| (host.clone(), board.still_so(view.clone(), *at)))
        .collect();
    let brokers = all.into_iter().map(|id| {
        let probe = board.probes.get(&id).filter(|t| fresh(t.at));
        let probes = probe.map(ProbeTrack::probes).unwrap_or_default();
        let unlisted = listed.is_some_and(|(_, brokers)| !brokers.contains_key(&id));
        let local = board.local.get(&id).filter(|track| fresh(track.at));
        let absence = board.unregistered.get(&id).filter(|absence| fresh(absence.at));
        // One that stops cleanly keeps its registration. It may be removed later, but not before it stopped.
        let kept = |since: Moment| absence.is_none_or(|absence| absence.since >= since);
        let (recovered, well_in) = (board.recovered_in(id), board.departures.well_in(id));
        let told = board.departures.stop_told(id, recovered);
        let seen = Seen {
            crashed: local.is_some_and(|track| crashed(board, id, track)),
            left_first: unlisted && well_in >= recovered && board.departures.stopped(id, probes, kept),
            stop_told: told.filter(|_| unlisted && probes.failing_since.is_some()),
            never_listed: unlisted && probes.failing_since.is_some() && !board.departures.was_listed(id),
            well_in,
            last_well: board.departures.last_well(id, probes),
            probe: probe.map(ProbeTrack::seen),
            listed: listed.map(|(_, brokers)| brokers.contains_key(&id)),
            controller_silence: quorum.map(|(at, view)| board.silence(id, *at, view)),
            claim_quiet: board.claims.get(&id).map(|claim| claim.at.since(claim.since)),
            local: local.map(|track| (track.process, track.at.since(track.since))),
            address_here: board.addresses.get(&id).filter(|(at, _)| fresh(*at)).map(|(_, here)| *here),
            unregistered: absence.map(|absence| absence.at.since(absence.since)),
            storage: storage(board, &peers, id, &fresh),
            outage: probe.and_then(|track| track.outage(board.leader_since)),
            since_stall: board.stalled.get(&id).map(|at| now.mono.since(*at)),
            logs: board.logs.get(&id).copied(),
            remarks: remarks(board, id, now.mono),
            volumes: board.volumes.get(&id).filter(|(at, _)| fresh(*at)).map(|(_, usage)| *usage),
        };
        (id, seen)
    });
    let ledger = board.ledger.as_ref().filter(|(at, _)| fresh(*at));
    let blind =
        board.blind.iter().filter(|(signal, _)| board.sighted.get(*signal).is_none_or(|at| !fresh(*at)));
    Observation {
        now,
        brokers: brokers.collect(),
        peers,
        ledger: ledger.map(|(at, reading)| LedgerSeen {
            at: *at,
            brokers: reading.brokers.clone(),
            unread: reading.unread.clone(),
            others: reading.others.clone(),
            orders: reading.orders.clone(),
        }),
        distrusted: board.distrusted.clone(),
        partitions: board.partitions.as_ref().map(|(_, view)| view.clone()),
        metadata_fresh: listed.is_some(),
        quorum_fresh: quorum.is_some(),
        blind: blind.map(|(signal, why)| (*signal, why.clone())).collect(),
        machines: machines(board, now.mono),
        places: places(board, now.mono),
        checks: checks(board, now.mono),
        working: BTreeSet::new(),
    }
}

/// What was remarked of a broker, as far as it still counts.
fn remarks(board: &Board, broker: BrokerId, now: Moment) -> Vec<String> {
    let all = board.remarks.iter().filter(|((of, _), _)| *of == broker);
    let fresh = all.filter(|(_, (at, _, limit))| now.since(*at) <= *limit);
    fresh.map(|(_, (_, says, _))| says.clone()).collect()
}

/// What the platform said of machines, as far as it still counts. Of several platforms that speak of one machine, one
/// that says that it runs is believed; then one that says that it is off; and of two that agree, the newer.
fn machines(board: &Board, now: Moment) -> BTreeMap<HostName, MachineSeen> {
    let weight = |seen: &MachineSeen| match seen.state {
        MachineState::Runs | MachineState::Ails { .. } => 2,
        MachineState::Off { .. } => 1,
        MachineState::Changes { .. } => 0,
    };
    let mut machines: BTreeMap<HostName, MachineSeen> = BTreeMap::new();
    for ((host, _), (at, state, limit)) in &board.machines {
        let seen = MachineSeen { state: state.clone(), age: now.since(*at) };
        if seen.age > *limit {
            continue;
        }
        let better = |had: &MachineSeen| (weight(&seen), had.age) > (weight(had), seen.age);
        if machines.get(host).is_none_or(better) {
            machines.insert(host.clone(), seen);
        }
    }
    machines
}

/// Where hosts are, as far as that still counts.
fn places(board: &Board, now: Moment) -> BTreeMap<HostName, Place> {
    let fresh = board.places.iter().filter(|(_, (at, _, limit))| now.since(*at) <= *limit);
    fresh.map(|(host, (_, place, _))| (host.clone(), place.clone())).collect()
}

/// What the checks found, as far as it still counts.
fn checks(board: &Board, now: Moment) -> BTreeMap<Check, CheckSeen> {
    let ages = board.checks.iter().map(|(check, (at, found, limit))| (check, now.since(*at), found, *limit));
    let fresh = ages.filter(|(_, age, _, limit)| age <= limit);
    fresh.map(|(check, age, found, _)| (check.clone(), CheckSeen { found: found.clone(), age })).collect()
}

/// Whether a broker's process on this host ended by itself, and was neither stopped nor replaced: see
/// [`Seen::crashed`].
fn crashed(board: &Board, broker: BrokerId, local: &LocalTrack) -> bool {
    let ended = local.since;
    let seen =
        local.process == LocalProcess::Exited && local.ran.is_some_and(|ran| ended.since(ran) <= ENDING);
    let stays =
        board.listed.as_ref().is_some_and(|(at, brokers)| *at >= ended && brokers.contains_key(&broker));
    let silent = board.quorum.as_ref().is_some_and(|(at, view)| {
        *at >= ended && (*at - board.silence(broker, *at, view)).since(ended) <= LAST_FETCH
    });
    seen && stays && silent
}

/// What the canaries on the storage of one broker say.
fn storage(
    board: &Board,
    peers: &BTreeMap<HostName, PeerView>,
    broker: BrokerId,
    fresh: &impl Fn(Moment) -> bool,
) -> Option<StorageSeen> {
    let ours = board.canaries.values().filter(|canary| canary.brokers.contains(&broker) && fresh(canary.at));
    let here = ours.filter_map(|canary| canary.wrote).reduce(|all, wrote| all && wrote);
    let stalled = peers.iter().filter(|(_, view)| view.stalled.contains(&broker));
    let stalled_at: BTreeSet<HostName> = stalled.map(|(host, _)| host.clone()).collect();
    (here.is_some() || !stalled_at.is_empty()).then_some(StorageSeen { here, stalled_at })
}

impl ProbeTrack {
    fn answers(&self) -> bool {
        self.failing.is_none()
    }

    fn failing_since(&self) -> Option<Moment> {
        self.failing.map(|failing| failing.since)
    }

    /// The active controller heard it at `heard`. One that refused or hung meanwhile has failed, whoever hears it.
    fn hear(&mut self, heard: Moment) {
        let unreachable = self.outcome == ProbeOutcome::Unreachable;
        let failing = self.failing.as_mut().filter(|failing| unreachable && failing.since == self.since);
        failing.into_iter().for_each(|failing| failing.hear(heard));
    }

    /// The present outage, or the last one. `met` is when the present active controller was first seen.
    fn outage(&self, met: Moment) -> Option<Outage> {
        let over = || self.failed.and_then(|failed| failed.outage(met));
        self.failing.map(Failing::outage).or_else(over)
    }

    fn probes(&self) -> Probes {
        Probes { last_answer: self.last_answer, failing_since: self.failing_since() }
    }

    /// A run of probes is as long as from its first to its last: time in which nobody looked proves nothing.
    fn seen(&self) -> ProbeSeen {
        ProbeSeen {
            outcome: self.outcome.clone(),
            lasting: self.at.since(self.since),
            not_answering: self.failing_since().map(|since| self.at.since(since)),
            last_answer: self.last_answer,
            failing_since: self.failing_since(),
        }
    }
}
