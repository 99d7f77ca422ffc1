//! An address with the length of its network's prefix.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address that one host can have, and its network: `10.20.0.11/24`, `fd00::11/64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cidr {
    pub(super) address: IpAddr,
    pub(super) prefix: u8,
}

impl Cidr {
    /// Whether `other` is in its network.
    pub(super) fn has(&self, other: IpAddr) -> bool {
        self.address.is_ipv4() == other.is_ipv4()
            && self.network() == Self { address: other, prefix: self.prefix }.network()
    }

    /// Whether its network has no other address.
    pub(super) fn is_single(&self) -> bool {
        self.prefix == if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// The first address of its network, with the prefix.
    pub(super) fn network(&self) -> Self {
        let prefix = u32::from(self.prefix);
        let address = match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix)).unwrap_or(0);
                IpAddr::V4((v4.to_bits() & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix)).unwrap_or(0);
                IpAddr::V6((v6.to_bits() & mask).into())
            }
        };
        Self { address, prefix: self.prefix }
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("`{text}` is not address/prefix, such as 10.20.0.11/24 or fd00::11/64");
        let (address, prefix) = text.split_once('/').ok_or_else(error)?;
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let prefix = prefix.parse().map_err(|_| error())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix == 0 || prefix > most {
            return Err(format!("`{text}` has a prefix that is not within 1 and {most}"));
        }
        let shared = match address {
            IpAddr::V4(v4) => v4.is_broadcast() || v4.is_link_local(),
            // The same link-local address is another one on every link: clients cannot be given it.
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        if shared || address.is_unspecified() || address.is_multicast() || address.is_loopback() {
            return Err(format!("`{text}` cannot be the address of one host that clients reach"));
        }
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_what_a_host_can_have_is_accepted() {
        for good in ["10.20.0.11/24", "10.20.0.11/32", "fd00::11/64"] {
            assert_eq!(good.parse::<Cidr>().unwrap().to_string(), good);
        }
        for bad in [
            "10.20.0.11",
            "10.20.0.11/33",
            "10.20.0.11/0",
            "fd00::1/129",
            "kafka-1/24",
            "10.20.0.11/+8x",
            "/24",
            "0.0.0.0/24",
            "127.0.0.1/8",
            "224.0.0.1/24",
            "255.255.255.255/32",
            "169.254.0.1/16",
            "fe80::1/64",
            "::/64",
            "::1/128",
            "ff02::1/64",
        ] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_network_has_its_addresses_and_no_others() {
        #[track_caller]
        fn has(cidr: &str, other: &str, expected: bool) {
            assert_eq!(cidr.parse::<Cidr>().unwrap().has(other.parse().unwrap()), expected, "{cidr} {other}");
        }
        has("10.20.0.31/24", "10.20.0.11", true);
        has("10.20.0.31/24", "10.20.1.11", false);
        has("10.20.0.31/32", "10.20.0.11", false);
        has("10.20.0.31/1", "127.255.255.254", true);
        has("fd00::31/64", "fd00::11", true);
        has("fd00::31/64", "fd00:0:0:1::11", false);
        has("fd00::31/64", "10.20.0.11", false);
        assert_eq!("10.20.5.31/22".parse::<Cidr>().unwrap().network().to_string(), "10.20.4.0/22");
        assert_eq!("fd00:1:2:3::4/48".parse::<Cidr>().unwrap().network().to_string(), "fd00:1:2::/48");
    }

    proptest! {
        #[test]
        fn whatever_text_comes_what_is_accepted_is_written_back_the_same(text in "\\PC{0,30}") {
            if let Ok(cidr) = text.parse::<Cidr>() {
                prop_assert_eq!(cidr.to_string().parse::<Cidr>().unwrap(), cidr);
            }
        }
    }
}
