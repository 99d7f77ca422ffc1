//! How hosts on one link ask and tell who has an address: ARP for IPv4, neighbour discovery for IPv6.
//! Whole Ethernet frames in and out; pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) const ETHERTYPE_ARP: u16 = 0x0806;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Where an IPv6 frame has its next header, and an ICMPv6 message without extension headers its type.
pub(super) const NEXT_HEADER_AT: usize = 14 + 6;
pub(super) const ICMPV6_TYPE_AT: usize = 14 + 40;
pub(super) const ICMPV6: u8 = 58;
pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

const NEIGHBOUR_SOLICITATION: u8 = 135;
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;
const BROADCAST: Mac = Mac([0xff; 6]);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mac(pub(super) [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The type of the frames that are about `address`.
pub(super) fn ethertype(address: IpAddr) -> u16 {
    if address.is_ipv4() { ETHERTYPE_ARP } else { ETHERTYPE_IPV6 }
}

/// Asks whether anybody has `address`, without claiming it: RFC 5227 for IPv4, RFC 4862 for IPv6.
pub(super) fn probe(address: IpAddr, from: Mac) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => arp(ARP_REQUEST, from, Ipv4Addr::UNSPECIFIED, Mac([0; 6]), v4),
        IpAddr::V6(v6) => {
            let [.., a, b, c] = v6.octets();
            let mut group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).octets();
            group[13..].copy_from_slice(&[a, b, c]);
            let message = [&[NEIGHBOUR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0][..], &v6.octets()].concat();
            icmpv6(from, Ipv6Addr::UNSPECIFIED, group.into(), message)
        }
    }
}

/// Tells everybody that `address` is at `mac` now.
///
/// IPv4 has two ways of saying so, and there are systems that listen to only one of them.
pub(super) fn announcements(address: IpAddr, mac: Mac) -> Vec<Vec<u8>> {
    match address {
        IpAddr::V4(v4) => {
            vec![arp(ARP_REQUEST, mac, v4, Mac([0; 6]), v4), arp(ARP_REPLY, mac, v4, BROADCAST, v4)]
        }
        IpAddr::V6(v6) => {
            // Override: whoever knows another link-layer address is to forget it.
            const OVERRIDE: u8 = 0x20;
            // Option 2 of length 1 (times 8 bytes) is the target's link-layer address.
            let head = [NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
            let message = [&head[..], &v6.octets(), &[2, 1], &mac.0].concat();
            vec![icmpv6(mac, v6, ALL_NODES, message)]
        }
    }
}

/// Who says, in this frame, to have `address`.
pub(super) fn owner(frame: &[u8], address: IpAddr) -> Option<Mac> {
    let (header, payload) = frame.split_at_checked(14)?;
    let ethertype = u16::from_be_bytes(header[12..].try_into().ok()?);
    match address {
        IpAddr::V4(v4) if ethertype == ETHERTYPE_ARP => {
            let ours = payload.get(..8)?;
            let is_ip_over_ethernet = ours[..6] == [0, 1, 8, 0, 6, 4];
            let sender = payload.get(14..18)?;
            (is_ip_over_ethernet && sender == v4.octets()).then(|| mac(payload.get(8..14)?))?
        }
        IpAddr::V6(v6) if ethertype == ETHERTYPE_IPV6 => {
            let is_advertisement = frame.get(NEXT_HEADER_AT) == Some(&ICMPV6)
                && frame.get(ICMPV6_TYPE_AT) == Some(&NEIGHBOUR_ADVERTISEMENT)
                // A smaller hop limit means that it came from beyond a router.
                && payload.get(7) == Some(&255);
            let target = frame.get(ICMPV6_TYPE_AT + 8..ICMPV6_TYPE_AT + 24)?;
            (is_advertisement && target == v6.octets()).then(|| mac(&header[6..12]))?
        }
        _ => None,
    }
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}

fn arp(
    operation: u16,
    sender: Mac,
    sender_address: Ipv4Addr,
    target: Mac,
    target_address: Ipv4Addr,
) -> Vec<u8> {
    [
        &BROADCAST.0[..],
        &sender.0,
        &ETHERTYPE_ARP.to_be_bytes(),
        // Ethernet (1) and IPv4, with addresses of 6 and 4 bytes.
        &[0, 1, 8, 0, 6, 4],
        &operation.to_be_bytes(),
        &sender.0,
        &sender_address.octets(),
        &target.0,
        &target_address.octets(),
    ]
    .concat()
}

/// A frame with an ICMPv6 message to a multicast group, its checksum filled in.
fn icmpv6(sender: Mac, from: Ipv6Addr, group: Ipv6Addr, mut message: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX).to_be_bytes();
    let pseudo =
        [&from.octets()[..], &group.octets(), &[0, 0], &length, &[0, 0, 0, ICMPV6], &message].concat();
    message[2..4].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    let [.., a, b, c, d] = group.octets();
    [
        &[0x33, 0x33, a, b, c, d][..],
        &sender.0,
        &ETHERTYPE_IPV6.to_be_bytes(),
        &[0x60, 0, 0, 0],
        &length,
        &[ICMPV6, 255],
        &from.octets(),
        &group.octets(),
        &message,
    ]
    .concat()
}

/// The internet checksum (RFC 1071).
pub(super) fn checksum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // Folded above, so it fits.
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OURS: Mac = Mac([2, 0, 0, 0, 0, 0xa]);

    #[test]
    fn an_arp_probe_is_as_rfc_5227_says() {
        let frame = probe("10.20.0.11".parse().unwrap(), OURS);
        let expected =
            "ffffffffffff 02000000000a 0806 0001 0800 06 04 0001 02000000000a 00000000 000000000000 0a14000b";
        assert_eq!(hex(&frame), expected.replace(' ', ""));
        assert_eq!(owner(&frame, "10.20.0.11".parse().unwrap()), None, "a probe claims nothing");
    }

    #[test]
    fn a_solicitation_goes_to_the_solicited_node_group() {
        let frame = probe("fd00::12:3456".parse().unwrap(), OURS);
        assert_eq!(&frame[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        assert_eq!(frame[38..54], "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap().octets());
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn addresses() -> impl Strategy<Value = IpAddr> {
        prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from),]
    }

    proptest! {
        #[test]
        fn who_announces_is_the_owner(address in addresses(), other in addresses(), mac in any::<[u8; 6]>()) {
            for frame in announcements(address, Mac(mac)) {
                prop_assert_eq!(owner(&frame, address), Some(Mac(mac)));
                if other != address {
                    prop_assert_eq!(owner(&frame, other), None);
                }
            }
        }

        #[test]
        fn a_checksum_makes_its_message_sum_up_to_zero(address in any::<[u8; 16]>(), mac in any::<[u8; 6]>()) {
            let address = IpAddr::from(address);
            for frame in announcements(address, Mac(mac)).into_iter().chain([probe(address, Mac(mac))]) {
                let length = [0, 0, frame[18], frame[19], 0, 0, 0, ICMPV6];
                prop_assert_eq!(checksum(&[&frame[22..54], &length, &frame[54..]].concat()), 0);
            }
        }

        #[test]
        fn whatever_frame_comes_the_parser_does_not_panic(
            frame in prop::collection::vec(any::<u8>(), 0..100),
            ethertype in prop_oneof![Just(ETHERTYPE_ARP), Just(ETHERTYPE_IPV6)],
            address in addresses(),
        ) {
            owner(&frame, address);
            let mut likely = frame;
            if let Some(place) = likely.get_mut(12..14) {
                place.copy_from_slice(&ethertype.to_be_bytes());
            }
            owner(&likely, address);
        }
    }
}
