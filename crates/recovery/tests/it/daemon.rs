//! The daemon's loop against the fake World, on a paused clock: what it does, and above all what it does not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fakes::{BROKER, Crash, Fault, World};
use recovery::cycle::Cycle;
use recovery::decide::{Decision, HoldReason, Takeover};
use recovery::event::What;
use recovery::model::{
    BrokerId, Cause, Check, Checked, Epoch, Evidence, Fact, HostName, Moment, Outcome, Topology, Verdict,
};
use recovery::observe::{Board, observe};
use recovery::policy::Mode;
use recovery::ports::{Clock, HealthSignal, Ledger};
use recovery::status::Status;
use tokio::sync::{oneshot, watch};

/// A daemon that runs until it is dropped.
struct Daemon {
    status: watch::Receiver<Status>,
    _stop: oneshot::Sender<()>,
}

fn start(world: &World, mode: Mode) -> Daemon {
    start_with(world, mode, World::topology(), Vec::new())
}

fn start_on(world: &World, mode: Mode, topology: Topology) -> Daemon {
    start_with(world, mode, topology, Vec::new())
}

fn start_with(world: &World, mode: Mode, topology: Topology, further: Vec<Arc<dyn HealthSignal>>) -> Daemon {
    let policy = recovery::policy::Policy { mode, ..World::policy() };
    let (cycle, status) = Cycle::new(topology, policy, world.ports());
    let ledger = recovery::ledger_signal::LedgerSignal::new(
        Arc::new(world.clone()),
        [(BROKER, HostName::from("kafka-1"))].into(),
        watch::channel(BTreeMap::new()).1,
    );
    let mut signals: Vec<Arc<dyn HealthSignal>> = vec![Arc::new(world.clone()), Arc::new(ledger)];
    signals.extend(further);
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(cycle.run(signals, async move {
        let _ = stopped.await;
    }));
    Daemon { status, _stop: stop }
}

impl Daemon {
    fn decision(&self) -> Option<Decision> {
        self.status.borrow().brokers.first().and_then(|b| b.decision.clone())
    }
}

async fn outcome(world: &World) -> Option<Outcome> {
    world.latest(BROKER).await.ok()??.outcome().cloned()
}

/// Lets simulated time pass.
async fn pass(world: &World, seconds: u64) {
    world.sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_host_is_recovered_without_being_asked() {
    let world = World::new();
    let daemon = start(&world, Mode::Auto);
    pass(&world, 5).await;
    assert_eq!(daemon.decision(), Some(Decision::Healthy));
    world.kill();
    pass(&world, 15).await;
    let Some(Outcome::Recovered { time_to_isr, .. }) = outcome(&world).await else {
        panic!("{:?}", world.truth().events)
    };
    assert!(time_to_isr < Duration::from_secs(8), "{time_to_isr:?}");
    assert!(world.truth().violations.is_empty(), "{:?}", world.truth().violations);
    assert_eq!(world.truth().starts, 1);
    assert_eq!(daemon.decision(), Some(Decision::Healthy));
    pass(&world, 600).await;
    assert_eq!(world.all(BROKER).await.expect("up").len(), 1, "one fault, one takeover");
}

#[tokio::test(start_paused = true)]
async fn nothing_happens_to_a_healthy_broker_whatever_becomes_of_our_own_parts() {
    let world = World::new();
    let daemon = start(&world, Mode::Auto);
    pass(&world, 5).await;
    world.truth().ledger_down = true;
    pass(&world, 60).await;
    assert_eq!(daemon.decision(), Some(Decision::Healthy));
    world.truth().ledger_down = false;
    world.truth().cut_off = true;
    pass(&world, 60).await;
    world.truth().cut_off = false;
    pass(&world, 10).await;
    assert_eq!(daemon.decision(), Some(Decision::Healthy));
    assert!(world.all(BROKER).await.expect("up").is_empty());
    assert!(world.truth().fenced.is_empty());
}

/// Every case in which a broker looks dead and must not be taken over, with the reason it must give.
#[tokio::test(start_paused = true)]
async fn a_dead_looking_broker_is_held_with_its_reason() {
    type Case = (&'static str, Mode, fn(&World));
    let cases: &[Case] = &[
        ("isolated", Mode::Auto, |w| w.truth().cut_off = true),
        ("out_of_reach", Mode::Auto, |w| w.truth().broker_unreachable = true),
        ("mass_failure", Mode::Auto, |w| {
            // The one that the controller does not hear.
            w.truth().others_dead.insert(BrokerId(3));
            w.kill();
        }),
        ("ledger_unreachable", Mode::Auto, |w| {
            w.truth().ledger_down = true;
            w.kill();
        }),
        ("stopped_cleanly", Mode::Auto, |w| {
            let now = w.now().mono;
            w.truth().unregistered_at = Some(now);
            w.kill();
        }),
        ("observing", Mode::Observe, World::kill),
        ("awaiting_approval", Mode::Approve, World::kill),
    ];
    for (reason, mode, fault) in cases {
        let world = World::new();
        let daemon = start(&world, *mode);
        pass(&world, 5).await;
        fault(&world);
        pass(&world, 30).await;
        let Some(Decision::Hold { reasons }) = daemon.decision() else {
            panic!("{reason}: {:?}", daemon.decision())
        };
        let labels: Vec<_> = reasons.iter().map(HoldReason::label).collect();
        assert!(labels.contains(reason), "expected {reason}, got {labels:?}");
        assert!(world.truth().fenced.is_empty(), "{reason}: fenced all the same");
        assert_eq!(world.truth().starts, 0, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_shorter_than_the_limit_is_no_reason_to_act() {
    let world = World::new();
    let daemon = start(&world, Mode::Auto);
    pass(&world, 5).await;
    world.truth().broker_unreachable = true;
    world.sleep(Duration::from_millis(1500)).await;
    assert_eq!(daemon.decision().map(|d| d.label()), Some("suspect"));
    world.truth().broker_unreachable = false;
    pass(&world, 5).await;
    assert_eq!(daemon.decision(), Some(Decision::Healthy));
    assert!(world.all(BROKER).await.expect("up").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stuck_takeover_is_escalated_and_not_repeated() {
    let world = World::new();
    let daemon = start(&world, Mode::Auto);
    pass(&world, 5).await;
    world.truth().faults.insert("prove", Fault::Unconfirmed);
    world.kill();
    pass(&world, 300).await;
    assert!(matches!(daemon.decision(), Some(Decision::Escalate { .. })), "{:?}", daemon.decision());
    assert!(matches!(outcome(&world).await, Some(Outcome::Stuck { .. })));
    assert_eq!(world.all(BROKER).await.expect("up").len(), 1, "tried once");
    assert_eq!(world.truth().starts, 0);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_takeover_is_not_repeated_by_the_same_host() {
    let world = World::new();
    let daemon = start(&world, Mode::Auto);
    pass(&world, 5).await;
    world.truth().faults.insert("verify_log_dirs", Fault::Refuse);
    world.kill();
    pass(&world, 300).await;
    assert!(matches!(daemon.decision(), Some(Decision::Escalate { .. })), "{:?}", daemon.decision());
    assert!(matches!(outcome(&world).await, Some(Outcome::Abandoned { .. })));
    assert_eq!(world.all(BROKER).await.expect("up").len(), 1, "tried once");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_daemon_finishes_what_it_left() {
    for n in [2, 6, 12, 15] {
        let world = World::new();
        let daemon = start(&world, Mode::Auto);
        pass(&world, 5).await;
        world.truth().crash = Some(Crash::After(n));
        world.kill();
        pass(&world, 4).await;
        drop(daemon);
        let _again = start(&world, Mode::Auto);
        pass(&world, 30).await;
        let end = outcome(&world).await;
        assert!(matches!(end, Some(Outcome::Recovered { .. })), "after write {n}: {end:?}");
        assert_eq!(world.truth().starts, 1, "after write {n}");
        assert!(world.truth().violations.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_withdrawn_if_the_broker_came_back_before_anything_was_touched() {
    let world = World::new();
    let daemon = start(&world, Mode::Auto);
    pass(&world, 5).await;
    // Dies right after the claim is durable; the broker was only out of reach.
    world.truth().crash = Some(Crash::After(1));
    world.kill();
    pass(&world, 3).await;
    drop(daemon);
    world.truth().died_at = None;
    let daemon = start(&world, Mode::Auto);
    pass(&world, 10).await;
    let end = outcome(&world).await;
    assert!(matches!(end, Some(Outcome::Withdrawn { .. })), "{end:?} {:?}", world.truth().events);
    assert_eq!(daemon.decision(), Some(Decision::Healthy));
    assert!(world.truth().fenced.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_stands_still_before_the_fence_lets_it_be_decided_anew() {
    for thaws in [true, false] {
        let world = World::new();
        let daemon = start(&world, Mode::Auto);
        pass(&world, 5).await;
        // The claim is quick, the fence's intent is not.
        world.truth().slow_write = Some((2, Duration::from_secs(18)));
        world.kill();
        pass(&world, 10).await;
        if thaws {
            world.truth().died_at = None;
        }
        pass(&world, 30).await;
        let end = outcome(&world).await;
        if thaws {
            assert!(matches!(end, Some(Outcome::Withdrawn { .. })), "{end:?} {:?}", world.truth().events);
            assert!(world.truth().fenced.is_empty(), "the broker was back for 8 s");
            assert_eq!(daemon.decision(), Some(Decision::Healthy));
        } else {
            assert!(matches!(end, Some(Outcome::Recovered { .. })), "{end:?} {:?}", world.truth().events);
            assert_eq!(world.truth().starts, 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn holds_are_kept_in_the_ledger_with_their_evidence() {
    let world = World::new();
    let _daemon = start(&world, Mode::Observe);
    pass(&world, 5).await;
    world.kill();
    pass(&world, 30).await;
    let kept = world.remembered(BROKER).await.expect("up");
    let hold = kept.iter().find_map(|event| match &event.what {
        What::Decided { decision: Decision::Hold { reasons }, evidence } => Some((reasons, evidence)),
        _ => None,
    });
    let (reasons, evidence) = hold.expect("the hold was kept");
    assert_eq!(*reasons, vec![HoldReason::Observing]);
    assert!(evidence.iter().any(|line| line.contains("cannot be reached")), "{evidence:?}");
}

/// A check of the fence of kafka-1, every minute, that finds what it is told to find.
struct FenceCheck(Arc<Mutex<Verdict>>);

#[async_trait::async_trait]
impl HealthSignal for FenceCheck {
    fn name(&self) -> &'static str {
        "checks"
    }

    fn period(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let verdict = *self.0.lock().expect("whole");
        let (check, remedy) = (Check::Fence("kafka-1".into()), "change the password".to_owned());
        let found = Checked { check, verdict, says: "it says".to_owned(), remedy };
        let fact = Fact::Checked { found, counts_for: Duration::from_secs(180) };
        vec![Evidence { signal: self.name(), at: clock.now().mono, fact }]
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_that_turns_is_told_once_and_kept_and_keeps_nobody_from_acting() {
    let world = World::new();
    let verdict = Arc::new(Mutex::new(Verdict::Ok));
    let daemon =
        start_with(&world, Mode::Auto, World::topology(), vec![Arc::new(FenceCheck(verdict.clone()))]);
    let told = || {
        let events = world.truth().events.clone();
        let turns = events.iter().filter_map(|event| match &event.what {
            What::CheckFailed { found } => Some(("failed", found.check.to_string())),
            What::CheckPassed { found } => Some(("passed", found.check.to_string())),
            _ => None,
        });
        turns.collect::<Vec<_>>()
    };
    pass(&world, 5).await;
    assert_eq!(daemon.status.borrow().checks.len(), 1);
    assert_eq!(told(), [], "what is well from the begin is no news");
    *verdict.lock().expect("whole") = Verdict::Fail;
    pass(&world, 200).await;
    let failed = ("failed", "fence of kafka-1".to_owned());
    assert_eq!(told(), std::slice::from_ref(&failed), "once, however often it is looked at");
    let candidate = daemon.status.borrow().view.as_ref().and_then(|view| view.candidate.clone());
    let not_ready = candidate.expect("it guards a broker").not_ready;
    assert_eq!(not_ready, [(BROKER, "fence of kafka-1".to_owned())].into());
    assert_eq!(daemon.decision(), Some(Decision::Healthy));
    let kept = world.remembered(BROKER).await.expect("up");
    assert!(kept.iter().any(|event| matches!(event.what, What::CheckFailed { .. })), "{kept:?}");
    *verdict.lock().expect("whole") = Verdict::Warn;
    pass(&world, 100).await;
    assert_eq!(told(), [failed, ("passed", "fence of kafka-1".to_owned())]);
    // The only standby acts whatever its check said last.
    *verdict.lock().expect("whole") = Verdict::Fail;
    pass(&world, 100).await;
    world.kill();
    pass(&world, 15).await;
    assert!(matches!(outcome(&world).await, Some(Outcome::Recovered { .. })));
}

fn kills_and_starts(world: &World) -> (usize, usize) {
    let truth = world.truth();
    (truth.kills, truth.starts)
}

/// A broker that was taken over and serves from here.
async fn taken_over(world: &World) -> Daemon {
    let daemon = start(world, Mode::Auto);
    pass(world, 5).await;
    world.kill();
    pass(world, 15).await;
    assert_eq!(daemon.decision(), Some(Decision::Healthy));
    daemon
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_lost_its_registration_is_killed_and_started_again() {
    let world = World::new();
    let daemon = taken_over(&world).await;
    world.truth().registration_lost = true;
    pass(&world, 9).await;
    assert_eq!(world.truth().kills, 0, "it might be known anew");
    pass(&world, 15).await;
    assert!(world.truth().violations.is_empty(), "{:?}", world.truth().violations);
    assert_eq!(kills_and_starts(&world), (1, 2));
    let journal = world.latest(BROKER).await.expect("readable").expect("there");
    assert_eq!(journal.epoch.0, 2);
    assert!(matches!(journal.outcome(), Some(Outcome::Recovered { .. })), "{journal:?}");
    assert_eq!(daemon.decision(), Some(Decision::Healthy));
    assert_eq!(world.truth().unregister_sent, 1, "of the takeover alone");
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_fenced_and_registered_is_left_alone() {
    let world = World::new();
    let daemon = taken_over(&world).await;
    world.truth().registration_lost = true;
    pass(&world, 11).await;
    // It is said to be without one; right before it is killed, nobody can tell.
    world.truth().faults.insert("registered", Fault::Unconfirmed);
    pass(&world, 60).await;
    assert_eq!(kills_and_starts(&world), (0, 1));
    assert!(matches!(outcome(&world).await, Some(Outcome::Abandoned { .. })));
    let Some(Decision::Escalate { .. }) = daemon.decision() else { panic!("{:?}", daemon.decision()) };
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_carried_out_late_does_not_end_the_takeover() {
    let world = World::new();
    let daemon = start(&world, Mode::Auto);
    pass(&world, 5).await;
    world.kill();
    // It serves again, is not yet in sync, and then its registration goes.
    while !world.truth().registration_lost {
        world.sleep(Duration::from_millis(100)).await;
        let now = world.now().mono;
        let mut truth = world.truth();
        truth.registration_lost = truth.started_at.is_some() && truth.answers(now);
    }
    pass(&world, 25).await;
    assert!(world.truth().violations.is_empty(), "{:?}", world.truth().violations);
    assert_eq!(kills_and_starts(&world), (1, 2));
    assert!(matches!(outcome(&world).await, Some(Outcome::Recovered { .. })));
    let journal = world.latest(BROKER).await.expect("readable").expect("there");
    assert_eq!(journal.epoch.0, 1, "by the same takeover");
    let said = format!("{journal:?}");
    assert!(said.contains("its registration was removed once it had come back"), "{said}");
    assert_eq!(daemon.decision(), Some(Decision::Healthy));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_was_fenced_is_told_at_once_that_it_has_not_rejoined() {
    let world = World::new();
    let standby = start(&world, Mode::Auto);
    pass(&world, 5).await;
    world.kill();
    pass(&world, 15).await;
    assert!(matches!(outcome(&world).await, Some(Outcome::Recovered { .. })), "{:?}", world.truth().events);
    drop(standby);
    let told = |world: &World| {
        let events = world.truth().events.clone();
        let told = events.iter().filter(|event| matches!(event.what, What::NotRejoined));
        told.map(|event| (event.host.0.clone(), event.broker, event.epoch)).collect::<Vec<_>>()
    };
    assert_eq!(told(&world), [], "no other host says so");
    let mut topology = World::topology();
    topology.here = "kafka-1".into();
    let _back = start_on(&world, Mode::Observe, topology);
    pass(&world, 30).await;
    assert_eq!(told(&world), [("kafka-1".to_owned(), Some(BROKER), Some(Epoch(1)))], "once");
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_no_plan_can_be_made_for_is_told_once_and_kept() {
    let world = World::new();
    let (mut cycle, _) = Cycle::new(World::topology(), World::policy(), world.ports());
    let (topology, stale_after) = (World::topology(), World::policy().stale_after);
    let seen = observe(&Board::default(), &topology.known, stale_after, world.now());
    let decision = Decision::SwitchOver(Takeover {
        broker: BROKER,
        from: "kafka-1".into(),
        to: "standby-1".into(),
        epoch: Epoch(0),
        cause: Cause::Planned,
        succeeds: None,
        // Beside the owner, which is no switchover.
        writers: ["kafka-1".into(), "standby-2".into()].into(),
        machines: BTreeMap::new(),
        fault_at: jiff::Timestamp::UNIX_EPOCH,
        because: Vec::new(),
        unregistered: false,
    });
    for _ in 0..3 {
        assert!(!cycle.act(BROKER, decision.clone(), &seen));
    }
    world.sleep(Duration::from_secs(1)).await;
    let unplanned = |event: &recovery::event::Event| matches!(&event.what, What::NotPlanned { why } if why.contains("standby-2"));
    assert_eq!(world.truth().events.iter().filter(|event| unplanned(event)).count(), 1);
    assert_eq!(world.truth().remembered.iter().filter(|(_, event)| unplanned(event)).count(), 1);
}

/// A signal whose looks cost something.
#[derive(Default)]
struct Dear(Mutex<Vec<Moment>>);

#[async_trait::async_trait]
impl HealthSignal for Dear {
    fn name(&self) -> &'static str {
        "dear"
    }
    fn period(&self) -> Duration {
        Duration::from_secs(300)
    }
    fn period_on_suspicion(&self) -> Option<Duration> {
        Some(Duration::from_secs(5))
    }
    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        self.0.lock().expect("not poisoned").push(clock.now().mono);
        Vec::new()
    }
}

#[tokio::test(start_paused = true)]
async fn a_dear_signal_looks_seldom_in_calm_and_at_once_on_suspicion() {
    let (world, dear) = (World::new(), Arc::new(Dear::default()));
    let looks = || std::mem::take(&mut *dear.0.lock().unwrap());
    let _daemon = start_with(&world, Mode::Observe, World::topology(), vec![dear.clone()]);
    pass(&world, 1000).await;
    assert_eq!(looks().len(), 4, "one each 300 s");

    let silent = world.now().mono;
    world.truth().broker_unreachable = true;
    pass(&world, 60).await;
    let suspicious = looks();
    let first = suspicious[0].since(silent);
    assert!(first < Duration::from_secs(1), "the first look began {first:?} after the broker fell silent");
    assert!((12..=13).contains(&suspicious.len()), "one each 5 s: {suspicious:?}");

    world.truth().broker_unreachable = false;
    pass(&world, 10).await;
    looks();
    pass(&world, 600).await;
    assert_eq!(looks().len(), 2, "it is calm again");
}
