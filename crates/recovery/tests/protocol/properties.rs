//! What must hold in every state, and what must be possible at all.

use stateright::{Model, Property};

use crate::hosts::{Host, Hosts};
use crate::ledger::{Journal, Outcome};
use crate::model::{Action, Protocol, Reply, Run, State, Step, Work};

pub(crate) const ONE_WRITER: &str = "never two writers on the log dirs";
pub(crate) const PROVEN: &str = "no start without a proof made in the same run for every writer";
pub(crate) const ONE_TAKEOVER: &str = "at most one agent works on the newest epoch, and it is its claimant";
pub(crate) const FENCED_BY_CLAIM: &str = "nobody is fenced unless a claim names it";
pub(crate) const NO_BYSTANDER: &str = "only the first owner and earlier claimants are ever fenced";
pub(crate) const RECOVERABLE: &str = "a standby left in peace completes a takeover";

pub(crate) fn safety() -> Vec<Property<Protocol>> {
    vec![
        Property::always(ONE_WRITER, |_, state: &State| state.writing().len() <= 1),
        Property::always(PROVEN, |_, state: &State| !state.unproven_start),
        Property::always(ONE_TAKEOVER, |_, state: &State| one_takeover(state)),
        Property::always(FENCED_BY_CLAIM, |_, state: &State| {
            touched(state).iter().all(|host| named(state, host))
        }),
        Property::always(NO_BYSTANDER, |_, state: &State| no_bystander(state)),
        Property::sometimes("a takeover completes", |_, state: &State| {
            ended(state, Outcome::Recovered).count() > 0
        }),
        Property::sometimes("a broker is taken over twice", |_, state: &State| {
            ended(state, Outcome::Recovered).count() > 1
        }),
        Property::sometimes("one who gave up is not fenced by the next", |_, state: &State| spared(state)),
        Property::sometimes("a superseded claimant is frozen right before its start", |_, state: &State| {
            about_to_thaw(state)
        }),
        Property::sometimes("a healthy owner is about to be fenced on a wrong belief", |_, state: &State| {
            state.kafka.contains(Host::Old) && state.asked.contains(Host::Old)
        }),
        Property::sometimes("nothing runs and nobody works", |_, state: &State| {
            state.kafka == Hosts::NONE && workers(state).count() == 0
        }),
    ]
}

/// The work under way, by host.
fn workers(state: &State) -> impl Iterator<Item = (Host, Work)> {
    Host::STANDBYS.into_iter().filter_map(|host| match state.agent(host).run {
        Run::Working(work) => Some((host, work)),
        _ => None,
    })
}

fn ended(state: &State, how: Outcome) -> impl Iterator<Item = &Journal> {
    state.ledger.0.iter().filter(move |j| j.end == Some(how))
}

/// Fenced, or about to be.
fn touched(state: &State) -> Hosts {
    state.fenced.union(state.asked)
}

fn one_takeover(state: &State) -> bool {
    let newest = || workers(state).filter(|(_, work)| work.epoch == state.ledger.newest());
    newest().count() <= 1 && newest().all(|(host, work)| state.ledger.journal(work.epoch).plan.to == host)
}

fn named(state: &State, host: Host) -> bool {
    state.ledger.0.iter().any(|j| j.plan.fence.contains(host))
}

fn no_bystander(state: &State) -> bool {
    let mut known = Hosts::of(Host::Old);
    state.ledger.0.iter().all(|journal| {
        let right = known.includes(journal.plan.fence);
        known.add(journal.plan.to);
        right
    })
}

/// A takeover completed, and a standby that had given up before is neither named nor fenced.
fn spared(state: &State) -> bool {
    let [first, .., last] = state.ledger.0.as_slice() else { return false };
    let gave_up = first.end == Some(Outcome::GivenUp) && !first.start_begun;
    gave_up && last.end == Some(Outcome::Recovered) && !named(state, first.plan.to)
}

/// It may be so for as long as it likes, and start Kafka then: nothing but its fence stops it.
fn about_to_thaw(state: &State) -> bool {
    let start = |work: &Work| work.doing == Some(Step::Start) && work.epoch < state.ledger.newest();
    state.kafka == Hosts::NONE && workers(state).any(|(_, work)| start(&work))
}

/// Asks whether the protocol can get out of every state it can get into.
///
/// From each state, for each standby that is not fenced: it starts over and is left in peace, which means
/// that only what it does and asks for happens; then its takeover must complete. One epoch more than were
/// used is granted.
pub(crate) fn always_recoverable() -> Property<Protocol> {
    Property::always(RECOVERABLE, |model: &Protocol, state: &State| {
        let more = Protocol { max_epochs: model.max_epochs + 1, ..*model };
        let live = Host::STANDBYS.into_iter().filter(|host| !state.fenced.contains(*host));
        live.into_iter().all(|host| completes(&more, state, host))
    })
}

fn completes(model: &Protocol, state: &State, host: Host) -> bool {
    let script = |action: &Action| match *action {
        Action::Plan(h) | Action::Resume(h) | Action::Claim(h, Reply::Heard) => h == host,
        Action::Begin(h, _, Reply::Heard) | Action::AskFences(h) | Action::StartKafka(h) => h == host,
        Action::Prove(h, _) | Action::End(h, Outcome::Recovered, Reply::Heard) => h == host,
        Action::FenceTakes(target) => target != host,
        _ => false,
    };
    let mut now = model.next_state(state, Action::Crash(host)).unwrap_or_else(|| state.clone());
    let mut before = Vec::new();
    while now.ledger == state.ledger || !recovered_on(&now, host) {
        let mut actions = Vec::new();
        model.actions(&now, &mut actions);
        let nexts = actions.into_iter().filter(script).filter_map(|action| model.next_state(&now, action));
        let Some(next) = nexts.into_iter().find(|next| *next != now && !before.contains(next)) else {
            return false;
        };
        before.push(std::mem::replace(&mut now, next));
    }
    now.kafka == Hosts::of(host)
}

fn recovered_on(state: &State, host: Host) -> bool {
    let newest = state.ledger.newest_journal();
    newest.is_some_and(|j| j.plan.to == host && j.end == Some(Outcome::Recovered))
}
