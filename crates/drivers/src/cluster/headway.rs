//! What tells whether a broker on its way back gets on: is there a metadata quorum, and what does it lack?

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;

use super::kafka::{ANSWER_LIMIT, DRIVER, KafkaCluster, OPEN_LIMIT};
use kafka::Dialer;
use kafka::wire::{Topics, WireError};
use recovery::model::{BrokerId, Endpoint};
use recovery::ports::{StepError, chain};

/// A partition.
type Place = (String, i32);

impl KafkaCluster {
    /// Asks the controllers, and the brokers where no controller is configured or reached from here: they
    /// pass the question on.
    pub(super) async fn find_quorum(&self) -> Result<(), StepError> {
        let Err(failed) = self.active_controller().await else { return Ok(()) };
        let action = || "find the active controller".to_owned();
        let (via, mut connection, seen) = self.via(None, Topics::None, action).await?;
        match connection.describe_quorum(ANSWER_LIMIT).await {
            Ok(_) => Ok(()),
            // Before 3.3, and with ZooKeeper: the broker list names the controller, as long as there is one.
            Err(WireError::Unsupported { .. }) if seen.controller.is_some() => Ok(()),
            Err(error) => {
                let why = format!("{failed}; by broker {via}: {}", chain(&error));
                Err(StepError::Failed { driver: DRIVER, action: action(), source: why.into() })
            }
        }
    }

    /// By the sizes of the logs: of those partitions that have `broker` out of ISR, its own beside their
    /// leaders'.
    pub(super) async fn bytes_behind(&self, broker: BrokerId) -> Result<u64, StepError> {
        let action = || format!("see how far broker {broker} is behind");
        let (_, _, seen) = self.via(Some(broker), Topics::All, action).await?;
        let out = seen.partitions.of(broker).filter(|p| !p.isr.contains(&broker));
        let wanted: BTreeMap<Place, BrokerId> =
            out.filter_map(|p| Some(((p.topic.clone(), p.partition), p.leader?))).collect();
        let asked: BTreeSet<BrokerId> = wanted.values().copied().chain([broker]).collect();
        let sizes = asked.into_iter().filter_map(|id| {
            let at = self.listener(id).or_else(|| seen.brokers.get(&id).cloned())?;
            Some(async move { Ok::<_, WireError>((id, sizes(&self.dialers.brokers, &at).await?)) })
        });
        let sizes = join_all(sizes).await.into_iter().collect::<Result<BTreeMap<_, _>, _>>();
        let failed = |error: WireError| StepError::Failed {
            driver: DRIVER,
            action: action(),
            source: Box::new(error),
        };
        let sizes = sizes.map_err(failed)?;
        let size = |id: BrokerId, place: &Place| sizes.get(&id).and_then(|s| s.get(place)).copied();
        let lacks = wanted.iter().map(|(place, leader)| {
            size(*leader, place).unwrap_or_default().saturating_sub(size(broker, place).unwrap_or_default())
        });
        Ok(lacks.sum())
    }
}

async fn sizes(dialer: &Dialer, at: &Endpoint) -> Result<BTreeMap<Place, u64>, WireError> {
    let mut connection = dialer.open(at, OPEN_LIMIT).await?;
    let replicas = connection.replicas(ANSWER_LIMIT).await?;
    Ok(replicas.into_iter().map(|replica| ((replica.topic, replica.partition), replica.bytes)).collect())
}
