//! The processes of brokers on this host, so that a broker that runs here and whose Kafka ended is started
//! again here, and is not taken for a dead host.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;

use recovery::model::{BrokerId, Evidence, Fact, LocalProcess};
use recovery::ports::{BrokerHost, Clock, HealthSignal, ProcessState, chain};

/// As often as brokers are probed: an ended process is then known before its port has been refused twice.
const PERIOD: Duration = Duration::from_millis(250);

/// Asks the broker host about every guarded broker.
pub struct LocalProcesses {
    broker_host: Arc<dyn BrokerHost>,
    brokers: Vec<BrokerId>,
}

impl LocalProcesses {
    /// Looks at the processes of `brokers` through `broker_host`, which has deadlines of its own.
    #[must_use]
    pub fn new(broker_host: Arc<dyn BrokerHost>, brokers: Vec<BrokerId>) -> Self {
        Self { broker_host, brokers }
    }
}

#[async_trait]
impl HealthSignal for LocalProcesses {
    fn name(&self) -> &'static str {
        "local_process"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let at = clock.now().mono;
        let states = self.brokers.iter().map(|id| async { (*id, self.broker_host.state(*id).await) });
        let (mut facts, mut faults) = (Vec::new(), Vec::new());
        for (broker, state) in join_all(states).await {
            match state {
                Ok(state) => facts.push(Fact::Local { broker, process: process(&state) }),
                Err(error) => faults.push(format!("broker {broker}: {}", chain(&error))),
            }
        }
        // Last, because any other fact of a signal says that it can see again.
        facts.extend((!faults.is_empty()).then(|| Fact::Blind { why: faults.join("; ") }));
        facts.into_iter().map(|fact| Evidence { signal: self.name(), at, fact }).collect()
    }
}

fn process(state: &ProcessState) -> LocalProcess {
    match state {
        ProcessState::Absent => LocalProcess::Absent,
        ProcessState::Running { .. } => LocalProcess::Running,
        ProcessState::Exited { .. } => LocalProcess::Exited,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fakes::{BROKER, Fault, World};

    async fn look(world: &World) -> Vec<Evidence> {
        LocalProcesses::new(Arc::new(world.clone()), vec![BROKER]).look(world).await
    }

    async fn seen(world: &World) -> LocalProcess {
        match look(world).await.as_slice() {
            [Evidence { fact: Fact::Local { broker: BROKER, process }, .. }] => *process,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_told_from_its_start_to_its_end() {
        let world = World::new();
        assert_eq!(seen(&world).await, LocalProcess::Absent);
        world.sleep(Duration::from_secs(1)).await;
        let now = world.now().mono;
        world.truth().started_at = Some(now);
        assert_eq!(seen(&world).await, LocalProcess::Running);
        assert_eq!(look(&world).await[0].at, now, "dated by when the look began");
        world.truth().exited = true;
        assert_eq!(seen(&world).await, LocalProcess::Exited);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_looked_at_is_our_blindness_and_no_ended_process() {
        let world = World::new();
        world.truth().faults.insert("state", Fault::Unconfirmed);
        let evidence = look(&world).await;
        let [Evidence { fact: Fact::Blind { why }, .. }] = evidence.as_slice() else {
            panic!("{evidence:?}")
        };
        assert!(why.starts_with("broker 1: "), "{why}");
    }
}
