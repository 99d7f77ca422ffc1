//! What a crash of each guarded broker would make its next start read through, asked of the broker itself
//! while it lives. For predictions and for people: no decision rests on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;

use kafka::Dialer;
use kafka::wire::{Replica, WireError};
use recovery::model::{BrokerId, Endpoint, Evidence, Fact, LogTail};
use recovery::ports::{Clock, HealthSignal};

/// Logs grow slowly beside what this is used for, and the answer of a large broker is not small.
const PERIOD: Duration = Duration::from_secs(30);
/// How long a broker may take to answer each question.
const LIMIT: Duration = Duration::from_secs(5);

/// Asks guarded brokers for the sizes of their logs.
#[derive(Debug)]
pub struct KafkaLogs {
    dialer: Dialer,
    listeners: BTreeMap<BrokerId, Endpoint>,
}

impl KafkaLogs {
    /// Asks the brokers at these listeners.
    #[must_use]
    pub fn new(dialer: Dialer, listeners: BTreeMap<BrokerId, Endpoint>) -> Arc<Self> {
        Arc::new(Self { dialer, listeners })
    }

    /// What `broker` would have to read through now; `None` if it is not guarded here.
    ///
    /// # Errors
    /// When the broker does not tell.
    pub async fn tail(&self, broker: BrokerId) -> Result<Option<LogTail>, WireError> {
        let Some(listener) = self.listeners.get(&broker) else { return Ok(None) };
        let mut connection = self.dialer.open(listener, LIMIT).await?;
        let replicas = connection.replicas(LIMIT).await?;
        let topics: BTreeSet<String> = replicas.iter().map(|replica| replica.topic.clone()).collect();
        let segments = connection.segment_bytes(&topics, LIMIT).await?;
        Ok(Some(tail(&replicas, &segments)))
    }
}

/// Kafka flushes a segment when it begins the next one, so what it reads through after a crash is the newest
/// segment of each replica.
fn tail(replicas: &[Replica], segments: &BTreeMap<String, u64>) -> LogTail {
    let mut tail = LogTail { replicas: replicas.len(), ..LogTail::default() };
    for replica in replicas {
        let segment = segments.get(&replica.topic).copied().unwrap_or(LogTail::SEGMENT);
        tail.bytes += replica.bytes.min(segment);
        tail.at_most += segment;
    }
    tail
}

#[async_trait]
impl HealthSignal for KafkaLogs {
    fn name(&self) -> &'static str {
        "kafka_logs"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    /// A broker that does not answer is not told about here: what it said last still holds when it is needed.
    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let at = clock.now().mono;
        let looks = self.listeners.keys().map(|broker| async { (*broker, self.tail(*broker).await) });
        let told = join_all(looks).await.into_iter().filter_map(|(broker, told)| {
            let fact = Fact::Logs { broker, tail: told.ok().flatten()? };
            Some(Evidence { signal: self.name(), at, fact })
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::describe_configs_response::{
        DescribeConfigsResourceResult, DescribeConfigsResult,
    };
    use kafka_protocol::messages::describe_log_dirs_response::{
        DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
    };
    use kafka_protocol::messages::{
        ApiKey, DescribeConfigsRequest, DescribeConfigsResponse, DescribeLogDirsResponse, TopicName,
    };
    use kafka_protocol::protocol::StrBytes;

    use super::*;
    use fakes::World;
    use fakes::kafka::{Call, Fake, Reply};

    const BROKER: BrokerId = BrokerId(1);

    fn text(text: &str) -> StrBytes {
        StrBytes::from_string(text.to_owned())
    }

    /// `orders-0` with 100 bytes, `orders-1` with 5,000, one that moves, and `audit-0` with 700; segments of
    /// `orders` are of 1,000 bytes, and those of `audit` are not told. A second log dir has failed.
    fn says(call: &Call) -> Option<Reply> {
        match call.key {
            ApiKey::DescribeLogDirs => {
                let partition = |index, bytes, moves| {
                    DescribeLogDirsPartition::default()
                        .with_partition_index(index)
                        .with_partition_size(bytes)
                        .with_is_future_key(moves)
                };
                let topic = |name, partitions| {
                    let name = TopicName(text(name));
                    DescribeLogDirsTopic::default().with_name(name).with_partitions(partitions)
                };
                let orders =
                    vec![partition(0, 100, false), partition(1, 5000, false), partition(1, 40, true)];
                let dir = DescribeLogDirsResult::default().with_topics(vec![
                    topic("orders", orders),
                    topic("audit", vec![partition(0, 700, false)]),
                ]);
                let failed = DescribeLogDirsResult::default().with_error_code(56);
                Some(call.say(&DescribeLogDirsResponse::default().with_results(vec![dir, failed])))
            }
            ApiKey::DescribeConfigs => {
                let asked: DescribeConfigsRequest = call.read();
                let results = asked.resources.iter().map(|resource| {
                    let told = resource.resource_name.as_str() == "orders";
                    let config = DescribeConfigsResourceResult::default()
                        .with_name(text("segment.bytes"))
                        .with_value(Some(text("1000")));
                    DescribeConfigsResult::default()
                        .with_resource_name(resource.resource_name.clone())
                        .with_error_code(if told { 0 } else { 29 })
                        .with_configs(if told { vec![config] } else { Vec::new() })
                });
                Some(call.say(&DescribeConfigsResponse::default().with_results(results.collect())))
            }
            _ => None,
        }
    }

    #[tokio::test]
    async fn the_newest_segment_of_each_replica_counts() {
        let broker = Fake::start(says).await;
        let logs = KafkaLogs::new(Dialer::plaintext(), BTreeMap::from([(BROKER, broker.at.clone())]));
        let expected = LogTail { replicas: 3, bytes: 100 + 1000 + 700, at_most: 2000 + LogTail::SEGMENT };
        assert_eq!(logs.tail(BROKER).await.unwrap(), Some(expected));
        match logs.look(&World::new()).await.as_slice() {
            [Evidence { signal: "kafka_logs", fact: Fact::Logs { broker: BROKER, tail }, .. }] => {
                assert_eq!(*tail, expected);
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_broker_without_a_log_dir_that_works_does_not_tell() {
        let broker = Fake::start(|call| {
            let failed = DescribeLogDirsResult::default().with_error_code(56);
            let dirs = || call.say(&DescribeLogDirsResponse::default().with_results(vec![failed.clone()]));
            (call.key == ApiKey::DescribeLogDirs).then(dirs)
        })
        .await;
        let logs = KafkaLogs::new(Dialer::plaintext(), BTreeMap::from([(BROKER, broker.at.clone())]));
        assert_eq!(logs.tail(BROKER).await.unwrap_err().code(), Some(56));
        assert!(logs.look(&World::new()).await.is_empty());
    }
}
