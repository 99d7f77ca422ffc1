//! `understudy ontap …`: the real binary against the stateful fake of ONTAP, over HTTPS with a pinned
//! certificate.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod audit;
mod bed;
#[path = "../common/mod.rs"]
mod common;
mod efficiency;
mod provision;
mod secrets;
mod verify;
