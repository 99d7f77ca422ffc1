//! Everything that a takeover by this host needs, as one list of checks: `understudy check` goes through all
//! of it, and the daemon, again and again, through what disturbs nobody.

mod address;
mod class_data;
mod looks;
mod nfs;
mod secured;
mod standing;
mod zookeeper;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use crate::config::FenceConfig;
use drivers::certificate::CertificateFile;
use drivers::tls::{Tls, TlsConfig};
use kafka::wire::Controller;
use recovery::model::{Broker, Check, Verdict};
use recovery::ports::{Note, StepError, chain};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::access::AccessList;
use crate::config::Config;
use crate::world::{self, World};

pub(crate) use standing::StandingChecks;

/// One thing that a check found.
#[derive(Debug, Serialize)]
pub(crate) struct Item {
    pub(crate) item: String,
    pub(crate) verdict: Verdict,
    /// What was found.
    pub(crate) says: String,
    /// What to do about it. Empty where nothing needs doing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) remedy: String,
}

impl Item {
    fn ok(item: impl ToString, says: impl Into<String>) -> Self {
        Self { item: item.to_string(), verdict: Verdict::Ok, says: says.into(), remedy: String::new() }
    }

    /// What a driver found, which may warn.
    fn note(item: impl ToString, note: &Note) -> Self {
        let verdict = if note.warnings.is_empty() { Verdict::Ok } else { Verdict::Warn };
        Self { verdict, ..Self::ok(item, note.to_string()) }
    }

    fn warn(item: impl ToString, says: impl Into<String>, remedy: &str) -> Self {
        Self { item: item.to_string(), verdict: Verdict::Warn, says: says.into(), remedy: remedy.to_owned() }
    }

    fn fail(item: impl ToString, says: impl Into<String>, remedy: &str) -> Self {
        Self { item: item.to_string(), verdict: Verdict::Fail, says: says.into(), remedy: remedy.to_owned() }
    }

    fn of(item: impl ToString, result: Result<Note, StepError>, remedy: &str) -> Self {
        match result {
            Ok(note) => Self::note(item, &note),
            Err(error) => Self::fail(item, chain(&error), remedy),
        }
    }
}

/// What is found, and by which check.
#[derive(Debug, Serialize)]
pub(crate) struct Found {
    #[serde(flatten)]
    pub(crate) check: Check,
    #[serde(flatten)]
    pub(crate) item: Item,
}

type Looking = Pin<Box<dyn Future<Output = Vec<Item>> + Send>>;

/// One check: its name, and how it looks.
pub(crate) struct Look {
    check: Check,
    /// Whether the daemon goes through it. Not what would disturb somebody, what a signal of the daemon says
    /// already, and what does not change while it runs.
    standing: bool,
    look: Box<dyn Fn() -> Looking + Send + Sync>,
}

impl Look {
    fn by_hand<F>(check: Check, look: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Vec<Item>> + Send + 'static,
    {
        Self { check, standing: false, look: Box::new(move || Box::pin(look())) }
    }

    fn standing<F>(check: Check, look: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Vec<Item>> + Send + 'static,
    {
        Self { standing: true, ..Self::by_hand(check, look) }
    }

    /// What the configuration alone shows.
    fn told(check: Check, found: impl Fn() -> Vec<Item> + Send + Sync + 'static) -> Self {
        Self::by_hand(check, move || std::future::ready(found()))
    }
}

/// Goes through every check side by side: one thing that hangs until its deadline delays nothing else.
pub(crate) async fn go_through(world: &Arc<World>, config: &Config) -> Vec<Found> {
    let mut running = JoinSet::new();
    for (place, look) in all(world, config).into_iter().enumerate() {
        let (check, looking) = (look.check, (look.look)());
        running.spawn(async move { (place, check, looking.await) });
    }
    let mut found = running.join_all().await;
    found.sort_by_key(|(place, ..)| *place);
    let one = |(_, check, items): (usize, Check, Vec<Item>)| {
        items.into_iter().map(move |item| Found { check: check.clone(), item })
    };
    found.into_iter().flat_map(one).collect()
}

/// The signals that tell of hosts' machines and of brokers' pods.
const PLATFORMS: [&str; 3] = ["ec2_status", "kubernetes_node", "kubernetes_pod"];

/// Every check, in the order in which it is reported.
pub(crate) fn all(world: &Arc<World>, config: &Config) -> Vec<Look> {
    let host = || world.clone();
    let (c, w) = (config.clone(), host());
    let mut all = vec![
        Look::told(Check::Configuration, move || looks::configuration(&c)),
        Look::standing(Check::Ledger, move || looks::ledger(w.clone())),
    ];
    let w = host();
    all.push(Look::by_hand(Check::Cluster, move || looks::kafka(w.clone())));
    for signal in ["kafka_metadata", "kafka_quorum"] {
        let w = host();
        all.push(Look::by_hand(Check::Signal(signal.to_owned()), move || looks::see(w.clone(), signal)));
    }
    all.extend(controllers(config));
    all.extend(secured::looks(config));
    if config.ontap_clients.is_some() {
        let w = host();
        let check = Check::Signal("ontap_clients".to_owned());
        all.push(Look::by_hand(check, move || looks::counted(w.clone())));
    }
    for signal in world.signals.iter().map(|signal| signal.name()).filter(|name| PLATFORMS.contains(name)) {
        let w = host();
        all.push(Look::by_hand(Check::Signal(signal.to_owned()), move || looks::platform(w.clone(), signal)));
    }
    for fenced in world.ports.fences.keys() {
        let (check, fenced, w) = (Check::Fence(fenced.clone()), fenced.clone(), host());
        all.push(Look::standing(check, move || looks::fence_answers(w.clone(), fenced.clone())));
    }
    if config.brokers.values().filter_map(|drivers| drivers.storage.as_ref()).any(|storage| storage.is_nfs())
    {
        let w = host();
        all.push(Look::standing(Check::NfsClient, move || nfs::client(w.clone())));
    }
    for peer in world::peers(config).unwrap_or_default().into_iter().map(Arc::new) {
        let check = Check::Peer(peer.host().into());
        all.push(Look::standing(check, move || looks::tells_clients(peer.clone())));
    }
    for file in certificates(config).into_values() {
        let check = Check::Certificate(file.path.clone());
        all.push(Look::standing(check, move || looks::certificate(file.clone())));
    }
    if let Some(tls) = config.tls.clone() {
        let (key, tls) = (tls.key.clone(), Arc::new(Tls::new(tls)));
        let check = Check::Certificate(key.clone());
        all.push(Look::standing(check, move || looks::pages(key.clone(), tls.clone())));
    }
    if !config.access.is_empty() {
        let access = AccessList::new(&config.access);
        all.push(Look::standing(Check::Access, move || looks::access(access.clone())));
    }
    let (archive, w) = (Arc::new(config.class_data()), host());
    all.push(Look::standing(Check::ClassData, move || class_data::look(w.clone(), archive.clone())));
    all.extend(world.topology.brokers.values().flat_map(|broker| guarded(world, broker)));
    all
}

fn controllers(config: &Config) -> Vec<Look> {
    if let Some(connect) = config.cluster.zookeepers() {
        let known = config.topology.brokers.keys().copied().collect::<Vec<_>>();
        let look = move || zookeeper::look(connect.clone(), known.clone());
        return vec![Look::standing(Check::Controller("ZooKeeper".to_owned()), look)];
    }
    if config.cluster.controllers.is_empty() {
        let check = Check::Controller(String::new());
        let says = "none are configured: a takeover waits for the dead broker's session to expire";
        let remedy = "name them in cluster.controllers, or ZooKeeper in cluster.zookeeper";
        let warning = move || vec![Item::warn(Check::Controller(String::new()), says, remedy)];
        return vec![Look::told(check, warning)];
    }
    let dialer = config.cluster.dialers().controllers;
    let one = |controller: &Controller| {
        let (check, dialer) = (Check::Controller(controller.to_string()), dialer.clone());
        let controller = controller.clone();
        Look::standing(check, move || looks::is_controller(dialer.clone(), controller.clone()))
    };
    config.cluster.controllers.iter().map(one).collect()
}

/// What this host needs for one broker.
fn guarded(world: &Arc<World>, broker: &Broker) -> Vec<Look> {
    let (id, host) = (broker.id, || (world.clone(), broker.clone()));
    let (w, b) = host();
    let mut looks = vec![Look::by_hand(Check::Logs(id), move || looks::logs(w.clone(), b.clone()))];
    let address = world.ports.addresses.get(&id).cloned();
    let is_moved = address.is_some();
    let b = broker.clone();
    looks.push(Look::standing(Check::Address(id), move || address::moves(address.clone(), b.clone())));
    if is_moved {
        let b = broker.clone();
        looks.push(Look::standing(Check::Listener(id), move || looks::listener(b.clone())));
    }
    if let Some(storage) = world.ports.storage.get(&id).cloned() {
        looks.push(Look::standing(Check::Storage(id), move || looks::storage_attaches(storage.clone(), id)));
        let (w, b) = host();
        looks.push(Look::by_hand(Check::Unlinks(id), move || nfs::unlinked(w.clone(), b.clone())));
        let (w, b) = host();
        looks.push(Look::told(Check::Lease(id), move || nfs::lease(&w, &b).into_iter().collect()));
    }
    let (w, _) = host();
    looks.push(Look::standing(Check::BrokerHost(id), move || looks::starts_here(w.clone(), id)));
    looks
}

/// Each file with certificates once, whoever needs it.
fn certificates(config: &Config) -> BTreeMap<PathBuf, CertificateFile> {
    let ladders = config.fences.values().chain(config.nodes.values());
    let fences = ladders.flatten().flat_map(FenceConfig::certificates);
    let storage = config.brokers.values().filter_map(|drivers| drivers.storage.as_ref());
    let storage = storage.flat_map(ontap::storage::certificates);
    let all = config
        .ledger
        .certificates()
        .into_iter()
        .chain(fences)
        .chain(storage)
        .chain(config.tls.iter().flat_map(TlsConfig::certificates))
        .chain(config.cluster.certificates());
    all.map(|file| (file.path.clone(), file)).collect()
}
