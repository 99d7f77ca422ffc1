//! A member of a consumer group, reading along: after a takeover the group must go on where it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::{ClientContext, Message, Offset, TopicPartitionList};

use super::SOCKET_TIMEOUT_MS;

/// How often the member commits where it is.
const COMMIT: Duration = Duration::from_millis(250);

/// A running member.
#[derive(Debug)]
pub struct GroupReader {
    stop: Arc<AtomicBool>,
    read: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Result<GroupLog>>>,
}

/// One thing a member did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// Read the record at this offset.
    Read(i64),
    /// Committed that this offset is the next to read.
    Committed(i64),
    /// A new member took up the work.
    Joined,
}

/// What the members of a group did, partition by partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupLog {
    partitions: BTreeMap<i32, Vec<Entry>>,
    /// When each record was read, in order.
    moments: BTreeMap<i32, Vec<Instant>>,
}

impl GroupReader {
    pub(crate) fn start(mut client: ClientConfig, topic: &str, group: &str) -> Result<Self> {
        let consumer: BaseConsumer<Assignments> = client
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set("socket.timeout.ms", SOCKET_TIMEOUT_MS.to_string())
            .create_with_context(Assignments::default())?;
        consumer.subscribe(&[topic])?;
        let stop = Arc::new(AtomicBool::new(false));
        let read = Arc::new(AtomicUsize::new(0));
        let thread = {
            let (stop, read, topic) = (Arc::clone(&stop), Arc::clone(&read), topic.to_owned());
            thread::spawn(move || follow(&consumer, &topic, &stop, &read))
        };
        Ok(Self { stop, read, thread: Some(thread) })
    }

    /// How many records it has read so far.
    #[must_use]
    pub fn read(&self) -> usize {
        self.read.load(Ordering::Relaxed)
    }

    /// Commits, leaves the group, and returns what it did.
    ///
    /// # Errors
    /// When the last commit fails.
    pub fn stop(mut self) -> Result<GroupLog> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("the reader was stopped before")?;
        thread.join().map_err(|_| anyhow!("the reader panicked"))?
    }
}

/// Notes that the group gives this member its partitions anew.
#[derive(Debug, Default)]
struct Assignments {
    anew: AtomicBool,
}

impl ClientContext for Assignments {}

impl ConsumerContext for Assignments {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, _: &Rebalance<'_>) {
        self.anew.store(true, Ordering::Relaxed);
    }
}

impl Drop for GroupReader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn follow(
    consumer: &BaseConsumer<Assignments>,
    topic: &str,
    stop: &AtomicBool,
    read: &AtomicUsize,
) -> Result<GroupLog> {
    let mut log = GroupLog::default();
    let mut next: BTreeMap<i32, i64> = BTreeMap::new();
    let mut committed = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let polled = consumer.poll(Duration::from_millis(50));
        // It begins again where the group has committed. What it read before and could not commit is not its
        // to commit any more: it reads that once more.
        if consumer.context().anew.swap(false, Ordering::Relaxed) {
            next.clear();
        }
        match polled {
            Some(Ok(message)) => {
                log.push(message.partition(), Entry::Read(message.offset()));
                log.moments.entry(message.partition()).or_default().push(Instant::now());
                next.insert(message.partition(), message.offset() + 1);
                read.fetch_add(1, Ordering::Relaxed);
            }
            // A broker that went away: the client goes on by itself, or the story's deadline passes.
            Some(Err(error)) => eprintln!("group reader: {error}"),
            None => {}
        }
        if committed.elapsed() >= COMMIT {
            // While the coordinator is away nothing is committed; the next round tries again.
            if let Err(error) = commit(consumer, topic, &mut next, &mut log) {
                eprintln!("group reader: {error:#}");
            }
            committed = Instant::now();
        }
    }
    commit(consumer, topic, &mut next, &mut log)?;
    Ok(log)
}

fn commit(
    consumer: &BaseConsumer<Assignments>,
    topic: &str,
    next: &mut BTreeMap<i32, i64>,
    log: &mut GroupLog,
) -> Result<()> {
    if next.is_empty() {
        return Ok(());
    }
    let mut offsets = TopicPartitionList::new();
    for (partition, offset) in next.iter() {
        offsets.add_partition_offset(topic, *partition, Offset::Offset(*offset))?;
    }
    consumer.commit(&offsets, CommitMode::Sync).context("cannot commit")?;
    for (partition, offset) in std::mem::take(next) {
        log.push(partition, Entry::Committed(offset));
    }
    Ok(())
}

impl GroupLog {
    fn push(&mut self, partition: i32, entry: Entry) {
        self.partitions.entry(partition).or_default().push(entry);
    }

    /// This member's log and then that of a later one.
    #[must_use]
    pub fn then(mut self, later: Self) -> Self {
        for (partition, entries) in later.partitions {
            let earlier = self.partitions.entry(partition).or_default();
            earlier.push(Entry::Joined);
            earlier.extend(entries);
        }
        for (partition, moments) in later.moments {
            self.moments.entry(partition).or_default().extend(moments);
        }
        self
    }

    /// The longest that any one partition gave the group nothing to read, of the times without a read that
    /// overlap `from` to `to`: the stall its consumer saw.
    #[must_use]
    pub fn longest_gap(&self, from: Instant, to: Instant) -> Duration {
        let pairs = self.moments.values().flat_map(|moments| moments.windows(2));
        let gaps = pairs.filter_map(|pair| match pair {
            [before, after] if *after >= from && *before <= to => Some(after.duration_since(*before)),
            _ => None,
        });
        gaps.max().unwrap_or_default()
    }

    /// How many records were read, repeated ones included.
    #[must_use]
    pub fn read(&self) -> usize {
        let entries = self.partitions.values().flatten();
        entries.filter(|entry| matches!(entry, Entry::Read(_))).count()
    }

    /// Nothing was skipped, nothing committed was read again: each read follows the one before it, or goes
    /// back no further than the group last committed.
    ///
    /// # Errors
    /// The first read that does neither.
    pub fn ensure_continuous(&self) -> Result<()> {
        for (partition, entries) in &self.partitions {
            let (mut committed, mut expected) = (0, 0);
            for entry in entries {
                match *entry {
                    Entry::Committed(offset) => committed = offset,
                    Entry::Joined => expected = committed,
                    Entry::Read(offset) => {
                        ensure!(
                            offset >= committed,
                            "partition {partition}: offset {offset} was read again; {committed} was committed"
                        );
                        ensure!(
                            offset <= expected,
                            "partition {partition}: {expected} to {} were skipped",
                            offset - 1
                        );
                        expected = offset + 1;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(entries: &[Entry]) -> GroupLog {
        GroupLog { partitions: BTreeMap::from([(0, entries.to_vec())]), ..GroupLog::default() }
    }

    #[test]
    fn the_longest_gap_is_that_of_one_partition_and_of_its_time() {
        let begin = Instant::now();
        let at =
            |millis: &[u64]| millis.iter().map(|ms| begin + Duration::from_millis(*ms)).collect::<Vec<_>>();
        let log = GroupLog {
            moments: BTreeMap::from([(0, at(&[0, 100, 900, 1000])), (1, at(&[50, 150, 250, 3000]))]),
            ..GroupLog::default()
        };
        let gap = |from: u64, to: u64| {
            let ms = Duration::from_millis;
            log.longest_gap(begin + ms(from), begin + ms(to)).as_millis()
        };
        assert_eq!(gap(0, 200), 800, "the stall of partition 1 begins later");
        assert_eq!(gap(0, 300), 2750, "although partition 0 was read meanwhile");
        assert_eq!(gap(3500, 4000), 0);
    }

    #[test]
    fn a_member_may_repeat_what_it_has_not_committed() {
        use Entry::{Committed, Read};
        log(&[Read(0), Read(1), Committed(1), Read(1), Read(2)]).ensure_continuous().unwrap();
        let first = log(&[Read(0), Read(1), Committed(2)]);
        first.clone().then(log(&[Read(2), Read(3)])).ensure_continuous().unwrap();
        let again = first.clone().then(log(&[Read(1)])).ensure_continuous().unwrap_err();
        assert!(again.to_string().contains("read again"), "{again}");
        let skipped = first.then(log(&[Read(3)])).ensure_continuous().unwrap_err();
        assert!(skipped.to_string().contains("2 to 2 were skipped"), "{skipped}");
    }

    #[test]
    fn nothing_is_skipped_from_the_beginning() {
        assert!(log(&[Entry::Read(1)]).ensure_continuous().is_err());
    }
}
