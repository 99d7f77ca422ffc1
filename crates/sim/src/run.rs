//! One run: the real daemons on a held clock, the world beside them, and the verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use recovery::cycle::Cycle;
use recovery::known::Identity;
use recovery::model::{Broker, Endpoint, Locks, Standby, Topology};
use recovery::policy::{Mode, Policy};
use recovery::ports::Clock;
use recovery::status::Status;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::agent::{Agent, id};
use crate::identity::ledger;
use crate::judge::{End, judge};
use crate::scenario::{Bug, FenceKind, Ms, Scenario};
use crate::signals::{guarded, limit, rank, signals};
use crate::world::World;

/// How often the world goes on by itself.
const STEP: Ms = 250;
/// How long after the last fault has healed everything must have come to an end: a claimant that stands still
/// must fall silent, be succeeded, fenced and its broker started, and two more must have had their turns.
const SETTLES_WITHIN: Ms = 200_000;
/// An end must last this long to count.
const LASTING: Ms = 3_000;
/// Brokers that went within this long of each other failed together.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// Takeovers of one broker, and of all, in an hour, which no run lasts.
pub(crate) const PER_BROKER: usize = 3;
pub(crate) const PER_CLUSTER: usize = 5;

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The first promise that was broken, and how.
    pub violation: Option<String>,
    /// How each broker ended.
    pub ends: Vec<End>,
    /// Simulated milliseconds.
    pub took: Ms,
    /// Acts of agents on the world.
    pub acts: u64,
    /// What happened, if it was asked for.
    pub transcript: Vec<String>,
}

impl Report {
    /// The rule that was broken, without its circumstances.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        self.violation.as_deref().map(|what| what.split(':').next().unwrap_or(what))
    }
}

/// Runs a scenario to its end, or to the first broken promise.
#[must_use]
pub fn run(scenario: &Scenario, traced: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    match runtime {
        Ok(runtime) => runtime.block_on(async {
            // Timers count whole milliseconds since the runtime began. A run that begins between two of them
            // would not be the same twice.
            tokio::time::sleep(Duration::from_millis(1)).await;
            Run::new(scenario, traced).play().await
        }),
        Err(error) => Report {
            violation: Some(format!("no runtime: {error}")),
            ends: Vec::new(),
            took: 0,
            acts: 0,
            transcript: Vec::new(),
        },
    }
}

struct Daemon {
    life: u32,
    task: JoinHandle<()>,
    status: watch::Receiver<Status>,
}

struct Run {
    scenario: Arc<Scenario>,
    world: World,
    daemons: Vec<Option<Daemon>>,
}

impl Run {
    fn new(scenario: &Scenario, traced: bool) -> Self {
        let scenario = Arc::new(scenario.clone());
        let world = World::new(&scenario, traced);
        let daemons = (0..scenario.hosts()).map(|_| None).collect();
        Self { scenario, world, daemons }
    }

    async fn play(mut self) -> Report {
        let mut events = self.scenario.events.clone().into_iter().peekable();
        let first = Agent { world: self.world.clone(), host: self.scenario.brokers, life: 0 };
        let at = first.now().wall;
        let identity = Identity { id: "the-ledger".to_owned(), format: 1, at, by: "operator".into() };
        if let Err(error) = recovery::known::init(&first, &identity).await {
            self.world.state().violate("the ledger is initialised", &error.to_string());
        }
        let mut settled_since = None;
        let mut ends = Vec::new();
        loop {
            let now = self.world.state().now;
            while let Some(event) = events.next_if(|event| event.at <= now) {
                self.world.state().begin(&event);
            }
            self.world.state().step();
            self.world.wake.notify_waiters();
            self.tend_agents();
            if self.world.state().violation.is_some() {
                break;
            }
            let healed = self.healed_at();
            if now > healed {
                match self.verdict() {
                    Ok(found) => {
                        ends = found;
                        if now - *settled_since.get_or_insert(now) >= LASTING {
                            break;
                        }
                    }
                    Err(why) => {
                        settled_since = None;
                        if now > healed + SETTLES_WITHIN {
                            self.world.state().violate("every run comes to an end", &why);
                            break;
                        }
                    }
                }
            }
            self.world.sleep(STEP).await;
        }
        let mut state = self.world.state();
        Report {
            violation: state.violation.clone(),
            ends,
            took: state.now,
            acts: state.acted,
            transcript: state.trace.take().unwrap_or_default(),
        }
    }

    /// When the last fault is over, those that began late and the agents' own deaths included. What waits for
    /// an act that never comes is no fault.
    fn healed_at(&self) -> Ms {
        let state = self.world.state();
        let last_event = self.scenario.events.iter().map(|e| e.at).max().unwrap_or_default() + 3_000;
        let begun = |until: Ms| if until < 1 << 40 { until } else { 0 };
        let hosts = state.hosts.iter().map(|h| {
            let starts = h.boots_at.or(h.agent_starts_at).unwrap_or_default();
            let still = begun(h.frozen_until).max(begun(h.agent_frozen_until));
            still.max(starts).max(begun(h.stalled_until))
        });
        hosts.max().unwrap_or_default().max(self.scenario.healed_at()).max(last_event)
    }

    fn verdict(&self) -> Result<Vec<End>, String> {
        let statuses: Vec<Option<Status>> =
            self.daemons.iter().map(|d| d.as_ref().map(|d| d.status.borrow().clone())).collect();
        judge(&self.world.state(), &statuses)
    }

    /// Ends the agents whose lives are over, and starts those that are due.
    fn tend_agents(&mut self) {
        for host in 0..self.daemons.len() {
            let (life, due) = {
                let state = self.world.state();
                let machine = &state.hosts[host];
                let still = state.now < machine.frozen_until;
                let due = machine.on && !still && machine.agent_starts_at.is_some_and(|at| state.now >= at);
                (machine.life, due)
            };
            if let Some(daemon) = self.daemons[host].take_if(|daemon| daemon.life != life) {
                daemon.task.abort();
            }
            if due {
                self.start_agent(host);
            }
        }
    }

    fn start_agent(&mut self, host: usize) {
        // Nothing is to be expected of an agent that says another host's name.
        let twin = self.scenario.twin() == Some(host);
        let says = if twin { 0 } else { host };
        let (life, guards) = {
            let mut state = self.world.state();
            let (guards, now) = (guarded(&state, says), state.now);
            let machine = &mut state.hosts[host];
            machine.agent_starts_at = None;
            machine.agent_runs = !twin;
            machine.agent_since = now;
            (machine.life, guards)
        };
        let agent = Agent { world: self.world.clone(), host, life };
        let topology = self.topology(says, &guards);
        let ledger = ledger(&agent, says, &guards);
        let (cycle, status) = Cycle::new(topology, self.policy(), agent.ports(&guards, ledger.clone()));
        let signals = signals(&agent, &guards, ledger);
        let task = tokio::spawn(cycle.run(signals, std::future::pending()));
        self.world.state().hosts[host].status = Some(status.clone());
        self.daemons[host] = Some(Daemon { life, task, status });
    }

    fn topology(&self, here: usize, guards: &[usize]) -> Topology {
        let state = self.world.state();
        let broker = |b: usize| Broker {
            id: id(b),
            home: state.name(b),
            listener: Endpoint { host: format!("10.0.0.{}", b + 1), port: 9092 },
            log_dirs: vec![format!("/mnt/kafka/{}", b + 1).into()],
            address: Some(format!("10.0.0.{}/24", b + 1)),
            followed_later: self.scenario.follows_from.is_some(),
            racks: Vec::new(),
            locks: Locks::default(),
            admission: Vec::new(),
        };
        let hosts = 0..state.hosts.len();
        let first = if self.scenario.home_agents { 0 } else { self.scenario.brokers };
        let fences = hosts.filter(|h| *h != here);
        let peers = (first..state.hosts.len()).filter(|h| *h != here).map(|h| state.name(h));
        Topology {
            here: state.name(here),
            brokers: guards.iter().map(|b| (id(*b), broker(*b))).collect(),
            fences: fences.map(|h| (state.name(h), vec!["device".to_owned()])).collect::<BTreeMap<_, _>>(),
            machines: BTreeMap::new(),
            unlocked: BTreeSet::new(),
            outlive: (0..state.hosts.len())
                .filter(|h| state.fence_kind(*h) == FenceKind::Storage)
                .map(|h| state.name(h))
                .collect(),
            wandering: BTreeSet::new(),
            reschedules: false,
            controllers_known: true,
            zookeeper: false,
            known: (0..self.scenario.brokers).map(id).collect(),
            standby: Standby { rank: rank(here), rack: None, max_brokers: limit(&state, here) },
            peers: peers.collect::<BTreeSet<_>>(),
        }
    }

    /// The times of a real configuration, but for the most patient ones.
    fn policy(&self) -> Policy {
        let seconds = Duration::from_secs;
        Policy {
            mode: if self.scenario.approve { Mode::Approve } else { Mode::Auto },
            hung_after: seconds(8),
            process_down_after: seconds(8),
            mass_failure_window: match self.scenario.bug {
                Some(Bug::EndlessWindow) => Duration::MAX,
                _ => WINDOW,
            },
            boot_patience: match self.scenario.bug {
                Some(Bug::BlindToBoots | Bug::NoBootPatience) => Duration::ZERO,
                _ => Policy::default().boot_patience,
            },
            takeovers_per_broker: PER_BROKER,
            takeovers_per_cluster: PER_CLUSTER,
            rejoin_patience: seconds(60),
            ..Policy::default()
        }
    }
}
