//! One record of the topic: a proposal, with a key of its own so that compaction never drops what counts.
//!
//! ```text
//! epoch/<broker>/<epoch>/<id>        a claim, or what is added to an epoch's journal at once
//! decision/<broker>/<host>/<slot>    a decision; the slots are a ring, so that compaction keeps the newest
//! order/<id>                         an entry of the order book
//! probe/cell/<name>/<version>/<id>   the next version of a cell
//! ```
//!
//! The value is JSON: `{"v": 1, "id": "…", "what": {…}}`.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use recovery::event::Event;
use recovery::format;
use recovery::journal::Record;
use recovery::model::{BrokerId, Epoch, HostName, Order};
use recovery::ports::Cell;

/// The version of the format that this program writes.
const VERSION: u32 = 1;
/// What a key begins with that carries nothing: `check` writes there.
pub(super) const PROBE: &str = "probe/";
/// What the key of a cell begins with. It is below [`PROBE`], so that an agent older than cells passes over
/// it.
pub(super) const CELL: &str = "probe/cell/";

/// What one record proposes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// The next records of an epoch's journal; the claim, alone, is the first.
    Records { broker: BrokerId, epoch: Epoch, records: Vec<Record> },
    /// A decision, in its place on the ring of its host.
    Decision { broker: BrokerId, slot: u32, event: Box<Event> },
    /// An order.
    Order(Order),
    /// The next version of a cell.
    Cell { name: String, cell: Cell },
}

/// A record's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Proposal {
    v: u32,
    /// By which whoever proposed it knows it again.
    pub(super) id: String,
    pub(super) what: What,
}

/// What is wrong with a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It is none of ours, or not where it belongs.
    Foreign(String),
    /// A newer understudy has written it.
    Newer(String),
}

/// The version alone, which is read first: a newer format may look like anything else.
#[derive(Deserialize)]
struct Version {
    v: u32,
}

impl Proposal {
    /// A proposal of `host` that is like no other.
    pub(super) fn new(host: &HostName, what: What) -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let (pid, n) = (process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let id = format!("{host}-{pid}-{}-{n}", Timestamp::now().as_nanosecond());
        Self { v: VERSION, id, what }
    }

    /// The record's key.
    pub(super) fn key(&self) -> String {
        match &self.what {
            What::Records { broker, epoch, .. } => format!("epoch/{broker}/{epoch}/{}", self.id),
            What::Decision { broker, slot, event } => format!("decision/{broker}/{}/{slot}", event.host),
            What::Order(_) => format!("order/{}", self.id),
            What::Cell { name, cell } => format!("{CELL}{name}/{}/{}", cell.version, self.id),
        }
    }

    /// The record's value.
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        format::write(self).map(String::into_bytes)
    }

    /// Understands a record.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn decode(key: &str, value: &[u8]) -> Result<Self, Flaw> {
        let foreign = |error| Flaw::Foreign(format!("this is not a record of the ledger ({error})"));
        let Version { v } = serde_json::from_slice(value).map_err(foreign)?;
        if v != VERSION {
            return Err(Flaw::Newer(format!("it has format {v}, and this understudy knows {VERSION}")));
        }
        let proposal: Self = format::read(value).map_err(|error| Flaw::Newer(error.to_string()))?;
        // Under another key compaction might drop it, or drop a record that counts for its sake.
        if proposal.key() != key {
            return Err(Flaw::Foreign(format!("its content belongs under the key {}", proposal.key())));
        }
        Ok(proposal)
    }
}

/// What a record is about, by its key alone: what is damaged when the value is not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    Epochs(BrokerId),
    Decisions(BrokerId),
    Orders,
    /// It may be about anything.
    Everything,
}

impl Scope {
    pub(super) fn of(key: &str) -> Self {
        let mut parts = key.split('/');
        let kind = parts.next();
        let broker = parts.next().and_then(|id| id.parse().ok()).map(BrokerId);
        match (kind, broker) {
            (Some("epoch"), Some(broker)) => Self::Epochs(broker),
            (Some("decision"), Some(broker)) => Self::Decisions(broker),
            (Some("order"), _) => Self::Orders,
            _ => Self::Everything,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use recovery::model::Instruction;

    fn proposal() -> Proposal {
        let at = Timestamp::UNIX_EPOCH;
        let order = Order { at, host: "a".into(), who: "ada".to_owned(), what: Instruction::Rejoined };
        Proposal::new(&"a".into(), What::Order(order))
    }

    #[test]
    fn what_is_written_is_read() {
        let proposal = proposal();
        let value = proposal.encode().unwrap();
        assert_eq!(Proposal::decode(&proposal.key(), &value), Ok(proposal));
    }

    #[test]
    fn the_format_is_what_the_documentation_says() {
        let proposal = Proposal { id: "a-1-2-3".to_owned(), ..proposal() };
        assert_eq!(proposal.key(), "order/a-1-2-3");
        let value = String::from_utf8(proposal.encode().unwrap()).unwrap();
        let what = r#"{"at":"1970-01-01T00:00:00Z","host":"a","who":"ada","order":"rejoined"}"#;
        assert_eq!(value, format!(r#"{{"v":1,"id":"a-1-2-3","what":{{"order":{what}}}}}"#));
    }

    #[test]
    fn no_two_proposals_share_a_key() {
        assert_ne!(proposal().key(), proposal().key());
    }

    #[test]
    fn each_flaw_has_its_kind() {
        let value = String::from_utf8(proposal().encode().unwrap()).unwrap();
        let newer = value.replace("\"v\":1", "\"v\":2");
        let stranger = r#"{"v":1,"id":"x","what":{"prophecy":{}}}"#;
        let needing = value.replace("\"v\":1", "\"v\":1,\"needs\":99");
        for (value, is_newer, why) in [
            ("junk", false, "not a record of the ledger"),
            (&newer, true, "has format 2"),
            (&value, false, "belongs under the key order/a-"),
            (stranger, true, "does not know what it says"),
            (&needing, true, "needs format 99"),
        ] {
            let (newer, said) = match Proposal::decode("order/x", value.as_bytes()).unwrap_err() {
                Flaw::Newer(said) => (true, said),
                Flaw::Foreign(said) => (false, said),
            };
            assert_eq!(newer, is_newer, "{said}");
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn a_key_says_what_is_damaged() {
        assert_eq!(Scope::of("epoch/3/1/x"), Scope::Epochs(BrokerId(3)));
        assert_eq!(Scope::of("decision/3/a/0"), Scope::Decisions(BrokerId(3)));
        assert_eq!(Scope::of("order/x"), Scope::Orders);
        for key in ["", "epoch", "epoch/x/1", "hello"] {
            assert_eq!(Scope::of(key), Scope::Everything, "{key}");
        }
    }
}
