//! Kafka's own formats: wire protocol, `server.properties`, `meta.properties`.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod fuzz;
pub mod meta_properties;
pub mod properties;
pub mod wire;
