//! `broker_host` drivers: run a broker on this host.

mod advertise;
mod bind;
mod check;
pub mod class_data;
mod command_line;
mod common;
mod end_fenced;
mod files;
pub mod kubernetes;
mod listeners;
mod look;
mod ports;
mod problem;
mod proc;
pub mod process;
mod providers;
mod refused;
mod render;
mod right;
mod rights;
mod rivals;
mod scripts;
mod site;
mod stores;
pub mod systemd;
mod telling;
mod user;
mod verify;

pub use look::{Meant, await_nobody};
pub use right::{Right, RightError};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use kubernetes::{Kubernetes, KubernetesConfig};
use process::{Process, ProcessConfig};
use recovery::model::{Broker, BrokerId, Endpoint, HostName};
use recovery::ports::BrokerHost;
use systemd::{Systemd, SystemdConfig};

/// Stands for the broker's id.
const BROKER: &str = "{broker}";

/// An environment as one broker's Kafka gets it.
fn environment_of(configured: &BTreeMap<String, String>, broker: BrokerId) -> BTreeMap<String, String> {
    let id = broker.to_string();
    configured.iter().map(|(name, value)| (name.clone(), value.replace(BROKER, &id))).collect()
}

/// How Kafka is run on this host: the `[broker_host]` section.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(tag = "driver", rename_all = "snake_case")]
pub enum BrokerHostConfig {
    /// As a process that the agent starts itself and that outlives it.
    Process(ProcessConfig),
    /// As a unit of systemd, asked for over D-Bus.
    Systemd(SystemdConfig),
    /// In a container of a pod of Kubernetes, beside the agent's: docs/kubernetes.md.
    Kubernetes(KubernetesConfig),
}

impl BrokerHostConfig {
    /// Makes the driver; `state_dir` is local and absolute, `here` is this host.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration, as `key: what is wrong and what to do`.
    pub fn build(
        self,
        here: HostName,
        state_dir: PathBuf,
        brokers: impl Into<RunHere>,
    ) -> Result<Arc<dyn BrokerHost>, Vec<String>> {
        match self {
            Self::Process(config) => Ok(Arc::new(Process::new(config, here, state_dir, brokers)?)),
            Self::Systemd(config) => Ok(Arc::new(Systemd::new(config, here, state_dir, brokers)?)),
            Self::Kubernetes(config) => Ok(Arc::new(Kubernetes::new(config, here, state_dir, brokers)?)),
        }
    }
}

/// How the configuration that an `understudy guard` reads differs from this agent's, if it does.
#[derive(Clone)]
pub struct GuardReads(Arc<Differs>);

type Differs = dyn Fn(Option<&Path>) -> Option<String> + Send + Sync;

impl GuardReads {
    /// By a look at the file, or at the default one, that tells what is wrong with it: "reads …".
    pub fn new(differs: impl Fn(Option<&Path>) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(differs))
    }

    /// What is wrong with the file that a guard reads, or with the default one.
    #[must_use]
    pub fn differs(&self, file: Option<&Path>) -> Option<String> {
        (self.0)(file)
    }
}

impl std::fmt::Debug for GuardReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GuardReads")
    }
}

/// The brokers that may run on this host.
#[derive(Debug, Clone)]
pub struct RunHere {
    brokers: Vec<BrokerIdentity>,
    at_once: usize,
    guard_reads: Option<GuardReads>,
}

impl From<Vec<BrokerIdentity>> for RunHere {
    /// All of them may run at once.
    fn from(brokers: Vec<BrokerIdentity>) -> Self {
        Self { at_once: brokers.len(), brokers, guard_reads: None }
    }
}

impl RunHere {
    /// No more than `at_once` of them run at once.
    #[must_use]
    pub fn at_most(self, at_once: usize) -> Self {
        Self { at_once: at_once.min(self.at_once), ..self }
    }

    /// By this the configuration of a unit's guard is looked at.
    #[must_use]
    pub fn guarded(self, reads: GuardReads) -> Self {
        Self { guard_reads: Some(reads), ..self }
    }
}

/// What makes a Kafka process this broker and no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerIdentity {
    /// Its node id.
    pub id: BrokerId,
    /// Where clients reach it.
    pub listener: Endpoint,
    /// Its log dirs, as mounted on this host.
    pub log_dirs: Vec<PathBuf>,
    /// What differs from the template, by Kafka's own names.
    pub properties: BTreeMap<String, String>,
}

impl BrokerIdentity {
    /// The identity of a guarded broker, with the properties of its section.
    #[must_use]
    pub fn of(broker: &Broker, properties: BTreeMap<String, String>) -> Self {
        Self {
            id: broker.id,
            listener: broker.listener.clone(),
            log_dirs: broker.log_dirs.clone(),
            properties,
        }
    }
}
