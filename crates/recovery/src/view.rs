//! What this agent tells its peers: one observation, as others need it. Pure.

use std::collections::BTreeMap;

use crate::model::{BrokerId, Candidate, LocalProcess, PeerSaw, PeerView, Topology};
use crate::observe::{Observation, Seen};
use crate::policy::Mode;

/// The view from this host. What is stale is left out, so that nobody takes it for seen.
#[must_use]
pub fn view(topology: &Topology, mode: Mode, seen: &Observation) -> PeerView {
    let stalls = |seen: &Seen| seen.storage.as_ref().is_some_and(|storage| storage.here == Some(false));
    let brokers: BTreeMap<BrokerId, PeerSaw> = seen
        .brokers
        .iter()
        .filter_map(|(id, broker)| {
            let probe = broker.probe.as_ref()?;
            let answered = probe.last_answer.map(|at| seen.now.mono.since(at));
            let (outcome, lasting, stopped) = (probe.outcome.clone(), probe.lasting, broker.left_first);
            Some((*id, PeerSaw { outcome, lasting, answered, stopped, well_in: broker.well_in }))
        })
        .collect();
    let local: BTreeMap<BrokerId, LocalProcess> =
        seen.brokers.iter().filter_map(|(id, seen)| Some((*id, seen.local?.0))).collect();
    PeerView {
        host: topology.here.clone(),
        brokers,
        stalled: seen.brokers.iter().filter(|(_, seen)| stalls(seen)).map(|(id, _)| *id).collect(),
        local,
        candidate: candidate(topology, mode, seen),
        // Of the host, and not of what was seen: whoever serves the view adds it.
        nfs_client: None,
    }
}

/// How this host stands as a standby; `None` if it guards nothing.
#[must_use]
pub fn candidate(topology: &Topology, mode: Mode, seen: &Observation) -> Option<Candidate> {
    if topology.brokers.is_empty() {
        return None;
    }
    Some(Candidate {
        rank: topology.standby.rank,
        rack: topology.standby.rack.clone(),
        serves: topology.brokers.keys().copied().collect(),
        carries: seen.carried(&topology.here),
        limit: topology.standby.max_brokers,
        unfit: unfit(mode, seen).map(str::to_owned),
        not_ready: not_ready(topology, seen),
    })
}

/// The brokers that this host should take over last, with the first check that failed.
fn not_ready(topology: &Topology, seen: &Observation) -> BTreeMap<BrokerId, String> {
    let mut found = BTreeMap::new();
    for check in seen.failed() {
        for broker in topology.brokers.values().filter(|b| seen.concerns(check, b, &topology.here)) {
            found.entry(broker.id).or_insert_with(|| check.to_string());
        }
    }
    found
}

/// Why this host could take nothing over now, whatever the broker. Others need not wait for it then.
fn unfit(mode: Mode, seen: &Observation) -> Option<&'static str> {
    if mode == Mode::Observe {
        Some("it only observes (mode = \"observe\")")
    } else if seen.ledger.is_none() {
        Some("the ledger has not been read lately")
    } else if !seen.metadata_fresh {
        Some("no surviving broker gave its broker list lately")
    } else {
        None
    }
}
