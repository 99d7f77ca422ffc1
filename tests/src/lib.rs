//! The test bed: hosts with their own network, mounts and processes; a real Kafka; faults; and a write
//! history that judges what happened.
//!
//! A story is one `#[test]` that calls [`story`]. It runs in a sandbox of its own namespaces, so whatever it
//! started is gone when it ends, however it ends:
//!
//! ```ignore
//! #[test]
//! fn a_host_dies() {
//!     e2e::story("a_host_dies", |lab| {
//!         let cluster = lab.kafka(ClusterSpec::default())?;
//!         // ...
//!         Ok(())
//!     });
//! }
//! ```
//!
//! Verdicts come from the [`history`] (what a producer was told was acknowledged, against what a consumer
//! reads) and from what the cluster says of itself ([`kafka::Watch`]), never from log lines. The bed shares
//! no code with the product it judges.

pub mod agent;
pub mod chaos;
pub mod corner;
pub mod ec2;
mod eventually;
mod export;
mod fault;
pub mod history;
pub mod hollow;
mod host;
mod http;
pub mod kafka;
pub mod kubernetes;
mod lab;
mod machine;
pub mod nfs;
pub mod ontap;
mod process;
mod sandbox;
pub mod scenario;
mod shell;
mod silent;
pub mod standby;
mod switch;
pub mod tap;
mod unjudged;

pub use eventually::{eventually, holds};
pub use export::Storage;
pub use fault::Fault;
pub use host::{Host, Output};
pub use http::get;
pub use lab::Lab;
pub use machine::LOG_DIRS;
pub use process::Process;
pub use sandbox::{performance, performance_within, room, story, story_within, test_path};
pub use silent::SilentClient;
pub use switch::{Mode, Outlet, PowerSwitch};
