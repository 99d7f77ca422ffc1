//! Building the bed: Go's programs of their modules, the others of Debian's packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::{MODULES, Module, PACKAGES};
use crate::shell;

/// Ten minutes for everything, on two idle processors; hours on busy ones.
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Builds the bed in `staging`; returns its directory there.
pub(super) fn build(staging: &Path) -> Result<PathBuf> {
    let bed = staging.join("bed");
    for folder in ["bin", "cni"] {
        fs::create_dir_all(bed.join(folder))?;
    }
    // What takes seconds fails first.
    unpack(staging, &bed).context("cannot get Debian's packages: check the network and the apt sources")?;
    for module in &MODULES {
        compile(module, staging, &bed).with_context(|| {
            format!("cannot build the Go module {}: check the network, and Go's GOPROXY", module.name)
        })?;
    }
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

/// Builds the programs of a module into `bin` of `bed`. What the compiler keeps takes gigabytes and goes with the staging area.
///
/// # Errors
/// A module cannot be had, or does not compile.
pub(crate) fn compile(module: &Module, staging: &Path, bed: &Path) -> Result<()> {
    let source = staging.join(module.name);
    for (path, content) in module.files {
        let path = source.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&source))?;
        fs::write(path, content)?;
    }
    for (program, package) in module.programs {
        eprintln!("building {program}");
        let mut go = Command::new("nice");
        go.args(["-n", "15", "go", "build", "-trimpath", "-buildvcs=false"])
            .arg(format!("-ldflags=-s -w {}", module.version))
            .arg("-o")
            .arg(bed.join("bin").join(program))
            .arg(package)
            .current_dir(&source)
            .env("GOCACHE", staging.join("gocache"))
            .envs([
                ("CGO_ENABLED", "0"),
                ("GOTOOLCHAIN", "local"),
                ("GOWORK", "off"),
                ("GOFLAGS", "-mod=readonly"),
            ])
            .stdin(Stdio::null());
        shell::run_within(LIMIT, &mut go)?;
    }
    Ok(())
}
