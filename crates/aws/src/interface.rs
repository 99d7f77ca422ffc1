//! Network interfaces as EC2 tells of them.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use aws_sdk_ec2::types::{Filter, NetworkInterface};

use crate::Ec2;
use crate::fault::Fault;

/// How long one call may take, its retries included.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// When something that takes several calls must be done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    begun: Instant,
    pub(crate) limit: Duration,
}

impl Deadline {
    pub(crate) fn of(limit: Duration) -> Self {
        Self { begun: Instant::now(), limit }
    }

    /// How long the next call may take. It is never so short that it could not be answered.
    pub(crate) fn call(&self) -> Duration {
        self.left().clamp(Duration::from_millis(200), CALL_LIMIT)
    }

    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.begun.elapsed())
    }
}

/// What counts of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) id: String,
    pub(crate) vpc: String,
    pub(crate) subnet: String,
    pub(crate) mac: String,
    /// The instance that it is attached to.
    pub(crate) instance: Option<String>,
    pub(crate) primary: Option<Ipv4Addr>,
    pub(crate) secondary: Vec<Ipv4Addr>,
    /// Whether EC2 drops packets for addresses that are not its own.
    pub(crate) checks_destination: bool,
}

impl Interface {
    fn of(told: &NetworkInterface) -> Self {
        let text = |told: Option<&str>| told.unwrap_or_default().to_owned();
        let address = |told: Option<&str>| told.and_then(|told| told.parse().ok());
        let listed = told.private_ip_addresses();
        let secondary = listed.iter().filter(|one| one.primary() != Some(true));
        Self {
            id: text(told.network_interface_id()),
            vpc: text(told.vpc_id()),
            subnet: text(told.subnet_id()),
            mac: text(told.mac_address()).to_ascii_lowercase(),
            instance: told.attachment().and_then(|at| at.instance_id()).map(str::to_owned),
            primary: address(told.private_ip_address()),
            secondary: secondary.filter_map(|one| address(one.private_ip_address())).collect(),
            checks_destination: told.source_dest_check() != Some(false),
        }
    }

    /// Whether it has the address, as its first or as a further one.
    pub(crate) fn has(&self, address: Ipv4Addr) -> bool {
        self.primary == Some(address) || self.secondary.contains(&address)
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.instance {
            Some(instance) => write!(f, "{} of {instance}", self.id),
            None => write!(f, "{}, which is attached to no instance", self.id),
        }
    }
}

/// Where an address is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this interface, and on no other.
    Ours,
    /// On another one, whether or not it is on this one as well.
    Elsewhere(Interface),
    /// On none.
    Nowhere,
}

impl Place {
    /// Where the address of `having` is, seen from the interface `ours`.
    pub(crate) fn of(ours: &str, having: Vec<Interface>) -> Self {
        let is_ours = having.iter().any(|one| one.id == ours);
        match having.into_iter().find(|one| one.id != ours) {
            Some(other) => Self::Elsewhere(other),
            None if is_ours => Self::Ours,
            None => Self::Nowhere,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours => f.write_str("it is here"),
            Self::Elsewhere(other) => write!(f, "it is on {other}"),
            Self::Nowhere => f.write_str("it is on no interface"),
        }
    }
}

/// One interface.
pub(crate) async fn by_id(ec2: &Ec2, limit: Duration, id: &str) -> Result<Interface, Fault> {
    let found = ec2
        .call(limit, |client| client.describe_network_interfaces().network_interface_ids(id).send())
        .await?;
    found.network_interfaces().first().map(Interface::of).ok_or_else(|| Fault::Said {
        code: "InvalidNetworkInterfaceID.NotFound".to_owned(),
        message: "it is not in the answer".to_owned(),
    })
}

/// Every interface of a VPC that has the address. Other VPCs may have the same address for something else.
pub(crate) async fn having(
    ec2: &Ec2,
    limit: Duration,
    vpc: &str,
    address: Ipv4Addr,
) -> Result<Vec<Interface>, Fault> {
    let filter = |name: &str, value: String| Filter::builder().name(name).values(value).build();
    let (vpc, having) =
        (filter("vpc-id", vpc.to_owned()), filter("addresses.private-ip-address", address.to_string()));
    let found: Vec<NetworkInterface> = ec2
        .call(limit, |client| {
            let pages = client.describe_network_interfaces().filters(vpc).filters(having).into_paginator();
            pages.items().send().collect()
        })
        .await?;
    // The filter is not relied on alone.
    Ok(found.iter().map(Interface::of).filter(|one| one.has(address)).collect())
}

/// The addresses of a subnet, such as `10.20.0.0/24`.
pub(crate) async fn subnet(ec2: &Ec2, limit: Duration, id: &str) -> Result<String, Fault> {
    let found = ec2.call(limit, |client| client.describe_subnets().subnet_ids(id).send()).await?;
    let cidr = found.subnets().first().and_then(|subnet| subnet.cidr_block());
    Ok(cidr.unwrap_or_default().to_owned())
}

/// Whether a network such as `10.20.0.0/24` has the address. `None` if it is no network.
pub(crate) fn is_in(cidr: &str, address: Ipv4Addr) -> Option<bool> {
    let (network, prefix) = cidr.split_once('/')?;
    let (network, prefix): (Ipv4Addr, u32) = (network.parse().ok()?, prefix.parse().ok()?);
    let mask = u32::MAX.checked_shl(32_u32.checked_sub(prefix)?).unwrap_or(0);
    Some(network.to_bits() & mask == address.to_bits() & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(id: &str) -> Interface {
        Interface {
            id: id.to_owned(),
            vpc: "vpc-1".to_owned(),
            subnet: "subnet-1".to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            instance: None,
            primary: Some(Ipv4Addr::new(10, 20, 0, 31)),
            secondary: vec![Ipv4Addr::new(10, 20, 0, 11)],
            checks_destination: true,
        }
    }

    #[test]
    fn an_address_is_ours_only_if_no_other_interface_has_it() {
        assert_eq!(Place::of("eni-1", vec![interface("eni-1")]), Place::Ours);
        let both = vec![interface("eni-1"), interface("eni-2")];
        assert_eq!(Place::of("eni-1", both), Place::Elsewhere(interface("eni-2")));
        assert_eq!(Place::of("eni-1", vec![interface("eni-2")]), Place::Elsewhere(interface("eni-2")));
        assert_eq!(Place::of("eni-1", Vec::new()), Place::Nowhere);
    }

    #[test]
    fn a_network_has_its_addresses_and_no_others() {
        let address = Ipv4Addr::new(10, 20, 0, 11);
        for (cidr, expected) in [
            ("10.20.0.0/24", Some(true)),
            ("10.20.1.0/24", Some(false)),
            ("0.0.0.0/0", Some(true)),
            ("10.20.0.11/32", Some(true)),
            ("10.20.0.12/32", Some(false)),
            ("10.20.0.0/33", None),
            ("", None),
        ] {
            assert_eq!(is_in(cidr, address), expected, "{cidr}");
        }
    }
}
