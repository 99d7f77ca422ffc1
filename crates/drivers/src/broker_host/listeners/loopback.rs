//! Whether a host of a listener is this host's loopback, however it is spelled.
//!
//! DNS is not asked: a takeover must not wait for it. `/etc/hosts` is, for Kafka binds what that says.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

/// Where the names of this host's own addresses stand.
const HOSTS: &str = "/etc/hosts";

/// Whether `host` is at loopback: by its address, by RFC 6761, by the names of the distributions' hosts files, or by this
/// host's own `/etc/hosts`.
pub(in crate::broker_host) fn is_loopback(host: &str) -> bool {
    is_loopback_by(host, || fs::read_to_string(HOSTS).unwrap_or_default())
}

fn is_loopback_by(host: &str, hosts: impl Fn() -> String) -> bool {
    if host.is_empty() {
        return false;
    }
    // The C library takes a leading zero for octal, and Java does not: either may bind it.
    let spelled = address(host).into_iter().chain(in_numbers(host, 10));
    let mut spelled = spelled.peekable();
    if spelled.peek().is_some() {
        return spelled.any(|address| address.to_canonical().is_loopback());
    }
    let host = host.trim_end_matches('.');
    is_well_known(&host.to_ascii_lowercase()) || is_at_loopback(&hosts(), host)
}

fn is_well_known(host: &str) -> bool {
    let known = [
        "localhost.localdomain",
        "localhost4",
        "localhost4.localdomain4",
        "localhost6",
        "localhost6.localdomain6",
        "ip6-localhost",
        "ip6-loopback",
    ];
    host == "localhost" || host.ends_with(".localhost") || known.contains(&host)
}

/// Whether a hosts file has the name at loopback. Debian's has the host's own name there, and Kafka binds that.
fn is_at_loopback(hosts: &str, name: &str) -> bool {
    hosts.lines().any(|line| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let at = words.next().and_then(address);
        at.is_some_and(|at| at.is_loopback()) && words.any(|own| own.eq_ignore_ascii_case(name))
    })
}

/// The address that `host` is, in any spelling that the C library takes: `127.1`, `0x7f.1` and `2130706433` are 127.0.0.1.
pub(super) fn address(host: &str) -> Option<IpAddr> {
    let plain = host.split_once('%').map_or(host, |(address, _zone)| address);
    let address = plain.parse::<IpAddr>().ok().or_else(|| in_numbers(host, 8));
    address.map(|address| address.to_canonical())
}

/// One to four numbers, of which the last fills what is left; with a leading zero in the base `zero`.
fn in_numbers(host: &str, zero: u32) -> Option<IpAddr> {
    let number = |text: &str| match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if text.starts_with('0') && text.len() > 1 => u64::from_str_radix(text, zero).ok(),
        None => text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?,
    };
    let numbers = host.split('.').map(number).collect::<Option<Vec<_>>>()?;
    let (last, bytes) = numbers.split_last().filter(|(_, bytes)| bytes.len() < 4)?;
    let room = 8 * (4 - bytes.len());
    if bytes.iter().any(|byte| *byte > 255) || *last >> room != 0 {
        return None;
    }
    let high = bytes.iter().fold(0, |address, byte| address << 8 | byte);
    u32::try_from(high << room | last).ok().map(|bits| Ipv4Addr::from(bits).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_many_spellings() {
        let hosts = "127.0.0.1 localhost\n127.0.1.1\tkafka-1.example KAFKA-1 # own name\n\
                     10.0.0.9 kafka-9 # 127.0.0.1\n#127.0.0.1 kafka-8\n::1 six\n";
        let is_loopback = |host: &str| is_loopback_by(host, || hosts.to_owned());
        for host in [
            "127.0.0.1",
            "127.9.9.9",
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f.1",
            "0x7F000001",
            "0177.0.0.1",
            "0127.0.0.1",
            "::1",
            "::1%lo",
            "::ffff:127.0.0.1",
            "localhost",
            "LOCALHOST.",
            "a.localhost",
            "localhost4",
            "ip6-loopback",
            "kafka-1",
            "Kafka-1.example",
            "kafka-1.",
            "six",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "0.0.0.0",
            "::",
            "10.0.0.7",
            "10.1",
            "127.0.0.0.1",
            "127.256.0.1",
            "128.1",
            "4294967296",
            "0",
            "kafka-9",
            "kafka-8",
            "kafka-7",
            "local",
            "127.0.0.1.example",
            "fe80::1%eth0",
            "own",
            "0x",
            "127.",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn addresses_are_read_as_the_c_library_reads_them() {
        for (text, means) in
            [("10.1", "10.0.0.1"), ("0", "0.0.0.0"), ("fe80::1%eth0", "fe80::1"), ("1.2.3", "1.2.0.3")]
        {
            assert_eq!(address(text), Some(means.parse().unwrap()), "{text}");
        }
        for text in ["kafka", "1.2.3.4.5", "1.2.3.", "", "256.1.1.1", "1.2.65536", "+1", "08"] {
            assert_eq!(address(text), None, "{text}");
        }
    }
}
