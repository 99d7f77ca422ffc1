//! `understudy ontap …`: its commands and their options.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};

/// What to do with the storage.
#[derive(Debug, Subcommand)]
pub enum Ontap {
    /// Is the storage set up as Kafka on NFS needs it, and what does efficiency save? Reads the volumes of
    /// every `[broker.storage.grant]`
    Audit,
    /// Show what is missing for brokers' volumes; with `--apply` asks and MAKES it. Deletes and shrinks
    /// nothing
    Provision(Box<Provision>),
    /// Does ONTAP do as the fence assumes? Reads; with `--try` MAKES a scratch volume, fences this host from
    /// it, and deletes it. See docs/ontap-assumptions.md
    Verify(Verify),
    /// Was a command of its own: `audit` tells it
    #[command(hide = true)]
    Efficiency,
}

/// Options of `ontap verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// Only this SVM
    #[arg(long, value_name = "NAME")]
    pub svm: Option<String>,
    /// Try every right that a takeover needs, on a volume and an export policy `understudy_verify`
    #[arg(long, requires = "aggregate")]
    pub r#try: bool,
    /// Where the scratch volume lies (1 GiB)
    #[arg(long, value_name = "NAME", requires = "try")]
    pub aggregate: Option<String>,
    /// The account that makes and deletes the scratch volume; the fence is tried with its own
    /// [default: the one that the configuration names]
    #[arg(long, value_name = "NAME", requires = "try", requires = "password_file")]
    pub user: Option<String>,
    /// A file with its password
    #[arg(long, value_name = "PATH", requires = "user")]
    pub password_file: Option<PathBuf>,
    /// Mount the scratch volume on this host, by this address of the SVM, and see that it cannot write once
    /// it is fenced. Needs root and the NFS client
    #[arg(long, value_name = "ADDRESS", requires = "try")]
    pub mount: Option<IpAddr>,
    /// Write everything that was found here, as JSON: to be attached to a bug
    #[arg(long, value_name = "PATH")]
    pub report: Option<PathBuf>,
    /// Do not ask
    #[arg(long, requires = "try")]
    pub yes: bool,
}

/// Options of `ontap provision`.
#[derive(Debug, Args)]
pub struct Provision {
    /// ONTAP's management LIF, such as `https://cluster1-mgmt`
    /// [default: the one that the configuration names]
    #[arg(long, value_name = "URL", requires = "user", requires = "password_file")]
    pub url: Option<String>,
    /// The account; it needs more rights than the one that fences (see docs/ontap.md)
    #[arg(long, value_name = "NAME", requires = "url")]
    pub user: Option<String>,
    /// A file with its password
    #[arg(long, value_name = "PATH", requires = "url")]
    pub password_file: Option<PathBuf>,
    /// A file with the authority that ONTAP's certificate must come from
    /// [default: those that this host trusts]
    #[arg(long, value_name = "PATH", requires = "url", conflicts_with = "pin")]
    pub ca: Option<PathBuf>,
    /// SHA-256 of ONTAP's certificate, as `openssl x509 -fingerprint -sha256` prints it
    #[arg(long, value_name = "HEX", requires = "url")]
    pub pin: Option<String>,
    /// The SVM [default: the one that the configuration names]
    #[arg(long, value_name = "NAME")]
    pub svm: Option<String>,
    /// Where new volumes lie. Several: FlexVols in turn, a FlexGroup on all of them
    #[arg(long = "aggregate", value_name = "NAME", required = true)]
    pub aggregates: Vec<String>,
    /// A broker's node id, and every address by which its owner mounts the volumes. One for each broker
    #[arg(long = "broker", value_name = "ID=ADDRESS[,ADDRESS]", required = true)]
    pub brokers: Vec<BrokerOwner>,
    /// How many volumes each broker gets
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub volumes_per_broker: u16,
    /// Of each volume, such as `500GiB` or `2TiB`; ONTAP's GB and TB are these too (powers of 1024)
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub size: u64,
    /// FlexVol: one aggregate; FlexGroup: many constituents
    #[arg(long, value_enum, default_value_t)]
    pub style: Style,
    /// Constituents of a FlexGroup on each aggregate. TR-4947 uses 8
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub constituents_per_aggregate: u32,
    /// Names of the volumes, and their junctions: `{broker}` is the node id, `{n}` counts from 1
    #[arg(long, value_name = "PATTERN", default_value = "kafka{broker}_{n}")]
    pub name: String,
    /// Names of the export policies
    #[arg(long, value_name = "PATTERN", default_value = "kafka{broker}")]
    pub policy: String,
    /// Do it. Without, only the plan is shown
    #[arg(long)]
    pub apply: bool,
    /// Do not ask
    #[arg(long, requires = "apply")]
    pub yes: bool,
}

/// What new volumes are made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Style {
    /// One piece, on one aggregate.
    #[default]
    Flexvol,
    /// Many constituents, on every aggregate that is named.
    Flexgroup,
}

/// `ID=ADDRESS[,ADDRESS]`: a broker, and by which addresses its owner mounts its volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerOwner {
    /// The broker's node id.
    pub broker: i32,
    /// The owner's addresses, each once; at least one.
    pub addresses: Vec<IpAddr>,
}

impl FromStr for BrokerOwner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let example = "write it as 1=10.0.0.11, or 1=10.0.0.11,10.0.1.11";
        let (id, list) = text.split_once('=').ok_or_else(|| format!("has no `=`; {example}"))?;
        let broker = id.trim().parse().ok().filter(|id: &i32| *id >= 0);
        let broker = broker.ok_or_else(|| format!("`{id}` is no node id; {example}"))?;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for word in list.split(',').map(str::trim) {
            let address: IpAddr =
                word.parse().map_err(|_| format!("`{word}` is no single IP address; {example}"))?;
            let address = address.to_canonical();
            if address.is_unspecified() || address.is_multicast() || ontap::is_mark(&address) {
                return Err(format!("`{word}` is an address that no host can have"));
            }
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(Self { broker, addresses })
    }
}

/// A size in powers of 1024, as ONTAP counts them.
fn bytes(text: &str) -> Result<u64, String> {
    let example = "write it as 500GiB or 2TiB";
    let digits = text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.trim()[digits.len()..].to_ascii_lowercase();
    let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        "" if unit.is_empty() || unit == "b" => 0,
        _ => return Err(format!("`{unit}` is no unit; {example}")),
    };
    let number: u64 =
        digits.trim().parse().map_err(|_| format!("`{digits}` is no whole number; {example}"))?;
    number
        .checked_mul(1 << shift)
        .filter(|size| *size > 0)
        .ok_or_else(|| format!("is out of range; {example}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_in_powers_of_1024() {
        for (text, expected) in [
            ("1GiB", Some(1 << 30)),
            ("2TB", Some(2 << 40)),
            ("500g", Some(500 << 30)),
            ("20 MiB", Some(20 << 20)),
            ("1073741824", Some(1 << 30)),
            ("4096b", Some(4096)),
            ("0GiB", None),
            ("1.5TiB", None),
            ("GiB", None),
            ("1XB", None),
            ("99999999PiB", None),
        ] {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn an_owner_has_single_addresses() {
        let owner: BrokerOwner = "7=10.0.0.1, fd00::1,10.0.0.1".parse().unwrap();
        assert_eq!((owner.broker, owner.addresses.len()), (7, 2));
        for (text, why) in [
            ("7", "has no `=`"),
            ("x=10.0.0.1", "no node id"),
            ("-1=10.0.0.1", "no node id"),
            ("1=10.0.0.0/24", "no single IP address"),
            ("1=kafka-1", "no single IP address"),
            ("1=", "no single IP address"),
            ("1=0.0.0.0", "no host can have"),
            ("1=192.0.2.1", "no host can have"),
        ] {
            let error = text.parse::<BrokerOwner>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
