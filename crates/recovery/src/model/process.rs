//! A broker's process.

use serde::{Deserialize, Serialize};

/// What the broker's process does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "process", rename_all = "snake_case")]
pub enum ProcessState {
    /// No process of this broker was started here, or it was stopped on request.
    Absent,
    /// It runs.
    Running {
        /// Its process id.
        pid: i32,
    },
    /// It ended by itself.
    Exited {
        /// Exit status where known, and the last lines of its output.
        why: String,
    },
}
