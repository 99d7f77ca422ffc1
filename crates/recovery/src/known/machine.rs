//! What a machine knows of itself, and of the ledger that it has met.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Identity;
use crate::model::{BrokerId, Epoch};
use crate::ports::LedgerError;

/// The ledger that a machine has used first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Met {
    /// Its id.
    pub id: String,
    /// When this machine met it.
    pub since: Timestamp,
    /// Where that was, for people.
    pub place: String,
}

/// What a machine keeps of itself and of its ledger, apart from the ledger.
pub trait Machine: std::fmt::Debug + Send + Sync {
    /// The ledger that this machine has met; `None` before the first one.
    ///
    /// # Errors
    /// When it cannot be read. What is not understood is not overwritten.
    fn met(&self) -> Result<Option<Met>, LedgerError>;
    /// Keeps `identity` as the ledger of this machine.
    ///
    /// # Errors
    /// When it cannot be written.
    fn meet(&self, identity: &Identity, place: &str) -> Result<(), LedgerError>;
    /// Which machine this is, among all that ever had its name; `None` where none was made yet.
    ///
    /// # Errors
    /// When it cannot be read.
    fn instance(&self) -> Result<Option<String>, LedgerError>;
    /// The same, made now if there is none.
    ///
    /// # Errors
    /// When it cannot be read or written.
    fn ensure_instance(&self) -> Result<String, LedgerError>;
    /// The newest epoch of `broker` that this machine has seen; 0 where it has seen none.
    ///
    /// # Errors
    /// When it cannot be read.
    fn newest_epoch(&self, broker: BrokerId) -> Result<Epoch, LedgerError>;
    /// Keeps `epoch` as the newest one of `broker`.
    ///
    /// # Errors
    /// When it cannot be written.
    fn keep_epoch(&self, broker: BrokerId, epoch: Epoch) -> Result<(), LedgerError>;
}
