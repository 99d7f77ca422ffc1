//! Stories whose hosts have kernels of their own, on a real NFS server.

mod bed;
mod boot;
mod crash;
mod cut;
mod freeze;
mod lease;
mod ledger;
mod refused;
mod silly_rename;

#[test]
fn every_file_here_is_told() {
    e2e::ensure_listed(include_str!("main.rs"), concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nfs"));
}
