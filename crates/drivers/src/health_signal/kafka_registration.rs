//! Whether a guarded broker that is not in the broker list is registered all the same. Nobody is asked while
//! all are listed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::cluster::registration::{Told, ask};
use kafka::Dialers;
use kafka::wire::Controller;
use recovery::model::{BrokerId, Endpoint, Evidence, Fact};
use recovery::ports::{Clock, HealthSignal};

/// Nothing hangs on a second here, and each look is a connection to three brokers.
const PERIOD: Duration = Duration::from_secs(1);

/// Asks listed brokers about those that are not.
#[derive(Debug)]
pub struct KafkaRegistration {
    dialers: Dialers,
    guarded: BTreeSet<BrokerId>,
    controllers: Vec<Controller>,
    listed: watch::Receiver<BTreeMap<BrokerId, Endpoint>>,
}

impl KafkaRegistration {
    /// Looks after `guarded`, by the brokers that are `listed` and by `controllers`.
    #[must_use]
    pub fn new(
        dialers: Dialers,
        guarded: BTreeSet<BrokerId>,
        controllers: Vec<Controller>,
        listed: watch::Receiver<BTreeMap<BrokerId, Endpoint>>,
    ) -> Self {
        Self { dialers, guarded, controllers, listed }
    }
}

#[async_trait]
impl HealthSignal for KafkaRegistration {
    fn name(&self) -> &'static str {
        "kafka_registration"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let at = clock.now().mono;
        let listed = self.listed.borrow().clone();
        // Before the first list is read, nobody is missing in it.
        if listed.is_empty() {
            return Vec::new();
        }
        let mut facts = Vec::new();
        for broker in self.guarded.iter().filter(|id| !listed.contains_key(id)).copied() {
            facts.push(match ask(&self.dialers, broker, &listed, &self.controllers).await {
                Told::Registered => Fact::Registration { broker, registered: true },
                Told::Unregistered => Fact::Registration { broker, registered: false },
                // No look tomorrow will tell.
                Told::Untold => continue,
                Told::Unknown { why } => Fact::Blind { why: format!("broker {broker}: {why}") },
            });
        }
        facts.into_iter().map(|fact| Evidence { signal: self.name(), at, fact }).collect()
    }
}
