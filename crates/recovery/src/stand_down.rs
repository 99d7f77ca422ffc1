//! What a host that is fenced does about a broker that another one has: it ends what is left of it and gives
//! the address up.
//!
//! This is the one SIGKILL of a Kafka that may well live: it is proven unable to write, so nothing
//! acknowledged can come of it any more, and it answers clients that the new owner is there for.

use std::time::Duration;

use crate::event::{Event, What};
use crate::model::{BrokerId, Epoch, HostName, LedgerStanding};
use crate::ports::{LedgerError, Ports, StepError};

/// How long a killed Kafka may take to be gone. One that hangs in a write to storage that is denied may take
/// for ever.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// Why a broker was not let go of.
#[derive(Debug, thiserror::Error)]
pub enum StandDownError {
    /// It could not be ended, or its address is still here.
    #[error("what is left of the broker on this fenced host could not be ended")]
    Step(#[from] StepError),
    /// The ledger could not be read or written.
    #[error("the ledger failed before this fenced host let go of the broker")]
    Ledger(#[from] LedgerError),
}

/// Ends what is left of `broker` on this host and gives its address up, if the ledger says now, and not only
/// when it was decided, that this host is out by `epoch`. `home` owns the broker before its first epoch.
///
/// # Errors
/// When another process of this host works at the broker, something could not be ended or released, or the
/// ledger fails. It is tried again while it is so.
pub async fn stand_down(
    ports: &Ports,
    (here, home): (&HostName, &HostName),
    broker: BrokerId,
    epoch: Epoch,
) -> Result<(), StandDownError> {
    let _lock = ports.host_lock.try_lock(broker)?;
    ports.ledger.sync().await?;
    // The orders last: whoever rejoined in between is let be.
    let standing = LedgerStanding::after(home, &ports.ledger.all(broker).await?);
    let orders = ports.ledger.orders().await?;
    if standing.out(here, &orders) != Some(epoch) {
        return Ok(());
    }
    let ended = ports.broker_host.end_fenced(broker, GONE_WITHIN).await;
    // Whatever became of Kafka: what cannot write must not answer for the address either.
    let released = match ports.addresses.get(&broker) {
        Some(address) => Some(address.release().await?.to_string()),
        None => None,
    };
    let found: Vec<String> = [ended?.to_string()].into_iter().chain(released).collect();
    let what = What::StoodDown { found: found.join("; ") };
    let at = ports.clock.now().wall;
    let event = Event { at, host: here.clone(), broker: Some(broker), epoch: Some(epoch), what };
    ports.events.emit(&event);
    ports.ledger.remember(broker, &event).await?;
    Ok(())
}
