//! A ledger never goes back. Every host keeps the newest epoch of each broker that it has seen; a ledger that
//! has an older one was restored from an old copy, and the owner that it names may be yesterday's.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::Member;
use crate::model::{BrokerId, Distrust, Epoch};
use crate::ports::{LedgerError, chain};

/// What was found to be right last, so that nothing is read from the disk for it.
#[derive(Debug, Default)]
pub(super) struct Newest(Mutex<BTreeMap<BrokerId, Epoch>>);

impl Newest {
    /// Whether `found`, 0 for none, is older than what this host has seen. Keeps it if it is newer. A host that only
    /// looks keeps nothing, and may not be allowed to read what others keep.
    pub(super) fn is_older(&self, who: &Member, broker: BrokerId, found: Epoch) -> Result<bool, LedgerError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.get(&broker) == Some(&found) {
            return Ok(false);
        }
        let kept = seen(who, broker)?;
        if found < kept {
            return Ok(true);
        }
        if found > kept && who.joins {
            // A disk that is full must not keep a broker down: it is tried again at the next reading.
            if let Err(error) = who.machine.keep_epoch(broker, found) {
                tracing::warn!(%broker, error = chain(&error), "the newest epoch is not kept on this host");
                return Ok(false);
            }
        }
        known.insert(broker, found);
        Ok(false)
    }
}

/// The newest epoch of a broker that this host has seen.
fn seen(who: &Member, broker: BrokerId) -> Result<Epoch, LedgerError> {
    let kept = who.machine.newest_epoch(broker);
    if who.joins { kept } else { Ok(kept.unwrap_or_default()) }
}

/// What is said of a ledger that went back.
pub(super) fn went_back(who: &Member, broker: BrokerId, found: Epoch) -> LedgerError {
    let why = format!(
        "the newest epoch of broker {broker} in {} is {found}, and this host has seen epoch {}: was the ledger \
         restored \
         from an old copy? Put the newest copy back. If there is none, find out on which host Kafka of each broker \
         runs, stop any other, and run `understudy ledger adopt` on every host",
        who.place,
        seen(who, broker).unwrap_or_default()
    );
    LedgerError::Distrusted { distrust: Distrust::LedgerWentBack, why }
}
