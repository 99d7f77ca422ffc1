//! Whether Kafka starts here with the classes that it needs at hand, and whether it did so the last time.

use std::sync::Arc;

use drivers::broker_host::class_data::{ClassData, Look};
use jiff::Timestamp;
use recovery::journal::{Entry, EpochJournal};
use recovery::model::{BrokerId, Check, HostName};
use recovery::ports::chain;

use super::Item;
use crate::world::World;

/// A start here that used no archive.
#[derive(Debug)]
struct Missed {
    broker: BrokerId,
    at: Timestamp,
    why: String,
}

pub(super) async fn look(world: Arc<World>, class_data: Arc<ClassData>) -> Vec<Item> {
    let remedy = "run `understudy warm`: without it a start takes half as long again";
    vec![match class_data.look().await {
        Ok(Look::Fits { archive, bytes, made }) => {
            let says = format!("fits: {}, {} MB, made {made:.0}", archive.display(), bytes / 1_000_000);
            match missed(&world).await.filter(|missed| missed.at > made) {
                Some(missed) => unused(&says, &missed),
                None => Item::ok(Check::ClassData, says),
            }
        }
        Ok(Look::Unwanted { why }) => Item::ok(Check::ClassData, format!("none is wanted: {why}")),
        Ok(Look::None { why }) => Item::warn(Check::ClassData, format!("none: {why}"), remedy),
        Err(error) => Item::warn(Check::ClassData, chain(&error), remedy),
    }]
}

/// What fits now did not when it was needed.
fn unused(says: &str, Missed { broker, at, why }: &Missed) -> Item {
    let says = format!("{says}; the start of broker {broker} at {at:.0} did not use it: {why}");
    Item::warn(Check::ClassData, says, "see that this does not change again before the next start")
}

/// The last start on this host, if it used none. A ledger that cannot be read is told elsewhere.
async fn missed(world: &World) -> Option<Missed> {
    let mut last = None;
    for broker in world.topology.brokers.keys() {
        let journals = world.ports.ledger.all(*broker).await.ok()?;
        let start = last_start(&journals, &world.topology.here);
        last = last.max(start.map(|(at, says)| (at, *broker, says)));
    }
    let (at, broker, says) = last?;
    says.strip_prefix("none: ").map(|why| Missed { broker, at, why: why.to_owned() })
}

/// When Kafka was last started by `here`, and what that said of the archive.
fn last_start(journals: &[EpochJournal], here: &HostName) -> Option<(Timestamp, String)> {
    let records = journals.iter().flat_map(|journal| &journal.records).filter(|record| record.by == *here);
    let starts = records.filter_map(|record| match &record.entry {
        Entry::Done { note, .. } => Some((record.at, note.details.get("class_data")?.clone())),
        _ => None,
    });
    starts.max()
}

#[cfg(test)]
mod tests {
    use recovery::journal::{Claim, Direction};
    use recovery::model::{Cause, Epoch, Verdict};
    use recovery::plan::Plan;
    use recovery::ports::Note;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A world in which this host has started broker 1 twice.
    async fn world(first: &str, second: &str) -> World {
        let fake = fakes::World::new();
        let (topology, policy, ports) = (fakes::World::topology(), fakes::World::policy(), fake.ports());
        let (broker, here) = (fakes::BROKER, topology.here.clone());
        let plan = Plan {
            broker,
            from: "kafka-1".into(),
            to: here.clone(),
            epoch: Epoch(1),
            fault_at: at(1),
            because: Vec::new(),
            stages: Vec::new(),
            predicted: None,
        };
        let (cause, by) = (Cause::Manual, here.clone());
        let claim = Claim { at: at(1), by, cause, succeeds: None, instance: None, plan };
        ports.ledger.claim(&claim).await.unwrap();
        for (second, says) in [(10, first), (20, second)] {
            let note = Note::new("runs").with("class_data", says);
            let done = Entry::Done { step: 0, direction: Direction::Forward, note };
            ports.ledger.append(broker, Epoch(1), at(second), &here, &[done]).await.unwrap();
        }
        let logs = drivers::health_signal::kafka_logs::KafkaLogs::new(kafka::Dialer::plaintext(), [].into());
        World { topology, policy, ports, signals: Vec::new(), logs, clients: Arc::default() }
    }

    #[tokio::test]
    async fn an_archive_that_the_last_start_did_not_use_is_no_ok() {
        let missed = missed(&world("used: /k.jsa", "none: / was changed").await).await.unwrap();
        assert_eq!((missed.at, missed.why.as_str()), (at(20), "/ was changed"));
        let item = unused("fits: /k.jsa", &missed);
        assert_eq!(item.verdict, Verdict::Warn);
        assert!(item.says.contains("broker 1") && item.says.contains("/ was changed"), "{item:?}");
    }

    #[tokio::test]
    async fn what_was_so_before_the_last_start_is_past() {
        assert!(missed(&world("none: / was changed", "used: /k.jsa").await).await.is_none());
        assert!(missed(&world("used: /k.jsa", "not known: it was started before").await).await.is_none());
    }
}
