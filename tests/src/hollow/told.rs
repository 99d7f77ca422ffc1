//! What the nodes of a hollow cluster tell.

use anyhow::{Result, bail};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::describe_quorum_response::{PartitionData, ReplicaState, TopicData};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, BrokerId, DescribeClusterRequest,
    DescribeClusterResponse, DescribeQuorumRequest, DescribeQuorumResponse, MetadataRequest,
    MetadataResponse, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, Request, StrBytes};

use super::{CONTROLLER, FULL_METADATA, PORT, State, address, lock};

const CLUSTER_ID: &str = "hollow-AAAAAAAAAAAAAAA";
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;

impl State {
    /// What a request is called in the count, and the body of its answer.
    pub(super) fn told(&self, key: ApiKey, version: i16, mut body: Bytes) -> Result<(&'static str, Bytes)> {
        Ok(match key {
            ApiKey::ApiVersions => ("ApiVersions", encoded(&versions(), version)?),
            ApiKey::Metadata => {
                let asked = MetadataRequest::decode(&mut body, version)?;
                let what = if asked.topics.is_none() { FULL_METADATA } else { "Metadata, broker list" };
                (what, self.metadata(&asked, version)?)
            }
            ApiKey::DescribeQuorum => ("DescribeQuorum", encoded(&self.quorum(), version)?),
            ApiKey::DescribeCluster => ("DescribeCluster", encoded(&self.cluster(), version)?),
            other => bail!("{other:?} is not known here"),
        })
    }

    /// The broker list, with all topics or with what was asked for by name, which is not there.
    fn metadata(&self, asked: &MetadataRequest, version: i16) -> Result<Bytes> {
        let out = self.fenced();
        let names: Vec<_> = asked.topics.iter().flatten().filter_map(|topic| topic.name.clone()).collect();
        let key = (version, asked.topics.is_none(), out.clone());
        if names.is_empty()
            && let Some(told) = lock(&self.told).get(&key)
        {
            return Ok(told.clone());
        }
        let absent = |name: TopicName| {
            let topic = MetadataResponseTopic::default().with_name(Some(name));
            topic.with_error_code(UNKNOWN_TOPIC_OR_PARTITION)
        };
        let topics = match &asked.topics {
            None => (0..self.topics()).map(|index| self.topic(index, &out)).collect(),
            Some(_) => names.iter().cloned().map(absent).collect(),
        };
        let brokers = (1..=self.spec.brokers).filter(|id| !out.contains(id)).map(|id| {
            MetadataResponseBroker::default()
                .with_node_id(BrokerId(id))
                .with_host(StrBytes::from_string(address(id).ip().to_string()))
                .with_port(PORT.into())
        });
        let said = MetadataResponse::default()
            .with_cluster_id(Some(StrBytes::from_static_str(CLUSTER_ID)))
            .with_controller_id(BrokerId(1))
            .with_brokers(brokers.collect())
            .with_topics(topics);
        let told = encoded(&said, version)?;
        if names.is_empty() {
            lock(&self.told).insert(key, told.clone());
        }
        Ok(told)
    }

    fn topics(&self) -> i32 {
        (self.spec.partitions + self.spec.per_topic - 1) / self.spec.per_topic
    }

    fn topic(&self, index: i32, out: &[i32]) -> MetadataResponseTopic {
        let first = index * self.spec.per_topic;
        let partitions = (first..self.spec.partitions.min(first + self.spec.per_topic)).map(|number| {
            let replicas = self.replicas(number);
            let isr: Vec<i32> = replicas.iter().copied().filter(|id| !out.contains(id)).collect();
            let gone = replicas.iter().copied().filter(|id| out.contains(id));
            let nodes = |ids: &[i32]| ids.iter().copied().map(BrokerId).collect::<Vec<_>>();
            MetadataResponsePartition::default()
                .with_partition_index(number - first)
                .with_leader_id(BrokerId(isr.first().copied().unwrap_or(-1)))
                .with_replica_nodes(nodes(&replicas))
                .with_isr_nodes(nodes(&isr))
                .with_offline_replicas(gone.map(BrokerId).collect())
        });
        let name = TopicName(StrBytes::from_string(format!("team-{}.events-{index}", index % 40)));
        MetadataResponseTopic::default().with_name(Some(name)).with_partitions(partitions.collect())
    }

    /// Three brokers; every broker has as many as any other, and shares with many.
    fn replicas(&self, number: i32) -> [i32; 3] {
        let brokers = self.spec.brokers;
        let step = 1 + number / brokers % ((brokers - 1) / 2);
        [0, 1, 2].map(|place| 1 + (number + place * step) % brokers)
    }

    fn quorum(&self) -> DescribeQuorumResponse {
        let replica = |id: i32, at: i64| {
            ReplicaState::default()
                .with_replica_id(BrokerId(id))
                .with_last_fetch_timestamp(at)
                .with_last_caught_up_timestamp(at)
        };
        let observers: Vec<_> = self.fetched().map(|(id, at)| replica(id, at)).collect();
        let now = observers.iter().map(|o| o.last_fetch_timestamp).max().unwrap_or_default();
        let partition = PartitionData::default()
            .with_leader_id(BrokerId(CONTROLLER))
            .with_leader_epoch(1)
            .with_current_voters(vec![replica(CONTROLLER, now)])
            .with_observers(observers);
        let name = TopicName(StrBytes::from_static_str("__cluster_metadata"));
        let topic = TopicData::default().with_topic_name(name).with_partitions(vec![partition]);
        DescribeQuorumResponse::default().with_topics(vec![topic])
    }

    fn cluster(&self) -> DescribeClusterResponse {
        let out = self.fenced();
        let brokers = (1..=self.spec.brokers).map(|id| {
            DescribeClusterBroker::default()
                .with_broker_id(BrokerId(id))
                .with_host(StrBytes::from_string(address(id).ip().to_string()))
                .with_port(PORT.into())
                .with_is_fenced(out.contains(&id))
        });
        DescribeClusterResponse::default()
            .with_cluster_id(StrBytes::from_static_str(CLUSTER_ID))
            .with_controller_id(BrokerId(1))
            .with_brokers(brokers.collect())
    }
}

fn versions() -> ApiVersionsResponse {
    fn range<R: Request>() -> ApiVersion {
        let range = ApiVersion::default().with_api_key(R::KEY);
        range.with_min_version(R::VERSIONS.min).with_max_version(R::VERSIONS.max)
    }
    ApiVersionsResponse::default().with_api_keys(vec![
        range::<ApiVersionsRequest>(),
        range::<MetadataRequest>(),
        range::<DescribeClusterRequest>(),
        range::<DescribeQuorumRequest>(),
    ])
}

fn encoded<R: Encodable>(said: &R, version: i16) -> Result<Bytes> {
    let mut bytes = BytesMut::new();
    said.encode(&mut bytes, version)?;
    Ok(bytes.freeze())
}

#[cfg(test)]
mod tests {
    use super::super::HollowSpec;
    use super::*;

    fn state(spec: HollowSpec) -> State {
        State {
            spec,
            stopped: Default::default(),
            told: Default::default(),
            asked: Default::default(),
            strange: Default::default(),
        }
    }

    fn all(state: &State) -> MetadataResponse {
        let asked = MetadataRequest::default().with_topics(None);
        MetadataResponse::decode(&mut state.metadata(&asked, 12).unwrap(), 12).unwrap()
    }

    #[test]
    fn every_partition_has_three_brokers_and_every_broker_its_share() {
        let state = state(HollowSpec { brokers: 10, partitions: 1005, per_topic: 100 });
        let said = all(&state);
        assert_eq!(said.topics.len(), 11);
        let partitions: Vec<_> = said.topics.iter().flat_map(|topic| &topic.partitions).collect();
        assert_eq!(partitions.len(), 1005);
        let mut held = std::collections::BTreeMap::new();
        for partition in partitions {
            let mut nodes: Vec<i32> = partition.replica_nodes.iter().map(|id| id.0).collect();
            nodes.sort_unstable();
            nodes.dedup();
            assert_eq!(nodes.len(), 3, "{partition:?}");
            nodes.into_iter().for_each(|id| *held.entry(id).or_insert(0) += 1);
        }
        assert_eq!(held.len(), 10);
        assert!(held.values().all(|held| (300..=303).contains(held)), "{held:?}");
    }

    #[test]
    fn a_broker_whose_session_is_over_is_on_no_list_and_in_no_isr() {
        let state = state(HollowSpec { brokers: 5, partitions: 50, per_topic: 10 });
        let long_ago = std::time::Instant::now().checked_sub(super::super::SESSION).unwrap();
        lock(&state.stopped).insert(2, long_ago);
        let said = all(&state);
        assert!(said.brokers.iter().all(|broker| broker.node_id.0 != 2));
        assert_eq!(said.brokers.len(), 4);
        let mut with_two = 0;
        for partition in said.topics.iter().flat_map(|topic| &topic.partitions) {
            assert!(partition.leader_id.0 != 2 && partition.isr_nodes.iter().all(|id| id.0 != 2));
            with_two += i32::from(partition.replica_nodes.iter().any(|id| id.0 == 2));
        }
        assert_eq!(with_two, 30);
        let fetched: std::collections::BTreeMap<i32, i64> = state.fetched().collect();
        let silence = fetched[&3] - fetched[&2];
        // Each fetched some milliseconds apart.
        assert!((8_990..60_000).contains(&silence), "{fetched:?}");
    }
}
