//! A topic of a Kafka cluster: its replicas are the quorum, and no further service is needed.
//!
//! Its replicas must not be on brokers that are guarded with this ledger. After a loss of power of all of
//! them nobody could start again: `guard` lets a broker start by the ledger's word, a word that counts takes
//! a write, a write takes two replicas in sync, and those are the brokers that wait for `guard`. No rule lets
//! one of them start first: that its host was the owner in the last state that it saw does not say that
//! nobody has claimed since, while two replicas were still up and this host was not. The configuration and
//! `check` refuse that.
//!
//! The topic has one partition, and the order of its records is the compare-and-set. Whoever wants an epoch
//! writes a *proposal*, reads the topic up to it, and learns there whether another one came first. Everybody
//! folds the same records in the same order (`book.rs`) and agrees. Three settings carry that: `acks=all`
//! with `min.insync.replicas=2`, so that what was confirmed is on two brokers; reading to the high watermark
//! only; and no unclean leader election, so that what was read stays.
//!
//! Kafka's transactions are absent on purpose. That a producer's epoch fences the one before it says nothing
//! about what its owner has *read*: a broker that was frozen and wakes up believes for a while that it still
//! leads the topic, tells an old end of it, and a claimant that trusts it claims what was claimed. Reading
//! one's own record back rules that out, with transactions or without, because only the true leader has it.
//! And transactions would cost: a coordinator that must be alive too, readers that wait for what a dead host
//! left open, losers that throw the winner out of its session.

mod book;
mod check;
mod client;
mod record;
mod secured;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;
use rdkafka::producer::{FutureProducer, FutureRecord};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout_at;

use self::book::unavailable;
use self::client::{PARTITION, Quiet, Reader, left};
use self::record::{PROBE, Proposal, What};
use crate::fence::OptionValue;
use kafka::security::SecurityConfig;
use recovery::event::Event;
use recovery::journal::{Claim, Entry, EpochJournal, Record};
use recovery::model::{BrokerId, Endpoint, Epoch, HostName, Order, Orders};
use recovery::ports::{Cell, Ledger, LedgerError, Note};

/// In what `check` finds: the node ids of the brokers with the topic's replicas, separated by commas.
pub const ON_NODES: &str = "on_nodes";

/// In what `check` finds: the id of the cluster that has the topic.
pub const IN_CLUSTER: &str = "in_cluster";

/// Between two looks for a record that was written and is not seen yet.
const SEEN_POLL: Duration = Duration::from_millis(10);

/// A ledger in a topic of a Kafka cluster with three brokers or more, none of which is guarded with this
/// ledger: after a loss of power of all of them nobody could read who may start. So name another cluster, or
/// keep the topic on brokers of the same one that have no `[[broker]]` section on any host and no `guard`
/// before their start (`kafka-reassign-partitions.sh`). Make the topic once, before the first agent starts
/// (nothing else makes it, so that a misspelt name is no second ledger):
///
/// `kafka-topics.sh --bootstrap-server HOST:PORT --create --topic _understudy_ledger --partitions 1
/// --replication-factor 3 --config cleanup.policy=compact --config min.insync.replicas=2 --config
/// unclean.leader.election.enable=false`
///
/// With ACLs the agents need Read, Write, Describe and DescribeConfigs on it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaLedgerConfig {
    /// Brokers to begin with, as `host:port`; the others are learnt from them. Name at least three, and
    /// addresses rather than names: the ledger should not depend on DNS.
    #[schemars(with = "Vec<String>")]
    pub bootstrap: Vec<Endpoint>,
    /// The topic's name.
    #[serde(default = "default_topic")]
    pub topic: String,
    /// How long one operation may take. After that the ledger counts as unreachable. While the cluster has
    /// not noticed that a broker is dead (`broker.session.timeout.ms`, 9 s by default) nothing may be written
    /// to the topic, so give it longer than that.
    #[serde(default = "fifteen_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// Further properties of the client, by librdkafka's names: `security.protocol`, `sasl.mechanisms` and
    /// the like. A value is a text, or `{ file = "…" }`, `{ env = "…" }` or `{ credential = "…" }` for a
    /// secret.
    #[serde(default)]
    pub properties: BTreeMap<String, OptionValue>,
    /// How the listeners of this cluster are secured, as `[cluster.security]` says it of the guarded one. Its
    /// files are read anew when a client is made: at the start, and after an operation that failed.
    #[serde(default)]
    pub security: Option<Box<SecurityConfig>>,
}

fn default_topic() -> String {
    "_understudy_ledger".to_owned()
}

fn fifteen_seconds() -> Duration {
    Duration::from_secs(15)
}

/// The command that makes the topic.
fn creation(topic: &str) -> String {
    format!(
        "kafka-topics.sh --bootstrap-server HOST:PORT --create --topic {topic} --partitions 1 --replication-factor 3 \
         --config cleanup.policy=compact --config min.insync.replicas=2 \
         --config unclean.leader.election.enable=false"
    )
}

/// The `kafka` ledger.
pub struct KafkaLedger {
    config: KafkaLedgerConfig,
    reader: Arc<Mutex<Reader>>,
    producer: Mutex<Option<FutureProducer<Quiet>>>,
    /// What its producers are refused.
    producers: Quiet,
}

impl KafkaLedger {
    /// The ledger that is configured. Touches nothing yet.
    ///
    /// # Errors
    /// Everything that is wrong, each as `key: what is wrong and what to do`.
    pub fn new(config: &KafkaLedgerConfig) -> Result<Self, Vec<String>> {
        let KafkaLedgerConfig { bootstrap, topic, timeout, properties, security } = config;
        let mut problems = Vec::new();
        if bootstrap.is_empty() {
            problems.push("bootstrap: name at least one broker, as host:port".to_owned());
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if topic.is_empty()
            || topic.len() > 249
            || !topic.chars().all(legal)
            || topic.trim_matches('.').is_empty()
        {
            problems
                .push(format!("topic: `{topic}` is not a topic's name; use letters, digits, `_` and `-`"));
        }
        if *timeout < Duration::from_secs(1) {
            problems.push(format!("timeout: {timeout:?} is too short for a cluster; give it 10s or more"));
        }
        for name in properties.keys().filter(|name| client::is_ours(name)) {
            problems.push(format!("properties.{name}: it is chosen by understudy; remove it"));
        }
        if let Some(security) = security {
            problems.extend(secured::problems(security, properties));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let reader = Arc::new(Mutex::new(Reader::new(topic)));
        Ok(Self { config: config.clone(), reader, producer: Mutex::default(), producers: Quiet::default() })
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.config.timeout
    }

    fn too_late(&self, action: &str) -> LedgerError {
        let limit = self.config.timeout;
        let why = format!(
            "no broker confirmed it within {limit:?}: the topic {} needs a leader and two replicas in sync",
            self.config.topic
        );
        unavailable(action, why)
    }

    /// The reader, after it has read every record that is in the topic now. Those who wait for their turn
    /// meanwhile need not read again after one that has begun since.
    async fn read(&self, deadline: Instant) -> Result<OwnedMutexGuard<Reader>, LedgerError> {
        let asked = Instant::now();
        self.with_reader(deadline, move |reader| reader.catch_up(asked, deadline))
            .await
            .map(|(reader, ())| reader)
    }

    /// Calls `f`, which blocks until `deadline` at most, with the connected reader.
    async fn with_reader<T: Send + 'static>(
        &self,
        deadline: Instant,
        f: impl FnOnce(&mut Reader) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<(OwnedMutexGuard<Reader>, T), LedgerError> {
        let lock = Arc::clone(&self.reader).lock_owned();
        let Ok(mut reader) = timeout_at(deadline.into(), lock).await else {
            return Err(self.too_late("read the topic"));
        };
        let settings = if reader.is_connected() { None } else { Some(client::settings(&self.config).await?) };
        let renewed = self.config.security.is_some();
        let call = tokio::task::spawn_blocking(move || {
            if let Some(settings) = settings {
                reader.connect(settings)?;
            }
            match f(&mut reader) {
                Ok(value) => Ok((reader, value)),
                Err(error) => {
                    let error = reader.told(error);
                    // What it was made with may have changed.
                    if renewed {
                        reader.disconnect();
                    }
                    Err(error)
                }
            }
        });
        call.await.unwrap_or_else(|error| Err(unavailable("read the topic", error)))
    }

    async fn producer(&self) -> Result<FutureProducer<Quiet>, LedgerError> {
        let mut slot = self.producer.lock().await;
        if let Some(producer) = &*slot {
            return Ok(producer.clone());
        }
        let (settings, limit) = (client::settings(&self.config).await?, self.config.timeout);
        let quiet = self.producers.clone();
        let made = tokio::task::spawn_blocking(move || client::producer(settings, limit, quiet)).await;
        let made =
            made.map_err(|error| unavailable("make a Kafka client", error))?.map_err(client::not_made)?;
        Ok(slot.insert(made).clone())
    }

    /// Writes one record, and waits until it is on as many brokers as the topic asks for. Returns its offset,
    /// which is negative when librdkafka did not learn it.
    async fn write(
        &self,
        action: &str,
        (key, value): (&str, Option<&[u8]>),
        deadline: Instant,
    ) -> Result<i64, LedgerError> {
        let producer = self.producer().await?;
        let mut record = FutureRecord::to(&self.config.topic).partition(PARTITION).key(key);
        record.payload = value;
        let sent = timeout_at(deadline.into(), producer.send(record, left(deadline))).await;
        let error = match sent {
            Ok(Ok(delivery)) => return Ok(delivery.offset),
            Ok(Err((error, _))) => Some(error),
            Err(_) => None,
        };
        let refused = self.producers.refusal();
        // Whatever it still holds must not be sent an hour later. Dropping it takes its time.
        let old = self.producer.lock().await.take();
        drop(tokio::task::spawn_blocking(move || drop((old, producer))));
        Err(match error {
            _ if refused.is_some() => unavailable(action, refused.unwrap_or_default()),
            Some(error) => unavailable(
                format!("{action} in topic {}, which needs two replicas in sync", self.config.topic),
                error,
            ),
            None => self.too_late(action),
        })
    }

    /// Proposes `what`, and reads on until it is clear whether it counts.
    async fn propose(
        &self,
        action: &str,
        host: &HostName,
        what: What,
        deadline: Instant,
    ) -> Result<bool, LedgerError> {
        let proposal = Proposal::new(host, what);
        let value = proposal.encode().map_err(|error| unavailable(action, error))?;
        self.write(action, (&proposal.key(), Some(&value)), deadline).await?;
        loop {
            if let Some(counts) = self.read(deadline).await?.book.verdict(&proposal.id) {
                return Ok(counts);
            }
            if left(deadline).is_zero() {
                return Err(self.too_late(action));
            }
            // The broker that was asked does not know the end yet.
            tokio::time::sleep(SEEN_POLL).await;
        }
    }

    /// Writes a tombstone, which is gone with the next compaction, and reads up to it: only the true leader
    /// has it.
    async fn probe(&self, deadline: Instant) -> Result<(), LedgerError> {
        let action = "write a probe";
        let mut written = -1;
        while written < 0 {
            written = self.write(action, (PROBE, None), deadline).await?;
        }
        while !self.read(deadline).await?.has_read(written) {
            if left(deadline).is_zero() {
                return Err(self.too_late(action));
            }
            tokio::time::sleep(SEEN_POLL).await;
        }
        Ok(())
    }
}

#[async_trait]
impl Ledger for KafkaLedger {
    fn name(&self) -> &'static str {
        "kafka"
    }

    async fn sync(&self) -> Result<(), LedgerError> {
        let deadline = self.deadline();
        // A topic that is missing must not be made by writing to it, as some clusters would.
        drop(self.read(deadline).await?);
        self.probe(deadline).await
    }

    async fn latest(&self, broker: BrokerId) -> Result<Option<EpochJournal>, LedgerError> {
        Ok(self.read(self.deadline()).await?.book.epochs(broker)?.last().cloned())
    }

    async fn newest_epochs(
        &self,
        brokers: &BTreeSet<BrokerId>,
    ) -> Result<BTreeMap<BrokerId, Epoch>, LedgerError> {
        let reader = self.read(self.deadline()).await?;
        let newest = |broker: &BrokerId| {
            // Whoever reads one that is damaged is told, and this broker alone is concerned.
            let epochs = reader.book.epochs(*broker).ok()?;
            Some((*broker, epochs.last().map_or(Epoch::default(), |newest| newest.epoch)))
        };
        Ok(brokers.iter().filter_map(newest).collect())
    }

    async fn all(&self, broker: BrokerId) -> Result<Vec<EpochJournal>, LedgerError> {
        Ok(self.read(self.deadline()).await?.book.epochs(broker)?.to_vec())
    }

    async fn claim(&self, claim: &Claim) -> Result<Record, LedgerError> {
        let (broker, epoch, deadline) = (claim.plan.broker, claim.plan.epoch, self.deadline());
        let action = format!("claim epoch {epoch} of broker {broker}");
        loop {
            self.read(deadline).await?.book.may_claim(claim)?;
            let entry = Entry::Claimed { claim: Box::new(claim.clone()) };
            let record = Record { seq: 0, at: Timestamp::now(), by: claim.by.clone(), entry };
            let what = What::Records { broker, epoch, records: vec![record.clone()] };
            if self.propose(&action, &claim.by, what, deadline).await? {
                return Ok(record);
            }
            // Somebody was faster: the book says who.
        }
    }

    async fn append(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        at: Timestamp,
        by: &HostName,
        entries: &[Entry],
    ) -> Result<Vec<Record>, LedgerError> {
        let deadline = self.deadline();
        let action = format!("add to epoch {epoch} of broker {broker}");
        loop {
            let first = self.read(deadline).await?.book.may_append(broker, epoch, by)?;
            let record =
                |(seq, entry): (u64, &Entry)| Record { seq, at, by: by.clone(), entry: entry.clone() };
            let records: Vec<Record> = (first..).zip(entries).map(record).collect();
            let what = What::Records { broker, epoch, records: records.clone() };
            if records.is_empty() || self.propose(&action, by, what, deadline).await? {
                return Ok(records);
            }
            // Another process of this host was faster, or another host: the book says which.
        }
    }

    async fn remember(&self, broker: BrokerId, event: &Event) -> Result<(), LedgerError> {
        let deadline = self.deadline();
        let slot = self.read(deadline).await?.book.next_slot(broker, &event.host);
        let what = What::Decision { broker, slot, event: Box::new(event.clone()) };
        let action = format!("keep a decision on broker {broker}");
        self.propose(&action, &event.host, what, deadline).await.map(drop)
    }

    async fn remembered(&self, broker: BrokerId) -> Result<Vec<Event>, LedgerError> {
        self.read(self.deadline()).await?.book.decisions(broker)
    }

    async fn order(&self, order: &Order) -> Result<(), LedgerError> {
        let deadline = self.deadline();
        // A topic that is missing must not be made by writing to it, as some clusters would.
        drop(self.read(deadline).await?);
        self.propose("add to the order book", &order.host, What::Order(order.clone()), deadline)
            .await
            .map(drop)
    }

    async fn orders(&self) -> Result<Orders, LedgerError> {
        self.read(self.deadline()).await?.book.orders()
    }

    async fn cell(&self, name: &str) -> Result<Option<Cell>, LedgerError> {
        self.read(self.deadline()).await?.book.cell(name)
    }

    async fn set_cell(&self, name: &str, cell: &Cell) -> Result<Cell, LedgerError> {
        let (deadline, action) = (self.deadline(), format!("write {name}"));
        // The instance that writes is in the proposal's id by its process alone: whoever it is, the text
        // says.
        let host = HostName::from("cell");
        loop {
            let newest = self.read(deadline).await?.book.cell(name)?;
            let due = newest.as_ref().map_or(0, |newest| newest.version) + 1;
            match newest {
                Some(newest) if cell.version != due => return Ok(newest),
                None if cell.version != due => {
                    return Err(unavailable(action, format!("version {due} is due")));
                }
                _ => {}
            }
            let what = What::Cell { name: name.to_owned(), cell: cell.clone() };
            if self.propose(&action, &host, what, deadline).await? {
                return Ok(cell.clone());
            }
            // Somebody was faster: the book says who.
        }
    }

    async fn check(&self) -> Result<Note, LedgerError> {
        let (deadline, topic) = (self.deadline(), &self.config.topic);
        drop(self.read(deadline).await?);
        let (_, seen) = self.with_reader(deadline, move |reader| reader.look(deadline)).await?;
        let Some(seen) = seen else {
            return Err(unavailable(format!("find topic {topic}"), format!("make it: {}", creation(topic))));
        };
        let nodes: Vec<String> = seen.nodes.iter().map(ToString::to_string).collect();
        let cluster = seen.cluster.clone().unwrap_or_default();
        let seen = client::described(&client::settings(&self.config).await?, topic, seen, deadline).await?;
        let problems = seen.problems();
        if !problems.is_empty() {
            return Err(unavailable(format!("rely on topic {topic}"), problems.join("; ")));
        }
        let begun = Instant::now();
        self.probe(deadline).await?;
        let took = begun.elapsed().as_millis();
        let text = format!("topic {topic}: {} replicas, written and read back in {took} ms", seen.replicas);
        let note = Note::new(text).with("probe_ms", took).with("replicas", seen.replicas);
        Ok(note.with(ON_NODES, nodes.join(",")).with(IN_CLUSTER, cluster))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> KafkaLedgerConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_configuration_has_good_defaults_and_all_problems_come_at_once() {
        let good = config("bootstrap = [\"10.0.0.1:9092\"]\nproperties.\"sasl.password\".env = \"PW\"");
        assert_eq!((good.topic.as_str(), good.timeout), ("_understudy_ledger", Duration::from_secs(15)));
        assert!(KafkaLedger::new(&good).is_ok());
        let bad = "bootstrap = []\ntopic = \"a b\"\ntimeout = \"10ms\"\nproperties.acks = \"1\"";
        let problems = KafkaLedger::new(&config(bad)).err().unwrap();
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(problems[3].starts_with("properties.acks: it is chosen"), "{problems:?}");
        assert!(toml::from_str::<KafkaLedgerConfig>("bootstrap = []\ndir = \"/\"").is_err());
    }

    #[test]
    fn what_is_wrong_with_its_security_is_told_by_its_own_keys() {
        let text = "bootstrap = [\"10.0.0.1:9092\"]\nproperties.\"ssl.ca.location\" = \"/ca\"\n\
                    [security]\nprotocol = \"SASL_SSL\"\nca = \"ca.pem\"\n";
        let problems = KafkaLedger::new(&config(text)).err().unwrap();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[0].starts_with("properties.ssl.ca.location: "), "{problems:?}");
        assert!(problems[1].starts_with("security.ca: `ca.pem` is not absolute"), "{problems:?}");
        assert!(problems[2].contains("set ledger.security.protocol to one without SASL"), "{problems:?}");
    }

    #[tokio::test]
    async fn a_cluster_that_is_not_there_is_unavailable_in_time() {
        // Nothing listens on port 1.
        let ledger = KafkaLedger::new(&config("bootstrap = [\"127.0.0.1:1\"]\ntimeout = \"1s\"")).unwrap();
        let begun = Instant::now();
        let error = ledger.latest(BrokerId(1)).await.unwrap_err();
        assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_property_that_librdkafka_does_not_know_is_named() {
        for (name, value) in
            [("no.such", "hunter2"), ("security.protocol", "hunter2"), ("linger.msx", "hunter2")]
        {
            let text = format!("bootstrap = [\"127.0.0.1:1\"]\nproperties.\"{name}\" = \"{value}\"");
            let ledger = KafkaLedger::new(&config(&text)).unwrap();
            let read = ledger.latest(BrokerId(1)).await.unwrap_err();
            let written = ledger.sync().await.unwrap_err();
            for error in
                [recovery::ports::chain(&read), recovery::ports::chain(&written), format!("{read:?}")]
            {
                assert!(error.contains(name) && !error.contains(value), "{error}");
            }
        }
    }
}
