//! Which driver the `[broker_host]` section means.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drivers::broker_host::class_data::ClassData;
use drivers::broker_host::kubernetes::KubernetesConfig;
use drivers::broker_host::process::ProcessConfig;
use drivers::broker_host::systemd::SystemdConfig;
use drivers::broker_host::{self as local, RunHere};
use kubernetes::ReschedulingConfig;
use recovery::model::{BrokerId, HostName};
use recovery::ports::BrokerHost;
use schemars::JsonSchema;
use serde::Deserialize;

/// How Kafka is run: on this host, or in pods that another controller makes.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(tag = "driver", rename_all = "snake_case")]
pub enum BrokerHostConfig {
    /// As a process that the agent starts itself and that outlives it.
    Process(ProcessConfig),
    /// As a unit of systemd, asked for over D-Bus.
    Systemd(SystemdConfig),
    /// In a container of a pod of Kubernetes, beside the agent's: docs/kubernetes.md.
    Kubernetes(KubernetesConfig),
    /// In pods that another controller makes: docs/kubernetes.md.
    Rescheduling(ReschedulingConfig),
}

impl BrokerHostConfig {
    /// Makes the driver; `pods` are those of the brokers, where their homes are pods.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration, as `key: what is wrong and what to do`.
    pub(crate) fn build(
        self,
        (here, state_dir): (HostName, PathBuf),
        brokers: impl Into<RunHere>,
        pods: BTreeMap<BrokerId, String>,
    ) -> Result<Arc<dyn BrokerHost>, Vec<String>> {
        match self.local() {
            Ok(local) => local.build(here, state_dir, brokers),
            Err(rescheduling) => Ok(Arc::new(rescheduling.build(pods)?)),
        }
    }

    /// Whether brokers stay where they are, and are made anew there.
    #[must_use]
    pub fn reschedules(&self) -> bool {
        matches!(self, Self::Rescheduling(_))
    }

    /// The class-data archive of this host's Kafka.
    #[must_use]
    pub fn class_data(&self, state_dir: &Path, brokers: Vec<BrokerId>) -> ClassData {
        match self.clone().local() {
            Ok(local) => local.class_data(state_dir, brokers),
            Err(_) => ClassData::elsewhere(state_dir, brokers),
        }
    }

    fn local(self) -> Result<local::BrokerHostConfig, ReschedulingConfig> {
        match self {
            Self::Process(config) => Ok(local::BrokerHostConfig::Process(config)),
            Self::Systemd(config) => Ok(local::BrokerHostConfig::Systemd(config)),
            Self::Kubernetes(config) => Ok(local::BrokerHostConfig::Kubernetes(config)),
            Self::Rescheduling(config) => Err(config),
        }
    }
}
