//! Reading a topic to its end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Message, Offset, TopicPartitionList};

use super::judge::{Verdict, judge};
use super::{History, RecordId};

/// A record as it is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRecord {
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Which record it is.
    pub id: RecordId,
}

/// Reads the topic of `histories`, which must be all that was written to it, and judges them.
///
/// # Errors
/// When the topic cannot be read; violations are in the [`Verdict`].
pub(crate) fn verify(client: ClientConfig, histories: &[&History]) -> Result<Verdict> {
    let topic = histories.first().context("no history to verify")?.topic.as_str();
    ensure!(histories.iter().all(|history| history.topic == topic), "histories of different topics");
    let log = read_topic(client, topic, Duration::from_secs(120))?;
    Ok(judge(histories, &log))
}

/// Reads every partition of `topic` from its beginning to the high watermark it has now. Records are in the
/// order of their offsets within each partition.
///
/// # Errors
/// When that takes longer than `limit`, or there is a record no writer wrote.
fn read_topic(mut client: ClientConfig, topic: &str, limit: Duration) -> Result<Vec<ReadRecord>> {
    let deadline = Instant::now() + limit;
    let consumer: BaseConsumer = client
        .set("group.id", "e2e-verify")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "error")
        .set("allow.auto.create.topics", "false")
        .create()?;
    let mut ends = end_offsets(&consumer, topic)?;
    let mut assignment = TopicPartitionList::new();
    for partition in ends.keys() {
        assignment.add_partition_offset(topic, *partition, Offset::Beginning)?;
    }
    consumer.assign(&assignment)?;
    ends.retain(|_, end| *end > 0);

    let mut log = Vec::new();
    while !ends.is_empty() {
        ensure!(Instant::now() < deadline, "partition: end of {topic} not read in {limit:?}: {ends:?}");
        let message = match consumer.poll(Duration::from_millis(100)) {
            None => continue,
            // A broker that went away is one the client will find again, or not until the deadline.
            Some(Err(error)) if Instant::now() < deadline => {
                eprintln!("reading {topic}: {error}");
                continue;
            }
            Some(message) => message?,
        };
        let (partition, offset) = (message.partition(), message.offset());
        let end = ends.get(&partition).copied().unwrap_or_default();
        if offset < end {
            let id = RecordId::of_value(message.payload().unwrap_or_default())
                .with_context(|| format!("{topic} {partition}/{offset}"))?;
            log.push(ReadRecord { partition, offset, id });
        }
        if offset + 1 >= end {
            ends.remove(&partition);
        }
    }
    Ok(log)
}

/// The high watermark of every partition.
fn end_offsets(consumer: &BaseConsumer, topic: &str) -> Result<BTreeMap<i32, i64>> {
    let limit = Duration::from_secs(30);
    let metadata = consumer.fetch_metadata(Some(topic), limit)?;
    let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions()).map(|found| found.id());
    let ends: BTreeMap<i32, i64> = partitions
        .map(|partition| Ok((partition, consumer.fetch_watermarks(topic, partition, limit)?.1)))
        .collect::<Result<_>>()?;
    ensure!(!ends.is_empty(), "there is no topic {topic}");
    Ok(ends)
}
