//! Whether the network of the broker's address is on the interface that the address moves to.

use super::super::cidr::Cidr;
use super::super::routes::Own;

/// Where this host has the network of an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Network<'a> {
    /// On the link of the interface.
    Here,
    /// On another link, through this address.
    Elsewhere(&'a Own),
    /// No address of this host is in it. It may be here all the same: an interface needs no address to hear.
    Nowhere,
}

/// Where this host has the network of `moved`. `segment`: that of the interface that it moves to.
///
/// A network of one address, such as a cloud's or a load balancer's /32, shows nothing of a link. The
/// address itself shows nothing either, for a takeover may have put it there.
pub(super) fn network(moved: Cidr, segment: u32, own: &[Own]) -> Network<'_> {
    let others = || own.iter().filter(|own| own.cidr.address != moved.address);
    let is_here = |own: &Own| own.cidr.has(moved.address) || moved.has(own.cidr.address);
    if others().any(|own| own.segment == segment && is_here(own)) {
        return Network::Here;
    }
    // One that is wider than the network that moves is another network.
    let same = |own: &&Own| own.cidr.has(moved.address) && (moved.is_single() || moved.has(own.cidr.address));
    match others().filter(same).max_by_key(|own| own.cidr.prefix) {
        Some(own) => Network::Elsewhere(own),
        None => Network::Nowhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: u32 = 7;

    #[track_caller]
    fn is_on(moved: &str, own: &[(&str, u32)], expected: &str) {
        let own = own.iter().map(|(cidr, segment)| {
            let cidr = cidr.parse().unwrap();
            Own { interface: format!("if{segment}"), segment: *segment, cidr }
        });
        let own: Vec<Own> = own.collect();
        let found = match network(moved.parse().unwrap(), HERE, &own) {
            Network::Here => "here",
            Network::Elsewhere(own) => &own.interface,
            Network::Nowhere => "nowhere",
        };
        assert_eq!(found, expected, "{moved}: {own:?}");
    }

    #[test]
    fn a_network_is_where_this_host_has_another_address_of_it() {
        let moved = "10.20.0.11/24";
        is_on(moved, &[("10.99.0.5/24", HERE), ("10.20.0.31/24", 2)], "if2");
        is_on(moved, &[("10.20.0.31/24", HERE), ("10.99.0.5/24", 2)], "here");
        // Two interfaces on one network: both do.
        is_on(moved, &[("10.20.0.31/24", 2), ("10.20.0.32/24", HERE)], "here");
        is_on(moved, &[("10.99.0.5/24", HERE)], "nowhere");
        is_on(moved, &[], "nowhere");
        is_on("fd00::11/64", &[("fd00:1::5/64", HERE), ("fd00::31/64", 2)], "if2");
        is_on("fd00::11/64", &[("fd00::31/64", HERE)], "here");
    }

    #[test]
    fn prefixes_that_differ_make_no_false_alarm() {
        // As a secondary address, with the prefix of one address.
        is_on("10.20.0.11/32", &[("10.20.0.31/24", HERE)], "here");
        is_on("10.20.0.11/32", &[("10.99.0.5/24", HERE), ("10.20.0.31/24", 2)], "if2");
        is_on("10.20.0.11/24", &[("10.20.0.31/32", HERE)], "here");
        is_on("10.20.0.11/24", &[("10.20.0.31/32", 2)], "nowhere");
        is_on("10.20.0.11/16", &[("10.20.5.31/24", HERE)], "here");
        // A management network that is wider than the one that moves.
        is_on("10.20.0.11/24", &[("10.0.0.5/8", 2)], "nowhere");
        is_on("10.20.0.11/24", &[("10.20.0.5/8", 2), ("10.20.0.31/24", 3)], "if3");
    }

    #[test]
    fn the_address_itself_shows_nothing() {
        is_on("10.20.0.11/24", &[("10.20.0.11/24", HERE), ("10.20.0.31/24", 2)], "if2");
        is_on("10.20.0.11/24", &[("10.20.0.11/24", HERE)], "nowhere");
    }
}
