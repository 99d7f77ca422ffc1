//! Kafka's own: the wire protocol, `server.properties`, `meta.properties`.

mod dialer;
#[doc(hidden)]
pub mod fuzz;
pub mod meta_properties;
pub mod properties;
pub mod wire;

pub use dialer::Dialer;
