//! `cluster` drivers: what only the cluster itself can say or do.

mod election;
pub mod kafka;
pub mod registration;
