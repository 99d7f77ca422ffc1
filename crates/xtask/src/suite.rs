//! The tests: built in one go, listed, and run, each in a process of its own with a deadline.

mod run;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::shell;
use crate::workspace::{Programs, Workspace};

pub(crate) use run::{Outcome, Place, Ran, run};

/// A test that takes longer hangs. Most take milliseconds; a machine may be ten times slower on a bad day.
const LIMIT: Duration = Duration::from_secs(240);
/// The same for what walks through hundreds of thousands of states, or simulates hundreds of clusters.
const LIMIT_OF_A_SEARCH: Duration = Duration::from_secs(900);
/// The same for a story, which ends by itself after ten minutes.
const LIMIT_OF_A_STORY: Duration = Duration::from_secs(720);
/// The same for one on Kubernetes, which alone takes six minutes to give a pod up.
const LIMIT_ON_KUBERNETES: Duration = Duration::from_secs(1200);

/// An executable with tests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Binary {
    /// Its package's folder in the checkout: `crates/recovery`.
    pub(crate) package: String,
    /// Cargo's name of it: `decisions`, or the library's.
    pub(crate) target: String,
    /// It is below `tests/` of its package, and not the unit tests of a library or program.
    pub(crate) integration: bool,
    executable: PathBuf,
}

/// One test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Test {
    /// Where it is.
    pub(crate) binary: Binary,
    /// Its path in there: `host_dies::the_daemon_recovers_a_broker_whose_host_dies`.
    pub(crate) path: String,
}

impl Test {
    /// The last part of its path, which for a story is the story's name.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit("::").next().unwrap_or(&self.path)
    }

    /// It builds hosts, and takes the whole machine.
    pub(crate) fn is_story(&self) -> bool {
        self.binary.package == "tests" && self.binary.integration
    }

    /// It computes all the time, while most others wait.
    fn is_search(&self) -> bool {
        self.binary.package == "crates/sim" || self.binary.target == "protocol"
    }

    fn limit(&self) -> Duration {
        match self {
            test if test.is_story() && test.binary.target == "kubernetes" => LIMIT_ON_KUBERNETES,
            test if test.is_story() => LIMIT_OF_A_STORY,
            test if test.is_search() => LIMIT_OF_A_SEARCH,
            _ => LIMIT,
        }
    }

    fn label(&self) -> String {
        format!("{} {} {}", self.binary.package, self.binary.target, self.path)
    }
}

/// Builds every test, and every program that tests need, in one go: then they share what they depend on, and no
/// crate is built twice with other features.
///
/// # Errors
/// They do not compile.
pub(crate) fn build(workspace: &Workspace) -> Result<Programs> {
    let mut build = workspace.cargo("build");
    build.args(["--workspace", "--bins", "--tests", "--message-format=json-render-diagnostics"]);
    Ok(Programs { messages: shell::stdout_of(&mut build)? })
}

/// The tests in what was built, but for those that only other tests run (`#[ignore]`).
///
/// # Errors
/// An executable does not list its tests.
pub(crate) fn list(workspace: &Workspace, programs: &Programs) -> Result<Vec<Test>> {
    let mut binaries: Vec<Binary> =
        programs.messages.lines().filter_map(|line| binary(&workspace.root, line)).collect();
    binaries.sort();
    binaries.dedup();
    let mut tests = Vec::new();
    for binary in binaries {
        let ignored = paths(&binary, &["--ignored"])?;
        let listed = paths(&binary, &[])?.into_iter().filter(|path| !ignored.contains(path));
        tests.extend(listed.map(|path| Test { binary: binary.clone(), path }));
    }
    Ok(tests)
}

/// One of cargo's messages, if it tells of an executable with tests.
fn binary(root: &Path, message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some(Binary {
        package: folder.strip_prefix(root).ok()?.to_str()?.to_owned(),
        target: message["target"]["name"].as_str()?.to_owned(),
        integration: message["target"]["kind"].as_array()?.iter().any(|kind| kind == "test"),
        executable: PathBuf::from(message["executable"].as_str()?),
    })
}

fn paths(binary: &Binary, more: &[&str]) -> Result<Vec<String>> {
    let mut list = Command::new(&binary.executable);
    list.args(["--list", "--format", "terse"]).args(more).stdin(Stdio::null());
    let text = shell::stdout_of(&mut list)
        .with_context(|| format!("cannot list the tests of {} {}", binary.package, binary.target))?;
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn an_executable_with_tests_is_known_by_its_message() {
        let message = |kind: &str, test: bool, folder: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"{folder}/Cargo.toml","target":{{"kind":["{kind}"],"name":"x"}},"profile":{{"test":{test}}},"executable":"/t/x-1"}}"#
            )
        };
        let read = |text: &str| binary(Path::new("/w"), text);
        let found = read(&message("test", true, "/w/crates/agent")).unwrap();
        assert_eq!((found.package.as_str(), found.integration), ("crates/agent", true));
        assert!(!read(&message("lib", true, "/w/crates/agent")).unwrap().integration);
        assert_eq!(read(&message("bin", false, "/w/crates/agent")), None, "a program is no test");
        assert_eq!(read(&message("lib", true, "/elsewhere")), None, "not one of ours");
        assert_eq!(read("not json"), None);
    }

    /// A file that no `main.rs` declares would be silently left out.
    #[test]
    fn every_file_of_a_test_binary_is_in_it() {
        let root = Workspace::find().unwrap().root;
        let packages = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
        let folders = packages.chain([root.join("tests"), root.join("fuzz")]).map(|path| path.join("tests"));
        let binaries = folders.filter_map(|path| fs::read_dir(path).ok()).flatten();
        let mut seen = 0;
        for main in binaries.map(|entry| entry.unwrap().path().join("main.rs")).filter(|main| main.is_file())
        {
            let (text, folder) = (fs::read_to_string(&main).unwrap(), main.parent().unwrap());
            for file in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
                let rust = file.extension().is_some_and(|extension| extension == "rs");
                let listed = text.lines().any(|line| line == format!("mod {name};"));
                assert!(!rust || name == "main" || listed, "{} lacks `mod {name};`", main.display());
            }
            seen += 1;
        }
        assert!(seen > 5, "{seen} test binaries");
    }

    #[test]
    fn a_storys_name_is_the_last_part_of_its_path() {
        let binary = Binary {
            package: "tests".to_owned(),
            target: "stories".to_owned(),
            integration: true,
            executable: PathBuf::new(),
        };
        let test = Test { binary, path: "host_dies::a_host_dies".to_owned() };
        assert_eq!(test.name(), "a_host_dies");
        assert!(test.is_story() && test.limit() == LIMIT_OF_A_STORY);
    }
}
