//! Which brokers really failed together, as far as one host can have seen it: the truth that a hold for a mass
//! failure is held against.

use std::collections::BTreeSet;

use recovery::model::ProbeOutcome;

use crate::run::WINDOW;
use crate::scenario::{Ms, Node};
use crate::world::State;

/// Clocks that are 5 % off, two looks, and an answer on its way.
const SLACK: Ms = 3_000;

impl State {
    /// Whether `host` sees no majority of the brokers other than `broker`. Who had gone before is not missed
    /// while the controllers are in sight.
    pub(crate) fn out_of_sight(&self, host: usize, broker: usize) -> bool {
        let others = || (0..self.brokers.len()).filter(|b| *b != broker);
        let dead: Vec<usize> = others().filter(|b| self.probe(host, *b) != ProbeOutcome::Answered).collect();
        let (up, together) = (others().count() - dead.len(), self.together(host, broker));
        let sighted = self.reaches(Node::Host(host), Node::Controllers);
        let gone = dead.iter().filter(|b| sighted && !together.contains(b)).count();
        up == 0 || up * 2 <= others().count() - gone
    }

    /// The brokers that are down, to `host`, and went together with `broker`: each within the window of
    /// another one. Whoever has not looked for a while, or was cut off, cannot know when each went.
    pub(crate) fn together(&self, host: usize, broker: usize) -> BTreeSet<usize> {
        let machine = &self.hosts[host];
        let known = machine.agent_since.max(machine.dark);
        let went = |b: usize| {
            let well = machine.answered[b];
            (well, if machine.dark > well { known } else { well.max(machine.agent_since) })
        };
        let linked = |a: usize, b: usize| {
            let ((from, to), (other_from, other_to)) = (went(a), went(b));
            let apart = from.saturating_sub(other_to).max(other_from.saturating_sub(to));
            apart <= WINDOW.as_millis() as Ms + SLACK
        };
        let mut apart: BTreeSet<usize> = (0..self.brokers.len()).filter(|b| *b != broker).collect();
        apart.retain(|b| self.probe(host, *b) != ProbeOutcome::Answered);
        let mut together = BTreeSet::from([broker]);
        loop {
            let more: BTreeSet<usize> =
                apart.extract_if(.., |b| together.iter().any(|with| linked(*b, *with))).collect();
            if more.is_empty() {
                return together;
            }
            together.extend(more);
        }
    }
}
