//! Whether this account is shown entries of the access caches at all. "No entry" is the answer of a node that
//! remembers nothing, and also that of a command, field or path that shows nothing to this account: it counts
//! only beside an entry that was seen, of the host itself or of another client of the SVM.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::PoisonError;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use ontap_client::{Client, NfsClient};
use tokio::time::Instant;

use super::OntapExport;
use super::cache::{AT_ONCE, ReadBack};
use super::nodes::Nodes;
use super::survey::{Survey, list};

/// How long an entry that was seen speaks for its node: accounts, releases and nodes change.
const SPEAKS_FOR: Duration = Duration::from_secs(60 * 60);

/// A client that did something so lately is remembered: an entry that is not used stays for a day unless set.
const LATELY: Duration = Duration::from_secs(5 * 60);

/// How long the look before the rules are changed, and that at others' entries, may take.
const LIMIT: Duration = Duration::from_secs(3);

/// How many other clients are asked about at most.
const OTHERS: usize = 32;

/// What this process has seen. A takeover fences, then proves; whoever carries on in another process has seen
/// nothing yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Control {
    /// Nodes that showed an entry, of whomever, and when.
    shown: BTreeMap<String, Instant>,
    /// When an entry of the host itself was seen.
    own: Option<Instant>,
    /// By which nodes the host was at work when the rules still let it in.
    at_work: BTreeSet<String>,
}

impl Control {
    fn forget_what_is_old(&mut self) {
        self.shown.retain(|_, at| at.elapsed() < SPEAKS_FOR);
        self.own = self.own.filter(|at| at.elapsed() < SPEAKS_FOR);
    }

    /// Nodes of these that have shown nothing.
    fn silent<'n>(&self, nodes: impl IntoIterator<Item = &'n String>) -> Vec<String> {
        nodes.into_iter().filter(|node| !self.shown.contains_key(*node)).cloned().collect()
    }
}

/// What the entries that were seen are worth for one read-back.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// Nodes that have shown an entry.
    shown: Vec<String>,
    /// Nodes that would have to have shown one, and have not.
    missing: Vec<String>,
    /// Other nodes that have not.
    silent: Vec<String>,
}

impl Seen {
    /// Why "no entry" proves nothing.
    pub(super) fn lacks(&self) -> Option<String> {
        (!self.missing.is_empty()).then(|| {
            format!(
                "{} has shown no access cache entry of this host or of any other client: that it shows none now proves \
                 nothing",
                list(&self.missing)
            )
        })
    }

    /// `entries were seen on node-01`.
    pub(super) fn words(&self) -> String {
        match self.shown.is_empty() {
            true => "no entry was seen on any node".to_owned(),
            false => format!("entries were seen on {}", list(&self.shown)),
        }
    }

    /// What it leaves open.
    pub(super) fn beyond(&self) -> Option<String> {
        let what = || format!("that {} would show an entry (none was seen there)", list(&self.silent));
        (!self.silent.is_empty()).then(what)
    }
}

impl OntapExport {
    fn control<T>(&self, act: impl FnOnce(&mut Control) -> T) -> T {
        act(&mut self.control.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps what a read-back showed.
    pub(super) fn keep(&self, read: &ReadBack) {
        let now = Instant::now();
        self.control(|control| {
            control.shown.extend(read.seen().iter().map(|node| (node.clone(), now)));
            if !read.seen().is_empty() {
                control.own = Some(now);
            }
        });
    }

    /// Sees what there is to be seen before the rules are changed: afterwards a dead host leaves no entry any
    /// more. What cannot be seen in time is not waited for; then the proof has to do without it.
    pub(super) async fn look_before(&self, client: &Client, survey: &Survey) {
        let limit = LIMIT.min(self.timeout / 4);
        let client = &client.within(limit);
        let read = self.read_back(client, survey);
        let rows = client.within(limit / 2);
        let looks = async { tokio::join!(read, self.own_rows(&rows, survey)) };
        let Ok((read, rows)) = tokio::time::timeout(limit, looks).await else { return };
        self.keep(&read);
        if self.admitting(survey).next().is_some() {
            let nodes = come_by(&read.nodes, rows.iter().filter(|row| is_at_work(row)));
            self.control(|control| control.at_work = nodes);
        }
    }

    /// The host's rows in the list of connected clients; none if it cannot be had.
    async fn own_rows(&self, client: &Client, survey: &Survey) -> Vec<NfsClient> {
        let volumes: Vec<&str> = self.volumes.iter().map(String::as_str).collect();
        let rows = client.nfs_clients_of(&self.svm, &volumes).await.unwrap_or_default();
        let mut rows = self.of_host(survey, rows);
        rows.retain(|row| row.client_ip.is_some());
        rows
    }

    /// What the entries that were seen are worth for this read-back. Where an entry of the host itself was
    /// seen, the nodes by which it was at work must have shown one. Where none was, all nodes must by which
    /// it is known to have come, or by which it may come if nothing is known of that; then others' entries
    /// are looked for.
    pub(super) async fn seen(&self, client: &Client, survey: &Survey, read: &ReadBack) -> Seen {
        self.keep(read);
        self.control(Control::forget_what_is_old);
        let rows = self.own_rows(&client.within(LIMIT), survey).await;
        let known = self.control(|control| control.clone());
        let needed = needed(&known, read, &rows);
        let silent = known.silent(&needed);
        if !silent.is_empty() {
            let shown = self.others(client, survey, silent).await;
            let now = Instant::now();
            self.control(|control| control.shown.extend(shown.into_iter().map(|node| (node, now))));
        }
        let known = self.control(|control| control.clone());
        let missing = known.silent(&needed);
        let silent = known.silent(read.read()).into_iter().filter(|node| !missing.contains(node)).collect();
        Seen { shown: known.shown.into_keys().collect(), missing, silent }
    }

    /// Which of these nodes show an entry of another client of the SVM: those that are connected first, then
    /// those whom rules name.
    async fn others(&self, client: &Client, survey: &Survey, nodes: Vec<String>) -> Vec<String> {
        let (client, until) = (&client.within(LIMIT), Instant::now() + LIMIT);
        let mut everybody = self.everybody(client).await.unwrap_or_default();
        everybody.sort_by_key(|row| row.idle.unwrap_or(Duration::MAX));
        let connected = everybody.into_iter().filter_map(|row| {
            Some((row.export_policy.name?, row.client_ip?.parse::<IpAddr>().ok()?.to_canonical()))
        });
        let mut others: Vec<(String, IpAddr)> = Vec::new();
        for (policy, address) in connected.chain(survey.others.iter().cloned()) {
            let ours = survey.exports.iter().any(|export| export.policy == policy);
            let is_new = !others.iter().any(|other| (&other.0, other.1) == (&policy, address));
            if is_new && !(ours && self.addresses.contains(&address)) {
                others.push((policy, address));
            }
        }
        others.truncate(OTHERS);
        let mut shown = Vec::new();
        for node in nodes {
            let ask = |(policy, address): &(String, IpAddr)| {
                let (node, policy, address) = (node.clone(), policy.clone(), *address);
                async move { client.access_cache_entry(&self.svm, &node, &policy, address).await }
            };
            let asks: Vec<_> = others.iter().map(ask).collect();
            let mut answers = stream::iter(asks).buffer_unordered(AT_ONCE);
            while let Ok(Some(answer)) = tokio::time::timeout_at(until, answers.next()).await {
                if matches!(answer, Ok(Some(_))) {
                    shown.push(node);
                    break;
                }
            }
        }
        shown
    }
}

/// The nodes that must have shown an entry. One that was not read has forgotten everything, or it is told of
/// as unread.
fn needed(known: &Control, read: &ReadBack, rows: &[NfsClient]) -> BTreeSet<String> {
    let among = |nodes: BTreeSet<String>| nodes.intersection(read.read()).cloned().collect::<BTreeSet<_>>();
    let any_shown = read.read().iter().any(|node| known.shown.contains_key(node));
    if known.own.is_some() && any_shown {
        let lately = come_by(&read.nodes, rows.iter().filter(|row| is_at_work(row)));
        return among(lately.union(&known.at_work).cloned().collect());
    }
    let candidates = [come_by(&read.nodes, rows), read.nodes.with_lif(), read.read().clone()];
    candidates.into_iter().map(among).find(|nodes| !nodes.is_empty()).unwrap_or_default()
}

/// Whether a client did something so lately that a node remembers it.
pub(super) fn is_at_work(row: &NfsClient) -> bool {
    row.idle.is_some_and(|idle| idle < LATELY)
}

/// The nodes where the addresses are now by which these came.
fn come_by<'r>(nodes: &Nodes, rows: impl IntoIterator<Item = &'r NfsClient>) -> BTreeSet<String> {
    rows.into_iter().filter_map(|row| nodes.of_lif(row.server_ip.as_deref()?)).cloned().collect()
}
