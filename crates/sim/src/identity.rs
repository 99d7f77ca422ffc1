//! The core's own proof of who is who: each agent's ledger behind it, and what its machine keeps of itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use recovery::known::{Identity, KnownLedger, Machine, Member, Met};
use recovery::model::{BrokerId, Epoch};
use recovery::ports::{Ledger, LedgerError};

use crate::agent::{Agent, id};
use crate::scenario::Bug;

/// What one machine keeps, whoever its agent says it is.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    instance: String,
    met: Mutex<Option<Met>>,
    epochs: Mutex<BTreeMap<BrokerId, Epoch>>,
}

impl Kept {
    pub(crate) fn new(host: usize) -> Self {
        Self { instance: format!("machine-{host}"), met: Mutex::default(), epochs: Mutex::default() }
    }
}

impl Machine for Kept {
    fn met(&self) -> Result<Option<Met>, LedgerError> {
        Ok(self.met.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn meet(&self, identity: &Identity, place: &str) -> Result<(), LedgerError> {
        let met = Met { id: identity.id.clone(), since: identity.at, place: place.to_owned() };
        *self.met.lock().unwrap_or_else(PoisonError::into_inner) = Some(met);
        Ok(())
    }

    fn instance(&self) -> Result<Option<String>, LedgerError> {
        Ok(Some(self.instance.clone()))
    }

    fn ensure_instance(&self) -> Result<String, LedgerError> {
        Ok(self.instance.clone())
    }

    fn newest_epoch(&self, broker: BrokerId) -> Result<Epoch, LedgerError> {
        let epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(epochs.get(&broker).copied().unwrap_or_default())
    }

    fn keep_epoch(&self, broker: BrokerId, epoch: Epoch) -> Result<(), LedgerError> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner).insert(broker, epoch);
        Ok(())
    }
}

/// The ledger of an agent that says it is host `says`.
pub(crate) fn ledger(agent: &Agent, says: usize, guards: &[usize]) -> Arc<dyn Ledger> {
    let state = agent.world.state();
    if matches!(state.setup.bug, Some(Bug::AnyLedger | Bug::AnyMachine)) {
        return Arc::new(agent.clone());
    }
    let homes = guards.iter().map(|broker| (id(*broker), state.name(*broker))).collect();
    let machine = state.hosts[agent.host].kept.clone();
    let who = Member { here: state.name(says), machine, homes, place: "/mnt/ledger".to_owned(), joins: true };
    Arc::new(KnownLedger::new(Arc::new(agent.clone()), who, Arc::new(agent.clone())))
}
