//! Which driver each `[broker.address]` section means.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use aws::{RouteConfig, SecondaryIpConfig};
use drivers::address::NetlinkConfig;
use drivers::clients::KnownClients;
use kubernetes::KubernetesServiceConfig;
use recovery::model::Endpoint;
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
    Ec2SecondaryIp(SecondaryIpConfig),
    /// By routes of a VPC to an EC2 interface of this host, in whatever zone. See `docs/aws.md`.
    Ec2Route(RouteConfig),
    /// By the selector of a Service of the broker's own, in Kubernetes. See `docs/kubernetes.md`.
    KubernetesService(KubernetesServiceConfig),
}

/// A VPC answers for every address itself, so that the link is not asked who has it.
fn link(address: &str, interface: &str) -> NetlinkConfig {
    NetlinkConfig { probe_for: Duration::ZERO, ..NetlinkConfig::new(address, interface) }
}

impl AddressConfig {
    /// The driver, ready to use. Once the address is here, it resets the connections of `clients` to it. `others`: the
    /// listeners of other brokers.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(
        self,
        clients: Arc<KnownClients>,
        others: Vec<Endpoint>,
    ) -> Result<Arc<dyn Address>, Vec<String>> {
        match self {
            Self::Netlink(config) => Ok(Arc::new(config.build(clients)?)),
            Self::Ec2SecondaryIp(config) => {
                let link = link(&config.address, &config.interface).build(clients);
                Ok(Arc::new(config.build(link.map(|link| Arc::new(link) as _), others)?))
            }
            Self::Ec2Route(config) => {
                let link = link(&config.address, &config.interface).build(clients);
                Ok(Arc::new(config.build(link.map(|link| Arc::new(link) as _), others)?))
            }
            Self::KubernetesService(config) => Ok(Arc::new(config.build()?)),
        }
    }

    /// The address that moves, without its prefix; `None` if the configuration is wrong, or what moves is no address.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Netlink(config) => config.ip(),
            Self::Ec2SecondaryIp(SecondaryIpConfig { address, interface, .. })
            | Self::Ec2Route(RouteConfig { address, interface, .. }) => link(address, interface).ip(),
            Self::KubernetesService(_) => None,
        }
    }

    /// Whether packets follow only some time after the order to move the address was accepted.
    #[must_use]
    pub fn followed_later(&self) -> bool {
        matches!(self, Self::Ec2SecondaryIp(_) | Self::Ec2Route(_))
    }

    /// The address that moves, for people to read.
    #[must_use]
    pub fn address(&self) -> &str {
        match self {
            Self::Netlink(config) => &config.address,
            Self::Ec2SecondaryIp(config) => &config.address,
            Self::Ec2Route(config) => &config.address,
            Self::KubernetesService(config) => &config.service,
        }
    }

    /// The key that says what moves.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::Netlink(_) | Self::Ec2SecondaryIp(_) | Self::Ec2Route(_) => "address",
            Self::KubernetesService(_) => "service",
        }
    }
}
