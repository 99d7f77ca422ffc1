//! A cluster as evidence: what every signal says, quarter second by quarter second, until a command changes
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::str::SplitWhitespace;
use std::sync::Arc;
use std::time::Duration;

use fakes::World;
use jiff::Timestamp;
use recovery::decide::{Decision, decide};
use recovery::model::{
    Attempt, Broker, BrokerId, CanaryOutcome, Candidate, Cause, Check, Checked, Distrust, EpochState,
    Evidence, Fact, FencedIn, HostName, Instruction, LedgerReading, LedgerStanding, LocalProcess, LogTail,
    Moment, Now, Order, Orders, Outcome, PeerSaw, PeerView, ProbeOutcome, QuorumView, Removal, Topology,
    Verdict,
};
use recovery::observe::{Board, observe};
use recovery::plan::plan;
use recovery::policy::{Mode, Policy};

const STEP: Duration = Duration::from_millis(250);

/// What the world says of one broker.
struct Look {
    probe: ProbeOutcome,
    /// Since when the controller has heard nothing.
    unheard_since: Option<Duration>,
    listed: bool,
    /// What other brokers say of a registration, once it is not listed.
    registered: Option<bool>,
    local: Option<LocalProcess>,
    /// Whether its address is on this host.
    address: Option<bool>,
    stalled: bool,
    /// What each peer's own probe says.
    peers: BTreeMap<HostName, ProbeOutcome>,
    /// When it last answered.
    well: Duration,
    /// The peers that saw it stop cleanly.
    stop_seen_by: BTreeSet<HostName>,
}

pub(crate) struct Stage {
    now: Duration,
    topology: Topology,
    policy: Policy,
    looks: BTreeMap<BrokerId, Look>,
    standings: BTreeMap<BrokerId, LedgerStanding>,
    /// Brokers whose claimant writes heartbeats.
    at_work: BTreeSet<BrokerId>,
    ledger_up: bool,
    distrusted: Option<Distrust>,
    metadata_up: bool,
    /// Whether this host's link is down: nobody is seen, no peer and no ledger either.
    link_down: bool,
    candidates: BTreeMap<HostName, Candidate>,
    orders: Vec<Order>,
    board: Board,
    decided: BTreeMap<BrokerId, Decision>,
}

impl Default for Stage {
    fn default() -> Self {
        Self::of(3)
    }
}

impl Stage {
    /// Brokers 1 to `count` at home on kafka-1 and so on, all guarded from standby-1, all well.
    fn of(count: i32) -> Self {
        let mut topology = World::topology();
        let first = topology.brokers[&BrokerId(1)].clone();
        let brokers: Vec<BrokerId> = (1..=count).map(BrokerId).collect();
        let at_home = |id: &BrokerId| Broker { id: *id, home: host(&format!("kafka-{id}")), ..first.clone() };
        topology.brokers = brokers.iter().map(|id| (*id, at_home(id))).collect();
        topology.known = brokers.iter().copied().collect();
        let homes = brokers.iter().map(|id| format!("kafka-{id}"));
        let hosts = homes.chain(["standby-2", "standby-3"].map(str::to_owned));
        topology.fences = hosts.map(|name| (host(&name), vec!["switch".to_owned()])).collect();
        let home = |id: &BrokerId| LedgerStanding::untouched(host(&format!("kafka-{id}")));
        let look = || Look {
            probe: ProbeOutcome::Answered,
            unheard_since: None,
            listed: true,
            registered: None,
            local: None,
            address: None,
            stalled: false,
            peers: BTreeMap::new(),
            well: Duration::from_secs(100),
            stop_seen_by: BTreeSet::new(),
        };
        Self {
            now: Duration::from_secs(100),
            topology,
            policy: World::policy(),
            looks: brokers.iter().map(|id| (*id, look())).collect(),
            standings: brokers.iter().map(|id| (*id, home(id))).collect(),
            at_work: BTreeSet::new(),
            ledger_up: true,
            distrusted: None,
            metadata_up: true,
            link_down: false,
            candidates: BTreeMap::new(),
            orders: Vec::new(),
            board: Board::default(),
            decided: BTreeMap::new(),
        }
    }
}

fn host(name: &str) -> HostName {
    HostName::from(name)
}

impl Stage {
    /// Carries one command out; what is to be seen of it.
    pub(crate) fn run(&mut self, command: &str) -> String {
        let mut words = command.split_whitespace();
        match words.next().expect("a command") {
            "pass" => return self.pass(&humantime::parse_duration(words.next().expect("how long")).unwrap()),
            "plan" => return self.plan(broker(&mut words)),
            "brokers" => *self = Self::of(words.next().expect("how many").parse().unwrap()),
            "mode" => self.policy.mode = mode(words.next().expect("which mode")),
            "policy" => self.set_policy(&mut words),
            "ledger" => {
                let word = words.next().expect("up, down, or why it is distrusted");
                self.ledger_up = word == "up";
                self.distrusted = Distrust::ALL.into_iter().find(|kind| kind.label() == word);
            }
            "metadata" => self.metadata_up = words.next() == Some("up"),
            "cut-off" => self.cut_off(),
            "link" => self.link_down = words.next() == Some("down"),
            "restarted" => self.board = Board::default(),
            "standby" => self.standby(&mut words),
            "unflushed" => self.unflushed(&mut words),
            "check" => self.checked(&mut words),
            "agent-dies" => drop(self.candidates.remove(&host(words.next().expect("whose")))),
            "claimed" => self.claimed(&mut words),
            "silent" => drop(self.at_work.remove(&broker(&mut words))),
            "removed" => self.removed(&mut words),
            "ended" => self.ended(&mut words),
            "host-fenced" => self.host_fenced(&mut words),
            "order" => self.order(&mut words),
            verb => self.broker_is(verb, &mut words),
        }
        assert_eq!(words.next(), None, "`{command}` has a word too many");
        String::new()
    }

    /// `kill 1`, `refuses 1`, `hangs 1`, `answers 1`, `leaves 1`, `heard 1`, `unreachable 1`, `stalls 1`,
    /// `exits 1`, …
    fn broker_is(&mut self, verb: &str, words: &mut SplitWhitespace<'_>) {
        let now = self.now;
        let look = self.looks.get_mut(&broker(words)).expect("one of the brokers");
        let dead = |look: &mut Look, probe| {
            look.probe = probe;
            look.unheard_since.get_or_insert(now);
        };
        match verb {
            "kill" => dead(look, ProbeOutcome::Unreachable),
            "refuses" => dead(look, ProbeOutcome::Refused),
            "hangs" => dead(look, ProbeOutcome::Silent),
            "unreachable" => look.probe = ProbeOutcome::Unreachable,
            "starts" => (look.probe, look.unheard_since) = (ProbeOutcome::Refused, None),
            "answers" => (look.probe, look.unheard_since, look.listed) = (ProbeOutcome::Answered, None, true),
            "leaves" => look.listed = false,
            "lists" => (look.listed, look.registered) = (true, None),
            "unregistered" => (look.listed, look.registered) = (false, Some(false)),
            "fenced" => (look.listed, look.registered) = (false, Some(true)),
            "untold" => look.registered = None,
            "address" => look.address = Some(words.next() == Some("here")),
            "absent" => look.local = Some(LocalProcess::Absent),
            "stalls" => look.stalled = true,
            "mute" => drop(look.unheard_since.get_or_insert(now)),
            "heals" => look.stalled = false,
            "exits" => look.local = Some(LocalProcess::Exited),
            "runs" => look.local = Some(LocalProcess::Running),
            "stop-seen-by" => drop(look.stop_seen_by.insert(host(words.next().expect("whom")))),
            "seen-by" => drop(look.peers.insert(host(words.next().expect("whom")), ProbeOutcome::Answered)),
            other => panic!("no such command: {other}"),
        }
    }

    fn cut_off(&mut self) {
        for look in self.looks.values_mut() {
            look.probe = ProbeOutcome::Unreachable;
        }
        self.metadata_up = false;
    }

    /// `unflushed 1 70`: that many gigabytes are in the newest segments of broker 1, as it tells while it is
    /// well.
    fn unflushed(&mut self, words: &mut SplitWhitespace<'_>) {
        let id = broker(words);
        let bytes = words.next().expect("how many gigabytes").parse::<u64>().unwrap() * 1_000_000_000;
        let tail = LogTail { replicas: 100, bytes, at_most: bytes };
        let at = Moment(self.now);
        self.board.record(Evidence { signal: "stage", at, fact: Fact::Logs { broker: id, tail } });
    }

    /// `check fails fence kafka-1`, `check passes storage 1`: what this host's own check found, which counts
    /// for a minute.
    fn checked(&mut self, words: &mut SplitWhitespace<'_>) {
        let verdict = if words.next() == Some("fails") { Verdict::Fail } else { Verdict::Ok };
        let check = match (words.next().expect("which"), words.next().expect("of what")) {
            ("fence", of) => Check::Fence(host(of)),
            ("storage", of) => Check::Storage(BrokerId(of.parse().unwrap())),
            other => panic!("no such check: {other:?}"),
        };
        let found = Checked { check, verdict, says: "wrong password".to_owned(), remedy: String::new() };
        let fact = Fact::Checked { found, counts_for: Duration::from_secs(60) };
        self.board.record(Evidence { signal: "checks", at: Moment(self.now), fact });
    }

    /// `standby standby-2 rank 10 [rack b] [owns 2] [not-ready 1]`
    fn standby(&mut self, words: &mut SplitWhitespace<'_>) {
        let name = host(words.next().expect("its name"));
        let serves = self.topology.brokers.keys().copied().collect();
        let mut candidate = Candidate {
            rank: 100,
            rack: None,
            serves,
            carries: BTreeSet::new(),
            limit: 1,
            unfit: None,
            not_ready: BTreeMap::new(),
        };
        while let (Some(key), Some(value)) = (words.next(), words.next()) {
            match key {
                "rank" => candidate.rank = value.parse().unwrap(),
                "rack" => candidate.rack = Some(value.to_owned()),
                "not-ready" => {
                    candidate.not_ready.insert(BrokerId(value.parse().unwrap()), "fence".to_owned());
                }
                "owns" => drop(candidate.carries.insert(BrokerId(value.parse().unwrap()))),
                other => panic!("no such key of a standby: {other}"),
            }
        }
        self.topology.peers.insert(name.clone());
        self.candidates.insert(name, candidate);
    }

    /// `claimed 1 standby-2 [planned|untouched]`
    fn claimed(&mut self, words: &mut SplitWhitespace<'_>) {
        let id = broker(words);
        let by = host(words.next().expect("by whom"));
        let how = words.next();
        let cause = if how == Some("planned") { Cause::Planned } else { Cause::Automatic };
        let touched = how != Some("untouched");
        let at = self.wall();
        let standing = self.standings.get_mut(&id).expect("one of the brokers");
        standing.epoch = standing.epoch.next();
        standing.records = 2;
        standing.state = Some(EpochState::Open { by: by.clone(), touched, cause });
        standing.writers.insert(by.clone());
        let in_place = by == standing.owner;
        let (epoch, ended, ended_at, why, time_to_isr) = (standing.epoch, None, None, None, None);
        let phases = BTreeMap::new();
        let attempt = Attempt { epoch, at, by, cause, in_place, ended, ended_at, why, time_to_isr, phases };
        standing.attempts.push(attempt);
        self.at_work.insert(id);
    }

    /// `removed 1`: the open epoch has sent `UnregisterBroker`, and the broker is off the list by that.
    fn removed(&mut self, words: &mut SplitWhitespace<'_>) {
        let (id, at) = (broker(words), self.wall());
        let standing = self.standings.get_mut(&id).expect("one of the brokers");
        standing.removed = Some(Removal { epoch: standing.epoch, at });
        self.looks.get_mut(&id).expect("one of the brokers").listed = false;
    }

    /// `ended 1 recovered`
    fn ended(&mut self, words: &mut SplitWhitespace<'_>) {
        let (id, ended_at) = (broker(words), Some(self.wall()));
        let (at, why) = ("prove".to_owned(), "the switch says unknown".to_owned());
        let outcome = match words.next().expect("how") {
            "recovered" => Outcome::Recovered { time_to_isr: Duration::from_secs(7), remarks: Vec::new() },
            "abandoned" => Outcome::Abandoned { at: "verify_log_dirs".to_owned(), why, kept: Vec::new() },
            "stuck" => Outcome::Stuck { at, why },
            other => panic!("nothing ends {other}"),
        };
        let standing = self.standings.get_mut(&id).expect("one of the brokers");
        let Some(EpochState::Open { by, .. }) = standing.state.clone() else { panic!("nothing is open") };
        let attempt = standing.attempts.last_mut().expect("there was a claim");
        (attempt.ended, attempt.ended_at) = (Some(outcome.label().to_owned()), ended_at);
        attempt.why = outcome.failure();
        if let Outcome::Recovered { time_to_isr, .. } = &outcome {
            attempt.time_to_isr = Some(*time_to_isr);
            (standing.owner, standing.writers) = (by.clone(), BTreeSet::from([by.clone()]));
            standing.removed = None;
            standing.fenced.remove(&by);
        } else {
            standing.writers.remove(&by);
            standing.writers.insert(standing.owner.clone());
        }
        standing.state = Some(EpochState::Ended { by, outcome });
        self.at_work.remove(&id);
    }

    /// `host-fenced 1 kafka-1`: the newest epoch has fenced that host, and proven it.
    fn host_fenced(&mut self, words: &mut SplitWhitespace<'_>) {
        let id = broker(words);
        let (at, name) = (self.wall(), host(words.next().expect("whom")));
        let standing = self.standings.get_mut(&id).expect("one of the brokers");
        standing.fenced.insert(name, FencedIn { epoch: standing.epoch, at, proven: true });
    }

    /// `order pause 1 60s`, `order resume`, `order ack 1`, `order approve 1`, `order switchover 1 standby-1`,
    /// `order released 1 HOST`
    fn order(&mut self, words: &mut SplitWhitespace<'_>) {
        let at = self.wall();
        let verb = words.next().expect("what");
        let named = words.next().map(|id| BrokerId(id.parse().unwrap()));
        let epoch = |id: BrokerId| self.standings[&id].epoch;
        let (mut by, reason) = (host("standby-1"), "patching".to_owned());
        let what = match (verb, named) {
            ("pause", broker) => {
                let until = words.next().map(|text| at + humantime::parse_duration(text).unwrap());
                Instruction::Pause { broker, reason, until }
            }
            ("resume", broker) => Instruction::Resume { broker },
            ("ack", broker) => {
                let epochs = self.standings.iter().map(|(id, standing)| (*id, standing.epoch)).collect();
                Instruction::Ack { broker, reason, epochs }
            }
            ("approve", Some(broker)) => {
                let until = at + Duration::from_secs(900);
                Instruction::Approve { broker, epoch: epoch(broker), until }
            }
            ("switchover", Some(broker)) => {
                let (to, until) = (host(words.next().expect("to whom")), at + Duration::from_secs(600));
                Instruction::Switchover { broker, to, epoch: epoch(broker), at, until }
            }
            ("released", Some(broker)) => {
                by = host(words.next().expect("by whom"));
                Instruction::Released { broker, epoch: epoch(broker), found: "stopped".to_owned() }
            }
            ("rejoin", None) => {
                by = self.topology.here.clone();
                Instruction::Rejoined
            }
            other => panic!("no such order: {other:?}"),
        };
        self.orders.push(Order { at, host: by, who: "ada".to_owned(), what });
    }

    /// `policy max_brokers_down 2`
    fn set_policy(&mut self, words: &mut SplitWhitespace<'_>) {
        let (key, value) = (words.next().expect("which"), words.next().expect("its value"));
        match key {
            "max_brokers_down" => self.policy.max_brokers_down = value.parse().unwrap(),
            "max_percent_down" => self.policy.max_percent_down = value.parse().unwrap(),
            "mass_failure_window" => {
                self.policy.mass_failure_window = humantime::parse_duration(value).unwrap();
            }
            "budget_window" => self.policy.budget_window = humantime::parse_duration(value).unwrap(),
            "takeovers_per_broker" => self.policy.takeovers_per_broker = value.parse().unwrap(),
            "racks" => {
                let racks: Vec<String> = value.split(',').map(str::to_owned).collect();
                self.topology.brokers.values_mut().for_each(|broker| broker.racks.clone_from(&racks));
            }
            "here" => self.topology.here = host(value),
            "rack" => self.topology.standby.rack = Some(value.to_owned()),
            "unfenced" => drop(self.topology.fences.remove(&host(value))),
            other => panic!("no such key: {other}"),
        }
    }

    fn wall(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + self.now
    }

    /// Lets time pass; every decision that is another than the one before, with its second.
    fn pass(&mut self, duration: &Duration) -> String {
        let mut said = String::new();
        let until = self.now + *duration;
        while self.now < until {
            self.now += STEP;
            self.look();
            let now = Now { mono: Moment(self.now), wall: self.wall() };
            let seen = observe(&self.board, &self.topology.known, self.policy.stale_after, now);
            for id in self.topology.brokers.keys() {
                let decision = decide(*id, &seen, &self.topology, &self.policy);
                if !self.decided.get(id).is_some_and(|before| before.same_kind(&decision)) {
                    let _ = writeln!(said, "{:8.2} s  broker {id}: {decision}", self.now.as_secs_f64());
                }
                self.decided.insert(*id, decision);
            }
        }
        said
    }

    fn plan(&mut self, id: BrokerId) -> String {
        let now = Now { mono: Moment(self.now), wall: self.wall() };
        let seen = observe(&self.board, &self.topology.known, self.policy.stale_after, now);
        let (Decision::TakeOver(takeover)
        | Decision::RestartInPlace(takeover)
        | Decision::SwitchOver(takeover)) = decide(id, &seen, &self.topology, &self.policy)
        else {
            return "nothing is to be done\n".to_owned();
        };
        plan(&takeover, takeover.epoch.next(), &self.topology, &self.policy, &seen)
            .expect("a plan")
            .to_string()
    }

    /// One round of every signal.
    fn look(&mut self) {
        let (now, at) = (self.now, Moment(self.now));
        let beats = now.subsec_millis() == 0 && now.as_secs().is_multiple_of(3);
        for id in self.at_work.iter().filter(|_| beats) {
            self.standings.get_mut(id).expect("one of the brokers").records += 1;
        }
        for look in self.looks.values_mut().filter(|look| look.probe == ProbeOutcome::Answered) {
            look.well = now;
        }
        let mut facts = Vec::new();
        for (broker, look) in &self.looks {
            let broker = *broker;
            if self.link_down {
                facts.push(Fact::Probe { broker, outcome: ProbeOutcome::Unreachable });
                continue;
            }
            facts.push(Fact::Probe { broker, outcome: look.probe.clone() });
            facts.extend(look.local.map(|process| Fact::Local { broker, process }));
            facts.extend(look.address.map(|here| Fact::Address { broker, here }));
            let told = look.registered.filter(|_| self.metadata_up);
            facts.extend(told.map(|registered| Fact::Registration { broker, registered }));
            let outcome = if look.stalled { CanaryOutcome::Stalled } else { CanaryOutcome::Wrote };
            let canary = format!("/mnt/{broker}");
            facts.push(Fact::Storage { canary, brokers: BTreeSet::from([broker]), outcome });
        }
        if self.metadata_up && !self.link_down {
            let listed = self.looks.iter().filter(|(_, look)| look.listed);
            let endpoint = self.topology.brokers[&BrokerId(1)].listener.clone();
            facts.push(Fact::Listed { brokers: listed.map(|(id, _)| (*id, endpoint.clone())).collect() });
            let silence = |look: &Look| look.unheard_since.map_or(Duration::ZERO, |since| now - since);
            let silence = self.looks.iter().map(|(id, look)| (*id, silence(look))).collect();
            facts.push(Fact::Quorum(QuorumView { leader: 101, leader_epoch: 1, silence }));
        }
        if self.ledger_up && !self.link_down {
            let (brokers, orders) = (self.standings.clone(), Arc::new(Orders(self.orders.clone())));
            facts.push(Fact::Ledger(LedgerReading { brokers, orders, ..LedgerReading::default() }));
        }
        if let Some(distrust) = self.distrusted {
            facts.push(Fact::Distrusted { distrust, why: format!("because of {}", distrust.label()) });
        }
        let heard = self.candidates.iter().filter(|_| !self.link_down);
        facts.extend(heard.map(|(host, candidate)| Fact::Peer(self.view(host, candidate))));
        for fact in facts {
            self.board.record(Evidence { signal: "stage", at, fact });
        }
    }

    fn view(&self, host: &HostName, candidate: &Candidate) -> PeerView {
        let saw = |look: &Look| {
            let outcome = look.peers.get(host).unwrap_or(&look.probe).clone();
            let stopped = outcome != ProbeOutcome::Answered && look.stop_seen_by.contains(host);
            let answered = Some(self.now - look.well);
            PeerSaw { outcome, lasting: STEP, answered, stopped, well_in: None }
        };
        PeerView {
            host: host.clone(),
            brokers: self.looks.iter().map(|(id, look)| (*id, saw(look))).collect(),
            stalled: BTreeSet::new(),
            local: BTreeMap::new(),
            candidate: Some(candidate.clone()),
            nfs_client: None,
        }
    }
}

fn broker(words: &mut SplitWhitespace<'_>) -> BrokerId {
    BrokerId(words.next().expect("which broker").parse().expect("a node id"))
}

fn mode(word: &str) -> Mode {
    match word {
        "observe" => Mode::Observe,
        "approve" => Mode::Approve,
        "auto" => Mode::Auto,
        other => panic!("no such mode: {other}"),
    }
}
