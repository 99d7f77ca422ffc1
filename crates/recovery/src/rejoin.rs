//! When is a broker back? Pure: a fold over looks at the cluster.
//!
//! Before the controller fences a dead broker, every ISR still shows it. So "all in ISR" counts only for
//! the new incarnation: after the broker was seen gone, or once its own listener has answered, which Kafka
//! opens only after the new incarnation is registered.

use std::fmt;

use crate::ports::Standing;

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
    /// Every partition has it in ISR, and its listener answers.
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
            (true, true) if in_isr == replicas && look.answers => RejoinState::Complete { replicas },
            (true, true) => RejoinState::CatchingUp { in_isr, replicas },
            (true, false) => RejoinState::Starting,
            (false, _) => RejoinState::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::BrokerId;

    fn look(listed: bool, in_isr: usize, answers: bool) -> Standing {
        Standing { listed, replicas: 3, in_isr, leads: 0, alone: 0, answers, via: BrokerId(2) }
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
