//! What the objects of a ledger are called. Pure.
//!
//! ```text
//! LedgerIndex    <ledger>.epochs                             the newest epoch of every broker
//! LedgerJournal  <ledger>.broker-<id>.epoch-<n>.page-<k>     one takeover; page 0 begins with its claim
//! LedgerJournal  <ledger>.orders.page-<k>                    the order book
//! LedgerCell     <ledger>.cell.<name>                        which ledger it is, who has a host's name, …
//! LedgerCell     <ledger>.decisions.broker-<id>              what hosts decided about a broker, lately
//! ```

use recovery::model::{BrokerId, Epoch, HostName};

use crate::crd::Takeover;

/// A journal of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Journal {
    Epoch(BrokerId, Epoch),
    Orders,
}

impl Journal {
    /// What its pages say that it is.
    pub(super) fn of(self, by: &HostName) -> Takeover {
        match self {
            Self::Epoch(broker, epoch) => {
                Takeover { broker: Some(broker.0), epoch: Some(number(epoch)), by: Some(by.0.clone()) }
            }
            Self::Orders => Takeover::default(),
        }
    }

    /// Whether a page says that it is of this journal.
    pub(super) fn is(self, of: &Takeover) -> bool {
        match self {
            Self::Epoch(broker, epoch) => (of.broker, of.epoch) == (Some(broker.0), Some(number(epoch))),
            Self::Orders => *of == Takeover::default(),
        }
    }
}

/// An epoch as Kubernetes counts: in 63 bits.
pub(super) fn number(epoch: Epoch) -> i64 {
    i64::try_from(epoch.0).unwrap_or(i64::MAX)
}

/// The names of the objects of one ledger.
#[derive(Debug, Clone)]
pub(super) struct Names {
    ledger: String,
}

impl Names {
    pub(super) fn of(ledger: &str) -> Self {
        Self { ledger: ledger.to_owned() }
    }

    /// The value of the label that every object has.
    pub(super) fn ledger(&self) -> &str {
        &self.ledger
    }

    pub(super) fn index(&self) -> String {
        format!("{}.epochs", self.ledger)
    }

    pub(super) fn page(&self, journal: Journal, page: usize) -> String {
        match journal {
            Journal::Epoch(broker, epoch) => {
                format!("{}.broker-{broker}.epoch-{epoch}.page-{page}", self.ledger)
            }
            Journal::Orders => format!("{}.orders.page-{page}", self.ledger),
        }
    }

    pub(super) fn cell(&self, name: &str) -> String {
        format!("{}.cell.{}", self.ledger, escaped(name))
    }

    pub(super) fn decisions(&self, broker: BrokerId) -> String {
        format!("{}.decisions.broker-{broker}", self.ledger)
    }
}

/// The same as part of a DNS name, and never that of another: what it may not have, and `x`, become `x` and two digits.
fn escaped(name: &str) -> String {
    let last = name.len().saturating_sub(1);
    let mut escaped = String::with_capacity(name.len());
    for (n, byte) in name.bytes().enumerate() {
        match byte {
            b'x' => escaped.push_str("x78"),
            b'a'..=b'z' | b'0'..=b'9' => escaped.push(char::from(byte)),
            b'-' if n > 0 && n < last => escaped.push('-'),
            other => escaped.push_str(&format!("x{other:02x}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_names_and_differ() {
        let names = ["host-kafka.1", "host-kafka-1", "host-kafkax2e1", "host-Kafka.1", "home-3", "-a-", "é"];
        let cells: Vec<String> = names.iter().map(|name| escaped(name)).collect();
        assert_eq!(cells[..2], ["host-kafkax2e1", "host-kafka-1"]);
        for (n, cell) in cells.iter().enumerate() {
            assert!(cell.bytes().all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-')), "{cell}");
            assert!(!cell.starts_with('-') && !cell.ends_with('-'), "{cell}");
            assert!(!cells[..n].contains(cell), "{cell}");
        }
    }
}
