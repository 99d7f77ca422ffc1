//! Kafka's `.lock` in a log dir: who holds it, and when the storage grants it to nobody.

use std::path::PathBuf;
use std::time::Duration;

use super::human;

/// Kafka's `.lock` in a log dir, which somebody holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLock {
    /// The file.
    pub path: PathBuf,
    /// Who holds it, as far as the storage tells: `a client of the storage`, or `process 42 of this host`.
    pub by: String,
}

/// Why the storage may grant nobody a lock, although nobody seems to hold one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grace {
    /// What is not as usual, in the storage's own words.
    pub why: String,
    /// It has moved, and those who had locks may reclaim them first: how long that may last, from the move
    /// on. `None`: nothing has moved, and no time is known after which it ends.
    pub at_most: Option<Duration>,
}

impl std::fmt::Display for Grace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.at_most {
            Some(at_most) => {
                write!(f, "{}: for {} after such a move it grants no new lock", self.why, human(at_most))
            }
            None => f.write_str(&self.why),
        }
    }
}
