//! Where downloads and built tools are kept between runs. Deleting the whole directory is always safe.

use std::env;
use std::path::PathBuf;

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
