//! The network of a VPC: it answers ARP for every address itself, carries a packet to whoever has its address by EC2, and
//! drops one from an address that its sender does not have.

use std::fs;

use anyhow::{Context, Result};

use crate::host::{BRIDGE, Host};
use crate::shell;

/// The hardware address by which it answers for every address.
const ROUTER: &str = "02:00:00:00:00:01";
/// Where packets for an address go that nobody has.
const NOBODY: &str = "02:00:00:00:00:00";

/// Makes it, and lets everything pass for now.
pub(super) fn make() -> Result<()> {
    // The bed itself is the router that every host sends to: also what is for a neighbour.
    for (key, value) in [
        ("conf/all/send_redirects", "0"),
        (&format!("conf/{BRIDGE}/send_redirects"), "0"),
        (&format!("conf/{BRIDGE}/proxy_arp_pvlan"), "1"),
        (&format!("neigh/{BRIDGE}/proxy_delay"), "0"),
        ("ip_forward", "1"),
    ] {
        let path = format!("/proc/sys/net/ipv4/{key}");
        fs::write(&path, value).with_context(|| format!("cannot set {path}"))?;
    }
    // A bridge's own changes with its ports.
    shell::sh(&format!("ip link set {BRIDGE} address {ROUTER}"))?;
    nft("add table bridge vpc; add set bridge vpc has { type ifname . ipv4_addr; }")
}

/// From now on nothing passes but as it says.
pub(super) fn close() -> Result<()> {
    nft("add chain bridge vpc from { type filter hook prerouting priority 0; }; \
         add chain bridge vpc between { type filter hook forward priority 0; policy drop; }; \
         add chain bridge vpc to { type filter hook output priority 0; }; \
         add rule bridge vpc from ether type ip iifname . ip saddr != @has drop; \
         add rule bridge vpc to ether type ip oifname . ip daddr != @has drop; \
         add rule bridge vpc to arp operation request drop")
}

/// Packets for and from an address are one host's now, and no longer another's.
pub(super) fn carry(address: &str, before: Option<&Host>, now: Option<&Host>) -> Result<()> {
    let element = |host: &Host| format!("{{ \"{}\" . {address} }}", host.link());
    if let Some(host) = before {
        nft(&format!("delete element bridge vpc has {}", element(host)))?;
    }
    let at = now.map_or(NOBODY.to_owned(), Host::hardware);
    shell::sh(&format!("ip neigh replace {address} lladdr {at} nud permanent dev {BRIDGE}"))?;
    now.map_or(Ok(()), |host| nft(&format!("add element bridge vpc has {}", element(host))))
}

fn nft(rules: &str) -> Result<()> {
    shell::run("nft", [rules]).map(drop)
}
