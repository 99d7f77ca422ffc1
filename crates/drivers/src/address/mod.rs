//! `address` drivers: have a broker's address on this host.

pub mod netlink;

mod cidr;
#[doc(hidden)]
pub mod fuzz;
mod neighbour;
mod networkd;
mod ongoing;
mod reset;
mod routes;
mod wire;

pub use netlink::{DOES_NOT_FIT, Netlink, NetlinkConfig};

/// The detail of an [`Address::check`](recovery::ports::Address::check) that was asked of the link, where no host
/// answered.
pub const UNANSWERED: &str = "unanswered";
