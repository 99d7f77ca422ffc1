//! `fence` drivers: make it impossible for a host to write, and read it back.

pub mod all_of;
pub mod exec;
pub mod fence_agent;
pub mod ladder;

mod answers;
mod device;
#[doc(hidden)]
pub mod fuzz;
mod options;

pub use all_of::{AllOf, AllOfConfig, DeviceConfig};
pub use device::{Device, POWER};
pub use exec::ExecConfig;
pub use fence_agent::FenceAgentConfig;
pub use ladder::Ladder;
pub use options::OptionValue;
pub(crate) use options::resolve;
