//! What is wrong with a configuration: every problem at once, each with its place and its remedy.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The key, such as `broker[1].listener`; list indices count from 0. Empty for the file itself.
    pub key: String,
    /// The line of the file, from 1, where known.
    pub line: Option<usize>,
    /// What was found, as it stands in the file.
    pub found: Option<String>,
    /// What is wrong with it.
    pub reason: String,
    /// What to do about it. Empty where the reason says it.
    pub remedy: String,
}

impl Problem {
    /// The same in one line.
    pub(crate) fn in_line(&self) -> String {
        let remedy = if self.remedy.is_empty() { String::new() } else { format!("; {}", self.remedy) };
        format!("{}: {}{remedy}", self.key, self.reason)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let what = match (&self.found, self.key.is_empty()) {
            (Some(found), false) => format!("{} = {found}", self.key),
            (Some(found), true) => found.clone(),
            (None, _) => self.key.clone(),
        };
        let head = format!("{line}{what}");
        if !head.is_empty() {
            writeln!(f, "{}", head.trim_end_matches(": "))?;
        }
        write!(f, "    {}", self.reason)?;
        if !self.remedy.is_empty() {
            write!(f, "\n    do: {}", self.remedy)?;
        }
        Ok(())
    }
}

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// Everything that is wrong with it, in the order of the file. Never empty.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    pub(crate) fn new(path: &Path, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|p| p.line.unwrap_or(usize::MAX));
        Self { path: path.to_owned(), problems }
    }

    /// The file itself cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        let remedy = match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                "run it as root (`sudo`), or as whoever may read the file"
            }
            _ => "name the file with --config or UNDERSTUDY_CONFIG; deploy/examples has a commented one",
        };
        let problem = Problem {
            key: String::new(),
            line: None,
            found: None,
            reason: format!("cannot be read: {error}"),
            remedy: remedy.to_owned(),
        };
        Self::new(path, vec![problem])
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.problems.len();
        write!(f, "{}: {n} problem{}", self.path.display(), if n == 1 { "" } else { "s" })?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}
