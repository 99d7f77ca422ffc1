//! Addresses that no client can have. They keep a rule that lets nobody in from being without clients, which
//! ONTAP refuses, and they carry an epoch where a successor and a person can read it.

use std::net::{IpAddr, Ipv4Addr};

use recovery::model::Epoch;

/// TEST-NET-1, -2 and -3 (RFC 5737), which are set aside for documents and routed nowhere: one digit of the
/// epoch each.
const NETS: [[u8; 3]; 3] = [[192, 0, 2], [198, 51, 100], [203, 0, 113]];

/// The last byte is from 1 to 254, so that it is a host's on any network.
const BASE: u64 = 254;

/// The three addresses that stand for an epoch. They repeat after 16,387,064 of them.
pub(super) fn of(epoch: Epoch) -> [IpAddr; 3] {
    let mut rest = epoch.0;
    NETS.map(|[a, b, c]| {
        let digit = u8::try_from(rest % BASE).unwrap_or_default();
        rest /= BASE;
        Ipv4Addr::new(a, b, c, digit + 1).into()
    })
}

/// Whether no client can have this address: in an export rule it is one digit of the epoch that fenced, and
/// lets nobody in.
pub fn is_mark(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V4(v4) if NETS.contains(&[v4.octets()[0], v4.octets()[1], v4.octets()[2]]))
}

/// The epoch that these addresses stand for, if they stand for one.
pub(super) fn epoch(marks: &[IpAddr]) -> Option<Epoch> {
    let mut epoch = 0;
    for net in NETS.iter().rev() {
        let digits = marks.iter().filter_map(|mark| match mark {
            IpAddr::V4(v4) if v4.octets()[..3] == net[..] => Some(u64::from(v4.octets()[3])),
            _ => None,
        });
        let digits: Vec<u64> = digits.collect();
        let [digit] = digits[..] else { return None };
        epoch = epoch * BASE + digit.checked_sub(1)?;
    }
    Some(Epoch(epoch))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_epoch_reads_back_in_whatever_order_ontap_lists_it(
            number in 0_u64..16_387_064, order in Just([0, 1, 2]).prop_shuffle()
        ) {
            let marks = of(Epoch(number));
            prop_assert!(marks.iter().all(is_mark));
            prop_assert_eq!(epoch(&order.map(|at| marks[at])), Some(Epoch(number)));
        }
    }

    #[test]
    fn what_is_no_epoch_is_not_read_as_one() {
        let [first, second, third] = of(Epoch(7));
        assert_eq!([first.to_string(), second.to_string()], ["192.0.2.8", "198.51.100.1"]);
        assert_eq!(epoch(&[first, second]), None);
        assert_eq!(epoch(&[first, first, second, third]), None);
        assert_eq!(epoch(&["192.0.2.0".parse().unwrap(), second, third]), None);
        assert!(!is_mark(&"10.0.0.1".parse().unwrap()));
        assert!(!is_mark(&"192.0.3.1".parse().unwrap()));
    }
}
