//! The oldest program that is supported beside this one, built from its commit, for the story that runs both.
//!
//! Only the program is kept, `<cache>/understudy-<commit>`: what it was built in takes gigabytes.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::cache::{self, Staging};
use crate::shell;
use crate::workspace::{Profile, Workspace};

/// One version back: the last state that was released. Raised with every release.
const OLDEST: &str = "63274aa";

/// Why there can be no such program here; `None` if there can.
pub(crate) fn obstacle(workspace: &Workspace) -> Option<String> {
    let mut git = git(workspace);
    git.args(["cat-file", "-e", &format!("{OLDEST}^{{commit}}")]).stderr(Stdio::null());
    shell::run(&mut git).err().map(|_| format!("this checkout does not have commit {OLDEST}: is it shallow?"))
}

/// Where the program is; it is built if need be.
///
/// # Errors
/// It cannot be unpacked or built.
pub(crate) fn ensure(workspace: &Workspace) -> Result<PathBuf> {
    let cache = cache::dir()?;
    let program = cache.join(format!("understudy-{OLDEST}"));
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let staging = Staging::new(&cache, &format!("older-{OLDEST}-"))?;
    let (archive, source) = (staging.path().join("source.tar"), staging.path().join("source"));
    fs::create_dir(&source)?;
    shell::run(git(workspace).args(["archive", "--output"]).arg(&archive).arg(OLDEST))?;
    shell::run(Command::new("tar").arg("--directory").arg(&source).arg("-xf").arg(&archive))?;
    let older = Workspace { root: source };
    // Beside its source, whatever this build's own directory is.
    let built = older.build_in(&staging.path().join("target"), &["understudy"], Profile::Dev)?;
    let made = staging.path().join("understudy");
    fs::copy(built.path("understudy")?, &made)?;
    fs::rename(&made, &program).with_context(|| format!("cannot make {}", program.display()))?;
    Ok(program)
}

fn git(workspace: &Workspace) -> Command {
    let mut git = Command::new("git");
    git.current_dir(&workspace.root);
    git
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkout_without_the_commit_is_told_apart() {
        let none = tempfile::tempdir().unwrap();
        shell::run(Command::new("git").args(["init", "--quiet"]).arg(none.path())).unwrap();
        let why = obstacle(&Workspace { root: none.path().to_owned() }).unwrap();
        assert!(why.contains(OLDEST), "{why}");
    }
}
