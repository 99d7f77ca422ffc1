//! The topic as librdkafka sees it: read to its end, write one record, ask how it is set up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::FutureProducer;
use rdkafka::types::RDKafkaConfRes;
use rdkafka::{ClientContext, Message, Offset, TopicPartitionList};
use secrecy::ExposeSecret;

use super::KafkaLedgerConfig;
use super::book::{Book, unavailable};
use super::check::TopicSeen;
use crate::fence::resolve;
use recovery::ports::LedgerError;

/// The one partition: a total order is what makes the compare-and-set.
pub(super) const PARTITION: i32 = 0;
/// How long one broker is asked before another one is looked for.
const ATTEMPT: Duration = Duration::from_secs(1);
/// How long one poll waits for a record.
const POLL: Duration = Duration::from_millis(100);
/// What a client says of its brokers at one time is less than this.
const SAYINGS: usize = 1_000;
/// Between two attempts.
const RETRY: Duration = Duration::from_millis(50);

/// What every client has, and why no site may change it.
const OURS: &[(&str, &str)] = &[
    ("client.id", "understudy-ledger"),
    // A broker that does not answer is given up, and its connection with it. The same request is then made
    // again, which does no harm: producers are idempotent.
    ("socket.timeout.ms", "3000"),
    ("socket.connection.setup.timeout.ms", "1000"),
    ("socket.keepalive.enable", "true"),
    ("reconnect.backoff.ms", "50"),
    ("reconnect.backoff.max.ms", "500"),
    // A broker that was moved is found at its new address, and a new leader soon.
    ("broker.address.ttl", "1000"),
    ("topic.metadata.refresh.interval.ms", "1000"),
];
const READS: &[(&str, &str)] = &[
    ("group.id", "understudy-ledger"),
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "error"),
    ("allow.auto.create.topics", "false"),
    ("enable.partition.eof", "true"),
    ("check.crcs", "true"),
    // There are no transactions in the topic; then this is what "to the end" means.
    ("isolation.level", "read_uncommitted"),
    ("fetch.wait.max.ms", "10"),
];
const WRITES: &[(&str, &str)] = &[
    // With `min.insync.replicas` of the topic: written is what two brokers have.
    ("acks", "all"),
    ("enable.idempotence", "true"),
    ("linger.ms", "0"),
    ("retry.backoff.ms", "50"),
    ("retry.backoff.max.ms", "500"),
    // Less than socket.timeout.ms, so that a broker which waits for its followers says so.
    ("request.timeout.ms", "2000"),
];
const DERIVED: &[&str] =
    &["bootstrap.servers", "metadata.broker.list", "message.timeout.ms", "delivery.timeout.ms"];

/// The client properties that are not a site's to choose.
pub(super) fn is_ours(name: &str) -> bool {
    let fixed = OURS.iter().chain(READS).chain(WRITES).map(|(key, _)| *key);
    fixed.chain(DERIVED.iter().copied()).any(|key| key == name) || name == "transactional.id"
}

/// The settings of all clients, with the secrets read.
pub(super) async fn settings(config: &KafkaLedgerConfig) -> Result<ClientConfig, LedgerError> {
    let mut settings = ClientConfig::new();
    for (name, value) in &config.properties {
        let value = resolve(name, value).await.map_err(|error| unavailable("make a Kafka client", error))?;
        settings.set(name, value.expose_secret());
    }
    if let Some(security) = &config.security {
        super::secured::apply(security, &mut settings).await?;
    }
    let bootstrap: Vec<String> = config.bootstrap.iter().map(ToString::to_string).collect();
    settings.set("bootstrap.servers", bootstrap.join(","));
    with(&mut settings, OURS);
    settings.set_log_level(RDKafkaLogLevel::Emerg);
    Ok(settings)
}

fn with(settings: &mut ClientConfig, properties: &[(&str, &str)]) {
    for (name, value) in properties {
        settings.set(*name, *value);
    }
}

/// Why there is no client. librdkafka repeats the value of a property that it does not take, and that may be a
/// secret.
pub(super) fn not_made(error: KafkaError) -> LedgerError {
    let action = "make a Kafka client";
    let KafkaError::ClientConfig(why, _, name, _) = error else { return unavailable(action, error) };
    let why = match why {
        RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN => "librdkafka knows no such property",
        _ => "librdkafka does not take its value",
    };
    unavailable(action, format!("properties.{name}: {why}. Correct it in [ledger]"))
}

/// A producer that gives a record up after `limit`.
pub(super) fn producer(
    mut settings: ClientConfig,
    limit: Duration,
    quiet: Quiet,
) -> KafkaResult<FutureProducer<Quiet>> {
    with(&mut settings, WRITES);
    settings.set("message.timeout.ms", limit.as_millis().to_string());
    FutureProducer::from_config_and_context(&settings, quiet)
}

fn consumer(mut settings: ClientConfig) -> KafkaResult<BaseConsumer<Quiet>> {
    with(&mut settings, READS);
    BaseConsumer::from_config_and_context(&settings, Quiet::default())
}

/// Keeps librdkafka's complaints out of the log: what they mean for us is in the error of the call. One alone is
/// not, for the client goes on trying: that a broker does not let it in, or is not trusted.
#[derive(Clone, Default)]
pub(super) struct Quiet {
    refused: Arc<Mutex<Option<String>>>,
}

impl Quiet {
    /// Why the client was not let in since this was asked last.
    pub(super) fn refusal(&self) -> Option<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ClientContext for Quiet {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(facility, message, "librdkafka says");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "librdkafka says");
        let remedy = match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed) => {
                "correct the user or the password that [ledger] names"
            }
            Some(RDKafkaErrorCode::SSL) => {
                "correct the certificates that [ledger] names, or the listener's own"
            }
            _ => return,
        };
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{reason}: {remedy}"));
    }
}

impl ConsumerContext for Quiet {}

/// The topic, read so far, and the book made of it. Its calls block.
pub(super) struct Reader {
    consumer: Option<BaseConsumer<Quiet>>,
    topic: String,
    /// Where reading goes on.
    next: i64,
    /// When the last reading that reached the end was begun.
    complete_since: Option<Instant>,
    /// What was read.
    pub(super) book: Book,
}

impl Reader {
    /// A reader that has read nothing and is not connected.
    pub(super) fn new(topic: &str) -> Self {
        Self {
            consumer: None,
            topic: topic.to_owned(),
            next: 0,
            complete_since: None,
            book: Book::new(topic),
        }
    }

    /// Whether it needs settings to connect with.
    pub(super) fn is_connected(&self) -> bool {
        self.consumer.is_some()
    }

    /// Whether the record at `offset` was read.
    pub(super) fn has_read(&self, offset: i64) -> bool {
        self.next > offset
    }

    /// Makes the consumer.
    pub(super) fn connect(&mut self, settings: ClientConfig) -> Result<(), LedgerError> {
        let made = consumer(settings).map_err(not_made)?;
        self.consumer = Some(made);
        Ok(())
    }

    /// Makes the next call connect anew.
    pub(super) fn disconnect(&mut self) {
        self.consumer = None;
    }

    /// What is behind an error, if a broker did not let this client in.
    pub(super) fn told(&self, error: LedgerError) -> LedgerError {
        // What librdkafka has to say waits until somebody polls. A record that comes with it is read again.
        let says = || self.consumer.as_ref().and_then(|consumer| consumer.poll(Duration::ZERO));
        let _ = std::iter::repeat_with(says).take(SAYINGS).take_while(Option::is_some).count();
        let refused = self.consumer.as_ref().and_then(|consumer| consumer.context().refusal());
        match (error, refused) {
            (LedgerError::Unavailable { action, .. }, Some(why)) => unavailable(action, why),
            (error, _) => error,
        }
    }

    /// Reads every record that was in the topic when it was `asked`.
    pub(super) fn catch_up(&mut self, asked: Instant, deadline: Instant) -> Result<(), LedgerError> {
        if self.complete_since.is_some_and(|since| since >= asked) {
            return Ok(());
        }
        let begun = Instant::now();
        self.read_to_the_end(deadline)?;
        self.complete_since = Some(begun);
        Ok(())
    }

    fn read_to_the_end(&mut self, deadline: Instant) -> Result<(), LedgerError> {
        let Self { consumer: Some(consumer), topic, next, book, .. } = self else {
            return Err(unavailable("read the topic", "it is not connected"));
        };
        let (low, high) = ends(consumer, topic, deadline)?;
        if *next < low {
            let place = format!("topic {topic}, partition {PARTITION}, offset {low}");
            let why = "the records before it were deleted: the topic's cleanup.policy must be compact, and nothing \
                       else. Nothing is done until a person has looked";
            return Err(LedgerError::Damaged { place, why: why.to_owned() });
        }
        if high < *next {
            let why = format!(
                "it ends at offset {high} and was read to {next} before: a broker with an old view answered, or the \
                 topic was made anew or lost records (then restart the agents once you know how)"
            );
            return Err(unavailable(format!("read topic {topic}"), why));
        }
        if high == *next {
            return Ok(());
        }
        let read = read(consumer, topic, next, high, book, deadline);
        // Fetching stops until the next call. A failure here shows in that call.
        let _ = consumer.unassign();
        read
    }

    /// How the topic is set up.
    pub(super) fn look(&self, deadline: Instant) -> Result<Option<MetadataSeen>, LedgerError> {
        let Some(consumer) = &self.consumer else { return Ok(None) };
        let action = || format!("look at topic {}", self.topic);
        let metadata = consumer
            .fetch_metadata(Some(&self.topic), left(deadline))
            .map_err(|error| unavailable(action(), error))?;
        let found = metadata.topics().iter().find(|topic| topic.name() == self.topic);
        let found = found.filter(|topic| topic.error().is_none());
        let cluster = consumer.client().fetch_cluster_id(left(deadline));
        Ok(found.map(|topic| MetadataSeen::of(topic, cluster)))
    }
}

/// A topic's partitions.
pub(super) struct MetadataSeen {
    pub(super) partitions: usize,
    /// Of the partition with the fewest.
    pub(super) replicas: usize,
    /// Node ids of the brokers that carry them.
    pub(super) nodes: BTreeSet<i32>,
    /// The id of the cluster, where it tells.
    pub(super) cluster: Option<String>,
}

impl MetadataSeen {
    fn of(topic: &MetadataTopic, cluster: Option<String>) -> Self {
        let nodes =
            topic.partitions().iter().flat_map(|partition| partition.replicas().iter().copied()).collect();
        let replicas = topic.partitions().iter().map(|partition| partition.replicas().len());
        Self {
            partitions: topic.partitions().len(),
            replicas: replicas.min().unwrap_or_default(),
            nodes,
            cluster,
        }
    }
}

/// Where the topic begins and ends now.
fn ends(consumer: &BaseConsumer<Quiet>, topic: &str, deadline: Instant) -> Result<(i64, i64), LedgerError> {
    loop {
        let error = match consumer.fetch_watermarks(topic, PARTITION, left(deadline).min(ATTEMPT)) {
            Ok(ends) => return Ok(ends),
            Err(error) => error,
        };
        if matches!(
            error.rdkafka_error_code(),
            Some(
                RDKafkaErrorCode::UnknownTopicOrPartition
                    | RDKafkaErrorCode::UnknownTopic
                    | RDKafkaErrorCode::UnknownPartition
            )
        ) && is_missing(consumer, topic, deadline)
        {
            let why = format!("there is no such topic: make it once, with `{}`", super::creation(topic));
            return Err(unavailable(format!("read topic {topic}"), why));
        }
        if left(deadline).is_zero() {
            return Err(unavailable(format!("read topic {topic}"), error));
        }
        // Finds the new leader.
        let _ = consumer.fetch_metadata(Some(topic), left(deadline).min(ATTEMPT));
        std::thread::sleep(RETRY);
    }
}

/// Whether a broker says that there is no such topic.
fn is_missing(consumer: &BaseConsumer<Quiet>, topic: &str, deadline: Instant) -> bool {
    let metadata = consumer.fetch_metadata(Some(topic), left(deadline).min(ATTEMPT));
    metadata.is_ok_and(|metadata| {
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        found.is_none_or(|found| found.partitions().is_empty())
    })
}

/// Reads from `next` to `high`.
fn read(
    consumer: &BaseConsumer<Quiet>,
    topic: &str,
    next: &mut i64,
    high: i64,
    book: &mut Book,
    deadline: Instant,
) -> Result<(), LedgerError> {
    let failed = |error: KafkaError| unavailable(format!("read topic {topic}"), error);
    let mut assignment = TopicPartitionList::new();
    assignment.add_partition_offset(topic, PARTITION, Offset::Offset(*next)).map_err(failed)?;
    // Assigned anew for every read, so that an "end of partition" is never one of an earlier read.
    consumer.assign(&assignment).map_err(failed)?;
    let mut last = None;
    while *next < high {
        match consumer.poll(left(deadline).min(POLL)) {
            Some(Ok(message)) => {
                book.apply(message.offset(), message.key().unwrap_or_default(), message.payload());
                *next = message.offset() + 1;
            }
            // Compaction may leave nothing at the very end.
            Some(Err(KafkaError::PartitionEOF(_))) => break,
            // A broker that went away is found again, or another one is, or not until the deadline.
            Some(Err(error)) => last = Some(error),
            None => {}
        }
        if left(deadline).is_zero() && *next < high {
            let why = format!("at offset {next} of {high} when the time was up");
            return Err(last.map_or_else(|| unavailable(format!("read topic {topic}"), why), failed));
        }
    }
    Ok(())
}

/// What is left until `deadline`.
pub(super) fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The topic's settings, as far as they matter.
pub(super) async fn described(
    settings: &ClientConfig,
    topic: &str,
    seen: MetadataSeen,
    deadline: Instant,
) -> Result<TopicSeen, LedgerError> {
    let failed = |error: KafkaError| unavailable(format!("read the settings of topic {topic}"), error);
    let admin: AdminClient<Quiet> =
        AdminClient::from_config_and_context(settings, Quiet::default()).map_err(not_made)?;
    let options = AdminOptions::new().request_timeout(Some(left(deadline)));
    let mut described =
        admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await.map_err(failed)?;
    let resource = match described.pop() {
        Some(Ok(resource)) => resource,
        Some(Err(code)) => return Err(failed(KafkaError::AdminOp(code))),
        None => return Err(unavailable(format!("read the settings of topic {topic}"), "none came")),
    };
    let settings = resource.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?)));
    let settings: BTreeMap<String, String> = settings.collect();
    Ok(TopicSeen { partitions: seen.partitions, replicas: seen.replicas, settings })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that reads the topic is refused here: it is not connected.
    #[test]
    fn only_a_reading_that_was_begun_since_does_for_who_waited() {
        let (mut reader, deadline) = (Reader::new("ledger"), Instant::now());
        let begun = Instant::now();
        reader.complete_since = Some(begun);
        assert!(reader.catch_up(begun, deadline).is_ok());
        let error = reader.catch_up(begun + Duration::from_nanos(1), deadline).unwrap_err();
        assert!(recovery::ports::chain(&error).contains("not connected"), "{error}");
    }
}
