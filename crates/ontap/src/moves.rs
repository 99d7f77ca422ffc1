//! Where at ONTAP an SVM is served from. After a takeover of a node, and after the move of an interface or an
//! aggregate, clients of NFSv4 get no new locks there until the grace period is over; an interface that is
//! down keeps its locks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ontap_client::{Client, Interface, InterfaceQuery, LinkState, NodeState, Visibility};
use tokio::time::Instant;

use recovery::model::{Grace, human};

/// ONTAP's default, where it does not say (it does from 9.13 on): `v4_grace_seconds`, vendor's REST
/// reference.
const GRACE: Duration = Duration::from_secs(45);

/// Between two looks of `[ontap_clients]`: something may have moved so long after the look before.
pub(crate) const LOOKS_APART: Duration = Duration::from_secs(10);

/// What a LIF serves that clients of NFS come by.
const NFS: &str = "data_nfs";

/// Where each interface, aggregate and node is by which volumes are served, and what of it is not as usual.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// `interface lif1` → `node-01`.
    at: BTreeMap<String, String>,
    /// `interface lif1 is on node-02 and belongs to node-01`.
    moved: Vec<String>,
    /// `interface lif1 is down, and keeps the locks of its clients until it is up`.
    down: Vec<String>,
}

/// Something that was seen to move.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// `went from node-02 to node-01`.
    how: String,
    /// The look at which it had not moved yet.
    after: Instant,
}

/// What `[ontap_clients]` has seen to move, by ONTAP's address and SVM: a takeover in this process does not
/// see by itself what has moved back to where it belongs, as after a giveback.
static SEEN: Mutex<BTreeMap<(String, String), BTreeMap<String, Seen>>> = Mutex::new(BTreeMap::new());

fn seen() -> MutexGuard<'static, BTreeMap<(String, String), BTreeMap<String, Seen>>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what has moved between two looks, the first of which was at `after`, for takeovers.
pub(crate) fn keep((url, svm): (&str, &str), before: &Places, now: &Places, after: Instant) {
    let moved = now.at.iter().filter_map(|(what, is)| {
        let was = before.at.get(what).filter(|was| *was != is)?;
        Some((what.clone(), Seen { how: format!("went from {was} to {is}"), after }))
    });
    seen().entry((url.to_owned(), svm.to_owned())).or_default().extend(moved);
}

/// Reads them, as far as they serve these volumes. What the account may not see is left out.
pub(crate) async fn places(client: &Client, svm: &str, volumes: &[&str]) -> ontap_client::Result<Places> {
    let which = InterfaceQuery { svm: Some(svm), service: None };
    let (lifs, nodes, aggregates, lie_on) = tokio::try_join!(
        client.interfaces(&which),
        client.nodes(),
        client.aggregates(),
        client.aggregates_of(svm, volumes)
    )?;
    let (mut places, mut serving) = (Places::default(), BTreeSet::new());
    for lif in lifs.iter().filter(|lif| serves_nfs(lif)) {
        places.interface(lif);
        serving.extend(lif.location.node.name.clone());
        serving.extend(lif.location.home_node.name.clone());
    }
    if let Visibility::Visible(aggregates) = aggregates {
        for aggregate in aggregates.into_iter().filter(|aggregate| lie_on.contains(&aggregate.name)) {
            let (is, home) = (aggregate.node.name, aggregate.home_node.name);
            serving.extend(is.iter().chain(&home).cloned());
            let is = is.unwrap_or_default();
            let away = home.filter(|home| *home != is);
            let away = away.map(|home| format!("is on {is} and belongs to {home}"));
            places.put(format!("aggregate {}", aggregate.name), &is, away);
        }
    }
    if let Visibility::Visible(nodes) = nodes {
        for node in nodes.into_iter().filter(|node| serving.contains(&node.name)) {
            let state = node.state.map(|state| state.to_string()).unwrap_or_default();
            let usual = [NodeState::Up.to_string(), String::new()].contains(&state);
            places.put(format!("node {}", node.name), &state, (!usual).then(|| format!("is {state}")));
        }
    }
    Ok(places)
}

/// Whether clients of NFS come by it, as far as ONTAP says. One that was switched off is meant to be so.
fn serves_nfs(lif: &Interface) -> bool {
    let nfs = lif.services.is_empty() || lif.services.iter().any(|service| service == NFS);
    nfs && lif.enabled != Some(false)
}

/// How long clients may reclaim their locks before others get new ones.
pub(crate) async fn grace(client: &Client, svm: &str) -> Duration {
    let service = client.nfs_service(svm).await.ok().flatten();
    let told = service.and_then(|service| service.protocol.v4_grace_secs);
    told.map_or(GRACE, |seconds| Duration::from_secs(seconds.into()))
}

impl Places {
    fn interface(&mut self, lif: &Interface) {
        let is = lif.location.node.name.clone().unwrap_or_default();
        let home = lif.location.home_node.name.clone().unwrap_or_default();
        let what = format!("interface {}", lif.name);
        let down = lif.state == Some(LinkState::Down);
        if down {
            self.down.push(format!("{what} is down, and keeps the locks of its clients until it is up"));
        }
        let away = !down && lif.location.is_home == Some(false);
        self.put(what, &is, away.then(|| format!("is on {is} and belongs to {home}")));
    }

    fn put(&mut self, what: String, at: &str, moved: Option<String>) {
        self.moved.extend(moved.map(|moved| format!("{what} {moved}")));
        self.at.insert(what, at.to_owned());
    }

    /// What was seen to move within a grace period, of what serves these volumes and looks as usual now.
    fn back_since(&self, place: &(String, String), grace: Duration) -> Option<String> {
        if !self.moved.is_empty() || !self.down.is_empty() {
            return None;
        }
        let seen = seen();
        let ours = seen.get(place)?.iter().filter(|(what, _)| self.at.contains_key(*what));
        let lately = ours.filter(|(_, seen)| seen.after.elapsed() < grace + LOOKS_APART);
        let words = |(what, Seen { how, after }): (&String, &Seen)| {
            format!("{what} {how} ({} ago at most)", human(after.elapsed()))
        };
        let all: Vec<String> = lately.map(words).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// Whether anything is elsewhere, or in another state, than `before`. What is seen for the first time has
    /// not moved.
    pub(crate) fn moved_since(&self, before: &Self) -> bool {
        self.at.iter().any(|(what, at)| before.at.get(what).is_some_and(|was| was != at))
    }

    /// What is not as usual, and what that may mean for locks. `None`: everything is where it belongs. When
    /// something moved ONTAP does not tell; what has moved back by now is known where `[ontap_clients]` saw it.
    pub(crate) fn grace(&self, (url, svm): (&str, &str), at_most: Duration) -> Option<Grace> {
        if let Some(back) = self.back_since(&(url.to_owned(), svm.to_owned()), at_most) {
            return Some(Grace { why: format!("ONTAP showed that {back}"), at_most: Some(at_most) });
        }
        let down = (!self.down.is_empty()).then(|| self.down.join(", "));
        let moved = (!self.moved.is_empty())
            .then(|| format!("{} (since when it does not tell)", self.moved.join(", ")));
        let why =
            [&down, &moved].into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join("; and ");
        let at_most = moved.is_some().then_some(at_most);
        (!why.is_empty()).then(|| Grace { why: format!("ONTAP shows that {why}"), at_most })
    }
}
