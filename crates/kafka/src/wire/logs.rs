//! What a broker's logs weigh.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeLogDirsRequest};
use kafka_protocol::protocol::{Request, StrBytes};

use super::{Connection, WireError};
use recovery::model::BrokerId;

/// `DescribeConfigs`: a topic's, and a broker's.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const SEGMENT_BYTES: &str = "segment.bytes";

/// One replica on a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// Topic name.
    pub topic: String,
    /// Partition index.
    pub partition: i32,
    /// All of its segments together.
    pub bytes: u64,
}

impl Connection {
    /// The replicas in the log dirs of the broker that is asked. What lies in a log dir that failed is not
    /// among them.
    ///
    /// # Errors
    /// See [`WireError`]; the broker's own error if it has no log dir that works.
    pub async fn replicas(&mut self, limit: Duration) -> Result<Vec<Replica>, WireError> {
        let said = self.request(&DescribeLogDirsRequest::default().with_topics(None), limit).await?;
        let key = DescribeLogDirsRequest::KEY;
        WireError::check(&self.at, key, said.error_code, None)?;
        if said.results.iter().all(|dir| dir.error_code != 0) {
            let failed = said.results.first().map_or(0, |dir| dir.error_code);
            WireError::check(&self.at, key, failed, None)?;
        }
        let topics = said.results.iter().flat_map(|dir| &dir.topics);
        let replicas = topics.flat_map(|topic| {
            // A future replica is one that moves between log dirs: its bytes are counted where it is now.
            let here = topic.partitions.iter().filter(|partition| !partition.is_future_key);
            here.map(|partition| Replica {
                topic: topic.name.to_string(),
                partition: partition.partition_index,
                bytes: u64::try_from(partition.partition_size).unwrap_or(0),
            })
        });
        Ok(replicas.collect())
    }

    /// Whether the broker that is asked is `broker`: one refuses to describe the configuration of another.
    /// `None` if it does not tell, because this client may not ask for it.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn is_broker(&mut self, broker: BrokerId, limit: Duration) -> Result<Option<bool>, WireError> {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(BROKER)
            .with_resource_name(StrBytes::from_string(broker.to_string()))
            .with_configuration_keys(Some(vec![StrBytes::from_static_str("node.id")]));
        let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
        let said = self.request(&request, limit).await?;
        let code = said.results.first().map(|result| result.error_code);
        Ok(match code {
            Some(0) => Some(true),
            Some(code) if code == ResponseError::InvalidRequest.code() => Some(false),
            _ => None,
        })
    }

    /// `segment.bytes` of each of `topics`, where the broker tells it.
    ///
    /// # Errors
    /// See [`WireError`]. A topic that is gone, or that this client may not look at, is left out.
    pub async fn segment_bytes(
        &mut self,
        topics: &BTreeSet<String>,
        limit: Duration,
    ) -> Result<BTreeMap<String, u64>, WireError> {
        let resource = |topic: &String| {
            DescribeConfigsResource::default()
                .with_resource_type(TOPIC)
                .with_resource_name(StrBytes::from_string(topic.clone()))
                .with_configuration_keys(Some(vec![StrBytes::from_static_str(SEGMENT_BYTES)]))
        };
        let request = DescribeConfigsRequest::default().with_resources(topics.iter().map(resource).collect());
        let said = self.request(&request, limit).await?;
        let told = said.results.iter().filter(|result| result.error_code == 0).filter_map(|result| {
            let value = result.configs.iter().find(|config| config.name.as_str() == SEGMENT_BYTES)?;
            Some((result.resource_name.to_string(), value.value.as_ref()?.parse().ok()?))
        });
        Ok(told.collect())
    }
}
