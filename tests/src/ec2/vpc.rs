//! The network of a VPC: it answers ARP for every address itself, carries a packet to whoever has its address by EC2,
//! or is sent it by the route table of the sender's subnet, and drops one from an address that its sender does not
//! have. An interface whose source/destination check is on takes and sends nothing else.

use std::fs;

use anyhow::{Context, Result};

use crate::ec2::zones::{OUTSIDE, ZONE, Zone};
use crate::host::{BRIDGE, Host};
use crate::shell;

/// The hardware address by which it answers for every address.
const ROUTER: &str = "02:00:00:00:00:01";
/// Where packets for an address go that nobody has.
const NOBODY: &str = "02:00:00:00:00:00";

/// Makes the bed a router that leaves it to others where packets go.
pub(super) fn forward() -> Result<()> {
    set("conf/all/send_redirects", "0")?;
    set(&format!("conf/{BRIDGE}/send_redirects"), "0")?;
    set("conf/all/rp_filter", "0")?;
    set(&format!("conf/{BRIDGE}/rp_filter"), "0")?;
    set("ip_forward", "1")
}

fn set(key: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/ipv4/{key}");
    fs::write(&path, value).with_context(|| format!("cannot set {path}"))
}

/// Makes it, and lets everything pass for now.
pub(super) fn make() -> Result<()> {
    // Every host sends to the bed itself, also what is for a neighbour.
    forward()?;
    set(&format!("conf/{BRIDGE}/proxy_arp_pvlan"), "1")?;
    set(&format!("neigh/{BRIDGE}/proxy_delay"), "0")?;
    // A bridge's own changes with its ports.
    shell::sh(&format!("ip link set {BRIDGE} address {ROUTER}"))?;
    nft("add table bridge vpc; add set bridge vpc has { type ifname . ipv4_addr; }; \
         add set bridge vpc open { type ifname; }; add map bridge vpc zone { type ifname : mark; }")
}

/// Sends by the tables of zones from now on, and nowhere without one: what a host sends by that of its own zone, and
/// what the bed's clients send by that of the first.
pub(super) fn divide() -> Result<()> {
    shell::sh(&format!("ip route del {OUTSIDE} dev {BRIDGE}"))?;
    shell::sh(&format!("ip route add blackhole {OUTSIDE}"))?;
    for zone in Zone::BOTH {
        let number = zone.number();
        shell::sh(&format!("ip rule add fwmark {number} lookup {number}"))?;
    }
    shell::sh(&format!("ip rule add iif lo lookup {}", ZONE.number())).map(drop)
}

/// What comes from a host is known to come from its zone.
pub(super) fn place(host: &Host) -> Result<()> {
    let (link, number) = (host.link(), Zone::of(host).number());
    nft(&format!("add element bridge vpc zone {{ \"{link}\" : {number} }}"))
}

/// What hosts of a zone send to an address goes to the interface of this host.
pub(super) fn route(zone: Zone, address: &str, to: Option<&Host>) -> Result<()> {
    let number = zone.number();
    let way = match to {
        Some(host) => format!("{address}/32 via {} dev {BRIDGE} onlink", host.address()),
        None => format!("blackhole {address}/32"),
    };
    shell::sh(&format!("ip route replace {way} table {number}")).map(drop)
}

/// A host takes what comes for the address, or no longer.
pub(super) fn take(address: &str, host: &Host, takes: bool) -> Result<()> {
    let verb = if takes { "add" } else { "delete" };
    nft(&format!("{verb} element bridge vpc has {{ \"{}\" . {address} }}", host.link()))
}

/// What a host sends from any address passes, or no longer.
pub(super) fn open(host: &Host, is_open: bool) -> Result<()> {
    let verb = if is_open { "add" } else { "delete" };
    nft(&format!("{verb} element bridge vpc open {{ \"{}\" }}", host.link()))
}

/// From now on nothing passes but as it says.
pub(super) fn close() -> Result<()> {
    nft("add chain bridge vpc from { type filter hook prerouting priority 0; }; \
         add chain bridge vpc between { type filter hook forward priority 0; policy drop; }; \
         add chain bridge vpc to { type filter hook output priority 0; }; \
         add rule bridge vpc from ether type ip iifname . ip saddr != @has iifname != @open drop; \
         add rule bridge vpc from ether type ip meta mark set iifname map @zone; \
         add rule bridge vpc to ether type ip oifname . ip daddr != @has drop; \
         add rule bridge vpc to arp operation request drop")
}

/// Packets for and from an address are one host's now, and no longer another's.
pub(super) fn carry(address: &str, before: Option<&Host>, now: Option<&Host>) -> Result<()> {
    before.map_or(Ok(()), |host| take(address, host, false))?;
    let at = now.map_or(NOBODY.to_owned(), Host::hardware);
    shell::sh(&format!("ip neigh replace {address} lladdr {at} nud permanent dev {BRIDGE}"))?;
    now.map_or(Ok(()), |host| take(address, host, true))
}

fn nft(rules: &str) -> Result<()> {
    shell::run("nft", [rules]).map(drop)
}
