//! What agents reach over the network: fence devices, and the cluster itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use recovery::model::{BrokerId, Epoch, HostName, PartitionView, ProbeOutcome, Replication};
use recovery::ports::{Advertised, Cluster, Fence, Note, Proof, Reach, Standing, StepError, Unregistered};

use crate::agent::{Agent, id, index, refused, unconfirmed};
use crate::scenario::{Bug, Device as Fails, FenceKind, Ms, Node};
use crate::signals::endpoint;
use crate::world::State;

/// A driver's own deadline.
const DEADLINE: Ms = 5_000;

/// The device that fences one host, as one agent reaches it.
pub(crate) struct Device {
    pub(crate) agent: Agent,
    pub(crate) target: usize,
}

impl Device {
    fn fails(&self) -> Option<Fails> {
        let state = self.agent.world.state();
        let (fails, until) = state.hosts[self.target].device?;
        (state.now < until).then_some(fails)
    }

    /// Asks the device. What it does goes on when whoever asked is gone.
    async fn ask<T: Send + 'static>(
        &self,
        action: &str,
        effect: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Result<T, StepError> {
        self.agent.act(1, 10, |_| ()).await;
        let (here, fails) = (Node::Host(self.agent.host), self.fails());
        let (there, back, wait) = {
            let mut state = self.agent.world.state();
            let slow = fails == Some(Fails::Slow);
            let wait =
                if slow { state.latency.between(2_000, 7_000) } else { state.latency.between(50, 800) };
            (state.passes(here, Node::Devices), state.passes(Node::Devices, here), wait)
        };
        if !there {
            self.agent.world.sleep(DEADLINE).await;
            self.agent.awake().await;
            return Err(unconfirmed(action));
        }
        let world = self.agent.world.clone();
        let done = tokio::spawn(async move {
            world.sleep(wait).await;
            effect(&mut world.state())
        });
        let done = done.await;
        if !back || fails == Some(Fails::Mute) {
            self.agent.world.sleep(DEADLINE).await;
            self.agent.awake().await;
            return Err(unconfirmed(action));
        }
        self.agent.awake().await;
        done.map_err(|_| unconfirmed(action))
    }
}

fn cut_off(state: &mut State, target: usize) {
    let kind = state.fence_kind(target);
    state.say(|| format!("the fence of host {target} takes effect ({kind:?})"));
    match kind {
        FenceKind::Power => state.power_off(target),
        FenceKind::Storage if state.hosts[target].denied => {}
        FenceKind::Storage => {
            let now = state.now;
            state.hosts[target].denied = true;
            state.hosts[target].denied_since = now;
        }
    }
}

fn is_cut_off(state: &State, target: usize) -> bool {
    match state.fence_kind(target) {
        FenceKind::Power => !state.hosts[target].on,
        FenceKind::Storage => state.hosts[target].denied,
    }
}

#[async_trait]
impl Fence for Device {
    fn name(&self) -> &str {
        "device"
    }

    fn leaves_running(&self) -> bool {
        self.agent.world.state().fence_kind(self.target) == FenceKind::Storage
    }

    async fn fence(&self, _host: &HostName, epoch: Epoch) -> Result<Note, StepError> {
        self.agent.check_fence(self.target, epoch);
        let (target, fails) = (self.target, self.fails());
        if fails == Some(Fails::Refuses) {
            return Err(refused("fence the host", "the device says no"));
        }
        self.ask("fence the host", move |state| {
            if fails != Some(Fails::Lies) && state.setup.bug != Some(Bug::EmptyProof) {
                cut_off(state, target);
            }
        })
        .await?;
        Ok(Note::new("done"))
    }

    async fn prove(&self, host: &HostName, _epoch: Epoch) -> Result<Proof, StepError> {
        if self.fails() == Some(Fails::Unknown) {
            return Err(unconfirmed("read the host's state"));
        }
        let target = self.target;
        let off = self
            .ask("read the host's state", move |state| {
                is_cut_off(state, target) || state.setup.bug == Some(Bug::EmptyProof)
            })
            .await?;
        if !off {
            return Err(refused("prove that the host cannot write", "it is on"));
        }
        Ok(Proof { host: host.clone(), by: "device".to_owned(), note: Note::new("off") })
    }

    async fn lift(&self, _host: &HostName) -> Result<Note, StepError> {
        let target = self.target;
        self.ask("lift the fence", move |state| state.hosts[target].denied = false).await?;
        Ok(Note::new("on"))
    }

    async fn check(&self, _host: &HostName) -> Result<Note, StepError> {
        Ok(Note::new("answers"))
    }
}

/// Every partition is on every broker; there are as many as brokers, each led by another one.
pub(crate) fn partitions(state: &State) -> Arc<PartitionView> {
    let all: Vec<BrokerId> = (0..state.brokers.len()).map(id).collect();
    let isr: Vec<BrokerId> = all.iter().filter(|b| state.brokers[index(**b)].in_isr).copied().collect();
    let partition = |n: usize| Replication {
        topic: "t".to_owned(),
        partition: i32::try_from(n).unwrap_or_default(),
        leader: isr.first().copied(),
        isr: isr.clone(),
        replicas: all.clone(),
    };
    Arc::new(PartitionView { partitions: (0..2).map(partition).collect() })
}

/// A broker other than `not` that answers `from`.
pub(crate) fn survivor(state: &State, from: usize, not: Option<usize>) -> Option<usize> {
    let mut others = (0..state.brokers.len()).filter(|b| Some(*b) != not);
    others.find(|b| state.probe(from, *b) == ProbeOutcome::Answered)
}

#[async_trait]
impl Cluster for Agent {
    async fn id(&self) -> Result<String, StepError> {
        self.awake().await;
        let found = survivor(&self.world.state(), self.host, None);
        found.map(|_| "cluster".to_owned()).ok_or_else(|| unconfirmed("ask for the cluster's id"))
    }

    async fn standing(&self, broker: BrokerId) -> Result<Standing, StepError> {
        self.awake().await;
        let state = self.world.state();
        let at = index(broker);
        let Some(via) = survivor(&state, self.host, Some(at)) else {
            return Err(unconfirmed("ask a surviving broker"));
        };
        let answers = state.probe(self.host, at) == ProbeOutcome::Answered;
        let advertised = Advertised { at: endpoint(at), fails: None, reached_by: BTreeSet::new() };
        Ok(Standing {
            listed: state.brokers[via].lists & (1 << at) != 0,
            replicas: 2,
            in_isr: if state.brokers[at].in_isr { 2 } else { 0 },
            leads: 0,
            alone: 0,
            answers,
            advertised: answers.then_some(advertised),
            via: id(via),
        })
    }

    async fn reach(&self, _: BrokerId) -> Reach {
        Reach::Untold { why: "no peer asks here".to_owned() }
    }

    async fn registered(&self, broker: BrokerId) -> Result<bool, StepError> {
        self.awake().await;
        let state = self.world.state();
        match survivor(&state, self.host, Some(index(broker))) {
            Some(_) => Ok(state.brokers[index(broker)].registration.is_some()),
            None => Err(unconfirmed("ask a surviving broker")),
        }
    }

    async fn quorum(&self) -> Result<(), StepError> {
        self.awake().await;
        let found = self.world.state().controllers_hear(self.host);
        if found { Ok(()) } else { Err(unconfirmed("find the active controller")) }
    }

    async fn behind(&self, _broker: BrokerId) -> Result<u64, StepError> {
        self.awake().await;
        Ok(0)
    }

    async fn partitions(&self) -> Result<PartitionView, StepError> {
        self.awake().await;
        Ok((*partitions(&self.world.state())).clone())
    }

    async fn unregister(&self, broker: BrokerId, sharing: &BTreeSet<BrokerId>) -> Unregistered {
        let (at, host) = (index(broker), self.host);
        self.check_unregister(at);
        let (here, there) = (Node::Host(host), Node::Controllers);
        self.act(5, 100, |state| {
            let why = "the controllers cannot be reached".to_owned();
            if !state.passes(here, there) || state.now < state.no_quorum_until {
                return Unregistered::NotSent { why };
            }
            let down = sharing
                .iter()
                .find(|b| state.brokers[index(**b)].registration.is_none_or(|r| r.unfenced_at.is_none()));
            if let Some(down) = down {
                return Unregistered::NotSent { why: format!("broker {down} is down") };
            }
            state.unregister(at);
            state.say(|| format!("broker {broker} is unregistered"));
            if state.passes(there, here) { Unregistered::Gone } else { Unregistered::NoAnswer { why } }
        })
        .await
    }

    async fn elect_preferred(&self, _broker: BrokerId) -> Result<Note, StepError> {
        self.awake().await;
        Ok(Note::new("elected"))
    }
}
