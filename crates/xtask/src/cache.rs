//! Where downloads and built tools are kept between runs. Deleting the whole directory is always safe.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// `$UNDERSTUDY_CACHE`, else `$XDG_CACHE_HOME/understudy`, else `~/.cache/understudy`. `.ci/run` agrees.
pub(crate) fn dir() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = set("UNDERSTUDY_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("understudy")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/understudy")))
        .context("HOME is not set: set it, or UNDERSTUDY_CACHE to a directory for downloads")?;
    std::path::absolute(&dir).with_context(|| format!("{} is not a usable path", dir.display()))
}

/// A directory that is gone when we are done, however that comes.
pub(crate) struct Staging(PathBuf);

impl Staging {
    /// Makes one in `cache` whose name begins with `prefix`.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn new(cache: &Path, prefix: &str) -> Result<Self> {
        for entry in fs::read_dir(cache)?.flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.strip_prefix(prefix));
            // Left by a run that was killed: its process is no more.
            if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        let path = cache.join(format!("{prefix}{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Best effort: what stays is removed by the next run.
        let _ = fs::remove_dir_all(&self.0);
    }
}
