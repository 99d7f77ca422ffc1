//! The promises, held against the world's own truth at the moment of every act. What agents believe is not
//! asked.

use std::collections::BTreeSet;

use recovery::journal::{Claim, Entry, Intents};
use recovery::model::{Cause, Epoch, HostName, Instruction, Orders, Outcome};
use recovery::plan::Step;
use recovery::ports::Proof;

use crate::agent::{Agent, index};
use crate::ledger::fence_is_proven;
use crate::scenario::Ms;
use crate::world::{Phase, State};

/// A broker that has been well for this long, from where the agent looks, is healthy to it: evidence counts
/// for 3 s, a probe is made every half second, and clocks may be 5 % off.
const WELL: Ms = 4_000;

/// A host that has been denied its storage for this long, and of which the ledger has said so for as long,
/// has read it there, if it reads at all.
const READ_WITHIN: Ms = 15_000;

/// From the end of standing still to the call that was about to be made: a step of the world, and a moment.
const ONE_CALL: Ms = 600;

/// From a decision on fresh evidence to the fence there lie 5 s at most, by a clock that may be 5 % off,
/// whatever stood still in between.
const WELL_SINCE_DECISION: Ms = WELL + 5_500;

impl State {
    /// Whoever has started Kafka on a new host, and gives up, leaves nothing of it there for the next one to
    /// meet.
    pub(crate) fn check_end(&mut self, host: usize, broker: usize, entries: &[Entry]) {
        let ended = |entry: &Entry| matches!(entry, Entry::Ended { outcome: Outcome::Abandoned { .. } });
        if !entries.iter().any(ended) {
            return;
        }
        let Some(journal) = self.book.journals(broker).last() else { return };
        let plan = &journal.claim.plan;
        let start = plan.steps().position(|(_, step)| matches!(step, Step::StartBroker { .. }));
        let started = Intents::of(&journal.records).steps().any(|step| Some(step) == start);
        let ours = plan.from != plan.to && plan.to == self.name(host);
        let state = &self.brokers[broker];
        let left = state.processes.iter().any(|p| p.host == host)
            || state.attached.contains(&host)
            || state.holders.contains(&host);
        if started && ours && left {
            let what =
                format!("host {host} gives broker {} up, and something of it is left there", broker + 1);
            self.violate("nothing is left of what was abandoned", &what);
        }
    }
}

impl Agent {
    /// A healthy broker is not claimed, and no host is to be fenced that carries one, unless a person said
    /// so.
    pub(crate) fn check_claim(&self, claim: &Claim) {
        let mut state = self.world.state();
        state.track_health();
        if claim.cause != Cause::Automatic {
            return;
        }
        let broker = index(claim.plan.broker);
        let machine = &state.hosts[self.host];
        let (name, orders) = (state.name(self.host), Orders(state.book.orders().cloned().collect()));
        // The fence may be in force for long before it is written down: its agent may have stood still.
        let then = state.now.saturating_sub(READ_WITHIN);
        let told = state.book.stood(broker, &state.name(broker), then, &name);
        let fenced = told.fenced_here(&name, &orders).is_some();
        if machine.denied && fenced && machine.denied_since <= then {
            let what = format!("{name} claims broker {}, and was fenced for it", broker + 1);
            state.violate("a fenced host claims nothing", &what);
        }
        // Whoever stood still on its way to this write makes it when it goes on, touches nobody, and
        // withdraws.
        let just_woke = self.went_on(&state);
        if !just_woke && state.well_for(broker, self.host, WELL) && !claim.plan.stages.is_empty() {
            let what = format!("host {} claims broker {}, which is well", self.host, broker + 1);
            state.violate("a healthy broker is left alone", &what);
        }
        let named: BTreeSet<&HostName> = claim
            .plan
            .steps()
            .filter_map(|(_, step)| match step {
                Step::Prove { host, .. } | Step::AwaitRelease { host, .. } => Some(host),
                _ => None,
            })
            .collect();
        let standing = state.book.standing(broker, &state.name(broker));
        let next = standing.epoch.next() == claim.plan.epoch;
        if let Some(writer) = standing.writers.iter().find(|w| next && **w != name && !named.contains(w)) {
            let what = format!("{name} claims broker {} and does not mean to prove {writer}", broker + 1);
            state.violate("every possible writer is in the plan", &what);
        }
        for (_, step) in claim.plan.steps() {
            if let Step::Fence { host, .. } = step
                && !just_woke
                && let Some(target) = state.host_of(host)
            {
                self.check_carried(&mut state, target, WELL, "is going to be fenced");
            }
        }
    }

    fn check_carried(&self, state: &mut State, target: usize, ms: Ms, what: &str) {
        for broker in 0..state.brokers.len() {
            // What is left of it behind a fence is not the broker that is well elsewhere.
            let serves = state.brokers[broker].registration.map(|registration| registration.process);
            let there =
                state.brokers[broker].processes.iter().any(|p| p.host == target && Some(p.id) == serves);
            if there && state.well_for(broker, self.host, ms) {
                let what = format!("host {target} {what} while broker {} on it is well", broker + 1);
                state.violate("a healthy broker is left alone", &what);
            }
        }
    }

    /// The fence must not meet a healthy broker either, unless it got well while it was on its way, or an
    /// agent carries on with what was decided before it died.
    pub(crate) fn check_fence(&self, target: usize, epoch: Epoch) {
        let mut state = self.world.state();
        state.track_health();
        let name = state.name(self.host);
        let mut ours = (0..state.brokers.len()).filter_map(|broker| {
            let journal = state.book.journals(broker).find(|j| j.epoch == epoch && j.claim.by == name)?;
            journal
                .outcome()
                .is_none()
                .then(|| journal.records.iter().any(|r| matches!(r.entry, Entry::Resumed)))
        });
        let resumed = ours.any(|resumed| resumed);
        if !resumed {
            self.check_carried(&mut state, target, WELL_SINCE_DECISION, "is being fenced");
        }
    }

    /// An act belongs to an epoch that this host has won, and to none that is over.
    pub(crate) fn check_act(&self, act: &str, broker: usize, epoch: Epoch) {
        let mut state = self.world.state();
        let name = state.name(self.host);
        let here = format!("{act} of broker {} by host {} under epoch {epoch}", broker + 1, self.host);
        if !state.book.journals(broker).any(|journal| journal.epoch == epoch && journal.claim.by == name) {
            state.violate("an act belongs to an epoch that was won", &here);
        }
        let newer = state.book.journals(broker).any(|j| j.epoch > epoch && fence_is_proven(j));
        if newer && !self.goes_on_behind_its_fence(&state) {
            state.violate("no act by an old epoch after a newer one has proven its fence", &here);
        }
    }

    /// Who stood still between its look and its call makes that call when it goes on. Where its storage alone
    /// was denied it can do so, and harms nobody: the storage refuses it, and the owner defends the address.
    /// It does no more: the ledger refuses it next.
    fn goes_on_behind_its_fence(&self, state: &State) -> bool {
        state.hosts[self.host].denied && self.went_on(state)
    }

    /// Whether it stood still until a moment ago.
    fn went_on(&self, state: &State) -> bool {
        let machine = &state.hosts[self.host];
        let until = machine.frozen_until.max(machine.agent_frozen_until);
        until > 0 && state.now.saturating_sub(until) <= ONE_CALL
    }

    /// No start without a proof, in force now, of every host that could be writing.
    pub(crate) fn check_start(&self, broker: usize, epoch: Epoch, proofs: &[Proof]) {
        let mut state = self.world.state();
        let here = format!("broker {} on host {} under epoch {epoch}", broker + 1, self.host);
        if proofs.is_empty() {
            state.violate("no start without a proof", &here);
        }
        // What it starts has no log dirs, and ends.
        if self.goes_on_behind_its_fence(&state) {
            return;
        }
        if let Some(by) = state.lock_in(broker, self.host) {
            let what = format!("{here}, while the storage holds the lock of host {by}");
            state.violate("no start against a lock that is held", &what);
        }
        let running = state.brokers[broker].processes.iter().filter(|p| state.may_write(p)).map(|p| p.host);
        let on_the_way = state.brokers[broker].starting.iter().map(|(host, _)| *host);
        let on_the_way = on_the_way.filter(|h| state.hosts[*h].on && !state.hosts[*h].denied);
        let others: Vec<usize> = running.chain(on_the_way).filter(|h| *h != self.host).collect();
        for other in others {
            let what = format!("{here}, while host {other} may write or is about to start it");
            state.violate("no start without a proof of every possible writer", &what);
        }
    }

    /// Kafka is stopped only for a person's switchover, and where packets did not follow its address.
    pub(crate) fn check_stop(&self, broker: usize) {
        let mut state = self.world.state();
        let ordered = state.book.orders().any(
            |order| matches!(&order.what, Instruction::Switchover { broker: b, .. } if index(*b) == broker),
        );
        if !ordered && state.brokers[broker].unreached != Some(self.host) {
            let what = format!("host {} stops broker {} and nobody asked for it", self.host, broker + 1);
            state.violate("a healthy broker is left alone", &what);
        }
    }

    /// Kafka is killed only where it serves without a registration.
    pub(crate) fn check_kill(&self, broker: usize) {
        let mut state = self.world.state();
        let runs = state.brokers[broker].processes.iter().find(|p| p.host == self.host);
        let lost =
            runs.is_none_or(|p| p.phase == Phase::Serves) && state.brokers[broker].registration.is_none();
        if !lost {
            let what =
                format!("host {} kills broker {}, which has a registration or starts", self.host, broker + 1);
            state.violate("a healthy broker is left alone", &what);
        }
    }

    /// The registration of a broker that may still write is not removed.
    pub(crate) fn check_unregister(&self, broker: usize) {
        let mut state = self.world.state();
        // A request that comes late hits a broker that lives, whose agent sees that and starts it again.
        if self.goes_on_behind_its_fence(&state) {
            return;
        }
        let writers = state.brokers[broker].processes.iter().filter(|p| state.may_write(p));
        if let Some(host) = writers.map(|p| p.host).next() {
            let what = format!(
                "host {} unregisters broker {}, which may write on host {host}",
                self.host,
                broker + 1
            );
            state.violate("unregistered only after the proof", &what);
        }
    }
}
