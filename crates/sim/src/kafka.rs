//! What goes on without any agent: hosts boot, Kafka registers, recovers and serves, the controller counts
//! sessions.

use crate::scenario::{Bug, LedgerFault, Ms, Node};
use crate::world::{Phase, Registration, State, self_name};

/// Without a heartbeat for this long the controller fences a broker (Kafka's default).
const SESSION: Ms = 9_000;
/// How long a Kafka tries to register before it ends by itself: half of Kafka's default.
const REGISTERS_WITHIN: Ms = 30_000;
/// From the registration to the unfencing, where the logs were closed well enough.
const RECOVERY: Ms = 800;
/// From the unfencing to the full ISR.
const CATCH_UP: Ms = 700;

impl State {
    /// Lets what goes on by itself go on. Called often enough that nothing is noticed late.
    pub(crate) fn step(&mut self) {
        let (now, passed) = (self.now, self.now - self.stepped);
        self.stepped = now;
        for host in &mut self.hosts {
            let still = now < host.frozen_until.max(host.agent_frozen_until);
            host.stood_still += if still { passed } else { 0 };
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].boots_at.is_some_and(|at| self.now >= at) {
                self.boot(host);
            }
        }
        for host in 0..self.hosts.len() {
            self.speaks_again(host);
        }
        for broker in 0..self.brokers.len() {
            self.start_unit(broker);
            for index in (0..self.brokers[broker].processes.len()).rev() {
                self.run_process(broker, index);
            }
            self.drop_cut_off(broker);
            self.control(broker);
        }
        self.check_writers();
        self.track_health();
    }

    /// A host starts: Kafka's unit asks `guard`, and the agent is started with the system.
    fn boot(&mut self, host: usize) {
        self.say(|| format!("{} has booted", self_name(host)));
        let setup = self.setup.clone();
        let machine = &mut self.hosts[host];
        machine.boots_at = None;
        machine.on = true;
        machine.agent_starts_at = (setup.home_agents || host >= setup.brokers).then_some(self.now + 500);
        if host < self.brokers.len() {
            // Kafka's unit and the agent come up in either order.
            let at = self.now + self.latency.between(0, 2_000);
            self.brokers[host].unit_starts_at = Some((at, host));
        }
    }

    /// A host that is back asks its neighbours for theirs, and they learn its addresses by that: all that it
    /// still has.
    fn speaks_again(&mut self, host: usize) {
        let away = self.host_frozen(host) || !self.reaches(Node::Host(host), Node::Controllers);
        let back = !away && self.hosts[host].was_away && self.hosts[host].on;
        self.hosts[host].was_away = away;
        if back {
            for broker in &mut self.brokers {
                if broker.holders.contains(&host) {
                    broker.address = Some(host);
                }
            }
        }
    }

    /// Kafka's unit at home starts it, where guard says yes and nobody here has its right.
    fn start_unit(&mut self, broker: usize) {
        let Some((_, host)) = self.brokers[broker].unit_starts_at.filter(|(at, _)| self.now >= *at) else {
            return;
        };
        self.brokers[broker].unit_starts_at = None;
        if self.hosts[host].on && self.guard(broker, host) {
            self.take_address(broker, host);
            self.brokers[broker].attached.insert(host);
            self.start_process(broker, host, 0);
        }
    }

    /// A supervisor starts a Kafka that ended by itself again, after a while.
    pub(crate) fn supervise(&mut self, broker: usize, host: usize) {
        if self.setup.supervised && broker == host && self.hosts[host].on {
            let at = self.now + 450 + self.latency.between(0, 1_000);
            self.brokers[broker].unit_starts_at = Some((at, host));
        }
    }

    /// What `understudy guard` says: Kafka may start only for the owner, while nobody else is at it.
    fn guard(&self, broker: usize, host: usize) -> bool {
        if self.now < self.hosts[host].ledger_missing_until {
            return self.setup.bug == Some(Bug::AnyLedger) && broker == host;
        }
        let reads =
            self.reaches(Node::Host(host), Node::Ledger) && !self.ledger_fails(LedgerFault::Down, host);
        reads && self.book.owner_alone(broker, &self.name(broker)) == Some(self.name(host))
    }

    pub(crate) fn ledger_fails(&self, kind: LedgerFault, host: usize) -> bool {
        let mut faults = self.ledger_faults.iter();
        faults.any(|(k, whom, until)| *k == kind && whom.is_none_or(|h| h == host) && self.now < *until)
    }

    /// Whether an active controller hears what runs on a host.
    pub(crate) fn controllers_hear(&self, host: usize) -> bool {
        self.now >= self.no_quorum_until && self.reaches(Node::Host(host), Node::Controllers)
    }

    fn run_process(&mut self, broker: usize, index: usize) {
        let mut process = self.brokers[broker].processes[index].clone();
        if !self.works(&process) || self.stalled(process.host) && process.phase != Phase::Serves {
            return;
        }
        let heard = self.controllers_hear(process.host);
        // It could: see "A Kafka that registers behind its fence" in docs/safety.md.
        let registers = heard && !self.hosts[process.host].denied;
        let due = self.now >= process.until;
        let now = self.now;
        let this = &mut self.brokers[broker];
        let recovery = RECOVERY + this.slow_recovery;
        let reg = &mut this.registration;
        match process.phase {
            Phase::Boots if due && process.doomed => {
                let host = process.host;
                self.say(|| format!("Kafka of broker {} on {} fails to start", broker + 1, self_name(host)));
                self.end_process(broker, host, true);
                self.supervise(broker, host);
                return;
            }
            Phase::Boots if due => process.phase = Phase::Registers,
            Phase::Registers if !heard && self.now > process.until + REGISTERS_WITHIN => {
                let host = process.host;
                self.say(|| format!("Kafka of broker {} finds no controller and ends", broker + 1));
                self.end_process(broker, host, true);
                self.supervise(broker, host);
                return;
            }
            Phase::Registers if registers => {
                let free = reg.is_none_or(|r| r.unfenced_at.is_none() || r.process == process.id);
                if free {
                    *reg = Some(Registration { process: process.id, heard: now, unfenced_at: None });
                    process.phase = Phase::Recovers;
                    process.until = now + recovery;
                }
            }
            Phase::Recovers if due => {
                process.phase = Phase::Serves;
                this.stopped = false;
            }
            _ => {}
        }
        let ours = reg.as_mut().filter(|r| r.process == process.id && heard);
        if let Some(reg) = ours {
            reg.heard = now;
            if process.phase == Phase::Serves {
                reg.unfenced_at.get_or_insert(now);
            }
        }
        self.brokers[broker].processes[index] = process;
    }

    /// A process that has lost its log dirs ends.
    fn drop_cut_off(&mut self, broker: usize) {
        let lost = self.brokers[broker].processes.iter().filter(|p| {
            self.works(p) && (self.hosts[p.host].denied || !self.brokers[broker].attached.contains(&p.host))
        });
        for host in lost.map(|p| p.host).collect::<Vec<_>>() {
            self.say(|| {
                format!(
                    "Kafka of broker {} on {} has lost its log dirs and ends",
                    broker + 1,
                    self_name(host)
                )
            });
            self.end_process(broker, host, true);
        }
    }

    /// The controller's part.
    fn control(&mut self, broker: usize) {
        let (now, since) = (self.now, self.leader_since);
        let lists = (0..self.brokers.len())
            .filter(|b| self.brokers[*b].registration.is_some_and(|r| r.unfenced_at.is_some()));
        let lists = lists.fold(0_u32, |all, b| all | 1 << b);
        let state = &mut self.brokers[broker];
        if let Some(reg) = &mut state.registration {
            if now.saturating_sub(reg.heard.max(since)) > SESSION {
                reg.unfenced_at = None;
            }
            state.in_isr = reg.unfenced_at.is_some_and(|at| at == 0 || now >= at + CATCH_UP);
            if reg.heard == now {
                state.lists = lists;
            }
        } else {
            state.in_isr = false;
        }
    }
}
