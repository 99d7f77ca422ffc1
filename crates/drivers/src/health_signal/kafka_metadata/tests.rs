use std::sync::Mutex as Lock;

use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{ApiKey, BrokerId as Node, MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::*;
use fakes::kafka::{Fake, Listening, Reply};
use recovery::model::Now;

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
    (KafkaMetadata::new(&Dialer::plaintext(), bootstrap, sender), listed)
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
        let mut line = Line::to(Dialer::plaintext(), usize::try_from(client).unwrap(), &endpoint(client + 1));
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
    let mut line = Line::to(Dialer::plaintext(), 0, &endpoint(1));
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
    let mut state = State { clients, answers, used: 0, full: None, kept: vec![old, used.clone(), newest] };
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

#[tokio::test]
async fn a_login_that_is_refused_is_our_blindness_and_nobodys_death() {
    use kafka::security::{Mechanism, Protocol, SaslConfig, SecurityConfig};

    let known =
        fakes::kafka_login::Login { mechanism: "PLAIN", user: "agent", password: "right", forged: false };
    let broker = Fake::start(move |call| known.answer(call)).await;
    let password = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(password.path(), "planted-secret").unwrap();
    let sasl = SaslConfig::with_password(Mechanism::Plain, "agent", password.path().to_owned());
    let (protocol, ca, certificate, key) = (Protocol::SaslPlaintext, None, None, None);
    let config =
        SecurityConfig { protocol, ca, certificate, key, truststore: None, keystore: None, sasl: Some(sasl) };
    let (sender, listed) = watch::channel(BTreeMap::new());
    let dialer = Dialer::secured(&config, "cluster.security");
    let signal = KafkaMetadata::new(&dialer, std::slice::from_ref(&broker.at), sender);
    let clock = Running(Instant::now());
    let why = loop {
        let evidence = signal.look(&clock).await;
        let [Evidence { fact: Fact::Blind { why }, .. }] = &evidence[..] else { panic!("{evidence:?}") };
        // A busy machine may miss the deadline of one look.
        if !why.starts_with("no bootstrap server answered") {
            break why.clone();
        }
    };
    assert!(why.contains(&format!("no login at {}", broker.at)), "{why}");
    assert!(!why.contains("planted-secret"), "{why}");
    assert!(listed.borrow().is_empty());
    assert_eq!(broker.calls(ApiKey::Metadata), 0);
}
