//! The core from outside, a subject a module. The model is a binary of its own (`protocol`).

#![allow(clippy::expect_used, reason = "a test that cannot go on should say why")]

mod architecture;
mod daemon;
mod dead;
mod decisions;
mod execution;
mod followed_later;
mod freshness;
mod held_locks;
mod journal;
mod ledger_signal;
mod machines;
mod outlived;
mod prediction;
mod properties;
mod rejoining;
mod renewed;
mod runbooks;
mod stand_down;
mod standing;
mod transcripts;
mod view;
