//! One look at everything, for the commands that people run: each signal looks for a while, then one
//! observation is made of what was seen. The daemon does the same all the time.

use std::time::Duration;

use recovery::decide::decide_manual;
use recovery::model::{BrokerId, LedgerStanding};
use recovery::observe::{Board, Observation, observe};
use recovery::plan::{Plan, plan};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::UsageError;
use crate::world::{World, standing};

/// How long to look. Long enough for the controller's silence to say something about a broker, which
/// fetches twice a second while it lives.
const LOOK_FOR: Duration = Duration::from_secs(2);

/// How long to look while most brokers do not answer: that may be this host's own slowness, as the first answers
/// on a busy host take their time. (Seen with two busy cores: none of three live brokers within two seconds.)
const LOOK_AT_MOST: Duration = Duration::from_secs(8);

/// Looks at everything for about two seconds; for longer if most brokers do not answer.
async fn gather(world: &World) -> Observation {
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

/// What a takeover asked for by a person would do, and what speaks against it.
#[derive(Debug, Serialize)]
pub(crate) struct Proposal {
    /// The plan; its reasons are the evidence.
    pub(crate) plan: Plan,
    /// What speaks against it. Each may be overridden.
    pub(crate) objections: Vec<String>,
    /// Signals that could not see, with the reason.
    pub(crate) blind: Vec<String>,
    /// Where the broker stands in the ledger.
    pub(crate) standing: LedgerStanding,
}

/// Looks, and plans.
///
/// # Errors
/// When the broker is not guarded here, or the ledger cannot be read: without it there is no epoch to claim.
pub(crate) async fn propose(world: &World, broker: i32) -> anyhow::Result<Proposal> {
    let broker = BrokerId(broker);
    if !world.topology.brokers.contains_key(&broker) {
        let guarded: Vec<_> = world.topology.brokers.keys().map(ToString::to_string).collect();
        let why = format!("broker {broker} is not guarded by this host; it guards {}", guarded.join(", "));
        return Err(UsageError(why).into());
    }
    let seen = gather(world).await;
    let standing = match seen.ledger.as_ref().and_then(|ledger| ledger.brokers.get(&broker)) {
        Some(standing) => standing.clone(),
        None => standing(world.ports.ledger.as_ref(), &world.topology, broker).await?,
    };
    let (takeover, mut objections) = decide_manual(broker, &standing, &seen, &world.topology, &world.policy);
    if takeover.from != takeover.to && world.topology.fences.get(&takeover.from).is_none_or(Vec::is_empty) {
        objections
            .push(format!("no fence is configured for {}: the takeover would end there", takeover.from));
    }
    let plan = plan(&takeover, standing.epoch.next(), &world.topology, &seen)?;
    let blind = seen.blind.iter().map(|(signal, why)| format!("{signal}: {why}")).collect();
    Ok(Proposal { plan, objections, blind, standing })
}

impl std::fmt::Display for Proposal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.plan)?;
        for blind in &self.blind {
            writeln!(f, "cannot see: {blind}")?;
        }
        if self.objections.is_empty() {
            return writeln!(f, "nothing speaks against it");
        }
        self.objections.iter().try_for_each(|objection| writeln!(f, "against it: {objection}"))
    }
}
