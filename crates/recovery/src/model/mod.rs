//! The words of the domain: brokers, hosts, epochs, time, evidence, topology. Plain data, no I/O.

mod cell;
mod check;
mod cluster;
mod evidence;
mod lock;
mod note;
mod order;
mod partition;
mod phase;
mod prediction;
mod process;
mod standing;
mod topology;

use std::fmt;
use std::ops::Sub;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use cell::Cell;
pub use check::{Check, CheckSeen, Checked, Verdict};
pub use cluster::{Advertised, Reach, Standing, Unregistered};
pub use evidence::{
    CanaryOutcome, Candidate, Distrust, Evidence, Fact, LedgerReading, LocalProcess, LogTail, Machine,
    MachineState, NfsClientId, PeerSaw, PeerView, Place, ProbeOutcome, QuorumView, Unread, VolumeUse,
};
pub use lock::{Grace, HeldLock};
pub use note::{Note, Proof};
pub use order::{Acked, Instruction, Order, Orders};
pub use partition::{PartitionView, Replication};
pub use phase::Phase;
pub use prediction::{Basis, LogScan, Part, Prediction};
pub use process::ProcessState;
pub use standing::{
    Attempt, CONFIRM_ADDRESS, Cause, EpochState, FencedIn, LedgerStanding, Outcome, PLACED, Removal,
    Succession,
};
pub use topology::{Broker, Endpoint, EndpointError, Locks, Standby, Topology};

/// A Kafka node id (`node.id`; `broker.id` before KRaft).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BrokerId(pub i32);

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name an agent goes by in the ledger: one per machine that can hold a broker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostName(pub String);

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<&str> for HostName {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

/// Counts a broker's owners. Only ever grows; epoch 0 means nobody has taken the broker over yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch that the next owner must win.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A point on this host's monotonic clock (time since boot, suspend included): for ages and deadlines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub Duration);

impl Moment {
    /// How long ago `earlier` was; zero if it lies ahead.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, back: Duration) -> Self {
        Self(self.0.saturating_sub(back))
    }
}

/// The time, as data: monotonic for deciding, wall clock for records that people and other hosts read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// For ages and deadlines on this host.
    pub mono: Moment,
    /// For records.
    pub wall: Timestamp,
}

impl Now {
    /// The wall-clock time at which `moment` was.
    #[must_use]
    pub fn wall_at(&self, moment: Moment) -> Timestamp {
        let age = self.mono.since(moment);
        self.wall.checked_sub(age).unwrap_or(self.wall)
    }
}

/// What a person reads of a duration: `180 ms`, `2.4 s`, `1 min 30 s`, `1 h`.
#[must_use]
pub fn human(duration: Duration) -> String {
    const SECOND: Duration = Duration::from_secs(1);
    // From here on it would be rounded to a whole minute.
    const MINUTE: Duration = Duration::from_millis(59_950);
    let two = |n: u64, of: u64, (great, small): (&str, &str)| match (n / of, n % of) {
        (n, 0) => format!("{n} {great}"),
        (n, rest) => format!("{n} {great} {rest} {small}"),
    };
    let seconds = duration.saturating_add(SECOND / 2).as_secs();
    match seconds {
        _ if duration < SECOND => format!("{} ms", duration.as_millis()),
        _ if duration < MINUTE => format!("{:.1} s", duration.as_secs_f64()),
        0..3_600 => two(seconds, 60, ("min", "s")),
        _ => two(seconds.saturating_add(30) / 60, 60, ("h", "min")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_told_in_the_units_that_people_use() {
        for (millis, said) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1.0 s"),
            (59_949, "59.9 s"),
            (59_950, "1 min"),
            (90_400, "1 min 30 s"),
            (3_599_400, "59 min 59 s"),
            (3_599_500, "1 h"),
            (3_600_000, "1 h"),
            (5_400_000, "1 h 30 min"),
            (7_199_000, "2 h"),
            (90_000_000, "25 h"),
        ] {
            assert_eq!(human(Duration::from_millis(millis)), said);
        }
        assert!(human(Duration::MAX).ends_with(" h"), "{}", human(Duration::MAX));
    }
}
