//! What the ledger holds beside journals and orders.

use serde::{Deserialize, Serialize};

/// A small text in the ledger that is written by compare-and-set: which ledger it is, who has a host's name,
/// where a broker's home is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Counts what was written to the cell, from 1.
    pub version: u64,
    /// What it holds, in one line.
    pub text: String,
}
