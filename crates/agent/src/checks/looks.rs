//! How each check looks, and what it says.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drivers::certificate::{CertificateFile, RENEW_WITHIN, UnknownExpiry};
use drivers::fence::POWER;
use drivers::health_signal::peer::Peer;
use drivers::ledger::kafka::{IN_CLUSTER, ON_NODES};
use drivers::tls::Tls;
use jiff::Timestamp;
use kafka::Dialer;
use kafka::wire::Controller;
use recovery::known::home_holder;
use recovery::model::{Broker, BrokerId, Check, Fact, HostName, LogTail, human};
use recovery::ports::{LedgerError, Note, StepError, Storage, chain};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::Item;
use crate::access::AccessList;
use crate::config::Config;
use crate::world::{self, World};

/// How long a controller may take to accept a connection, and a name to be resolved.
pub(super) const NETWORK_LIMIT: Duration = Duration::from_secs(3);
/// A start that reads its logs for longer than this is what a takeover waits for most.
const LONGEST_SCAN: Duration = Duration::from_secs(60);

pub(super) fn configuration(config: &Config) -> Vec<Item> {
    let mut items = vec![Item::ok("configuration", config.path.display().to_string())];
    let warnings = config.warnings.iter();
    items.extend(warnings.map(|w| Item::warn(&w.key, w.reason.clone(), &w.remedy)));
    items
}

pub(super) async fn ledger(world: Arc<World>) -> Vec<Item> {
    let remedy =
        "without the ledger nothing is ever taken over: see that its storage is mounted and writable";
    let first = match world.ports.ledger.check().await {
        Ok(note) => match carriers(&world, &note).await {
            carriers if carriers.is_empty() => Item::note(Check::Ledger, &note),
            carriers => {
                let says = format!(
                    "the guarded brokers {carriers} carry it: after a loss of power of all of them none could \
                     start, for guard \
                     reads the ledger first"
                );
                let remedy = "move the topic to another cluster, or to brokers that are not guarded; or use \
                              `file` or `etcd`";
                Item::fail(Check::Ledger, says, remedy)
            }
        },
        // It says itself what to do.
        Err(LedgerError::Distrusted { distrust, why }) => {
            let more = format!("see docs/runbooks/holds-and-errors.md#{}", distrust.label());
            Item::fail(Check::Ledger, why, &more)
        }
        Err(error) => Item::fail(Check::Ledger, chain(&error), remedy),
    };
    let mut items = vec![first];
    items.extend(homes(&world).await);
    items
}

/// The homes that stand in this configuration alone: two of them that are swapped would have the wrong host fenced.
async fn homes(world: &World) -> Option<Item> {
    let mut unsaid = Vec::new();
    for broker in world.topology.brokers.values() {
        if matches!(home_holder(world.ports.ledger.as_ref(), broker.id).await, Ok(None)) {
            unsaid.push(format!("{} of broker {}", broker.home, broker.id));
        }
    }
    let says = format!("by this configuration alone the home is {}", unsaid.join(", "));
    let remedy = "have Kafka started there by `understudy guard`, or run the agent there: each host says itself that it is the \
                  home, and a configuration with another one is refused from then on";
    (!unsaid.is_empty()).then(|| Item::warn(Check::Ledger, says, remedy))
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

pub(super) async fn kafka(world: Arc<World>) -> Vec<Item> {
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
pub(super) async fn see(world: Arc<World>, name: &'static str) -> Vec<Item> {
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

/// What a platform tells of hosts' machines and of brokers' pods. Without it a takeover waits for another witness, and
/// for no more.
pub(super) async fn platform(world: Arc<World>, name: &'static str) -> Vec<Item> {
    let Some(signal) = world.signals.iter().find(|signal| signal.name() == name) else { return Vec::new() };
    let facts = signal.look(world.ports.clock.as_ref()).await.into_iter().map(|evidence| evidence.fact);
    let item = || format!("signal {name}");
    let told = |fact| match fact {
        Fact::Machine { host, state, .. } => Some(Item::ok(item(), format!("the machine of {host} {state}"))),
        Fact::Remark { broker, says, .. } => Some(Item::ok(item(), format!("broker {broker}: {says}"))),
        Fact::Blind { why } => {
            let remedy = "until it sees, it tells nothing where the cluster says nothing of a broker";
            Some(Item::warn(item(), why, remedy))
        }
        _ => None,
    };
    facts.filter_map(told).collect()
}

/// Whether the storage tells its counters. Without them a takeover works as well.
pub(super) async fn counted(world: Arc<World>) -> Vec<Item> {
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

/// Whether the agent's own pages can be served, and its peers be asked, with what the files of `[agent.tls]` hold.
pub(super) async fn pages(key: PathBuf, tls: Arc<Tls>) -> Vec<Item> {
    let item = Check::Certificate(key);
    match tls.look().await {
        Ok(()) => vec![Item::ok(item, "goes with the certificate of agent.tls, and peers are asked by it")],
        Err(why) => {
            let remedy = "until it is, nobody reads this agent's pages, and it asks no peer what that sees; no takeover \
                          depends on the files";
            vec![Item::warn(item, why, remedy)]
        }
    }
}

/// Whether the tokens of `[[agent.access]]` tell their holders apart.
pub(super) async fn access(access: AccessList) -> Vec<Item> {
    let found = access.look().await;
    if found.is_empty() {
        return vec![Item::ok(Check::Access, "everybody with a token is told from the others")];
    }
    let remedy = "give each section a token of its own; until then its holder is told nothing here, or may do what \
                  the lower of two roles may, and no takeover depends on it";
    found.into_iter().map(|why| Item::warn(Check::Access, why, remedy)).collect()
}

/// Whether a peer tells who is connected to the brokers on its host. What it does not tell of waits for its
/// own timeout.
pub(super) async fn tells_clients(peer: Arc<Peer>) -> Vec<Item> {
    let item = Check::Peer(peer.host().into());
    vec![match peer.tells_clients().await {
        Ok(connections) => Item::ok(item, format!("it tells of {connections} connections to brokers there")),
        Err(why) => {
            let remedy = "without its list, clients that wait for an answer of its host when that dies wait for \
                          their own timeouts";
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

/// Whether a controller is at this listener, with this id: the active one says both.
pub(super) async fn is_controller(dialer: Dialer, controller: Controller) -> Vec<Item> {
    let item = Check::Controller(controller.to_string());
    let asked = async {
        dialer.open(&controller.listener, NETWORK_LIMIT).await?.describe_quorum(NETWORK_LIMIT).await
    };
    match asked.await {
        Ok(said) if said.leader_id.0 == controller.id.0 => {
            vec![Item::ok(item, "it is the active controller")]
        }
        // A broker passes the question on, and a controller with another id answers for itself.
        Ok(said) => {
            let says = format!(
                "whoever is at {} answers as the active controller does, which is {}: it is no controller {}",
                controller.listener, said.leader_id.0, controller.id
            );
            let remedy = "correct cluster.controllers: `UnregisterBroker` is sent to the one that says who it is, and to nobody \
                          else";
            vec![Item::fail(item, says, remedy)]
        }
        Err(error) if error.is_not_leader() => {
            vec![Item::ok(item, "answers, and another one is the active controller")]
        }
        Err(error) => {
            let remedy = "if it is the active one, a takeover waits for the dead broker's session: let this host reach it";
            vec![Item::warn(item, chain(&error), remedy)]
        }
    }
}

pub(super) async fn fence_answers(world: Arc<World>, host: HostName) -> Vec<Item> {
    let Some(fence) = world.ports.fences.get(&host) else { return Vec::new() };
    let remedy = "until it answers, a takeover of this host's brokers ends without proof and needs a person";
    let found = fence.checks(&host).await;
    let power = power(&world, &host, &found).await;
    let found_any = found.iter().any(|(_, found)| found.is_ok());
    let answers = rungs(&host, found, remedy);
    // An agent that does not describe itself is taken for one that leaves hosts running; what is wrong with it is told.
    let lives_on = (fence.leaves_running() && found_any).then(|| {
        let says = "no fence stops the host itself: while it lives, it may answer for a broker's address beside \
                    the new owner";
        let remedy = "add a [[host.fence]] such as a power switch after the one of its storage; without it only \
                      the agent on \
                      that host can give the address up";
        Item::warn(format!("host {host} after its fence"), says, remedy)
    });
    answers.into_iter().chain(power).chain(lives_on).collect()
}

/// Whether what the devices read of a host's power can be true.
async fn power(world: &World, host: &HostName, found: &[(String, Result<Note, StepError>)]) -> Option<Item> {
    let read = |power: &str| {
        let says = |(rung, found): &&(String, Result<Note, StepError>)| {
            found.as_ref().is_ok_and(|note| note.details.get(POWER).is_some_and(|read| read == power))
                && !rung.is_empty()
        };
        found.iter().find(says).map(|(rung, _)| rung.clone())
    };
    let (off, item) = (read("off")?, Check::Fence(host.clone()));
    if let Some(on) = read("on") {
        let says =
            format!("{off} reads off, and {on} reads on: they do not look at the same power of {host}");
        let remedy = "correct the plug of the one that is wrong; the outlets of two power supplies are one fence, with \
                      driver = \"all_of\"";
        return Some(Item::fail(item, says, remedy));
    }
    if let Some(broker) = serving(world, host).await {
        let says = format!(
            "{off} reads that {host} is off, and broker {broker} there answers: it looks at another machine"
        );
        if let Some(fence) = world.ports.fences.get(host) {
            fence.disbelieve(&off, &says);
        }
        let remedy =
            "correct the device's plug or address: as it is, it would prove that a living host is off";
        return Some(Item::fail(item, says, remedy));
    }
    let says = format!("{off} reads that {host} is off, and no broker of it answers: is it off?");
    let remedy = "if the host is on, the device looks at another machine, or calls one off that it does not know: correct \
                  its plug";
    Some(Item::warn(item, says, remedy))
}

/// A broker that answers and is on `host`, by the ledger: before and after it answered, for it may move in between.
async fn serving(world: &World, host: &HostName) -> Option<BrokerId> {
    for broker in world.topology.brokers.values() {
        if is_on(world, broker, host).await {
            let connect = TcpStream::connect((broker.listener.host.clone(), broker.listener.port));
            let answers = matches!(timeout(NETWORK_LIMIT, connect).await, Ok(Ok(_)));
            if answers && is_on(world, broker, host).await {
                return Some(broker.id);
            }
        }
    }
    None
}

async fn is_on(world: &World, broker: &Broker, host: &HostName) -> bool {
    let standing = world::standing(world.ports.ledger.as_ref(), &world.topology, broker.id).await;
    standing.map_or(broker.home == *host, |standing| standing.owner == *host)
}

/// Each fence by itself: that one is broken hides nothing of the others.
fn rungs(host: &HostName, found: Vec<(String, Result<Note, StepError>)>, remedy: &str) -> Vec<Item> {
    let several = found.len() > 1;
    let one = |(rung, found)| {
        let mut item = Item::of(Check::Fence(host.clone()), found, remedy);
        if several {
            item.says = format!("{rung}: {}", item.says);
        }
        item
    };
    found.into_iter().map(one).collect()
}

/// After a crash Kafka reads through what it had not flushed, before anybody is served.
pub(super) async fn logs(world: Arc<World>, broker: Broker) -> Vec<Item> {
    vec![tail(&world, &broker).await]
}

async fn tail(world: &World, broker: &Broker) -> Item {
    let item = Check::Logs(broker.id);
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
    let remedy = "set a smaller segment.bytes on topics with many partitions, and \
                  num.recovery.threads.per.data.dir to the \
                  number of cores";
    Item::warn(item, says, remedy)
}

/// Whether the log dirs can be attached.
pub(super) async fn storage_attaches(storage: Arc<dyn Storage>, broker: BrokerId) -> Vec<Item> {
    let remedy = "a takeover would be abandoned before Kafka is started";
    vec![Item::of(Check::Storage(broker), storage.check().await, remedy)]
}

/// Whether Kafka can be started here.
pub(super) async fn starts_here(world: Arc<World>, broker: BrokerId) -> Vec<Item> {
    let looks = world.ports.broker_host.check(broker).await;
    let remedy =
        "correct it on this host, or in [broker_host]: until then a takeover by it fails, or is not safe";
    looks.into_iter().map(|look| Item::of(Check::BrokerHost(broker), look, remedy)).collect()
}

/// Whether the certificates in a file are valid, and will be for a while.
pub(super) async fn certificate(file: CertificateFile) -> Vec<Item> {
    let item = Check::Certificate(file.path.clone());
    vec![match file.good_until().await {
        Ok(until) => {
            let remedy = "renew it, and restart the agent, which may have read it";
            valid(item, until, Timestamp::now(), remedy)
        }
        Err(error @ UnknownExpiry::Unclear { .. }) => {
            let remedy = format!("look at it: `openssl x509 -noout -enddate -in {}`", file.path.display());
            Item::warn(item, chain(&error), &remedy)
        }
        Err(error) => Item::fail(item, chain(&error), "put the certificate there, for this agent to read"),
    }]
}

pub(super) fn valid(item: Check, until: Timestamp, now: Timestamp, remedy: &str) -> Item {
    if until < now {
        Item::fail(item, format!("it was valid until {until:.0}"), remedy)
    } else if until.duration_since(now) < RENEW_WITHIN {
        Item::warn(item, format!("it is valid until {until:.0} only"), remedy)
    } else {
        Item::ok(item, format!("it is valid until {until:.0}"))
    }
}

/// A listener that is a name must lead to the address that moves.
pub(super) async fn listener(broker: Broker) -> Vec<Item> {
    listener_is_moved(&broker).await.into_iter().collect()
}

async fn listener_is_moved(broker: &Broker) -> Option<Item> {
    let moved: IpAddr = broker.address.as_ref()?.split('/').next()?.parse().ok()?;
    let host = broker.listener.host.clone();
    if host.parse::<IpAddr>().is_ok() {
        return None;
    }
    let item = Check::Listener(broker.id);
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

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use drivers::health_signal::kafka_logs::KafkaLogs;
    use recovery::model::{Evidence, MachineState, Moment, Verdict};
    use recovery::ports::{Clock, HealthSignal};

    use super::*;

    /// A platform that tells of one host, and not of another.
    struct Platform;

    #[async_trait]
    impl HealthSignal for Platform {
        fn name(&self) -> &'static str {
            "kubernetes_node"
        }
        fn period(&self) -> Duration {
            Duration::from_secs(5)
        }
        async fn look(&self, _clock: &dyn Clock) -> Vec<Evidence> {
            let (host, state) = (HostName::from("kafka-1"), MachineState::Runs);
            let runs = Fact::Machine { host, state, counts_for: Duration::from_secs(60) };
            let blind = Fact::Blind { why: "kafka-2: no right".to_owned() };
            [runs, blind].map(|fact| Evidence { signal: self.name(), at: Moment::default(), fact }).into()
        }
    }

    #[tokio::test]
    async fn what_a_platform_tells_is_shown_and_what_it_lacks_is_a_warning() {
        let ports = fakes::World::new().ports();
        let (topology, policy) = (fakes::World::topology(), fakes::World::policy());
        let logs = KafkaLogs::new(Dialer::plaintext(), [].into());
        let signals: Vec<Arc<dyn HealthSignal>> = vec![Arc::new(Platform)];
        let world = World { topology, policy, ports, signals, logs, clients: Arc::default() };
        let items = platform(Arc::new(world), "kubernetes_node").await;
        let all: Vec<(Verdict, &str)> = items.iter().map(|item| (item.verdict, item.says.as_str())).collect();
        let expected = [(Verdict::Ok, "the machine of kafka-1 runs"), (Verdict::Warn, "kafka-2: no right")];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_certificate_is_told_of_a_fortnight_before_it_ends() {
        let now: Timestamp = "2026-11-24T03:00:00Z".parse().unwrap();
        let verdict = |until: &str| {
            valid(Check::Certificate("/etc/ca.pem".into()), until.parse().unwrap(), now, "renew it").verdict
        };
        assert_eq!(verdict("2026-12-09T03:00:00Z"), Verdict::Ok);
        assert_eq!(verdict("2026-12-08T02:59:59Z"), Verdict::Warn);
        assert_eq!(verdict("2026-11-24T03:00:00Z"), Verdict::Warn);
        assert_eq!(verdict("2026-11-24T02:59:59Z"), Verdict::Fail);
    }

    #[test]
    fn a_broken_fence_hides_nothing_of_the_others() {
        let works = || Ok(Note::new("answers").warn(["not all is well".to_owned()]));
        let broken =
            StepError::Refused { driver: "b", action: "fence".to_owned(), why: "no route".to_owned() };
        let found = vec![("a (1 of 2)".to_owned(), works()), ("b (2 of 2)".to_owned(), Err(broken))];
        let items = rungs(&"kafka-1".into(), found, "mend it");
        let all: Vec<(Verdict, &str)> = items.iter().map(|item| (item.verdict, item.says.as_str())).collect();
        let [(Verdict::Warn, first), (Verdict::Fail, second)] = all[..] else { panic!("{items:?}") };
        assert_eq!(first, "a (1 of 2): answers; WARNING: not all is well");
        assert!(second.starts_with("b (2 of 2): ") && second.contains("no route"), "{second}");
        // One alone needs no number.
        let alone = rungs(&"kafka-1".into(), vec![("a".to_owned(), works())], "mend it");
        assert!(alone[0].says.starts_with("answers") && alone[0].item == "fence of kafka-1", "{alone:?}");
    }

    #[tokio::test]
    async fn a_certificate_that_is_not_there_fails() {
        let items = certificate(CertificateFile::chain("/no/such/file".as_ref())).await;
        assert_eq!(items[0].verdict, Verdict::Fail);
        assert!(items[0].says.starts_with("/no/such/file cannot be read: No such file"), "{items:?}");
        assert_eq!(items[0].item, "certificate /no/such/file");
    }
}
