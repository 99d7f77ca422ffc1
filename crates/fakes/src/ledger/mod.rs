//! The contract of every ledger, and the faults that each must survive.

pub mod contract;
pub mod faults;
