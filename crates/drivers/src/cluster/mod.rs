//! `cluster` drivers: what only the cluster itself can say or do.

pub mod advertised;
mod election;
mod headway;
pub mod kafka;
pub mod registration;
pub mod rights;
pub mod zookeeper;
