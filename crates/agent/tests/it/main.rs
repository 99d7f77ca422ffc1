//! The real binary and its pages from outside, a subject a module.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod canary;
mod commands;
mod common;
mod config;
mod encrypted;
mod enter;
mod fences;
mod guard;
mod hostile;
mod ontap;
mod orders;
mod reload;
mod secrets;
mod socket;
mod standing_checks;
mod storage_probe;
mod surfaces;
mod terraform;
mod units;
