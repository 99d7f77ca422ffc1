//! What the surviving brokers say: the broker list on every look, replicas and ISR when something changed.
//!
//! Each client asks on a task of its own, and a look takes what has arrived: a client that hangs on a dead broker
//! delays nobody, and is asked again once it is back.
//!
//! Asked over our own connections, one a client, and not through librdkafka: that keeps a thread for every broker it hears
//! of, which is three thousand of them where a cluster has a thousand brokers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout_at};

use crate::kafka::wire::{Connection, Topics, WireError};
use crate::model::{BrokerId, Endpoint, Evidence, Fact, Moment, PartitionView};
use crate::ports::{Clock, HealthSignal, chain};

/// The list changes when the controller fences a broker or lets it back, seconds after the event itself.
const PERIOD: Duration = Duration::from_millis(500);
/// How long a look waits for the clients it asked.
const LIMIT: Duration = Duration::from_millis(400);
/// How long a client waits for a broker, on its own task, before it tries another.
const FETCH_LIMIT: Duration = Duration::from_secs(1);
/// The same for the full picture, which may be tens of megabytes.
const FULL_FETCH_LIMIT: Duration = Duration::from_secs(10);
/// Without news the full picture is read again after this long: topics come and go without it.
const FULL_EVERY: Duration = Duration::from_secs(30);
/// Three vantage points are enough for a majority; each costs a connection.
const MAX_CLIENTS: usize = 3;
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
    /// That picture. Giving one of a large cluster up takes longer than a tick may, so it is given up here, a look
    /// after the next one has taken its place.
    kept: Vec<Arc<PartitionView>>,
}

/// The near end of a client's task, which ends when this is dropped.
struct Client {
    asks: mpsc::Sender<Ask>,
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
    said: Result<Said, String>,
}

struct Said {
    brokers: BTreeMap<BrokerId, Endpoint>,
    partitions: PartitionView,
}

impl KafkaMetadata {
    /// Starts a client for each of the first three `bootstrap` servers, on the present runtime. The brokers that the
    /// cluster lists are published in `listed`.
    #[must_use]
    pub fn new(bootstrap: &[Endpoint], listed: watch::Sender<BTreeMap<BrokerId, Endpoint>>) -> Self {
        let (sender, answers) = unbounded_channel();
        let servers = bootstrap.iter().take(MAX_CLIENTS).enumerate();
        let clients = servers.map(|(client, server)| Client::start(client, server, sender.clone()));
        let state = State { clients: clients.collect(), answers, used: 0, full: None, kept: Vec::new() };
        Self { state: Mutex::new(state), listed }
    }
}

impl Client {
    fn start(client: usize, server: &Endpoint, answers: UnboundedSender<Answer>) -> Self {
        let (asks, asked) = mpsc::channel(1);
        tokio::spawn(work(client, Line::to(client, server), asked, answers));
        Self { asks, busy: false }
    }
}

/// A client's task: answers one ask after another, until nobody asks any more.
async fn work(
    client: usize,
    mut line: Line,
    mut asks: mpsc::Receiver<Ask>,
    answers: UnboundedSender<Answer>,
) {
    while let Some(ask) = asks.recv().await {
        let said = line.fetch(ask.full).await;
        if answers.send(Answer { client, ask, said }).is_err() {
            return;
        }
    }
}

/// The connection that a client keeps, and whom it asks when that breaks.
struct Line {
    client: usize,
    /// The bootstrap server, and the brokers that were last listed.
    endpoints: Vec<Endpoint>,
    turn: usize,
    connection: Option<Connection>,
}

impl Line {
    fn to(client: usize, server: &Endpoint) -> Self {
        Self { client, endpoints: vec![server.clone()], turn: 0, connection: None }
    }

    /// Asks one broker after another, until one answers or the time is up. The next fetch begins where this one
    /// ends, so that a broker that eats the whole time does so once.
    async fn fetch(&mut self, full: bool) -> Result<Said, String> {
        let until = Instant::now() + if full { FULL_FETCH_LIMIT } else { FETCH_LIMIT };
        let topics = if full { Topics::All } else { Topics::None };
        let mut failed = String::new();
        // Once more than there are, for the first may only have closed a connection that was kept.
        for _ in 0..=self.endpoints.len() {
            let kept = self.connection.is_some();
            match self.ask(topics, until).await {
                Ok(said) => {
                    self.learn(&said.brokers);
                    return Ok(said);
                }
                Err(error) => {
                    let again = kept && matches!(error, WireError::Closed { .. });
                    self.turn = (self.turn + usize::from(!again)) % self.endpoints.len();
                    failed = chain(&error);
                }
            }
            if Instant::now() >= until {
                break;
            }
        }
        Err(failed)
    }

    async fn ask(&mut self, topics: Topics<'_>, until: Instant) -> Result<Said, WireError> {
        let rest = || until.saturating_duration_since(Instant::now());
        // Taken out while in use: what failed, or was not waited for to its end, is not used again.
        let mut connection = match self.connection.take() {
            Some(open) => open,
            None => Connection::open(&self.endpoints[self.turn], rest().min(FETCH_LIMIT)).await?,
        };
        let seen = connection.metadata(topics, rest()).await?;
        self.connection = Some(connection);
        Ok(Said { brokers: seen.brokers, partitions: seen.partitions })
    }

    /// Whom to ask when this one fails: each client another one, for three that ask the same broker are one witness.
    fn learn(&mut self, brokers: &BTreeMap<BrokerId, Endpoint>) {
        let here = &self.endpoints[self.turn];
        let server = &self.endpoints[0];
        let mut others: Vec<_> = brokers.values().filter(|at| *at != server).cloned().collect();
        let spread = others.len() * self.client / MAX_CLIENTS;
        others.rotate_left(spread);
        others.insert(0, server.clone());
        // It may be asked on although it is listed no more: it answers.
        let turn = others.iter().position(|at| at == here);
        let turn = turn.unwrap_or_else(|| {
            others.push(here.clone());
            others.len() - 1
        });
        (self.endpoints, self.turn) = (others, turn);
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

    /// The newest one stays: it is the one that others use.
    fn give_up_old_pictures(&mut self) {
        let newest = self.kept.pop();
        let (idle, used): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.kept).into_iter().partition(|view| Arc::strong_count(view) == 1);
        self.kept = used;
        self.kept.extend(newest);
        if !idle.is_empty() {
            tokio::task::spawn_blocking(move || drop(idle));
        }
    }

    fn why_blind(&self, arrived: &[Answer]) -> String {
        let failures: Vec<&str> =
            arrived.iter().filter_map(|a| Some(a.said.as_ref().err()?.as_str())).collect();
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
        state.give_up_old_pictures();
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
                let view = Arc::new(said.partitions);
                state.kept.push(view.clone());
                facts.push(evidence(answer.ask.at, Fact::Partitions(view)));
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
        (KafkaMetadata::new(bootstrap, sender), listed)
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
    async fn a_client_whose_server_is_gone_asks_another_broker() {
        let (first, second) = (Listening::bind().await, Listening::bind().await);
        let list: List = Arc::default();
        list.lock().unwrap().extend([(1, first.at.clone()), (2, second.at.clone())]);
        let bootstrap = first.at.clone();
        let (first, _second) = (serve(first, &list), serve(second, &list));
        let (signal, _) = signal(std::slice::from_ref(&bootstrap));
        let clock = Running(Instant::now());
        assert_eq!(look_until(&signal, &clock, listed).await, [1, 2]);
        drop(first);
        list.lock().unwrap().remove(&1);
        let only_two = |evidence: &[Evidence]| listed(evidence).filter(|ids| *ids == [2]);
        assert_eq!(look_until(&signal, &clock, only_two).await, [2]);
    }

    #[test]
    fn clients_whose_servers_are_gone_ask_different_brokers() {
        let endpoint = |id: i32| format!("kafka-{id}:9092").parse::<Endpoint>().unwrap();
        let brokers: BTreeMap<_, _> = (1..=9).map(|id| (BrokerId(id), endpoint(id))).collect();
        let next = |client: i32| {
            let mut line = Line::to(usize::try_from(client).unwrap(), &endpoint(client + 1));
            line.learn(&brokers);
            assert_eq!((line.turn, line.endpoints.len()), (0, 9));
            line.endpoints[1].clone()
        };
        let chosen = [next(0), next(1), next(2)];
        assert!(chosen[0] != chosen[1] && chosen[1] != chosen[2] && chosen[0] != chosen[2], "{chosen:?}");
    }

    #[test]
    fn a_broker_that_answers_is_asked_on_although_it_is_listed_no_more() {
        let endpoint = |id: i32| format!("kafka-{id}:9092").parse::<Endpoint>().unwrap();
        let mut line = Line::to(0, &endpoint(1));
        line.learn(&(1..=3).map(|id| (BrokerId(id), endpoint(id))).collect());
        line.turn = 1;
        line.learn(&[(BrokerId(3), endpoint(3))].into());
        assert_eq!(line.endpoints[line.turn], endpoint(2));
        assert_eq!(line.endpoints[0], endpoint(1), "the server stays");
    }

    #[tokio::test]
    async fn old_pictures_are_given_up_once_nobody_uses_them() {
        let view = || Arc::new(PartitionView::default());
        let (clients, answers) = (Vec::new(), unbounded_channel().1);
        let (old, used, newest) = (view(), view(), view());
        let mut state =
            State { clients, answers, used: 0, full: None, kept: vec![old, used.clone(), newest] };
        state.give_up_old_pictures();
        assert_eq!(state.kept.len(), 2);
        drop(used);
        state.give_up_old_pictures();
        state.give_up_old_pictures();
        assert_eq!(state.kept.len(), 1, "the newest stays");
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
        let (clients, answers) = (Vec::new(), unbounded_channel().1);
        let state = State { clients, answers, used, full: None, kept: Vec::new() };
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
        let failed = Answer { said: Err("refused".to_owned()), ..answer(1, 6, &[]) };
        assert_eq!(believed(0, &[failed]), None);
    }
}
