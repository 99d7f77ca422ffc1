//! `ledger` drivers: the shared, durable record.

pub mod etcd;
pub mod file;
pub mod kafka;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::certificate::CertificateFile;
use recovery::ports::Ledger;

/// Where owners, epochs and takeovers are recorded. Every host of a cluster names the same place.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(tag = "driver", rename_all = "snake_case")]
pub enum LedgerConfig {
    /// A directory on shared storage.
    File(file::FileLedgerConfig),
    /// An etcd cluster.
    Etcd(etcd::EtcdLedgerConfig),
    /// A topic of a Kafka cluster, on brokers that are not guarded themselves.
    Kafka(kafka::KafkaLedgerConfig),
}

impl LedgerConfig {
    /// Where it is, for people.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::File(config) => config.dir.display().to_string(),
            Self::Etcd(config) => format!("etcd {}, prefix {}", config.endpoints.join(", "), config.prefix),
            Self::Kafka(config) => format!("topic {}", config.topic),
        }
    }

    /// The files with certificates that it needs; those in the properties of a Kafka client are not among
    /// them.
    #[must_use]
    pub fn certificates(&self) -> Vec<CertificateFile> {
        match self {
            Self::Etcd(config) => config.tls.iter().flat_map(etcd::EtcdTls::certificates).collect(),
            Self::Kafka(config) => {
                config.security.as_deref().into_iter().flat_map(CertificateFile::of).collect()
            }
            Self::File(_) => Vec::new(),
        }
    }

    /// The ledger that is configured. Touches nothing yet.
    ///
    /// # Errors
    /// Everything that is wrong with the section, each as `key: what is wrong and what to do`.
    pub fn open(&self) -> Result<Arc<dyn Ledger>, Vec<String>> {
        match self {
            Self::File(config) => Ok(Arc::new(file::FileLedger::new(config)?)),
            Self::Etcd(config) => Ok(Arc::new(etcd::EtcdLedger::new(config)?)),
            Self::Kafka(config) => Ok(Arc::new(kafka::KafkaLedger::new(config)?)),
        }
    }
}
