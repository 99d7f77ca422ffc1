//! Recovers Kafka brokers whose log dirs live on shared storage.
//!
//! ```text
//! signals → Evidence → observe → Observation → decide → Decision → plan → Plan → execute → Outcome
//!             (dated)   pure                    pure                pure         ports
//! ```
//!
//! The core ([`model`], [`observe`], [`decide`], [`plan`], [`journal`], [`progress`], [`rejoin`]) is pure and
//! gets the time as data. The world is behind [`ports`]; a driver is one file in `drivers`. Without the
//! feature of that name there is everything but the drivers, Kafka's formats and the libraries of both: what
//! a simulation needs.

pub mod cycle;
pub mod decide;
pub mod decision;
pub mod departure;
#[cfg(feature = "drivers")]
pub mod drivers;
pub mod event;
pub mod execute;
mod experience;
pub mod format;
#[cfg(all(feature = "drivers", any(test, feature = "testing")))]
#[doc(hidden)]
pub mod fuzzing;
pub mod journal;
#[cfg(feature = "drivers")]
pub mod kafka;
pub mod known;
pub mod ledger_signal;
pub mod model;
pub mod observe;
pub mod plan;
pub mod policy;
pub mod ports;
pub mod progress;
pub mod rejoin;
pub mod stand_down;
pub mod status;
mod steps;
pub mod takeover;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod view;
