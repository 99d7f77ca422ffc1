//! Building the bed: Go's programs of their modules, the others of Debian's packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::{MODULES, PACKAGES};
use crate::{go, shell};

const DOWNLOAD_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Builds the bed in `staging`; returns its directory there.
pub(super) fn build(staging: &Path) -> Result<PathBuf> {
    let bed = staging.join("bed");
    for folder in ["bin", "cni"] {
        fs::create_dir_all(bed.join(folder))?;
    }
    // What takes seconds fails first.
    unpack(staging, &bed).context("cannot get Debian's packages: check the network and the apt sources")?;
    go::build(&MODULES, staging, &bed)?;
    Ok(bed)
}

fn unpack(staging: &Path, bed: &Path) -> Result<()> {
    let debs = staging.join("debs");
    fs::create_dir(&debs)?;
    let mut download = Command::new("apt-get");
    download.args(["download", "--quiet=2", "-oAPT::Sandbox::User=root", "-oAcquire::Retries=3"]);
    download.args(["-oAcquire::http::Timeout=60"]).args(PACKAGES.iter().map(|(package, _)| package));
    shell::run_within(DOWNLOAD_LIMIT, download.current_dir(&debs).stdin(Stdio::null()))?;
    let root = staging.join("root");
    for deb in fs::read_dir(&debs)? {
        shell::run(Command::new("dpkg-deb").arg("--extract").arg(deb?.path()).arg(&root))?;
    }
    for (from, to) in PACKAGES.iter().flat_map(|(_, files)| *files) {
        fs::rename(root.join(from), bed.join(to)).with_context(|| format!("no package has {from}"))?;
    }
    Ok(())
}
