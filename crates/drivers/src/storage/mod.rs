//! `storage` drivers: have a broker's log dirs on this host.

pub mod mounted;
pub mod nfs;
pub mod nfs_client;
pub mod probe;
pub mod snapshot;
mod snapshotted;

#[doc(hidden)]
pub mod fuzz;
mod granted;
pub mod lease;
mod log_dir;
mod mountinfo;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use self::granted::Granted;
use self::snapshotted::Snapshotted;
use crate::certificate::CertificateFile;
use crate::fence::{OntapConfig, OntapGrantConfig};
use crate::health_signal::ontap_clients::Watched;
use recovery::model::{BrokerId, Locks};
use recovery::ports::Storage;

pub use mounted::{Mounted, MountedConfig};
pub use nfs::{MountConfig, Nfs, NfsConfig};
pub use snapshot::SnapshotConfig;

/// How a broker's log dirs come to this host.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(tag = "driver", rename_all = "snake_case")]
pub enum StorageConfig {
    /// Somebody else mounts them; they are only verified.
    Mounted(MountedConfig),
    /// They are mounted over NFS by the takeover.
    Nfs(NfsConfig),
}

impl StorageConfig {
    /// The driver for a broker with these log dirs, ready to use. `program` is called as
    /// `program storage-probe ACT --dir DIR`, and does what [`probe::act`] does.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(
        self,
        broker: BrokerId,
        log_dirs: Vec<PathBuf>,
        program: &Path,
    ) -> Result<Arc<dyn Storage>, Vec<String>> {
        let mut problems = Vec::new();
        let sources = self.sources();
        let (storage, grant, snapshot) = match self {
            Self::Mounted(mut config) => {
                let (grant, snapshot) = (config.grant.take(), config.snapshot.take());
                (config.build(log_dirs, program).map(shared), grant, snapshot)
            }
            Self::Nfs(mut config) => {
                let (grant, snapshot) = (config.grant.take(), config.snapshot.take());
                (config.build(log_dirs, program).map(shared), grant, snapshot)
            }
        };
        let known = !sources.is_empty() && sources.iter().all(|source| source.contains(":/"));
        if grant.as_ref().is_some_and(|grant| grant.paths.is_empty()) && !known {
            // Else nobody would know whether the log dirs are in the volumes that change hands.
            problems.push(
                "source: write `server:/path` of what is mounted (or `paths` in the grant), to compare it with \
                 the grant's volumes"
                    .to_owned(),
            );
        }
        let storage = storage.map_err(|said| problems.extend(said)).ok();
        let snapshots = snapshot.map(|snapshot| snapshot.build(broker, grant.as_deref())).transpose();
        let snapshots = within("snapshot", snapshots, &mut problems);
        let grant = within("grant", grant.map(|grant| grant.build(&sources)).transpose(), &mut problems);
        let Some(mut storage) = storage.filter(|_| problems.is_empty()) else { return Err(problems) };
        if let Some(grant) = grant {
            storage = Arc::new(Granted { grant, inner: storage });
        }
        if let Some(snapshots) = snapshots {
            // Outermost, so that it is taken while nobody is let in.
            storage = Arc::new(Snapshotted { snapshots, inner: storage });
        }
        Ok(storage)
    }

    /// What is mounted, as `server:/path` over NFS, as far as the configuration says.
    #[must_use]
    pub fn sources(&self) -> Vec<String> {
        match self {
            Self::Mounted(config) => config.source.iter().cloned().collect(),
            Self::Nfs(config) => config.mount.iter().map(|mount| mount.source.clone()).collect(),
        }
    }

    /// Whether the log dirs are on NFS, as far as the configuration says.
    #[must_use]
    pub fn is_nfs(&self) -> bool {
        match self {
            Self::Nfs(_) => true,
            Self::Mounted(config) => {
                let by_type = config.fstype.as_ref().map(|fs_type| fs_type.starts_with("nfs"));
                by_type.unwrap_or_else(|| config.source.as_ref().is_some_and(|source| source.contains(":/")))
            }
        }
    }

    /// What becomes of the lock that a dead owner held, as far as the configuration says: how long a server
    /// keeps it is [`lease::of`]'s to tell, and `lock_wait` at most.
    #[must_use]
    pub fn locks(&self) -> Locks {
        let at_most = match self {
            Self::Mounted(config) => config.lock_wait,
            Self::Nfs(config) => config.lock_wait,
        };
        Locks {
            at_most,
            lease: self.is_nfs().then_some(at_most),
            told: false,
            broken: self.grant().is_some(),
        }
    }

    /// Where the volumes of `broker` are, if its grant says so, or else its snapshots.
    #[must_use]
    pub fn watched(&self, broker: BrokerId) -> Option<Watched> {
        let (ontap, svm, volumes) = match (self.grant(), self.snapshot()) {
            (Some(grant), _) => (grant.ontap.clone(), grant.svm.clone(), grant.volumes.clone()),
            (None, Some(own)) => (own.ontap.clone()?, own.svm.clone()?, own.volumes.clone()?),
            (None, None) => return None,
        };
        Some(Watched { broker, ontap, svm, volumes })
    }

    /// The files with certificates that its grant and its snapshots need.
    #[must_use]
    pub fn certificates(&self) -> Vec<CertificateFile> {
        let snapshot = self.snapshot().and_then(|snapshot| snapshot.ontap.as_ref());
        let systems = self.grant().map(|grant| &grant.ontap).into_iter().chain(snapshot);
        systems.flat_map(OntapConfig::certificates).collect()
    }

    /// The addresses by which this host mounts the volumes, as its grant has them.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.grant().map(|grant| grant.addresses.clone()).unwrap_or_default()
    }

    fn snapshot(&self) -> Option<&SnapshotConfig> {
        match self {
            Self::Mounted(config) => config.snapshot.as_deref(),
            Self::Nfs(config) => config.snapshot.as_deref(),
        }
    }

    /// By what this host is let in, if it has to be.
    #[must_use]
    pub fn grant(&self) -> Option<&OntapGrantConfig> {
        match self {
            Self::Mounted(config) => config.grant.as_deref(),
            Self::Nfs(config) => config.grant.as_deref(),
        }
    }
}

fn lock_wait() -> Duration {
    Locks::AT_MOST
}

fn shared(storage: impl Storage + 'static) -> Arc<dyn Storage> {
    Arc::new(storage)
}

/// What a section inside this one makes, or its problems with the section's name before them.
fn within<T>(section: &str, built: Result<Option<T>, Vec<String>>, problems: &mut Vec<String>) -> Option<T> {
    let said = |said: Vec<String>| problems.extend(said.iter().map(|text| format!("{section}.{text}")));
    built.map_err(said).ok().flatten()
}
