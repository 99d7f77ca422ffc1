//! Corners of one rule, on more than one Kafka, and of two versions of the agent.

mod combined;
mod on_any_kafka;
mod upgrade;

#[test]
fn every_file_here_is_told() {
    e2e::ensure_listed(include_str!("main.rs"), concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corners"));
}
