//! `cluster` drivers: what only the cluster itself can say or do.

pub mod kafka;
pub mod registration;
