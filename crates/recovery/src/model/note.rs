//! What was found or done, and what was proven.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::HostName;

/// What a step found or did, kept in the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// One line for people.
    pub text: String,
    /// What is no error and probably not meant: `check` warns of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What was read, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
}

impl Note {
    /// A note without details.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A note that says nothing but a warning.
    pub fn warning(why: impl Into<String>) -> Self {
        Self::default().warn([why.into()])
    }

    /// Adds warnings.
    #[must_use]
    pub fn warn(mut self, why: impl IntoIterator<Item = String>) -> Self {
        self.warnings.extend(why);
        self
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.details.insert(name.to_owned(), value.to_string());
        self
    }

    /// Two notes in one.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        if !self.text.is_empty() && !other.text.is_empty() {
            self.text.push_str("; ");
        }
        self.text.push_str(&other.text);
        self.warnings.extend(other.warnings);
        self.details.extend(other.details);
        self
    }
}

/// The line for people, with its warnings.
impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        for (index, warning) in self.warnings.iter().enumerate() {
            let apart = if index == 0 && self.text.is_empty() { "" } else { "; " };
            write!(f, "{apart}WARNING: {warning}")?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_told_after_the_text_and_kept_through_a_journal() {
        let both = Note::new("mounted").with("dir", "/a").and(Note::warning("it is slow"));
        assert_eq!(both.to_string(), "mounted; WARNING: it is slow");
        assert_eq!(Note::warning("it is slow").to_string(), "WARNING: it is slow");
        assert_eq!(Note::default().and(Note::new("mounted")).to_string(), "mounted");
        let written = serde_json::to_string(&both).unwrap();
        assert_eq!(serde_json::from_str::<Note>(&written).unwrap(), both);
        // An agent of before wrote none.
        let old: Note = serde_json::from_str(r#"{"text":"mounted","details":{"dir":"/a"}}"#).unwrap();
        assert_eq!(old, Note::new("mounted").with("dir", "/a"));
        assert!(!serde_json::to_string(&old).unwrap().contains("warnings"), "nor is none written");
    }
}
