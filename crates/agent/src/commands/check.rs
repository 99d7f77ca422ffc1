//! `understudy check`: would a takeover by this host work? Looks at everything one needs; changes nothing.

mod nfs;

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use recovery::drivers::broker_host::class_data::{ClassData, Look};
use recovery::drivers::health_signal::peer::Peer;
use recovery::drivers::ledger::kafka::{IN_CLUSTER, ON_NODES};
use recovery::model::{Broker, BrokerId, Endpoint, Fact, HostName, LogTail, human};
use recovery::ports::{Fence, LedgerError, Note, StepError, chain};
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::cli::Global;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::print;
use crate::telemetry::LogSink;
use crate::world::{self, World};

/// How long a controller may take to accept a connection, and a name to be resolved.
const NETWORK_LIMIT: Duration = Duration::from_secs(3);
/// A start that reads its logs for longer than this is what a takeover waits for most.
const LONGEST_SCAN: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// A takeover would work.
    Ok,
    /// A takeover would work, and not as well as it could.
    Warn,
    /// A takeover would fail.
    Fail,
}

/// One thing a takeover needs.
#[derive(Debug, Serialize)]
pub(super) struct Item {
    pub(super) item: String,
    pub(super) verdict: Verdict,
    /// What was found.
    pub(super) says: String,
    /// What to do about it. Empty where nothing needs doing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) remedy: String,
}

impl Item {
    /// Drivers begin with "WARNING: " what is no error and probably not meant.
    fn ok(item: impl Into<String>, says: impl Into<String>) -> Self {
        let says = says.into();
        let verdict = if says.contains("WARNING: ") { Verdict::Warn } else { Verdict::Ok };
        Self { item: item.into(), verdict, says, remedy: String::new() }
    }

    fn warn(item: impl Into<String>, says: impl Into<String>, remedy: &str) -> Self {
        Self { item: item.into(), verdict: Verdict::Warn, says: says.into(), remedy: remedy.to_owned() }
    }

    fn fail(item: impl Into<String>, says: impl Into<String>, remedy: &str) -> Self {
        Self { item: item.into(), verdict: Verdict::Fail, says: says.into(), remedy: remedy.to_owned() }
    }

    fn of(item: impl Into<String>, result: Result<Note, StepError>, remedy: &str) -> Self {
        match result {
            Ok(note) => Self::ok(item, note.text),
            Err(error) => Self::fail(item, chain(&error), remedy),
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    items: Vec<Item>,
}

pub(super) async fn run(global: &Global, config: &Config) -> anyhow::Result<Exit> {
    let world = Arc::new(World::build(config, Arc::new(LogSink::default()))?);
    let report = Report { items: look(&world, config).await };
    print(&report, global.output)?;
    let failed = report.items.iter().any(|item| item.verdict == Verdict::Fail);
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// Looks at everything side by side: one thing that hangs until its deadline delays nothing else.
pub(super) async fn look(world: &Arc<World>, config: &Config) -> Vec<Item> {
    let mut looks = Looks::default();
    looks.add(configuration(config));
    looks.add(ledger(world.clone()));
    looks.add(kafka(world.clone()));
    for signal in ["kafka_metadata", "kafka_quorum"] {
        looks.add(see(world.clone(), signal));
    }
    for controller in &config.cluster.controllers {
        looks.add(controller_listens(controller.to_string(), controller.listener.clone()));
    }
    if config.ontap_clients.is_some() {
        looks.add(counted(world.clone()));
    }
    if config.cluster.controllers.is_empty() {
        let says = "none are configured: a takeover waits for the dead broker's session to expire";
        looks.add(std::future::ready(vec![Item::warn(
            "controllers",
            says,
            "name them in cluster.controllers",
        )]));
    }
    for (host, fence) in &world.ports.fences {
        let (host, fence) = (host.clone(), fence.clone());
        looks.add(async move { fence_answers(host, fence.as_ref()).await });
    }
    if config.brokers.values().any(|drivers| drivers.storage.is_nfs()) {
        looks.add(nfs::client(world.clone()));
    }
    for peer in world::peers(config).unwrap_or_default() {
        looks.add(tells_clients(peer));
    }
    looks.add(class_data(config.class_data()));
    for broker in world.topology.brokers.values() {
        looks.add(guarded(world.clone(), broker.clone()));
    }
    looks.all().await
}

/// Looks that run side by side, and are reported in the order in which they were added.
#[derive(Default)]
struct Looks {
    running: JoinSet<(usize, Vec<Item>)>,
}

impl Looks {
    fn add(&mut self, look: impl Future<Output = Vec<Item>> + Send + 'static) {
        let place = self.running.len();
        self.running.spawn(async move { (place, look.await) });
    }

    async fn all(self) -> Vec<Item> {
        let mut found = self.running.join_all().await;
        found.sort_by_key(|(place, _)| *place);
        found.into_iter().flat_map(|(_, items)| items).collect()
    }
}

fn configuration(config: &Config) -> impl Future<Output = Vec<Item>> + Send + 'static {
    let mut items = vec![Item::ok("configuration", config.path.display().to_string())];
    let warnings = config.warnings.iter();
    items.extend(warnings.map(|w| Item::warn(&w.key, w.reason.clone(), &w.remedy)));
    std::future::ready(items)
}

async fn ledger(world: Arc<World>) -> Vec<Item> {
    let remedy =
        "without the ledger nothing is ever taken over: see that its storage is mounted and writable";
    vec![match world.ports.ledger.check().await {
        Ok(note) => match carriers(&world, &note).await {
            carriers if carriers.is_empty() => Item::ok("ledger", note.text),
            carriers => {
                let says = format!(
                    "the guarded brokers {carriers} carry it: after a loss of power of all of them none could start, for guard \
                     reads the ledger first"
                );
                let remedy = "move the topic to another cluster, or to brokers that are not guarded; or use `file` or `etcd`";
                Item::fail("ledger", says, remedy)
            }
        },
        // It says itself what to do.
        Err(LedgerError::Distrusted { distrust, why }) => {
            let more = format!("see docs/runbooks/holds-and-errors.md#{}", distrust.label());
            Item::fail("ledger", why, &more)
        }
        Err(error) => Item::fail("ledger", chain(&error), remedy),
    }]
}

/// The guarded brokers that carry the ledger itself, where that is a topic of their own cluster.
async fn carriers(world: &World, note: &Note) -> String {
    let (Some(cluster), Some(nodes)) = (note.details.get(IN_CLUSTER), note.details.get(ON_NODES)) else {
        return String::new();
    };
    let own = |node: &&str| node.parse().is_ok_and(|id| world.topology.brokers.contains_key(&BrokerId(id)));
    let own: Vec<&str> = nodes.split(',').filter(own).collect();
    match world.ports.cluster.id().await {
        Ok(ours) if ours != *cluster => String::new(),
        // A cluster that does not tell its id may be this one.
        _ => own.join(", "),
    }
}

async fn kafka(world: Arc<World>) -> Vec<Item> {
    let remedy = "see that the brokers in cluster.bootstrap can be reached from this host";
    let mut items = vec![match world.ports.cluster.id().await {
        Ok(id) => Item::ok("cluster", format!("its id is {id}")),
        Err(error) => return vec![Item::fail("cluster", chain(&error), remedy)],
    }];
    let view = match world.ports.cluster.partitions().await {
        Ok(view) => view,
        Err(error) => {
            items.push(Item::fail("partitions", chain(&error), remedy));
            return items;
        }
    };
    for broker in world.topology.brokers.keys() {
        let (all, single) = view.of(*broker).fold((0, 0), |(all, single), partition| {
            (all + 1, single + usize::from(partition.replicas.len() == 1))
        });
        let item = format!("partitions of broker {broker}");
        items.push(if single == 0 {
            Item::ok(item, format!("{all}, each with a replica elsewhere"))
        } else {
            let says = format!(
                "{single} of {all} have no other replica: what the dead host had not yet written to storage is lost"
            );
            Item::warn(item, says, "give every topic a replication factor of 2 or more")
        });
    }
    items
}

/// Lets one signal look until it sees something: a first look may end before its connection is there.
async fn see(world: Arc<World>, name: &'static str) -> Vec<Item> {
    let Some(signal) = world.signals.iter().find(|signal| signal.name() == name) else { return Vec::new() };
    let until = Instant::now() + NETWORK_LIMIT;
    loop {
        let facts: Vec<Fact> =
            signal.look(world.ports.clock.as_ref()).await.into_iter().map(|evidence| evidence.fact).collect();
        let blind = facts.iter().any(|fact| matches!(fact, Fact::Blind { .. }));
        if !blind || Instant::now() >= until {
            return facts.into_iter().filter_map(|fact| seen(&world, name, fact)).collect();
        }
        world.ports.clock.sleep(signal.period()).await;
    }
}

fn seen(world: &World, signal: &str, fact: Fact) -> Option<Item> {
    match fact {
        Fact::Listed { brokers } => Some(listed(world, brokers.keys().copied().collect())),
        Fact::Quorum(view) => Some(Item::ok("active controller", format!("node {} answers", view.leader))),
        Fact::Blind { why } => {
            let remedy = "a takeover needs this witness, or it waits for the other";
            Some(Item::fail(format!("signal {signal}"), why, remedy))
        }
        _ => None,
    }
}

/// Whether the storage tells its counters. Without them a takeover works as well.
async fn counted(world: Arc<World>) -> Vec<Item> {
    let mut items = Vec::new();
    for signal in world.signals.iter().filter(|signal| signal.name() == "ontap_clients") {
        let seen = signal.look(world.ports.clock.as_ref()).await.into_iter().map(|evidence| evidence.fact);
        let mut brokers = Vec::new();
        for fact in seen {
            match fact {
                Fact::Volumes { broker, .. } => brokers.push(broker.to_string()),
                Fact::Blind { why } => {
                    let remedy = "until it is read, a storage that stalls for all is told by canaries only";
                    items.push(Item::warn("signal ontap_clients", why, remedy));
                }
                _ => {}
            }
        }
        if !brokers.is_empty() {
            let says = format!("ONTAP counts what happens in the volumes of {}", brokers.join(", "));
            items.push(Item::ok("signal ontap_clients", says));
        }
    }
    items
}

/// Whether a peer tells who is connected to the brokers on its host. What it does not tell of waits for its
/// own timeout.
async fn tells_clients(peer: Peer) -> Vec<Item> {
    let item = format!("peer {}: clients", peer.host());
    vec![match peer.tells_clients().await {
        Ok(connections) => Item::ok(item, format!("it tells of {connections} connections to brokers there")),
        Err(why) => {
            let remedy = "without its list, clients that wait for an answer of its host when that dies wait for their own timeouts";
            Item::warn(item, why, remedy)
        }
    }]
}

fn listed(world: &World, listed: Vec<BrokerId>) -> Item {
    let missing: Vec<_> = world.topology.known.iter().filter(|id| !listed.contains(id)).collect();
    let names = |ids: Vec<&BrokerId>| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if missing.is_empty() {
        return Item::ok("brokers", format!("the cluster lists {}", names(listed.iter().collect())));
    }
    let says = format!("the cluster does not list {}", names(missing));
    Item::warn("brokers", says, "if they are meant to be up, start them; else correct the [[broker]] ids")
}

async fn controller_listens(name: String, listener: Endpoint) -> Vec<Item> {
    let connect = TcpStream::connect((listener.host.clone(), listener.port));
    let why = match timeout(NETWORK_LIMIT, connect).await {
        Ok(Ok(_)) => return vec![Item::ok(format!("controller {name}"), "accepts connections")],
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no connection within {NETWORK_LIMIT:?}"),
    };
    let remedy =
        "if it is the active one, a takeover waits for the dead broker's session: let this host reach it";
    vec![Item::warn(format!("controller {name}"), why, remedy)]
}

async fn fence_answers(host: HostName, fence: &dyn Fence) -> Vec<Item> {
    let remedy = "until it answers, a takeover of this host's brokers ends without proof and needs a person";
    let answers = Item::of(format!("fence of {host}"), fence.check(&host).await, remedy);
    let lives_on = fence.leaves_running().then(|| {
        let says = "no fence stops the host itself: while it lives, it may answer for a broker's address beside the new owner";
        let remedy = "add a [[host.fence]] such as a power switch after the one of its storage; without it only the agent on \
                      that host can give the address up";
        Item::warn(format!("host {host} after its fence"), says, remedy)
    });
    [answers].into_iter().chain(lives_on).collect()
}

/// After a crash Kafka reads through what it had not flushed, before anybody is served.
async fn logs(world: &World, broker: &Broker) -> Item {
    let item = format!("broker {}: logs to read after a crash", broker.id);
    let remedy = "until it tells, a takeover's time is predicted without them";
    let tail = match world.logs.tail(broker.id).await {
        Ok(Some(tail)) => tail,
        Ok(None) => return Item::warn(item, "its listener is not known", remedy),
        Err(error) => return Item::warn(item, chain(&error), remedy),
    };
    let dirs = broker.log_dirs.len();
    let [now, at_most] = [tail.bytes, tail.at_most].map(|bytes| LogTail::scan(bytes, dirs));
    let says = format!(
        "{} replicas: {} MB and {} now, {} if every newest segment were full",
        tail.replicas,
        tail.bytes / 1_000_000,
        human(now),
        human(at_most)
    );
    if at_most <= LONGEST_SCAN {
        return Item::ok(item, says);
    }
    let remedy = "set a smaller segment.bytes on topics with many partitions, and num.recovery.threads.per.data.dir to the \
                  number of cores";
    Item::warn(item, says, remedy)
}

/// Whether Kafka starts here with the classes that it needs at hand.
async fn class_data(class_data: ClassData) -> Vec<Item> {
    let remedy = "run `understudy warm`: without it a start takes half as long again";
    vec![match class_data.look().await {
        Ok(Look::Fits { archive, bytes, made }) => {
            let megabytes = bytes / 1_000_000;
            Item::ok("class data", format!("fits: {}, {megabytes} MB, made {made:.0}", archive.display()))
        }
        Ok(Look::Unwanted { why }) => Item::ok("class data", format!("none is wanted: {why}")),
        Ok(Look::None { why }) => Item::warn("class data", format!("none: {why}"), remedy),
        Err(error) => Item::warn("class data", chain(&error), remedy),
    }]
}

/// What this host needs for one broker.
async fn guarded(world: Arc<World>, broker: Broker) -> Vec<Item> {
    let id = broker.id;
    let mut items = vec![logs(&world, &broker).await];
    if let Some(address) = world.ports.addresses.get(&id) {
        let remedy = "correct [broker.address], or the network of this host";
        items.push(Item::of(format!("broker {id}: address"), address.check().await, remedy));
        items.extend(listener_is_moved(&broker).await);
    } else {
        let says = "none is moved: clients must find this host by other means";
        items.push(Item::warn(
            format!("broker {id}: address"),
            says,
            "add [broker.address] if nothing else does",
        ));
    }
    if let Some(storage) = world.ports.storage.get(&id) {
        let remedy = "a takeover would be abandoned before Kafka is started";
        items.push(Item::of(format!("broker {id}: storage"), storage.check().await, remedy));
        items.push(nfs::unlinks(&world, &broker, storage.as_ref()).await);
        items.extend(nfs::lease(&world, &broker));
    }
    let looks = world.ports.broker_host.check(id).await;
    items.extend(looks.into_iter().map(|look| Item::of(format!("broker {id}: Kafka here"), look, "")));
    items
}

/// A listener that is a name must lead to the address that moves.
async fn listener_is_moved(broker: &Broker) -> Option<Item> {
    let moved: IpAddr = broker.address.as_ref()?.split('/').next()?.parse().ok()?;
    let host = broker.listener.host.clone();
    if host.parse::<IpAddr>().is_ok() {
        return None;
    }
    let item = format!("broker {}: listener", broker.id);
    let remedy = "let the name resolve to the address that moves, or clients lose the broker";
    let found =
        match timeout(NETWORK_LIMIT, tokio::net::lookup_host((host.clone(), broker.listener.port))).await {
            Ok(Ok(found)) => found.map(|address| address.ip()).collect::<Vec<_>>(),
            Ok(Err(error)) => return Some(Item::fail(item, format!("{host}: {error}"), remedy)),
            Err(_) => return Some(Item::fail(item, format!("{host}: no answer from DNS"), remedy)),
        };
    Some(if found.contains(&moved) {
        Item::ok(item, format!("{host} resolves to {moved}"))
    } else {
        Item::fail(item, format!("{host} resolves to {found:?}, not to {moved}"), remedy)
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |verdict| self.items.iter().filter(|item| item.verdict == verdict).count();
        for item in &self.items {
            let word = match item.verdict {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            writeln!(f, "{word:<4}  {}: {}", item.item, item.says)?;
            if !item.remedy.is_empty() {
                writeln!(f, "      do: {}", item.remedy)?;
            }
        }
        let (ok, warned, failed) = (count(Verdict::Ok), count(Verdict::Warn), count(Verdict::Fail));
        write!(f, "{ok} ok, {warned} warnings, {failed} failed")
    }
}
