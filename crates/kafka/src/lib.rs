//! Kafka's own: the wire protocol and who may speak it, `server.properties`, `meta.properties`.

mod dialer;
#[doc(hidden)]
pub mod fuzz;
pub mod meta_properties;
pub mod properties;
pub mod security;
pub mod wire;
mod zookeeper;

pub use dialer::{Dialer, Dialers};
pub use zookeeper::{ZNode, ZooKeeper};
