//! What was found or done, and what was proven.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::HostName;

/// What a step found or did, kept in the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// One line for people.
    pub text: String,
    /// What was read, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
}

impl Note {
    /// A note without details.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), details: BTreeMap::new() }
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.details.insert(name.to_owned(), value.to_string());
        self
    }
}

/// Proof that a host cannot write to a broker's log dirs. Made by drivers only, after reading back.
///
/// It is not `Deserialize` on purpose: a proof that was written down is history, not a proof.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Proof {
    /// The host that cannot write.
    pub host: HostName,
    /// The driver that read it back.
    pub by: String,
    /// What was read, for the journal.
    pub note: Note,
}
