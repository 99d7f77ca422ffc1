//! A broker's own pod: nothing but the agent starts Kafka there. It does so once the pod begins, by the rule of `guard`.
//!
//! The decision loop restarts what it has seen to run and to end, and takes over what another host had. A Kafka that was
//! never started in this pod is neither: on any other host its unit starts it, and asks `guard` first.
//!
//! A pod that is made anew has the name of the one before, and the API does not tell whether that one has ended: whoever
//! deletes by force a pod of a frozen kubelet has two. So each pod is a machine of its own to the ledger, and the name goes
//! from one to the next only once the first has said that nothing of it runs any more.

use std::path::Path;
use std::time::Duration;

use drivers::broker_host::{Right, RightError};
use drivers::machine::Local;
use jiff::Timestamp;
use recovery::known::{Machine, leave_name};
use recovery::model::{BrokerId, Epoch, HostName};
use recovery::ports::{BoxError, Ledger, Note, Ports, ProcessState, StepError, chain};
use tokio::time::sleep;

use crate::config::{BrokerHostConfig, Config};
use crate::may_start::{Case, read};
use crate::refusal::Refused;

/// Between two looks at a Kafka that was not started yet, of the container beside this one alone.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two questions to the ledger after a no.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Between two looks whether Kafka has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// For how long the ledger's word counts, as in a takeover.
const COUNTS_FOR: Duration = recovery::execute::DECIDED_WITHIN;

/// Why Kafka was not started.
#[derive(Debug, thiserror::Error)]
enum NotStarted {
    #[error("{}", .0.why)]
    Refused(Refused),
    #[error("the ledger does not say that it may be")]
    Ledger(#[source] BoxError),
    #[error(
        "its address does not lead here: in mode `auto` a restart in place moves it here, once `policy.boot_patience` is \
         over; in any mode `understudy failover --broker {0}` in this pod"
    )]
    Elsewhere(BrokerId),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("what the ledger said {} ms ago is too old for a start: storage, or this host, is slow", .0.as_millis())]
    Old(Duration),
}

/// Has Kafka of a broker whose home is this pod started, whenever it was not started yet in the pod and may be.
pub(crate) async fn keep(ports: Ports, broker: BrokerId, here: HostName) {
    let mut told = String::new();
    loop {
        let pause = match begin(&ports, broker, &here).await {
            Ok(None) => PAUSE,
            Ok(Some(note)) => {
                told.clear();
                tracing::info!(%broker, "Kafka is started in its own pod: {}", note.text);
                PAUSE
            }
            Err(error) => {
                let why = chain(&error);
                if why != told {
                    tracing::warn!(%broker, "Kafka is not started in its own pod: {why}");
                    told = why;
                }
                ASK_AGAIN
            }
        };
        sleep(pause).await;
    }
}

/// Starts it, if nothing of it was ever started here and `guard` says yes. Its `None`: there is nothing to start.
async fn begin(ports: &Ports, broker: BrokerId, here: &HostName) -> Result<Option<Note>, NotStarted> {
    let host = &ports.broker_host;
    // Of an entry point that does not listen yet, `check` and the decision loop tell.
    if !matches!(host.state(broker).await, Ok(ProcessState::Absent)) {
        return Ok(None);
    }
    // Without the lock first, which a person's `rejoin` takes: this may be asked again and again.
    may_start(ports, broker, here).await?;
    // One takeover, or one start, at a time.
    let Ok(_lock) = ports.host_lock.try_lock(broker) else { return Ok(None) };
    let asked = ports.clock.now().mono;
    let epoch = may_start(ports, broker, here).await?;
    // The rule leaves no other writer than this host.
    let proof = host.prove_stopped(broker, epoch.next()).await?;
    host.render(broker, epoch).await?;
    let age = ports.clock.now().mono.since(asked);
    if age > COUNTS_FOR {
        return Err(NotStarted::Old(age));
    }
    Ok(Some(host.start(broker, epoch, &[proof]).await?))
}

/// Gives the pod's name up once no Kafka runs in it, so that the next pod of the name is the host. If that cannot be said
/// before the kubelet ends this one, the next pod is refused until a person says it. To be held to the end of this
/// process: nothing is started any more.
pub(crate) async fn leave(config: &Config, ledger: &dyn Ledger) -> anyhow::Result<Vec<Right>> {
    let BrokerHostConfig::Kubernetes(pod) = &config.broker_host else { return Ok(Vec::new()) };
    let local = Local::new(config.state_dir.clone());
    let instance = local.instance()?;
    let Some(instance) = instance.filter(|_| !config.own_in_this_pod().is_empty()) else {
        return Ok(Vec::new());
    };
    let brokers: Vec<BrokerId> = config.topology.brokers.keys().copied().collect();
    let ended = all_ended(&pod.dir, &brokers).await?;
    let host = &config.topology.here;
    // The kubelet says how long there is time.
    let had_it = loop {
        match leave_name(ledger, host, &instance, Timestamp::now()).await {
            Ok(had_it) => break had_it,
            Err(error) => {
                tracing::warn!(%host, "its name is not given up yet to the next pod: {}", chain(&error));
                sleep(PAUSE).await;
            }
        }
    };
    if had_it {
        tracing::info!(%host, "no Kafka runs in this pod: its name was given up to the next one");
    }
    Ok(ended)
}

/// The rights to run the brokers in the container beside this one. A Kafka holds its own to the end of its last process.
async fn all_ended(dir: &Path, brokers: &[BrokerId]) -> anyhow::Result<Vec<Right>> {
    loop {
        let rights: Result<Vec<Right>, RightError> =
            brokers.iter().map(|broker| Right::take(dir, *broker, Duration::ZERO)).collect();
        match rights {
            Ok(rights) => return Ok(rights),
            // All are given back: whoever ends another one looks at them too.
            Err(RightError::Held { .. }) => sleep(LOOK_AGAIN).await,
            Err(failed) => return Err(failed.into()),
        }
    }
}

/// The epoch by which it may be started.
async fn may_start(ports: &Ports, broker: BrokerId, here: &HostName) -> Result<Epoch, NotStarted> {
    let (journals, orders) =
        read(ports.ledger.as_ref(), broker).await.map_err(|error| NotStarted::Ledger(error.into()))?;
    let case = Case { broker, home: here, here, journals: &journals, orders: &orders };
    let epoch = case.may_start(None).map_err(NotStarted::Refused)?;
    match ports.addresses.get(&broker) {
        // Nobody would reach it.
        Some(address) if !address.here().await? => Err(NotStarted::Elsewhere(broker)),
        _ => Ok(epoch),
    }
}

#[cfg(test)]
mod tests {
    use fakes::{BROKER, Fault, World};
    use recovery::model::Cause;
    use recovery::observe::{Board, observe};
    use recovery::ports::Clock;
    use recovery::takeover::take_over;

    use super::*;
    use crate::refusal::Refusal;

    /// The fake world, whose host is the broker's own pod here, with nothing started in it.
    fn home() -> (World, Ports, HostName) {
        let world = World::new();
        world.kill();
        (world.truth().storage_here, world.truth().address_here) = (true, true);
        let ports = world.ports();
        (world, ports, "standby-1".into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_that_nobody_took_over_is_started_once() {
        let (world, ports, here) = home();
        assert!(begin(&ports, BROKER, &here).await.unwrap().is_some());
        assert!(begin(&ports, BROKER, &here).await.unwrap().is_none(), "it runs");
        assert_eq!(world.truth().starts, 1);
        assert!(world.truth().violations.is_empty(), "{:?}", world.truth().violations);
    }

    #[tokio::test(start_paused = true)]
    async fn one_whose_address_leads_elsewhere_is_left_to_the_decision_loop() {
        let (world, ports, here) = home();
        world.truth().address_here = false;
        let error = begin(&ports, BROKER, &here).await.unwrap_err();
        assert!(matches!(error, NotStarted::Elsewhere(BROKER)), "{error}");
        assert_eq!(world.truth().starts, 0);
    }

    #[tokio::test]
    async fn all_have_ended_only_once_nobody_holds_a_right() {
        let dir = tempfile::tempdir().unwrap();
        let brokers = [BrokerId(1), BrokerId(2)];
        let kafka = Right::take(dir.path(), brokers[1], Duration::ZERO).unwrap();
        let all = all_ended(dir.path(), &brokers);
        assert!(tokio::time::timeout(LOOK_AGAIN * 3, all).await.is_err(), "one of them runs");
        // Its end can be looked at meanwhile.
        drop(Right::take(dir.path(), brokers[0], Duration::ZERO).unwrap());
        drop(kafka);
        assert_eq!(all_ended(dir.path(), &brokers).await.unwrap().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_ended_is_the_decision_loops() {
        let (world, ports, here) = home();
        world.truth().exited = true;
        assert!(begin(&ports, BROKER, &here).await.unwrap().is_none());
        assert_eq!(world.truth().starts, 0);
    }

    /// A node that comes back, with the pod of a broker that a standby has.
    #[tokio::test(start_paused = true)]
    async fn a_broker_that_was_taken_over_or_is_at_it_is_not_started() {
        let (world, ports, _) = home();
        let (topology, policy) = (World::topology(), World::policy());
        let seen = observe(&Board::default(), &topology.known, policy.stale_after, world.now());
        let standing = recovery::model::LedgerStanding::untouched("kafka-1".into());
        let (takeover, _) = recovery::decide::decide_manual(BROKER, &standing, &seen, &topology, &policy);
        let plan = recovery::plan::plan(&takeover, standing.epoch.next(), &topology, &policy, &seen).unwrap();
        world.truth().crash = Some(fakes::Crash::After(3));
        for refused in [Refusal::EpochOpen, Refusal::NotOwner] {
            let taken = take_over(&world.ports(), plan.clone(), Cause::Automatic, None, None).await;
            if refused == Refusal::EpochOpen {
                assert!(taken.is_err(), "its claimant died: {taken:?}");
            } else {
                recovery::takeover::resume(&world.ports(), &"standby-1".into(), BROKER, None).await.unwrap();
            }
            // What the pod of the name sees of itself.
            (world.truth().started_at, world.truth().starts) = (None, 0);
            let error = begin(&ports, BROKER, &"kafka-1".into()).await.unwrap_err();
            assert!(matches!(&error, NotStarted::Refused(why) if why.refused == refused), "{error}");
            assert_eq!(world.truth().starts, 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_ledger_that_cannot_be_read_and_a_process_that_may_run_start_nothing() {
        let (world, ports, here) = home();
        world.truth().ledger_down = true;
        let error = begin(&ports, BROKER, &here).await.unwrap_err();
        assert!(matches!(error, NotStarted::Ledger(_)), "{error}");
        world.truth().ledger_down = false;
        world.truth().faults.insert("prove_stopped", Fault::Refuse);
        let error = begin(&ports, BROKER, &here).await.unwrap_err();
        assert!(matches!(error, NotStarted::Step(_)), "{error}");
        assert_eq!(world.truth().starts, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_takeover_that_has_the_lock_and_an_old_word_of_the_ledger_start_nothing() {
        let (world, ports, here) = home();
        let lock = ports.host_lock.try_lock(BROKER).unwrap();
        assert!(begin(&ports, BROKER, &here).await.unwrap().is_none());
        drop(lock);
        world.truth().render_takes = COUNTS_FOR + Duration::from_millis(1);
        let error = begin(&ports, BROKER, &here).await.unwrap_err();
        assert!(matches!(error, NotStarted::Old(_)), "{error}");
        assert_eq!(world.truth().starts, 0);
    }
}
