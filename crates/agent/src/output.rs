//! Standard output: a report is text for people or JSON for programs, never a mixture.

use std::fmt::Display;
use std::io::Write;

use serde::Serialize;

use crate::cli::Output;

/// Writes a report. A reader that went away (`| head`) is no error.
///
/// # Errors
/// When standard output cannot be written for another reason, or the report cannot be JSON.
pub(crate) fn print(report: &(impl Serialize + Display), format: Output) -> std::io::Result<()> {
    let mut text = match format {
        Output::Text => report.to_string(),
        Output::Json => serde_json::to_string_pretty(report)?,
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    write(&mut anstream::stdout().lock(), &text)
}

/// Writes what is a format of its own.
///
/// # Errors
/// When standard output cannot be written, other than because its reader went away.
pub(crate) fn print_text(text: &impl Display) -> std::io::Result<()> {
    write(&mut std::io::stdout().lock(), &text.to_string())
}

/// Writes one line to standard error: progress, questions, errors.
pub(crate) fn say(line: impl Display) {
    // There is nobody left to tell when standard error itself is gone.
    let _ = write(&mut anstream::stderr().lock(), &format!("{line}\n"));
}

fn write(to: &mut impl Write, text: &str) -> std::io::Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
