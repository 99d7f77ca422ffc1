//! Whether a broker has a registration at all. The broker list does not tell: it leaves out who is fenced as
//! well.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use kafka::wire::{ClusterSeen, Controller, WireError};
use kafka::{Dialer, Dialers};
use recovery::model::{BrokerId, Endpoint};
use recovery::ports::chain;

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
    /// Brokers do not tell who is fenced from who is not registered: Kafka before 4.0. No controller is
    /// configured that would.
    Untold,
    /// Too few answered.
    Unknown {
        /// Why.
        why: String,
    },
}

/// Asks up to three of `brokers`, other than `broker`, side by side. That it has no registration is what most
/// of them must say, and none of them otherwise; and then the active one of `controllers` must say so as
/// well, if any are known: brokers that are cut off from the controllers tell what was. One that is a
/// controller itself is known to them in any case, so there the brokers' word stands. Where brokers do not
/// tell it at all, the active controller alone does.
pub async fn ask(
    dialers: &Dialers,
    broker: BrokerId,
    brokers: &BTreeMap<BrokerId, Endpoint>,
    controllers: &[Controller],
) -> Told {
    let others = brokers.iter().filter(|(id, _)| **id != broker).take(ASKED);
    let asked: Vec<_> = others.map(|(_, endpoint)| describe(&dialers.brokers, endpoint)).collect();
    let is_controller = controllers.iter().any(|controller| controller.id == broker);
    match judge(broker, join_all(asked).await) {
        Told::Untold if !controllers.is_empty() => {
            ask_active(&dialers.controllers, broker, controllers).await
        }
        Told::Unregistered if !controllers.is_empty() && !is_controller => {
            ask_active(&dialers.controllers, broker, controllers).await
        }
        told => told,
    }
}

/// Asks the controllers themselves, of which only the active one answers.
async fn ask_active(dialer: &Dialer, broker: BrokerId, controllers: &[Controller]) -> Told {
    let asked = controllers.iter().map(|controller| knows(dialer, &controller.listener, broker));
    let (mut asked, mut failures) = (asked.collect::<FuturesUnordered<_>>(), Vec::new());
    while let Some(said) = asked.next().await {
        match said {
            Ok(true) => return Told::Registered,
            Ok(false) => return Told::Unregistered,
            Err(error) => failures.push(chain(&error)),
        }
    }
    Told::Unknown { why: failures.join("; ") }
}

async fn knows(dialer: &Dialer, controller: &Endpoint, broker: BrokerId) -> Result<bool, WireError> {
    dialer.open(controller, LIMIT).await?.knows_broker(broker, LIMIT).await
}

async fn describe(dialer: &Dialer, endpoint: &Endpoint) -> Result<ClusterSeen, WireError> {
    dialer.open(endpoint, LIMIT).await?.describe_cluster(LIMIT).await
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
    use kafka_protocol::error::ResponseError;
    use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
    use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
    use kafka_protocol::messages::{
        ApiKey, BrokerId as Node, DescribeClusterResponse, IncrementalAlterConfigsResponse,
    };

    use super::*;
    use fakes::kafka::{Call, Fake, Reply};
    use kafka::wire::Registration;

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

    /// A broker that tells of broker 2 alone.
    fn misses_it(call: &Call) -> Option<Reply> {
        let brokers = vec![DescribeClusterBroker::default().with_broker_id(Node(2))];
        let said = DescribeClusterResponse::default().with_brokers(brokers);
        (call.key == ApiKey::DescribeCluster).then(|| call.say(&said))
    }

    /// A controller that answers a question about a broker's configuration with `code`.
    async fn controller(code: i16) -> Fake {
        Fake::start(move |call| {
            let response = AlterConfigsResourceResponse::default().with_error_code(code);
            let said = IncrementalAlterConfigsResponse::default().with_responses(vec![response]);
            (call.key == ApiKey::IncrementalAlterConfigs).then(|| call.say(&said))
        })
        .await
    }

    #[tokio::test]
    async fn what_brokers_miss_the_active_controller_has_the_last_word_on() {
        let broker = Fake::start(misses_it).await;
        let brokers = BTreeMap::from([(BrokerId(2), broker.at.clone())]);
        let told = async |controllers: &[&Fake]| {
            let known = controllers.iter().zip(101..);
            let known = known.map(|(fake, id)| Controller { id: BrokerId(id), listener: fake.at.clone() });
            ask(&Dialers::plaintext(), BrokerId(1), &brokers, &known.collect::<Vec<_>>()).await
        };
        let (knows, misses) =
            (controller(0).await, controller(ResponseError::BrokerIdNotRegistered.code()).await);
        let passive = controller(ResponseError::NotController.code()).await;
        assert_eq!(told(&[]).await, Told::Unregistered);
        assert_eq!(told(&[&passive, &misses]).await, Told::Unregistered);
        assert_eq!(told(&[&passive, &knows]).await, Told::Registered);
        assert!(matches!(told(&[&passive]).await, Told::Unknown { .. }));
    }

    #[tokio::test]
    async fn of_a_broker_that_is_a_controller_the_brokers_tell() {
        let broker = Fake::start(misses_it).await;
        let brokers = BTreeMap::from([(BrokerId(2), broker.at.clone())]);
        let active = controller(0).await;
        let known = [Controller { id: BrokerId(1), listener: active.at.clone() }];
        assert_eq!(ask(&Dialers::plaintext(), BrokerId(1), &brokers, &known).await, Told::Unregistered);
        assert_eq!(active.calls(ApiKey::IncrementalAlterConfigs), 0);
    }
}
