//! `netlink`: the broker's address becomes a further address of one of this host's interfaces.

mod network;

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::thread::CapabilitySet;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use self::network::{Network, network};
use super::cidr::Cidr;
use super::neighbour::Mac;
use super::ongoing::Ongoing;
use super::reset::Resets;
use super::routes::{Assigned, Link, Routes};
use super::wire::Wire;
use super::{UNANSWERED, networkd};
use crate::clients::{Known, KnownClients};
use recovery::model::{Epoch, PLACED, human};
use recovery::ports::{Address, BoxError, Note, StepError};

const DRIVER: &str = "netlink";

/// The least time between two announcements that answer another host. RFC 5227 has ten seconds, for hosts of
/// which neither knows who is right: here the ledger says so, and neighbours must not believe the other for
/// as long.
const DEFEND_EVERY: Duration = Duration::from_millis(250);

/// How often the link is asked whether another host answers for the address, while none is heard.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Gateways of one interface that a check asks for, at most.
const MOST_GATEWAYS: usize = 4;

/// For a network that gives addresses to hosts by itself, and does not learn from neighbours that one moves.
pub const DOES_NOT_FIT: &str = "In a routed or cloud network netlink does not fit: on EC2 take ec2_secondary_ip, elsewhere leave \
                                [broker.address] out, and make the listener a name or a load balancer that follows the broker, or \
                                have the cloud move the address";

/// An address on an interface of this host.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetlinkConfig {
    /// The broker's address and the length of its network's prefix, such as `10.20.0.11/24` or `fd00::11/64`.
    pub address: String,
    /// The interface on the broker's network, such as `eth0`.
    pub interface: String,
    /// For how long the link is asked (three times) whether another host has the address, before it is taken.
    /// The takeover waits for it: RFC 5227's seconds are for hosts that know nothing of each other, and here
    /// the old owner has been fenced. `0s` does not ask.
    #[serde(default = "default_probe_for", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub probe_for: Duration,
    /// For how long the neighbours are told again that the address has moved. They are told at once; this
    /// goes on in the background, because a frame may be lost, and nobody confirms it.
    #[serde(default = "default_announce_for", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub announce_for: Duration,
    /// The time between two such announcements.
    #[serde(default = "default_announce_every", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub announce_every: Duration,
}

fn default_probe_for() -> Duration {
    Duration::from_millis(75)
}

fn default_announce_for() -> Duration {
    Duration::from_secs(3)
}

fn default_announce_every() -> Duration {
    Duration::from_millis(250)
}

impl NetlinkConfig {
    /// With everything else as it is by default.
    #[must_use]
    pub fn new(address: &str, interface: &str) -> Self {
        Self {
            address: address.to_owned(),
            interface: interface.to_owned(),
            probe_for: default_probe_for(),
            announce_for: default_announce_for(),
            announce_every: default_announce_every(),
        }
    }

    /// The address that moves, without its prefix; `None` if it is none.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.address.parse::<Cidr>().ok().map(|cidr| cidr.address)
    }

    /// The driver, ready to use. `clients`: whose connections it can reset.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self, clients: Arc<KnownClients>) -> Result<Netlink, Vec<String>> {
        let mut problems = Vec::new();
        let cidr = self.address.parse::<Cidr>().map_err(|why| problems.push(format!("address: {why}"))).ok();
        let odd = |c: char| c == '/' || c.is_whitespace();
        if !(1..=15).contains(&self.interface.len()) || self.interface.contains(odd) || self.interface == ".."
        {
            problems.push(format!("interface: `{}` is not the name of an interface", self.interface));
        }
        if self.probe_for > Duration::from_secs(5) {
            problems.push("probe_for: must not exceed 5s, for the takeover waits for it".to_owned());
        }
        if self.announce_every < Duration::from_millis(10) {
            problems.push("announce_every: must be at least 10ms".to_owned());
        }
        match cidr {
            Some(cidr) if problems.is_empty() => Ok(Netlink {
                config: self,
                cidr,
                clients,
                announcing: Mutex::default(),
                resetting: Mutex::default(),
                defending: Mutex::default(),
            }),
            _ => Err(problems),
        }
    }
}

/// The driver; see [`NetlinkConfig`].
#[derive(Debug)]
pub struct Netlink {
    config: NetlinkConfig,
    cidr: Cidr,
    clients: Arc<KnownClients>,
    /// What goes on in the background until the address is released, or this is dropped.
    announcing: Mutex<Option<Ongoing>>,
    resetting: Mutex<Option<Ongoing>>,
    defending: Mutex<Option<Ongoing>>,
}

impl Netlink {
    /// The interface, if an address on it can be reached.
    async fn link(&self, routes: &Routes, purpose: &str) -> Result<Link, StepError> {
        let name = &self.config.interface;
        let found = routes.link(name).await.map_err(|e| step_error(purpose, e))?;
        let link = found.ok_or_else(|| refused(purpose, format!("this host has no interface {name}")))?;
        if !link.is_up {
            return Err(refused(purpose, format!("{name} is down; run: ip link set {name} up")));
        }
        if !link.has_carrier {
            return Err(refused(purpose, format!("{name} has no carrier; look at its cable or its peer")));
        }
        Ok(link)
    }

    /// The address on the interface, if it is there. On another interface it is an error.
    async fn assigned_here(
        &self,
        routes: &Routes,
        link: &Link,
        purpose: &str,
    ) -> Result<Option<Assigned>, StepError> {
        let assigned = routes.assigned(self.cidr.address).await.map_err(|e| step_error(purpose, e))?;
        let (mut here, elsewhere): (Vec<_>, Vec<_>) =
            assigned.into_iter().partition(|assigned| assigned.index == link.index);
        match elsewhere.first() {
            Some(other) => {
                let why = format!(
                    "{} is on another interface of this host (number {} of `ip address`); remove it there",
                    self.cidr.address, other.index
                );
                Err(refused(purpose, why))
            }
            None => Ok(here.pop()),
        }
    }

    /// Refuses if the network of the address is on another interface of this host. The doubt, in words, if it
    /// is on none.
    async fn on_its_network(
        &self,
        routes: &Routes,
        link: &Link,
        purpose: &str,
    ) -> Result<Option<String>, StepError> {
        let (cidr, interface) = (self.cidr, &self.config.interface);
        let own = routes.own().await.map_err(|e| step_error(purpose, e))?;
        match network(cidr, link.segment, &own) {
            Network::Here => Ok(None),
            Network::Elsewhere(own) => {
                let (net, other) = (own.cidr.network(), &own.interface);
                let why = format!(
                    "{net} is on {other} ({}), not on {interface}: set interface = \"{other}\"",
                    own.cidr
                );
                Err(refused(purpose, why))
            }
            Network::Nowhere => Ok(Some(format!(
                "no address of this host is in the network of {cidr}, so nothing shows that clients \
                 reach it on {interface}: name the interface that is on that network, or give {interface} an \
                 address of it"
            ))),
        }
    }

    /// What speaks against moving the address in this network, in words, when it is at `mac`.
    async fn proxied(
        &self,
        routes: &Routes,
        link: &Link,
        mac: Mac,
        purpose: &str,
    ) -> Result<Note, StepError> {
        let address = self.cidr.address;
        let gateways = routes.gateways(link.index, address).await.map_err(|e| step_error(purpose, e))?;
        for gateway in gateways.into_iter().filter(|gateway| *gateway != address).take(MOST_GATEWAYS) {
            let Some(ours) = link.mac else { break };
            let wire = Wire::open(link.index, ours, gateway).map_err(|e| step_error(purpose, e))?;
            let at = wire.ask(self.config.probe_for).await.map_err(|e| step_error(purpose, e))?;
            if at == Some(mac) {
                let warning = format!(
                    "unless the broker is on the gateway itself, this network answers for other hosts, also for one \
                     that is off: a takeover would then find an answer and be abandoned. {DOES_NOT_FIT}"
                );
                return Ok(Note::new(format!(", and so is the gateway {gateway}")).warn([warning]));
            }
        }
        Ok(Note::default())
    }

    /// Refuses if another host answers for the address.
    async fn nobody_else(&self, wire: &Wire, purpose: &str) -> Result<(), StepError> {
        match wire.ask(self.config.probe_for).await.map_err(|e| step_error(purpose, e))? {
            None => Ok(()),
            Some(mac) => {
                let why = format!(
                    "another host on {}, {mac}, answers for {}. Is the old owner fenced? Find the host with this \
                     hardware address and remove the address there",
                    self.config.interface, self.cidr.address
                );
                Err(refused(purpose, why))
            }
        }
    }

    fn wire(&self, link: &Link, purpose: &str) -> Result<Option<Wire>, StepError> {
        let wire = link.mac.map(|mac| Wire::open(link.index, mac, self.cidr.address)).transpose();
        wire.map_err(|e| step_error(purpose, e))
    }

    /// Goes on telling neighbours, until the time is over or the address is released.
    fn go_on_announcing(&self, wire: Option<Wire>) {
        let (every, until) = (self.config.announce_every, self.config.announce_for);
        let announcing = wire.map(|wire| {
            let announce = async move {
                loop {
                    sleep(every).await;
                    if let Err(error) = wire.announce().await {
                        // The next one may get through; the first one, which was awaited, did.
                        tracing::debug!(%error, "announcement was not sent");
                    }
                }
            };
            Ongoing::begin(timeout(until, announce))
        });
        replace(&self.announcing, announcing);
    }

    /// Reads back that the address is on the interface and in use.
    async fn confirm(&self, routes: &Routes, link: &Link, purpose: &str) -> Result<(), StepError> {
        match self.assigned_here(routes, link, purpose).await? {
            Some(assigned) if !assigned.is_unusable() => Ok(()),
            Some(_) => {
                let why = "the kernel found the address on another host too and does not use it";
                Err(refused(purpose, why.to_owned()))
            }
            None => {
                let why = format!("it was added to {} and is not there now", self.config.interface);
                Err(refused(purpose, why))
            }
        }
    }
}

/// `12 of its clients' connections (b1, 0.8 s ago)`.
fn told(known: &Known) -> String {
    let hosts: Vec<String> =
        known.told_by.iter().map(|(host, age)| format!("{host}, {} ago", human(*age))).collect();
    let mut text = format!("{} of its clients' connections ({})", known.pairs.len(), hosts.join("; "));
    if known.left_out > 0 {
        text.push_str(&format!(" and not {} more, which are too many", known.left_out));
    }
    text
}

/// Answers whoever says to have the address as well, as RFC 5227 (2.4) has it for a host that must keep its
/// address: at once, and then no more often than [`DEFEND_EVERY`]. Asks from time to time too: who only
/// answers others is not heard by itself.
async fn defend(wire: Wire) {
    loop {
        let other = match timeout(ASK_EVERY, wire.answer()).await {
            Ok(Ok(mac)) => mac,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the link cannot be listened to");
                sleep(ASK_EVERY).await;
                continue;
            }
            Err(_silence) => {
                if let Err(error) = wire.question().await {
                    tracing::debug!(%error, "the question who has the address was not sent");
                }
                continue;
            }
        };
        tracing::warn!(address = %wire.address(), %other, "another host says to have the address; telling the neighbours again");
        loop {
            if let Err(error) = wire.announce().await {
                tracing::debug!(%error, "announcement was not sent");
            }
            sleep(DEFEND_EVERY).await;
            // What was heard meanwhile gets one answer.
            if !wire.heard_meanwhile() {
                break;
            }
        }
    }
}

fn is_at_work(task: &Mutex<Option<Ongoing>>) -> bool {
    task.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(Ongoing::is_at_work)
}

/// Ends what went on so far.
fn replace(task: &Mutex<Option<Ongoing>>, next: Option<Ongoing>) {
    *task.lock().unwrap_or_else(PoisonError::into_inner) = next;
}

/// An error of the system; where a privilege is missing, says which and how to get it.
fn step_error(purpose: &str, error: io::Error) -> StepError {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return refused(purpose, format!("{error}; {PRIVILEGES}"));
    }
    StepError::Failed { driver: DRIVER, action: purpose.to_owned(), source: BoxError::from(error) }
}

const PRIVILEGES: &str = "this needs CAP_NET_ADMIN and CAP_NET_RAW: run as root, or set AmbientCapabilities= in the \
                          systemd unit";

fn refused(purpose: &str, why: String) -> StepError {
    StepError::Refused { driver: DRIVER, action: purpose.to_owned(), why }
}

#[async_trait]
impl Address for Netlink {
    fn name(&self) -> &'static str {
        DRIVER
    }

    async fn acquire(&self, _epoch: Epoch) -> Result<Note, StepError> {
        let (cidr, interface) = (self.cidr, &self.config.interface);
        let purpose = format!("put {cidr} on {interface}");
        let routes = Routes::open().map_err(|e| step_error(&purpose, e))?;
        let link = self.link(&routes, &purpose).await?;
        let wire = self.wire(&link, &purpose)?;
        let was_here = self.assigned_here(&routes, &link, &purpose).await?;
        if was_here.is_none() {
            if let Some(wire) = &wire {
                self.nobody_else(wire, &purpose).await?;
            }
            routes.add(link.index, cidr).await.map_err(|e| step_error(&purpose, e))?;
        }
        self.confirm(&routes, &link, &purpose).await?;
        let mut text = match &was_here {
            Some(assigned) => format!("{}/{} was on {interface} already", cidr.address, assigned.prefix),
            None => format!("{cidr} is on {interface} now"),
        };
        if let (Some(wire), Some(mac)) = (&wire, link.mac) {
            wire.announce().await.map_err(|e| step_error(&purpose, e))?;
            text.push_str(&format!(", and the neighbours are told that it is at {mac}"));
        }
        self.confirm(&routes, &link, &purpose).await?;
        self.go_on_announcing(wire);
        let note = Note::new(text);
        Ok(if was_here.is_none() { note.with(PLACED, true) } else { note })
    }

    async fn reset_clients(&self) -> Result<Note, StepError> {
        let address = self.cidr.address;
        let Some(known) = self.clients.at(address) else {
            let why =
                "no [[peer]] told of clients connected to it: those in silence wait for their own timeouts";
            return Ok(Note::new(format!("{address}: {why}")));
        };
        let text = told(&known);
        let purpose = format!("reset {text}");
        let resets = Resets::open(address, known).map_err(|e| step_error(&purpose, e))?;
        replace(&self.resetting, Some(Ongoing::begin(resets.send())));
        Ok(Note::new(format!("resetting {text}")))
    }

    async fn release(&self) -> Result<Note, StepError> {
        replace(&self.announcing, None);
        replace(&self.resetting, None);
        replace(&self.defending, None);
        let (address, interface) = (self.cidr.address, &self.config.interface);
        let purpose = format!("remove {address} from {interface}");
        let routes = Routes::open().map_err(|e| step_error(&purpose, e))?;
        let Some(link) = routes.link(interface).await.map_err(|e| step_error(&purpose, e))? else {
            return Ok(Note::new(format!(
                "this host has no interface {interface}, so {address} is not on it"
            )));
        };
        let Some(assigned) = self.assigned_here(&routes, &link, &purpose).await? else {
            return Ok(Note::new(format!("{address} is not on {interface}")));
        };
        routes.remove(interface, assigned).await.map_err(|e| step_error(&purpose, e))?;
        match self.assigned_here(&routes, &link, &purpose).await? {
            None => Ok(Note::new(format!("{address} was removed from {interface}"))),
            Some(_) => Err(refused(&purpose, "it was removed and is there again; who adds it?".to_owned())),
        }
    }

    async fn here(&self) -> Result<bool, StepError> {
        let purpose = format!("look whether {} is here", self.cidr.address);
        let routes = Routes::open().map_err(|e| step_error(&purpose, e))?;
        let assigned = routes.assigned(self.cidr.address).await.map_err(|e| step_error(&purpose, e))?;
        Ok(!assigned.is_empty())
    }

    async fn holder(&self) -> Result<Option<String>, StepError> {
        let purpose = format!("ask who else has {}", self.cidr.address);
        let routes = Routes::open().map_err(|e| step_error(&purpose, e))?;
        let link = self.link(&routes, &purpose).await?;
        let Some(wire) = self.wire(&link, &purpose)? else { return Ok(None) };
        let found = wire.ask(self.config.probe_for).await.map_err(|e| step_error(&purpose, e))?;
        Ok(found.map(|mac| format!("{mac} on {}", self.config.interface)))
    }

    async fn defend(&self) -> Result<(), StepError> {
        if is_at_work(&self.defending) {
            return Ok(());
        }
        let purpose = format!("defend {}", self.cidr.address);
        let routes = Routes::open().map_err(|e| step_error(&purpose, e))?;
        let link = self.link(&routes, &purpose).await?;
        if self.assigned_here(&routes, &link, &purpose).await?.is_some()
            && let Some(wire) = self.wire(&link, &purpose)?
        {
            replace(&self.defending, Some(Ongoing::begin(defend(wire))));
        }
        Ok(())
    }

    async fn check(&self) -> Result<Note, StepError> {
        let (address, interface) = (self.cidr.address, &self.config.interface);
        let purpose = format!("put {} on {interface}", self.cidr);
        let routes = Routes::open().map_err(|e| step_error(&purpose, e))?;
        let link = self.link(&routes, &purpose).await?;
        let has = rustix::thread::capabilities(None).map_err(|e| step_error(&purpose, e.into()))?.effective;
        if !has.contains(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW) {
            return Err(refused(&purpose, PRIVILEGES.to_owned()));
        }
        let doubt = self.on_its_network(&routes, &link, &purpose).await?;
        let assigned = self.assigned_here(&routes, &link, &purpose).await?;
        let mut is_unanswered = false;
        let state = match (&assigned, self.wire(&link, &purpose)?) {
            (Some(_), _) => Note::new(format!("{address} is here")),
            (None, None) => Note::new(format!("{address} is not here")),
            (None, Some(wire)) => match wire.ask(self.config.probe_for).await {
                Ok(Some(mac)) => {
                    let proxied = self.proxied(&routes, &link, mac, &purpose).await?;
                    Note { text: format!("{address} is at {mac}{}", proxied.text), ..proxied }
                }
                Ok(None) => {
                    is_unanswered = !self.config.probe_for.is_zero();
                    Note::new(format!("no host answers for {address}"))
                }
                Err(error) => return Err(step_error(&purpose, error)),
            },
        };
        let doubt = doubt.filter(|_| assigned.is_none());
        let doubts = doubt
            .into_iter()
            .chain(networkd::forgets(interface, link.index))
            .chain(networkd::is_shared(interface));
        let note = Note { text: format!("{interface} is up, {}", state.text), ..state }.warn(doubts);
        Ok(if is_unanswered { note.with(UNANSWERED, true) } else { note })
    }
}

#[cfg(test)]
mod tests;
