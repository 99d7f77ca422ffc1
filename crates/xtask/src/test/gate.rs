//! What a change must pass: the same stories and the same seeds each time.

use crate::suite::Test;

/// One story for each thing that the agent does or refuses; the others are told by `--tier netns`. One that comes
/// pays with another that goes if the gate takes longer than twenty minutes.
pub(crate) const STORIES: [&str; 17] = [
    // It takes over from a host that dies, stands still and thaws, or comes back,
    "the_daemon_recovers_a_broker_whose_host_dies",
    "a_host_that_thaws_after_the_takeover_does_no_harm",
    "an_old_host_that_comes_back_does_not_start_its_broker",
    // also where listeners are secured;
    "secured_cluster",
    // and from one that lives behind its fence, or left a lock;
    "a_fenced_hosts_agent_ends_its_kafka_and_gives_the_address_up",
    "a_dead_hosts_lock_is_waited_for",
    // on EC2 as well, which says itself who has an address and has stopped;
    "ec2_host_dies",
    // restarts in place, also where somebody else starts Kafka at boot;
    "a_killed_broker_is_restarted_in_place",
    "an_agent_waits_for_whoever_starts_kafka_at_boot",
    // leaves a takeover to one agent, and finishes what another began;
    "the_winner_dies_after_the_claim",
    "a_claimant_that_thaws_is_refused",
    "killed_after_the_fence",
    // does what a person asks for;
    "a_broker_is_moved_on_purpose",
    "a_person_fails_a_broker_over",
    // and holds where a fence is not proven, many fail together, or the ledger is down.
    "a_switch_that_does_not_know_stops_the_takeover",
    "three_brokers_cut_off_together_are_left_alone",
    "without_a_ledger_nothing_is_done_and_nothing_is_stopped",
];

/// The one on Kubernetes, told where that was built before.
pub(crate) const KUBERNETES_STORY: &str = "three_nodes_run_pods_and_one_loses_power";

/// How many clusters are simulated, from seed 0 on.
pub(crate) const SEEDS: u64 = 2_000;

/// The stories of the gate that are in none of `tests`: they were renamed or removed.
pub(crate) fn missing(tests: &[Test]) -> Vec<&'static str> {
    STORIES
        .into_iter()
        .chain([KUBERNETES_STORY])
        .filter(|name| !tests.iter().any(|test| test.is_story() && test.name() == *name))
        .collect()
}
