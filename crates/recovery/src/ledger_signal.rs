//! The ledger as a signal: read off the decision path, so that a dead ledger leaves the agent thinking.
//!
//! Each look asks the ledger itself. Of a broker whose newest epoch has ended it asks for the number of the
//! newest epoch alone, of all brokers at once; the journals of the others are read. No time stamp and no
//! cache of a file system has a say in whether something changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use tokio::sync::watch;

use crate::model::{
    BrokerId, Distrust, Endpoint, Epoch, Evidence, Fact, HostName, LedgerReading, LedgerStanding, Unread,
};
use crate::ports::{Clock, HealthSignal, Ledger, LedgerError, chain};

/// How many brokers are read at once: on storage that answers within 1 ms, 500 of them within half a second.
pub const AT_ONCE: usize = 16;

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

    /// Reads everything once. A journal that is damaged, or that a newer understudy has written, concerns its
    /// broker alone.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn read(&self) -> Result<LedgerReading, LedgerError> {
        let mut reading =
            LedgerReading { orders: Arc::new(self.ledger.orders().await?), ..LedgerReading::default() };
        // Of the brokers that are not guarded: one that was never taken over is at home, wherever that is. Of
        // one whose journal cannot be read it is not known where it is, and that is all it means here.
        let mut homes = self.homes.clone();
        for broker in self.listed.borrow().keys() {
            homes.entry(*broker).or_insert_with(|| HostName::from("(home)"));
        }
        let brokers: BTreeSet<BrokerId> = homes.keys().copied().collect();
        let newest = self.ledger.newest_epochs(&brokers).await?;
        let mut standings = stream::iter(homes)
            .map(|(broker, home)| {
                let newest = newest.get(&broker).copied();
                async move { (broker, self.standing(broker, &home, newest).await) }
            })
            .buffer_unordered(AT_ONCE);
        while let Some((broker, standing)) = standings.next().await {
            match standing {
                Ok(standing) if self.homes.contains_key(&broker) => {
                    reading.brokers.insert(broker, standing);
                }
                Ok(standing) => drop(reading.others.insert(broker, standing.writers)),
                Err(error) => drop(reading.unread.insert(broker, unread(error)?)),
            }
        }
        Ok(reading)
    }

    async fn standing(
        &self,
        broker: BrokerId,
        home: &HostName,
        newest: Option<Epoch>,
    ) -> Result<LedgerStanding, LedgerError> {
        let known = self.ended().get(&broker).cloned();
        let known = known.unwrap_or_else(|| LedgerStanding::untouched(home.clone()));
        if newest == Some(known.epoch) {
            return Ok(known);
        }
        let several = newest.is_some_and(|newest| newest > known.epoch.next());
        let journals = if several {
            self.ledger.all(broker).await?
        } else {
            self.ledger.latest(broker).await?.into_iter().collect()
        };
        let Some(newest) = journals.last().filter(|newest| newest.epoch != known.epoch) else {
            return Ok(known);
        };
        let standing = if newest.epoch == known.epoch.next() {
            known.then(newest)
        } else if several {
            LedgerStanding::after(home, &journals)
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

/// Why this one broker's journals cannot be read, or an error of the whole ledger.
fn unread(error: LedgerError) -> Result<Unread, LedgerError> {
    match error {
        LedgerError::Damaged { .. } => Ok(Unread::Damaged(chain(&error))),
        LedgerError::Distrusted { distrust: Distrust::LedgerNewer, why } => Ok(Unread::Newer(why)),
        error => Err(error),
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
