//! Which driver the `[ledger]` section means.

use std::sync::Arc;

use drivers::certificate::CertificateFile;
use drivers::ledger::LedgerConfig as OnHosts;
use drivers::ledger::etcd::EtcdLedgerConfig;
use drivers::ledger::file::FileLedgerConfig;
use drivers::ledger::kafka::KafkaLedgerConfig;
use kubernetes::{KubernetesLedger, KubernetesLedgerConfig};
use recovery::ports::Ledger;
use schemars::JsonSchema;
use serde::Deserialize;

/// Where owners, epochs and takeovers are recorded. Every host of a cluster names the same place.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(tag = "driver", rename_all = "snake_case")]
pub enum LedgerConfig {
    /// A directory on shared storage.
    File(FileLedgerConfig),
    /// An etcd cluster.
    Etcd(EtcdLedgerConfig),
    /// A topic of a Kafka cluster, on brokers that are not guarded themselves.
    Kafka(KafkaLedgerConfig),
    /// Custom resources of a Kubernetes cluster.
    Kubernetes(KubernetesLedgerConfig),
}

impl LedgerConfig {
    /// Where it is, for people.
    #[must_use]
    pub fn place(&self) -> String {
        match self.on_hosts() {
            Ok(ledger) => ledger.place(),
            Err(kubernetes) => kubernetes.place(),
        }
    }

    /// The files with certificates that it needs; those in the properties of a Kafka client, and those that a
    /// kubeconfig names, are not among them.
    #[must_use]
    pub fn certificates(&self) -> Vec<CertificateFile> {
        self.on_hosts().map(|ledger| ledger.certificates()).unwrap_or_default()
    }

    /// The ledger that is configured. Touches nothing yet.
    ///
    /// # Errors
    /// Everything that is wrong with the section, each as `key: what is wrong and what to do`.
    pub fn open(&self) -> Result<Arc<dyn Ledger>, Vec<String>> {
        match self.on_hosts() {
            Ok(ledger) => ledger.open(),
            Err(kubernetes) => Ok(Arc::new(KubernetesLedger::new(kubernetes)?)),
        }
    }

    fn on_hosts(&self) -> Result<OnHosts, &KubernetesLedgerConfig> {
        Ok(match self {
            Self::File(config) => OnHosts::File(config.clone()),
            Self::Etcd(config) => OnHosts::Etcd(config.clone()),
            Self::Kafka(config) => OnHosts::Kafka(config.clone()),
            Self::Kubernetes(config) => return Err(config),
        })
    }
}
