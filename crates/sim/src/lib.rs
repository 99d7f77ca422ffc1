//! Whole clusters in one process: brokers, standbys, ledger, storage, network and clocks, and every fault,
//! from one seed. The daemons are the real ones, [`recovery::cycle::Cycle`]; only what lies behind their
//! ports is simulated.
//!
//! Every promise is held against the world's own truth, at every act and at every step of simulated time. A
//! run ends once every broker is recovered, or nobody acts for a reason that is true, or a person was called.

mod agent;
mod faults;
pub mod generate;
mod identity;
mod judge;
mod kafka;
mod ledger;
mod remote;
mod rng;
mod rules;
mod run;
pub mod scenario;
pub mod shrink;
mod signals;
mod together;
mod world;

pub use judge::End;
pub use run::{Report, run};
