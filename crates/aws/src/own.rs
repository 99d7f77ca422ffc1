//! The interface of this host that a broker's address goes to, and what both drivers of addresses do with it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use recovery::model::Endpoint;
use recovery::ports::{Address, StepError, chain};
use tokio::sync::OnceCell;
use tokio::time::sleep;

use crate::fault::Fault;
use crate::interface::{self, Deadline, Interface};
use crate::told::ROUND;
use crate::way_back::{self, NoAnswer, Others};
use crate::{Ec2, Ec2Config};

/// Between two readings of where the address is. With what a call takes it is three readings a second; EC2 lets an
/// account make 20.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long may take at least what comes after all that took time: an answer from elsewhere, and the last reading.
pub(crate) const LAST_READ: Duration = Duration::from_secs(5);

/// How long EC2 may take, where nothing is configured.
pub(crate) fn default_timeout() -> Duration {
    Duration::from_secs(60)
}

/// This host's interface, and the link that it is to the host.
pub(crate) struct Own {
    pub(crate) driver: &'static str,
    /// The link of this host, such as `ens5`.
    pub(crate) name: String,
    /// The interface in EC2 that the link is, once it is known.
    interface: OnceCell<String>,
    pub(crate) timeout: Duration,
    pub(crate) ec2: Ec2,
    /// Puts the address on the link.
    pub(crate) link: Arc<dyn Address>,
    pub(crate) others: Others,
    /// Where the kernel lists the interfaces of this host.
    pub(crate) links: PathBuf,
}

/// The address that moves. Of one that is no address at all the link tells: `None`.
pub(crate) fn address(text: &str) -> Result<Ipv4Addr, Option<String>> {
    match text.split('/').next().and_then(|ip| ip.parse::<IpAddr>().ok()) {
        Some(IpAddr::V4(address)) => Ok(address),
        Some(IpAddr::V6(other)) => {
            Err(Some(format!("address: {other} is no IPv4 address, and EC2 moves no others by this call")))
        }
        None => Err(None),
    }
}

/// Whether it is an id of EC2's, such as `eni-0a1b2c3d4e5f60718` with the prefix `eni-`.
pub(crate) fn is_id(text: &str, prefix: &str) -> bool {
    let hex = text.strip_prefix(prefix).unwrap_or_default();
    !hex.is_empty() && hex.chars().all(|c| c.is_ascii_hexdigit())
}

impl Own {
    /// Every bad value, as `key: what is wrong`, after those of `link`.
    pub(crate) fn build(
        driver: &'static str,
        (name, interface): (String, Option<String>),
        (timeout, ec2): (Duration, Ec2Config),
        link: Result<Arc<dyn Address>, Vec<String>>,
        others: Vec<Endpoint>,
    ) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let link = link.map_err(|said| problems.extend(said)).ok();
        if let Some(interface) = interface.as_ref().filter(|id| !is_id(id, "eni-")) {
            problems.push(format!(
                "network_interface: `{interface}` is not the id of an interface, such as eni-0a1b2c3d4e5f60718"
            ));
        }
        if timeout < Duration::from_secs(1) {
            problems.push("timeout: must be at least 1s".to_owned());
        }
        let ec2 = ec2.build().map_err(|more| problems.extend(more)).ok();
        match (link, ec2) {
            (Some(link), Some(ec2)) if problems.is_empty() => Ok(Self {
                driver,
                name,
                interface: OnceCell::new_with(interface),
                timeout,
                ec2,
                link,
                others: Others { listeners: others, is_here: way_back::is_here },
                links: PathBuf::from("/sys/class/net"),
            }),
            _ => Err(problems),
        }
    }

    pub(crate) fn refused(&self, action: &str, why: String) -> StepError {
        StepError::Refused { driver: self.driver, action: action.to_owned(), why }
    }

    pub(crate) fn fault(&self, action: &str, call: &str, fault: &Fault) -> StepError {
        fault.step(self.driver, action, call, &self.ec2)
    }

    /// It, once EC2 tells of it.
    pub(crate) async fn find(&self, action: &str, deadline: Deadline) -> Result<Interface, StepError> {
        let id = loop {
            match self.id(action).await {
                Err(_) if deadline.left() > POLL_INTERVAL => sleep(POLL_INTERVAL).await,
                asked => break asked?,
            }
        };
        loop {
            match interface::by_id(&self.ec2, deadline.call(), id).await {
                Ok(own) => return self.compared(own, action),
                Err(fault) if fault.passes() && deadline.left() > POLL_INTERVAL => sleep(POLL_INTERVAL).await,
                Err(fault) => return Err(self.lost(id, action, &fault).await),
            }
        }
    }

    /// It, asked for once.
    pub(crate) async fn once(&self, action: &str, deadline: Deadline) -> Result<Interface, StepError> {
        let id = self.id(action).await?;
        match interface::by_id(&self.ec2, deadline.call(), id).await {
            Ok(own) => self.compared(own, action),
            Err(fault) => Err(self.lost(id, action, &fault).await),
        }
    }

    /// It, as a check of this round was told of it.
    pub(crate) async fn lately(&self, action: &str, deadline: Deadline) -> Result<Interface, StepError> {
        let id = self.id(action).await?;
        self.ec2.shared.told.interfaces.or_ask(id, ROUND, self.once(action, deadline)).await
    }

    /// Its id: as configured, or as the metadata of this instance had it for the hardware address of the link.
    async fn id(&self, action: &str) -> Result<&String, StepError> {
        self.interface.get_or_try_init(|| self.asked(action)).await
    }

    async fn asked(&self, action: &str) -> Result<String, StepError> {
        let name = &self.name;
        let mac = fs::read_to_string(self.links.join(name).join("address")).map_err(|error| {
            let why = format!("cannot read the hardware address of {name}: {error}; correct `interface`");
            self.refused(action, why)
        })?;
        let path = format!("network/interfaces/macs/{}/interface-id", mac.trim().to_ascii_lowercase());
        self.ec2.of_instance(&path).await.map_err(|error| {
            let why = format!(
                "this instance's metadata (IMDSv2) does not tell which interface {name} is ({}): set network_interface, or \
                 enable the metadata (in a container with a hop limit of 2)",
                chain(error.as_ref())
            );
            self.refused(action, why)
        })
    }

    /// Why EC2 does not tell of it: it may be that of another region.
    async fn lost(&self, id: &str, action: &str, fault: &Fault) -> StepError {
        if fault.code() == "InvalidNetworkInterfaceID.NotFound"
            && let Some(own) = self.ec2.other_region().await
        {
            let asked = self.ec2.region();
            let why =
                format!("EC2 in {asked} has no {id}, and this instance is in {own}: correct ec2.region");
            return self.refused(action, why);
        }
        self.fault(action, "DescribeNetworkInterfaces", fault)
    }

    /// Another host's is refused: the address would be here on the link, and its packets there.
    fn compared(&self, own: Interface, action: &str) -> Result<Interface, StepError> {
        let macs = fs::read_dir(&self.links).into_iter().flatten().flatten();
        let macs = macs.filter_map(|link| fs::read_to_string(link.path().join("address")).ok());
        if macs.map(|mac| mac.trim().to_ascii_lowercase()).any(|mac| mac == own.mac) {
            return Ok(own);
        }
        let why = format!(
            "no interface of this host has the hardware address {} of {own}: set network_interface to the one of this \
             host, or attach it",
            own.mac
        );
        Err(self.refused(action, why))
    }

    /// Who has answered the address. Nobody: packets for it do not come here, whatever EC2 tells.
    pub(crate) async fn answered(
        &self,
        address: Ipv4Addr,
        action: &str,
        deadline: Deadline,
    ) -> Result<String, StepError> {
        if self.others.listeners.is_empty() {
            return Ok("no other broker is known that could answer it".to_owned());
        }
        let limit = deadline.left().max(LAST_READ);
        match self.others.answered(address, Deadline::of(limit)).await {
            Ok(Some(other)) => Ok(format!("the host of {other} answers it")),
            Ok(None) => Ok("no other broker's host answers this one, so none could answer it".to_owned()),
            Err(NoAnswer { why }) => {
                let action = format!(
                    "{action} (EC2 reads it here, and no answer of another broker's host comes to it: {why}). Look whether \
                     EC2's security groups and network ACLs let this interface reach the brokers"
                );
                Err(StepError::Unconfirmed { driver: self.driver, action, limit: deadline.limit })
            }
        }
    }
}
