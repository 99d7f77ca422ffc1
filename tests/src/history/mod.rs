//! The write history: what a producer was told was acknowledged, against what a consumer reads.
//!
//! Every record has an id of its own: number of the writer, sequence number within it. A writer chooses the
//! partition by the sequence number and sends each record once; retries are the client's business, and must
//! not show.

mod group;
mod judge;
mod read;
mod writer;

pub use group::{GroupLog, GroupReader};
pub use judge::{Verdict, Violation, judge};
pub use read::ReadRecord;
pub(crate) use read::verify;
pub use writer::{WriteSpec, Writer};

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

/// How long a client waits for an answer, in milliseconds, instead of librdkafka's minute. A request that the
/// dead host's kernel still took in is never sent again, so no packet is ever refused: where no agent at the
/// broker's home tells who is connected, only this limit tells the client. Longer than a broker waits for a
/// dead follower (the session timeout, 9 s).
pub const SOCKET_TIMEOUT_MS: u32 = 12_000;

/// What identifies a record, wherever it ends up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    /// The number of its writer.
    pub writer: u32,
    /// Its place in the writer's sequence, from 0.
    pub sequence: u64,
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}-{}", self.writer, self.sequence)
    }
}

impl RecordId {
    /// Reads the id from the value of a record; padding may follow it.
    ///
    /// # Errors
    /// When it is not the value of a writer's record.
    pub fn of_value(value: &[u8]) -> Result<Self> {
        let word = value.split(|byte| *byte == b' ').next().unwrap_or_default();
        let text = std::str::from_utf8(word).context("a value that no writer wrote")?;
        let Some((writer, sequence)) = text.strip_prefix('w').and_then(|text| text.split_once('-')) else {
            bail!("a value that no writer wrote: {text:?}");
        };
        Ok(Self { writer: writer.parse()?, sequence: sequence.parse()? })
    }
}

/// A record that the cluster acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acked {
    /// Which record.
    pub id: RecordId,
    /// The partition it was sent to.
    pub partition: i32,
    /// The offset the cluster gave it; `None` where a retry was told that the record is in the log already
    /// (`DUPLICATE_SEQUENCE_NUMBER`), which says that it is safe and not where.
    pub offset: Option<i64>,
    /// When it was handed to the client.
    pub sent: Instant,
    /// When the client reported the acknowledgement.
    pub acked: Instant,
}

/// Everything one writer did.
#[derive(Debug, Clone)]
pub struct History {
    /// The topic.
    pub topic: String,
    /// The number of the writer.
    pub writer: u32,
    /// How many records were handed to the client; their sequence numbers are all below it.
    pub sent: u64,
    /// The acknowledged ones, in the order of their acknowledgement.
    pub acked: Vec<Acked>,
    /// The records the client gave up on, with its reason. They may or may not be in the log.
    pub failed: Vec<(RecordId, String)>,
}

impl History {
    /// The longest that a record waited for its acknowledgement: the stall its producer saw.
    #[must_use]
    pub fn longest_wait(&self) -> Duration {
        self.acked.iter().map(|record| record.acked.duration_since(record.sent)).max().unwrap_or_default()
    }

    /// The longest time without any acknowledgement, between the first and the last: how long the topic stood
    /// still as a whole.
    #[must_use]
    pub fn longest_gap(&self) -> Duration {
        let gaps = self.acked.windows(2).map(|pair| match pair {
            [before, after] => after.acked.duration_since(before.acked),
            _ => Duration::ZERO,
        });
        gaps.max().unwrap_or_default()
    }

    /// Acknowledged records a second, in steps of `step` from the first acknowledgement to the last: each
    /// with the middle of its step in seconds since 1970. The clock must not have been set since the first.
    #[must_use]
    pub fn rate(&self, step: Duration) -> Vec<(f64, f64)> {
        let (Some(first), Some(last)) = (self.acked.first(), self.acked.last()) else { return Vec::new() };
        let width = step.as_secs_f64();
        let place = |at: Instant| (at.duration_since(first.acked).as_secs_f64() / width) as usize;
        let mut counts = vec![0_u32; place(last.acked) + 1];
        self.acked.iter().for_each(|record| counts[place(record.acked)] += 1);
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let begin = since_1970.saturating_sub(first.acked.elapsed()).as_secs_f64();
        let steps = counts.into_iter().enumerate();
        steps.map(|(place, count)| (begin + (place as f64 + 0.5) * width, f64::from(count) / width)).collect()
    }

    /// Only what was sent at or after `from`.
    #[must_use]
    pub fn since(&self, from: Instant) -> Self {
        let acked = self.acked.iter().filter(|record| record.sent >= from).copied().collect();
        Self { acked, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_shows_where_nothing_was_acknowledged() {
        let begin = Instant::now();
        let acked = |(sequence, millis): (u64, u64)| {
            let at = begin + Duration::from_millis(millis);
            let id = RecordId { writer: 1, sequence };
            Acked { id, partition: 0, offset: None, sent: begin, acked: at }
        };
        let acked = [10, 20, 30, 350].into_iter().enumerate().map(|(n, ms)| acked((n as u64, ms))).collect();
        let history = History { topic: String::new(), writer: 1, sent: 4, acked, failed: Vec::new() };
        let rate = history.rate(Duration::from_millis(100));
        let told: Vec<f64> = rate.iter().map(|(_, rate)| rate.round()).collect();
        assert_eq!(told, [30.0, 0.0, 0.0, 10.0]);
        assert!((rate[3].0 - rate[0].0 - 0.3).abs() < 1e-3);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((rate[0].0 - now).abs() < 60.0);
        assert!(History { acked: Vec::new(), ..history }.rate(Duration::from_secs(1)).is_empty());
    }

    #[test]
    fn an_id_is_read_back_from_a_padded_value() {
        let id = RecordId { writer: 3, sequence: 12_345 };
        let value = format!("{id:.<1} ......");
        assert_eq!(RecordId::of_value(value.as_bytes()).unwrap(), id);
        assert!(RecordId::of_value(b"noise").is_err());
        assert!(RecordId::of_value(&[0xff, 0x00]).is_err());
    }
}
