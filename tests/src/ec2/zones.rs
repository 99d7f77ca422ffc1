//! Two availability zones: a subnet in each, and brokers' addresses outside of both.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};

use crate::ec2::vpc;
use crate::host::{BRIDGE, Host};
use crate::shell;

/// A subnet, in a zone of its own, and the route table by which its hosts send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone {
    /// The id of its subnet.
    pub subnet: &'static str,
    /// The id of its route table.
    pub table: &'static str,
    /// Its subnet is `10.THIS.0.0/24`.
    octet: u8,
}

/// Where the bed itself is, and all hosts of a story with one zone.
pub const ZONE: Zone = Zone { subnet: "subnet-1", table: "rtb-00000001", octet: 77 };
/// The other one.
pub const OTHER_ZONE: Zone = Zone { subnet: "subnet-2", table: "rtb-00000002", octet: 78 };
/// A route table by which no host sends.
pub const IDLE_TABLE: &str = "rtb-00000003";

impl Zone {
    pub(super) const BOTH: [Self; 2] = [ZONE, OTHER_ZONE];

    /// Its network.
    #[must_use]
    pub fn cidr(self) -> String {
        format!("10.{}.0.0/24", self.octet)
    }

    /// An address of its subnet.
    #[must_use]
    pub fn address(self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.octet, 0, last)
    }

    pub(super) fn of(host: &Host) -> Self {
        if host.address().octets()[1] == OTHER_ZONE.octet { OTHER_ZONE } else { ZONE }
    }

    /// By which the bed's network tells its hosts from others.
    pub(super) fn number(self) -> u8 {
        self.octet
    }

    /// The VPC's router, as its hosts know it: the bed itself.
    fn gateway(self) -> Ipv4Addr {
        self.address(254)
    }
}

/// An address outside of both subnets.
#[must_use]
pub fn outside(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, last)
}

/// The networks of [`outside`].
pub(super) const OUTSIDE: &str = "10.99.0.0/24";

/// How an address is written on a link: one outside of both subnets stands for itself.
pub(crate) fn on_link(address: Ipv4Addr) -> String {
    let prefix = if address.octets()[..3] == outside(0).octets()[..3] { 32 } else { 24 };
    format!("{address}/{prefix}")
}

/// Makes the bed the router between the zones, before there are hosts. Until there is an EC2, an address outside is
/// where a link has it.
///
/// # Errors
/// When the network cannot be made.
pub fn open() -> Result<()> {
    vpc::forward()?;
    shell::sh(&format!("ip addr add {}/24 dev {BRIDGE}", OTHER_ZONE.gateway()))?;
    shell::sh(&format!("ip route add {OUTSIDE} dev {BRIDGE}")).map(drop)
}

/// Has a host send by its zone's router what is not for its own subnet.
///
/// # Errors
/// When it is off.
pub fn join(host: &Host) -> Result<()> {
    let gateway = Zone::of(host).gateway().to_string();
    let said = host.run(&["ip", "route", "replace", "default", "via", &gateway])?;
    ensure!(said.code == 0, "{} has no way out of its subnet: {}", host.name(), said.stderr);
    Ok(())
}
