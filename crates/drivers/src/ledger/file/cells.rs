//! Cells: one file a version, which appears in one piece and never changes.

use std::time::Instant;

use super::layout::{damaged, failed, file_name, names, publish};
use super::record::split;
use super::{Root, journal, json, layout, record};
use recovery::format;
use recovery::ports::{Cell, LedgerError};

/// What to do about one that is damaged.
const REMEDY: &str = "restore it from a snapshot";

/// The file of one version of a cell.
fn file(name: &str, version: u64) -> String {
    format!("cell-{}.{version}", file_name(name))
}

/// What the newest version holds.
///
/// # Errors
/// `Damaged`, where it is not what was written.
pub(super) fn read(root: &Root, name: &str) -> Result<Option<Cell>, LedgerError> {
    if !root.has_ledger()? {
        return Ok(None);
    }
    let listed = names(root.dir())?.unwrap_or_default();
    let prefix = format!("cell-{}.", file_name(name));
    let versions = listed.iter().filter_map(|name| name.strip_prefix(&prefix)?.parse::<u64>().ok());
    let Some(newest) = versions.max() else { return Ok(None) };
    let path = root.dir().join(file(name, newest));
    let bytes =
        root.read(&path)?.ok_or_else(|| failed("read", &path)(std::io::ErrorKind::NotFound.into()))?;
    let place = || path.display().to_string();
    let bad = |why: String| damaged(place(), format!("{why}; {REMEDY}"));
    let lines = split(&bytes).map_err(|(_, flaw)| journal::flawed(place(), &flaw, REMEDY))?;
    let text = lines.texts.first().ok_or_else(|| bad("it is empty".to_owned()))?;
    let cell: Cell = format::read(text.as_bytes()).map_err(|error| error.at(place(), REMEDY))?;
    if cell.version == newest {
        Ok(Some(cell))
    } else {
        Err(bad(format!("it holds version {}", cell.version)))
    }
}

/// Writes the next version, unless somebody was faster.
pub(super) fn write(root: &Root, name: &str, cell: &Cell, deadline: Instant) -> Result<Cell, LedgerError> {
    root.ensure()?;
    let newest = read(root, name)?;
    let due = newest.as_ref().map_or(0, |newest| newest.version) + 1;
    if let Some(newest) = newest.filter(|_| cell.version != due) {
        return Ok(newest);
    }
    if cell.version != due {
        let why = format!("version {due} is due");
        return Err(layout::unavailable(format!("write version {} of {name}", cell.version), why));
    }
    journal::in_time(deadline, || format!("write {name}"))?;
    let line = record::encode(&json(cell)?);
    publish(root.dir(), &file(name, due), "cell", line.as_bytes())?;
    // Whoever lost reads who won. A version that came later than ours did is the newest as well.
    read(root, name)?.ok_or_else(|| layout::unavailable(format!("read back {name}"), "it is gone"))
}
