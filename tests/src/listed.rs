//! The test binaries have a module for each file: one that nobody lists would be silently left out.

use std::fs;
use std::path::Path;

/// Looks whether `main`, the text of a `main.rs`, declares each other file of its `folder` as a module.
///
/// # Panics
/// When one is not declared, or the folder cannot be read.
#[allow(clippy::panic)]
pub fn ensure_listed(main: &str, folder: &str) {
    let entries = fs::read_dir(Path::new(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let listed = main.lines().any(|line| line == format!("mod {name};"));
        assert!(name == "main" || listed, "{} is in no test binary: add `mod {name};`", path.display());
    }
}
