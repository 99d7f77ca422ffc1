//! Running other programs: errors name the command line and how it ended.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Runs `command` to its end with our own output streams.
///
/// # Errors
/// It could not be started, or did not exit with 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// As [`run`], but kills `command` when it takes longer than `limit`.
///
/// # Errors
/// As [`run`], or the limit has passed.
pub(crate) fn run_within(limit: Duration, command: &mut Command) -> Result<()> {
    let mut child = command.spawn().with_context(|| format!("cannot start `{}`", line(command)))?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("`{}` was not done after {} s and was killed", line(command), limit.as_secs());
        }
        thread::sleep(Duration::from_millis(50));
    };
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// Runs `command` and returns what it wrote to standard output; its standard error is ours.
///
/// # Errors
/// As [`run`], or the output is not UTF-8.
pub(crate) fn stdout_of(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`", line(command)))?;
    if !output.status.success() {
        bail!("`{}` failed: {}", line(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("the output of `{}`", line(command)))
}

/// Whether `command` could be started and exits with 0; silent either way.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The command line, as a person would type it: the program without its directory.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_its_status() {
        let error = run(Command::new("sh").args(["-c", "exit 7"])).unwrap_err().to_string();
        assert_eq!(error, "`sh -c exit 7` failed: exit status: 7");
    }

    #[test]
    fn a_command_that_hangs_is_killed_at_the_limit() {
        let error = run_within(Duration::from_millis(100), Command::new("sleep").arg("60")).unwrap_err();
        assert!(error.to_string().contains("was killed"), "{error}");
    }

    #[test]
    fn a_command_that_does_not_exist_does_not_succeed() {
        assert!(!succeeds(&mut Command::new("/nonexistent/program")));
        assert!(succeeds(&mut Command::new("true")));
    }
}
