//! The ledger as a signal: read off the decision path, so that a dead ledger leaves the agent thinking.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::model::{BrokerId, Endpoint, Evidence, Fact, HostName, LedgerReading, LedgerStanding};
use crate::ports::{Clock, HealthSignal, Ledger, LedgerError, chain};

/// Reads where every guarded broker stands, who has the others, and the order book.
pub struct LedgerSignal {
    ledger: Arc<dyn Ledger>,
    homes: BTreeMap<BrokerId, HostName>,
    listed: watch::Receiver<BTreeMap<BrokerId, Endpoint>>,
    /// Each broker after its last epoch that has ended: what ended does not change any more.
    ended: Mutex<BTreeMap<BrokerId, LedgerStanding>>,
}

impl LedgerSignal {
    /// `homes`: the guarded brokers with the host that owns each until the ledger says otherwise. `listed`:
    /// what the cluster lists. Of its brokers that are not guarded it matters on which hosts they are: who
    /// fences a host must know what it carries.
    #[must_use]
    pub fn new(
        ledger: Arc<dyn Ledger>,
        homes: BTreeMap<BrokerId, HostName>,
        listed: watch::Receiver<BTreeMap<BrokerId, Endpoint>>,
    ) -> Self {
        Self { ledger, homes, listed, ended: Mutex::default() }
    }

    /// Reads everything once. A journal that is damaged concerns its broker alone.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn read(&self) -> Result<LedgerReading, LedgerError> {
        let mut reading =
            LedgerReading { orders: Arc::new(self.ledger.orders().await?), ..LedgerReading::default() };
        for (broker, home) in &self.homes {
            match self.standing(*broker, home).await {
                Ok(standing) => drop(reading.brokers.insert(*broker, standing)),
                Err(error @ LedgerError::Damaged { .. }) => {
                    reading.damaged.insert(*broker, chain(&error));
                }
                Err(error) => return Err(error),
            }
        }
        let listed: Vec<BrokerId> = self.listed.borrow().keys().copied().collect();
        for broker in listed.into_iter().filter(|broker| !self.homes.contains_key(broker)) {
            // One that was never taken over is at home, wherever that is. Of one whose journal is damaged it
            // is not known where it is, and that is all it means here.
            match self.standing(broker, &HostName::from("(home)")).await {
                Ok(standing) => drop(reading.others.insert(broker, standing.writers)),
                Err(error @ LedgerError::Damaged { .. }) => {
                    reading.damaged.insert(broker, chain(&error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(reading)
    }

    async fn standing(&self, broker: BrokerId, home: &HostName) -> Result<LedgerStanding, LedgerError> {
        let known = self.ended().get(&broker).cloned();
        let known = known.unwrap_or_else(|| LedgerStanding::untouched(home.clone()));
        let Some(newest) = self.ledger.latest(broker).await? else { return Ok(known) };
        if newest.epoch == known.epoch {
            return Ok(known);
        }
        let standing = if newest.epoch == known.epoch.next() {
            known.then(&newest)
        } else {
            LedgerStanding::after(home, &self.ledger.all(broker).await?)
        };
        if newest.outcome().is_some() && standing.epoch == newest.epoch {
            self.ended().insert(broker, standing.clone());
        }
        Ok(standing)
    }

    fn ended(&self) -> std::sync::MutexGuard<'_, BTreeMap<BrokerId, LedgerStanding>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl HealthSignal for LedgerSignal {
    fn name(&self) -> &'static str {
        "ledger"
    }

    fn period(&self) -> Duration {
        Duration::from_millis(500)
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let at = clock.now().mono;
        let fact = match self.read().await {
            Ok(reading) => Fact::Ledger(reading),
            Err(LedgerError::Distrusted { distrust, why }) => Fact::Distrusted { distrust, why },
            Err(error) => Fact::Blind { why: chain(&error) },
        };
        vec![Evidence { signal: self.name(), at, fact }]
    }
}
