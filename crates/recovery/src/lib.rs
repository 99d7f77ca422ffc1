//! Recovers Kafka brokers whose log dirs live on shared storage.
//!
//! ```text
//! signals → Evidence → observe → Observation → decide → Decision → plan → Plan → execute → Outcome
//!             (dated)   pure                    pure                pure         ports
//! ```
//!
//! The core ([`model`], [`observe`], [`decide`], [`plan`], [`journal`], [`progress`], [`rejoin`]) is pure and
//! gets the time as data. The world is behind [`ports`], whose drivers are crates of their own: nothing here
//! opens a file or a connection.

pub mod cycle;
pub mod decide;
pub mod departure;
pub mod event;
pub mod execute;
mod experience;
pub mod format;
pub mod journal;
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
pub mod view;
