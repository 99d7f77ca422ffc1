//! The protocol as states and actions: what each agent, the ledger and the world may do next.
//!
//! Nothing is timed and nothing is fair. An agent that freezes is one that takes no action for as long as the
//! others like; a lease that runs out is a `Plan` made while the epoch is open.

use stateright::{Model, Property};

use crate::Flaw;
use crate::hosts::{Host, Hosts};
use crate::ledger::{Entry, Epoch, Ledger, Outcome, Plan, Write};

/// The steps that bear on safety; what lies between proof and start (address, storage, configuration) may
/// fail, which is an `End` here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Fence,
    Prove,
    Start,
}

/// What an agent's process has in its memory. A crash empties it, and so does a write without an
/// acknowledgement: the agent then stops and reads the ledger anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Run {
    #[default]
    Idle,
    /// The ledger was read and the plan made from it. Others may write before it is claimed.
    Planned(Plan),
    /// Carries out the plan of its epoch.
    Working(Work),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Work {
    pub(crate) epoch: Epoch,
    /// The step whose intent was acknowledged last. Its act comes now, later, or never.
    pub(crate) doing: Option<Step>,
    /// Whom this run takes for proven.
    pub(crate) proven: Hosts,
    /// Whom this run did read back as fenced: the same, unless the protocol is flawed.
    pub(crate) read_back: Hosts,
}

/// One standby's agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Agent {
    pub(crate) run: Run,
    /// A write that was never acknowledged to it. It lands at once (and the acknowledgement was lost), late,
    /// or never (an outage).
    pub(crate) late: Option<Write>,
}

/// Everything, seen from above.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    agents: [Agent; Host::STANDBYS.len()],
    /// Where Kafka runs.
    pub(crate) kafka: Hosts,
    /// Nothing runs there, and nothing there can write.
    pub(crate) fenced: Hosts,
    /// Fence requests on their way. "Accepted" says no more than this.
    pub(crate) asked: Hosts,
    /// Where `guard` has said yes and Kafka is about to start.
    pub(crate) let_in: Hosts,
    /// Whether Kafka was ever started by a run that had not read back every writer as fenced.
    pub(crate) unproven_start: bool,
}

impl State {
    pub(crate) fn agent(&self, host: Host) -> &Agent {
        &self.agents[host as usize - 1]
    }

    /// Where Kafka writes to the broker's log dirs.
    pub(crate) fn writing(&self) -> Hosts {
        self.fenced.iter().fold(self.kafka, Hosts::without)
    }

    fn agent_mut(&mut self, host: Host) -> &mut Agent {
        &mut self.agents[host as usize - 1]
    }
}

/// Whether the agent hears back about its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Heard,
    NotHeard,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// An agent believes that the owner is dead, rightly or not, and that the claimant of an open epoch is
    /// silent.
    Plan(Host),
    /// It claims what it has planned.
    Claim(Host, Reply),
    /// It carries on with its own open epoch.
    Resume(Host),
    /// It writes down what it is about to do.
    Begin(Host, Step, Reply),
    /// It asks for the fencing of everyone in its plan.
    AskFences(Host),
    /// It takes the second host for fenced.
    Prove(Host, Host),
    /// It starts Kafka on its own host.
    StartKafka(Host),
    /// It writes down the end.
    End(Host, Outcome, Reply),
    /// It dies, or gives up; somebody starts it again.
    Crash(Host),
    /// Its unacknowledged write arrives.
    Lands(Host),
    /// A fence request is carried out: everything on the host is killed.
    FenceTakes(Host),
    /// A person powers the host on, or lifts the fence, without asking anybody. The host boots.
    Unfence(Host),
    /// Kafka ends by itself.
    KafkaDies(Host),
    /// Something other than a takeover wants to start Kafka: `guard` reads the ledger and says yes.
    GuardSaysYes(Host),
    /// Kafka starts after that, at once or much later.
    GuardedStart(Host),
}

/// The protocol, within bounds, maybe with a flaw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    pub(crate) max_epochs: Epoch,
    /// The rule that is broken.
    pub(crate) flaw: Option<Flaw>,
    pub(crate) ask: Ask,
}

/// What is asked of the protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    Safety,
    Recovery,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            ledger: Ledger::default(),
            agents: [Agent::default(); Host::STANDBYS.len()],
            kafka: Hosts::of(Host::Old),
            fenced: Hosts::NONE,
            asked: Hosts::NONE,
            let_in: Hosts::NONE,
            unproven_start: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for host in Host::STANDBYS {
            if !state.fenced.contains(host) || self.flaw == Some(Flaw::FenceKillsNothing) {
                self.agent_actions(state, host, actions);
            }
            if state.agent(host).late.is_some() {
                actions.push(Action::Lands(host));
            }
        }
        for host in Host::ALL {
            self.world_actions(state, host, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.apply(&mut state, action);
        self.forget_the_dead(&mut state);
        (state != *last).then_some(state)
    }

    /// The standbys are alike, so whoever claims first may be called A. This halves the states.
    fn within_boundary(&self, state: &State) -> bool {
        state.ledger.0.first().is_none_or(|journal| journal.plan.to == Host::A)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        match self.ask {
            Ask::Safety => crate::properties::safety(),
            Ask::Recovery => vec![crate::properties::always_recoverable()],
        }
    }
}

impl Protocol {
    fn agent_actions(&self, state: &State, host: Host, actions: &mut Vec<Action>) {
        let replies = [Reply::Heard, Reply::NotHeard];
        let ledger = &state.ledger;
        let work = match state.agent(host).run {
            Run::Idle => {
                if ledger.newest_journal().is_some_and(|j| j.is_open() && j.plan.to == host) {
                    actions.push(Action::Resume(host));
                } else if ledger.newest() < self.max_epochs && !ledger.closed_to_claims(self.flaw) {
                    actions.push(Action::Plan(host));
                }
                return;
            }
            Run::Planned(_) => {
                actions.extend(replies.map(|reply| Action::Claim(host, reply)));
                return;
            }
            Run::Working(work) => work,
        };
        let fence = ledger.journal(work.epoch).plan.fence;
        match work.doing {
            Some(Step::Fence) => actions.push(Action::AskFences(host)),
            Some(Step::Prove) => {
                let shown = fence.iter().filter(|target| self.counts_as_proof(state, work, *target));
                actions.extend(shown.map(|target| Action::Prove(host, target)));
            }
            Some(Step::Start) => actions.push(Action::StartKafka(host)),
            None => {}
        }
        match next_step(work, fence) {
            Some(Step::Start) => actions.extend(replies.map(|reply| Action::Begin(host, Step::Start, reply))),
            // Nobody reads these intents: one without an acknowledgement is no more than a crash.
            Some(step) => actions.push(Action::Begin(host, step, Reply::Heard)),
            None => {}
        }
        if work.doing == Some(Step::Start) && state.kafka.contains(host) {
            actions.extend(replies.map(|reply| Action::End(host, Outcome::Recovered, reply)));
        }
        actions.extend(replies.map(|reply| Action::End(host, Outcome::GivenUp, reply)));
        actions.push(Action::Crash(host));
    }

    fn world_actions(&self, state: &State, host: Host, actions: &mut Vec<Action>) {
        if state.asked.contains(host) {
            actions.push(Action::FenceTakes(host));
        }
        if state.fenced.contains(host) {
            actions.push(Action::Unfence(host));
        } else if state.kafka.contains(host) {
            actions.push(Action::KafkaDies(host));
        } else if state.let_in.contains(host) {
            actions.push(Action::GuardedStart(host));
        } else if state.ledger.guard_allows(host, self.flaw) {
            actions.push(Action::GuardSaysYes(host));
        }
    }

    /// Only what is read back counts.
    fn counts_as_proof(&self, state: &State, work: Work, target: Host) -> bool {
        let believed = match self.flaw {
            Some(Flaw::AcceptedIsProof) => true,
            // The lease of the claimant that was superseded ran out: it must have stopped by now, must it
            // not?
            Some(Flaw::TimerIsProof) => {
                let before = state.ledger.before(work.epoch);
                before.newest_journal().is_some_and(|j| j.is_open() && j.plan.to == target)
            }
            _ => false,
        };
        state.fenced.contains(target) || believed
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Plan(to) => {
                let ledger = &state.ledger;
                let (epoch, from) = (ledger.newest() + 1, ledger.owner(self.flaw));
                let plan = Plan { epoch, to, from, fence: ledger.writers(to, self.flaw) };
                state.agent_mut(to).run = Run::Planned(plan);
            }
            Action::Claim(host, reply) => {
                if let Run::Planned(plan) = state.agent(host).run
                    && self.write(state, host, Write::Claim(plan), reply)
                {
                    state.agent_mut(host).run = working(plan.epoch, Hosts::NONE);
                }
            }
            Action::Resume(host) => {
                let journal = state.ledger.journal(state.ledger.newest());
                // The intent to start shows that the proofs were made, once.
                let on_paper = self.flaw == Some(Flaw::WrittenProofCounts) && journal.start_begun;
                let proven = if on_paper { journal.plan.fence } else { Hosts::NONE };
                state.agent_mut(host).run = working(state.ledger.newest(), proven);
            }
            Action::Lands(host) => {
                if let Some(write) = state.agent_mut(host).late.take()
                    && state.ledger.accepts(write, self.flaw)
                {
                    state.ledger.take(write);
                }
            }
            Action::Crash(host) => state.agent_mut(host).run = Run::Idle,
            Action::FenceTakes(host) => self.fence_takes(state, host),
            Action::Unfence(host) => state.fenced.remove(host),
            Action::KafkaDies(host) => state.kafka.remove(host),
            Action::GuardSaysYes(host) => state.let_in.add(host),
            Action::GuardedStart(host) => {
                state.let_in.remove(host);
                state.kafka.add(host);
            }
            Action::Begin(host, ..)
            | Action::AskFences(host)
            | Action::Prove(host, _)
            | Action::StartKafka(host)
            | Action::End(host, ..) => {
                if let Run::Working(work) = state.agent(host).run {
                    self.carry_on(state, host, work, action);
                }
            }
        }
    }

    /// What an agent does under a claim: intent, act, end.
    fn carry_on(&self, state: &mut State, host: Host, mut work: Work, action: Action) {
        match action {
            Action::Begin(_, step, reply) => {
                let entry = if step == Step::Start { Entry::StartBegun } else { Entry::Intent };
                if !self.write(state, host, Write::Append(work.epoch, entry), reply) {
                    return;
                }
                work.doing = Some(step);
            }
            Action::AskFences(_) => {
                state.asked = state.asked.union(state.ledger.journal(work.epoch).plan.fence);
            }
            Action::Prove(_, target) => {
                work.proven.add(target);
                if state.fenced.contains(target) {
                    work.read_back.add(target);
                }
            }
            Action::StartKafka(_) => {
                state.kafka.add(host);
                // Asked of the ledger as it stood at the claim and by the rule without flaw: not of the plan.
                let writers = state.ledger.before(work.epoch).writers(host, None);
                state.unproven_start |= !work.read_back.includes(writers);
            }
            Action::End(_, outcome, reply) => {
                self.write(state, host, Write::Append(work.epoch, Entry::Ended(outcome)), reply);
                state.agent_mut(host).run = Run::Idle;
                return;
            }
            _ => {}
        }
        state.agent_mut(host).run = Run::Working(work);
    }

    /// Whether the write was done and acknowledged. If not, the run is over.
    fn write(&self, state: &mut State, host: Host, write: Write, reply: Reply) -> bool {
        let agent = state.agent_mut(host);
        agent.run = Run::Idle;
        if reply == Reply::NotHeard {
            // Of two that nobody heard of, the older is lost for good.
            agent.late = Some(write);
            return false;
        }
        let accepted = state.ledger.accepts(write, self.flaw);
        let refused = self.flaw == Some(Flaw::StaleAppendKept) && !state.ledger.accepts(write, None);
        if accepted {
            state.ledger.take(write);
        }
        accepted && !refused
    }

    /// The host is off, or has lost its storage and is killed: its agent dies with it.
    fn fence_takes(&self, state: &mut State, host: Host) {
        state.asked.remove(host);
        state.fenced.add(host);
        if self.flaw == Some(Flaw::FenceKillsNothing) {
            return;
        }
        state.kafka.remove(host);
        state.let_in.remove(host);
        if host != Host::Old {
            state.agent_mut(host).run = Run::Idle;
        }
    }

    /// Drops what has nothing left but to be refused, which keeps states from differing in it. A frozen fence
    /// request or start is not among it.
    fn forget_the_dead(&self, state: &mut State) {
        let State { ledger, agents, .. } = state;
        for agent in agents {
            agent.late = agent.late.filter(|write| ledger.accepts(*write, self.flaw));
            let next_write = match agent.run {
                Run::Planned(plan) => Write::Claim(plan),
                Run::Working(Work { epoch, doing: None | Some(Step::Prove), .. }) => {
                    Write::Append(epoch, Entry::Intent)
                }
                Run::Idle | Run::Working(_) => continue,
            };
            if !ledger.accepts(next_write, self.flaw) {
                agent.run = Run::Idle;
            }
        }
    }
}

fn working(epoch: Epoch, proven: Hosts) -> Run {
    Run::Working(Work { epoch, doing: None, proven, read_back: Hosts::NONE })
}

/// Fence, prove, and start when everyone is proven.
fn next_step(work: Work, fence: Hosts) -> Option<Step> {
    match work.doing {
        Some(Step::Start) => None,
        _ if work.proven.includes(fence) => Some(Step::Start),
        None => Some(Step::Fence),
        Some(Step::Fence) => Some(Step::Prove),
        Some(Step::Prove) => None,
    }
}
