//! Preferred leaders, given back to a broker that is in sync again.
//!
//! Whatever a Java virtual machine that has just started does for the first time is slow, and what many
//! clients want of it at once is slower: with 34 leaders in one go, on two cores, producers waited for 7 s
//! after the broker had long been in sync. So a few leaders come first, then twice as many, and so on, each
//! time once the broker serves what it got.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::kafka::{ANSWER_LIMIT, DRIVER, KafkaCluster, OPEN_LIMIT, leads};
use kafka::Dialer;
use kafka::wire::{Connection, MetadataSeen, Topics, WireError};
use recovery::model::{BrokerId, Endpoint, Replication};
use recovery::ports::{Note, StepError};

/// So many leaders at first.
const FIRST_BATCH: usize = 4;
/// And never more than this: all at once would have every client look for its new leader in the same moment.
const LARGEST_BATCH: usize = 100;
/// How long the brokers may take to learn of leaders that the controller has elected.
const ELECTED_WITHIN: Duration = Duration::from_secs(5);
/// How long the broker may take to serve a batch. One that takes longer gets the next all the same, but not a
/// larger one.
const SERVED_WITHIN: Duration = Duration::from_secs(5);
/// For how long in all that is minded. A broker that serves nothing yet by then gets the rest without delay:
/// it leads nothing the less for being waited for.
const MINDED_FOR: Duration = Duration::from_secs(60);
/// Between two looks for that.
const ELECTED_POLL: Duration = Duration::from_millis(100);

/// What became of a batch.
struct Elected {
    /// What is still led by others, with the reason.
    missing: Vec<String>,
    /// Whether the broker serves the rest of it.
    serves: bool,
}

impl KafkaCluster {
    /// Has `broker` lead what it is the first replica of and in sync for.
    ///
    /// # Errors
    /// When nobody can be asked, or others go on to lead some of it.
    pub(super) async fn give_back(&self, broker: BrokerId) -> Result<Note, StepError> {
        let action = || action(broker);
        let (_, _, seen) = self.via(Some(broker), Topics::All, action).await?;
        let preferred: Vec<_> = seen.partitions.of(broker).filter(|p| prefers(p, broker)).collect();
        let away = preferred.iter().filter(|p| p.leader != Some(broker));
        let (due, lagging): (Vec<&Replication>, Vec<_>) = away.partition(|p| p.isr.contains(&broker));
        let due: Vec<_> = due.into_iter().map(|p| (p.topic.clone(), p.partition)).collect();
        let (mut missing, mut size, mut left) = (Vec::new(), FIRST_BATCH, &due[..]);
        let (mut late, minded) = (0, Instant::now() + MINDED_FOR);
        while !left.is_empty() {
            let (batch, rest) = left.split_at(size.min(left.len()));
            let elected = self.elect(broker, batch, minded).await?;
            missing.extend(elected.missing);
            late += usize::from(!elected.serves);
            size = if Instant::now() >= minded {
                LARGEST_BATCH
            } else if elected.serves {
                LARGEST_BATCH.min(size * 2)
            } else {
                size
            };
            left = rest;
        }
        if let Some(first) = missing.first() {
            let (missed, all) = (missing.len(), preferred.len());
            let why = format!("{missed} of {all} partitions are still led by others, such as {first}");
            return Err(StepError::Refused { driver: DRIVER, action: action(), why });
        }
        let leads = preferred.len() - lagging.len();
        let text = format!("broker {broker} leads {leads} of the {} partitions it should", preferred.len());
        let note = Note::new(text).with("elected", due.len()).with("not_in_isr", lagging.len());
        Ok(note.with("batches_served_late", late))
    }

    /// Has one batch elected, and waits until a surviving broker knows and, no longer than until `minded`,
    /// the broker serves it.
    async fn elect(
        &self,
        broker: BrokerId,
        batch: &[(String, i32)],
        minded: Instant,
    ) -> Result<Elected, StepError> {
        let action = || action(broker);
        let (_, via, seen) = self.via(Some(broker), Topics::None, action).await?;
        let failed =
            |source: WireError| StepError::Failed { driver: DRIVER, action: action(), source: source.into() };
        let mut connection = to_controller(&self.dialers.brokers, via, &seen).await.map_err(failed)?;
        let elections = connection.elect_preferred(batch, ANSWER_LIMIT).await.map_err(failed)?;
        let mut reasons: BTreeMap<(String, i32), String> = BTreeMap::new();
        for election in elections {
            reasons.extend(election.failed.map(|why| ((election.topic, election.partition), why)));
        }
        let topics: BTreeSet<String> = batch.iter().map(|(topic, _)| topic.clone()).collect();
        let until = Instant::now() + ELECTED_WITHIN;
        loop {
            let (_, _, seen) = self.via(Some(broker), Topics::Named(&topics), action).await?;
            let led: BTreeSet<_> = leads(&seen.partitions, broker).collect();
            let (led, missing): (Vec<_>, Vec<_>) =
                batch.iter().cloned().partition(|p| led.contains(&(p.0.as_str(), p.1)));
            let all_refused = missing.iter().all(|p| reasons.contains_key(p));
            if all_refused || Instant::now() >= until {
                let unknown = || "elected, and not seen to lead".to_owned();
                let why = |p: &(String, i32)| reasons.get(p).cloned().unwrap_or_else(unknown);
                let missing = missing.iter().map(|p| format!("{}-{}: {}", p.0, p.1, why(p))).collect();
                let due = minded.min(Instant::now() + SERVED_WITHIN);
                let serves = match seen.brokers.get(&broker) {
                    Some(at) if !led.is_empty() => {
                        timeout_at(due, until_it_serves(&self.dialers.brokers, at, &led)).await.is_ok()
                    }
                    _ => true,
                };
                return Ok(Elected { missing, serves });
            }
            sleep(ELECTED_POLL).await;
        }
    }
}

fn action(broker: BrokerId) -> String {
    format!("give broker {broker} its preferred partitions back")
}

/// A connection to whoever carries out requests for the controller.
async fn to_controller(
    dialer: &Dialer,
    via: Connection,
    seen: &MetadataSeen,
) -> Result<Connection, WireError> {
    match seen.controller.and_then(|id| seen.brokers.get(&id)) {
        Some(endpoint) if endpoint != via.at() => dialer.open(endpoint, OPEN_LIMIT).await,
        _ => Ok(via),
    }
}

/// Waits until the broker at this listener serves `partitions`. Others hear of a new leader before it has
/// begun to be one.
async fn until_it_serves(dialer: &Dialer, at: &Endpoint, partitions: &[(String, i32)]) {
    let mut asked = None;
    loop {
        if asked.is_none() {
            asked = dialer.open(at, OPEN_LIMIT).await.ok();
        }
        if let Some(connection) = &mut asked {
            match connection.serves(partitions, ANSWER_LIMIT).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(_) => asked = None,
            }
        }
        sleep(ELECTED_POLL).await;
    }
}

/// Whether `broker` is the first replica.
fn prefers(partition: &Replication, broker: BrokerId) -> bool {
    partition.replicas.first() == Some(&broker)
}
