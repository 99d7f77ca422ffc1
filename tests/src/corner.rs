//! What the stories about `UnregisterBroker` have in common: a session that is long enough to tell a broker
//! that waited for its end from one that did not, and an eye on its registration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::eventually;
use crate::history::{WriteSpec, Writer};
use crate::kafka::{Cluster, ClusterSpec, Node, Rejoin, Wire};
use crate::scenario::{PATIENCE, Scenario, VICTIM};

/// The session of a broker here. Kafka's own is 9 s, and what a busy machine takes by itself may be as long.
pub const SESSION: Duration = Duration::from_secs(15);

/// How often a registration is looked at. It is gone for seconds: Java has to start.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Partitions without a second replica, and partitions that no other broker has kept up with; of each some
/// are the victim's.
const SINGLE: &str = "single";
const LAST: &str = "last";
const PARTITIONS: i32 = 12;
/// What keeps the others' followers from the victim.
const TABLE: &str = "alone";

/// A cluster whose brokers keep their sessions for [`SESSION`] and whose followers fall out of sync quickly.
#[must_use]
pub fn spec() -> ClusterSpec {
    let session = ("broker.session.timeout.ms".to_owned(), SESSION.as_millis().to_string());
    let lag = ("replica.lag.time.max.ms".to_owned(), "4000".to_owned());
    ClusterSpec {
        controller_properties: vec![session.clone()],
        properties: vec![session, lag],
        ..ClusterSpec::default()
    }
}

/// Writers to partitions of which the victim alone has what was acknowledged: nobody else has a replica, or
/// nobody else is in sync, since the others' followers cannot reach it. To clients it is a broker like any
/// other; what it leads that wants two in sync takes no records meanwhile.
pub struct Alone<'a> {
    cluster: &'a Cluster,
    writers: Vec<Writer>,
}

impl<'a> Alone<'a> {
    /// Makes the topics, and waits until the victim is alone there and is told of no less.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn begin(cluster: &'a Cluster) -> Result<Self> {
        cluster.create_topic(SINGLE, PARTITIONS, 1, 1)?;
        cluster.create_topic(LAST, PARTITIONS, 3, 1)?;
        let writers = [SINGLE, LAST].map(|topic| cluster.write(WriteSpec::steady(topic, PARTITIONS, 60)));
        let alone = Self { cluster, writers: writers.into_iter().collect::<Result<_>>()? };
        alone.flows()?;
        let victim = cluster.broker(VICTIM)?.address();
        let rules = format!(
            "table inet {TABLE} {{ chain out {{ type filter hook output priority 0; \
             ip daddr {} tcp dport {} reject with tcp reset; }}; }}",
            victim.ip(),
            victim.port()
        );
        alone.others_run(&["nft", &rules])?;
        eventually("the victim to be alone in sync", PATIENCE, || {
            let view = cluster.view()?;
            for topic in [SINGLE, LAST] {
                let led = view.partitions.iter().filter(|p| p.topic == topic && p.leader == VICTIM);
                let led: Vec<_> = led.collect();
                ensure!(!led.is_empty() && led.iter().all(|p| p.isr == [VICTIM]), "{led:?}");
            }
            Ok(())
        })?;
        alone.flows()?;
        Ok(alone)
    }

    /// Everybody may follow again; then all catch up, and nothing that was acknowledged is missing.
    ///
    /// # Errors
    /// The verdict, if it is not clean.
    pub fn end(self) -> Result<()> {
        self.others_run(&["nft", "delete", "table", "inet", TABLE])?;
        self.cluster.wait_complete(PATIENCE)?;
        self.flows()?;
        for writer in self.writers {
            let history = writer.stop()?;
            ensure!(history.failed.is_empty(), "the producer gave up on {:?}", history.failed);
            self.cluster.verify(&[&history])?.ensure_clean()?;
        }
        Ok(())
    }

    /// Waits until each partition of the topics has taken more records.
    fn flows(&self) -> Result<()> {
        for writer in &self.writers {
            let before = writer.acked_by_partition();
            let of = |acked: &BTreeMap<i32, usize>, partition| acked.get(&partition).copied().unwrap_or(0);
            eventually("records to flow where the victim is alone", PATIENCE, || {
                let now = writer.acked_by_partition();
                for partition in 0..PARTITIONS {
                    let more = of(&now, partition) - of(&before, partition);
                    ensure!(more >= 10, "partition {partition} has taken {more} more records");
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn others_run(&self, command: &[&str]) -> Result<()> {
        for node in self.cluster.brokers().iter().filter(|node| node.id() != VICTIM) {
            let said = node.home()?.run(command)?;
            ensure!(said.code == 0, "{} on {}: {}", command.join(" "), node.home_name(), said.stderr);
        }
        Ok(())
    }
}

/// Looks at the victim's registration through the other brokers, until it is asked.
pub struct Eye {
    gone: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Eye {
    /// Begins to look.
    ///
    /// # Errors
    /// When nobody can be asked.
    pub fn open(cluster: &Cluster) -> Result<Self> {
        let mut wire = cluster.wire(VICTIM)?;
        let registered = wire.registrations()?.contains_key(&VICTIM);
        ensure!(registered, "broker {VICTIM} has no registration to begin with");
        let (gone, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (saw, ends) = (Arc::clone(&gone), Arc::clone(&stop));
        let others = cluster.brokers().iter().filter(|node| node.id() != VICTIM);
        let others: Vec<_> = others.map(Node::door).collect();
        let thread = thread::spawn(move || {
            let mut turn = others.iter().cycle();
            while !ends.load(Ordering::Relaxed) {
                match wire.registrations() {
                    Ok(said) if said.contains_key(&VICTIM) => {}
                    Ok(_) => saw.store(true, Ordering::Relaxed),
                    Err(_) => {
                        let next = turn.next().map(|at| Wire::connect(at, Duration::from_secs(1)));
                        if let Some(Ok(next)) = next {
                            wire = next;
                        }
                    }
                }
                thread::sleep(LOOK_EVERY);
            }
        });
        Ok(Self { gone, stop, thread: Some(thread) })
    }

    /// Whether the registration was gone at any time since.
    #[must_use]
    pub fn saw_it_gone(self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl Drop for Eye {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic would only hide the story's own failure.
            let _ = thread.join();
        }
    }
}

/// Does `fault`; the broker is back in every ISR without having waited for its session.
///
/// # Errors
/// When it is not, or waited.
pub fn unregistered(scenario: &Scenario<'_>, fault: impl FnOnce() -> Result<()>) -> Result<Rejoin> {
    let eye = Eye::open(&scenario.cluster)?;
    let rejoin = scenario.recovered_after(PATIENCE, fault)?;
    let session = SESSION.as_secs_f64();
    ensure!(rejoin.gone < session - 2.0, "it was seen gone as late as its session ends: {rejoin:?}");
    ensure!(eye.saw_it_gone(), "its registration was never removed");
    Ok(rejoin)
}

/// Does `fault`; the broker is back in every ISR, and its registration was never removed.
///
/// # Errors
/// When it is not, or was.
pub fn left_alone(scenario: &Scenario<'_>, fault: impl FnOnce() -> Result<()>) -> Result<Rejoin> {
    let eye = Eye::open(&scenario.cluster)?;
    let rejoin = scenario.recovered_after(PATIENCE, fault)?;
    ensure!(!eye.saw_it_gone(), "its registration was removed");
    Ok(rejoin)
}

/// The epochs so far, as the next one's number.
///
/// # Errors
/// When the ledger cannot be read.
pub fn next_epoch(scenario: &Scenario<'_>) -> Result<u32> {
    u32::try_from(scenario.epochs()?.len() + 1).context("so many epochs")
}

/// A person removes the broker's registration while it lives: it serves on and is part of nothing, until it
/// is killed and started again.
///
/// # Errors
/// When it is not, or on another way.
pub fn survivor(scenario: &Scenario<'_>) -> Result<()> {
    let epoch = next_epoch(scenario)?;
    let pids = scenario.kafkas()?;
    scenario.recovered_after(PATIENCE, || scenario.cluster.unregister(VICTIM))?;
    scenario.journal_says(epoch, &["end_unregistered", "Kafka was killed", "recovered"], PATIENCE)?;
    ensure!(scenario.kafkas()?.len() == 1 && scenario.kafkas()? != pids, "it was not started again");
    scenario.decided("healthy", PATIENCE).map(drop)
}
