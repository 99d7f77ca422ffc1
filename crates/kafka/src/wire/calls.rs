//! The requests this agent makes, and their answers in its own words.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_quorum_request::{
    PartitionData as AskedPartition, TopicData as AskedTopic,
};
use kafka_protocol::messages::describe_quorum_response::PartitionData;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::incremental_alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{MetadataResponse, MetadataResponsePartition};
use kafka_protocol::messages::{
    ApiVersionsRequest, BrokerId as WireBrokerId, DescribeClusterRequest, DescribeQuorumRequest,
    ElectLeadersRequest, IncrementalAlterConfigsRequest, ListOffsetsRequest, MetadataRequest, TopicName,
    UnregisterBrokerRequest,
};
use kafka_protocol::protocol::{Request, StrBytes, VersionRange};
use tokio::time::Instant;

use super::error::api;
use super::{Asked, Connection, WireError, decode};
use recovery::model::{BrokerId, Endpoint, PartitionView, Replication};

/// From this version on `DescribeCluster` can tell fenced brokers (Kafka 4.0).
const FENCED_SINCE: i16 = 2;
/// From this version on `DescribeQuorum` tells when each node last fetched (Kafka 3.3).
const FETCH_TIMES_SINCE: i16 = 1;
/// The KRaft log.
const METADATA_TOPIC: &str = "__cluster_metadata";
/// `ElectLeaders`: the preferred replica. The other kind, unclean, is never asked for by this agent.
const PREFERRED: i8 = 0;
/// `ListOffsets`: the end of what consumers may read, and who asks is no replica.
const LATEST: i64 = -1;
const CONSUMER: WireBrokerId = WireBrokerId(-1);

/// The kind of configuration that belongs to one broker.
const BROKER_CONFIG: i8 = 4;

/// To read more than this takes longer than anything else on the same thread may have to wait: 200,000
/// partitions take a tenth of a second.
const LARGE_BYTES: usize = 256 << 10;

/// Which topics to ask `Metadata` for.
#[derive(Debug, Clone, Copy)]
pub enum Topics<'a> {
    /// None: the answer is the broker list alone.
    None,
    /// Every topic.
    All,
    /// These.
    Named(&'a BTreeSet<String>),
}

/// What `Metadata` tells.
#[derive(Debug, Clone)]
pub struct MetadataSeen {
    /// The cluster's id.
    pub cluster_id: Option<String>,
    /// Where to send requests for the controller: with ZooKeeper the controller itself, with KRaft any live
    /// broker, which passes them on.
    pub controller: Option<BrokerId>,
    /// The brokers that are registered and not fenced, and where they are reached.
    pub brokers: BTreeMap<BrokerId, Endpoint>,
    /// The partitions of the topics that were asked for.
    pub partitions: PartitionView,
}

/// What `DescribeCluster` tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSeen {
    /// The cluster's id.
    pub cluster_id: String,
    /// The registered brokers. Kafka before 4.0 tells only those that are not fenced.
    pub brokers: BTreeMap<BrokerId, Registration>,
    /// Whether those that are fenced are among them.
    pub with_fenced: bool,
}

/// How a broker is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// In service.
    Unfenced,
    /// Known, and out of service.
    Fenced,
}

/// What came of the election of one partition's leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Election {
    /// Topic name.
    pub topic: String,
    /// Partition index.
    pub partition: i32,
    /// Why the preferred replica does not lead; `None` if it was elected or led already.
    pub failed: Option<String>,
}

impl Connection {
    /// Waits for the answer to [`Connection::ask_api_versions`].
    ///
    /// # Errors
    /// See [`WireError`].
    pub(crate) async fn api_versions(
        &mut self,
        asked: Asked,
        until: Instant,
    ) -> Result<BTreeMap<i16, VersionRange>, WireError> {
        let said = self.answer::<ApiVersionsRequest>(asked, until).await?;
        WireError::check(&self.at, ApiVersionsRequest::KEY, said.error_code, None)?;
        let range = |min, max| VersionRange { min, max };
        Ok(said.api_keys.iter().map(|api| (api.api_key, range(api.min_version, api.max_version))).collect())
    }

    /// The broker list, and the partitions of `topics`. Never creates a topic.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn metadata(&mut self, topics: Topics<'_>, limit: Duration) -> Result<MetadataSeen, WireError> {
        let named = |name: &String| {
            let name = StrBytes::from_string(name.clone());
            MetadataRequestTopic::default().with_name(Some(TopicName(name)))
        };
        let topics = match topics {
            Topics::None => Some(Vec::new()),
            Topics::All => None,
            Topics::Named(names) => Some(names.iter().map(named).collect()),
        };
        let request = MetadataRequest::default().with_topics(topics).with_allow_auto_topic_creation(false);
        let (asked, frame) = self.exchange(&request, limit).await?;
        let large = frame.len() > LARGE_BYTES;
        let read = move || {
            decode::<MetadataRequest>(frame, asked).map(|said| (said.error_code, metadata_seen(said)))
        };
        let seen = if large {
            let read = tokio::task::spawn_blocking(move || {
                let seen = read();
                give_memory_back();
                seen
            });
            let read = read.await;
            read.unwrap_or_else(|panicked| Err(panicked.to_string()))
        } else {
            read()
        };
        let (code, seen) = seen.map_err(|why| self.nonsense(why))?;
        WireError::check(&self.at, MetadataRequest::KEY, code, None)?;
        Ok(seen)
    }

    /// The registered brokers, told by a broker.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn describe_cluster(&mut self, limit: Duration) -> Result<ClusterSeen, WireError> {
        let with_fenced = self.version::<DescribeClusterRequest>()? >= FENCED_SINCE;
        let request = DescribeClusterRequest::default().with_include_fenced_brokers(with_fenced);
        let said = self.request(&request, limit).await?;
        let message = said.error_message.as_deref();
        WireError::check(&self.at, DescribeClusterRequest::KEY, said.error_code, message)?;
        let registration = |fenced| if fenced { Registration::Fenced } else { Registration::Unfenced };
        let brokers = said.brokers.iter().map(|b| (BrokerId(b.broker_id.0), registration(b.is_fenced)));
        Ok(ClusterSeen { cluster_id: said.cluster_id.to_string(), brokers: brokers.collect(), with_fenced })
    }

    /// The metadata log's leader and who fetches it, told by the active controller: a broker passes the
    /// question on, another controller answers with an error code.
    ///
    /// # Errors
    /// See [`WireError`]; [`WireError::Unsupported`] before Kafka 3.3.
    pub async fn describe_quorum(&mut self, limit: Duration) -> Result<PartitionData, WireError> {
        let key = DescribeQuorumRequest::KEY;
        if self.version::<DescribeQuorumRequest>()? < FETCH_TIMES_SINCE {
            return Err(WireError::Unsupported { at: self.at.clone(), api: api(key) });
        }
        let topic = AskedTopic::default()
            .with_topic_name(TopicName(StrBytes::from_static_str(METADATA_TOPIC)))
            .with_partitions(vec![AskedPartition::default().with_partition_index(0)]);
        let request = DescribeQuorumRequest::default().with_topics(vec![topic]);
        let said = self.request(&request, limit).await?;
        WireError::check(&self.at, key, said.error_code, said.error_message.as_deref())?;
        let partition = said.topics.into_iter().flat_map(|topic| topic.partitions).next();
        let partition = partition.ok_or_else(|| self.nonsense("a quorum without a partition"))?;
        WireError::check(&self.at, key, partition.error_code, partition.error_message.as_deref())?;
        Ok(partition)
    }

    /// Whether the active controller, asked directly, has a registration of `broker`, fenced or not: it
    /// refuses to check a change of a broker's configuration for one that has none. The change is empty, and
    /// only checked. A controller that is the broker as well is known in any case.
    ///
    /// # Errors
    /// See [`WireError`]; also if another controller is the active one.
    pub async fn knows_broker(&mut self, broker: BrokerId, limit: Duration) -> Result<bool, WireError> {
        let key = IncrementalAlterConfigsRequest::KEY;
        let resource = AlterConfigsResource::default()
            .with_resource_type(BROKER_CONFIG)
            .with_resource_name(StrBytes::from_string(broker.to_string()));
        let request =
            IncrementalAlterConfigsRequest::default().with_resources(vec![resource]).with_validate_only(true);
        let said = self.request(&request, limit).await?;
        let Some(said) = said.responses.first() else { return Err(self.nonsense("no answer on the broker")) };
        if said.error_code == ResponseError::BrokerIdNotRegistered.code() {
            return Ok(false);
        }
        WireError::check(&self.at, key, said.error_code, said.error_message.as_deref())?;
        Ok(true)
    }

    /// Removes a broker's registration. Only the active controller, asked directly, gives an answer that
    /// is certain to be about this one request: see crate `drivers`.
    ///
    /// # Errors
    /// See [`WireError`]. Only [`WireError::Code`] means that nothing was removed.
    pub async fn unregister_broker(&mut self, broker: BrokerId, limit: Duration) -> Result<(), WireError> {
        let request = UnregisterBrokerRequest::default().with_broker_id(WireBrokerId(broker.0));
        let said = self.request(&request, limit).await?;
        let message = said.error_message.as_deref();
        WireError::check(&self.at, UnregisterBrokerRequest::KEY, said.error_code, message)
    }

    /// Has the preferred replicas of `partitions` lead them.
    ///
    /// # Errors
    /// See [`WireError`]. What a single partition came to is in the answer.
    pub async fn elect_preferred(
        &mut self,
        partitions: &[(String, i32)],
        limit: Duration,
    ) -> Result<Vec<Election>, WireError> {
        let topics = by_topic(partitions).map(|(topic, partitions)| {
            TopicPartitions::default().with_topic(topic).with_partitions(partitions)
        });
        let request = ElectLeadersRequest::default()
            .with_election_type(PREFERRED)
            .with_topic_partitions(Some(topics.collect()))
            .with_timeout_ms(i32::try_from(limit.as_millis()).unwrap_or(i32::MAX));
        let said = self.request(&request, limit).await?;
        WireError::check(&self.at, ElectLeadersRequest::KEY, said.error_code, None)?;
        let results = said.replica_election_results.iter().flat_map(|topic| {
            topic.partition_result.iter().map(|result| Election {
                topic: topic.topic.to_string(),
                partition: result.partition_id,
                failed: election_failure(result.error_code, result.error_message.as_deref()),
            })
        });
        Ok(results.collect())
    }

    /// Whether this broker leads all of `partitions` by its own account, and its followers have followed it
    /// since: before that it has no latest offset to tell (`OFFSET_NOT_AVAILABLE`, KIP-207).
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn serves(&mut self, partitions: &[(String, i32)], limit: Duration) -> Result<bool, WireError> {
        let latest =
            |index| ListOffsetsPartition::default().with_partition_index(index).with_timestamp(LATEST);
        let topics = by_topic(partitions).map(|(topic, partitions)| {
            let partitions = partitions.into_iter().map(latest).collect();
            ListOffsetsTopic::default().with_name(topic).with_partitions(partitions)
        });
        let request = ListOffsetsRequest::default()
            .with_replica_id(CONSUMER)
            .with_topics(topics.collect())
            .with_timeout_ms(i32::try_from(limit.as_millis()).unwrap_or(i32::MAX));
        let said = self.request(&request, limit).await?;
        let told = said.topics.iter().flat_map(|topic| &topic.partitions);
        Ok(told.filter(|partition| partition.error_code == 0).count() == partitions.len())
    }
}

/// The partitions of each topic.
fn by_topic(partitions: &[(String, i32)]) -> impl Iterator<Item = (TopicName, Vec<i32>)> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in partitions {
        topics.entry(topic).or_default().push(*partition);
    }
    let name = |topic: &str| TopicName(StrBytes::from_string(topic.to_owned()));
    topics.into_iter().map(move |(topic, partitions)| (name(topic), partitions))
}

fn election_failure(code: i16, message: Option<&str>) -> Option<String> {
    match ResponseError::try_from_code(code)? {
        // It leads already.
        ResponseError::ElectionNotNeeded => None,
        other => Some(message.map_or_else(|| other.to_string(), |text| format!("{other}: {text}"))),
    }
}

/// Has the C library give back what reading a large answer took. By itself it keeps that for the thread it
/// was freed on, and which thread reads the next one is chance: an agent among 200,000 partitions grew to 340
/// MB.
fn give_memory_back() {
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    unsafe {
        libc::malloc_trim(0);
    }
}

pub(super) fn metadata_seen(said: MetadataResponse) -> MetadataSeen {
    let brokers = said.brokers.iter().filter_map(|broker| {
        let port = u16::try_from(broker.port).ok()?;
        Some((BrokerId(broker.node_id.0), Endpoint { host: broker.host.to_string(), port }))
    });
    let partitions = said.topics.iter().flat_map(|topic| {
        let name = topic.name.as_ref().map(|name| name.to_string()).unwrap_or_default();
        topic.partitions.iter().map(move |partition| replication(name.clone(), partition))
    });
    MetadataSeen {
        cluster_id: said.cluster_id.as_ref().map(ToString::to_string),
        controller: node(said.controller_id),
        brokers: brokers.collect(),
        partitions: PartitionView { partitions: partitions.collect() },
    }
}

fn replication(topic: String, partition: &MetadataResponsePartition) -> Replication {
    let nodes = |ids: &[WireBrokerId]| ids.iter().map(|id| BrokerId(id.0)).collect();
    Replication {
        topic,
        partition: partition.partition_index,
        leader: node(partition.leader_id),
        replicas: nodes(&partition.replica_nodes),
        isr: nodes(&partition.isr_nodes),
    }
}

/// Kafka writes -1 for nobody.
fn node(id: WireBrokerId) -> Option<BrokerId> {
    (id.0 >= 0).then_some(BrokerId(id.0))
}
