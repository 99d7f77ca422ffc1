//! Kafka's own: the wire protocol, `server.properties`, `meta.properties`.

#[doc(hidden)]
pub mod fuzz;
pub mod meta_properties;
pub mod properties;
pub mod wire;
