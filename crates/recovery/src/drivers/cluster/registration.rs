//! Whether a broker has a registration at all. The broker list does not tell: it leaves out who is fenced as well.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;

use crate::kafka::wire::{ClusterSeen, Connection, Controller, WireError};
use crate::model::{BrokerId, Endpoint};
use crate::ports::chain;

/// How long a broker may take to be connected to, and then to answer.
const LIMIT: Duration = Duration::from_millis(500);
/// More brokers than these need not be asked: each has it from the controllers.
const ASKED: usize = 3;

/// What other brokers tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// It is registered, fenced or not.
    Registered,
    /// It has no registration.
    Unregistered,
    /// Brokers do not tell who is fenced from who is not registered: Kafka before 4.0. No controller is configured that would.
    Untold,
    /// Too few answered.
    Unknown {
        /// Why.
        why: String,
    },
}

/// Asks up to three of `brokers`, other than `broker`, side by side. That it has no registration is what most of them must say, and
/// none of them otherwise: one that is cut off from the controllers tells what was. Where brokers do not tell it, the active
/// one of `controllers` does.
pub async fn ask(
    broker: BrokerId,
    brokers: &BTreeMap<BrokerId, Endpoint>,
    controllers: &[Controller],
) -> Told {
    let others = brokers.iter().filter(|(id, _)| **id != broker).take(ASKED);
    let asked: Vec<_> = others.map(|(_, endpoint)| describe(endpoint)).collect();
    match judge(broker, join_all(asked).await) {
        Told::Untold if !controllers.is_empty() => ask_active(broker, controllers).await,
        told => told,
    }
}

/// Asks the controllers themselves, of which only the active one answers.
async fn ask_active(broker: BrokerId, controllers: &[Controller]) -> Told {
    let asked: Vec<_> = controllers.iter().map(|controller| knows(&controller.listener, broker)).collect();
    let mut failures = Vec::new();
    for said in join_all(asked).await {
        match said {
            Ok(true) => return Told::Registered,
            Ok(false) => return Told::Unregistered,
            Err(error) => failures.push(chain(&error)),
        }
    }
    Told::Unknown { why: failures.join("; ") }
}

async fn knows(controller: &Endpoint, broker: BrokerId) -> Result<bool, WireError> {
    Connection::open(controller, LIMIT).await?.knows_broker(broker, LIMIT).await
}

async fn describe(endpoint: &Endpoint) -> Result<ClusterSeen, WireError> {
    Connection::open(endpoint, LIMIT).await?.describe_cluster(LIMIT).await
}

fn judge(broker: BrokerId, said: Vec<Result<ClusterSeen, WireError>>) -> Told {
    let asked = said.len();
    let (mut without, mut untold, mut failures) = (0, false, Vec::new());
    for said in said {
        match said {
            Ok(seen) if seen.brokers.contains_key(&broker) => return Told::Registered,
            Ok(seen) if seen.with_fenced => without += 1,
            Ok(_) => untold = true,
            Err(error) => failures.push(chain(&error)),
        }
    }
    if untold {
        Told::Untold
    } else if without * 2 > asked {
        Told::Unregistered
    } else if asked == 0 {
        Told::Unknown { why: "no other broker is known".to_owned() }
    } else {
        Told::Unknown { why: failures.join("; ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::wire::Registration;

    fn says(registered: &[(i32, Registration)], with_fenced: bool) -> Result<ClusterSeen, WireError> {
        let brokers = registered.iter().map(|(id, how)| (BrokerId(*id), *how)).collect();
        Ok(ClusterSeen { cluster_id: "cluster-a".to_owned(), brokers, with_fenced })
    }

    fn silent() -> Result<ClusterSeen, WireError> {
        let at = Endpoint { host: "10.0.0.3".to_owned(), port: 9092 };
        let source = std::io::Error::other("gone");
        Err(WireError::Closed { at, api: "DescribeCluster".to_owned(), source })
    }

    #[test]
    fn a_registration_is_gone_if_most_say_so_and_nobody_knows_it() {
        use Registration::{Fenced, Unfenced};
        let told = |said| judge(BrokerId(1), said);
        let gone = || says(&[(2, Unfenced), (3, Unfenced)], true);
        assert_eq!(told(vec![gone(), gone()]), Told::Unregistered);
        assert_eq!(told(vec![gone(), gone(), silent()]), Told::Unregistered);
        assert_eq!(told(vec![gone()]), Told::Unregistered);
        for other in [says(&[(1, Fenced)], true), says(&[(1, Unfenced)], true), says(&[(1, Unfenced)], false)]
        {
            assert_eq!(told(vec![gone(), other, gone()]), Told::Registered);
        }
        assert!(matches!(told(vec![gone(), silent()]), Told::Unknown { .. }));
        assert!(matches!(told(vec![]), Told::Unknown { .. }));
        // It may be fenced.
        assert_eq!(told(vec![gone(), says(&[(2, Unfenced)], false)]), Told::Untold);
    }
}
