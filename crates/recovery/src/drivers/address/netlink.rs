//! `netlink`: the broker's address becomes a further address of one of this host's interfaces.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::thread::CapabilitySet;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::cidr::Cidr;
use super::reset::Resets;
use super::routes::{Assigned, Link, Routes};
use super::wire::Wire;
use crate::drivers::clients::{Known, KnownClients};
use crate::model::{Epoch, PLACED, human};
use crate::ports::{Address, BoxError, Note, StepError};

const DRIVER: &str = "netlink";

/// The least time between two announcements that answer another host. RFC 5227 has ten seconds, for hosts of which neither knows
/// who is right: here the ledger says so, and neighbours must not believe the other for as long.
const DEFEND_EVERY: Duration = Duration::from_millis(250);

/// How often the link is asked whether another host answers for the address, while none is heard.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// An address on an interface of this host.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetlinkConfig {
    /// The broker's address and the length of its network's prefix, such as `10.20.0.11/24` or `fd00::11/64`.
    pub address: String,
    /// The interface on the broker's network, such as `eth0`.
    pub interface: String,
    /// For how long the link is asked (three times) whether another host has the address, before it is taken. The
    /// takeover waits for it: RFC 5227's seconds are for hosts that know nothing of each other, and here the old
    /// owner has been fenced. `0s` does not ask.
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
    /// What goes on in the background until the address is released.
    announcing: Mutex<Option<AbortHandle>>,
    resetting: Mutex<Option<AbortHandle>>,
    defending: Mutex<Option<AbortHandle>>,
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
            tokio::spawn(timeout(until, announce)).abort_handle()
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

/// Answers whoever says to have the address as well, as RFC 5227 (2.4) has it for a host that must keep its address: at once, and
/// then no more often than [`DEFEND_EVERY`]. Asks from time to time too: who only answers others is not heard by itself.
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

fn is_at_work(task: &Mutex<Option<AbortHandle>>) -> bool {
    task.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|task| !task.is_finished())
}

/// Ends what went on so far.
fn replace(task: &Mutex<Option<AbortHandle>>, next: Option<AbortHandle>) {
    let mut task = task.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(last) = std::mem::replace(&mut *task, next) {
        last.abort();
    }
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
        replace(&self.resetting, Some(tokio::spawn(resets.send()).abort_handle()));
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
            replace(&self.defending, Some(tokio::spawn(defend(wire)).abort_handle()));
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
        let state = match (self.assigned_here(&routes, &link, &purpose).await?, self.wire(&link, &purpose)?) {
            (Some(_), _) => format!("{address} is here"),
            (None, None) => format!("{address} is not here"),
            (None, Some(wire)) => match wire.ask(self.config.probe_for).await {
                Ok(Some(mac)) => format!("{address} is at {mac}"),
                Ok(None) => format!("no host answers for {address}"),
                Err(error) => return Err(step_error(&purpose, error)),
            },
        };
        Ok(Note::new(format!("{interface} is up, {state}")))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::AsFd;
    use std::time::Instant;

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    use super::super::AddressConfig;
    use super::*;
    use crate::drivers::clients::ClientsPage;
    use crate::drivers::in_namespaces::{inside, must, run_ignored_tests_of};

    const EPOCH: Epoch = Epoch(1);

    fn netlink(address: &str) -> Netlink {
        netlink_of(address, Arc::default())
    }

    fn netlink_of(address: &str, clients: Arc<KnownClients>) -> Netlink {
        let text = format!("driver = \"netlink\"\naddress = \"{address}\"\ninterface = \"here\"");
        let AddressConfig::Netlink(config) = toml::from_str(&text).unwrap();
        config.build(clients).unwrap()
    }

    /// Two hosts on one link: ours with the interface `here`, and `peer` with `there`, where commands run by
    /// `ip netns exec peer`. What the test before left is removed; the rest vanishes with this process.
    fn two_hosts() {
        must(
            "[ -e /run/netns/peer ] && ip netns del peer || mount -t tmpfs none /run
            ip link del here 2> /dev/null || true
            ip netns add peer
            ip link add here type veth peer name there netns peer
            ip address add 10.77.0.1/24 dev here
            ip link set here up
            ip -n peer address add 10.77.0.2/24 dev there
            ip -n peer link set there up
            ip -n peer link set lo up
            ip link set lo up",
        );
    }

    fn mac_of(netns: &str, interface: &str) -> String {
        must(&format!("ip {netns} -o link show {interface} | sed 's/.*ether \\([^ ]*\\).*/\\1/'"))
            .trim()
            .to_owned()
    }

    async fn until_peer_knows(address: &str, mac: &str) {
        let begun = Instant::now();
        loop {
            let known = must(&format!("ip -n peer neighbour show {address} dev there"));
            if known.contains(mac) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(5), "the peer still knows {known}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    #[test]
    fn bad_values_are_reported_together() {
        let text = "driver = \"netlink\"\naddress = \"10.0.0.1\"\ninterface = \"a b\"\nprobe_for = \"1min\"\nannounce_every = \"0s\"";
        let problems = toml::from_str::<AddressConfig>(text).unwrap().build(Arc::default()).err().unwrap();
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(toml::from_str::<AddressConfig>("driver = \"netlink\"\nadress = \"10.0.0.1/24\"").is_err());
    }

    #[tokio::test]
    async fn an_interface_that_is_not_there_is_refused() {
        let mut netlink = netlink("10.77.0.50/24");
        netlink.config.interface = "no-such-if".to_owned();
        let error = netlink.check().await.unwrap_err();
        assert!(error.to_string().contains("this host has no interface no-such-if"), "{error}");
        assert!(netlink.release().await.is_ok());
    }

    #[test]
    fn addresses_in_namespaces_of_their_own() {
        run_ignored_tests_of(module_path!());
    }

    /// As `two_hosts`, with a switch in the peer's place and, behind it, a host that has the address as well.
    fn a_zombie() {
        two_hosts();
        must(
            "[ -e /run/netns/zombie ] && ip netns del zombie || true
            ip -n peer link add sw0 type bridge
            ip -n peer address flush dev there
            ip -n peer link set there master sw0
            ip -n peer address add 10.77.0.2/24 dev sw0
            ip -n peer link set sw0 up
            ip netns add zombie
            ip -n peer link add port type veth peer name z netns zombie
            ip -n peer link set port master sw0 up
            ip -n zombie address add 10.77.0.50/24 dev z
            ip -n zombie link set z up",
        );
    }

    #[tokio::test]
    #[ignore = "run by addresses_in_namespaces_of_their_own"]
    async fn a_zombie_that_speaks_up_is_answered_and_the_neighbours_keep_the_owner() {
        if !inside() {
            return;
        }
        a_zombie();
        must("ip -n zombie link set z down");
        let netlink = netlink("10.77.0.50/24");
        netlink.acquire(EPOCH).await.unwrap();
        netlink.defend().await.unwrap();
        netlink.defend().await.unwrap();
        assert!(netlink.here().await.unwrap());
        // What is told in the background is over, so that only the defence is left.
        replace(&netlink.announcing, None);
        let (ours, theirs) = (mac_of("", "here"), mac_of("-n zombie", "z"));
        assert_eq!(netlink.holder().await.unwrap(), None);

        // Its link heals, and it has something to say to the peer: it asks for it, and tells everybody its own address by that.
        must("ip -n zombie link set z up");
        let begun = Instant::now();
        let mut kept = 0;
        while kept < 5 {
            must(
                "ip netns exec zombie bash -c 'ip neighbour flush dev z; echo x > /dev/udp/10.77.0.2/9' || true",
            );
            // This thread carries the defence as well, which needs a moment.
            sleep(DEFEND_EVERY * 2).await;
            let known = must("ip -n peer neighbour show 10.77.0.50 dev sw0");
            kept = if known.contains(&ours) { kept + 1 } else { 0 };
            assert!(begun.elapsed() < Duration::from_secs(20), "the peer knows {known}");
        }
        assert!(netlink.holder().await.unwrap().unwrap().contains(&theirs));
        netlink.release().await.unwrap();
        assert!(!netlink.here().await.unwrap() && !is_at_work(&netlink.defending));
    }

    #[tokio::test]
    #[ignore = "run by addresses_in_namespaces_of_their_own"]
    async fn an_address_moves_here_and_the_neighbour_learns_it() {
        if !inside() {
            return;
        }
        two_hosts();
        let netlink = netlink("10.77.0.50/24");
        // The neighbour has talked to the old owner a moment ago.
        must("ip -n peer neighbour replace 10.77.0.50 lladdr 02:00:00:00:00:99 dev there nud reachable");
        let text = netlink.check().await.unwrap().text;
        assert_eq!(text, "here is up, no host answers for 10.77.0.50");

        let begun = Instant::now();
        let note = netlink.acquire(EPOCH).await.unwrap();
        // Well below `announce_for`: nobody waits for the repetitions.
        assert!(begun.elapsed() < Duration::from_millis(1500), "it took {:?}", begun.elapsed());
        let mac = mac_of("", "here");
        assert!(
            note.text.contains("10.77.0.50/24 is on here now") && note.text.contains(&mac),
            "{}",
            note.text
        );
        until_peer_knows("10.77.0.50", &mac).await;

        let listener = std::net::TcpListener::bind("10.77.0.50:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        must(&format!("ip netns exec peer bash -c 'exec 3<>/dev/tcp/10.77.0.50/{port}'"));

        assert!(netlink.acquire(EPOCH).await.unwrap().text.contains("was on here already"));
        assert_eq!(netlink.check().await.unwrap().text, "here is up, 10.77.0.50 is here");
        assert!(netlink.release().await.unwrap().text.contains("was removed"));
        assert!(!must("ip address show here").contains("10.77.0.50"));
        assert!(must("ip address show here").contains("10.77.0.1/24"));
        assert!(netlink.release().await.unwrap().text.contains("is not on here"));
    }

    #[tokio::test]
    #[ignore = "run by addresses_in_namespaces_of_their_own"]
    async fn a_neighbour_that_missed_the_first_word_is_told_again() {
        if !inside() {
            return;
        }
        two_hosts();
        netlink("10.77.0.51/24").acquire(EPOCH).await.unwrap();
        must("ip -n peer neighbour replace 10.77.0.51 lladdr 02:00:00:00:00:99 dev there nud reachable");
        until_peer_knows("10.77.0.51", &mac_of("", "here")).await;
    }

    #[tokio::test]
    #[ignore = "run by addresses_in_namespaces_of_their_own"]
    async fn an_address_that_another_host_has_is_refused() {
        if !inside() {
            return;
        }
        two_hosts();
        must("ip -n peer address add fd77::2/64 dev there nodad; ip address add fd77::1/64 dev here nodad");
        let mac = mac_of("-n peer", "there");
        for address in ["10.77.0.2/24", "fd77::2/64"] {
            let netlink = netlink(address);
            let error = netlink.acquire(EPOCH).await.unwrap_err();
            assert_eq!(error.kind(), "refused");
            assert!(error.to_string().contains(&format!("another host on here, {mac}, answers")), "{error}");
            let bare = address.split('/').next().unwrap();
            assert!(!must("ip address show here").contains(bare), "it was added all the same");
            let text = netlink.check().await.unwrap().text;
            assert!(text.ends_with(&format!("{bare} is at {mac}")), "{text}");
        }
    }

    #[tokio::test]
    #[ignore = "run by addresses_in_namespaces_of_their_own"]
    async fn an_ipv6_address_moves_here_and_is_usable_at_once() {
        if !inside() {
            return;
        }
        two_hosts();
        must("ip -n peer address add fd77::2/64 dev there nodad");
        must("ip -n peer neighbour replace fd77::50 lladdr 02:00:00:00:00:99 dev there nud stale");
        let netlink = netlink("fd77::50/64");
        netlink.acquire(EPOCH).await.unwrap();
        std::net::TcpListener::bind("[fd77::50]:0").unwrap();
        until_peer_knows("fd77::50", &mac_of("", "here")).await;
        netlink.release().await.unwrap();
        assert!(!must("ip address show here").contains("fd77::50"));
    }

    #[tokio::test]
    #[ignore = "run by addresses_in_namespaces_of_their_own"]
    async fn the_first_address_of_a_network_leaves_the_others_behind() {
        if !inside() {
            return;
        }
        two_hosts();
        must("echo 0 > /proc/sys/net/ipv4/conf/all/promote_secondaries");
        must("echo 0 > /proc/sys/net/ipv4/conf/here/promote_secondaries");
        let (first, second) = (netlink("10.78.0.1/24"), netlink("10.78.0.2/24"));
        first.acquire(EPOCH).await.unwrap();
        second.acquire(EPOCH).await.unwrap();
        assert!(must("ip address show here").contains("10.78.0.2/24 brd 10.78.0.255 scope global secondary"));
        first.release().await.unwrap();
        let left = must("ip address show here");
        assert!(left.contains("10.78.0.2/24") && !left.contains("10.78.0.1/24"), "{left}");
    }

    #[tokio::test]
    #[ignore = "run by addresses_in_namespaces_of_their_own"]
    async fn a_link_that_cannot_carry_it_is_refused() {
        if !inside() {
            return;
        }
        two_hosts();
        let netlink = netlink("10.77.0.52/24");
        must("ip -n peer link set there down");
        let error = netlink.acquire(EPOCH).await.unwrap_err();
        assert!(error.to_string().contains("here has no carrier"), "{error}");
        must("ip link set here down");
        let error = netlink.check().await.unwrap_err();
        assert!(error.to_string().contains("ip link set here up"), "{error}");
        must("ip address add 10.77.0.52/32 dev lo; ip link set here up; ip -n peer link set there up");
        let error = netlink.acquire(EPOCH).await.unwrap_err();
        assert!(error.to_string().contains("another interface of this host"), "{error}");
        must("ip address del 10.77.0.52/32 dev lo");
    }

    /// `two_hosts`, and a third one, `old`, on the same link, with the address.
    fn and_an_old_owner(cidr: &str) {
        two_hosts();
        must(&format!(
            "[ -e /run/netns/old ] && ip netns del old || true
            ip netns add old
            ip -n peer link add bridge type bridge
            ip -n peer link set bridge up
            ip -n peer link add port type veth peer name eth netns old
            ip -n peer link set port up master bridge
            ip -n peer link set there master bridge
            ip -n peer address flush dev there
            ip -n peer address add 10.77.0.2/24 dev bridge
            ip -n peer address add fd77::2/64 dev bridge nodad
            ip address add fd77::1/64 dev here nodad
            ip -n old link set lo up
            ip -n old address add {cidr} dev eth $(echo {cidr} | grep -q : && echo nodad)
            ip -n old link set eth up"
        ));
    }

    /// What `make` makes in another namespace; sockets stay there.
    fn within<T: Send + 'static>(netns: &str, make: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = std::fs::File::open(format!("/run/netns/{netns}")).unwrap();
        let made = std::thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            make()
        });
        made.join().unwrap()
    }

    fn connect(at: std::net::SocketAddr) -> std::net::TcpStream {
        let begun = Instant::now();
        loop {
            match within("peer", move || std::net::TcpStream::connect(at)) {
                Ok(stream) => return stream,
                // An IPv6 link that was made a moment ago.
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(5), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A word of the old owner's agent that names this client.
    fn word_of(client: &std::net::TcpStream) -> ClientsPage {
        let (own, client) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
        let ports = [(client.ip(), [client.port()].into())].into();
        let connections = [(own, ports)].into();
        ClientsPage { host: "old".into(), connections, left_out: 0 }
    }

    #[tokio::test]
    #[ignore = "run by addresses_in_namespaces_of_their_own"]
    async fn clients_of_a_dead_owner_are_reset_and_those_of_a_living_one_are_not() {
        if !inside() {
            return;
        }
        for address in ["10.77.0.50/24", "fd77::50/64"] {
            and_an_old_owner(address);
            let at = std::net::SocketAddr::new(address.parse::<Cidr>().unwrap().address, 9092);
            let listener = within("old", move || std::net::TcpListener::bind(at).unwrap());
            let (mut told, untold) = (connect(at), connect(at));
            told.write_all(b"request").unwrap();
            let (mut served, _) = listener.accept().unwrap();
            served.read_exact(&mut [0; 7]).unwrap();
            must("ip -n old link set eth down");

            let clients = Arc::new(KnownClients::default());
            clients.remember(word_of(&told));
            let netlink = netlink_of(address, clients.clone());
            netlink.acquire(EPOCH).await.unwrap();
            let note = netlink.reset_clients().await.unwrap().text;
            assert!(note.starts_with("resetting 1 of its clients' connections (old, "), "{note}");
            // Later volleys are for frames that are lost, and here none is.
            assert_eq!(read_within(&told, Duration::from_secs(5)).await, Err(ErrorKind::ConnectionReset));
            // Nobody told of the other connection, so it still waits.
            assert_eq!(read_within(&untold, QUIET).await, Err(ErrorKind::WouldBlock));

            // The next owner's own connection is named as well, and goes on.
            let listener = std::net::TcpListener::bind(at).unwrap();
            let mut living = connect(at);
            let (mut served, _) = listener.accept().unwrap();
            clients.remember(word_of(&living));
            netlink.reset_clients().await.unwrap();
            assert_eq!(read_within(&living, QUIET).await, Err(ErrorKind::WouldBlock));
            living.write_all(b"request").unwrap();
            served.read_exact(&mut [0; 7]).unwrap();
            netlink.release().await.unwrap();
        }
    }

    /// In the time of two volleys.
    const QUIET: Duration = Duration::from_millis(900);

    async fn read_within(stream: &std::net::TcpStream, limit: Duration) -> Result<usize, ErrorKind> {
        let mut stream = stream.try_clone().unwrap();
        stream.set_read_timeout(Some(limit)).unwrap();
        let read = move || stream.read(&mut [0]).map_err(|error| error.kind());
        tokio::task::spawn_blocking(read).await.unwrap()
    }

    #[tokio::test]
    #[ignore = "run by addresses_in_namespaces_of_their_own"]
    async fn an_owner_whose_clients_nobody_knows_is_told() {
        if !inside() {
            return;
        }
        two_hosts();
        let note = netlink("10.77.0.50/24").reset_clients().await.unwrap().text;
        assert!(note.contains("no [[peer]] told of clients connected to it"), "{note}");
    }
}
