//! What the signals of one agent say of the world.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use recovery::ledger_signal::LedgerSignal;
use recovery::model::{CanaryOutcome, Endpoint, Evidence, Fact, PeerView, ProbeOutcome, QuorumView};
use recovery::ports::{Clock, HealthSignal, Ledger};
use tokio::sync::watch;

use crate::agent::{Agent, id, index};
use crate::remote::{partitions, survivor};
use crate::scenario::{Bug, Ms, Node};
use crate::world::State;

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(500);

/// From here on agents are lied to, where that is planted: the broker has been well until then.
const LIES_FROM: Ms = 5_000;

pub(crate) fn endpoint(broker: usize) -> Endpoint {
    Endpoint { host: format!("10.0.0.{}", broker + 1), port: 9092 }
}

/// The real signal of the ledger, and all others in one.
pub(crate) fn signals(
    agent: &Agent,
    guarded: &[usize],
    ledger: Arc<dyn Ledger>,
) -> Vec<Arc<dyn HealthSignal>> {
    let home = |broker: usize| (id(broker), agent.world.state().name(broker));
    let all = 0..agent.world.state().brokers.len();
    let listed = watch::channel(all.map(|b| (id(b), endpoint(b))).collect()).1;
    let homes = guarded.iter().map(|b| home(*b)).collect();
    let ledger = LedgerSignal::new(ledger, homes, listed);
    let bug = agent.world.state().setup.bug;
    let world = Looks { agent: agent.clone(), guarded: guarded.to_vec() };
    vec![Arc::new(world), Arc::new(Reads { ledger, bug })]
}

/// The ledger's signal, as it is but for a planted bug.
struct Reads {
    ledger: LedgerSignal,
    bug: Option<Bug>,
}

#[async_trait]
impl HealthSignal for Reads {
    fn name(&self) -> &'static str {
        "ledger"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let mut said = self.ledger.look(clock).await;
        for evidence in &mut said {
            let Fact::Ledger(reading) = &mut evidence.fact else { continue };
            for standing in reading.brokers.values_mut() {
                match self.bug {
                    Some(Bug::ForgottenWriter) => standing.writers = BTreeSet::from([standing.owner.clone()]),
                    Some(Bug::ForgottenFence) => standing.fenced.clear(),
                    Some(Bug::OwnRemovalIsStop) => standing.removed = None,
                    _ => {}
                }
            }
        }
        said
    }
}

struct Looks {
    agent: Agent,
    guarded: Vec<usize>,
}

#[async_trait]
impl HealthSignal for Looks {
    fn name(&self) -> &'static str {
        "world"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        self.agent.awake().await;
        let at = clock.now().mono;
        let facts = self.facts(&mut self.agent.world.state());
        self.agent.awake().await;
        facts.into_iter().map(|fact| Evidence { signal: "world", at, fact }).collect()
    }
}

impl Looks {
    fn facts(&self, state: &mut State) -> Vec<Fact> {
        let host = self.agent.host;
        let mut facts: Vec<Fact> = Vec::with_capacity(16);
        for broker in 0..state.brokers.len() {
            let mut outcome = state.probe(host, broker);
            match state.setup.bug {
                Some(Bug::FalseAlarm) if broker == 0 && state.now >= LIES_FROM => {
                    outcome = ProbeOutcome::Unreachable;
                }
                Some(Bug::Paralysis) => outcome = ProbeOutcome::Answered,
                _ => {}
            }
            let now = state.now;
            if outcome == ProbeOutcome::Answered {
                state.hosts[host].answered[broker] = now;
            }
            facts.push(Fact::Probe { broker: id(broker), outcome });
        }
        let dead = |fact: &&Fact| !matches!(fact, Fact::Probe { outcome: ProbeOutcome::Answered, .. });
        if facts.iter().filter(dead).count() * 2 > facts.len() {
            state.hosts[host].dark = state.now;
        }
        self.cluster_facts(state, &mut facts);
        self.local_facts(state, &mut facts);
        self.peer_facts(state, &mut facts);
        facts
    }

    fn cluster_facts(&self, state: &mut State, facts: &mut Vec<Fact>) {
        let host = self.agent.host;
        match survivor(state, host, None) {
            Some(via) => {
                let lists = state.brokers[via].lists;
                let (now, life) = (state.now, state.hosts[host].life);
                for broker in (0..state.brokers.len()).filter(|b| lists & (1 << b) != 0) {
                    state.hosts[host].told_listed[broker] = Some(life);
                    state.hosts[host].listed[broker] = now;
                }
                let listed = (0..state.brokers.len()).filter(|b| lists & (1 << b) != 0);
                facts.push(Fact::Listed { brokers: listed.map(|b| (id(b), endpoint(b))).collect() });
                for broker in self.guarded.iter().filter(|b| lists & (1 << **b) == 0) {
                    let registered = state.brokers[*broker].registration.is_some();
                    facts.push(Fact::Registration { broker: id(*broker), registered });
                }
                facts.push(Fact::Partitions(partitions(state)));
            }
            None => facts.push(Fact::Blind { why: "no broker answers".to_owned() }),
        }
        if state.controllers_hear(host) {
            let silence = (0..state.brokers.len()).filter_map(|broker| {
                let heard = state.brokers[broker].registration?.heard;
                let lies = state.setup.bug == Some(Bug::FalseAlarm) && state.now >= LIES_FROM;
                let lie = broker == 0 && lies;
                let silent = if lie { 60_000 } else { state.now.saturating_sub(heard) };
                (heard >= state.leader_since).then(|| (id(broker), Duration::from_millis(silent)))
            });
            let view =
                QuorumView { leader: 101, leader_epoch: state.leader_epoch, silence: silence.collect() };
            facts.push(Fact::Quorum(view));
        }
    }

    fn local_facts(&self, state: &State, facts: &mut Vec<Fact>) {
        let host = self.agent.host;
        let outcome = if state.stalled(host) {
            CanaryOutcome::Stalled
        } else if state.hosts[host].denied {
            CanaryOutcome::Failed { why: "access denied".to_owned() }
        } else {
            CanaryOutcome::Wrote
        };
        let brokers = self.guarded.iter().map(|b| id(*b)).collect();
        facts.push(Fact::Storage { canary: "/mnt/kafka".to_owned(), brokers, outcome });
        for broker in &self.guarded {
            facts.push(Fact::Local { broker: id(*broker), process: state.local(host, *broker) });
            let here = state.brokers[*broker].holders.contains(&host);
            facts.push(Fact::Address { broker: id(*broker), here });
        }
    }

    fn peer_facts(&self, state: &State, facts: &mut Vec<Fact>) {
        let here = self.agent.host;
        for peer in 0..state.hosts.len() {
            let still = state.now < state.hosts[peer].frozen_until.max(state.hosts[peer].agent_frozen_until);
            let talks = state.hosts[peer].agent_runs && !still;
            if peer != here && talks && state.reaches(Node::Host(here), Node::Host(peer)) {
                facts.extend(view(state, peer).map(Fact::Peer));
            }
        }
    }
}

/// What an agent tells its peers: what its daemon says, and what a planted bug adds to that.
fn view(state: &State, host: usize) -> Option<PeerView> {
    let mut view = state.hosts[host].status.as_ref()?.borrow().view.clone()?;
    if state.setup.bug == Some(Bug::BlindStop) {
        for (broker, saw) in &mut view.brokers {
            saw.stopped |=
                saw.outcome != ProbeOutcome::Answered && looked_stopped(state, host, index(*broker));
        }
    }
    Some(view)
}

/// No look since the broker went had it in the list, however long nobody could look.
fn looked_stopped(state: &State, host: usize, broker: usize) -> bool {
    let (listed, answered) = (state.hosts[host].listed[broker], state.hosts[host].answered[broker]);
    survivor(state, host, None).is_some() && listed < state.now && listed <= answered + 2_000
}

/// The brokers that an agent guards: all on a standby, its own on a home host.
pub(crate) fn guarded(state: &State, host: usize) -> Vec<usize> {
    if host < state.setup.brokers { vec![host] } else { (0..state.setup.brokers).collect() }
}

/// How many brokers a host may own.
pub(crate) fn limit(state: &State, host: usize) -> usize {
    if host < state.setup.brokers { 1 } else { state.setup.max_brokers }
}

/// A host's rank among the standbys.
pub(crate) fn rank(host: usize) -> u32 {
    100 + u32::try_from(host % 2).unwrap_or_default()
}
