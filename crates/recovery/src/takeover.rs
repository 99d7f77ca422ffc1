//! From a plan to its end: the host's lock, the claim, the execution. Used by the daemon and by
//! `understudy failover` alike.

use std::time::Duration;

use crate::event::{Event, What};
use crate::execute::{DECIDED_WITHIN, ExecuteError, execute};
use crate::journal::{Claim, Entry, EpochJournal};
use crate::model::{
    BrokerId, Cause, Epoch, HostName, Instruction, Moment, Order, Outcome, Succession, human,
};
use crate::plan::Plan;
use crate::ports::{LedgerError, Ports, StepError, chain};
use crate::steps::STOPS_WITHIN;

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// Another process of this host is at it.
    #[error("broker {0} is being taken over by another process on this host")]
    Busy(BrokerId, #[source] StepError),
    /// The claim was lost, or the ledger could not be reached.
    #[error("broker {0} was not claimed")]
    NotClaimed(BrokerId, #[source] LedgerError),
    /// Nothing was touched: what was seen when it was decided may be over.
    #[error("the takeover of broker {0} was decided {age} ago and is decided anew", age = human(*.1))]
    Outdated(BrokerId, Duration),
    /// There is nothing to resume.
    #[error("broker {0} has no unfinished takeover in the ledger")]
    NothingToResume(BrokerId),
    /// The execution stopped without an end: it can be resumed.
    #[error("the takeover of broker {0} is unfinished")]
    Unfinished(BrokerId, #[source] ExecuteError),
}

/// Claims the plan's epoch and carries the plan out. `succeeds`: the open epoch of a silent claimant, which
/// this claim takes over from. `decided`: when an agent decided it; `None` if a person did.
///
/// # Errors
/// When another process or host has it, the decision is too old, or the ledger fails.
pub async fn take_over(
    ports: &Ports,
    plan: Plan,
    cause: Cause,
    succeeds: Option<Succession>,
    decided: Option<Moment>,
) -> Result<Outcome, TakeoverError> {
    let broker = plan.broker;
    let _lock = ports.host_lock.try_lock(broker).map_err(|e| TakeoverError::Busy(broker, e))?;
    fresh(ports, broker, decided)?;
    let host = plan.to.clone();
    let claim = Claim { at: ports.clock.now().wall, by: host.clone(), cause, succeeds, instance: None, plan };
    let record = match ports.ledger.claim(&claim).await {
        Ok(record) => record,
        Err(error) => {
            emit(ports, &claim, What::NotClaimed { why: chain(&error) });
            return Err(TakeoverError::NotClaimed(broker, error));
        }
    };
    let (from, fault_at) = (claim.plan.from.clone(), claim.plan.fault_at);
    emit(ports, &claim, What::Claimed { from, fault_at });
    // Not so: the claim stands untouched in the ledger, and the evidence of that time says what becomes of
    // it.
    fresh(ports, broker, decided)?;
    let journal = EpochJournal { broker, epoch: claim.plan.epoch, claim, records: vec![record] };
    carry_out(ports, &host, journal, decided).await
}

async fn carry_out(
    ports: &Ports,
    host: &HostName,
    journal: EpochJournal,
    decided: Option<Moment>,
) -> Result<Outcome, TakeoverError> {
    let broker = journal.broker;
    execute(ports, host, journal, decided).await.map_err(|error| match error {
        ExecuteError::Outdated(age) => TakeoverError::Outdated(broker, age),
        error => TakeoverError::Unfinished(broker, error),
    })
}

fn fresh(ports: &Ports, broker: BrokerId, decided: Option<Moment>) -> Result<(), TakeoverError> {
    let age = decided.map(|decided| ports.clock.now().mono.since(decided)).unwrap_or_default();
    if age > DECIDED_WITHIN { Err(TakeoverError::Outdated(broker, age)) } else { Ok(()) }
}

/// Carries on with the takeover of `broker` that `host` left unfinished. `decided`: when an agent decided so;
/// `None` if a person did. What has been touched is carried on however old the decision is.
///
/// # Errors
/// When another process has it, there is none, the decision is too old, or the ledger fails.
pub async fn resume(
    ports: &Ports,
    host: &HostName,
    broker: BrokerId,
    decided: Option<Moment>,
) -> Result<Outcome, TakeoverError> {
    let _lock = ports.host_lock.try_lock(broker).map_err(|e| TakeoverError::Busy(broker, e))?;
    let journal = own_open(ports, host, broker).await?;
    carry_out(ports, host, journal, decided).await
}

/// Gives up a claim of `host` under which nothing was touched.
///
/// # Errors
/// When another process has it, there is none, or the ledger fails.
pub async fn withdraw(ports: &Ports, host: &HostName, broker: BrokerId) -> Result<Outcome, TakeoverError> {
    let _lock = ports.host_lock.try_lock(broker).map_err(|e| TakeoverError::Busy(broker, e))?;
    let journal = own_open(ports, host, broker).await?;
    let outcome = Outcome::Withdrawn { why: "the broker lives".to_owned() };
    let entry = Entry::Ended { outcome: outcome.clone() };
    let at = ports.clock.now().wall;
    let written = ports.ledger.append(broker, journal.epoch, at, host, &[entry]).await;
    written.map_err(|e| TakeoverError::Unfinished(broker, e.into()))?;
    emit(ports, &journal.claim, What::Ended { outcome: outcome.clone(), predicted: None });
    Ok(outcome)
}

/// Stops `broker` on this host and releases what belongs to it, for the switchover of `epoch`, and says so in
/// the ledger. Nothing is done unless that epoch is still open.
///
/// # Errors
/// When another process of this host works at the broker, something could not be stopped or released, or the
/// ledger fails. What was done stays done; it is tried again while the epoch is open.
pub async fn hand_over(
    ports: &Ports,
    here: &HostName,
    broker: BrokerId,
    epoch: Epoch,
) -> Result<(), HandOverError> {
    let _lock = ports.host_lock.try_lock(broker).map_err(HandOverError::Step)?;
    let open = async || {
        // No broker is stopped for a switchover that has ended.
        ports.ledger.sync().await?;
        let newest = ports.ledger.latest(broker).await?;
        let open = newest.filter(|journal| journal.epoch == epoch && journal.outcome().is_none());
        Ok::<_, LedgerError>(open.filter(|journal| journal.claim.plan.from == *here))
    };
    let Some(journal) = open().await? else { return Ok(()) };
    let stopped = ports.broker_host.stop(broker, STOPS_WITHIN).await?;
    // Whatever answers now runs where this agent cannot see it.
    if let Ok(look) = ports.cluster.standing(broker).await
        && look.answers
    {
        let (driver, action) = ("understudy", format!("hand broker {broker} over"));
        let why = "it still answers, though nothing of it runs on this host. Find the host that has its address (`ip \
                   neighbour`, the switch) and stop that Kafka; do not fail over before, for that would start another"
            .to_owned();
        return Err(StepError::Refused { driver, action, why }.into());
    }
    let proof = ports.broker_host.prove_stopped(broker, epoch).await?;
    // It may have taken too long for the one that waits.
    if open().await?.is_none() {
        return Ok(());
    }
    let mut found = vec![stopped.to_string(), proof.note.to_string()];
    if let Some(address) = ports.addresses.get(&broker) {
        found.push(address.release().await?.to_string());
    }
    if let Some(storage) = ports.storage.get(&broker) {
        found.push(storage.release().await?.to_string());
    }
    let (at, found) = (ports.clock.now().wall, found.join("; "));
    let what = Instruction::Released { broker, epoch, found: found.clone() };
    ports.ledger.order(&Order { at, host: here.clone(), who: "agent".to_owned(), what }).await?;
    let what = What::HandedOver { to: journal.claim.by, found };
    ports.events.emit(&Event { at, host: here.clone(), broker: Some(broker), epoch: Some(epoch), what });
    Ok(())
}

/// Why a broker was not handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    /// It could not be stopped or released.
    #[error("the broker could not be stopped and released for a switchover")]
    Step(#[from] StepError),
    /// The ledger could not be read or written.
    #[error("the ledger failed during a switchover")]
    Ledger(#[from] LedgerError),
}

async fn own_open(ports: &Ports, host: &HostName, broker: BrokerId) -> Result<EpochJournal, TakeoverError> {
    let latest = ports.ledger.latest(broker).await;
    let journal = latest.map_err(|e| TakeoverError::Unfinished(broker, e.into()))?;
    let open = journal.filter(|journal| journal.outcome().is_none() && journal.claim.by == *host);
    open.ok_or(TakeoverError::NothingToResume(broker))
}

fn emit(ports: &Ports, claim: &Claim, what: What) {
    let (broker, epoch) = (Some(claim.plan.broker), Some(claim.plan.epoch));
    let at = ports.clock.now().wall;
    ports.events.emit(&Event { at, host: claim.by.clone(), broker, epoch, what });
}
