//! The parsers, and what each may take.

use std::path::Path;

use fuzz::Target;
use understudy::config::Config;

/// Every target.
pub(crate) fn all() -> Vec<Target> {
    let recovery = recovery::fuzzing::TARGETS.iter().map(|(name, run)| {
        // What takes most is a list in an answer: one byte on the wire reserves an element of some hundred
        // bytes.
        Target { name, run: *run, at_rest: 64 << 10, per_byte: 512, cases: 4000 }
    });
    // The schema that a file is compared with is made anew for each.
    let config = Target { name: "config", run: config, at_rest: 4 << 20, per_byte: 4096, cases: 150 };
    recovery.chain([config]).collect()
}

/// A configuration that is refused says why.
fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = Config::parse(Path::new("/etc/understudy/understudy.toml"), &text) {
        assert!(!error.problems.is_empty());
        assert!(error.to_string().lines().count() > error.problems.len());
    }
}
