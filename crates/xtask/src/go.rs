//! Programs that are built of Go modules, once, for the beds.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Ten minutes for everything, on two idle processors; hours on busy ones.
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

/// A Go module of ours: little but the versions of others, and what they resolve to.
#[derive(Debug)]
pub(crate) struct Module {
    /// What its folder is called.
    pub(crate) name: &'static str,
    /// Path and content; the first is `go.mod`.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// Linker flags that tell its programs their version.
    pub(crate) version: &'static str,
    /// Program and package.
    pub(crate) programs: &'static [(&'static str, &'static str)],
}

/// The version of the Go on the path, which must be as new as the `modules` of `what` want.
///
/// # Errors
/// There is none, or it is too old.
pub(crate) fn version_for(what: &str, modules: &[Module]) -> Result<String> {
    let wanted = modules.iter().filter_map(|module| wanted(module.files[0].1)).max().unwrap_or_default();
    let install = || {
        let (major, minor, patch) = wanted;
        format!("install Go {major}.{minor}.{patch} or newer (https://go.dev/dl) and have `go` on the path")
    };
    // A newer one that it would fetch by itself is none that this machine has.
    let asked = Command::new("go")
        .args(["env", "GOVERSION"])
        .env("GOTOOLCHAIN", "local")
        .stdin(Stdio::null())
        .output();
    let Ok(said) = asked else { bail!("there is no Go to build {what} with: {}", install()) };
    let said = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    match parse(said.strip_prefix("go").unwrap_or_default()) {
        Some(version) if version >= wanted => Ok(said),
        _ => bail!("this machine's Go is {said:?}, which is too old to build {what}: {}", install()),
    }
}

/// The line `go 1.26.0` of a `go.mod`.
fn wanted(go_mod: &str) -> Option<(u32, u32, u32)> {
    go_mod.lines().find_map(|line| parse(line.strip_prefix("go ")?))
}

/// `1.26.8`, `1.27`, `1.27rc1`, `1.26.8-X:nodwarf5` → a version that compares.
fn parse(text: &str) -> Option<(u32, u32, u32)> {
    let number = |part: &str| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    let mut parts = text.trim().splitn(3, '.').map(number);
    Some((parts.next()??, parts.next()??, parts.next().flatten().unwrap_or_default()))
}

/// Builds the programs of `modules` into `bin` of `bed`. What the compiler keeps takes gigabytes and goes with the staging
/// area.
///
/// # Errors
/// A module cannot be had, or does not compile.
pub(crate) fn build(modules: &[Module], staging: &Path, bed: &Path) -> Result<()> {
    for module in modules {
        build_one(module, staging, bed).with_context(|| {
            format!("cannot build the Go module {}: check the network, and Go's GOPROXY", module.name)
        })?;
    }
    Ok(())
}

fn build_one(module: &Module, staging: &Path, bed: &Path) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_of_go_is_read_as_go_prints_it() {
        assert_eq!(parse("1.26.8"), Some((1, 26, 8)));
        assert_eq!(parse("1.27rc1"), Some((1, 27, 0)));
        assert_eq!(parse("1.26.8-X:nodwarf5"), Some((1, 26, 8)));
        assert_eq!(parse("devel"), None);
        assert_eq!(wanted("module x\n\ngo 1.26.0\n\ntool y\n"), Some((1, 26, 0)));
    }
}
