//! Judging: pure, from what was acknowledged and what was read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Result, bail};

use super::read::ReadRecord;
use super::{Acked, History, RecordId};

/// Shown of each kind of violation; there may be thousands.
const SHOWN: usize = 5;

/// Something that must not happen to a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Acknowledged, and nowhere in the log.
    Lost(Acked),
    /// Acknowledged at one place, and read at another.
    Moved {
        /// What was acknowledged.
        acked: Acked,
        /// Partition and offset where it is.
        found: (i32, i64),
    },
    /// More than once in the log.
    Duplicated {
        /// Which record.
        id: RecordId,
        /// Every partition and offset where it is.
        places: Vec<(i32, i64)>,
    },
    /// After a record of the same writer, in the same partition, that was sent later.
    Disordered {
        /// Where it is.
        record: ReadRecord,
        /// The later one that precedes it.
        after: RecordId,
    },
    /// In the log, though its writer never sent it.
    Invented(ReadRecord),
}

/// What a comparison of histories and log found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Acknowledged records.
    pub acked: usize,
    /// Records in the log.
    pub read: usize,
    /// Records in the log that were sent and not acknowledged; that is allowed.
    pub unacked: usize,
    /// What must not be.
    pub violations: Vec<Violation>,
}

/// Compares what the writers of one topic were told with what is in its log, given in any order of
/// partitions, each partition in the order of its offsets.
#[must_use]
pub fn judge(histories: &[&History], log: &[ReadRecord]) -> Verdict {
    let mut places: BTreeMap<RecordId, Vec<(i32, i64)>> = BTreeMap::new();
    for record in log {
        places.entry(record.id).or_default().push((record.partition, record.offset));
    }
    let mut violations = Vec::new();
    let mut found_acked = 0;
    for acked in histories.iter().flat_map(|history| &history.acked) {
        match places.get(&acked.id).map(Vec::as_slice) {
            None => violations.push(Violation::Lost(*acked)),
            Some(found) => {
                found_acked += 1;
                if let Some(elsewhere) = misplaced(acked, found) {
                    violations.push(Violation::Moved { acked: *acked, found: elsewhere });
                }
            }
        }
    }
    for (id, found) in &places {
        if found.len() > 1 {
            violations.push(Violation::Duplicated { id: *id, places: found.clone() });
        }
    }
    violations.extend(disorder(log));
    violations.extend(invented(histories, log));
    Verdict {
        acked: histories.iter().map(|history| history.acked.len()).sum(),
        read: log.len(),
        unacked: places.len().saturating_sub(found_acked),
        violations,
    }
}

/// Where the record is instead of where it was acknowledged.
fn misplaced(acked: &Acked, found: &[(i32, i64)]) -> Option<(i32, i64)> {
    let fits = |(partition, offset): &&(i32, i64)| {
        *partition == acked.partition && acked.offset.is_none_or(|told| told == *offset)
    };
    if found.iter().any(|place| fits(&place)) { None } else { found.first().copied() }
}

/// Where its producer was told that it is.
fn told(acked: &Acked) -> String {
    match acked.offset {
        Some(offset) => format!("at {}/{offset}", acked.partition),
        None => format!("somewhere in partition {}", acked.partition),
    }
}

fn disorder(log: &[ReadRecord]) -> Vec<Violation> {
    let mut latest: BTreeMap<(i32, u32), RecordId> = BTreeMap::new();
    let mut violations = Vec::new();
    for record in log {
        let latest = latest.entry((record.partition, record.id.writer)).or_insert(record.id);
        if record.id < *latest {
            violations.push(Violation::Disordered { record: *record, after: *latest });
        }
        *latest = record.id.max(*latest);
    }
    violations
}

fn invented<'a>(histories: &'a [&History], log: &'a [ReadRecord]) -> impl Iterator<Item = Violation> + 'a {
    let sent: BTreeMap<u32, u64> = histories.iter().map(|history| (history.writer, history.sent)).collect();
    let is_ours = move |record: &&ReadRecord| {
        sent.get(&record.id.writer).is_some_and(|sent| record.id.sequence < *sent)
    };
    log.iter().filter(move |record| !is_ours(record)).map(|record| Violation::Invented(*record))
}

impl Verdict {
    /// Acknowledged records that are not in the log.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.violations.iter().filter(|violation| matches!(violation, Violation::Lost(_))).count()
    }

    /// The partitions that the violations are about.
    #[must_use]
    pub fn partitions(&self) -> BTreeSet<i32> {
        self.violations.iter().flat_map(Violation::partitions).collect()
    }

    /// Passes a verdict without violations.
    ///
    /// # Errors
    /// The violations: how many, and the first of each kind.
    pub fn ensure_clean(&self) -> Result<()> {
        if self.violations.is_empty() {
            return Ok(());
        }
        bail!("{self}")
    }
}

impl Violation {
    fn kind(&self) -> &'static str {
        match self {
            Self::Lost(_) => "acknowledged and lost",
            Self::Moved { .. } => "acknowledged elsewhere than it is",
            Self::Duplicated { .. } => "duplicated",
            Self::Disordered { .. } => "out of order",
            Self::Invented(_) => "never sent",
        }
    }

    fn partitions(&self) -> Vec<i32> {
        match self {
            Self::Lost(acked) => vec![acked.partition],
            Self::Moved { acked, found: (partition, _) } => vec![acked.partition, *partition],
            Self::Duplicated { places, .. } => places.iter().map(|(partition, _)| *partition).collect(),
            Self::Disordered { record, .. } | Self::Invented(record) => vec![record.partition],
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(acked) => {
                write!(f, "{} was acknowledged {}", acked.id, told(acked))
            }
            Self::Moved { acked, found: (partition, offset) } => {
                write!(f, "{} was acknowledged {} and is at {partition}/{offset}", acked.id, told(acked))
            }
            Self::Duplicated { id, places } => {
                write!(f, "{id} is at")?;
                places.iter().try_for_each(|(partition, offset)| write!(f, " {partition}/{offset}"))
            }
            Self::Disordered { record, after } => {
                write!(f, "{} at {}/{} comes after {after}", record.id, record.partition, record.offset)
            }
            Self::Invented(record) => {
                write!(f, "{} at {}/{}", record.id, record.partition, record.offset)
            }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} acknowledged, {} read, {} unacknowledged", self.acked, self.read, self.unacked)?;
        let mut kinds: BTreeMap<&str, Vec<&Violation>> = BTreeMap::new();
        for violation in &self.violations {
            kinds.entry(violation.kind()).or_default().push(violation);
        }
        for (kind, violations) in kinds {
            write!(f, "\n{} {kind}:", violations.len())?;
            violations.iter().take(SHOWN).try_for_each(|violation| write!(f, "\n  {violation}"))?;
            if violations.len() > SHOWN {
                write!(f, "\n  …")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    const PARTITIONS: u64 = 3;

    fn id(sequence: u64) -> RecordId {
        RecordId { writer: 1, sequence }
    }

    /// A flawless run: `sent` records, all acknowledged, all in the log.
    fn flawless(sent: u64) -> (History, Vec<ReadRecord>) {
        let now = Instant::now();
        let mut log = Vec::new();
        for partition in 0..PARTITIONS {
            for (offset, sequence) in (partition..sent).step_by(PARTITIONS as usize).enumerate() {
                log.push(ReadRecord { partition: partition as i32, offset: offset as i64, id: id(sequence) });
            }
        }
        let acked = log.iter().map(|record| Acked {
            id: record.id,
            partition: record.partition,
            offset: Some(record.offset),
            sent: now,
            acked: now,
        });
        let acked = acked.collect();
        (History { topic: "t".to_owned(), writer: 1, sent, acked, failed: Vec::new() }, log)
    }

    fn kinds(verdict: &Verdict) -> Vec<&'static str> {
        let mut kinds: Vec<_> = verdict.violations.iter().map(Violation::kind).collect();
        kinds.dedup();
        kinds
    }

    #[test]
    fn a_record_that_was_not_acknowledged_may_be_read_or_not() {
        let (mut history, mut log) = flawless(12);
        history.acked.retain(|acked| acked.id.sequence < 9);
        log.retain(|record| record.id.sequence != 11);
        let verdict = judge(&[&history], &log);
        verdict.ensure_clean().unwrap();
        assert_eq!((verdict.acked, verdict.read, verdict.unacked), (9, 11, 2));
    }

    proptest! {
        #[test]
        fn a_flawless_run_is_clean(sent in 0_u64..60) {
            let (history, log) = flawless(sent);
            prop_assert!(judge(&[&history], &log).ensure_clean().is_ok());
        }

        #[test]
        fn a_lost_record_is_found(sent in 1_u64..60, which: prop::sample::Index) {
            let (history, mut log) = flawless(sent);
            let lost = log.remove(which.index(log.len()));
            let verdict = judge(&[&history], &log);
            prop_assert_eq!(kinds(&verdict), vec!["acknowledged and lost"]);
            prop_assert_eq!(verdict.lost(), 1);
            let told = verdict.ensure_clean().unwrap_err().to_string();
            prop_assert!(told.contains(&lost.id.to_string()));
        }

        #[test]
        fn an_acknowledgement_without_an_offset_still_names_the_partition(
            sent in 1_u64..60,
            which: prop::sample::Index,
        ) {
            let (mut history, log) = flawless(sent);
            let at = which.index(history.acked.len());
            history.acked[at].offset = None;
            prop_assert!(judge(&[&history], &log).ensure_clean().is_ok());
            history.acked[at].partition += 1;
            prop_assert_eq!(kinds(&judge(&[&history], &log)), vec!["acknowledged elsewhere than it is"]);
        }

        #[test]
        fn a_duplicate_is_found(sent in 1_u64..60, which: prop::sample::Index) {
            let (history, mut log) = flawless(sent);
            let again = log[which.index(log.len())];
            let end = log.iter().filter(|record| record.partition == again.partition).count();
            log.push(ReadRecord { offset: end as i64, ..again });
            prop_assert!(kinds(&judge(&[&history], &log)).contains(&"duplicated"));
        }

        #[test]
        fn swapped_neighbours_are_found(sent in 6_u64..60, which: prop::sample::Index) {
            let (history, mut log) = flawless(sent);
            let candidates: Vec<usize> =
                (1..log.len()).filter(|at| log[*at].partition == log[at - 1].partition).collect();
            let at = candidates[which.index(candidates.len())];
            let (one, other) = (log[at - 1].id, log[at].id);
            log[at - 1].id = other;
            log[at].id = one;
            let verdict = judge(&[&history], &log);
            prop_assert!(kinds(&verdict).contains(&"out of order"));
            prop_assert!(kinds(&verdict).contains(&"acknowledged elsewhere than it is"));
        }

        #[test]
        fn a_record_nobody_sent_is_found(sent in 0_u64..60) {
            let (history, mut log) = flawless(sent);
            log.push(ReadRecord { partition: 0, offset: 1000, id: id(sent) });
            prop_assert_eq!(kinds(&judge(&[&history], &log)), vec!["never sent"]);
        }
    }
}
