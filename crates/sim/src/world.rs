//! What is really so: hosts, processes, network, storage, controller. Agents only ever see it through ports.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use recovery::model::{BrokerId, HostName, LocalProcess, ProbeOutcome};
use recovery::status::Status;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::identity::Kept;
use crate::ledger::Book;
use crate::rng::Rng;
use crate::scenario::{Bug, Device, FenceKind, Frozen, LedgerFault, Ms, Node, Scenario, Write};

/// One simulated second is a fifth of one of the runtime's, in which an agent's ticks are counted: so it
/// decides twice a simulated second, and a run takes a fifth of the work.
pub(crate) const SCALE: u32 = 5;

/// From the start of Kafka to its first try to register.
const BOOT: Ms = 1_500;
/// The controllers, the ledger and the devices come after the hosts in the network.
const NODES: usize = 16;

/// A machine.
#[derive(Debug, Default)]
pub(crate) struct Host {
    pub(crate) on: bool,
    pub(crate) boots_at: Option<Ms>,
    pub(crate) frozen_until: Ms,
    pub(crate) agent_frozen_until: Ms,
    /// Counts the agent's lives; what an earlier one left running has no effect any more.
    pub(crate) life: u32,
    pub(crate) agent_runs: bool,
    pub(crate) agent_starts_at: Option<Ms>,
    /// The storage refuses it.
    pub(crate) denied: bool,
    /// Since when, if it is.
    pub(crate) denied_since: Ms,
    /// It stood still, or was cut off, when it was looked at last.
    pub(crate) was_away: bool,
    pub(crate) device: Option<(Device, Ms)>,
    pub(crate) stalled_until: Ms,
    pub(crate) wall_offset: i64,
    pub(crate) crash: Option<(u64, Write)>,
    pub(crate) freeze_at_act: Option<(u64, Frozen, Ms)>,
    pub(crate) locks: BTreeSet<BrokerId>,
    /// What its daemon says, also to its peers.
    pub(crate) status: Option<watch::Receiver<Status>>,
    /// The agent's life in which it was told last that a broker is listed, by broker.
    pub(crate) told_listed: Vec<Option<u32>>,
    /// What its machine keeps of itself.
    pub(crate) kept: Arc<Kept>,
    /// Until when its ledger is not mounted, and what is found there instead.
    pub(crate) ledger_missing_until: Ms,
    pub(crate) stray: Book,
    /// For how long its agent has stood still.
    pub(crate) stood_still: Ms,
    /// When its agent was told last that a broker is listed, by broker.
    pub(crate) listed: Vec<Ms>,
    /// When its agent last had an answer from a broker, by broker.
    pub(crate) answered: Vec<Ms>,
    /// When its agent began, and when it last had no answer from most brokers.
    pub(crate) agent_since: Ms,
    pub(crate) dark: Ms,
}

/// How far Kafka has come since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Boots,
    Registers,
    Recovers,
    Serves,
}

/// A Kafka process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Process {
    pub(crate) host: usize,
    pub(crate) id: u64,
    pub(crate) epoch: u64,
    pub(crate) phase: Phase,
    pub(crate) until: Ms,
    pub(crate) hung_until: Ms,
    pub(crate) stopped_until: Ms,
    /// It ends before it registers.
    pub(crate) doomed: bool,
}

/// What the controller knows of a broker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registration {
    pub(crate) process: u64,
    pub(crate) heard: Ms,
    pub(crate) unfenced_at: Option<Ms>,
}

/// A broker: what there is of it, wherever it is.
#[derive(Debug, Default)]
pub(crate) struct Broker {
    pub(crate) processes: Vec<Process>,
    /// Hosts on which its process ended by itself.
    pub(crate) exited: BTreeSet<usize>,
    /// Hosts that have its log dirs mounted.
    pub(crate) attached: BTreeSet<usize>,
    /// The host that its address leads to.
    pub(crate) address: Option<usize>,
    pub(crate) registration: Option<Registration>,
    pub(crate) in_isr: bool,
    /// The brokers that it would list, one bit each.
    pub(crate) lists: u32,
    pub(crate) slow_recovery: Ms,
    /// So many of its next starts fail.
    pub(crate) starts_fail: u64,
    /// So many of its next starts hang before they register, until they are ended.
    pub(crate) starts_hang: u64,
    /// The host whose death left a lock in its log dirs, and until when the storage keeps it.
    pub(crate) locked: Option<(usize, Ms)>,
    /// A person stopped it, and it has not served since. An agent that did so for a switchover meant it to
    /// run elsewhere.
    pub(crate) stopped: bool,
    /// Hosts whose kernel answers for its address while it runs: more than one where a host that lives was
    /// taken over from.
    pub(crate) holders: BTreeSet<usize>,
    /// The host that has found last that packets for the address do not come to it.
    pub(crate) unreached: Option<usize>,
    /// Kafka's unit starts it at home then, if guard still allows it.
    pub(crate) unit_starts_at: Option<(Ms, usize)>,
    /// Since when it has been well, as each host could see.
    pub(crate) well_since: Vec<Option<Ms>>,
    /// Starts that are on their way: host and epoch.
    pub(crate) starting: Vec<(usize, u64)>,
}

/// Everything.
pub(crate) struct State {
    pub(crate) now: Ms,
    pub(crate) setup: Arc<Scenario>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) brokers: Vec<Broker>,
    pub(crate) cut_until: [[Ms; NODES]; NODES],
    pub(crate) all_stalled_until: Ms,
    /// Until when the controllers have no leader.
    pub(crate) no_quorum_until: Ms,
    pub(crate) ledger_faults: Vec<(LedgerFault, Option<usize>, Ms)>,
    pub(crate) book: Book,
    pub(crate) leader_epoch: i32,
    pub(crate) leader_since: Ms,
    pub(crate) latency: Rng,
    pub(crate) processes: u64,
    /// When the world last went on by itself.
    pub(crate) stepped: Ms,
    pub(crate) acted: u64,
    pub(crate) violation: Option<String>,
    pub(crate) trace: Option<Vec<String>>,
}

/// The handle: every clone is the same world.
#[derive(Clone)]
pub(crate) struct World {
    state: Arc<Mutex<State>>,
    begun: Instant,
    /// Something that stood still may go on.
    pub(crate) wake: Arc<Notify>,
}

impl World {
    pub(crate) fn new(setup: &Arc<Scenario>, traced: bool) -> Self {
        let state = State::new(setup, traced);
        Self { state: Arc::new(Mutex::new(state)), begun: Instant::now(), wake: Arc::default() }
    }

    /// What is so now.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let real = self.begun.elapsed() * SCALE;
        state.now = u64::try_from(real.as_millis()).unwrap_or(u64::MAX);
        state
    }

    pub(crate) async fn sleep(&self, ms: Ms) {
        tokio::time::sleep(Duration::from_millis(ms) / SCALE).await;
    }
}

impl State {
    fn new(setup: &Arc<Scenario>, traced: bool) -> Self {
        let count = setup.hosts();
        let host = |h: usize| Host {
            on: true,
            // The host whose name the twin says has said it first: so does `guard` before any Kafka starts.
            agent_starts_at: (setup.home_agents || h >= setup.brokers)
                .then_some(if setup.twin() == Some(h) { 3_000 } else { 0 }),
            kept: Arc::new(Kept::new(h)),
            stray: Book::new(setup.brokers),
            told_listed: vec![None; setup.brokers],
            listed: vec![0; setup.brokers],
            answered: vec![0; setup.brokers],
            ..Host::default()
        };
        let all = (1_u32 << setup.brokers) - 1;
        let broker = |b: usize| Broker {
            processes: vec![Process { host: b, id: b as u64, phase: Phase::Serves, ..Process::default() }],
            attached: BTreeSet::from([b]),
            address: Some(b),
            holders: BTreeSet::from([b]),
            unreached: None,
            registration: Some(Registration { process: b as u64, heard: 0, unfenced_at: Some(0) }),
            in_isr: true,
            lists: all,
            well_since: vec![Some(0); count],
            ..Broker::default()
        };
        Self {
            now: 0,
            setup: setup.clone(),
            hosts: (0..count).map(host).collect(),
            brokers: (0..setup.brokers).map(broker).collect(),
            cut_until: [[0; NODES]; NODES],
            all_stalled_until: 0,
            no_quorum_until: 0,
            ledger_faults: Vec::new(),
            book: Book::new(setup.brokers),
            leader_epoch: 1,
            leader_since: 0,
            latency: Rng::stream(setup.seed, "latency"),
            processes: setup.brokers as u64,
            stepped: 0,
            acted: 0,
            violation: None,
            trace: traced.then(Vec::new),
        }
    }

    /// Writes a line of the transcript, if one is wanted.
    pub(crate) fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>7.3} s  {}", self.now as f64 / 1000.0, what()));
        }
    }

    pub(crate) fn violate(&mut self, rule: &str, what: &str) {
        self.say(|| format!("VIOLATION of {rule}: {what}"));
        self.violation.get_or_insert_with(|| format!("{rule}: {what}"));
    }

    pub(crate) fn name(&self, host: usize) -> HostName {
        HostName(self.setup.name(host))
    }

    pub(crate) fn host_of(&self, name: &HostName) -> Option<usize> {
        (0..self.hosts.len()).find(|host| self.setup.name(*host) == name.0)
    }

    /// A host's wall clock.
    pub(crate) fn wall(&self, host: usize) -> Timestamp {
        let ms =
            1_800_000_000_000 + i64::try_from(self.now).unwrap_or_default() + self.hosts[host].wall_offset;
        Timestamp::from_millisecond(ms).unwrap_or_default()
    }

    fn place(&self, node: Node) -> usize {
        let hosts = self.hosts.len();
        match node {
            Node::Host(host) => host,
            Node::Controllers => hosts,
            Node::Ledger => hosts + 1,
            Node::Devices => hosts + 2,
        }
    }

    pub(crate) fn cut(&mut self, from: Node, to: Node, until: Ms) {
        let (from, to) = (self.place(from), self.place(to));
        let slot = &mut self.cut_until[from][to];
        *slot = (*slot).max(until);
    }

    /// Whether packets get from one place to another.
    pub(crate) fn passes(&self, from: Node, to: Node) -> bool {
        let (from, to) = (self.place(from), self.place(to));
        from == to || self.now >= self.cut_until[from][to]
    }

    /// Whether a question gets there and the answer back.
    pub(crate) fn reaches(&self, from: Node, to: Node) -> bool {
        self.passes(from, to) && self.passes(to, from)
    }

    pub(crate) fn host_frozen(&self, host: usize) -> bool {
        self.now < self.hosts[host].frozen_until
    }

    pub(crate) fn stalled(&self, host: usize) -> bool {
        self.now < self.all_stalled_until.max(self.hosts[host].stalled_until)
    }

    /// Whether a process gets on with its work.
    pub(crate) fn works(&self, process: &Process) -> bool {
        let host = process.host;
        let still = self.now < process.hung_until.max(process.stopped_until);
        self.hosts[host].on && !self.host_frozen(host) && !still
    }

    /// Whether what runs there could write to the log dirs now, or would once it carries on.
    pub(crate) fn may_write(&self, process: &Process) -> bool {
        let host = &self.hosts[process.host];
        host.on && !host.denied
    }

    /// What a fresh connection from `from` to the broker's listener comes to.
    pub(crate) fn probe(&self, from: usize, broker: usize) -> ProbeOutcome {
        let Some(host) = self.brokers[broker].address else { return ProbeOutcome::Unreachable };
        let there = self.hosts[host].on && !self.host_frozen(host);
        if !there || !self.reaches(Node::Host(from), Node::Host(host)) {
            return ProbeOutcome::Unreachable;
        }
        match self.brokers[broker].processes.iter().find(|p| p.host == host) {
            None => ProbeOutcome::Refused,
            Some(p) if !matches!(p.phase, Phase::Serves | Phase::Recovers) => ProbeOutcome::Refused,
            Some(p) if !self.works(p) || self.stalled(host) => ProbeOutcome::Silent,
            Some(p) if p.phase == Phase::Recovers => ProbeOutcome::Silent,
            Some(_) => ProbeOutcome::Answered,
        }
    }

    /// What an agent sees of a broker's process on its own host.
    pub(crate) fn local(&self, host: usize, broker: usize) -> LocalProcess {
        let blind = self.setup.bug == Some(Bug::BlindToBoots);
        let broker = &self.brokers[broker];
        if broker.processes.iter().any(|p| p.host == host && !(blind && p.phase == Phase::Boots)) {
            LocalProcess::Running
        } else if broker.exited.contains(&host) {
            LocalProcess::Exited
        } else {
            LocalProcess::Absent
        }
    }

    /// Whether the broker serves, is in the cluster and in sync.
    pub(crate) fn serves(&self, broker: usize) -> bool {
        let Broker { processes, address, registration, in_isr, .. } = &self.brokers[broker];
        let Some(reg) = registration else { return false };
        let process = processes.iter().find(|p| p.id == reg.process && Some(p.host) == *address);
        *in_isr
            && reg.unfenced_at.is_some()
            && process.is_some_and(|p| {
                let fit = self.works(p) && self.may_write(p) && !self.stalled(p.host);
                fit && p.phase == Phase::Serves && self.reaches(Node::Host(p.host), Node::Controllers)
            })
    }

    /// Ends a process.
    pub(crate) fn end_process(&mut self, broker: usize, host: usize, by_itself: bool) {
        let broker = &mut self.brokers[broker];
        broker.processes.retain(|p| p.host != host);
        if by_itself {
            broker.exited.insert(host);
        }
    }

    /// Starts Kafka, or adopts the one that runs.
    pub(crate) fn start_process(&mut self, broker: usize, host: usize, epoch: u64) {
        let blind = self.setup.bug == Some(Bug::BlindToBoots);
        if self.brokers[broker]
            .processes
            .iter()
            .any(|p| p.host == host && !(blind && p.phase == Phase::Boots))
        {
            return;
        }
        self.processes += 1;
        let (id, until) = (self.processes, self.now + BOOT);
        self.say(|| format!("Kafka of broker {} starts on {}", broker + 1, self_name(host)));
        let doomed = self.lock_in(broker, host).is_some() || self.brokers[broker].starts_fail > 0;
        let phase = Phase::Boots;
        let hangs = !doomed && self.brokers[broker].starts_hang > 0;
        let hung_until = if hangs { Ms::MAX } else { 0 };
        let process = Process { host, id, epoch, phase, until, hung_until, stopped_until: 0, doomed };
        let broker = &mut self.brokers[broker];
        broker.starts_fail = broker.starts_fail.saturating_sub(1);
        broker.starts_hang = broker.starts_hang.saturating_sub(u64::from(hangs));
        broker.exited.remove(&host);
        broker.processes.push(process);
        self.check_writers();
    }

    /// The host has no power any more.
    pub(crate) fn power_off(&mut self, host: usize) {
        let machine = &mut self.hosts[host];
        machine.on = false;
        machine.boots_at = None;
        machine.frozen_until = 0;
        machine.agent_frozen_until = 0;
        machine.locks.clear();
        self.end_agent(host, None);
        for broker_index in 0..self.brokers.len() {
            self.leave_lock(broker_index, host);
            self.end_process(broker_index, host, false);
            let broker = &mut self.brokers[broker_index];
            broker.unit_starts_at = broker.unit_starts_at.filter(|(_, at)| *at != host);
            broker.exited.remove(&host);
            broker.attached.remove(&host);
            self.drop_address(broker_index, host);
        }
    }

    /// A client of the storage that is gone without a word keeps its locks until its lease ends. A fence by
    /// the storage breaks them.
    fn leave_lock(&mut self, broker: usize, host: usize) {
        let (until, denied) = (self.now + self.setup.lease, self.hosts[host].denied);
        let broker = &mut self.brokers[broker];
        if !denied && broker.processes.iter().any(|process| process.host == host) {
            broker.locked = Some((host, until));
        }
    }

    /// The host whose lock keeps `host` from the log dirs. A client that is back loses what it had.
    pub(crate) fn lock_in(&self, broker: usize, host: usize) -> Option<usize> {
        let (by, until) = self.brokers[broker].locked?;
        (by != host && self.now < until).then_some(by)
    }

    /// A host takes the address: its neighbours believe whoever spoke last.
    pub(crate) fn take_address(&mut self, broker: usize, host: usize) {
        self.brokers[broker].holders.insert(host);
        self.brokers[broker].address = Some(host);
    }

    /// A host has the address no more: whoever else has it is heard.
    pub(crate) fn drop_address(&mut self, broker: usize, host: usize) {
        let broker = &mut self.brokers[broker];
        broker.holders.remove(&host);
        if broker.address == Some(host) {
            broker.address = broker.holders.first().copied();
        }
    }

    /// Another host that answers `from` for a broker's address.
    pub(crate) fn rival_for_address(&self, broker: usize, from: usize) -> Option<usize> {
        let answers = |other: &usize| {
            let reached = self.reaches(Node::Host(from), Node::Host(*other));
            *other != from && self.hosts[*other].on && !self.host_frozen(*other) && reached
        };
        self.brokers[broker].holders.iter().copied().find(answers)
    }

    /// The agent's process is gone.
    pub(crate) fn end_agent(&mut self, host: usize, starts_at: Option<Ms>) {
        let machine = &mut self.hosts[host];
        machine.life += 1;
        machine.agent_runs = false;
        machine.agent_starts_at = starts_at;
        machine.locks.clear();
    }

    /// The storage refuses the host, whoever asks.
    pub(crate) fn fence_kind(&self, host: usize) -> FenceKind {
        self.setup.fences[host]
    }

    /// Never two writers on one log dir.
    pub(crate) fn check_writers(&mut self) {
        for broker in 0..self.brokers.len() {
            let writers = self.brokers[broker].processes.iter().filter(|p| self.may_write(p));
            let hosts: Vec<usize> = writers.map(|p| p.host).collect();
            if hosts.len() > 1 {
                let names: Vec<String> = hosts.iter().map(|h| self.setup.name(*h)).collect();
                let what = format!("broker {} may be written by {}", broker + 1, names.join(" and "));
                self.violate("two writers", &what);
            }
        }
    }

    /// Since when each broker has been well, from where each host looks.
    pub(crate) fn track_health(&mut self) {
        for broker in 0..self.brokers.len() {
            let serves = self.serves(broker);
            for host in 0..self.hosts.len() {
                let well = serves && self.probe(host, broker) == ProbeOutcome::Answered;
                let now = self.now;
                let since = &mut self.brokers[broker].well_since[host];
                *since = if well { Some(since.unwrap_or(now)) } else { None };
            }
        }
    }

    /// Whether `broker` has been well for `ms`, from where `host` looks.
    pub(crate) fn well_for(&self, broker: usize, host: usize, ms: Ms) -> bool {
        self.brokers[broker].well_since[host].is_some_and(|since| self.now.saturating_sub(since) >= ms)
    }
}

/// For transcripts: hosts are listed by number at their head.
pub(crate) fn self_name(host: usize) -> String {
    format!("host {host}")
}
