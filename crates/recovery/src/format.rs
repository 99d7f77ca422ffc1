//! What programs of different versions write to one ledger, and read in it. Pure.
//!
//! Hosts are upgraded one by one, so an older program meets what a newer one has written. Such a record is
//! not damaged, and nothing may be restored or moved for its sake: the older program says that this host is
//! to be upgraded, and does nothing about what it cannot read. It never guesses, for an unknown step may be
//! the one that made another host a writer.
//!
//! Every value is a JSON object, or a list of objects. One that needs a newer reader than the first says so
//! by the member `needs`. (A new member alone would be passed over without a word.)

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::Distrust;
use crate::ports::LedgerError;

/// What this program can read. Raised by every change that an older program would misread or not understand:
/// a new step, a new kind of entry or order, a member that changes what the others mean.
const READS: u32 = 1;

/// What a reader needs for that which this program writes. At most [`READS`]; raised with it, unless the
/// change is written only once every host can read it.
const WRITES: u32 = 1;

/// Why a value cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NotRead {
    /// It says so itself.
    #[error("it needs format {needs}, and this understudy reads up to {READS}")]
    Newer {
        /// What it needs.
        needs: u32,
    },
    /// It is whole, and says something that this program does not know.
    #[error("this understudy does not know what it says ({0})")]
    Unknown(#[source] serde_json::Error),
    /// It is not what any program has written.
    #[error("it is not JSON ({0})")]
    Garbled(#[source] serde_json::Error),
}

impl NotRead {
    /// As an error of the ledger. `remedy`: what to do if it is damaged.
    #[must_use]
    pub fn at(&self, place: impl Into<String>, remedy: &str) -> LedgerError {
        match self {
            Self::Garbled(_) => {
                LedgerError::Damaged { place: place.into(), why: format!("{self}; {remedy}") }
            }
            Self::Newer { .. } | Self::Unknown(_) => newer(place, self),
        }
    }
}

/// A newer program has written what is at `place`.
#[must_use]
pub fn newer(place: impl Into<String>, why: impl std::fmt::Display) -> LedgerError {
    let why = format!(
        "{} was written by a newer understudy: upgrade this host, which does nothing about it until then. Do not \
         restore or move anything ({why})",
        place.into()
    );
    LedgerError::Distrusted { distrust: Distrust::LedgerNewer, why }
}

/// Reads a value.
///
/// # Errors
/// When it was written by a newer program, or is damaged.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, NotRead> {
    let needs = needed(text)?;
    if needs > READS {
        return Err(NotRead::Newer { needs });
    }
    serde_json::from_slice(text).map_err(NotRead::Unknown)
}

/// The newest reader that any part of it asks for.
fn needed(text: &[u8]) -> Result<u32, NotRead> {
    let parts = match text.first() {
        Some(b'[') => serde_json::from_slice::<Vec<Part>>(text),
        _ => serde_json::from_slice::<Part>(text).map(|part| vec![part]),
    };
    let parts = parts
        .map_err(|error| if error.is_data() { NotRead::Unknown(error) } else { NotRead::Garbled(error) })?;
    Ok(parts.iter().map(|part| part.needs).max().unwrap_or(FIRST))
}

/// The format of what does not say which it needs.
const FIRST: u32 = 1;

fn first() -> u32 {
    FIRST
}

/// One object of a value, of which nothing else is looked at.
#[derive(Deserialize)]
struct Part {
    #[serde(default = "first")]
    needs: u32,
}

/// Writes a value.
///
/// # Errors
/// When it is none that JSON has.
pub fn write<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<String> {
    if WRITES > FIRST {
        serde_json::to_string(&stamped(value, WRITES)?)
    } else {
        serde_json::to_string(value)
    }
}

/// The value, with what it needs in every part.
fn stamped<T: Serialize + ?Sized>(value: &T, needs: u32) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(value)?;
    let parts = match &mut value {
        Value::Array(parts) => parts.as_mut_slice(),
        whole => std::slice::from_mut(whole),
    };
    for part in parts.iter_mut().filter_map(Value::as_object_mut) {
        part.insert("needs".to_owned(), needs.into());
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Instruction, Order};

    fn order() -> Order {
        let at = jiff::Timestamp::UNIX_EPOCH;
        Order { at, host: "a".into(), who: "ada".to_owned(), what: Instruction::Rejoined }
    }

    #[test]
    fn what_is_written_is_read() {
        let text = write(&[order()]).unwrap();
        assert_eq!(read::<Vec<Order>>(text.as_bytes()).unwrap(), [order()]);
        assert!(!text.contains("needs"), "the first format is what does not say so: {text}");
    }

    #[test]
    fn what_needs_a_newer_reader_is_refused_though_it_looks_familiar() {
        for (needs, reads) in [(1, true), (READS, true), (READS + 1, false), (u32::MAX, false)] {
            for whole in [stamped(&order(), needs).unwrap(), stamped(&[order(), order()], needs).unwrap()] {
                let text = whole.to_string();
                let ours = match whole.is_array() {
                    true => read::<Vec<Order>>(text.as_bytes()).map(drop),
                    false => read::<Order>(text.as_bytes()).map(drop),
                };
                assert_eq!(ours.is_ok(), reads, "{text}");
                assert!(
                    reads || matches!(ours, Err(NotRead::Newer { needs: told }) if told == needs),
                    "{ours:?}"
                );
            }
        }
    }

    #[test]
    fn one_part_that_needs_a_newer_reader_is_enough() {
        let text = format!("[{},{}]", write(&order()).unwrap(), stamped(&order(), READS + 1).unwrap());
        assert!(matches!(read::<Vec<Order>>(text.as_bytes()), Err(NotRead::Newer { .. })));
    }

    #[test]
    fn what_is_whole_and_unknown_is_newer_and_what_is_no_json_is_damaged() {
        let text = write(&order()).unwrap();
        let unknown = text.replace("rejoined", "prophesied");
        for (text, label) in [
            (unknown.as_str(), Some("ledger_newer")),
            ("[3]", Some("ledger_newer")),
            (r#"{"needs":"much"}"#, Some("ledger_newer")),
            ("", None),
            ("{", None),
            (&text[..text.len() - 1], None),
            ("nonsense", None),
        ] {
            let error = match text.starts_with('[') {
                true => read::<Vec<Order>>(text.as_bytes()).unwrap_err(),
                false => read::<Order>(text.as_bytes()).unwrap_err(),
            };
            let error = error.at("here", "restore it");
            let distrust = match &error {
                LedgerError::Distrusted { distrust, .. } => Some(distrust.label()),
                _ => None,
            };
            assert_eq!(distrust, label, "{text}: {error}");
            let said = error.to_string();
            assert_eq!(said.contains("upgrade this host"), label.is_some(), "{said}");
            assert_eq!(said.contains("restore it"), label.is_none(), "{said}");
        }
    }
}
