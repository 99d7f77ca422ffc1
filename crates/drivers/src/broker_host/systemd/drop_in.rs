//! The drop-in that a takeover's start puts before the unit: which broker, which epoch, which configuration.
//!
//! It is in `/run`, so that a host that boots again has forgotten it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::super::common::Common;
use super::super::problem::Problem;
use recovery::model::{BrokerId, Epoch};

/// Where the path of the rendered `server.properties` is handed to the unit.
pub(super) const PROPERTIES: &str = "UNDERSTUDY_PROPERTIES";

const FILE: &str = "50-understudy.conf";

/// The drop-in's place.
pub(super) fn path(run_dir: &Path, unit: &str) -> PathBuf {
    run_dir.join(format!("{unit}.d")).join(FILE)
}

/// What is configured, and what marks a start as this takeover's.
pub(super) fn environment(
    common: &Common,
    broker: BrokerId,
    epoch: Epoch,
    configured: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    let marker = common.marker(broker).environment(epoch);
    let mut environment = configured;
    environment.extend(marker.into_iter().map(|(name, value)| (name.to_owned(), text(value))));
    let properties = common.site(broker).properties();
    environment.insert(PROPERTIES.to_owned(), properties.to_string_lossy().into_owned());
    environment
}

/// The drop-in's text.
pub(super) fn text(broker: BrokerId, epoch: Epoch, environment: &BTreeMap<String, String>) -> String {
    let mut text = format!(
        "# Written by understudy for broker {broker}, epoch {epoch}. Changes made here are lost.\n[Service]\n"
    );
    for (name, value) in environment {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "Environment=\"{name}={}\"", escaped(value));
    }
    text
}

/// A value as systemd reads it between double quotes: with C escapes, and with `%` for specifiers. `$` means
/// nothing there.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '%' => text.push_str("%%"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            letter => text.push(letter),
        }
    }
    text
}

/// What systemd would drop with a warning: it refuses the name or the value.
pub(super) fn unfit(name: &str, value: &str) -> Option<&'static str> {
    let starts = |c: char| c.is_ascii_alphabetic() || c == '_';
    let goes_on = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.starts_with(starts) || !name.chars().all(goes_on) {
        return Some("cannot be used as a name: systemd wants letters, digits and `_`, and no digit first");
    }
    let control = |c: char| c.is_control() && c != '\n' && c != '\t';
    value.chars().any(control).then_some("has a control character in its value, which systemd refuses")
}

/// Writes it: either the old or the new one is there, readable for all as units are.
pub(super) fn write(path: &Path, content: &str) -> Result<(), Problem> {
    let what = || format!("writing {}", path.display());
    let dir = path.parent().unwrap_or(path);
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(Problem::io(what()))?;
    let tmp = path.with_extension("tmp");
    let write = || {
        // One that an earlier crash left may have other rights.
        match fs::remove_file(&tmp) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o644).open(&tmp)?;
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o644))?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&tmp, path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(Problem::io(what()))
}

/// Whether it is there with this text.
pub(super) fn is(path: &Path, content: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|found| found == content)
}

/// Removes it; whether it was there.
pub(super) fn remove(path: &Path) -> Result<bool, Problem> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Problem::io(format!("removing {}", path.display()))(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn values_survive_what_systemd_makes_of_quotes_escapes_and_specifiers() {
        let environment = BTreeMap::from([
            ("A".to_owned(), r#"say "50 %" \ of $HOME"#.to_owned()),
            ("B".to_owned(), "two\nlines\tand a tab".to_owned()),
        ]);
        let text = text(BrokerId(1), Epoch(5), &environment);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("# Written by understudy for broker 1, epoch 5."), "{text}");
        assert_eq!(lines[1], "[Service]");
        assert_eq!(lines[2], r#"Environment="A=say \"50 %%\" \\ of $HOME""#);
        assert_eq!(lines[3], r#"Environment="B=two\nlines\tand a tab""#);
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn names_and_values_that_systemd_drops_are_unfit() {
        for (name, value) in
            [("", "x"), ("1A", "x"), ("A B", "x"), ("A=B", "x"), ("Ä", "x"), ("A", "\u{1b}[0m"), ("A", "\0")]
        {
            assert!(unfit(name, value).is_some(), "{name}={value}");
        }
        for (name, value) in [("_a1", ""), ("KAFKA_HEAP_OPTS", "-Xmx1g\n\t ü")] {
            assert_eq!(unfit(name, value), None, "{name}");
        }
    }

    #[test]
    fn it_is_replaced_in_one_piece_and_readable_for_all() {
        let root = tempfile::tempdir().unwrap();
        let path = path(root.path(), "kafka@1.service");
        assert!(path.ends_with("kafka@1.service.d/50-understudy.conf"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path.with_extension("tmp"), "left by a crash").unwrap();
        for content in ["first", "second"] {
            write(&path, content).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert!(remove(&path).unwrap());
        assert!(!remove(&path).unwrap());
    }
}
