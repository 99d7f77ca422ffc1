//! This host's interfaces and addresses, through rtnetlink.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::cidr::Cidr;
use super::neighbour::Mac;

/// The kernel answers within microseconds; nothing in here waits for the network.
const LIMIT: Duration = Duration::from_secs(5);

/// An interface of this host.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) index: u32,
    /// Whether it is switched on.
    pub(super) is_up: bool,
    /// Whether there is a link: a cable, or a peer.
    pub(super) has_carrier: bool,
    /// Its Ethernet address; `None` where neighbours are not asked for addresses.
    pub(super) mac: Option<Mac>,
    /// The interface whose link it shares, by index: its own, or that of the one it was made on (macvlan).
    pub(super) segment: u32,
}

/// An address that this host has, and the interface that it has it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) interface: String,
    /// As [`Link::segment`].
    pub(super) segment: u32,
    pub(super) cidr: Cidr,
}

/// An address that is on this host.
#[derive(Debug, Clone)]
pub(super) struct Assigned {
    pub(super) index: u32,
    pub(super) prefix: u8,
    message: AddressMessage,
}

impl Assigned {
    fn flags(&self) -> AddressFlags {
        let long = self.message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Flags(flags) => Some(*flags),
            _ => None,
        });
        long.unwrap_or_else(|| AddressFlags::from_bits_retain(self.message.header.flags.bits().into()))
    }

    /// Whether the kernel does not use it: another host has it, or it is still looking for one.
    pub(super) fn is_unusable(&self) -> bool {
        self.flags().intersects(AddressFlags::Tentative | AddressFlags::Dadfailed)
    }

    /// Whether other addresses of its network go with it when it is removed.
    fn is_primary(&self) -> bool {
        !self.flags().contains(AddressFlags::Secondary)
    }
}

/// A conversation with the kernel's routing side.
pub(super) struct Routes {
    handle: rtnetlink::Handle,
    connection: JoinHandle<()>,
}

impl Drop for Routes {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Routes {
    pub(super) fn open() -> io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        Ok(Self { handle, connection: tokio::spawn(connection) })
    }

    /// The interface of this name, if there is one.
    pub(super) async fn link(&self, name: &str) -> io::Result<Option<Link>> {
        let mut links = Box::pin(self.handle.link().get().match_name(name.to_owned()).execute());
        match within(links.try_next()).await {
            Ok(found) => Ok(found.map(|message| link(&message))),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where on this host the address is.
    pub(super) async fn assigned(&self, address: IpAddr) -> io::Result<Vec<Assigned>> {
        let found = self.handle.address().get().set_address_filter(address).execute();
        let found: Vec<AddressMessage> = within(found.try_collect()).await?;
        let assigned = found.into_iter().filter(|message| local(message) == Some(address));
        let assigned = assigned.map(|message| Assigned {
            index: message.header.index,
            prefix: message.header.prefix_len,
            message,
        });
        Ok(assigned.collect())
    }

    /// Every address on an interface that is switched on and leads somewhere.
    pub(super) async fn own(&self) -> io::Result<Vec<Own>> {
        let links: Vec<LinkMessage> = within(self.handle.link().get().execute().try_collect()).await?;
        let found: Vec<AddressMessage> = within(self.handle.address().get().execute().try_collect()).await?;
        let own = found.iter().filter_map(|message| {
            let on = links.iter().find(|link| link.header.index == message.header.index)?;
            let flags = on.header.flags;
            let leads = flags.contains(LinkFlags::Up)
                && !flags.contains(LinkFlags::Loopback)
                && kind(on) != Some(&InfoKind::Dummy);
            let cidr = Cidr { address: local(message)?, prefix: message.header.prefix_len };
            leads.then(|| Some(Own { interface: name(on)?, segment: segment(on), cidr }))?
        });
        Ok(own.collect())
    }

    /// The routers to which routes through this interface lead, of the kind of `like`.
    pub(super) async fn gateways(&self, index: u32, like: IpAddr) -> io::Result<BTreeSet<IpAddr>> {
        let mut all = RouteMessage::default();
        all.header.address_family = if like.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let found: Vec<RouteMessage> = within(self.handle.route().get(all).execute().try_collect()).await?;
        let through = found.iter().filter(|route| route.attributes.contains(&RouteAttribute::Oif(index)));
        let gateway = |attribute: &RouteAttribute| match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
            RouteAttribute::Gateway(RouteAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
            _ => None,
        };
        Ok(through.flat_map(|route| route.attributes.iter().filter_map(gateway)).collect())
    }

    /// Adds the address. One that is there already is no error.
    pub(super) async fn add(&self, index: u32, cidr: Cidr) -> io::Result<()> {
        let mut request = self.handle.address().add(index, cidr.address, cidr.prefix);
        if cidr.address.is_ipv6() {
            // We have asked the neighbours ourselves; the kernel would take a second and more.
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        }
        match within(request.execute()).await {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            result => result,
        }
    }

    /// Removes the address, and no other.
    pub(super) async fn remove(&self, interface: &str, assigned: Assigned) -> io::Result<()> {
        if matches!(local(&assigned.message), Some(IpAddr::V4(_))) && assigned.is_primary() {
            promote_secondaries(interface)?;
        }
        match within(self.handle.address().del(assigned.message).execute()).await {
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(()),
            result => result,
        }
    }
}

/// Without this the kernel removes, together with the first IPv4 address of a network, all others of that
/// network on the interface: the addresses of other brokers, or the host's own.
fn promote_secondaries(interface: &str) -> io::Result<()> {
    let file = format!("/proc/sys/net/ipv4/conf/{interface}/promote_secondaries");
    if fs::read_to_string(&file)?.trim() == "1" {
        return Ok(());
    }
    fs::write(&file, "1").map_err(|error| {
        let text =
            format!("{file} is 0 and cannot be set, so other addresses could be lost; set it to 1: {error}");
        io::Error::new(error.kind(), text)
    })
}

async fn within<T>(request: impl Future<Output = Result<T, rtnetlink::Error>>) -> io::Result<T> {
    match timeout(LIMIT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(rtnetlink::Error::NetlinkError(message))) => Err(message.to_io()),
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel gave no answer over netlink")),
    }
}

/// The address itself. On a point-to-point link `Address` is the peer's, where there is a `Local` too.
fn local(message: &AddressMessage) -> Option<IpAddr> {
    let attributes = &message.attributes;
    let local = attributes.iter().find_map(|a| match a {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    local.or_else(|| {
        attributes.iter().find_map(|a| match a {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

fn link(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let asks = message.header.link_layer_type == LinkLayerType::Ether && !flags.contains(LinkFlags::Noarp);
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Address(bytes) => bytes.as_slice().try_into().ok().map(Mac),
        _ => None,
    });
    Link {
        index: message.header.index,
        is_up: flags.contains(LinkFlags::Up),
        has_carrier: flags.contains(LinkFlags::LowerUp),
        mac: mac.filter(|_| asks),
        segment: segment(message),
    }
}

fn name(message: &LinkMessage) -> Option<String> {
    message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })
}

fn kind(message: &LinkMessage) -> Option<&InfoKind> {
    let infos = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    });
    infos?.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    })
}

fn segment(message: &LinkMessage) -> u32 {
    let attributes = &message.attributes;
    let shares = matches!(kind(message), Some(InfoKind::MacVlan | InfoKind::MacVtap | InfoKind::IpVlan))
        // The index is one of another namespace.
        && !attributes.iter().any(|it| matches!(it, LinkAttribute::LinkNetNsId(_)));
    let below = attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    });
    below.filter(|_| shares).unwrap_or(message.header.index)
}
