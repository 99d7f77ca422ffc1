//! What was found, on the screen and in a file.

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;

use super::PAGE;
use super::finding::{Finding, Verdict};
use crate::UsageError;

/// What was found, to be read or to be attached to a bug. Holds no secret.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    understudy: &'static str,
    at: Timestamp,
    findings: Vec<Finding>,
    /// Where it broke off, and why.
    broke_off: Vec<String>,
    holding: usize,
    pub(super) differing: usize,
    not_seen: usize,
}

impl Report {
    pub(super) fn of(findings: Vec<Finding>, broke_off: Vec<String>) -> Self {
        let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
        let (holding, differing) = (count(Verdict::Holds), count(Verdict::Differs));
        let (understudy, at) = (env!("CARGO_PKG_VERSION"), Timestamp::now());
        Self { understudy, at, holding, differing, not_seen: count(Verdict::NotSeen), findings, broke_off }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
            if finding.verdict == Verdict::Differs {
                writeln!(f, "         see: {PAGE}#{}", finding.assumption.label())?;
            }
        }
        write!(f, "{} hold, {} differ, {} not seen", self.holding, self.differing, self.not_seen)
    }
}

/// A report's file, beside its place until it is whole: what is there already stays until then.
#[derive(Debug)]
pub(super) struct ReportFile {
    path: PathBuf,
    draft: PathBuf,
    file: File,
}

impl ReportFile {
    /// Whether it can be written is known before ONTAP is asked.
    ///
    /// # Errors
    /// In words.
    pub(super) fn at(path: &Path) -> Result<Self, UsageError> {
        let said = |why: &dyn fmt::Display| UsageError(format!("--report: {}: {why}", path.display()));
        let name = path.file_name().ok_or_else(|| said(&"is no file's name"))?;
        if path.exists() && !path.is_file() {
            return Err(said(&"is there, and is no file"));
        }
        let draft = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
        let file = File::create(&draft).map_err(|error| said(&error))?;
        Ok(Self { path: path.to_owned(), draft, file })
    }

    /// Puts the report in its place.
    ///
    /// # Errors
    /// What the operating system says.
    pub(super) fn finish(mut self, report: &Report) -> anyhow::Result<()> {
        serde_json::to_writer_pretty(&mut self.file, report)?;
        self.file.write_all(b"\n")?;
        self.file.sync_all()?;
        Ok(fs::rename(&self.draft, &self.path)?)
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        // Gone if it is in its place by now.
        let _ = fs::remove_file(&self.draft);
    }
}
