//! `ec2_secondary_ip`: the broker's address becomes a secondary private address of an interface of this host.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use recovery::model::{Endpoint, Epoch, PLACED};
use recovery::ports::{Address, Note, StepError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::sleep;

use crate::Ec2Config;
use crate::fault::Fault;
use crate::interface::{self, Deadline, Interface, Place};
use crate::own::{self, LAST_READ, Own, POLL_INTERVAL};
use crate::told::EVER;

const DRIVER: &str = "ec2_secondary_ip";

/// A secondary private address of an EC2 interface, which EC2 gives to one interface at a time.
///
/// EC2 is told first, and once it has accepted that, the address is put on the link. Kafka starts while packets follow:
/// EC2 is read back until this interface has the address and no other one of the VPC has, and another broker's host has
/// to answer it, for EC2 may tell of a move before packets follow. The interfaces of all owners are in one subnet. A live
/// old host cannot keep the address, so none is asked for its consent.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecondaryIpConfig {
    /// The broker's address and the length of its subnet's prefix, such as `10.20.0.11/24`.
    pub address: String,
    /// The link of this host that gets it, such as `ens5`.
    pub interface: String,
    /// The interface in EC2 that this link is, such as `eni-0a1b2c3d4e5f60718`. Without it the
    /// instance's metadata (IMDSv2) is asked for the link's.
    #[serde(default)]
    pub network_interface: Option<String>,
    /// How long EC2 may take until what it tells shows the address here, and packets for it come.
    #[serde(default = "own::default_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// Where EC2 is asked.
    #[serde(default)]
    pub ec2: Ec2Config,
}

impl SecondaryIpConfig {
    /// The driver, ready to use. `link` puts the address on the link once EC2 has given it; it must not ask the link
    /// who else has the address, because a VPC answers that itself. `others`: the listeners of other brokers, one of which
    /// has to answer the address.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`, after those of `link`.
    pub fn build(
        self,
        link: Result<Arc<dyn Address>, Vec<String>>,
        others: Vec<Endpoint>,
    ) -> Result<SecondaryIp, Vec<String>> {
        let own = Own::build(
            DRIVER,
            (self.interface, self.network_interface),
            (self.timeout, self.ec2),
            link,
            others,
        );
        match (own, own::address(&self.address)) {
            (Ok(own), Ok(address)) => Ok(SecondaryIp { address, own }),
            (own, address) => {
                Err(own.err().unwrap_or_default().into_iter().chain(address.err().flatten()).collect())
            }
        }
    }
}

/// The driver; see [`SecondaryIpConfig`].
pub struct SecondaryIp {
    address: Ipv4Addr,
    pub(crate) own: Own,
}

impl SecondaryIp {
    fn action(&self) -> String {
        format!("move {} to {}", self.address, self.own.name)
    }

    /// `own`, unless the address is the first one of it.
    fn secondary(&self, own: Interface, action: &str) -> Result<Interface, StepError> {
        if own.primary == Some(self.address) {
            return Err(self.own.refused(action, self.is_primary(&own)));
        }
        Ok(own)
    }

    async fn place(&self, own: &Interface, deadline: Deadline) -> Result<Place, Fault> {
        let having = interface::having(&self.own.ec2, deadline.call(), &own.vpc, self.address).await?;
        Ok(Place::of(&own.id, having))
    }

    async fn assign(&self, own: &Interface, deadline: Deadline) -> Result<(), Fault> {
        let request = self.own.ec2.call(deadline.call(), |client| {
            client
                .assign_private_ip_addresses()
                .network_interface_id(&own.id)
                .private_ip_addresses(self.address.to_string())
                .allow_reassignment(true)
                .send()
        });
        request.await.map(drop)
    }

    /// Has EC2 accept that the address moves.
    ///
    /// The order is given even where the address seems to be here: what EC2 tells may be old.
    async fn order(&self, own: &Interface, action: &str, deadline: Deadline) -> Result<(), StepError> {
        let mut last = None;
        loop {
            let fault = match self.assign(own, deadline).await {
                Ok(()) => return Ok(()),
                Err(fault) if fault.passes() => fault.or(last),
                Err(fault) => return Err(self.explained(own, action, deadline, &fault).await),
            };
            // A reply may be lost after the act.
            if let Ok(Place::Ours) = self.place(own, deadline).await {
                return Ok(());
            }
            if deadline.left() <= POLL_INTERVAL {
                return Err(self.own.fault(action, "AssignPrivateIpAddresses", &fault));
            }
            last = Some(fault);
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until what EC2 tells shows the address here, and nowhere else.
    async fn followed(&self, own: &Interface, action: &str, deadline: Deadline) -> Result<(), StepError> {
        loop {
            let read = match self.place(own, deadline).await {
                Ok(Place::Ours) => return Ok(()),
                Err(fault) if !fault.passes() => {
                    return Err(self.own.fault(action, "DescribeNetworkInterfaces", &fault));
                }
                read => read,
            };
            if deadline.left() <= POLL_INTERVAL {
                return Err(match read {
                    Err(fault) => self.own.fault(action, "DescribeNetworkInterfaces", &fault),
                    Ok(place) => {
                        let action = format!("{action} (EC2 accepted it; read last: {place})");
                        StepError::Unconfirmed { driver: DRIVER, action, limit: deadline.limit }
                    }
                });
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Reads once more whether it is here: somebody else's script may have moved it meanwhile.
    async fn stays(&self, own: &Interface, action: &str, deadline: Deadline) -> Result<(), StepError> {
        match self.place(own, Deadline::of(deadline.left().max(LAST_READ))).await {
            Ok(Place::Ours) => Ok(()),
            Ok(place) => {
                let why = format!(
                    "it was here and then {place}: find out who else moves it (a script, or an \
                     agent that the ledger does not know), and end that"
                );
                Err(self.own.refused(action, why))
            }
            Err(fault) => Err(self.own.fault(action, "DescribeNetworkInterfaces", &fault)),
        }
    }

    /// Why EC2 does not move the address. One code stands for several reasons.
    async fn explained(&self, own: &Interface, action: &str, deadline: Deadline, fault: &Fault) -> StepError {
        if fault.code() == "InvalidParameterValue" {
            if let Err(error) = self.in_subnet(own, action, deadline).await {
                return error;
            }
            if let Ok(Place::Elsewhere(other)) = self.place(own, deadline).await
                && other.primary == Some(self.address)
            {
                return self.own.refused(action, self.is_primary(&other));
            }
        }
        self.own.fault(action, "AssignPrivateIpAddresses", fault)
    }

    fn is_primary(&self, other: &Interface) -> String {
        format!(
            "{} is the first address of {other}, which cannot move: give the broker a secondary address of its own",
            self.address
        )
    }

    /// Refuses an address that the interface's subnet does not have.
    async fn in_subnet(
        &self,
        own: &Interface,
        action: &str,
        deadline: Deadline,
    ) -> Result<String, StepError> {
        let ask = interface::subnet(&self.own.ec2, deadline.call(), &own.subnet);
        let cidr = self.own.ec2.shared.told.subnets.or_ask(&own.subnet, EVER, ask).await;
        let cidr = cidr.map_err(|fault| self.own.fault(action, "DescribeSubnets", &fault))?;
        if interface::is_in(&cidr, self.address) == Some(false) {
            let why = format!(
                "{} is not in {cidr}, the subnet ({}) of {own}: name an interface in the address's subnet, or give the broker \
                 an address of {cidr}",
                self.address, own.subnet
            );
            return Err(self.own.refused(action, why));
        }
        Ok(cidr)
    }
}

#[async_trait]
impl Address for SecondaryIp {
    fn name(&self) -> &'static str {
        DRIVER
    }

    async fn acquire(&self, epoch: Epoch) -> Result<Note, StepError> {
        let (action, deadline) = (self.action(), Deadline::of(self.own.timeout));
        let own = self.secondary(self.own.find(&action, deadline).await?, &action)?;
        let was_here = own.has(self.address);
        self.order(&own, &action, deadline).await?;
        let link = self.own.link.acquire(epoch).await?;
        let said = if was_here { "was on" } else { "is on its way to" };
        let text = format!("by EC2's word {} {said} {own}; {}", self.address, link.text);
        let note = Note { text, ..link }.with("network_interface", &own.id);
        Ok(if was_here { note } else { note.with(PLACED, true) })
    }

    async fn confirm(&self) -> Result<Note, StepError> {
        let (action, deadline) = (self.action(), Deadline::of(self.own.timeout));
        let own = self.own.find(&action, deadline).await?;
        self.followed(&own, &action, deadline).await?;
        let answered = self.own.answered(self.address, &action, deadline).await?;
        self.stays(&own, &action, deadline).await?;
        Ok(Note::new(format!("{} is on {own}, and no other interface has it; {answered}", self.address)))
    }

    async fn reset_clients(&self) -> Result<Note, StepError> {
        self.own.link.reset_clients().await
    }

    /// Takes the address off the link. EC2 goes on to give it to this interface: unassigned, it would be free for the
    /// next instance that starts in the subnet. Its next owner takes it from here.
    async fn release(&self) -> Result<Note, StepError> {
        self.own.link.release().await
    }

    async fn here(&self) -> Result<bool, StepError> {
        self.own.link.here().await
    }

    /// Whoever has the address by EC2 while it is on this host's link. Before that nobody counts: EC2 takes the address
    /// from whoever has it, and a host cannot keep it.
    async fn holder(&self) -> Result<Option<String>, StepError> {
        if !self.own.link.here().await? {
            return Ok(None);
        }
        let (action, deadline) =
            (format!("ask EC2 who has {}", self.address), Deadline::of(self.own.timeout));
        let own = self.secondary(self.own.once(&action, deadline).await?, &action)?;
        match self.place(&own, deadline).await {
            Ok(Place::Ours) => Ok(None),
            Ok(Place::Elsewhere(other)) => Ok(Some(other.to_string())),
            Ok(place @ Place::Nowhere) => Err(self
                .own
                .refused(&action, format!("it is on the link here, and by EC2 {place}: acquire it anew"))),
            Err(fault) => Err(self.own.fault(&action, "DescribeNetworkInterfaces", &fault)),
        }
    }

    /// Nothing: neighbours in a VPC believe EC2 alone, and two agents that take an address from each other by EC2 help
    /// nobody. [`Self::holder`] and [`Self::check`] tell of another interface.
    async fn defend(&self) -> Result<(), StepError> {
        Ok(())
    }

    async fn check(&self) -> Result<Note, StepError> {
        let (action, deadline) = (self.action(), Deadline::of(self.own.timeout));
        let own = self.secondary(self.own.lately(&action, deadline).await?, &action)?;
        let cidr = self.in_subnet(&own, &action, deadline).await?;
        let place = self.place(&own, deadline).await;
        let place = place.map_err(|fault| self.own.fault(&action, "DescribeNetworkInterfaces", &fault))?;
        match &place {
            Place::Elsewhere(other) if other.primary == Some(self.address) => {
                return Err(self.own.refused(&action, self.is_primary(other)));
            }
            Place::Elsewhere(other) if self.own.link.here().await? => {
                let why = format!(
                    "{} is on the link here, and by EC2 it is on {other}: nothing reaches it here. Unless a \
                     takeover is under way, find out who moved it",
                    self.address
                );
                return Err(self.own.refused(&action, why));
            }
            _ => {}
        }
        // A VPC answers on the link itself: only that the link can take the address counts.
        let link = self.own.link.check().await?;
        let note = Note::new(format!(
            "{own} can have {} of {cidr} ({place}), and so can its link; that the role of this host may move it \
             (ec2:AssignPrivateIpAddresses) has no dry run",
            self.address
        ));
        Ok(note.warn(link.warnings))
    }
}

#[cfg(test)]
mod tests;
