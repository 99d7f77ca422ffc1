//! Cargo's helpers at fixed versions, kept apart from whatever the user has installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;
use crate::{cache, shell};

/// A tool from crates.io: the package is also the binary's name.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
}

/// Licences, bans and sources of every dependency.
pub(crate) const DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

impl Tool {
    /// The binary's path, at exactly our version; builds it first if need be.
    ///
    /// # Errors
    /// `cargo install` failed, or what it installed reports another version.
    pub(crate) fn ensure(&self, workspace: &Workspace) -> Result<PathBuf> {
        let root = cache::dir()?.join("tools");
        let binary = root.join("bin").join(self.name);
        if self.is_at(&binary) {
            return Ok(binary);
        }
        let (name, version) = (self.name, self.version);
        eprintln!("building {name} {version} into {} (once; some minutes)", root.display());
        let mut install = workspace.cargo("install");
        install
            // What it does takes no time worth mentioning, and an optimised build takes twice as long.
            .args(["--locked", "--force", "--quiet", "--debug", "--root"])
            .arg(&root)
            .arg(format!("{name}@{version}"))
            .env("CARGO_NET_RETRY", "5")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            // Else its thousand dependencies would be left in our own target directory.
            .env_remove("CARGO_TARGET_DIR");
        shell::run(&mut install)
            .with_context(|| format!("cannot install {name} {version}: check the network and try again"))?;
        ensure!(
            self.is_at(&binary),
            "{} is not version {version} although cargo just installed it",
            binary.display()
        );
        Ok(binary)
    }

    /// Whether it was built, at exactly our version.
    pub(crate) fn is_there(&self) -> bool {
        cache::dir().is_ok_and(|cache| self.is_at(&cache.join("tools/bin").join(self.name)))
    }

    fn is_at(&self, binary: &Path) -> bool {
        let Ok(output) = Command::new(binary).arg("--version").stdin(Stdio::null()).output() else {
            return false;
        };
        output.status.success() && self.says(&String::from_utf8_lossy(&output.stdout))
    }

    /// Whether `--version` printed our name and version: `cargo-deny 0.20.2`.
    fn says(&self, text: &str) -> bool {
        let mut words = text.split_whitespace();
        words.next() == Some(self.name) && words.next() == Some(self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_version_counts() {
        assert!(DENY.says("cargo-deny 0.20.2 (6b3f99457 2026-11-02)\nrelease: 0.20.2\n"));
        assert!(!DENY.says("cargo-deny 0.20.20"));
        assert!(!DENY.says("cargo-fmt 0.20.2"));
        assert!(!DENY.says(""));
    }
}
