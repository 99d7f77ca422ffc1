//! One life of one agent: its clock, and its ports onto what is on its own host.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use recovery::event::{Event, What};
use recovery::model::{BrokerId, Epoch, HeldLock, Moment, Now};
use recovery::ports::{
    Address, BrokerHost, Clock, EventSink, HostLock, Ledger, Note, Ports, ProcessState, Proof, StepError,
    Storage,
};

use crate::scenario::{Bug, Frozen, Ms};
use crate::world::{Phase, Process, State, World};

/// One life of the agent of one host. What an earlier life left running does nothing any more.
#[derive(Clone)]
pub(crate) struct Agent {
    pub(crate) world: World,
    pub(crate) host: usize,
    pub(crate) life: u32,
}

/// A broker's place in the lists.
pub(crate) fn index(broker: BrokerId) -> usize {
    usize::try_from(broker.0 - 1).unwrap_or_default()
}

/// The broker at a place in the lists.
pub(crate) fn id(index: usize) -> BrokerId {
    BrokerId(i32::try_from(index + 1).unwrap_or_default())
}

pub(crate) fn refused(action: &str, why: &str) -> StepError {
    StepError::Refused { driver: "simulated", action: action.to_owned(), why: why.to_owned() }
}

pub(crate) fn unconfirmed(action: &str) -> StepError {
    StepError::Unconfirmed { driver: "simulated", action: action.to_owned(), limit: Duration::from_secs(5) }
}

enum Pulse {
    Runs,
    Still,
    Gone,
}

impl Agent {
    fn pulse(&self) -> Pulse {
        let state = self.world.state();
        let host = &state.hosts[self.host];
        if host.life != self.life {
            Pulse::Gone
        } else if state.now < host.frozen_until.max(host.agent_frozen_until) {
            Pulse::Still
        } else {
            Pulse::Runs
        }
    }

    /// Returns once this agent may go on; never, if its life is over.
    pub(crate) async fn awake(&self) {
        loop {
            let woken = self.world.wake.notified();
            match self.pulse() {
                Pulse::Runs => return,
                Pulse::Still => woken.await,
                Pulse::Gone => pending().await,
            }
        }
    }

    /// One act: takes a while, and may be where the host is made to stand still, before its effect or after.
    pub(crate) async fn act<T>(&self, least: Ms, most: Ms, effect: impl FnOnce(&mut State) -> T) -> T {
        self.awake().await;
        let (wait, late) = {
            let mut state = self.world.state();
            state.acted += 1;
            (state.latency.between(least, most), state.latency.percent(70))
        };
        self.world.sleep(wait).await;
        if late {
            self.may_freeze();
            self.awake().await;
        }
        let result = effect(&mut self.world.state());
        if !late {
            self.may_freeze();
        }
        self.awake().await;
        result
    }

    pub(crate) fn may_freeze(&self) {
        let mut state = self.world.state();
        let now = state.now;
        let host = &mut state.hosts[self.host];
        if host.life != self.life {
            return;
        }
        let Some((left, frozen, lasts)) = &mut host.freeze_at_act else { return };
        *left = left.saturating_sub(1);
        if *left > 0 {
            return;
        }
        let (frozen, until) = (*frozen, now + *lasts);
        host.freeze_at_act = None;
        match frozen {
            Frozen::Host => host.frozen_until = until,
            Frozen::Agent => host.agent_frozen_until = until,
        }
        let name = state.name(self.host);
        state.say(|| format!("{name} stands still ({frozen:?}) in the middle of an act, until {until} ms"));
    }

    /// Every port of this agent.
    pub(crate) fn ports(&self, guarded: &[usize], ledger: Arc<dyn Ledger>) -> Ports {
        let count = self.world.state().hosts.len();
        let others = (0..count).filter(|host| *host != self.host);
        let fences = others.map(|target| {
            let name = self.world.state().name(target);
            (name, Arc::new(crate::remote::Device { agent: self.clone(), target }) as _)
        });
        let here = |broker: usize| OnHost { agent: self.clone(), broker };
        Ports {
            fences: fences.collect(),
            storage: guarded.iter().map(|b| (id(*b), Arc::new(here(*b)) as _)).collect(),
            addresses: guarded.iter().map(|b| (id(*b), Arc::new(here(*b)) as _)).collect::<BTreeMap<_, _>>(),
            broker_host: Arc::new(self.clone()),
            cluster: Arc::new(self.clone()),
            ledger,
            host_lock: Arc::new(self.clone()),
            clock: Arc::new(self.clone()),
            events: Arc::new(self.clone()),
        }
    }
}

#[async_trait]
impl Clock for Agent {
    fn now(&self) -> Now {
        let state = self.world.state();
        let drift = state.setup.drift[self.host];
        let rate = u64::try_from(1000 + drift).unwrap_or(1000);
        let stops = state.setup.bug == Some(Bug::OldDecision);
        let counted = state.now - if stops { state.hosts[self.host].stood_still } else { 0 };
        // Machines were not switched on together.
        let since_boot = 1_000_000 + 77_777 * self.host as u64 + counted * rate / 1000;
        Now { mono: Moment(Duration::from_millis(since_boot)), wall: state.wall(self.host) }
    }

    async fn sleep(&self, duration: Duration) {
        let drift = self.world.state().setup.drift[self.host];
        let rate = u64::try_from(1000 + drift).unwrap_or(1000);
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 1000);
        self.world.sleep(ms * 1000 / rate).await;
        self.awake().await;
    }
}

impl HostLock for Agent {
    fn try_lock(&self, broker: BrokerId) -> Result<Box<dyn Send>, StepError> {
        let mut state = self.world.state();
        let host = &mut state.hosts[self.host];
        if host.life == self.life && host.locks.insert(broker) {
            return Ok(Box::new(Unlock(self.clone(), broker)));
        }
        Err(refused("lock the broker", "it is locked"))
    }
}

struct Unlock(Agent, BrokerId);

impl Drop for Unlock {
    fn drop(&mut self) {
        let mut state = self.0.world.state();
        let host = &mut state.hosts[self.0.host];
        if host.life == self.0.life {
            host.locks.remove(&self.1);
        }
    }
}

impl EventSink for Agent {
    fn emit(&self, event: &Event) {
        let mut state = self.world.state();
        let broker = event.broker.map_or_else(String::new, |b| format!(" broker {b}:"));
        let host = &event.host;
        state.say(|| match &event.what {
            What::Decided { decision, .. } => format!("{host}:{broker} {decision}"),
            What::StepFailed { step, error, .. } => format!("{host}:{broker} {step} failed: {error}"),
            What::Ended { outcome, .. } => format!("{host}:{broker} {outcome}"),
            What::StepStarted { step, undo, .. } => format!("{host}:{broker} begins {step} (undo: {undo})"),
            What::StepDone { step, note, .. } => format!("{host}:{broker} has done {step}: {note}"),
            What::Rejoining { state, .. } | What::Waiting { state, .. } => format!("{host}:{broker} {state}"),
            other => format!("{host}:{broker} {other:?}"),
        });
    }
}

/// What belongs to one broker on one host: its storage and its address.
struct OnHost {
    agent: Agent,
    broker: usize,
}

#[async_trait]
impl Storage for OnHost {
    fn name(&self) -> &'static str {
        "simulated"
    }

    async fn attach(&self, epoch: Epoch) -> Result<Note, StepError> {
        self.agent.check_act("attach_storage", self.broker, epoch);
        let (host, broker) = (self.agent.host, self.broker);
        self.agent
            .act(20, 300, |state| {
                if state.hosts[host].denied {
                    return Err(refused("attach the log dirs", "access denied"));
                }
                if state.stalled(host) {
                    return Err(unconfirmed("attach the log dirs"));
                }
                state.brokers[broker].attached.insert(host);
                Ok(Note::new("attached"))
            })
            .await
    }

    async fn release(&self) -> Result<Note, StepError> {
        let (host, broker) = (self.agent.host, self.broker);
        self.agent
            .act(20, 200, |state| {
                state.brokers[broker].attached.remove(&host);
                Ok(Note::new("released"))
            })
            .await
    }

    async fn locks(&self) -> Result<Vec<HeldLock>, StepError> {
        let (host, broker) = (self.agent.host, self.broker);
        self.agent
            .act(5, 50, |state| {
                let held = state.lock_in(broker, host).filter(|_| state.setup.bug != Some(Bug::LocksUnasked));
                let by = |by| HeldLock { path: "/mnt/kafka/.lock".into(), by: format!("host {by}") };
                Ok(held.map(by).into_iter().collect())
            })
            .await
    }

    async fn break_locks(&self) -> Result<Note, StepError> {
        Ok(Note::new("no lock is held"))
    }

    async fn withdraw(&self) -> Result<Note, StepError> {
        Storage::release(self).await
    }

    async fn unlinks(&self) -> Result<Note, StepError> {
        Ok(Note::new("simulated"))
    }

    async fn check(&self) -> Result<Note, StepError> {
        Ok(Note::new("ready"))
    }
}

#[async_trait]
impl Address for OnHost {
    fn name(&self) -> &'static str {
        "simulated"
    }

    async fn acquire(&self, epoch: Epoch) -> Result<Note, StepError> {
        self.agent.check_act("move_address", self.broker, epoch);
        let (host, broker) = (self.agent.host, self.broker);
        self.agent
            .act(5, 100, |state| {
                // One that is here already is told again, and nobody is asked.
                let here = state.brokers[broker].holders.contains(&host);
                let looks = !here && state.setup.bug != Some(Bug::AddressUndefended);
                if let Some(other) = state.rival_for_address(broker, host).filter(|_| looks) {
                    return Err(refused("move the address", &format!("host {other} answers for it")));
                }
                state.take_address(broker, host);
                Ok(Note::new("moved"))
            })
            .await
    }

    async fn confirm(&self) -> Result<Note, StepError> {
        let (host, broker) = (self.agent.host, self.broker);
        self.agent
            .act(100, 1_500, |state| {
                let follows = state.now >= state.setup.follows_from.unwrap_or_default();
                let reached = follows && state.brokers[broker].holders.contains(&host);
                state.brokers[broker].unreached = (!reached).then_some(host);
                match reached {
                    true => Ok(Note::new("packets come here")),
                    false => Err(refused("confirm the address", "packets for it go elsewhere")),
                }
            })
            .await
    }

    async fn reset_clients(&self) -> Result<Note, StepError> {
        self.agent.act(1, 20, |_| Ok(Note::new("reset"))).await
    }

    async fn release(&self) -> Result<Note, StepError> {
        let (host, broker) = (self.agent.host, self.broker);
        self.agent
            .act(5, 100, |state| {
                state.drop_address(broker, host);
                Ok(Note::new("released"))
            })
            .await
    }

    async fn here(&self) -> Result<bool, StepError> {
        self.agent.awake().await;
        Ok(self.agent.world.state().brokers[self.broker].holders.contains(&self.agent.host))
    }

    async fn holder(&self) -> Result<Option<String>, StepError> {
        self.agent.awake().await;
        let state = self.agent.world.state();
        if state.setup.bug == Some(Bug::AddressUndefended) {
            return Ok(None);
        }
        Ok(state.rival_for_address(self.broker, self.agent.host).map(|host| format!("host {host}")))
    }

    /// Whoever has it and answers the other's word is believed again.
    async fn defend(&self) -> Result<(), StepError> {
        self.agent.awake().await;
        let (host, mut state) = (self.agent.host, self.agent.world.state());
        if state.setup.bug == Some(Bug::AddressUndefended) {
            return Ok(());
        }
        let broker = &mut state.brokers[self.broker];
        if broker.holders.contains(&host) {
            broker.address = Some(host);
        }
        Ok(())
    }

    async fn check(&self) -> Result<Note, StepError> {
        Ok(Note::new("ready"))
    }
}

#[async_trait]
impl BrokerHost for Agent {
    fn name(&self) -> &'static str {
        "simulated"
    }

    async fn render(&self, broker: BrokerId, epoch: Epoch) -> Result<Note, StepError> {
        self.check_act("render_config", index(broker), epoch);
        Ok(Note::new("rendered"))
    }

    async fn verify(&self, broker: BrokerId, _cluster_id: Option<&str>) -> Result<Note, StepError> {
        let host = self.host;
        self.act(5, 50, |state| {
            if state.stalled(host) {
                return Err(unconfirmed("read the log dirs"));
            }
            let there = state.brokers[index(broker)].attached.contains(&host) && !state.hosts[host].denied;
            if there { Ok(Note::new("ours")) } else { Err(refused("verify", "the log dirs are not there")) }
        })
        .await
    }

    async fn start(&self, broker: BrokerId, epoch: Epoch, proofs: &[Proof]) -> Result<Note, StepError> {
        let (host, at) = (self.host, index(broker));
        self.check_act("start_broker", at, epoch);
        self.check_start(at, epoch, proofs);
        self.world.state().brokers[at].starting.push((host, epoch.0));
        self.act(5, 50, |state| {
            state.brokers[at].starting.retain(|start| *start != (host, epoch.0));
            if !state.brokers[at].attached.contains(&host) || state.hosts[host].denied {
                return Err(refused("start Kafka", "the log dirs are not there"));
            }
            state.start_process(at, host, epoch.0);
            Ok(Note::new("runs"))
        })
        .await
    }

    async fn state(&self, broker: BrokerId) -> Result<ProcessState, StepError> {
        self.awake().await;
        let state = self.world.state();
        let broker = &state.brokers[index(broker)];
        Ok(if broker.processes.iter().any(|p| p.host == self.host) {
            ProcessState::Running { pid: 1 }
        } else if broker.exited.contains(&self.host) {
            ProcessState::Exited { why: "exit status 1".to_owned() }
        } else {
            ProcessState::Absent
        })
    }

    async fn bytes_read(&self, _broker: BrokerId, _pid: i32) -> Option<u64> {
        None
    }

    async fn stop(&self, broker: BrokerId, limit: Duration) -> Result<Note, StepError> {
        self.check_stop(index(broker));
        let host = self.host;
        let stopped = self
            .act(300, 3_000, |state| {
                let broker = index(broker);
                let process = state.brokers[broker].processes.iter().find(|p| p.host == host).cloned();
                let Some(process) = process else { return true };
                if !state.works(&process) || state.stalled(host) {
                    return false;
                }
                state.say(|| format!("Kafka of broker {} is stopped on host {host}", broker + 1));
                state.stop_cleanly(broker, host);
                true
            })
            .await;
        if stopped {
            return Ok(Note::new("stopped"));
        }
        self.sleep(limit).await;
        Err(unconfirmed("stop Kafka"))
    }

    async fn kill(&self, broker: BrokerId, _pid: i32, _limit: Duration) -> Result<Note, StepError> {
        let (host, at) = (self.host, index(broker));
        self.check_kill(at);
        self.act(5, 50, |state| {
            state.say(|| format!("Kafka of broker {broker} is killed on host {host}"));
            state.end_process(at, host, true);
            Ok(Note::new("killed"))
        })
        .await
    }

    async fn end_fenced(&self, broker: BrokerId, _limit: Duration) -> Result<Note, StepError> {
        let (host, at) = (self.host, index(broker));
        self.act(5, 50, |state| {
            if state.brokers[at].processes.iter().any(|p| p.host == host) {
                if !state.hosts[host].denied {
                    let what =
                        format!("host {host} ends broker {broker}, though nothing denies it the storage");
                    state.violate("a healthy broker is left alone", &what);
                }
                state.say(|| format!("Kafka of broker {broker} is ended on host {host}, which is fenced"));
                state.end_process(at, host, false);
            }
            Ok(Note::new("ended"))
        })
        .await
    }

    async fn prove_stopped(&self, broker: BrokerId, epoch: Epoch) -> Result<Proof, StepError> {
        let host = self.host;
        self.act(5, 50, |state| {
            let blind = state.setup.bug == Some(Bug::BlindToBoots);
            let gone = |p: &Process| state.setup.bug == Some(Bug::HungIsGone) && state.now < p.hung_until;
            let seen = |p: &&Process| p.host == host && !gone(p) && !(blind && p.phase == Phase::Boots);
            let mut here = state.brokers[index(broker)].processes.iter().filter(seen);
            if here.any(|process| process.epoch != epoch.0) {
                return Err(refused("prove that Kafka is stopped", "it runs"));
            }
            let note = Note::new("no process");
            Ok(Proof { host: state.name(host), by: "simulated".to_owned(), note })
        })
        .await
    }

    async fn check(&self, _broker: BrokerId) -> Vec<Result<Note, StepError>> {
        vec![Ok(Note::new("ready"))]
    }
}
