use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsResponse, BrokerId, DescribeClusterRequest, DescribeClusterResponse,
    DescribeQuorumRequest, ElectLeadersRequest, MetadataRequest, MetadataResponse, TopicName,
    UnregisterBrokerRequest,
};
use proptest::prelude::*;
use tokio::net::TcpListener;

use super::*;
use crate::Dialer;
use fakes::kafka::{Fake, Reply, framed, versions};

const LIMIT: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(100);

fn describe_cluster() -> DescribeClusterResponse {
    let broker = |id| DescribeClusterBroker::default().with_broker_id(BrokerId(id)).with_is_fenced(id == 2);
    DescribeClusterResponse::default()
        .with_cluster_id(StrBytes::from_static_str("c"))
        .with_brokers(vec![broker(1), broker(2)])
}

fn describe_metadata() -> MetadataResponse {
    let partition = MetadataResponsePartition::default()
        .with_leader_id(BrokerId(-1))
        .with_replica_nodes(vec![BrokerId(2), BrokerId(1)])
        .with_isr_nodes(vec![BrokerId(1)]);
    let topic = MetadataResponseTopic::default()
        .with_name(Some(TopicName(StrBytes::from_static_str("orders"))))
        .with_partitions(vec![partition]);
    let broker = MetadataResponseBroker::default()
        .with_node_id(BrokerId(1))
        .with_host(StrBytes::from_static_str("kafka-1"))
        .with_port(9092);
    MetadataResponse::default()
        .with_brokers(vec![broker])
        .with_topics(vec![topic])
        .with_controller_id(BrokerId(1))
}

#[tokio::test]
async fn speaks_the_newest_version_both_sides_know() {
    let fake = Fake::start(|call| match call.key {
        ApiKey::DescribeCluster => {
            assert_eq!(call.version(), 2);
            assert!(call.read::<DescribeClusterRequest>().include_fenced_brokers);
            Some(call.say(&describe_cluster()))
        }
        _ => None,
    })
    .await;
    let mut connection = Dialer::plaintext().open(&fake.at, LIMIT).await.unwrap();
    let seen = connection.describe_cluster(LIMIT).await.unwrap();
    assert_eq!(seen.cluster_id, "c");
    let fenced: Vec<_> = seen.brokers.iter().map(|(id, r)| (id.0, *r)).collect();
    assert_eq!(fenced, [(1, Registration::Unfenced), (2, Registration::Fenced)]);
}

#[tokio::test]
async fn speaks_an_older_version_where_the_other_side_is_older() {
    let fake = Fake::start(|call| match call.key {
        ApiKey::ApiVersions => {
            let range = |key, max| ApiVersion::default().with_api_key(key).with_max_version(max);
            // Metadata 8 is not flexible: too old to be spoken.
            let keys = vec![range(DescribeClusterRequest::KEY, 1), range(MetadataRequest::KEY, 8)];
            Some(call.say(&ApiVersionsResponse::default().with_api_keys(keys)))
        }
        ApiKey::DescribeCluster => {
            assert_eq!(call.version(), 1);
            let mut said = describe_cluster();
            said.brokers.truncate(1);
            Some(call.say(&said))
        }
        _ => None,
    })
    .await;
    let mut connection = Dialer::plaintext().open(&fake.at, LIMIT).await.unwrap();
    assert_eq!(connection.describe_cluster(LIMIT).await.unwrap().brokers.len(), 1);
    let error = connection.metadata(Topics::All, LIMIT).await.unwrap_err();
    assert!(matches!(error, WireError::Unsupported { .. }), "{error:?}");
    assert_eq!(fake.calls(ApiKey::Metadata), 0);
}

#[tokio::test]
async fn metadata_never_creates_topics_and_minus_one_is_nobody() {
    let fake = Fake::start(|call| match call.key {
        ApiKey::Metadata => {
            let asked = call.read::<MetadataRequest>();
            assert!(!asked.allow_auto_topic_creation);
            assert!(asked.topics.is_none(), "all topics");
            Some(call.say(&describe_metadata()))
        }
        _ => None,
    })
    .await;
    let mut connection = Dialer::plaintext().open(&fake.at, LIMIT).await.unwrap();
    let seen = connection.metadata(Topics::All, LIMIT).await.unwrap();
    let partition = &seen.partitions.partitions[0];
    assert_eq!(partition.topic, "orders");
    assert_eq!(partition.leader, None);
    assert_eq!(partition.isr, [recovery::model::BrokerId(1)]);
    assert_eq!(seen.brokers[&recovery::model::BrokerId(1)].to_string(), "kafka-1:9092");
}

#[tokio::test]
async fn tells_a_refused_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
    drop(listener);
    let error = Dialer::plaintext().open(&at, LIMIT).await.unwrap_err();
    assert!(matches!(error, WireError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_a_fault_of_this_host() {
    let at: Endpoint = "no-such-host.invalid:9092".parse().unwrap();
    let error = Dialer::plaintext().open(&at, SHORT).await.unwrap_err();
    assert!(matches!(error, WireError::Local { .. }), "{error:?}");
}

#[tokio::test]
async fn tells_silence_and_can_wait_on() {
    let fake = Fake::start(|call| match call.key {
        ApiKey::Metadata => {
            // Half an answer; the other half comes with the next request.
            let Reply::Raw(all) = call.say(&describe_metadata()) else { unreachable!() };
            Some(Reply::Raw(all.slice(..all.len() / 2)))
        }
        ApiKey::DescribeCluster => Some(Reply::Nothing),
        _ => None,
    })
    .await;
    let mut connection = Dialer::plaintext().open(&fake.at, LIMIT).await.unwrap();
    let version = connection.version::<MetadataRequest>().unwrap();
    let until = Instant::now() + SHORT;
    let asked = connection.send(&MetadataRequest::default(), version, until).await.unwrap();
    let error = connection.answer::<MetadataRequest>(asked, until).await.unwrap_err();
    assert!(matches!(error, WireError::Silent { .. }), "{error:?}");
    assert!(!connection.inbox.is_empty(), "what has arrived is kept");
    let error = connection.answer::<MetadataRequest>(asked, Instant::now() + SHORT).await.unwrap_err();
    assert!(matches!(error, WireError::Silent { .. }), "{error:?}");
}

#[tokio::test]
async fn tells_a_connection_that_is_closed_without_an_answer() {
    let fake = Fake::start(|_| Some(Reply::Close)).await;
    let error = Dialer::plaintext().open(&fake.at, LIMIT).await.unwrap_err();
    assert!(matches!(error, WireError::Closed { .. }), "{error:?}");
}

#[tokio::test]
async fn tells_nonsense() {
    let replies: [Bytes; 4] = [
        Bytes::from_static(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        framed(&[0; 3]),
        framed(&[0, 0, 0, 1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        Bytes::from_static(&[0xff, 0xff, 0xff, 0xff]),
    ];
    for reply in replies {
        let said = reply.clone();
        let fake = Fake::start(move |_| Some(Reply::Raw(said.clone()))).await;
        let error = Dialer::plaintext().open(&fake.at, LIMIT).await.unwrap_err();
        assert!(matches!(error, WireError::Nonsense { .. }), "{reply:?}: {error:?}");
    }
}

#[tokio::test]
async fn an_answer_to_another_request_is_nonsense() {
    let fake = Fake::start(|call| Some(call.say_as(77, &versions()))).await;
    let error = Dialer::plaintext().open(&fake.at, LIMIT).await.unwrap_err();
    assert!(error.to_string().contains("request 77"), "{error}");
}

#[tokio::test]
async fn tells_error_codes_by_name() {
    let fake = Fake::start(|call| match call.key {
        ApiKey::DescribeCluster => Some(call.say(&DescribeClusterResponse::default().with_error_code(114))),
        _ => None,
    })
    .await;
    let mut connection = Dialer::plaintext().open(&fake.at, LIMIT).await.unwrap();
    let error = connection.describe_cluster(LIMIT).await.unwrap_err();
    assert_eq!(error.code(), Some(114));
    assert!(error.to_string().contains("MismatchedEndpointType"), "{error}");
}

#[tokio::test]
async fn opening_has_one_deadline() {
    let fake = Fake::start(|_| Some(Reply::Nothing)).await;
    let begin = Instant::now();
    let error = Dialer::plaintext().open(&fake.at, SHORT).await.unwrap_err();
    assert!(matches!(error, WireError::Silent { .. }), "{error:?}");
    assert!(begin.elapsed() < SHORT * 10);
}

fn decode_as(kind: usize, frame: Bytes, version: i16) -> bool {
    let asked = Asked { id: 0, version };
    match kind {
        0 => decode::<ApiVersionsRequest>(frame, asked).is_ok(),
        1 => decode::<MetadataRequest>(frame, asked).is_ok(),
        2 => decode::<DescribeClusterRequest>(frame, asked).is_ok(),
        3 => decode::<DescribeQuorumRequest>(frame, asked).is_ok(),
        4 => decode::<ElectLeadersRequest>(frame, asked).is_ok(),
        _ => decode::<UnregisterBrokerRequest>(frame, asked).is_ok(),
    }
}

/// The flexible versions of each, newest last.
const VERSIONS: [std::ops::RangeInclusive<i16>; 6] = [3..=4, 9..=13, 0..=2, 0..=2, 2..=2, 0..=0];

fn encoded(version: i16) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    ResponseHeader::default().encode(&mut bytes, 1).unwrap();
    describe_metadata().encode(&mut bytes, version).unwrap();
    bytes.to_vec()
}

#[test]
fn what_is_whole_is_read() {
    for version in VERSIONS[1].clone() {
        assert!(decode_as(1, encoded(version).into(), version), "version {version}");
    }
}

#[test]
fn the_number_of_an_unknown_tagged_field_is_no_length() {
    let answer = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for tag in [0, 5, 127] {
        let frame = [&answer[..], &[1, tag, 0]].concat();
        assert!(decode_as(5, frame.into(), 0), "tag {tag}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn garbage_neither_panics_nor_eats_memory(
        kind in 0..6usize,
        version in 0..14i16,
        id in prop_oneof![Just(0i32), any::<i32>()],
        bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0x80), Just(0xff), Just(0x0f)], 0..64),
    ) {
        let versions = &VERSIONS[kind];
        let version = versions.start() + version % (versions.end() - versions.start() + 1);
        let frame = [&id.to_be_bytes()[..], &bytes[..]].concat();
        decode_as(kind, frame.into(), version);
    }

    #[test]
    fn truncated_and_damaged_answers_do_not_panic(
        version in 9..=13i16,
        cut in 0.0..1.0f64,
        hit in 0.0..1.0f64,
        byte in any::<u8>(),
    ) {
        let mut bytes = encoded(version);
        let at = |share: f64, len: usize| ((share * len as f64) as usize).min(len - 1);
        let end = at(cut, bytes.len());
        prop_assert!(!decode_as(1, bytes[..end].to_vec().into(), version), "half an answer was believed");
        let place = at(hit, bytes.len());
        bytes[place] = byte;
        decode_as(1, bytes.into(), version);
    }
}
