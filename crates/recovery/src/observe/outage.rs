//! When a broker went, as far as our own looks tell, and whether it was away. Pure.

use std::time::Duration;

use serde::Serialize;

use crate::model::Moment;

/// Looks that were on their way when a link went, or came back, say little: what was seen so long after the
/// one and before the other is from between. Longer than any look takes.
const BETWEEN: Duration = Duration::from_secs(3);

/// A time in which a broker did not answer this agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Outage {
    /// The first look that failed. Before an agent's first look nothing is known: what is down then went then,
    /// to that agent.
    pub from: Moment,
    /// The latest moment at which it may have gone. Later than `from` only where most brokers did not answer
    /// either, so that what failed may have been this host's link.
    pub to: Moment,
    /// When the active controller last heard it, well after this agent's looks had begun to find it
    /// unreachable, every one of them: it went no earlier than that, or only this host cannot reach it.
    pub heard: Option<Moment>,
    /// The longest time in which the active controller heard nothing of it, and heard it again: from its last word,
    /// or this agent's first look that failed, to the next. A controller that could not be asked may have heard
    /// it: time without its word shows no life.
    pub unheard: Option<(Moment, Moment)>,
    /// The first look that was answered again; `None` while it is down.
    pub until: Option<Moment>,
}

impl Outage {
    /// The earliest and the latest moment at which it may have gone.
    pub(crate) fn went(&self) -> (Moment, Moment) {
        let heard = self.heard.unwrap_or(self.from);
        (self.from.max(heard), self.to.max(heard))
    }

    /// The time in which it was away from everybody, and no less than `least`, before the controller heard it again:
    /// only this agent cannot reach it now.
    pub(crate) fn away(&self, least: Duration) -> Option<Self> {
        let (from, until) = self.unheard.filter(|(from, until)| until.since(*from) >= least)?;
        Some(Self { from, to: from, heard: None, unheard: None, until: Some(until) })
    }
}

/// A run of looks that failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failing {
    pub(super) since: Moment,
    /// The latest moment at which it may have gone.
    gone: Moment,
    /// It failed while most others answered, and no link was just going: it is the broker.
    sure: bool,
    /// The first word of the cluster from between.
    word: Option<Moment>,
    /// See [`Outage::heard`].
    heard: Option<Moment>,
    /// See [`Outage::unheard`].
    unheard: Option<(Moment, Moment)>,
    /// The controller's last word of it.
    last: Option<Moment>,
}

/// A run of looks that failed, and the answer after it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failed {
    failing: Failing,
    until: Moment,
}

impl Failing {
    pub(super) fn begin(at: Moment) -> Self {
        Self { since: at, gone: at, sure: false, word: None, heard: None, unheard: None, last: None }
    }

    /// One more look that failed, begun at `at`. `dark` tells whether most brokers fail, and `heard` when the
    /// cluster was heard last.
    pub(super) fn look(&mut self, at: Moment, dark: bool, heard: Option<Moment>) {
        if dark && !self.sure {
            self.gone = at;
        }
        self.sure |= !dark && at.since(self.since) >= BETWEEN;
        self.word = self.word.or(heard.filter(|heard| heard.since(self.since) >= BETWEEN));
    }

    /// The active controller heard it at `heard`, and every look of this run found it unreachable.
    pub(super) fn hear(&mut self, heard: Moment) {
        let last = self.last.unwrap_or(self.since);
        if self.unheard.is_none_or(|(from, until)| heard.since(last) > until.since(from)) {
            self.unheard = Some((last, heard));
        }
        self.last = Some(heard.max(last));
        if heard.since(self.since) >= BETWEEN {
            self.heard = self.heard.max(Some(heard));
        }
    }

    pub(super) fn outage(self) -> Outage {
        Outage { from: self.since, to: self.gone, heard: self.heard, unheard: self.unheard, until: None }
    }

    pub(super) fn end(self, until: Moment) -> Failed {
        Failed { failing: self, until }
    }
}

impl Failed {
    /// `None` if it may have been well all the while, and this host cut off. It was not if the cluster was
    /// heard meanwhile, or if this agent first met the present active controller since, at `met`: after a loss
    /// of power they elect anew.
    pub(super) fn outage(self, met: Moment) -> Option<Outage> {
        let heard = self.failing.word.is_some_and(|word| self.until.since(word) >= BETWEEN);
        let away = heard || met > self.failing.since;
        away.then(|| Outage { until: Some(self.until), ..self.failing.outage() })
    }
}
