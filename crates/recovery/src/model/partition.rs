//! Replicas and ISR, as the cluster tells them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::BrokerId;

/// One partition: who should hold it, who is in sync, who leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replication {
    /// Topic name.
    pub topic: String,
    /// Partition index.
    pub partition: i32,
    /// Present leader; `None` while there is none.
    pub leader: Option<BrokerId>,
    /// Assigned replicas; the first is the preferred leader.
    pub replicas: Vec<BrokerId>,
    /// In-sync replicas.
    pub isr: Vec<BrokerId>,
}

/// Replicas and ISR of every partition, as one broker tells them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionView {
    /// Every partition of every topic.
    pub partitions: Vec<Replication>,
}

impl PartitionView {
    /// The partitions that should have a replica on `broker`.
    pub fn of(&self, broker: BrokerId) -> impl Iterator<Item = &Replication> {
        self.partitions.iter().filter(move |p| p.replicas.contains(&broker))
    }

    /// The other brokers that hold replicas of `broker`'s partitions.
    #[must_use]
    pub fn sharing(&self, broker: BrokerId) -> BTreeSet<BrokerId> {
        self.of(broker).flat_map(|p| p.replicas.iter().copied()).filter(|b| *b != broker).collect()
    }
}
