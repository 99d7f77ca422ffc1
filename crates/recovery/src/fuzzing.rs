//! Every parser of what comes from outside, as a function of bytes that panics where a promise is broken.
//!
//! The promises: no input panics, none takes for ever, and what was read is written back as the same thing.
//! That memory stays in proportion to the input is for the caller to measure; package `fuzz` does.

use crate::drivers::{address, clients, fence, health_signal, ledger, storage};
use crate::kafka;

/// A function of bytes that panics where a promise is broken.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("clients_page", clients::fuzz::page),
    ("decisions", ledger::file::fuzz::decisions),
    ("fence_metadata", fence::fuzz::metadata),
    ("journal", ledger::file::fuzz::journal),
    ("ledger_lines", ledger::file::fuzz::lines),
    ("meta_properties", kafka::fuzz::meta_properties),
    ("mountinfo", storage::fuzz::mountinfo),
    ("names", kafka::fuzz::names),
    ("neighbour", address::fuzz::neighbour),
    ("nfs_kernel", storage::fuzz::nfs_kernel),
    ("peer_view", health_signal::peer::fuzz::view),
    ("properties", kafka::fuzz::properties),
    ("properties_edit", kafka::fuzz::properties_edit),
    ("wire_answer", kafka::wire::fuzz::answer),
    ("wire_frames", kafka::wire::fuzz::frames),
];

/// Takes a first part off an input: what stands before the first zero byte.
pub(crate) fn part(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}
