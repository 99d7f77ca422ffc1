//! One story a module, on hosts in network namespaces and a real Kafka; and the bed's own tests.

mod agent_killed;
mod bed;
mod blind_window;
mod boot_together;
mod class_data;
mod controlled_shutdown;
mod failover_by_hand;
mod fence_unproven;
mod foreign_log_dir;
mod frozen_claimant;
mod frozen_host;
mod healthy_cluster;
mod held_lock;
mod host_dies;
mod ledger_down;
mod ledger_kafka;
mod ledger_missing;
mod lives_on;
mod mass_failure;
mod ontap_export;
mod power_comes_back;
mod process_crash;
mod quorum_lost;
mod resurrected_host;
mod standby_cut_off;
mod storage_stall;
mod switchover;
mod told_to_a_person;
mod two_standbys;
mod unregister;
mod wrong_listener;

#[test]
fn every_file_here_is_told() {
    e2e::ensure_listed(include_str!("main.rs"), concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stories"));
}
