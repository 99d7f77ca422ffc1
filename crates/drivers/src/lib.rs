//! The world on a Linux host, by port. A driver is one file; each brings its own section of the configuration.

pub mod address;
pub(crate) mod bounded;
pub mod broker_host;
pub mod certificate;
pub mod clients;
pub mod clock;
pub mod cluster;
pub(crate) mod command;
pub mod fence;
pub mod health_signal;
pub mod host_lock;
pub(crate) mod http;
pub mod ledger;
pub mod machine;
pub mod off_path;
pub mod storage;
pub mod tls;

#[cfg(test)]
mod in_namespaces;
