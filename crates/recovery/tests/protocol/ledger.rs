//! The ledger of one broker: who claimed which epoch, and what may be read from that.
//!
//! A journal is kept as what its fold needs to know. The result of a step and the intent of the next are one
//! write, because nothing acts on the world between them.

use crate::Flaw;
use crate::hosts::{Host, Hosts};

/// Counts claims, from 1.
pub(crate) type Epoch = usize;

/// How an epoch ended. Withdrawn, abandoned and stuck are one: what matters is whether the start had begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Recovered,
    GivenUp,
}

/// What a standby intends, made from the ledger as it read it, maybe long before it claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Plan {
    pub(crate) epoch: Epoch,
    pub(crate) to: Host,
    /// The owner.
    pub(crate) from: Host,
    /// The writers: whom to fence and prove.
    pub(crate) fence: Hosts,
}

/// One epoch's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Journal {
    /// The first record: the claim with its plan.
    pub(crate) plan: Plan,
    /// Whether the intent to start Kafka is written down: from then on it may be running.
    pub(crate) start_begun: bool,
    pub(crate) end: Option<Outcome>,
}

impl Journal {
    pub(crate) fn is_open(&self) -> bool {
        self.end.is_none()
    }

    /// Ended, and its claimant never came to where it could have started Kafka.
    fn is_harmless(&self) -> bool {
        self.end == Some(Outcome::GivenUp) && !self.start_begun
    }
}

/// What an agent adds to the journal of its epoch. The intents to fence and to prove are asked of the ledger
/// too ([`Ledger::accepts`]), but leave nothing behind that anybody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Entry {
    Intent,
    StartBegun,
    Ended(Outcome),
}

/// A request to the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Write {
    Claim(Plan),
    Append(Epoch, Entry),
}

/// Epoch n is the journal at n - 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ledger(pub(crate) Vec<Journal>);

impl Ledger {
    /// The newest epoch; 0 before the first claim.
    pub(crate) fn newest(&self) -> Epoch {
        self.0.len()
    }

    pub(crate) fn newest_journal(&self) -> Option<&Journal> {
        self.0.last()
    }

    pub(crate) fn journal(&self, epoch: Epoch) -> &Journal {
        &self.0[epoch - 1]
    }

    /// The compare-and-set. A claim may follow an epoch that ended, or an open one whose claimant the
    /// observer judges silent. Any observer may judge so at any time, which leaves one condition: that nobody
    /// has the epoch. An append is refused when a newer epoch exists, and when its own has ended.
    pub(crate) fn accepts(&self, write: Write, flaw: Option<Flaw>) -> bool {
        match write {
            Write::Claim(plan) => plan.epoch == self.newest() + 1 && !self.closed_to_claims(flaw),
            Write::Append(epoch, _) => {
                let stale = matches!(flaw, Some(Flaw::StaleAppendTaken | Flaw::StaleAppendKept));
                let newest = epoch == self.newest() || stale;
                let open = self.journal(epoch).is_open() || flaw == Some(Flaw::AppendAfterEndTaken);
                newest && open
            }
        }
    }

    /// With the flaw: as long as the newest epoch is open.
    pub(crate) fn closed_to_claims(&self, flaw: Option<Flaw>) -> bool {
        flaw == Some(Flaw::NoSuccession) && self.newest_journal().is_some_and(Journal::is_open)
    }

    /// Makes an accepted write durable.
    pub(crate) fn take(&mut self, write: Write) {
        match write {
            Write::Claim(plan) => self.0.push(Journal { plan, start_begun: false, end: None }),
            Write::Append(_, Entry::Intent) => {}
            Write::Append(epoch, Entry::StartBegun) => self.0[epoch - 1].start_begun = true,
            Write::Append(epoch, Entry::Ended(outcome)) => self.0[epoch - 1].end = Some(outcome),
        }
    }

    /// The owner: the host under whose newest claim Kafka may have been started.
    pub(crate) fn owner(&self, flaw: Option<Flaw>) -> Host {
        if flaw == Some(Flaw::OwnerFromPlan) {
            let newest = self.newest_journal();
            return newest.map_or(Host::Old, |j| if j.start_begun { j.plan.to } else { j.plan.from });
        }
        self.0.iter().rev().find(|j| j.start_begun).map_or(Host::Old, |j| j.plan.to)
    }

    /// Who may be writing, or may yet begin to, and is not `to`: the owner, and every claimant since then
    /// whose own epoch did not end harmlessly. It may be frozen, thaw, and act. Whoever wrote before the
    /// owner's start was begun was proven unable to by then.
    pub(crate) fn writers(&self, to: Host, flaw: Option<Flaw>) -> Hosts {
        let owner = Hosts::of(self.owner(flaw));
        let begun = self.0.iter().rposition(|j| j.start_begun);
        let since = &self.0[begun.map_or(0, |index| index + 1)..];
        let claimants = since.iter().filter(|j| !j.is_harmless()).map(|j| j.plan.to).collect::<Hosts>();
        let all = if flaw == Some(Flaw::OnlyOwnerFenced) { owner } else { owner.union(claimants) };
        all.without(to)
    }

    /// The ledger as it was when `epoch` was claimed: older epochs take no more writes then.
    pub(crate) fn before(&self, epoch: Epoch) -> Self {
        Self(self.0[..epoch - 1].to_vec())
    }

    /// What `guard` on `host` says to a start of Kafka by anything but a takeover: only on the owner, and not
    /// while somebody else takes the broker over.
    pub(crate) fn guard_allows(&self, host: Host, flaw: Option<Flaw>) -> bool {
        let taken = self.newest_journal().is_some_and(|j| j.is_open() && j.plan.to != host);
        let heeded = flaw != Some(Flaw::GuardBlindToClaims);
        self.owner(flaw) == host && !(taken && heeded)
    }
}
