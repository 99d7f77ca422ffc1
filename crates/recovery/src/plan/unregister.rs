//! The rule under which a dead broker's registration is removed by `UnregisterBroker`. Pure. Each condition
//! was measured to matter (Kafka 4.3.1):
//!
//! 1. The fence is proven, or for a restart in place that nothing of the broker runs here.
//! 2. The broker is registered, and the controller has not fenced it: else there is nothing to remove.
//! 3. It has fewer partitions than [`PARTITION_LIMIT`].
//! 4. Every broker that shares partitions with it is up.
//! 5. The controllers' own listeners are known, since the request is sent to the active one itself.
//! 6. This host is ready to start the broker.
//!
//! (1) and (6) hold by the order of the stages. The others are looked at when the takeover is planned
//! ([`planned`]), and (2) and (4) once more right before the request is sent ([`still_right`]), which must
//! not be old by then ([`fresh`]). It is sent once, ever: see `steps.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{Broker, BrokerId, Topology, human};
use crate::observe::Observation;

/// From this many partitions on the controller refuses `UnregisterBroker` (error 44).
const PARTITION_LIMIT: usize = 10_000;

/// What was looked at right before the request is sent counts for this long.
const LOOKED_WITHIN: Duration = Duration::from_secs(5);

/// Whether the dead broker's registration is removed, and why (not).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "unregister", rename_all = "snake_case")]
pub enum Unregister {
    /// Sent once, to the active controller, if it still holds when the moment comes.
    Use {
        /// Brokers that share partitions with this one: each must be up at the moment of sending.
        sharing: BTreeSet<BrokerId>,
    },
    /// The old session has to expire first.
    Wait {
        /// The condition that does not hold.
        why: String,
    },
}

/// By what is seen when the takeover is planned.
pub(super) fn planned(broker: &Broker, topology: &Topology, seen: &Observation) -> Unregister {
    let id = broker.id;
    let wait = |why: String| Unregister::Wait { why };
    if !topology.controllers_known && !topology.zookeeper {
        return wait(
            "the controllers' listeners are not configured (cluster.controllers, or cluster.zookeeper)"
                .into(),
        );
    }
    let Some(view) = &seen.partitions else {
        return wait("the partitions of the cluster have not been read".into());
    };
    match seen.brokers.get(&id).and_then(|b| b.listed) {
        Some(true) => {}
        Some(false) => {
            return wait("the controller has fenced the broker already, or it was stopped cleanly".into());
        }
        None => return wait("no surviving broker said whether the broker is still registered".into()),
    }
    let count = view.of(id).count();
    if count >= PARTITION_LIMIT {
        return wait(format!("{count} partitions: the controller refuses from {PARTITION_LIMIT}"));
    }
    let sharing = view.sharing(id);
    if let Some(down) = sharing.iter().find(|b| !seen.is_well(**b)) {
        return wait(format!("broker {down}, which shares partitions with it, is down or suspect"));
    }
    Unregister::Use { sharing }
}

/// By what a surviving broker says right before the request is sent: `fenced` has every broker that is
/// registered, and whether the controller has fenced it.
///
/// # Errors
/// The condition that no longer holds.
pub fn still_right(
    broker: BrokerId,
    sharing: &BTreeSet<BrokerId>,
    fenced: &BTreeMap<BrokerId, bool>,
) -> Result<(), String> {
    match fenced.get(&broker) {
        Some(false) => {}
        Some(true) => return Err(format!("broker {broker} is fenced already")),
        None => return Err(format!("broker {broker} is not registered, or fenced already")),
    }
    let up = |id: &&BrokerId| fenced.get(*id) == Some(&false);
    let down: Vec<String> = sharing.iter().filter(|id| !up(id)).map(ToString::to_string).collect();
    if down.is_empty() {
        return Ok(());
    }
    Err(format!("broker {broker} shares partitions with {}, which is down too", down.join(", ")))
}

/// The request names a broker and no incarnation of it. If this host stood still since it began to look, which
/// took so long, the one that is registered by now may be somebody else's new one.
///
/// # Errors
/// What was seen may be over.
pub fn fresh(took: Duration) -> Result<(), String> {
    if took > LOOKED_WITHIN {
        return Err(format!("it took {} to look, so what was seen may be over", human(took)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_sent_once_a_condition_no_longer_holds() {
        let (dead, other) = (BrokerId(1), BrokerId(2));
        let ask = |fenced: &[(i32, bool)]| {
            let fenced = fenced.iter().map(|(id, is)| (BrokerId(*id), *is)).collect();
            still_right(dead, &BTreeSet::from([other]), &fenced)
        };
        assert_eq!(ask(&[(1, false), (2, false), (3, true)]), Ok(()), "nobody shares with 3");
        let no = |fenced: &[(i32, bool)], why: &str| assert!(ask(fenced).unwrap_err().contains(why), "{why}");
        no(&[(1, true), (2, false)], "broker 1 is fenced already");
        no(&[(2, false)], "broker 1 is not registered");
        no(&[(1, false), (2, true)], "shares partitions with 2, which is down too");
        no(&[(1, false)], "shares partitions with 2, which is down too");
        assert!(fresh(LOOKED_WITHIN).is_ok() && fresh(LOOKED_WITHIN + Duration::from_millis(1)).is_err());
    }
}
