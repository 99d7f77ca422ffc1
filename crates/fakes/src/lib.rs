//! Stateful fakes with faults to switch on, and the contracts that every driver of a port keeps. For tests, the
//! simulation and the bed; no program that ships has any of it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

pub mod kafka;
pub mod kafka_login;
pub mod kubernetes;
pub mod ledger;
pub mod ontap;
pub mod provider;
pub mod stores;
pub mod tls;
mod world;

pub use world::*;
