//! The ledger in a topic of the very cluster that is healed: it keeps the ledger's contract, it works while a
//! broker is dead, and it says so when too many are.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use async_trait::async_trait;
use drivers::ledger::LedgerConfig;
use e2e::kafka::{Cluster, ClusterSpec};
use e2e::{Lab, eventually, story};
use fakes::ledger::contract::{append, claim, contract, done, ended, started};
use fakes::ledger::faults::{Rig, survives_an_outage};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{FutureProducer, FutureRecord};
use recovery::journal::{Claim, Entry};
use recovery::model::{BrokerId, Epoch, HostName, Succession};
use recovery::ports::{Ledger, LedgerError, chain};
use rustix::process::Signal;
use tokio::runtime::Runtime;

const TOPIC: &str = "_understudy_ledger";
/// As the documentation says.
const SETTINGS: [(&str, &str); 3] = [
    ("cleanup.policy", "compact"),
    ("min.insync.replicas", "2"),
    ("unclean.leader.election.enable", "false"),
];
/// What one operation may take, here as by default.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The cluster, an agent's way to the ledger in it, and a runtime for both.
struct Bed {
    cluster: Cluster,
    runtime: Runtime,
}

impl Bed {
    fn begin(lab: &Lab) -> Result<Self> {
        let cluster = lab.kafka(ClusterSpec::default())?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
        Ok(Self { cluster, runtime })
    }

    /// Another agent's ledger.
    fn open(&self, topic: &str, timeout: Duration) -> Result<Arc<dyn Ledger>> {
        let nodes = self.cluster.brokers().iter().map(|node| node.address().to_string());
        let config = serde_json::json!({
            "driver": "kafka",
            "bootstrap": nodes.collect::<Vec<_>>(),
            "topic": topic,
            "timeout": format!("{}s", timeout.as_secs()),
        });
        let config: LedgerConfig = serde_json::from_value(config)?;
        config.open().map_err(|problems| anyhow!("{problems:?}"))
    }

    /// To every broker's process.
    fn signal(&self, signal: Signal) -> Result<()> {
        self.cluster.brokers().iter().try_for_each(|node| node.process()?.signal(signal))
    }

    fn client(&self) -> ClientConfig {
        self.cluster.administrator()
    }

    /// Makes a topic and waits until it is in sync.
    fn make(&self, name: &str, (partitions, replicas): (i32, i32), settings: &[(&str, &str)]) -> Result<()> {
        let client: AdminClient<DefaultClientContext> = self.client().create()?;
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(replicas));
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let made = self.runtime.block_on(client.create_topics([&topic], &AdminOptions::new()))?;
        made.into_iter().try_for_each(|one| one.map(drop).map_err(|(_, code)| anyhow!("{name}: {code}")))?;
        eventually(&format!("topic {name}"), Duration::from_secs(60), || {
            let view = self.cluster.view()?;
            ensure!(view.partitions.iter().any(|p| p.topic == name), "it is not there");
            view.ensure_complete(self.cluster.brokers().len())
        })
    }

    /// Who leads the ledger's topic.
    fn leader(&self) -> Result<i32> {
        let view = self.cluster.view()?;
        let found = view.partitions.iter().find(|partition| partition.topic == TOPIC);
        found.map(|partition| partition.leader).context("no such topic")
    }
}

/// What refused, as a person reads it.
fn refused<T: std::fmt::Debug>(result: Result<T, LedgerError>) -> Result<String> {
    match result {
        Err(error) => Ok(chain(&error)),
        Ok(value) => Err(anyhow!("must be refused, is {value:?}")),
    }
}

#[test]
fn the_kafka_ledger_keeps_the_contract() {
    story("the_kafka_ledger_keeps_the_contract", |lab| {
        let bed = Bed::begin(lab)?;
        bed.make(TOPIC, (1, 3), &SETTINGS)?;
        bed.runtime.block_on(contract(|| bed.ledger()));
        lab.note("the contract is kept");
        bed.runtime.block_on(survives_an_outage(&bed));
        lab.note("all brokers stood still and went on");
        Ok(())
    });
}

#[async_trait]
impl Rig for Bed {
    fn ledger(&self) -> Arc<dyn Ledger> {
        self.open(TOPIC, TIMEOUT).unwrap_or_else(|error| panic!("{error:#}"))
    }

    fn deadline(&self) -> Duration {
        TIMEOUT
    }

    async fn down(&self) {
        self.signal(Signal::STOP).unwrap_or_else(|error| panic!("{error:#}"));
    }

    async fn up(&self) {
        self.signal(Signal::CONT).unwrap_or_else(|error| panic!("{error:#}"));
    }

    // A write is one frame with its length and checksum: a broker takes all of it or nothing, and there is no
    // file of ours that could be torn. A claim without an answer is part of the outage.
    async fn tear(&self, _: (i32, u64, &str), _: &[Entry], _: u8) {
        panic!("a write to Kafka is not torn");
    }
}

#[test]
fn a_topic_that_could_forget_is_refused() {
    story("a_topic_that_could_forget_is_refused", |lab| {
        let bed = Bed::begin(lab)?;
        let check = |topic: &str| -> Result<_> {
            let ledger = bed.open(topic, TIMEOUT)?;
            Ok(bed.runtime.block_on(ledger.check()))
        };
        let said = refused(check(TOPIC)?)?;
        ensure!(said.contains("--create --topic _understudy_ledger --partitions 1"), "{said}");
        // Neither a look nor an order makes the topic.
        let ledger = bed.ledger();
        let said = refused(bed.runtime.block_on(ledger.claim(&claim(1, 1, "a"))))?;
        ensure!(said.contains("there is no such topic"), "{said}");
        ensure!(bed.leader().is_err(), "the topic was made by looking for it");

        bed.make("careless", (3, 2), &[])?;
        let said = refused(check("careless")?)?;
        for problem in
            ["3 partitions", "2 replicas", "min.insync.replicas is 1", "cleanup.policy is `delete`"]
        {
            ensure!(said.contains(problem), "{problem}: {said}");
        }
        bed.make(TOPIC, (1, 3), &SETTINGS)?;
        let note = check(TOPIC)?.map_err(|error| anyhow!(chain(&error)))?;
        lab.note(note.text);
        ensure!(bed.runtime.block_on(ledger.latest(BrokerId(1)))?.is_none(), "a check is no takeover");
        Ok(())
    });
}

#[test]
fn the_ledger_outlives_a_broker_and_not_two() {
    story("the_ledger_outlives_a_broker_and_not_two", |lab| {
        let bed = Bed::begin(lab)?;
        bed.make(TOPIC, (1, 3), &SETTINGS)?;
        let (ours, theirs) = (bed.ledger(), bed.ledger());
        bed.runtime.block_on(ours.claim(&claim(1, 1, "a")))?;
        bed.runtime.block_on(append(&*ours, (1, 1, "a"), &[started(0)]))?;

        // The worst broker to lose: the one that leads the ledger.
        let dead = bed.leader()?;
        bed.cluster.broker(dead)?.home()?.power_off()?;
        let begun = Instant::now();
        bed.runtime.block_on(append(&*ours, (1, 1, "a"), &[done(0, 10), ended()]))?;
        lab.note(format!("written {:.1?} after the leader's host lost its power", begun.elapsed()));
        bed.runtime.block_on(theirs.claim(&claim(1, 2, "b")))?;
        bed.runtime.block_on(append(&*theirs, (1, 2, "b"), &[started(0)]))?;
        let all = bed.runtime.block_on(ours.all(BrokerId(1)))?;
        ensure!(all.iter().map(|journal| journal.records.len()).eq([4, 2]), "{all:?}");
        let said = refused(bed.runtime.block_on(append(&*ours, (1, 1, "a"), &[Entry::Alive])))?;
        ensure!(said.contains("superseded by epoch 2"), "{said}");

        // A second one: nothing can be confirmed any more, and nobody waits for ever.
        let second = bed.leader()?;
        bed.cluster.broker(second)?.home()?.power_off()?;
        let begun = Instant::now();
        let lost = bed.runtime.block_on(append(&*theirs, (1, 2, "b"), &[done(0, 10)]));
        let took = begun.elapsed();
        ensure!(matches!(lost, Err(LedgerError::Unavailable { .. })), "{lost:?}");
        ensure!(took < TIMEOUT + Duration::from_secs(3), "it took {took:?}");
        lab.note(format!("two brokers dead: after {took:.1?}: {}", refused(lost)?));

        // The host comes back, and the claimant goes on. Whether what was not confirmed was written after all
        // is for the journal to say.
        let back = bed.cluster.broker(second)?;
        back.home()?.power_on()?;
        back.start()?;
        let done = eventually("the ledger to be back", Duration::from_secs(90), || {
            bed.runtime.block_on(append(&*theirs, (1, 2, "b"), &[ended()])).map_err(|error| chain(&error))
        })?;
        let all = bed.runtime.block_on(ours.all(BrokerId(1)))?;
        ensure!(all.last().and_then(|journal| journal.records.last()).map(|r| r.seq) == done.last().copied());
        ensure!(all.len() == 2 && all.iter().all(|journal| journal.outcome().is_some()), "{all:?}");
        Ok(())
    });
}

#[test]
fn a_full_disk_is_an_outage_and_nothing_is_lost() {
    story("a_full_disk_is_an_outage_and_nothing_is_lost", |lab| {
        let disks = ["b1", "b2", "b3"].map(|host| lab.small_shared(host, 64));
        let disks: Vec<PathBuf> = disks.into_iter().collect::<Result<_>>()?;
        let bed = Bed::begin(lab)?;
        bed.make(TOPIC, (1, 3), &SETTINGS)?;
        let (ours, theirs) = (bed.ledger(), bed.ledger());
        bed.runtime.block_on(ours.claim(&claim(1, 1, "a")))?;
        let kept = bed.runtime.block_on(append(&*ours, (1, 1, "a"), &[started(0)]))?;

        let fillers = disks.iter().map(|disk| disk.join("filler"));
        fillers.clone().try_for_each(|filler| fill(&filler))?;
        // What is left of the last page takes a few more.
        let (mut kept, mut n) = (kept, 0);
        let lost = loop {
            let begun = Instant::now();
            let written = bed.runtime.block_on(append_note(&*ours, BrokerId(1), n));
            ensure!(begun.elapsed() < TIMEOUT + Duration::from_secs(3), "it took {:?}", begun.elapsed());
            match written {
                Ok(seqs) if n < 1000 => kept.extend(seqs),
                ended => break ended,
            }
            n += 1;
        };
        ensure!(matches!(lost, Err(LedgerError::Unavailable { .. })), "{lost:?}");
        lab.note(format!("no room after {n} more: {}", refused(lost)?));

        // A broker that cannot write ends itself. There is room again, and it is started again.
        fillers.clone().try_for_each(std::fs::remove_file)?;
        eventually("the cluster to be complete again", Duration::from_secs(90), || {
            for node in bed.cluster.brokers() {
                if !node.process()?.is_running() {
                    node.start()?;
                }
            }
            bed.cluster.view()?.ensure_complete(bed.cluster.brokers().len())
        })?;
        eventually("the ledger to be back", Duration::from_secs(60), || {
            bed.runtime.block_on(append(&*ours, (1, 1, "a"), &[ended()])).map_err(|error| chain(&error))
        })?;
        let all = bed.runtime.block_on(theirs.all(BrokerId(1)))?;
        let [journal] = all.as_slice() else { return Err(anyhow!("one epoch: {all:?}")) };
        let seqs: Vec<u64> = journal.records.iter().map(|record| record.seq).collect();
        ensure!(seqs.starts_with(&[0]) && kept.iter().all(|seq| seqs.contains(seq)), "{journal:?}");
        ensure!(journal.outcome().is_some(), "{journal:?}");
        Ok(())
    });
}

/// Writes to a file until there is no room left.
fn fill(file: &Path) -> Result<()> {
    let mut file = std::fs::File::create(file)?;
    loop {
        match file.write_all(&[0; 4096]) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[test]
fn rivals_do_not_disturb_the_winner_and_a_frozen_leader_deceives_nobody() {
    story("rivals_do_not_disturb_the_winner_and_a_frozen_leader_deceives_nobody", |lab| {
        let bed = Bed::begin(lab)?;
        bed.make(TOPIC, (1, 3), &SETTINGS)?;
        rivals_attack(&bed)?;
        lab.note("rivals lost, the winner did not notice");
        a_leader_wakes_up(&bed, lab)?;
        junk_concerns_what_it_is_about(&bed)
    });
}

/// While the winner writes, three rivals claim without end.
fn rivals_attack(bed: &Bed) -> Result<()> {
    let winner = bed.ledger();
    bed.runtime.block_on(winner.claim(&claim(1, 1, "a")))?;
    let over = Arc::new(AtomicBool::new(false));
    let mut rivals = Vec::new();
    for rival in ["b", "c", "d"] {
        let (ledger, over) = (bed.ledger(), Arc::clone(&over));
        rivals.push(bed.runtime.spawn(async move {
            let mut lost = 0;
            while !over.load(Ordering::Relaxed) {
                // What it has seen may be old by the time its claim arrives.
                let seen =
                    ledger.latest(BrokerId(1)).await?.map_or(0, |journal| journal.records.len() as u64);
                let old = Succession { epoch: Epoch(1), records: seen.saturating_sub(lost % 3) };
                let succeeds = (lost % 3 > 0).then_some(old);
                match ledger.claim(&Claim { succeeds, ..claim(1, 2, rival) }).await {
                    Err(LedgerError::Taken { by, .. }) if by == HostName::from("a") => lost += 1,
                    other => return Err(anyhow!("{rival}: {other:?}")),
                }
            }
            Ok(lost)
        }));
    }
    let written = bed.runtime.block_on(async {
        let mut written = 0;
        for n in 0..100 {
            written += append(&*winner, (1, 1, "a"), &[Entry::Alive, started(n)]).await?.len();
        }
        Ok::<_, LedgerError>(written)
    });
    over.store(true, Ordering::Relaxed);
    for rival in rivals {
        let lost: u64 = bed.runtime.block_on(rival)??;
        ensure!(lost > 3, "a rival tried {lost} times only");
    }
    let journal = bed.runtime.block_on(winner.latest(BrokerId(1)))?.context("the epoch")?;
    ensure!(
        (written?, journal.records.len(), journal.epoch) == (200, 201, Epoch(1)),
        "{}",
        journal.records.len()
    );
    bed.runtime.block_on(append(&*winner, (1, 1, "a"), &[ended()]))?;
    Ok(())
}

/// The leader of the topic freezes, others go on without it, it wakes up believing that it still leads, and
/// an agent that still has its connection to it claims what was claimed.
fn a_leader_wakes_up(bed: &Bed, lab: &Lab) -> Result<()> {
    let (old, new) = (bed.ledger(), bed.ledger());
    bed.runtime.block_on(old.latest(BrokerId(1)))?;
    let leader = bed.leader()?;
    let process = bed.cluster.broker(leader)?.process()?;
    process.signal(Signal::STOP)?;
    bed.runtime.block_on(new.claim(&claim(1, 2, "b"))).context("a claim without the leader")?;
    process.signal(Signal::CONT)?;
    let lost = bed.runtime.block_on(old.claim(&claim(1, 2, "c")));
    match lost {
        Err(LedgerError::Taken { by, .. }) if by == HostName::from("b") => {}
        other => return Err(anyhow!("epoch 2 is b's: {other:?}")),
    }
    let holders = |ledger: &Arc<dyn Ledger>| -> Result<BTreeMap<u64, HostName>> {
        // Reading alone may still be answered by the leader that was.
        bed.runtime.block_on(ledger.sync())?;
        let all = bed.runtime.block_on(ledger.all(BrokerId(1)))?;
        Ok(all.into_iter().map(|journal| (journal.epoch.0, journal.claim.by)).collect())
    };
    for ledger in [&old, &new, &bed.ledger()] {
        let holders = holders(ledger)?;
        ensure!(holders == BTreeMap::from([(1, "a".into()), (2, "b".into())]), "{holders:?}");
    }
    lab.note("the leader that woke up deceived nobody");
    bed.cluster.wait_complete(Duration::from_secs(60))
}

/// Somebody writes nonsense into the topic.
fn junk_concerns_what_it_is_about(bed: &Bed) -> Result<()> {
    let ledger = bed.ledger();
    let producer: FutureProducer = bed.client().create()?;
    let write = |value: Option<&'static [u8]>| {
        let mut record = FutureRecord::<str, [u8]>::to(TOPIC).key("epoch/1/9/junk");
        record.payload = value;
        let sent = bed.runtime.block_on(producer.send(record, Duration::from_secs(10)));
        sent.map_err(|(error, _)| error)
    };
    write(Some(b"junk"))?;
    let said = refused(bed.runtime.block_on(ledger.latest(BrokerId(1))))?;
    ensure!(said.contains("topic _understudy_ledger, partition 0, offset "), "{said}");
    bed.runtime.block_on(ledger.claim(&claim(2, 1, "a"))).context("another broker is not concerned")?;
    write(None)?;
    let newest = bed.runtime.block_on(ledger.latest(BrokerId(1)))?.context("the epoch")?;
    ensure!(newest.epoch == Epoch(2), "{newest:?}");

    // A topic that is compacted until nothing but what counts is left says the same.
    compacted(bed)?;
    let (before, after) = (ledger, bed.ledger());
    for broker in [1, 2].map(BrokerId) {
        let (before, after) =
            bed.runtime.block_on(async { (before.all(broker).await, after.all(broker).await) });
        ensure!(before? == after?, "broker {broker}");
    }
    Ok(())
}

/// Has the topic compacted, and waits until the tombstoned record is gone from the disk.
fn compacted(bed: &Bed) -> Result<()> {
    let client: AdminClient<DefaultClientContext> = bed.client().create()?;
    let hasty = AlterConfig::new(ResourceSpecifier::Topic(TOPIC));
    let hasty = SETTINGS.iter().fold(hasty, |hasty, (key, value)| hasty.set(key, value));
    let hasty = hasty
        .set("segment.ms", "500")
        .set("min.cleanable.dirty.ratio", "0.01")
        .set("delete.retention.ms", "100");
    let altered = bed.runtime.block_on(client.alter_configs([&hasty], &AdminOptions::new()))?;
    altered.into_iter().try_for_each(|one| one.map(drop).map_err(|(_, code)| anyhow!("{code}")))?;
    let ledger = bed.ledger();
    let log = bed.cluster.broker(bed.leader()?)?.log_dir().join(format!("{TOPIC}-0"));
    let mut n = 0;
    eventually("compaction", Duration::from_secs(60), || {
        // A segment is closed when something is written after its time.
        n += 1;
        bed.runtime.block_on(append_note(&*ledger, BrokerId(2), n)).map_err(|error| chain(&error))?;
        let mut text = Vec::new();
        for entry in std::fs::read_dir(&log).map_err(|error| error.to_string())?.flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "log") {
                text.extend(std::fs::read(entry.path()).map_err(|error| error.to_string())?);
            }
        }
        let left = text.windows(b"9/junk".len()).any(|bytes| bytes == b"9/junk");
        if left { Err("the junk is still there".to_owned()) } else { Ok(()) }
    })
}

async fn append_note(ledger: &dyn Ledger, broker: BrokerId, n: usize) -> Result<Vec<u64>, LedgerError> {
    append(ledger, (broker.0, 1, "a"), &[started(n)]).await
}
