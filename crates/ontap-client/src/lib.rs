//! Typed async client for the NetApp ONTAP REST API.
//!
//! This crate knows nothing of Kafka. It holds its place in the workspace: the storage fence
//! (`ontap_export`) will be built on it, and no part of Understudy depends on it yet.

#[cfg(feature = "fake")]
pub mod fake;
