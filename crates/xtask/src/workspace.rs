//! The checkout we run in, and building its programs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::shell;

/// The checkout.
pub(crate) struct Workspace {
    /// Its top directory.
    pub(crate) root: PathBuf,
}

/// Cargo's build profiles that we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Quick to build.
    Dev,
    /// For measuring.
    Release,
}

impl Workspace {
    /// Asks cargo, because a shared target directory makes what was compiled in untrustworthy.
    ///
    /// # Errors
    /// Not inside a cargo workspace.
    pub(crate) fn find() -> Result<Self> {
        let mut locate = Command::new(cargo_path());
        let manifest =
            shell::stdout_of(locate.args(["locate-project", "--workspace", "--message-format=plain"]))?;
        let root = Path::new(manifest.trim()).parent().context("cargo knows no workspace here")?;
        Ok(Self { root: root.to_owned() })
    }

    /// `cargo SUBCOMMAND`, run at the top of the checkout.
    pub(crate) fn cargo(&self, subcommand: &str) -> Command {
        let mut command = Command::new(cargo_path());
        command.arg(subcommand).current_dir(&self.root);
        command
    }

    /// Builds all programs of `packages` in one go, for then they share what they depend on.
    ///
    /// # Errors
    /// They do not compile.
    pub(crate) fn build(&self, packages: &[&str], profile: Profile) -> Result<Programs> {
        Self::programs(self.cargo("build"), packages, profile)
    }

    /// The same in another target directory than the user's.
    ///
    /// # Errors
    /// They do not compile.
    pub(crate) fn build_in(&self, target: &Path, packages: &[&str], profile: Profile) -> Result<Programs> {
        self.build_with(target, packages, profile, &[])
    }

    /// The same, with variables that say how.
    ///
    /// # Errors
    /// They do not compile.
    pub(crate) fn build_with(
        &self,
        target: &Path,
        packages: &[&str],
        profile: Profile,
        environment: &[(&str, String)],
    ) -> Result<Programs> {
        let mut build = self.cargo("build");
        build.env("CARGO_TARGET_DIR", target).envs(environment.iter().map(|(name, value)| (name, value)));
        Self::programs(build, packages, profile)
    }

    fn programs(mut build: Command, packages: &[&str], profile: Profile) -> Result<Programs> {
        build.args(["--bins", "--message-format=json-render-diagnostics"]);
        for package in packages {
            build.args(["--package", package]);
        }
        if profile == Profile::Release {
            build.arg("--release");
        }
        Ok(Programs { messages: shell::stdout_of(&mut build)? })
    }
}

/// What a build made.
#[derive(Clone)]
pub(crate) struct Programs {
    /// Cargo's messages, one JSON object per line.
    pub(crate) messages: String,
}

impl Programs {
    /// Where cargo put the program `name`, for the user's settings have a say in that.
    ///
    /// # Errors
    /// The packages have no such program.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf> {
        self.messages
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            // The unit tests of a program have its name as well.
            .filter(|message| message["target"]["name"] == name && message["profile"]["test"] != true)
            .find_map(|message| message["executable"].as_str().map(PathBuf::from))
            .with_context(|| format!("no package that was built has a program {name}"))
    }
}

/// The cargo that runs us, so that the pinned toolchain is kept.
fn cargo_path() -> PathBuf {
    env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"understudy","kind":["lib"]},"executable":null}
{"reason":"build-script-executed","package_id":"x"}
{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/debug/other"}
{"reason":"compiler-artifact","target":{"name":"understudy","kind":["bin"]},"profile":{"test":true},"executable":"/t/debug/deps/understudy-1"}
{"reason":"compiler-artifact","target":{"name":"understudy","kind":["bin"]},"profile":{"test":false},"executable":"/t/debug/understudy"}
{"reason":"build-finished","success":true}"#;
        let programs = Programs { messages: messages.to_owned() };
        assert_eq!(programs.path("understudy").unwrap(), PathBuf::from("/t/debug/understudy"));
        assert!(programs.path("absent").is_err());
    }

    #[test]
    fn this_checkout_is_found() {
        let workspace = Workspace::find().unwrap();
        assert!(workspace.root.join("crates/xtask/Cargo.toml").exists());
    }
}
