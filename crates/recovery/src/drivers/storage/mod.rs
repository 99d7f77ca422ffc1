//! `storage` drivers: have a broker's log dirs on this host.

pub mod mounted;
pub mod nfs;

#[cfg(any(test, feature = "testing"))]
pub(crate) mod fuzz;
mod granted;
mod log_dir;
mod mountinfo;

use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use self::granted::Granted;
use crate::ports::Storage;

pub use mounted::{Mounted, MountedConfig};
pub use nfs::{MountConfig, Nfs, NfsConfig};

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
    /// The driver for a broker with these log dirs, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self, log_dirs: Vec<PathBuf>) -> Result<Arc<dyn Storage>, Vec<String>> {
        match self {
            Self::Mounted(config) => Ok(Arc::new(config.build(log_dirs)?)),
            Self::Nfs(mut config) => {
                let grant = config.grant.take().map(|grant| grant.build()).transpose();
                match (config.build(log_dirs), grant) {
                    (Ok(nfs), Ok(None)) => Ok(Arc::new(nfs)),
                    (Ok(nfs), Ok(Some(grant))) => Ok(Arc::new(Granted { grant, inner: Arc::new(nfs) })),
                    (nfs, grant) => {
                        let within = |problem| format!("grant.{problem}");
                        let grant = grant.err().unwrap_or_default().into_iter().map(within);
                        Err(nfs.err().unwrap_or_default().into_iter().chain(grant).collect())
                    }
                }
            }
        }
    }
}
