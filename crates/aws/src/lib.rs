//! EC2 behind the ports of a recovery: a broker's address, a fence, and a witness.
//!
//! - [`SecondaryIp`] (`ec2_secondary_ip`) moves an address to an interface of this host, and lets another
//!   [`Address`](recovery::ports::Address) put it on the link;
//! - [`Route`] (`ec2_route`) sends an address outside of the VPC's networks to an interface of this host, in every
//!   listed route table;
//! - [`Stop`] (`ec2_stop`) stops the instance of a host, and proves it by the state that is read back;
//! - [`Status`] (`ec2_status`) tells what EC2 says of the instances of hosts;
//! - [`FsxConfig`] finds where the ONTAP of an FSx file system is managed.
//!
//! Deliberately absent: a security group as a fence (connections that are tracked live on), a decision by the text of
//! an error, and any call before the first use.

mod address;
#[cfg(test)]
mod bed;
mod client;
mod fault;
mod fence;
mod fsx;
mod instance;
mod interface;
mod own;
mod route;
mod status;
mod told;
mod way_back;

pub use address::{SecondaryIp, SecondaryIpConfig};
pub use client::{Ec2, Ec2Config};
pub use fence::{Ec2StopConfig, Stop};
pub use fsx::FsxConfig;
pub use instance::InstanceConfig;
pub use route::{Route, RouteConfig};
pub use status::{Ec2StatusConfig, Status};
