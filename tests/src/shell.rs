//! Short-lived commands of the bed itself (`ip`, `mount`): they must succeed.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs `program` with `args` and returns its standard output.
///
/// # Errors
/// When it cannot be run or fails; the message has the command line and its standard error.
pub(crate) fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("cannot run {program}; is it installed?"))?;
    if !output.status.success() {
        bail!("{command:?} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// [`run`] with the words of one line; for commands whose arguments hold no spaces.
pub(crate) fn sh(line: &str) -> Result<String> {
    let mut words = line.split_whitespace();
    let program = words.next().context("an empty command")?;
    run(program, words)
}

/// The directory of this build: a program is in it, a test binary is in `deps` below it.
pub(crate) fn build_dir() -> Result<std::path::PathBuf> {
    let exe = std::env::current_exe().context("cannot tell where this program is")?;
    let dir = exe.parent().context("this program is nowhere")?;
    Ok(if dir.ends_with("deps") { dir.parent().unwrap_or(dir) } else { dir }.to_owned())
}
