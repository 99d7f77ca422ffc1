//! What the stories about `UnregisterBroker` have in common: a session that is long enough to tell a broker that waited for
//! its end from one that did not, topics in which the victim is alone, and an eye on its registration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::eventually;
use crate::history::{History, WriteSpec, Writer};
use crate::kafka::{Cluster, ClusterSpec, Configured, Node, Rejoin, Wire};
use crate::scenario::{PATIENCE, Scenario, VICTIM};

/// The session of a broker here. Kafka's own is 9 s, and what a busy machine takes by itself may be as long.
pub const SESSION: Duration = Duration::from_secs(15);

/// A topic whose every partition has one replica.
const SOLO: &str = "solo";
/// A topic with two replicas, of which the leader's is the only one in sync.
const LAST: &str = "last";
/// Partitions of each: every broker leads one at least.
const PARTITIONS: i32 = 6;

/// How often a registration is looked at. It is gone for seconds: Java has to start.
const LOOK_EVERY: Duration = Duration::from_millis(100);

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

/// Writers to topics in which the victim is the only one that has what was acknowledged.
pub struct Alone<'a> {
    cluster: &'a Cluster,
    writers: Vec<Writer>,
}

impl<'a> Alone<'a> {
    /// Makes the topics, and waits until the victim leads partitions of them and is in sync alone.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn begin(cluster: &'a Cluster) -> Result<Self> {
        cluster.create_topic(SOLO, PARTITIONS, 1, 1)?;
        cluster.create_topic(LAST, PARTITIONS, 2, 1)?;
        let writers = [SOLO, LAST].map(|topic| cluster.write(WriteSpec::steady(topic, PARTITIONS, 300)));
        let writers = writers.into_iter().collect::<Result<Vec<_>>>()?;
        let mut wire = cluster.wire(0)?;
        wire.set(Configured::Topic, LAST, &[("follower.replication.throttled.replicas", "*")])?;
        for node in cluster.brokers().iter().filter(|node| node.id() != VICTIM) {
            throttle(node, "1")?;
        }
        eventually("the victim to be the only one in sync", PATIENCE, || {
            let view = cluster.view()?;
            let led = |topic: &str| {
                let of = view.partitions.iter().filter(|p| p.topic == topic && p.leader == VICTIM);
                of.cloned().collect::<Vec<_>>()
            };
            let (solo, last) = (led(SOLO), led(LAST));
            ensure!(!solo.is_empty(), "it leads nothing of {SOLO}");
            ensure!(!last.is_empty() && last.iter().all(|p| p.isr == [VICTIM]), "{last:?}");
            Ok(())
        })?;
        Ok(Self { cluster, writers })
    }

    /// Everybody may follow again; then nothing that was acknowledged is missing.
    ///
    /// # Errors
    /// The verdict, if it is not clean.
    pub fn verdict(self) -> Result<()> {
        for node in self.cluster.brokers() {
            throttle(node, "1000000000")?;
        }
        for writer in self.writers {
            let before = writer.acked();
            eventually("records to flow where the victim is alone", PATIENCE, || {
                let acked = writer.acked();
                ensure!(acked >= before + 500, "{} more are acknowledged", acked - before);
                Ok(())
            })?;
            let history: History = writer.stop()?;
            ensure!(history.failed.is_empty(), "the producer gave up on {:?}", history.failed);
            self.cluster.verify(&[&history])?.ensure_clean()?;
        }
        Ok(())
    }
}

/// How many bytes a second a broker fetches of what it is not in sync with. Only the broker itself takes that.
fn throttle(node: &Node, rate: &str) -> Result<()> {
    let rate = [("follower.replication.throttled.rate", rate)];
    let mut wire = Wire::connect(node.address(), Duration::from_secs(5))?;
    wire.set(Configured::Broker, &node.id().to_string(), &rate)
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
        let others: Vec<_> = others.map(Node::address).collect();
        let thread = thread::spawn(move || {
            let mut turn = others.iter().cycle();
            while !ends.load(Ordering::Relaxed) {
                match wire.registrations() {
                    Ok(said) if said.contains_key(&VICTIM) => {}
                    Ok(_) => saw.store(true, Ordering::Relaxed),
                    Err(_) => {
                        let next = turn.next().map(|at| Wire::connect(*at, Duration::from_secs(1)));
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
