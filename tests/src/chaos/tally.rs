//! What a marathon comes to: a line a round, and the sums.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// One round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Round {
    /// Seconds since the first round began.
    pub(super) at_s: f64,
    /// What was thrown.
    pub(super) fault: &'static str,
    /// The broker that it befell.
    pub(super) broker: i32,
    /// The host that had it.
    pub(super) host: String,
    /// How it ended.
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    /// Records acknowledged since the marathon began.
    pub(super) acked: usize,
}

/// How a round ended.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Outcome {
    /// In a word or two, for counting.
    pub(super) outcome: &'static str,
    /// From the fault until every partition of the broker was back in ISR; `None` if it never left.
    pub(super) time_to_isr_s: Option<f64>,
    /// Why nothing was done for a while, by the reason's label.
    pub(super) held: Option<&'static str>,
    /// The host that has the broker now.
    pub(super) now_on: String,
}

/// The whole.
#[derive(Debug, Default, Serialize)]
pub(super) struct Tally {
    pub(super) seed: u64,
    pub(super) rounds: Vec<Round>,
    /// How often all hosts were looked at for a broker that runs twice.
    pub(super) looks: u64,
    /// Acknowledged, by the verdict. 0 unless there was one.
    pub(super) acknowledged: usize,
    pub(super) lost: usize,
    pub(super) duplicated: usize,
    /// What ended the marathon before its time, or the verdict if it is not clean.
    pub(super) failed: Option<String>,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, broker, host, outcome, acked, .. } = self;
        write!(f, "{fault} (broker {broker} on {host}): {}", outcome.outcome)?;
        if let Some(held) = outcome.held {
            write!(f, ", held: {held}")?;
        }
        if let Some(seconds) = outcome.time_to_isr_s {
            write!(f, ", time-to-ISR {seconds:.1} s")?;
        }
        write!(f, ", now on {}, acknowledged {acked}", outcome.now_on)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sums: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for round in &self.rounds {
            *sums.entry((round.fault, round.outcome.outcome)).or_default() += 1;
        }
        for ((fault, outcome), rounds) in sums {
            writeln!(f, "{rounds:5}  {fault}: {outcome}")?;
        }
        let mut times: Vec<f64> =
            self.rounds.iter().filter_map(|round| round.outcome.time_to_isr_s).collect();
        times.sort_by(f64::total_cmp);
        if let (Some(median), Some(max)) = (times.get(times.len() / 2), times.last()) {
            writeln!(f, "time-to-ISR of {}: median {median:.1} s, max {max:.1} s", times.len())?;
        }
        writeln!(f, "{} rounds, {} looks for a broker that runs twice", self.rounds.len(), self.looks)?;
        match &self.failed {
            Some(failed) => write!(f, "FAILED (seed {}): {failed}", self.seed),
            None => write!(
                f,
                "acknowledged {}, lost {}, duplicated {}, seed {}",
                self.acknowledged, self.lost, self.duplicated, self.seed
            ),
        }
    }
}
