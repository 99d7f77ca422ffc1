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
use crate::drivers::fence::OntapGrantConfig;
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

/// The driver, behind the grant if there is one; or what is wrong with either.
fn granted(
    grant: Option<Box<OntapGrantConfig>>,
    sources: &[&str],
    storage: Result<impl Storage + 'static, Vec<String>>,
) -> Result<Arc<dyn Storage>, Vec<String>> {
    match (storage, grant.map(|grant| grant.build(sources)).transpose()) {
        (Ok(storage), Ok(None)) => Ok(Arc::new(storage)),
        (Ok(storage), Ok(Some(grant))) => Ok(Arc::new(Granted { grant, inner: Arc::new(storage) })),
        (storage, grant) => {
            let within = |problem| format!("grant.{problem}");
            let grant = grant.err().unwrap_or_default().into_iter().map(within);
            Err(storage.err().unwrap_or_default().into_iter().chain(grant).collect())
        }
    }
}

impl StorageConfig {
    /// The driver for a broker with these log dirs, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self, log_dirs: Vec<PathBuf>) -> Result<Arc<dyn Storage>, Vec<String>> {
        match self {
            Self::Mounted(mut config) => {
                let grant = config.grant.take();
                let sources = config.source.clone();
                granted(
                    grant,
                    &sources.iter().map(String::as_str).collect::<Vec<_>>(),
                    config.build(log_dirs),
                )
            }
            Self::Nfs(mut config) => {
                let grant = config.grant.take();
                let sources: Vec<String> = config.mount.iter().map(|mount| mount.source.clone()).collect();
                granted(
                    grant,
                    &sources.iter().map(String::as_str).collect::<Vec<_>>(),
                    config.build(log_dirs),
                )
            }
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
