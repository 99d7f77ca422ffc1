//! The parsers, and what each may take.

mod peer;

use std::path::Path;

use drivers::{address, clients, fence, ledger, storage};
use fuzz::Target;
use understudy::config::Config;

/// A function of bytes that panics where a promise is broken.
type Run = fn(&[u8]);

/// The parsers by name.
const TARGETS: &[(&str, Run)] = &[
    ("clients_page", clients::fuzz::page),
    ("decisions", ledger::file::fuzz::decisions),
    ("fence_metadata", fence::fuzz::metadata),
    ("jks", kafka::fuzz::jks),
    ("journal", ledger::file::fuzz::journal),
    ("ledger_lines", ledger::file::fuzz::lines),
    ("meta_properties", kafka::fuzz::meta_properties),
    ("mountinfo", storage::fuzz::mountinfo),
    ("names", kafka::fuzz::names),
    ("neighbour", address::fuzz::neighbour),
    ("nfs_kernel", storage::fuzz::nfs_kernel),
    ("peer_view", peer::view),
    ("properties", kafka::fuzz::properties),
    ("properties_edit", kafka::fuzz::properties_edit),
    ("wire_answer", kafka::wire::fuzz::answer),
    ("wire_frames", kafka::wire::fuzz::frames),
    ("wire_offer", kafka::wire::fuzz::offer),
    ("zookeeper", kafka::fuzz::zookeeper),
];

/// Every target.
pub(crate) fn all() -> Vec<Target> {
    let parsers = TARGETS.iter().map(|(name, run)| {
        // What takes most is a list in an answer: one byte on the wire reserves an element of some hundred
        // bytes.
        Target { name, run: *run, at_rest: 64 << 10, per_byte: 512, cases: 4000 }
    });
    // The schema that a file is compared with is made anew for each.
    let config = Target { name: "config", run: config, at_rest: 4 << 20, per_byte: 4096, cases: 150 };
    parsers.chain([config]).collect()
}

/// A configuration that is refused says why.
fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = Config::parse(Path::new("/etc/understudy/understudy.toml"), &text) {
        assert!(!error.problems.is_empty());
        assert!(error.to_string().lines().count() > error.problems.len());
    }
}
