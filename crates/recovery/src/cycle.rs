//! The daemon's loop. The whole pipeline reads in [`Cycle::tick`]; nothing in it waits for the world.

mod keeping;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{self, JoinSet};

use self::keeping::keeper;
use crate::decide::{Decision, HoldReason, decide, sentences};
use crate::event::{Event, What};
use crate::model::{
    BrokerId, Cause, Check, CheckSeen, Epoch, Evidence, HostName, LedgerStanding, Moment, Succession,
    Topology,
};
use crate::observe::{Board, Observation, Seen, observe};
use crate::plan::{Plan, PlanError, plan};
use crate::policy::{Mode, Policy};
use crate::ports::{Clock, HealthSignal, Ports, chain};
use crate::stand_down::{StandDownError, stand_down};
use crate::status::{Status, Tracker};
use crate::takeover::{HandOverError, TakeoverError, hand_over, resume, take_over, withdraw};

/// How often decisions are made. Deciding is pure and cheap; the signals have periods of their own.
const TICK: Duration = Duration::from_millis(100);

/// Pause before an unfinished takeover is tried again, so that a dead ledger is not hammered.
const RESUME_PAUSE: Duration = Duration::from_secs(1);

/// How often an address is asked anew to be defended, which is nothing while it is.
const DEFEND_AGAIN: Duration = Duration::from_secs(5);

/// The daemon: watches, decides, and has takeovers carried out on tasks of their own.
pub struct Cycle {
    topology: Topology,
    policy: Policy,
    ports: Ports,
    board: Board,
    blind: BTreeSet<&'static str>,
    /// The fences of this host that nobody has lifted, by the brokers they were made for.
    fenced: BTreeMap<BrokerId, Epoch>,
    /// The checks that failed when they were last made.
    failing: BTreeSet<Check>,
    last: BTreeMap<BrokerId, Decision>,
    /// Takeovers. They end with the cycle, and stand in the ledger as they are.
    running: JoinSet<Result<(), WorkError>>,
    /// The keeping of decisions, and the calls that have an address defended: they end with the cycle as well.
    helpers: JoinSet<()>,
    busy: BTreeMap<task::Id, BrokerId>,
    /// A broker is not decided about by a reading of the ledger that is older than this.
    settled: BTreeMap<BrokerId, Moment>,
    /// When each address that this host owns was last asked to be defended.
    defended: BTreeMap<BrokerId, Moment>,
    tracker: Arc<Tracker>,
    status: watch::Sender<Status>,
    /// Whether a guarded broker does not answer, for signals that then look more often.
    suspicion: watch::Sender<bool>,
    remember: mpsc::Sender<(BrokerId, Event)>,
}

/// What one broker needs done, beside watching.
enum Work {
    TakeOver(Box<Plan>, Cause, Option<Succession>),
    Resume,
    Withdraw,
    HandOver(Epoch),
    /// With the broker's home, which owns it before the first epoch.
    StandDown(Epoch, HostName),
}

/// Why a piece of work came to no end.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    TakeOver(#[from] TakeoverError),
    #[error(transparent)]
    HandOver(#[from] HandOverError),
    #[error(transparent)]
    StandDown(#[from] StandDownError),
}

impl Cycle {
    /// A daemon over `ports`, and where its status can be read.
    #[must_use]
    pub fn new(topology: Topology, policy: Policy, mut ports: Ports) -> (Self, watch::Receiver<Status>) {
        let tracker = Arc::new(Tracker::new(ports.events.clone()));
        ports.events = tracker.clone();
        let (status, reader) = watch::channel(Status::starting(&topology, policy.mode));
        let mut helpers = JoinSet::new();
        let remember = keeper(&ports, &mut helpers);
        let cycle = Self {
            topology,
            policy,
            ports,
            board: Board::default(),
            blind: BTreeSet::new(),
            fenced: BTreeMap::new(),
            failing: BTreeSet::new(),
            last: BTreeMap::new(),
            running: JoinSet::new(),
            helpers,
            busy: BTreeMap::new(),
            settled: BTreeMap::new(),
            defended: BTreeMap::new(),
            tracker,
            status,
            suspicion: watch::Sender::new(false),
            remember,
        };
        (cycle, reader)
    }

    /// Runs until `shutdown`. A takeover under way is left as it stands in the ledger, to be resumed.
    pub async fn run(mut self, signals: Vec<Arc<dyn HealthSignal>>, shutdown: impl Future<Output = ()>) {
        self.begin();
        self.watch(signals, shutdown, std::future::pending::<()>()).await;
    }

    /// Tells that the agent begins to watch.
    pub fn begin(&self) {
        let (mode, version) = (self.policy.mode.word().to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        self.emit(None, None, What::AgentStarted { mode, version });
    }

    /// Runs until `shutdown`, which is `None`, or until `next` is there and no work of ours is running. Work that
    /// becomes due meanwhile is begun: `next` waits, and never a broker. `signals` end with it.
    pub async fn watch<N>(
        &mut self,
        signals: Vec<Arc<dyn HealthSignal>>,
        shutdown: impl Future<Output = ()>,
        next: impl Future<Output = N>,
    ) -> Option<N> {
        let mut looks = JoinSet::new();
        let mut evidence = watch_signals(signals, &self.ports, &self.suspicion, &mut looks);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        tokio::pin!(shutdown, next);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => return None,
                Some(evidence) = evidence.recv() => self.board.record(evidence),
                Some(ended) = self.running.join_next_with_id() => self.ended(ended),
                next = &mut next, if self.busy.is_empty() => return Some(next),
                _ = ticks.tick() => {
                    let begun = self.ports.clock.now().mono;
                    self.tick();
                    self.ports.events.ticked(self.ports.clock.now().mono.since(begun));
                }
            }
        }
    }

    /// Takes another configuration, between two calls of [`Self::watch`]. Observation begins anew, as at a start: what
    /// the old signals saw counts no more, so a broker that is down has to be seen down for as long as ever. What this
    /// process did itself (`settled`) and what it has told of its host (`fenced`, `failing`) is not forgotten.
    pub fn renew(&mut self, topology: Topology, policy: Policy, mut ports: Ports, told: What) {
        debug_assert!(self.busy.is_empty(), "work goes on with the ports that it began with");
        ports.events = self.tracker.clone();
        (self.topology, self.policy, self.ports) = (topology, policy, ports);
        self.remember = keeper(&self.ports, &mut self.helpers);
        self.board = Board::default();
        self.blind.clear();
        self.last.clear();
        self.defended.clear();
        self.emit(None, None, told);
        self.tick();
    }

    /// signals → observe → decide → plan → execute.
    fn tick(&mut self) {
        let now = self.ports.clock.now(); // the world: time
        let mut seen = observe(&self.board, &self.topology.known, self.policy.stale_after, now); // pure
        seen.working = self.working(&seen);
        self.suspect(&seen); // the signals' tasks: how often they look
        self.tell_blindness(&seen); // the world: events
        self.tell_fences(&seen); // the world: events
        self.tell_checks(&seen); // the world: events
        self.defend(&seen); // the world: the addresses of this host
        for broker in self.due(&seen) {
            let decision = decide(broker, &seen, &self.topology, &self.policy); // pure
            if self.act(broker, decision, &seen) {
                seen.working.insert(broker);
            }
        }
        self.status.send_replace(self.tracker.status(&self.topology, &self.policy, &seen, &self.last));
    }

    /// Tells a decision and begins what it asks for. Whether anything was begun.
    #[doc(hidden)]
    pub fn act(&mut self, broker: BrokerId, decision: Decision, seen: &Observation) -> bool {
        self.tell(broker, &decision, seen); // the world: events
        let work = self.work(broker, &decision, seen); // pure, but for the event that there is no plan
        self.last.insert(broker, decision);
        let begins = work.is_some();
        if let Some(work) = work {
            self.launch(broker, work, seen.now.mono); // the world: the takeover, on its own task
        }
        begins
    }

    /// What a decision asks for.
    fn work(&self, broker: BrokerId, decision: &Decision, seen: &Observation) -> Option<Work> {
        match decision {
            Decision::TakeOver(takeover)
            | Decision::RestartInPlace(takeover)
            | Decision::SwitchOver(takeover) => {
                match plan(takeover, takeover.epoch.next(), &self.topology, &self.policy, seen) {
                    Ok(plan) => Some(Work::TakeOver(Box::new(plan), takeover.cause, takeover.succeeds)),
                    Err(error) => {
                        self.tell_unplanned(broker, decision, takeover.epoch, &error);
                        None
                    }
                }
            }
            Decision::Resume { .. } => Some(Work::Resume),
            Decision::Withdraw { .. } => Some(Work::Withdraw),
            Decision::HandOver { epoch, .. } => Some(Work::HandOver(*epoch)),
            Decision::StandDown { epoch } => {
                let home = self.topology.brokers.get(&broker).map(|broker| broker.home.clone());
                home.map(|home| Work::StandDown(*epoch, home))
            }
            Decision::Healthy
            | Decision::Suspect { .. }
            | Decision::Hold { .. }
            | Decision::Escalate { .. } => None,
        }
    }

    /// A decision that cannot be carried out is told once, for it stays as it is, tick by tick.
    fn tell_unplanned(&self, broker: BrokerId, decision: &Decision, epoch: Epoch, error: &PlanError) {
        if self.last.get(&broker).is_some_and(|last| last.same_kind(decision)) {
            return;
        }
        let why = chain(error);
        let event = self.emit(Some(broker), Some(epoch), What::NotPlanned { why });
        self.keep(broker, event);
    }

    /// The brokers to decide about: those without a run of ours, seen by a ledger reading after the last run.
    fn due(&self, seen: &Observation) -> Vec<BrokerId> {
        let read_at = seen.ledger.as_ref().map(|ledger| ledger.at);
        // Without any reading nothing is claimed, so there is no harm in deciding (to hold).
        let stale = |broker: &BrokerId| {
            self.settled.get(broker).zip(read_at).is_some_and(|(settled, read_at)| read_at <= *settled)
        };
        // Before the first probe has come back there is nothing to decide about.
        let unseen = |broker: &BrokerId| {
            !self.last.contains_key(broker) && seen.brokers.get(broker).is_none_or(|s| s.probe.is_none())
        };
        let all = self.topology.brokers.keys().filter(|b| !unseen(b));
        all.filter(|b| !self.busy.values().any(|busy| busy == *b) && !stale(b)).copied().collect()
    }

    /// The brokers with a run of ours, and those whose last run may have left what the ledger has not been
    /// read for since.
    fn working(&self, seen: &Observation) -> BTreeSet<BrokerId> {
        let read_at = seen.ledger.as_ref().map(|ledger| ledger.at);
        let unread = self.settled.iter().filter(|(_, settled)| read_at.is_none_or(|at| at <= **settled));
        self.busy.values().copied().chain(unread.map(|(id, _)| *id)).collect()
    }

    /// Has every address defended that is here and whose broker this host owns: whoever else answers for it
    /// is a zombie.
    fn defend(&mut self, seen: &Observation) {
        let Some(ledger) = &seen.ledger else { return };
        let ours = ledger.brokers.iter().filter(|(id, standing)| {
            let here = seen.brokers.get(*id).and_then(|broker| broker.address_here);
            standing.owner == self.topology.here && here == Some(true)
        });
        for broker in ours.map(|(id, _)| *id) {
            let asked = self.defended.get(&broker);
            if asked.is_some_and(|asked| seen.now.mono.since(*asked) < DEFEND_AGAIN) {
                continue;
            }
            if let Some(address) = self.ports.addresses.get(&broker).cloned() {
                self.defended.insert(broker, seen.now.mono);
                // One that fails is asked again; that it does not see the link is told by the takeover and by
                // `check`.
                self.helpers.spawn(async move { drop(address.defend().await) });
            }
        }
    }

    fn launch(&mut self, broker: BrokerId, work: Work, decided: Moment) {
        let decided = Some(decided);
        let (ports, here) = (self.ports.clone(), self.topology.here.clone());
        let task = self.running.spawn(async move {
            let result = match work {
                Work::TakeOver(plan, cause, succeeds) => take_over(&ports, *plan, cause, succeeds, decided)
                    .await
                    .map(drop)
                    .map_err(WorkError::from),
                Work::Resume => {
                    resume(&ports, &here, broker, decided).await.map(drop).map_err(WorkError::from)
                }
                Work::Withdraw => withdraw(&ports, &here, broker).await.map(drop).map_err(WorkError::from),
                Work::HandOver(epoch) => {
                    hand_over(&ports, &here, broker, epoch).await.map_err(WorkError::from)
                }
                Work::StandDown(epoch, home) => {
                    stand_down(&ports, (&here, &home), broker, epoch).await.map_err(WorkError::from)
                }
            };
            if result.is_err() {
                ports.clock.sleep(RESUME_PAUSE).await;
            }
            match result {
                // `understudy failover` on this host is at it: nothing went wrong.
                Err(WorkError::TakeOver(TakeoverError::Busy(..))) => Ok(()),
                result => result,
            }
        });
        self.busy.insert(task.id(), broker);
    }

    fn ended(&mut self, ended: Result<(task::Id, Result<(), WorkError>), task::JoinError>) {
        let (id, why) = match ended {
            Ok((id, result)) => (id, result.err().map(|error| chain(&error))),
            Err(panicked) => (panicked.id(), Some(chain(&panicked))),
        };
        let Some(broker) = self.busy.remove(&id) else { return };
        self.settled.insert(broker, self.ports.clock.now().mono);
        if let Some(why) = why {
            self.emit(Some(broker), None, What::Interrupted { why });
        }
    }

    fn suspect(&self, seen: &Observation) {
        let silent = |seen: &Seen| seen.probe.is_some() && !seen.answers();
        let suspects = self.topology.brokers.keys().any(|id| seen.brokers.get(id).is_some_and(silent));
        self.suspicion.send_if_modified(|was| std::mem::replace(was, suspects) != suspects);
    }

    fn tell_blindness(&mut self, seen: &Observation) {
        let now_blind: BTreeSet<&'static str> = seen.blind.keys().copied().collect();
        for signal in now_blind.difference(&self.blind) {
            let why = seen.blind.get(signal).cloned().unwrap_or_default();
            self.emit(None, None, What::SignalBlind { signal: (*signal).to_owned(), why });
        }
        for signal in self.blind.difference(&now_blind) {
            self.emit(None, None, What::SignalSees { signal: (*signal).to_owned() });
        }
        self.blind = now_blind;
    }

    /// A host that was fenced takes nothing over, and would say so only once it is needed.
    fn tell_fences(&mut self, seen: &Observation) {
        let Some(ledger) = &seen.ledger else { return };
        let fence = |standing: &LedgerStanding| standing.fenced_here(&self.topology.here, &ledger.orders);
        let now = ledger.brokers.iter().filter_map(|(id, standing)| Some((*id, fence(standing)?.epoch)));
        let now: BTreeMap<BrokerId, Epoch> = now.collect();
        for (broker, epoch) in now.iter().filter(|(broker, epoch)| self.fenced.get(*broker) != Some(*epoch)) {
            self.emit(Some(*broker), Some(*epoch), What::NotRejoined);
        }
        self.fenced = now;
    }

    /// A check that begins to fail, and one that no longer does, is an event, and is kept in the ledger for
    /// the brokers that it is about. One that was not made lately is as it was.
    fn tell_checks(&mut self, seen: &Observation) {
        for (check, CheckSeen { found, .. }) in &seen.checks {
            let turned = match found.failed() {
                true => self.failing.insert(check.clone()),
                false => self.failing.remove(check),
            };
            if !turned {
                continue;
            }
            let found = found.clone();
            let what = if found.failed() { What::CheckFailed { found } } else { What::CheckPassed { found } };
            let event = self.emit(None, None, what);
            // What is about the whole host is in the log, as a signal that turns blind is.
            if check.broker().is_none() && !matches!(check, Check::Fence(_)) {
                continue;
            }
            let brokers = self.topology.brokers.values();
            for broker in brokers.filter(|broker| seen.concerns(check, broker, &self.topology.here)) {
                self.keep(broker.id, Event { broker: Some(broker.id), ..event.clone() });
            }
        }
    }

    /// A decision other than the last one is an event, and is kept in the ledger.
    fn tell(&self, broker: BrokerId, decision: &Decision, seen: &Observation) {
        let before = self.last.get(&broker);
        if before.is_some_and(|last| last.same_kind(decision)) {
            return;
        }
        let epoch = seen.standing(broker).map(|standing| standing.epoch);
        let what = What::Decided { decision: decision.clone(), evidence: sentences(broker, seen) };
        let event = self.emit(Some(broker), epoch, what);
        // A first look that finds all well is no decision worth keeping.
        if before.is_some() || *decision != Decision::Healthy {
            self.keep(broker, event);
        }
        if let Some(what) = self.would_take_over(broker, decision, seen) {
            let event = self.emit(Some(broker), epoch, what);
            self.keep(broker, event);
        }
    }

    /// The plan of a takeover that only the mode forbids.
    fn would_take_over(&self, broker: BrokerId, decision: &Decision, seen: &Observation) -> Option<What> {
        let Decision::Hold { reasons } = decision else { return None };
        if !reasons.iter().all(HoldReason::is_of_the_mode) {
            return None;
        }
        let allowed = Policy { mode: Mode::Auto, ..self.policy.clone() };
        let (Decision::TakeOver(takeover)
        | Decision::RestartInPlace(takeover)
        | Decision::SwitchOver(takeover)) = decide(broker, seen, &self.topology, &allowed)
        else {
            return None;
        };
        Some(match plan(&takeover, takeover.epoch.next(), &self.topology, &allowed, seen) {
            Ok(plan) => What::WouldTakeOver { plan: Box::new(plan) },
            Err(error) => What::NotPlanned { why: chain(&error) },
        })
    }

    fn keep(&self, broker: BrokerId, event: Event) {
        let epoch = event.epoch;
        if self.remember.try_send((broker, event)).is_err() {
            let why = "too many decisions are waiting for the ledger".to_owned();
            self.emit(Some(broker), epoch, What::NotRemembered { why });
        }
    }

    fn emit(&self, broker: Option<BrokerId>, epoch: Option<Epoch>, what: What) -> Event {
        let at = self.ports.clock.now().wall;
        let event = Event { at, host: self.topology.here.clone(), broker, epoch, what };
        self.ports.events.emit(&event);
        event
    }
}

/// Each signal looks on a task of its own: one that hangs does not blind the others.
fn watch_signals(
    signals: Vec<Arc<dyn HealthSignal>>,
    ports: &Ports,
    suspicion: &watch::Sender<bool>,
    helpers: &mut JoinSet<()>,
) -> mpsc::Receiver<Evidence> {
    let (send, receive) = mpsc::channel(1024);
    for signal in signals {
        let (send, clock, mut suspicion) = (send.clone(), ports.clock.clone(), suspicion.subscribe());
        helpers.spawn(async move {
            loop {
                let begun = clock.now().mono;
                for evidence in signal.look(clock.as_ref()).await {
                    if send.send(evidence).await.is_err() {
                        return;
                    }
                }
                pause(signal.as_ref(), begun, clock.as_ref(), &mut suspicion).await;
            }
        });
    }
    receive
}

/// Waits until a signal that began to look at `begun` is to look again.
async fn pause(
    signal: &dyn HealthSignal,
    begun: Moment,
    clock: &dyn Clock,
    suspicion: &mut watch::Receiver<bool>,
) {
    let (calm, suspicious) = (signal.period(), signal.period_on_suspicion());
    loop {
        let suspects = *suspicion.borrow_and_update();
        let period = suspicious.filter(|_| suspects).unwrap_or(calm);
        let left = period.saturating_sub(clock.now().mono.since(begun));
        tokio::select! {
            biased;
            () = clock.sleep(left) => return,
            Ok(()) = suspicion.changed(), if suspicious.is_some() => {}
        }
    }
}
