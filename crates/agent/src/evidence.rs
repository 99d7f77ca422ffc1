//! One look at everything, for the commands that people run: each signal looks for a while, then one
//! observation is made of what was seen. The daemon does the same all the time.

use std::path::Path;
use std::time::Duration;

use drivers::clients::daemon;
use jiff::Timestamp;
use recovery::decide::{Decision, HoldReason, Takeover, decide_manual};
use recovery::departure::SeenBy;
use recovery::event::{Event, What};
use recovery::model::{BrokerId, Evidence, Fact, LedgerStanding, Moment, PeerView, human};
use recovery::observe::{Board, Observation, observe};
use recovery::plan::{Plan, plan};
use recovery::ports::{Note, chain};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::UsageError;
use crate::http::StatusPage;
use crate::world::{World, standing};

/// How long to look. Long enough for the controller's silence to say something about a broker, which
/// fetches twice a second while it lives.
const LOOK_FOR: Duration = Duration::from_secs(2);

/// How long to look while most brokers do not answer: that may be this host's own slowness, as the first
/// answers on a busy host take their time. (Seen with two busy cores: none of three live brokers within two
/// seconds.)
const LOOK_AT_MOST: Duration = Duration::from_secs(8);

/// A decision is made within a second of what it is made on: a look that takes its time, and a tick.
const LOOK_AND_TICK: Duration = Duration::from_secs(1);

/// What the daemon on this host remembers, and what it last decided.
#[derive(Default)]
struct Memory {
    view: Option<(Moment, PeerView)>,
    decision: Option<Decision>,
    /// Why it is not known, if there is a daemon.
    unknown: Option<String>,
}

/// Asks the daemon on this host. A command has seen nothing of what came before it.
async fn recall(world: &World, socket: &Path, broker: BrokerId) -> Memory {
    let at = world.ports.clock.now().mono;
    let mut memory = Memory::default();
    match daemon::page::<PeerView>(socket, "/v1/view").await {
        Ok(view) => memory.view = view.map(|view| (at, view)),
        Err(error) => memory.unknown = Some(chain(&error)),
    }
    match daemon::page::<StatusPage>(socket, "/v1/status").await {
        Ok(page) => {
            let brokers = page.map(|page| page.status.brokers).unwrap_or_default();
            memory.decision = brokers.into_iter().find(|it| it.id == broker).and_then(|it| it.decision);
        }
        Err(error) => memory.unknown = Some(chain(&error)),
    }
    memory
}

/// Looks at everything for about two seconds; for longer if most brokers do not answer.
async fn gather(world: &World, remembered: Option<(Moment, PeerView)>) -> Observation {
    let (send, mut seen) = mpsc::channel(1024);
    let mut looks = JoinSet::new();
    for signal in &world.signals {
        let (signal, send, clock) = (signal.clone(), send.clone(), world.ports.clock.clone());
        looks.spawn(async move {
            loop {
                for evidence in signal.look(clock.as_ref()).await {
                    if send.send(evidence).await.is_err() {
                        return;
                    }
                }
                clock.sleep(signal.period()).await;
            }
        });
    }
    drop(send);
    let mut board = Board::default();
    if let Some((at, view)) = remembered {
        board.record(Evidence { signal: "daemon", at, fact: Fact::Daemon(view) });
    }
    // Nothing was looked at before this call, so nothing here is stale.
    let stale_after = world.policy.stale_after.max(LOOK_AT_MOST * 2);
    let begun = Instant::now();
    let mut until = begun + LOOK_FOR;
    loop {
        let over = match timeout_at(until, seen.recv()).await {
            Ok(Some(evidence)) => {
                board.record(evidence);
                continue;
            }
            Ok(None) => true,
            Err(_elapsed) => begun.elapsed() >= LOOK_AT_MOST,
        };
        let observed = observe(&board, &world.topology.known, stale_after, world.ports.clock.now());
        let answer = observed.brokers.values().filter(|broker| broker.answers()).count();
        if over || answer * 2 > observed.brokers.len() {
            return observed;
        }
        until = Instant::now() + LOOK_FOR / 4;
    }
}

/// What `check` looks at on this host for a takeover of `broker`, but for devices of others: what was found of Kafka, and
/// what fails.
async fn prepared(world: &World, broker: BrokerId) -> (Vec<Note>, Vec<String>) {
    let storage = async {
        match world.ports.storage.get(&broker) {
            Some(storage) => storage.check().await.map(drop),
            None => Ok(()),
        }
    };
    let address = async {
        match world.ports.addresses.get(&broker) {
            Some(address) => address.check().await.map(drop),
            None => Ok(()),
        }
    };
    let looks = async { tokio::join!(storage, address, world.ports.broker_host.check(broker)) };
    let Ok((storage, address, here)) = timeout(LOOK_AT_MOST, looks).await else {
        let why = format!(
            "`understudy check` would not be done within {}: it says what hangs",
            human(LOOK_AT_MOST)
        );
        return (Vec::new(), vec![why]);
    };
    let (found, wrong): (Vec<_>, Vec<_>) = here.into_iter().partition(Result::is_ok);
    let outside = [storage, address].into_iter().filter_map(Result::err);
    let failing = outside.chain(wrong.into_iter().filter_map(Result::err));
    let failing = failing.map(|error| format!("`understudy check` fails: {}", chain(&error))).collect();
    (found.into_iter().flatten().collect(), failing)
}

/// What a takeover asked for by a person would do, and what speaks against it.
#[derive(Debug, Serialize)]
pub(crate) struct Proposal {
    /// The plan; its reasons are the evidence.
    pub(crate) plan: Plan,
    /// What speaks against it. Each may be overridden.
    pub(crate) objections: Vec<String>,
    /// What the agent of this host does about the broker by itself, if that is nothing, and why.
    pub(crate) advice: Vec<String>,
    /// Signals that could not see, with the reason.
    pub(crate) blind: Vec<String>,
    /// Where the broker stands in the ledger.
    pub(crate) standing: LedgerStanding,
    /// What was found of Kafka on this host.
    #[serde(skip)]
    here: Vec<Note>,
    /// What Kafka's `server.properties` would say here, where it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) properties: Vec<String>,
}

/// Looks, and plans.
///
/// # Errors
/// When the broker is not guarded here, or the ledger cannot be read: without it there is no epoch to claim.
pub(crate) async fn propose(world: &World, socket: &Path, broker: i32) -> anyhow::Result<Proposal> {
    let broker = BrokerId(broker);
    if !world.topology.brokers.contains_key(&broker) {
        let guarded: Vec<_> = world.topology.brokers.keys().map(ToString::to_string).collect();
        let why = format!("broker {broker} is not guarded by this host; it guards {}", guarded.join(", "));
        return Err(UsageError(why).into());
    }
    let memory = recall(world, socket, broker).await;
    let (seen, (here, failing)) = tokio::join!(gather(world, memory.view), prepared(world, broker));
    let standing = match seen.ledger.as_ref().and_then(|ledger| ledger.brokers.get(&broker)) {
        Some(standing) => standing.clone(),
        None => standing(world.ports.ledger.as_ref(), &world.topology, broker).await?,
    };
    let (mut takeover, mut objections) =
        decide_manual(broker, &standing, &seen, &world.topology, &world.policy);
    if takeover.from != takeover.to && !world.topology.is_fenceable(&takeover.from) {
        objections
            .push(format!("no fence is configured for {}: the takeover would end there", takeover.from));
    }
    let seen_well = seen.brokers.get(&broker).and_then(|seen| seen.last_well.as_ref());
    if seen_well.is_none_or(|well| well.by == SeenBy::Controller) {
        // Without it the fault is dated as it was: too late rather than too early.
        let events = world.ports.ledger.remembered(broker).await.unwrap_or_default();
        date(&mut takeover, failing_since(&events, &standing), seen.now.wall);
    }
    // Found now, it costs nobody his host: after the fence it would.
    objections.extend(failing);
    let plan = plan(&takeover, standing.epoch.next(), &world.topology, &world.policy, &seen)?;
    let blind = seen.blind.iter().map(|(signal, why)| format!("{signal}: {why}"));
    let blind = blind.chain(memory.unknown.map(|why| format!("daemon: {why}"))).collect();
    let advice = memory.decision.and_then(held).into_iter().collect();
    Ok(Proposal { plan, objections, advice, blind, standing, here, properties: Vec::new() })
}

impl Proposal {
    /// Adds what `server.properties` would say of the broker.
    pub(crate) fn with_properties(mut self) -> Self {
        let rendered = self.here.iter().find(|note| note.details.contains_key(LISTENERS));
        let properties =
            rendered.map(|note| note.details.iter().map(|(key, value)| format!("{key}={value}")));
        self.properties = properties.into_iter().flatten().collect();
        self
    }
}

/// Of Kafka.
const LISTENERS: &str = "listeners";

/// Dates the fault by the ledger's history, where that knows of an earlier one.
fn date(takeover: &mut Takeover, failing: Option<Timestamp>, now: Timestamp) {
    let Some(at) = failing.and_then(|at| at.checked_sub(LOOK_AND_TICK).ok()) else { return };
    if at >= takeover.fault_at {
        return;
    }
    let ago = human(Duration::try_from(now.duration_since(at)).unwrap_or_default());
    takeover.fault_at = at;
    takeover.because.retain(|clue| !clue.starts_with("last seen well"));
    takeover.because.push(format!("last seen well: {ago} ago, by the decisions in the ledger"));
}

/// When agents first found the broker not well since they, or a takeover, last found it well.
fn failing_since(events: &[Event], standing: &LedgerStanding) -> Option<Timestamp> {
    let recovered = standing.attempts.iter().rev().find(|a| a.ended.as_deref() == Some("recovered"));
    let decided = events.iter().filter_map(|event| match &event.what {
        What::Decided { decision, .. } => Some((event.at, decision)),
        _ => None,
    });
    let since = decided.filter(|(at, _)| recovered.is_none_or(|attempt| *at > attempt.at));
    since.fold(None, |first, (at, decision)| match decision {
        Decision::Healthy => None,
        _ => first.or(Some(at)),
    })
}

/// Why the agent of this host leaves the broker alone. That its mode forbids it to act is no reason against a
/// person's doing so.
fn held(decision: Decision) -> Option<String> {
    let Decision::Hold { reasons } = &decision else {
        let waits = matches!(decision, Decision::Escalate { .. } | Decision::Suspect { .. });
        return waits.then(|| decision.to_string());
    };
    let mode = |reason: &HoldReason| matches!(reason, HoldReason::Observing | HoldReason::AwaitingApproval);
    (!reasons.iter().all(mode)).then(|| decision.to_string())
}

impl std::fmt::Display for Proposal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.plan)?;
        for property in &self.properties {
            writeln!(f, "  server.properties: {property}")?;
        }
        for blind in &self.blind {
            writeln!(f, "cannot see: {blind}")?;
        }
        for held in &self.advice {
            writeln!(f, "the agent of this host does not act: {held}")?;
        }
        if self.objections.is_empty() && self.advice.is_empty() {
            return writeln!(f, "nothing speaks against it");
        }
        self.objections.iter().try_for_each(|objection| writeln!(f, "against it: {objection}"))
    }
}

#[cfg(test)]
mod tests {
    use recovery::model::{Attempt, Cause, Epoch};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn decided(second: i64, decision: Decision) -> Event {
        let what = What::Decided { decision, evidence: Vec::new() };
        Event { at: at(second), host: "h".into(), broker: Some(BrokerId(1)), epoch: None, what }
    }

    fn suspect() -> Decision {
        Decision::Suspect { clue: String::new() }
    }

    fn hold(reasons: Vec<HoldReason>) -> Decision {
        Decision::Hold { reasons }
    }

    #[test]
    fn an_outage_begins_where_the_ledger_first_tells_of_it() {
        let mut standing = LedgerStanding::untouched("h".into());
        let isolated = || hold(vec![HoldReason::MetadataBlind]);
        let events = [
            decided(10, suspect()),
            decided(12, Decision::Healthy),
            decided(100, suspect()),
            decided(102, isolated()),
        ];
        assert_eq!(failing_since(&events, &standing), Some(at(100)));
        assert_eq!(
            failing_since(&events[..1], &standing),
            Some(at(10)),
            "that it was well before is not kept"
        );
        assert_eq!(failing_since(&events[..2], &standing), None);
        standing.attempts.push(Attempt {
            epoch: Epoch(1),
            at: at(101),
            by: "h".into(),
            cause: Cause::Automatic,
            in_place: false,
            ended: Some("recovered".to_owned()),
            ended_at: None,
            why: None,
            time_to_isr: None,
            phases: std::collections::BTreeMap::new(),
        });
        assert_eq!(failing_since(&events, &standing), Some(at(102)), "it was recovered in between");
    }

    #[test]
    fn what_the_agent_holds_for_is_told_but_for_its_mode() {
        let stopped = || HoldReason::StoppedCleanly { seen_by: None };
        assert!(held(hold(vec![stopped()])).is_some_and(|said| said.contains("clean stop")));
        assert!(held(hold(vec![stopped(), HoldReason::Observing])).is_some());
        assert_eq!(held(hold(vec![HoldReason::AwaitingApproval])), None);
        assert_eq!(held(Decision::Healthy), None);
        assert!(held(suspect()).is_some());
    }
}
