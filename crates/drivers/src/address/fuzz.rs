//! Fuzz targets: see [`kafka::fuzz`].

use std::net::IpAddr;

use super::cidr::Cidr;
use super::neighbour::{announcements, owner};

/// Only a frame that has the address in it says who owns it, and whoever announces the address owns it.
/// Input: an IPv6 address, the first four bytes of which are the IPv4 address too, and a frame.
pub fn neighbour(bytes: &[u8]) {
    let Some((address, frame)) = bytes.split_first_chunk::<16>() else { return };
    let [a, b, c, d, ..] = *address;
    for (address, octets) in
        [(IpAddr::from(*address), &address[..]), (IpAddr::from([a, b, c, d]), &address[..4])]
    {
        if let Some(mac) = owner(frame, address) {
            assert!(frame.windows(octets.len()).any(|window| window == octets));
            for announcement in announcements(address, mac) {
                assert_eq!(owner(&announcement, address), Some(mac));
            }
        }
    }
    if let Ok(text) = std::str::from_utf8(frame)
        && let Ok(cidr) = text.parse::<Cidr>()
    {
        assert_eq!(cidr.to_string().parse(), Ok(cidr));
    }
}
