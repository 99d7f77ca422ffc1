//! EC2 behind the ports of a recovery: a broker's address, a fence, and a witness.
//!
//!
//! Deliberately absent: a security group as a fence (connections that are tracked live on), a decision by the text of
//! an error, and any call before the first use.

#[cfg(test)]
mod bed;
mod client;
mod fault;

pub use client::{Ec2, Ec2Config};
