//! `storage` drivers: have a broker's log dirs on this host.

pub mod mounted;
pub mod nfs;
pub mod nfs_client;
pub mod probe;

#[doc(hidden)]
pub mod fuzz;
pub mod lease;
mod log_dir;
pub(crate) mod mountinfo;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use recovery::model::Locks;
use recovery::ports::Storage;

pub use mounted::{Mounted, MountedConfig};
pub use nfs::{MountConfig, Nfs, NfsConfig};

/// A section that no storage system brings.
#[derive(Debug, Clone, Deserialize)]
pub enum Nothing {}

/// How a broker's log dirs come to this host. `G` lets the host in, `S` takes snapshots: what a storage system
/// does for the driver, if there is one.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(tag = "driver", rename_all = "snake_case")]
pub enum StorageConfig<G = Nothing, S = Nothing> {
    /// Somebody else mounts them; they are only verified.
    Mounted(MountedConfig<G, S>),
    /// They are mounted over NFS by the takeover.
    Nfs(NfsConfig<G, S>),
}

impl<G, S> StorageConfig<G, S> {
    /// The driver for log dirs on this host, ready to use, without what lets it in. `program` is called as
    /// `program storage-probe ACT --dir DIR`, and does what [`probe::act`] does.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self, log_dirs: Vec<PathBuf>, program: &Path) -> Result<Arc<dyn Storage>, Vec<String>> {
        match self {
            Self::Mounted(config) => config.build(log_dirs, program).map(shared),
            Self::Nfs(config) => config.build(log_dirs, program).map(shared),
        }
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

    /// By what snapshots are taken.
    #[must_use]
    pub fn snapshot(&self) -> Option<&S> {
        match self {
            Self::Mounted(config) => config.snapshot.as_deref(),
            Self::Nfs(config) => config.snapshot.as_deref(),
        }
    }

    /// By what this host is let in, if it has to be.
    #[must_use]
    pub fn grant(&self) -> Option<&G> {
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
