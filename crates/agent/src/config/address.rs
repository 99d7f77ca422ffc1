//! Which driver each `[broker.address]` section means.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use aws::{Ec2Config, SecondaryIpConfig};
use drivers::address::NetlinkConfig;
use drivers::clients::KnownClients;
use recovery::ports::Address;
use schemars::JsonSchema;
use serde::Deserialize;

/// How a broker's address moves to this host.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(tag = "driver", rename_all = "snake_case")]
pub enum AddressConfig {
    /// As a further address of one of this host's interfaces.
    Netlink(NetlinkConfig),
    /// As a secondary private address of an EC2 interface of this host. See `docs/aws.md`.
    Ec2SecondaryIp(Ec2AddressConfig),
}

/// A secondary private address of an EC2 interface, which EC2 gives to one interface at a time.
///
/// EC2 is told first, and is read back until this interface has the address and no other one of the VPC has; then the
/// address is put on the link. The interfaces of all owners are in one subnet. A live old host cannot keep the address,
/// so none is asked for its consent.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ec2AddressConfig {
    /// The broker's address and the length of its subnet's prefix, such as `10.20.0.11/24`.
    pub address: String,
    /// The link of this host that gets it, such as `ens5`.
    pub interface: String,
    /// The interface in EC2 that this link is, such as `eni-0a1b2c3d4e5f60718`.
    pub network_interface: String,
    /// How long EC2 may take until what it tells shows the address here.
    #[serde(default = "ec2_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// Where EC2 is asked.
    #[serde(default)]
    pub ec2: Ec2Config,
}

fn ec2_timeout() -> Duration {
    Duration::from_secs(60)
}

impl Ec2AddressConfig {
    /// A VPC answers for every address itself: the link is not asked who has it.
    fn link(&self) -> NetlinkConfig {
        NetlinkConfig { probe_for: Duration::ZERO, ..NetlinkConfig::new(&self.address, &self.interface) }
    }

    fn build(self, clients: Arc<KnownClients>) -> Result<Arc<dyn Address>, Vec<String>> {
        let (link, ip) = (self.link(), self.link().ip());
        let link = link.build(clients)?;
        let Some(ip) = ip else { return Err(vec!["address: is none".to_owned()]) };
        let Self { network_interface, timeout, ec2, .. } = self;
        let ec2 = SecondaryIpConfig { network_interface, timeout, ec2 };
        Ok(Arc::new(ec2.build(ip, Arc::new(link))?))
    }
}

impl AddressConfig {
    /// The driver, ready to use. Once the address is here, it resets the connections of `clients` to it.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self, clients: Arc<KnownClients>) -> Result<Arc<dyn Address>, Vec<String>> {
        match self {
            Self::Netlink(config) => Ok(Arc::new(config.build(clients)?)),
            Self::Ec2SecondaryIp(config) => config.build(clients),
        }
    }

    /// The address that moves, without its prefix; `None` if the configuration is wrong.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Netlink(config) => config.ip(),
            Self::Ec2SecondaryIp(config) => config.link().ip(),
        }
    }

    /// The address that moves, for people to read.
    #[must_use]
    pub fn address(&self) -> &str {
        match self {
            Self::Netlink(config) => &config.address,
            Self::Ec2SecondaryIp(config) => &config.address,
        }
    }
}
