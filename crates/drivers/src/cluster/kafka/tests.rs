use std::sync::Arc;

use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResult;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::describe_quorum_response::{PartitionData, TopicData};
use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    ApiKey, BrokerId as Node, DescribeClusterResponse, DescribeConfigsRequest, DescribeConfigsResponse,
    DescribeLogDirsResponse, DescribeQuorumResponse, ElectLeadersRequest, ElectLeadersResponse,
    ListOffsetsRequest, ListOffsetsResponse, MetadataResponse, TopicName, UnregisterBrokerRequest,
    UnregisterBrokerResponse,
};
use kafka_protocol::protocol::StrBytes;

mod advertised;

use super::*;
use fakes::kafka::{Call, Fake, Listening, Reply};
use tokio::net::TcpSocket;

/// What the fake cluster's nodes share.
#[derive(Default)]
struct Shared {
    /// Registered brokers: where, and whether fenced.
    brokers: BTreeMap<i32, (Option<Endpoint>, bool)>,
    /// One topic: leader, replicas, ISR by partition.
    partitions: Vec<(i32, Vec<i32>, Vec<i32>)>,
    /// What the controller does about `UnregisterBroker`: an error code, or silence.
    unregister: Option<i16>,
    /// The error code with which elections fail.
    election: i16,
    /// The sizes of the batches that were elected.
    batches: Vec<usize>,
    /// So many times a broker says that it serves nothing yet.
    not_yet: usize,
    /// Nobody may describe a broker's configuration.
    may_not_describe: bool,
    /// The bytes that a broker has of each partition.
    bytes: BTreeMap<i32, Vec<i64>>,
    /// No controller leads, so that brokers cannot pass a question on.
    no_quorum: bool,
}

type World = Arc<Mutex<Shared>>;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn nodes(ids: &[i32]) -> Vec<Node> {
    ids.iter().copied().map(Node).collect()
}

fn metadata_of(world: &Shared) -> MetadataResponse {
    let up = world.brokers.iter().filter(|(_, (_, fenced))| !fenced);
    let brokers = up.filter_map(|(id, (at, _))| {
        let at = at.as_ref()?;
        let broker = MetadataResponseBroker::default().with_node_id(Node(*id));
        Some(broker.with_host(text(&at.host)).with_port(at.port.into()))
    });
    let partitions = world.partitions.iter().zip(0..).map(|((leader, replicas, isr), index)| {
        MetadataResponsePartition::default()
            .with_partition_index(index)
            .with_leader_id(Node(*leader))
            .with_replica_nodes(nodes(replicas))
            .with_isr_nodes(nodes(isr))
    });
    let topic = MetadataResponseTopic::default()
        .with_name(Some(TopicName(text("orders"))))
        .with_partitions(partitions.collect());
    MetadataResponse::default()
        .with_cluster_id(Some(text("cluster-a")))
        .with_brokers(brokers.collect())
        .with_topics(vec![topic])
}

fn elect(world: &mut Shared, asked: &ElectLeadersRequest) -> ElectLeadersResponse {
    assert_eq!(asked.election_type, 0, "never unclean");
    let topics = asked.topic_partitions.as_ref().unwrap();
    let results = topics.iter().map(|topic| {
        let failed = world.election;
        let results = topic.partitions.iter().map(|index| {
            let partition = &mut world.partitions[usize::try_from(*index).unwrap()];
            if failed == 0 {
                partition.0 = partition.1[0];
            }
            PartitionResult::default().with_partition_id(*index).with_error_code(failed)
        });
        let results: Vec<_> = results.collect();
        world.batches.push(results.len());
        ReplicaElectionResult::default().with_topic(topic.topic.clone()).with_partition_result(results)
    });
    ElectLeadersResponse::default().with_replica_election_results(results.collect())
}

/// What the broker that leads says: first that it does not, and then that nobody has followed it.
fn latest(world: &mut Shared, asked: &ListOffsetsRequest) -> ListOffsetsResponse {
    let code = match world.not_yet {
        0 => 0,
        1 => ResponseError::OffsetNotAvailable.code(),
        _ => ResponseError::NotLeaderOrFollower.code(),
    };
    world.not_yet = world.not_yet.saturating_sub(1);
    let topics = asked.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            assert_eq!(world.partitions[usize::try_from(partition.partition_index).unwrap()].0, 2);
            ListOffsetsPartitionResponse::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code)
        });
        ListOffsetsTopicResponse::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    ListOffsetsResponse::default().with_topics(topics.collect())
}

fn broker_says(world: &World, own: i32, call: &Call) -> Option<Reply> {
    let mut world = world.lock().unwrap();
    match call.key {
        ApiKey::Metadata => Some(call.say(&metadata_of(&world))),
        ApiKey::DescribeCluster => {
            let broker = |id: &i32, fenced| {
                DescribeClusterBroker::default().with_broker_id(Node(*id)).with_is_fenced(fenced)
            };
            let brokers = world.brokers.iter().map(|(id, (_, fenced))| broker(id, *fenced));
            Some(call.say(&DescribeClusterResponse::default().with_brokers(brokers.collect())))
        }
        ApiKey::DescribeConfigs => {
            let asked: DescribeConfigsRequest = call.read();
            let refused = if asked.resources[0].resource_name.as_str() == own.to_string() { 0 } else { 42 };
            let code = if world.may_not_describe { 31 } else { refused };
            let result = DescribeConfigsResult::default().with_error_code(code);
            Some(call.say(&DescribeConfigsResponse::default().with_results(vec![result])))
        }
        ApiKey::DescribeLogDirs => {
            let bytes = world.bytes.get(&own).cloned().unwrap_or_default().into_iter().zip(0..);
            let partition = |(bytes, index)| {
                let partition = DescribeLogDirsPartition::default().with_partition_index(index);
                partition.with_partition_size(bytes)
            };
            let topic = DescribeLogDirsTopic::default().with_name(TopicName(text("orders")));
            let topic = topic.with_partitions(bytes.map(partition).collect());
            let dir = DescribeLogDirsResult::default().with_topics(vec![topic]);
            Some(call.say(&DescribeLogDirsResponse::default().with_results(vec![dir])))
        }
        ApiKey::DescribeQuorum if world.no_quorum => Some(Reply::Close),
        ApiKey::DescribeQuorum => {
            let topic = TopicData::default().with_partitions(vec![PartitionData::default()]);
            Some(call.say(&DescribeQuorumResponse::default().with_topics(vec![topic])))
        }
        ApiKey::ElectLeaders => Some(call.say(&elect(&mut world, &call.read()))),
        ApiKey::ListOffsets => Some(call.say(&latest(&mut world, &call.read()))),
        _ => None,
    }
}

fn controller_says(world: &World, id: i32, active: i32, call: &Call) -> Option<Reply> {
    match call.key {
        ApiKey::DescribeQuorum if id == active => {
            let partition = PartitionData::default().with_leader_id(Node(active));
            let topic = TopicData::default().with_partitions(vec![partition]);
            Some(call.say(&DescribeQuorumResponse::default().with_topics(vec![topic])))
        }
        ApiKey::DescribeQuorum => Some(call.say(&DescribeQuorumResponse::default().with_error_code(6))),
        ApiKey::UnregisterBroker => {
            assert_eq!(call.read::<UnregisterBrokerRequest>().broker_id, Node(1));
            match world.lock().unwrap().unregister {
                Some(code) => Some(call.say(&UnregisterBrokerResponse::default().with_error_code(code))),
                None => Some(Reply::Close),
            }
        }
        _ => None,
    }
}

/// Brokers 2 and 3 and two controllers, of which 102 is the active one; broker 1 is registered and dead.
struct Bed {
    world: World,
    brokers: Vec<Fake>,
    controllers: Vec<Fake>,
    /// Where broker 1 was: nobody listens there, and no other test may.
    _dead: TcpSocket,
}

impl Bed {
    async fn new() -> Self {
        let world = World::default();
        world.lock().unwrap().unregister = Some(0);
        let dead = TcpSocket::new_v4().unwrap();
        dead.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let at = dead.local_addr().unwrap().to_string().parse().unwrap();
        world.lock().unwrap().brokers.insert(1, (Some(at), false));
        let (mut brokers, mut controllers) = (Vec::new(), Vec::new());
        for id in [2, 3] {
            let (listening, shared) = (Listening::bind().await, world.clone());
            world.lock().unwrap().brokers.insert(id, (Some(listening.at.clone()), false));
            brokers.push(listening.serve(move |call| broker_says(&shared, id, call)));
        }
        for id in [101, 102] {
            let shared = world.clone();
            controllers.push(Fake::start(move |call| controller_says(&shared, id, 102, call)).await);
        }
        Self { world, brokers, controllers, _dead: dead }
    }

    fn world(&self) -> MutexGuard<'_, Shared> {
        self.world.lock().unwrap()
    }

    fn cluster_with(&self, controllers: &[String], id: Option<&str>) -> KafkaCluster {
        let dead = self.world().brokers[&1].0.clone().unwrap();
        let config = ClusterConfig {
            bootstrap: vec![dead.clone(), self.brokers[0].at.clone()],
            controllers: controllers.iter().map(|text| text.parse().unwrap()).collect(),
            zookeeper: None,
            zookeeper_security: None,
            id: id.map(str::to_owned),
            security: None,
            controllers_security: None,
        };
        KafkaCluster::new(Dialers::plaintext(), config, BTreeMap::from([(BrokerId(1), dead)])).unwrap()
    }

    fn cluster(&self) -> KafkaCluster {
        let controller = |id: i32, at: &Fake| format!("{id}@{}", at.at);
        let controllers = [controller(101, &self.controllers[0]), controller(102, &self.controllers[1])];
        self.cluster_with(&controllers, None)
    }

    fn sent(&self) -> usize {
        self.brokers.iter().chain(&self.controllers).map(|fake| fake.calls(ApiKey::UnregisterBroker)).sum()
    }
}

fn sharing() -> BTreeSet<BrokerId> {
    [2, 3].map(BrokerId).into()
}

#[tokio::test]
async fn tells_the_clusters_id_and_refuses_another_one() {
    let bed = Bed::new().await;
    assert_eq!(bed.cluster_with(&[], None).id().await.unwrap(), "cluster-a");
    assert_eq!(bed.cluster_with(&[], Some("cluster-a")).id().await.unwrap(), "cluster-a");
    let error = bed.cluster_with(&[], Some("cluster-b")).id().await.unwrap_err();
    assert!(error.to_string().contains("cluster-a") && error.to_string().contains("cluster-b"), "{error}");
}

#[tokio::test]
async fn standing_is_told_by_another_broker() {
    let bed = Bed::new().await;
    bed.world().partitions = vec![
        (1, vec![1, 2], vec![1, 2]),
        (2, vec![2, 1], vec![2]),
        (3, vec![3, 2], vec![3, 2]),
        (1, vec![1], vec![1]),
    ];
    let cluster = bed.cluster();
    let dead = cluster.standing(BrokerId(1)).await.unwrap();
    assert_ne!(dead.via, BrokerId(1));
    assert!(dead.listed && !dead.answers, "{dead:?}");
    assert_eq!((dead.replicas, dead.in_isr, dead.leads, dead.alone), (3, 2, 2, 1));

    let at = bed.brokers[0].at.clone();
    let cluster = KafkaCluster { listeners: BTreeMap::from([(BrokerId(2), at)]), ..cluster };
    let alive = cluster.standing(BrokerId(2)).await.unwrap();
    assert_eq!(alive.via, BrokerId(3));
    assert!(alive.answers);
    assert_eq!(cluster.partitions().await.unwrap().partitions.len(), 4);
}

#[tokio::test]
async fn what_a_broker_lacks_is_counted_beside_its_leaders() {
    let bed = Bed::new().await;
    // In sync; out of sync with 2, then with 3 as leader; out of sync without a leader.
    bed.world().partitions = vec![
        (2, vec![2, 3], vec![2, 3]),
        (2, vec![2, 3], vec![2]),
        (2, vec![2, 3], vec![2]),
        (-1, vec![2, 3], vec![2]),
    ];
    bed.world().bytes = BTreeMap::from([(2, vec![900, 500, 70, 9]), (3, vec![100, 400, 80, 0])]);
    let cluster = bed.cluster();
    assert_eq!(cluster.behind(BrokerId(3)).await.unwrap(), 100);
    assert_eq!(cluster.behind(BrokerId(2)).await.unwrap(), 0);
}

#[tokio::test]
async fn a_quorum_is_one_that_answers_here_or_through_a_broker() {
    let bed = Bed::new().await;
    let controller = |n: usize, id: i32| format!("{id}@{}", bed.controllers[n].at);
    for (controllers, through_a_broker, led) in [
        (vec![controller(0, 101), controller(1, 102)], false, true),
        (vec![controller(0, 101)], true, true),
        (vec![controller(0, 101)], false, false),
        (Vec::new(), true, true),
        (Vec::new(), false, false),
    ] {
        bed.world().no_quorum = !through_a_broker;
        let found = bed.cluster_with(&controllers, None).quorum().await;
        assert_eq!(found.is_ok(), led, "{controllers:?}, {through_a_broker}: {found:?}");
    }
}

#[tokio::test]
async fn a_broker_does_not_vouch_for_itself() {
    let bed = Bed::new().await;
    let cluster = bed.cluster_with(&[], None);
    bed.world().brokers.retain(|id, _| *id == 2);
    let error = cluster.standing(BrokerId(2)).await.unwrap_err();
    assert!(chain(&error).contains("no broker other than 2"), "{error}");
}

#[tokio::test]
async fn unregisters_once_at_the_active_controller() {
    let bed = Bed::new().await;
    assert_eq!(bed.cluster().unregister(BrokerId(1), &sharing()).await, Unregistered::Gone);
    assert_eq!(bed.controllers[1].calls(ApiKey::UnregisterBroker), 1);
    assert_eq!(bed.sent(), 1);
}

#[tokio::test]
async fn every_answer_to_unregister_has_its_meaning_and_is_asked_for_once() {
    let bed = Bed::new().await;
    let cluster = bed.cluster();
    for (answer, sent) in [(Some(102), 1), (Some(44), 2), (None, 3)] {
        bed.world().unregister = answer;
        let came = cluster.unregister(BrokerId(1), &sharing()).await;
        match answer {
            Some(102) => assert_eq!(came, Unregistered::Gone),
            Some(_) => {
                assert!(matches!(&came, Unregistered::Refused { why } if why.contains("44")), "{came:?}");
            }
            None => assert!(matches!(came, Unregistered::NoAnswer { .. }), "{came:?}"),
        }
        assert_eq!(bed.sent(), sent);
    }
}

#[tokio::test]
async fn does_not_unregister_when_the_rule_does_not_hold() {
    let fenced = |id: i32| move |world: &mut Shared| world.brokers.get_mut(&id).unwrap().1 = true;
    let gone = |id: i32| move |world: &mut Shared| drop(world.brokers.remove(&id));
    type Change<'a> = &'a dyn Fn(&mut Shared);
    let cases: [(Change<'_>, &str); 4] = [
        (&fenced(1), "fenced already"),
        (&gone(1), "not registered"),
        (&fenced(3), "shares partitions with 3"),
        (&gone(3), "shares partitions with 3"),
    ];
    for (change, reason) in cases {
        let bed = Bed::new().await;
        let cluster = bed.cluster();
        change(&mut bed.world());
        let came = cluster.unregister(BrokerId(1), &sharing()).await;
        assert!(matches!(&came, Unregistered::NotSent { why } if why.contains(reason)), "{reason}: {came:?}");
        assert_eq!(bed.sent(), 0);
    }
}

#[tokio::test]
async fn does_not_unregister_without_the_active_controllers_own_listener() {
    let bed = Bed::new().await;
    let cases = [
        (vec![], "no controllers are configured"),
        (vec![format!("101@{}", bed.controllers[0].at)], "was not found"),
        (vec![format!("7@{}", bed.controllers[1].at)], "says that 102 is the active one"),
        // A broker passes the question on, and would pass the request on too.
        (vec![format!("102@{}", bed.brokers[0].at)], "was not found"),
    ];
    for (controllers, reason) in cases {
        let came = bed.cluster_with(&controllers, None).unregister(BrokerId(1), &sharing()).await;
        assert!(matches!(&came, Unregistered::NotSent { why } if why.contains(reason)), "{reason}: {came:?}");
        assert_eq!(bed.sent(), 0);
    }
}

/// Broker 2 prefers all partitions but the last, is in sync for all but the first, and leads none.
fn led_by_others(count: usize) -> Vec<(i32, Vec<i32>, Vec<i32>)> {
    let mut partitions = vec![(3, vec![2, 3], vec![3])];
    partitions.resize(count, (3, vec![2, 3], vec![3, 2]));
    partitions.push((3, vec![3, 2], vec![3, 2]));
    partitions
}

#[tokio::test]
async fn gives_preferred_partitions_back_in_batches() {
    let bed = Bed::new().await;
    bed.world().partitions = led_by_others(251);
    let note = bed.cluster().elect_preferred(BrokerId(2)).await.unwrap();
    assert_eq!(note.details["elected"], "250");
    assert_eq!(note.details["not_in_isr"], "1");
    let world = bed.world();
    assert_eq!(world.batches, [4, 8, 16, 32, 64, 100, 26]);
    assert_eq!(world.partitions[0].0, 3, "not in sync");
    assert!(world.partitions[1..251].iter().all(|p| p.0 == 2));
    assert_eq!(world.partitions[251].0, 3, "prefers another");
}

#[tokio::test]
async fn the_next_batch_waits_until_the_last_is_served() {
    let bed = Bed::new().await;
    bed.world().partitions = led_by_others(11);
    bed.world().not_yet = 3;
    bed.cluster().elect_preferred(BrokerId(2)).await.unwrap();
    assert_eq!(bed.world().batches, [4, 6]);
    assert_eq!(bed.brokers[0].calls(ApiKey::ListOffsets), 5);
}

#[tokio::test]
async fn a_broker_that_is_slow_to_serve_gets_the_next_batch_all_the_same() {
    let bed = Bed::new().await;
    bed.world().partitions = led_by_others(17);
    // More often than it is asked in the five seconds that it has for a batch.
    bed.world().not_yet = 60;
    let note = bed.cluster().elect_preferred(BrokerId(2)).await.unwrap();
    assert_eq!(bed.world().batches, [4, 4, 8]);
    assert_eq!(note.details["batches_served_late"], "1");
}

#[tokio::test]
async fn elections_are_believed_when_they_are_seen() {
    let bed = Bed::new().await;
    bed.world().partitions = led_by_others(3);
    // 80: the preferred leader is not available.
    bed.world().election = 80;
    let error = bed.cluster().elect_preferred(BrokerId(2)).await.unwrap_err();
    assert!(error.to_string().contains("2 of 3"), "{error}");
    assert!(error.to_string().contains("orders-1: PreferredLeaderNotAvailable"), "{error}");
}

#[tokio::test]
async fn nothing_to_give_back_is_fine() {
    let bed = Bed::new().await;
    bed.world().partitions = vec![(2, vec![2, 3], vec![2, 3])];
    let note = bed.cluster().elect_preferred(BrokerId(2)).await.unwrap();
    assert_eq!(note.details["elected"], "0");
    assert_eq!(bed.brokers[0].calls(ApiKey::ElectLeaders), 0);
}

#[test]
fn all_problems_of_the_configuration_are_told() {
    let text = r#"{"bootstrap": [], "controllers": ["1@a:9093", "1@b:9093"], "id": " "}"#;
    let config: ClusterConfig = serde_json::from_str(text).unwrap();
    let problems = KafkaCluster::new(Dialers::plaintext(), config, BTreeMap::new()).unwrap_err();
    assert_eq!(problems.len(), 3, "{problems:?}");
    let wrong = r#"{"bootstrap": ["a:9092"], "controller": []}"#;
    assert!(serde_json::from_str::<ClusterConfig>(wrong).is_err(), "unknown keys are refused");
}

/// What is wrong with `[cluster.security]`.
fn insecure(security: &str) -> Vec<String> {
    let text = format!(r#"{{"bootstrap": ["a:9092"], "security": {security}}}"#);
    serde_json::from_str::<ClusterConfig>(&text).unwrap().problems()
}

#[test]
fn all_problems_of_how_listeners_are_secured_are_told_and_no_secret() {
    let keys = |said: &[String]| -> Vec<String> {
        said.iter()
            .map(|problem| problem.split_once(": ").unwrap().0.replace("cluster.security.", ""))
            .collect()
    };
    let right = r#"{"protocol": "SASL_SSL", "ca": "/ca", "certificate": "/c", "key": "/k", "sasl":
        {"mechanism": "SCRAM-SHA-512", "user": "u", "password_file": "/p"}}"#;
    assert_eq!(insecure(right), [""; 0]);
    let said = insecure(
        r#"{"protocol": "SSL", "ca": "ca", "key": "/k", "sasl":
        {"mechanism": "PLAIN", "user": "u", "password_file": "hunter2"}}"#,
    );
    assert_eq!(keys(&said), ["ca", "sasl.password_file", "certificate", "sasl"]);
    assert!(!said.concat().contains("hunter2"), "{said:?}");
    let said = insecure(r#"{"protocol": "PLAINTEXT", "ca": "/ca"}"#);
    assert_eq!(keys(&said), ["ca"]);
    assert_eq!(keys(&insecure(r#"{"protocol": "SASL_SSL"}"#)), ["sasl"]);
}

#[test]
fn controllers_are_dialled_as_brokers_unless_told_otherwise() {
    let dialers = |text: &str| serde_json::from_str::<ClusterConfig>(text).unwrap().dialers();
    let printed = |dialer: &Dialer| format!("{dialer:?}").contains("Ssl");
    let both = dialers(r#"{"bootstrap": ["a:9092"], "security": {"protocol": "SSL"}}"#);
    assert!(printed(&both.brokers) && printed(&both.controllers));
    let apart = dialers(
        r#"{"bootstrap": ["a:9092"], "security": {"protocol": "SSL"},
        "controllers": ["1@a:9093"], "controllers_security": {"protocol": "PLAINTEXT"}}"#,
    );
    assert!(printed(&apart.brokers) && !printed(&apart.controllers));
}
