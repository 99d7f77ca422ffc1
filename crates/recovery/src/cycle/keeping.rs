//! The keeping of decisions in the ledger, off the decision path.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::event::{Event, What};
use crate::model::BrokerId;
use crate::ports::{Clock, EventSink, Ledger, Ports, chain};

/// Decisions waiting to be kept in the ledger. While it is down the oldest ones are reported as lost.
const REMEMBER_QUEUE: usize = 256;

/// Where decisions are given to be kept. After this end is dropped, the decisions that still wait are kept.
pub(super) fn keeper(ports: &Ports, helpers: &mut JoinSet<()>) -> mpsc::Sender<(BrokerId, Event)> {
    let (remember, waiting) = mpsc::channel(REMEMBER_QUEUE);
    // Not the other ports: a driver of the configuration before must end with it.
    let Ports { ledger, clock, events, .. } = ports.clone();
    helpers.spawn(keep_decisions(ledger, clock, events, waiting));
    remember
}

/// Keeps decisions in the ledger, in order.
async fn keep_decisions(
    ledger: Arc<dyn Ledger>,
    clock: Arc<dyn Clock>,
    events: Arc<dyn EventSink>,
    mut waiting: mpsc::Receiver<(BrokerId, Event)>,
) {
    while let Some((broker, event)) = waiting.recv().await {
        if let Err(error) = ledger.remember(broker, &event).await {
            let what = What::NotRemembered { why: chain(&error) };
            let at = clock.now().wall;
            events.emit(&Event { at, what, ..event });
        }
    }
}
