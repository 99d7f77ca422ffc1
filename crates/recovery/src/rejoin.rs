//! When is a broker back? Pure: a fold over looks at the cluster.
//!
//! Before the controller fences a dead broker, every ISR still shows it. So "all in ISR" counts only for
//! the new incarnation: after the broker was seen gone, or once its own listener has answered, which Kafka
//! opens only after the new incarnation is registered.

use std::fmt;
use std::time::Duration;

use crate::model::{Moment, Standing};

/// How far the broker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejoinState {
    /// Kafka runs; the cluster still shows the old incarnation, or none.
    Starting,
    /// The old incarnation is gone; the new one loads its logs or waits to be unfenced.
    Gone,
    /// It is unfenced and catches up.
    CatchingUp {
        /// Partitions that have it in ISR.
        in_isr: usize,
        /// Partitions that should.
        replicas: usize,
    },
    /// Every partition has it in ISR, its listener answers, and what the cluster advertises does not lead to
    /// it from here, or not from a peer: no leader may move to it.
    Misled {
        /// Partitions that have it in ISR.
        replicas: usize,
    },
    /// Every partition has it in ISR, its listener answers, and so does what the cluster advertises for it.
    Complete {
        /// Partitions that have it in ISR.
        replicas: usize,
    },
}

impl fmt::Display for RejoinState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => write!(f, "Kafka starts; the old registration has not gone yet"),
            Self::Gone => write!(f, "the old registration is gone; waiting for the broker to be unfenced"),
            Self::CatchingUp { in_isr, replicas } => write!(f, "{in_isr} of {replicas} partitions in ISR"),
            Self::Misled { replicas } => {
                write!(f, "all {replicas} partitions in ISR, and not every client reaches the broker")
            }
            Self::Complete { replicas } => write!(f, "all {replicas} partitions in ISR"),
        }
    }
}

/// The fold.
#[derive(Debug, Clone)]
pub struct Rejoin {
    gone: bool,
    answered: bool,
}

impl Rejoin {
    /// Begins. `gone` says that the controller confirmed the old registration's end.
    #[must_use]
    pub fn new(gone: bool) -> Self {
        Self { gone, answered: false }
    }

    /// Takes one look in.
    pub fn see(&mut self, look: &Standing) -> RejoinState {
        let new_incarnation = self.gone || self.answered;
        self.gone |= !look.listed;
        self.answered |= look.answers;
        let (in_isr, replicas) = (look.in_isr, look.replicas);
        match (look.listed, new_incarnation) {
            (true, true) if in_isr == replicas && look.answers => {
                let leads_here =
                    look.advertised.as_ref().is_some_and(|advertised| advertised.fails.is_none());
                if leads_here { RejoinState::Complete { replicas } } else { RejoinState::Misled { replicas } }
            }
            (true, true) => RejoinState::CatchingUp { in_isr, replicas },
            (true, false) => RejoinState::Starting,
            (false, _) => RejoinState::Gone,
        }
    }
}

/// A process that reads fewer bytes than this reads no logs: it waits, with its heartbeats.
const READS_LOGS: u64 = 1 << 20;

/// What is measured of a broker on its way back, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// What its process has read since its start.
    pub read: Option<u64>,
    /// What it lacks in the partitions that have it out of ISR.
    pub behind: Option<u64>,
}

/// Whether a broker gets on: a fold over looks. Only what was never reached before counts: a partition that
/// joins and leaves, again and again, does not get on.
#[derive(Debug, Clone)]
pub struct Headway {
    stage: u8,
    in_isr: usize,
    read: u64,
    behind: u64,
    moved_at: Moment,
}

impl Headway {
    /// Begins `now`.
    #[must_use]
    pub fn new(now: Moment) -> Self {
        Self { stage: 0, in_isr: 0, read: 0, behind: u64::MAX, moved_at: now }
    }

    /// Takes one look in.
    pub fn see(&mut self, now: Moment, state: RejoinState, answers: bool, measured: Measured) {
        let (stage, in_isr) = match state {
            RejoinState::Starting => (0, 0),
            RejoinState::Gone => (1, 0),
            RejoinState::CatchingUp { in_isr, .. }
            | RejoinState::Misled { replicas: in_isr }
            | RejoinState::Complete { replicas: in_isr } => (2, in_isr),
        };
        let stage = stage * 2 + u8::from(answers);
        let read = measured.read.filter(|read| *read >= self.read.saturating_add(READS_LOGS));
        let behind = measured.behind.filter(|behind| *behind < self.behind);
        if stage > self.stage || in_isr > self.in_isr || read.is_some() || behind.is_some() {
            self.moved_at = now;
        }
        self.stage = self.stage.max(stage);
        self.in_isr = self.in_isr.max(in_isr);
        self.read = read.unwrap_or(self.read);
        self.behind = behind.unwrap_or(self.behind);
    }

    /// For how long nothing has moved.
    #[must_use]
    pub fn still_for(&self, now: Moment) -> Duration {
        now.since(self.moved_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Advertised, BrokerId, Endpoint};

    #[test]
    fn only_what_was_never_reached_before_is_headway() {
        let at = |second| Moment(Duration::from_secs(second));
        let catching = |in_isr| RejoinState::CatchingUp { in_isr, replicas: 9 };
        let read = |read| Measured { read: Some(read), behind: None };
        let behind = |behind| Measured { read: None, behind: Some(behind) };
        let none = Measured::default();
        let mut headway = Headway::new(at(0));
        // Second, what is seen, and for how long nothing has moved then.
        for (second, state, answers, measured, still) in [
            (5, RejoinState::Starting, false, none, 5),
            (6, RejoinState::Starting, false, read(READS_LOGS), 0),
            (7, RejoinState::Starting, false, read(READS_LOGS + 1), 1),
            (8, RejoinState::Gone, false, none, 0),
            (9, RejoinState::Starting, false, none, 1),
            (10, catching(1), false, none, 0),
            (11, catching(1), true, none, 0),
            (12, catching(2), true, behind(1000), 0),
            (13, catching(1), true, behind(1000), 1),
            (14, catching(2), true, behind(1001), 2),
            (15, catching(2), true, behind(999), 0),
            (16, catching(2), false, behind(999), 1),
            (17, catching(2), true, none, 2),
        ] {
            headway.see(at(second), state, answers, measured);
            assert_eq!(headway.still_for(at(second)).as_secs(), still, "{second}: {headway:?}");
        }
    }

    fn look(listed: bool, in_isr: usize, answers: bool) -> Standing {
        let at = Endpoint { host: "10.0.0.1".to_owned(), port: 9092 };
        let advertised = Some(Advertised { at, fails: None, reached_by: ["s2".into()].into() });
        Standing { listed, replicas: 3, in_isr, leads: 0, alone: 0, answers, advertised, via: BrokerId(2) }
    }

    #[test]
    fn a_broker_that_clients_cannot_reach_is_not_back() {
        let mut rejoin = Rejoin::new(true);
        let back = look(true, 3, true);
        let fails = Some("nobody answers there".to_owned());
        let advertised = back.advertised.clone().map(|advertised| Advertised { fails, ..advertised });
        let misled = RejoinState::Misled { replicas: 3 };
        assert_eq!(rejoin.see(&Standing { advertised, ..back.clone() }), misled);
        assert_eq!(rejoin.see(&Standing { advertised: None, ..back.clone() }), misled);
        assert_eq!(rejoin.see(&back), RejoinState::Complete { replicas: 3 });
    }

    #[test]
    fn a_full_isr_of_the_old_incarnation_does_not_count() {
        let mut rejoin = Rejoin::new(false);
        for _ in 0..100 {
            assert_eq!(rejoin.see(&look(true, 3, false)), RejoinState::Starting);
        }
        assert_eq!(rejoin.see(&look(false, 0, false)), RejoinState::Gone);
        assert_eq!(rejoin.see(&look(true, 1, false)), RejoinState::CatchingUp { in_isr: 1, replicas: 3 });
        assert_eq!(rejoin.see(&look(true, 3, false)), RejoinState::CatchingUp { in_isr: 3, replicas: 3 });
        assert_eq!(rejoin.see(&look(true, 3, true)), RejoinState::Complete { replicas: 3 });
    }

    #[test]
    fn a_gone_interval_that_nobody_saw_is_made_up_for_by_the_listener() {
        let mut rejoin = Rejoin::new(false);
        assert_eq!(rejoin.see(&look(true, 3, true)), RejoinState::Starting);
        assert_eq!(rejoin.see(&look(true, 3, true)), RejoinState::Complete { replicas: 3 });
    }

    #[test]
    fn a_confirmed_unregistration_counts_as_gone() {
        let mut rejoin = Rejoin::new(true);
        assert_eq!(rejoin.see(&look(true, 3, true)), RejoinState::Complete { replicas: 3 });
    }

    #[test]
    fn a_broker_without_partitions_is_back_when_it_answers() {
        let mut rejoin = Rejoin::new(true);
        let empty = Standing { replicas: 0, ..look(true, 0, false) };
        assert_eq!(rejoin.see(&empty), RejoinState::CatchingUp { in_isr: 0, replicas: 0 });
        let empty = Standing { answers: true, ..empty };
        assert_eq!(rejoin.see(&empty), RejoinState::Complete { replicas: 0 });
    }
}
