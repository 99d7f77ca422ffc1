//! What this client may do, as the other side tells: nothing is tried that would change anything.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::DescribeClusterRequest;
use kafka_protocol::protocol::Request;

use super::{Connection, WireError};

/// `DescribeCluster`: of a broker, and of a controller, which knows of it from the second version on (Kafka 3.7).
const OF_BROKERS: i8 = 1;
const OF_CONTROLLERS: i8 = 2;
const CONTROLLERS_SINCE: i16 = 1;

/// Something that one may do with a cluster, a topic or its configuration, as `kafka-acls` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// See it.
    Describe,
    /// Change it.
    Alter,
    /// See how it is configured.
    DescribeConfigs,
    /// Change how it is configured.
    AlterConfigs,
}

impl Operation {
    const ALL: [Self; 4] = [Self::Describe, Self::Alter, Self::DescribeConfigs, Self::AlterConfigs];

    /// Kafka's number for it, which is its bit among the operations that are told.
    fn number(self) -> u32 {
        match self {
            Self::Alter => 7,
            Self::Describe => 8,
            Self::DescribeConfigs => 10,
            Self::AlterConfigs => 11,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What this client may do with the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rights {
    /// These operations, and no other.
    Told(BTreeSet<Operation>),
    /// Not this one, without which the others are not told.
    Lacks(Operation),
    /// This version of Kafka does not tell.
    Untold,
}

impl Connection {
    /// What this client may do with the cluster, told by a broker.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn rights(&mut self, limit: Duration) -> Result<Rights, WireError> {
        let rights = self.ask_rights(OF_BROKERS, limit).await?;
        // Who may not see the cluster is told of no operation at all.
        Ok(match rights {
            Rights::Told(operations) if operations.is_empty() => Rights::Lacks(Operation::Describe),
            told => told,
        })
    }

    /// The same told by a controller, to which the client may be somebody else.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn rights_at_controller(&mut self, limit: Duration) -> Result<Rights, WireError> {
        match self.version::<DescribeClusterRequest>() {
            Ok(version) if version >= CONTROLLERS_SINCE => {}
            Ok(_) | Err(WireError::Unsupported { .. }) => return Ok(Rights::Untold),
            Err(error) => return Err(error),
        }
        match self.ask_rights(OF_CONTROLLERS, limit).await {
            // A controller describes the cluster only to who may change it.
            Err(error) if error.code() == Some(ResponseError::ClusterAuthorizationFailed.code()) => {
                Ok(Rights::Lacks(Operation::Alter))
            }
            told => told,
        }
    }

    async fn ask_rights(&mut self, side: i8, limit: Duration) -> Result<Rights, WireError> {
        match self.version::<DescribeClusterRequest>() {
            Err(WireError::Unsupported { .. }) => return Ok(Rights::Untold),
            version => version?,
        };
        let request = DescribeClusterRequest::default()
            .with_include_cluster_authorized_operations(true)
            .with_endpoint_type(side);
        let said = self.request(&request, limit).await?;
        let message = said.error_message.as_deref();
        WireError::check(self.at(), DescribeClusterRequest::KEY, said.error_code, message)?;
        // The highest bit alone: it was not asked to tell.
        Ok(match said.cluster_authorized_operations {
            i32::MIN => Rights::Untold,
            bits => Rights::Told(operations(bits)),
        })
    }
}

fn operations(bits: i32) -> BTreeSet<Operation> {
    let told = |operation: &Operation| bits.cast_unsigned() & (1 << operation.number()) != 0;
    Operation::ALL.into_iter().filter(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_is_a_bit_of_its_own() {
        assert_eq!(operations(0), BTreeSet::new());
        assert_eq!(operations(1 << 8), BTreeSet::from([Operation::Describe]));
        // `ClusterAction` is none of ours.
        assert_eq!(operations((1 << 8) | (1 << 9)), BTreeSet::from([Operation::Describe]));
        let all = (1 << 7) | (1 << 8) | (1 << 10) | (1 << 11);
        assert_eq!(operations(all), BTreeSet::from(Operation::ALL));
    }
}
