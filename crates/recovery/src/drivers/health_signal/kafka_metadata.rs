//! What the surviving brokers say: the broker list on every look, replicas and ISR when something changed.
//!
//! Asked through librdkafka, whose calls block; so every client has a thread of its own, and a look takes
//! what has arrived. A client that hangs on a dead broker delays nobody: it is asked again once it is back.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::metadata::{Metadata, MetadataPartition};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout_at};

use crate::model::{BrokerId, Endpoint, Evidence, Fact, Moment, PartitionView, Replication};
use crate::ports::{Clock, HealthSignal};

/// The list changes when the controller fences a broker or lets it back, seconds after the event itself.
const PERIOD: Duration = Duration::from_millis(500);
/// How long a look waits for the clients it asked.
const LIMIT: Duration = Duration::from_millis(400);
/// How long a client waits for a broker, on its own thread, before it tries another.
const FETCH_LIMIT: Duration = Duration::from_secs(1);
/// The same for the full picture, which may be tens of megabytes.
const FULL_FETCH_LIMIT: Duration = Duration::from_secs(10);
/// Without news the full picture is read again after this long: topics come and go without it.
const FULL_EVERY: Duration = Duration::from_secs(30);
/// Three vantage points are enough for a majority; each costs a thread and its connections.
const MAX_CLIENTS: usize = 3;
/// librdkafka cannot ask for the broker list alone, only for that and a topic. This one need not exist, and
/// asking does not create it.
const NO_TOPIC: &str = "__understudy_looks_at_the_broker_list";

/// Asks the cluster for its brokers and partitions through up to three bootstrap servers.
pub struct KafkaMetadata {
    state: Mutex<State>,
    listed: watch::Sender<BTreeMap<BrokerId, Endpoint>>,
}

struct State {
    clients: Vec<Client>,
    answers: UnboundedReceiver<Answer>,
    /// The client whose answer was used last.
    used: usize,
    /// When the last full picture was asked for, and the broker list it came with.
    full: Option<(Moment, BTreeMap<BrokerId, Endpoint>)>,
}

/// The near end of a client's thread. It ends when this is dropped.
struct Client {
    server: Endpoint,
    asks: SyncSender<Ask>,
    busy: bool,
}

#[derive(Debug, Clone, Copy)]
struct Ask {
    at: Moment,
    full: bool,
}

struct Answer {
    client: usize,
    ask: Ask,
    said: Result<Said, KafkaError>,
}

struct Said {
    brokers: BTreeMap<BrokerId, Endpoint>,
    partitions: PartitionView,
}

impl KafkaMetadata {
    /// Starts a client for each of the first three `bootstrap` servers. The brokers that the cluster lists are
    /// published in `listed`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(
        bootstrap: &[Endpoint],
        listed: watch::Sender<BTreeMap<BrokerId, Endpoint>>,
    ) -> io::Result<Self> {
        let (sender, answers) = unbounded_channel();
        let servers = bootstrap.iter().take(MAX_CLIENTS).enumerate();
        let clients = servers.map(|(client, server)| Client::start(client, server, sender.clone()));
        let clients = clients.collect::<io::Result<_>>()?;
        let state = State { clients, answers, used: 0, full: None };
        Ok(Self { state: Mutex::new(state), listed })
    }
}

impl Client {
    fn start(client: usize, server: &Endpoint, answers: UnboundedSender<Answer>) -> io::Result<Self> {
        let (asks, asked) = sync_channel(1);
        let bootstrap = server.to_string();
        let thread = std::thread::Builder::new().name(format!("kafka-metadata-{client}"));
        thread.spawn(move || work(client, &bootstrap, &asked, &answers))?;
        Ok(Self { server: server.clone(), asks, busy: false })
    }
}

/// A client's thread: answers one ask after another, until nobody asks any more.
fn work(client: usize, bootstrap: &str, asks: &Receiver<Ask>, answers: &UnboundedSender<Answer>) {
    let consumer = consumer(bootstrap);
    for ask in asks {
        let said = consumer.as_ref().map_err(Clone::clone).and_then(|consumer| {
            // Serves the log and error events, which would pile up otherwise.
            while consumer.poll(Duration::ZERO).is_some() {}
            fetch(consumer, ask.full)
        });
        if answers.send(Answer { client, ask, said }).is_err() {
            return;
        }
    }
}

fn consumer(bootstrap: &str) -> KafkaResult<BaseConsumer<Quiet>> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("client.id", "understudy")
        .set("allow.auto.create.topics", "false")
        // We ask when we want to know; librdkafka need not.
        .set("topic.metadata.refresh.interval.ms", "-1")
        // A broker that does not answer is given up, and its connection with it, so that the next ask
        // goes to another one.
        .set("socket.timeout.ms", "1000")
        .set("socket.connection.setup.timeout.ms", "1000")
        .set("socket.keepalive.enable", "true")
        .set("reconnect.backoff.ms", "100")
        .set("reconnect.backoff.max.ms", "1000")
        // A broker that was moved is found at its new address.
        .set("broker.address.ttl", "1000")
        .set_log_level(RDKafkaLogLevel::Emerg);
    BaseConsumer::from_config_and_context(&config, Quiet)
}

/// Keeps librdkafka's complaints out of the log: what they mean for us is said as evidence.
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(facility, message, "librdkafka says");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "librdkafka says");
    }
}

impl ConsumerContext for Quiet {}

fn fetch(consumer: &BaseConsumer<Quiet>, full: bool) -> KafkaResult<Said> {
    let metadata = if full {
        consumer.fetch_metadata(None, FULL_FETCH_LIMIT)?
    } else {
        consumer.fetch_metadata(Some(NO_TOPIC), FETCH_LIMIT)?
    };
    Ok(said(&metadata))
}

fn said(metadata: &Metadata) -> Said {
    let brokers = metadata.brokers().iter().filter_map(|broker| {
        let port = u16::try_from(broker.port()).ok()?;
        Some((BrokerId(broker.id()), Endpoint { host: broker.host().to_owned(), port }))
    });
    let partitions = metadata
        .topics()
        .iter()
        .flat_map(|topic| topic.partitions().iter().map(|partition| replication(topic.name(), partition)));
    Said { brokers: brokers.collect(), partitions: PartitionView { partitions: partitions.collect() } }
}

fn replication(topic: &str, partition: &MetadataPartition) -> Replication {
    let nodes = |ids: &[i32]| ids.iter().copied().map(BrokerId).collect();
    Replication {
        topic: topic.to_owned(),
        partition: partition.id(),
        leader: (partition.leader() >= 0).then(|| BrokerId(partition.leader())),
        replicas: nodes(partition.replicas()),
        isr: nodes(partition.isr()),
    }
}

impl State {
    /// Asks one client, if it is idle. Says whether it was.
    fn ask(&mut self, client: usize, ask: Ask) -> bool {
        let client = &mut self.clients[client];
        let asked = !client.busy && client.asks.try_send(ask).is_ok();
        client.busy |= asked;
        asked
    }

    /// What arrives, until `waiting` answers to asks of `at` are there or the time is up. With nobody to wait
    /// for, waits for anything at all.
    async fn collect(&mut self, at: Moment, mut waiting: usize, until: Instant) -> Vec<Answer> {
        let mut arrived = Vec::new();
        while waiting > 0 || arrived.is_empty() {
            let Ok(Some(answer)) = timeout_at(until, self.answers.recv()).await else { break };
            self.clients[answer.client].busy = false;
            waiting -= usize::from(answer.ask.at == at).min(waiting);
            arrived.push(answer);
        }
        arrived
    }

    /// One round: asks whoever is idle for the broker list, and then, if it is due, one for the full picture.
    async fn round(&mut self, at: Moment) -> Vec<Answer> {
        let until = Instant::now() + LIMIT;
        let waiting = (0..self.clients.len()).filter(|c| self.ask(*c, Ask { at, full: false })).count();
        let mut arrived = self.collect(at, waiting, until).await;
        if let Some((client, brokers)) = self.listing(&arrived).map(|(_, c, said)| (c, &said.brokers)) {
            let due = |(read, had): &(Moment, _)| had != brokers || at.since(*read) >= FULL_EVERY;
            if self.full.as_ref().is_none_or(due) && self.ask(client, Ask { at, full: true }) {
                arrived.extend(self.collect(at, 1, Instant::now() + LIMIT).await);
            }
        }
        arrived
    }

    /// The answer to believe: of the newest, the one most others agree with; of equals, the one believed last
    /// time. A broker that is cut off from the controller keeps telling an old list.
    fn listing<'a>(&self, arrived: &'a [Answer]) -> Option<(Moment, usize, &'a Said)> {
        let said = |a: &'a Answer| a.said.as_ref().ok().map(|said| (a.ask.at, a.client, said));
        let heard: Vec<_> = arrived.iter().filter_map(said).collect();
        let agreeing = |said: &Said| heard.iter().filter(|(_, _, s)| s.brokers == said.brokers).count();
        let rank = |(at, client, said): &(Moment, usize, &Said)| (*at, agreeing(said), *client == self.used);
        heard.iter().max_by_key(|heard| rank(heard)).copied()
    }

    fn why_blind(&self, arrived: &[Answer]) -> String {
        let failures = arrived.iter().filter_map(|a| {
            let error = a.said.as_ref().err()?;
            Some(format!("{}: {error}", self.clients[a.client].server))
        });
        let failures: Vec<String> = failures.collect();
        if failures.is_empty() {
            format!("no bootstrap server answered within {LIMIT:?}")
        } else {
            failures.join("; ")
        }
    }
}

#[async_trait]
impl HealthSignal for KafkaMetadata {
    fn name(&self) -> &'static str {
        "kafka_metadata"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let now = clock.now().mono;
        let mut state = self.state.lock().await;
        let arrived = state.round(now).await;
        let evidence = |at, fact| Evidence { signal: self.name(), at, fact };
        let Some((at, client, said)) = state.listing(&arrived) else {
            return vec![evidence(now, Fact::Blind { why: state.why_blind(&arrived) })];
        };
        state.used = client;
        let brokers = said.brokers.clone();
        self.listed.send_if_modified(|known| {
            let changed = *known != brokers;
            known.clone_from(&brokers);
            changed
        });
        let mut facts = vec![evidence(at, Fact::Listed { brokers })];
        for answer in arrived {
            if let (true, Ok(said)) = (answer.ask.full, answer.said) {
                state.full = Some((answer.ask.at, said.brokers));
                facts.push(evidence(answer.ask.at, Fact::Partitions(Arc::new(said.partitions))));
            }
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as Lock;

    use kafka_protocol::messages::metadata_response::{
        MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
    };
    use kafka_protocol::messages::{ApiKey, BrokerId as Node, MetadataRequest, MetadataResponse, TopicName};
    use kafka_protocol::protocol::StrBytes;

    use super::*;
    use crate::kafka::wire::fake::{Fake, Listening, Reply};
    use crate::model::Now;

    struct Running(Instant);

    #[async_trait]
    impl Clock for Running {
        fn now(&self) -> Now {
            Now { mono: Moment(self.0.elapsed()), wall: jiff::Timestamp::UNIX_EPOCH }
        }
        async fn sleep(&self, duration: Duration) {
            tokio::time::sleep(duration).await;
        }
    }

    type List = Arc<Lock<BTreeMap<i32, Endpoint>>>;

    /// A broker that tells `list`, and one topic with replicas on all of it.
    fn serve(listening: Listening, list: &List) -> Fake {
        let list = list.clone();
        listening.serve(move |call| {
            let list = list.lock().unwrap().clone();
            (call.key == ApiKey::Metadata).then(|| {
                let asked = call.read::<MetadataRequest>();
                assert!(!asked.allow_auto_topic_creation, "looking must not create topics");
                let brokers = list.iter().map(|(id, at)| {
                    MetadataResponseBroker::default()
                        .with_node_id(Node(*id))
                        .with_host(StrBytes::from_string(at.host.clone()))
                        .with_port(at.port.into())
                });
                let nodes: Vec<Node> = list.keys().copied().map(Node).collect();
                let partition = MetadataResponsePartition::default()
                    .with_leader_id(Node(-1))
                    .with_isr_nodes(vec![nodes[0]])
                    .with_replica_nodes(nodes);
                let topic = MetadataResponseTopic::default()
                    .with_name(Some(TopicName(StrBytes::from_static_str("orders"))))
                    .with_partitions(vec![partition]);
                let topics = if asked.topics.is_none() { vec![topic] } else { Vec::new() };
                call.say(&MetadataResponse::default().with_brokers(brokers.collect()).with_topics(topics))
            })
        })
    }

    fn signal(bootstrap: &[Endpoint]) -> (KafkaMetadata, watch::Receiver<BTreeMap<BrokerId, Endpoint>>) {
        let (sender, listed) = watch::channel(BTreeMap::new());
        (KafkaMetadata::new(bootstrap, sender).unwrap(), listed)
    }

    fn listed(evidence: &[Evidence]) -> Option<Vec<i32>> {
        evidence.iter().find_map(|e| match &e.fact {
            Fact::Listed { brokers } => Some(brokers.keys().map(|id| id.0).collect()),
            _ => None,
        })
    }

    fn partitions(evidence: &[Evidence]) -> Option<Arc<PartitionView>> {
        evidence.iter().find_map(|e| match &e.fact {
            Fact::Partitions(view) => Some(view.clone()),
            _ => None,
        })
    }

    /// Looks until `found` finds something, for a busy machine may miss one look's deadline.
    async fn look_until<T>(
        signal: &KafkaMetadata,
        clock: &Running,
        found: impl Fn(&[Evidence]) -> Option<T>,
    ) -> T {
        for _ in 0..50 {
            if let Some(found) = found(&signal.look(clock).await) {
                return found;
            }
            clock.sleep(Duration::from_millis(100)).await;
        }
        panic!("not seen within 50 looks");
    }

    #[tokio::test]
    async fn the_full_picture_comes_first_and_when_the_list_changes() {
        let (first, second) = (Listening::bind().await, Listening::bind().await);
        let list: List = Arc::default();
        list.lock().unwrap().extend([(1, first.at.clone()), (2, second.at.clone())]);
        let servers = [first.at.clone(), second.at.clone()];
        let _brokers = (serve(first, &list), serve(second, &list));
        let (signal, known) = signal(&servers);
        let clock = Running(Instant::now());

        let view = look_until(&signal, &clock, partitions).await;
        assert_eq!(view.partitions[0].topic, "orders");
        assert_eq!(view.partitions[0].leader, None);
        assert_eq!(view.partitions[0].replicas, [BrokerId(1), BrokerId(2)]);
        assert_eq!(known.borrow().get(&BrokerId(2)), Some(&servers[1]));

        let evidence = signal.look(&clock).await;
        assert_eq!(listed(&evidence), Some(vec![1, 2]));
        assert!(partitions(&evidence).is_none(), "nothing changed");

        list.lock().unwrap().remove(&2);
        let view = look_until(&signal, &clock, partitions).await;
        assert_eq!(view.partitions[0].replicas, [BrokerId(1)]);
        assert!(!known.borrow().contains_key(&BrokerId(2)));
    }

    #[tokio::test]
    async fn a_server_that_hangs_delays_nobody() {
        let healthy = Listening::bind().await;
        let hung = Fake::start(|_| Some(Reply::Nothing)).await;
        let list: List = Arc::default();
        list.lock().unwrap().insert(1, healthy.at.clone());
        let servers = [hung.at.clone(), healthy.at.clone()];
        let _healthy = serve(healthy, &list);
        let (signal, _) = signal(&servers);
        let clock = Running(Instant::now());
        assert_eq!(look_until(&signal, &clock, listed).await, [1]);
        for _ in 0..3 {
            let begin = Instant::now();
            assert_eq!(listed(&signal.look(&clock).await), Some(vec![1]));
            assert!(begin.elapsed() < LIMIT * 3, "{:?}", begin.elapsed());
        }
    }

    #[tokio::test]
    async fn blind_when_nobody_answers() {
        let hung = Fake::start(|_| Some(Reply::Nothing)).await;
        let (signal, known) = signal(std::slice::from_ref(&hung.at));
        let clock = Running(Instant::now());
        let begin = Instant::now();
        let evidence = signal.look(&clock).await;
        assert!(begin.elapsed() < LIMIT * 3, "bounded");
        assert!(matches!(evidence[..], [Evidence { fact: Fact::Blind { .. }, .. }]), "{evidence:?}");
        assert!(known.borrow().is_empty());
    }

    fn answer(client: usize, at: u64, brokers: &[i32]) -> Answer {
        let at = Moment(Duration::from_secs(at));
        let endpoint = |id: &i32| (BrokerId(*id), format!("kafka-{id}:9092").parse().unwrap());
        let brokers = brokers.iter().map(endpoint).collect();
        let said = Said { brokers, partitions: PartitionView::default() };
        Answer { client, ask: Ask { at, full: false }, said: Ok(said) }
    }

    fn believed(used: usize, arrived: &[Answer]) -> Option<usize> {
        let state = State { clients: Vec::new(), answers: unbounded_channel().1, used, full: None };
        state.listing(arrived).map(|(_, client, _)| client)
    }

    #[test]
    fn the_majority_is_believed_over_a_broker_that_is_cut_off() {
        let arrived = [answer(0, 5, &[1, 2, 3]), answer(1, 5, &[2, 3]), answer(2, 5, &[2, 3])];
        assert_ne!(believed(0, &arrived), Some(0));
    }

    #[test]
    fn of_equals_the_one_believed_last_time_stays() {
        let arrived = [answer(0, 5, &[1, 2, 3]), answer(1, 5, &[2, 3])];
        assert_eq!(believed(0, &arrived), Some(0));
        assert_eq!(believed(1, &arrived), Some(1));
    }

    #[test]
    fn a_late_answer_does_not_beat_a_fresh_one() {
        let arrived = [answer(0, 4, &[1, 2, 3]), answer(2, 4, &[1, 2, 3]), answer(1, 5, &[2, 3])];
        assert_eq!(believed(0, &arrived), Some(1));
        let failed = Answer { said: Err(KafkaError::Canceled), ..answer(1, 6, &[]) };
        assert_eq!(believed(0, &[failed]), None);
    }
}
