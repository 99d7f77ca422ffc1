//! The rules of every ledger: which claim wins, and who may add to a journal. Pure. A driver reads what they
//! are asked on, and writes by compare-and-set on that.

use super::{Claim, EpochJournal};
use crate::model::{Epoch, HostName};

/// Why a claim or an entry is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Somebody else has it.
    #[error("epoch {epoch} is taken by {by}")]
    Taken {
        /// The epoch that somebody has.
        epoch: Epoch,
        /// The host that has it.
        by: HostName,
    },
    /// A newer epoch exists: the writer is stale.
    #[error("epoch {ours} is superseded by epoch {theirs}")]
    Superseded {
        /// The writer's epoch.
        ours: Epoch,
        /// The newest one.
        theirs: Epoch,
    },
    /// The epoch that is claimed does not follow the newest one.
    #[error("epoch {due} is due: this is not the ledger that the plan was made from")]
    NotDue {
        /// The epoch that is claimed.
        epoch: Epoch,
        /// The one that would follow.
        due: Epoch,
    },
    /// The epoch that is added to is not here.
    #[error("it was never claimed here: this is not the ledger that it was claimed in")]
    NeverClaimed {
        /// The writer's epoch.
        epoch: Epoch,
    },
    /// The epoch that is added to has an outcome.
    #[error("the takeover has ended: look at `understudy history` for how")]
    Ended {
        /// The writer's epoch.
        epoch: Epoch,
    },
}

/// What the newest epoch of a broker is like, as far as an append depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The epoch.
    pub epoch: Epoch,
    /// The host that claimed it.
    pub by: HostName,
    /// Whether it has an outcome.
    pub ended: bool,
}

impl Head {
    /// Of the newest journal.
    #[must_use]
    pub fn of(newest: &EpochJournal) -> Self {
        Self { epoch: newest.epoch, by: newest.claim.by.clone(), ended: newest.outcome().is_some() }
    }
}

/// Whether `claim` wins. `holder`: the host that has the claimed epoch already, if any has; `newest`: the
/// broker's newest epoch, `None` before the first takeover.
///
/// # Errors
/// Who has it; or that another epoch is due.
pub fn may_claim(
    claim: &Claim,
    newest: Option<&EpochJournal>,
    holder: Option<&HostName>,
) -> Result<(), Refused> {
    let epoch = claim.plan.epoch;
    if let Some(by) = holder {
        return Err(Refused::Taken { epoch, by: by.clone() });
    }
    let due = newest.map_or(Epoch::default(), |newest| newest.epoch).next();
    if epoch != due {
        return Err(Refused::NotDue { epoch, due });
    }
    match newest {
        Some(newest) if !newest.may_be_followed_by(claim) => {
            Err(Refused::Taken { epoch: newest.epoch, by: newest.claim.by.clone() })
        }
        _ => Ok(()),
    }
}

/// Whether epoch `ours` is the newest; `newest` is 0 before the first takeover.
///
/// # Errors
/// It is superseded, or was never claimed here.
pub fn must_be_newest(newest: Epoch, ours: Epoch) -> Result<(), Refused> {
    if newest > ours {
        return Err(Refused::Superseded { ours, theirs: newest });
    }
    if newest < ours {
        return Err(Refused::NeverClaimed { epoch: ours });
    }
    Ok(())
}

/// Whether `by` may add to epoch `ours`; `newest` is the newest there is.
///
/// # Errors
/// It is not the newest, somebody else's, or ended.
pub fn may_append(newest: Option<&Head>, ours: Epoch, by: &HostName) -> Result<(), Refused> {
    let Some(head) = newest else { return Err(Refused::NeverClaimed { epoch: ours }) };
    must_be_newest(head.epoch, ours)?;
    if head.by != *by {
        return Err(Refused::Taken { epoch: ours, by: head.by.clone() });
    }
    if head.ended { Err(Refused::Ended { epoch: ours }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_claimant_adds_and_only_to_the_newest_epoch_that_is_open() {
        let (here, other) = (HostName::from("a"), HostName::from("b"));
        let head = |epoch, ended| Head { epoch: Epoch(epoch), by: here.clone(), ended };
        let ours = Epoch(2);
        assert_eq!(may_append(Some(&head(2, false)), ours, &here), Ok(()));
        let superseded = Refused::Superseded { ours, theirs: Epoch(3) };
        assert_eq!(may_append(Some(&head(3, false)), ours, &here), Err(superseded));
        let unknown = Refused::NeverClaimed { epoch: ours };
        assert_eq!(may_append(Some(&head(1, true)), ours, &here), Err(unknown.clone()));
        assert_eq!(may_append(None, ours, &here), Err(unknown));
        assert_eq!(may_append(None, Epoch(0), &here), Err(Refused::NeverClaimed { epoch: Epoch(0) }));
        let taken = Refused::Taken { epoch: ours, by: here.clone() };
        assert_eq!(may_append(Some(&head(2, false)), ours, &other), Err(taken));
        assert_eq!(may_append(Some(&head(2, true)), ours, &here), Err(Refused::Ended { epoch: ours }));
    }
}
