//! How each fault, and each person's order, changes the world.

use std::time::Duration;

use recovery::model::{Instruction, Order};

use crate::agent::id;
use crate::scenario::{Fault, Frozen, Ms, Node, Timed};
use crate::world::State;

/// What is not healed by itself.
const FOR_GOOD: Ms = 1 << 50;

impl State {
    /// Begins a fault.
    pub(crate) fn begin(&mut self, event: &Timed) {
        let Timed { lasts, what, .. } = event;
        self.say(|| {
            format!("--- {what:?}{}", if *lasts > 0 { format!(" for {lasts} ms") } else { String::new() })
        });
        let until = self.now + if *lasts > 0 { *lasts } else { FOR_GOOD };
        match what {
            Fault::HostDies(host) => {
                self.power_off(*host);
                self.hosts[*host].boots_at = (*lasts > 0).then_some(until);
            }
            Fault::Freezes(host, Frozen::Host) => self.hosts[*host].frozen_until = until,
            Fault::Freezes(host, Frozen::Agent) => self.hosts[*host].agent_frozen_until = until,
            Fault::FreezesAtAct(host, frozen, n, lasts) => {
                self.hosts[*host].freeze_at_act = Some((*n, *frozen, *lasts));
            }
            Fault::Cut(from, to) => self.cut(*from, *to, until),
            Fault::Isolated(host) => self.isolate(*host, until),
            Fault::StorageStalls(Some(host)) => self.hosts[*host].stalled_until = until,
            Fault::StorageStalls(None) => self.all_stalled_until = until,
            Fault::LedgerFails(kind, whom) => self.ledger_faults.push((*kind, *whom, until)),
            Fault::LedgerMissing(host) => self.hosts[*host].ledger_missing_until = until,
            Fault::FenceFails(host, device) => self.hosts[*host].device = Some((*device, until)),
            Fault::AgentCrashes(host, n, write) => self.hosts[*host].crash = Some((*n, *write)),
            Fault::AgentKilled(host) => {
                if self.hosts[*host].agent_runs {
                    let again = self.now + self.latency.between(500, 5_000);
                    self.end_agent(*host, Some(again));
                }
            }
            Fault::WallJumps(host, seconds) => self.hosts[*host].wall_offset += seconds * 1000,
            Fault::ControllerMoves => {
                self.leader_epoch += 1;
                self.leader_since = self.now;
            }
            Fault::QuorumLost => {
                self.no_quorum_until = until;
                self.leader_epoch += 1;
                // Whoever leads then gives every session its full time.
                self.leader_since = until;
            }
            Fault::Unregistered(broker) => self.unregister(*broker),
            Fault::KafkaFreezes(_)
            | Fault::KafkaCrashes(_)
            | Fault::KafkaHangs(_)
            | Fault::KafkaStops(_)
            | Fault::StartsFail(..)
            | Fault::StartsHang(..)
            | Fault::SlowRecovery(..) => self.hit_kafka(what, until),
            Fault::Pause(_) | Fault::Resume | Fault::Ack | Fault::Approve(_) | Fault::Switchover(..) => {
                self.order(what);
            }
        }
        self.check_writers();
        self.track_health();
    }

    /// Kafka, wherever the broker's address leads.
    fn hit_kafka(&mut self, what: &Fault, until: Ms) {
        let (Fault::KafkaFreezes(broker)
        | Fault::KafkaCrashes(broker)
        | Fault::KafkaHangs(broker)
        | Fault::KafkaStops(broker)
        | Fault::StartsFail(broker, _)
        | Fault::StartsHang(broker, _)
        | Fault::SlowRecovery(broker, _)) = what
        else {
            return;
        };
        let broker = *broker;
        if let Fault::SlowRecovery(_, ms) = what {
            self.brokers[broker].slow_recovery = *ms;
        }
        if let Fault::StartsFail(_, starts) = what {
            self.brokers[broker].starts_fail = *starts;
        }
        if let Fault::StartsHang(_, starts) = what {
            self.brokers[broker].starts_hang = *starts;
        }
        let Some(process) = self.brokers[broker].processes.first_mut() else { return };
        match what {
            Fault::KafkaFreezes(_) => process.stopped_until = until,
            Fault::KafkaHangs(_) => process.hung_until = until,
            Fault::KafkaCrashes(_) => {
                let host = process.host;
                self.end_process(broker, host, true);
                self.supervise(broker, host);
            }
            Fault::KafkaStops(_) => {
                let host = process.host;
                self.stop_cleanly(broker, host);
                self.brokers[broker].stopped = true;
            }
            _ => {}
        }
    }

    /// Kafka leaves the cluster before it ends.
    pub(crate) fn stop_cleanly(&mut self, broker: usize, host: usize) {
        let ours = self.brokers[broker].processes.iter().find(|p| p.host == host).map(|p| p.id);
        if let Some(registration) = &mut self.brokers[broker].registration
            && Some(registration.process) == ours
        {
            registration.unfenced_at = None;
        }
        self.end_process(broker, host, false);
    }

    /// Its registration is removed, and it may live.
    pub(crate) fn unregister(&mut self, broker: usize) {
        let broker_state = &mut self.brokers[broker];
        broker_state.registration = None;
        broker_state.in_isr = false;
        // It goes on fetching the metadata, and learns of that itself.
        broker_state.lists &= !(1 << broker);
    }

    fn isolate(&mut self, host: usize, until: Ms) {
        let others = (0..self.hosts.len()).filter(|other| *other != host).map(Node::Host);
        let places: Vec<Node> = others.chain([Node::Controllers, Node::Ledger, Node::Devices]).collect();
        for place in places {
            self.cut(Node::Host(host), place, until);
            self.cut(place, Node::Host(host), until);
        }
    }

    /// What people write, on the first standby.
    fn order(&mut self, what: &Fault) {
        let host = self.setup.brokers;
        let at = self.wall(host);
        let later = |ms: u64| at.checked_add(Duration::from_millis(ms)).unwrap_or(at);
        let epoch = |broker: usize| self.book.standing(broker, &self.name(broker)).epoch;
        let what = match what {
            Fault::Pause(broker) => Instruction::Pause {
                broker: Some(id(*broker)),
                reason: "patching".to_owned(),
                until: Some(later(20_000)),
            },
            Fault::Resume => Instruction::Resume { broker: None },
            Fault::Ack => {
                let epochs = (0..self.brokers.len()).map(|b| (id(b), epoch(b))).collect();
                Instruction::Ack { broker: None, reason: "looked".to_owned(), epochs }
            }
            Fault::Approve(broker) => {
                Instruction::Approve { broker: id(*broker), epoch: epoch(*broker), until: later(60_000) }
            }
            Fault::Switchover(broker, to) => Instruction::Switchover {
                broker: id(*broker),
                to: self.name(*to),
                epoch: epoch(*broker),
                at,
                until: later(60_000),
            },
            _ => return,
        };
        let order = Order { at, host: self.name(host), who: "ada".to_owned(), what };
        let now = self.now;
        self.book.add_order(now, order);
    }
}
