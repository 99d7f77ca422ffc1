//! From a seed to a scenario. Weights say what is common; everything may meet everything.

use crate::rng::Rng;
use crate::scenario::{Bug, Device, Fault, FenceKind, Frozen, LedgerFault, Ms, Node, Scenario, Timed, Write};

/// Before this, agents learn what a healthy cluster looks like.
const QUIET: Ms = 5_000;

/// Writes of a whole takeover, and some.
const WRITES: u64 = 32;

/// Acts of a whole takeover, and some.
const ACTS: u64 = 16;

/// Makes the scenario of `seed`.
#[must_use]
pub fn scenario(seed: u64) -> Scenario {
    let mut rng = Rng::stream(seed, "cluster");
    let brokers = rng.weighted(&[(6, 3), (2, 4), (2, 5)], 3);
    let standbys = rng.weighted(&[(3, 1), (5, 2), (2, 3)], 2);
    let hosts = brokers + standbys;
    let mut scenario = Scenario {
        seed,
        brokers,
        standbys,
        home_agents: rng.percent(40),
        supervised: false,
        lease: 0,
        follows_from: None,
        twin: false,
        max_brokers: if rng.percent(70) { 1 } else { 2 },
        approve: rng.percent(5),
        fences: (0..hosts)
            .map(|_| if rng.percent(60) { FenceKind::Power } else { FenceKind::Storage })
            .collect(),
        drift: Vec::new(),
        events: Vec::new(),
        bug: None,
    };
    let mut clocks = Rng::stream(seed, "clocks");
    let mut around = Rng::stream(seed, "around");
    scenario.supervised = around.percent(30);
    scenario.lease = if around.percent(30) { around.between(5_000, 45_000) } else { 0 };
    scenario.drift = (0..hosts).map(|_| clocks.between(0, 101) as i64 - 50).collect();
    let mut network = Rng::stream(seed, "network");
    scenario.follows_from = network.percent(25).then(|| network.between(0, 30_000));
    let mut rng = Rng::stream(seed, "faults");
    if rng.percent(3) {
        return scenario; // nothing goes wrong, and nothing may be done
    }
    let begin = QUIET + rng.between(0, 1_000);
    let first = trigger(&mut rng, &scenario, begin);
    scenario.events.push(first);
    for _ in 0..rng.weighted(&[(20, 0_u64), (30, 1), (25, 2), (15, 3), (10, 5)], 1) {
        let near = begin + rng.between(0, 12_000);
        let at = near.saturating_sub(1_500);
        let another =
            if rng.percent(12) { trigger(&mut rng, &scenario, at) } else { trouble(&mut rng, &scenario, at) };
        scenario.events.push(another);
    }
    if rng.percent(35) {
        complicate(&mut rng, &mut scenario, begin);
    }
    match around.index(100) {
        0..=3 => grow_old(&mut around, &mut scenario, begin),
        4..=7 => fail_again(&mut around, &mut scenario, begin),
        8..=11 => miss_the_ledger(&mut around, &mut scenario, begin),
        12..=13 => copy_the_first(&mut scenario),
        95..=96 => long_out_of_reach(&mut scenario),
        97..=99 => lose_power(&mut around, &mut scenario),
        14..=17 => lose_the_quorum(&mut around, &mut scenario, begin),
        18..=21 => hang_again(&mut around, &mut scenario, begin),
        _ => {}
    }
    scenario.events.sort_by_key(|event| event.at);
    scenario
}

/// The scenario of `seed` with a bug planted, such that it can show.
#[must_use]
pub fn planted(seed: u64, bug: Bug) -> Scenario {
    let mut scenario = Scenario { bug: Some(bug), ..scenario(seed) };
    let mut rng = Rng::stream(seed, "planted");
    match bug {
        // Whoever is switched off writes nothing any more.
        Bug::OldEpochWrites => scenario.fences = vec![FenceKind::Storage; scenario.hosts()],
        Bug::OldDecision => grow_old(&mut rng, &mut scenario, QUIET),
        Bug::BlindStop => blind_window(&mut rng, &mut scenario, QUIET),
        Bug::OwnRemovalIsStop => {
            scenario.home_agents = true;
            fail_again(&mut rng, &mut scenario, QUIET);
        }
        Bug::BlindAppend => {
            let mut event = |at, lasts, what| scenario.events.push(Timed { at, lasts, what });
            event(QUIET, 0, Fault::HostDies(0));
            // A claimant writes seldom: windows enough that one of them meets a write, and is over when that
            // lands.
            let begun = QUIET + rng.between(1_500, 4_500);
            for window in 0..8 {
                let at = begun + window * 4_000;
                event(at, rng.between(500, 2_500), Fault::LedgerFails(LedgerFault::Late, None));
            }
        }
        Bug::AnyLedger => miss_the_ledger(&mut rng, &mut scenario, QUIET),
        Bug::AnyMachine => copy_the_first(&mut scenario),
        Bug::EndlessWindow => {
            scenario.events.clear();
            long_dead(&mut scenario);
        }
        Bug::HungIsGone => hang_again(&mut rng, &mut scenario, QUIET),
        Bug::LocksUnasked => scenario.lease = rng.between(5_000, 45_000),
        _ => {}
    }
    scenario.events.sort_by_key(|event| event.at);
    scenario
}

/// What makes a broker look dead, or asks for it to be moved.
fn trigger(rng: &mut Rng, scenario: &Scenario, at: Ms) -> Timed {
    let broker = rng.index(scenario.brokers);
    let standby = scenario.brokers + rng.index(scenario.standbys);
    let some = rng.between(500, 20_000);
    let (what, lasts) = match rng.index(100) {
        0..=37 => (Fault::HostDies(broker), 0),
        38..=44 => (Fault::HostDies(broker), some),
        45..=55 => (Fault::Freezes(broker, Frozen::Host), some),
        56..=62 => (Fault::Isolated(broker), some),
        63..=68 => (Fault::KafkaCrashes(broker), 0),
        69..=73 => (Fault::KafkaHangs(broker), some * 2),
        74..=78 => (Fault::KafkaFreezes(broker), some * 2),
        79..=80 => (Fault::KafkaStops(broker), 0),
        81..=84 => (Fault::StorageStalls(Some(broker)), some),
        85..=88 => (Fault::Cut(Node::Host(standby), Node::Host(broker)), some),
        89..=90 => (Fault::Cut(Node::Host(broker), Node::Controllers), some),
        // Without an agent on the old host nobody answers, and the order comes to nothing after minutes.
        91..=98 if !scenario.home_agents => (Fault::HostDies(broker), 0),
        _ => (Fault::Switchover(broker, standby), 0),
    };
    Timed { at, lasts, what }
}

/// What goes wrong beside it.
fn trouble(rng: &mut Rng, scenario: &Scenario, at: Ms) -> Timed {
    let broker = rng.index(scenario.brokers);
    let host = rng.index(scenario.hosts());
    let standby = scenario.brokers + rng.index(scenario.standbys);
    let one = if rng.percent(50) { Some(host) } else { None };
    let short = rng.between(500, 8_000);
    let long = rng.between(2_000, 25_000);
    let frozen = if rng.percent(50) { Frozen::Host } else { Frozen::Agent };
    let write = if rng.percent(50) { Write::Before } else { Write::After };
    let (what, lasts) = match rng.index(100) {
        0..=11 => (Fault::AgentCrashes(standby, rng.between(1, WRITES), write), 0),
        12..=15 => (Fault::AgentKilled(host), 0),
        16..=24 => (Fault::FreezesAtAct(standby, frozen, rng.between(1, ACTS), long), 0),
        25..=30 => (Fault::Freezes(standby, frozen), long),
        31..=44 => {
            let kinds = [Device::Slow, Device::Mute, Device::Lies, Device::Refuses, Device::Unknown];
            (Fault::FenceFails(broker, kinds[rng.index(kinds.len())]), long)
        }
        45..=58 => {
            let kinds = [
                (3, LedgerFault::Down),
                (3, LedgerFault::Slow),
                (3, LedgerFault::LostAcks),
                (2, LedgerFault::Late),
                (2, LedgerFault::Stale),
            ];
            (Fault::LedgerFails(rng.weighted(&kinds, LedgerFault::Down), one), short)
        }
        59..=67 => {
            let places = [Node::Controllers, Node::Ledger, Node::Devices, Node::Host(broker)];
            let other = places[rng.index(places.len())];
            let (from, to) = (Node::Host(host), other);
            (if rng.percent(50) { Fault::Cut(from, to) } else { Fault::Cut(to, from) }, long)
        }
        68..=70 => (Fault::Isolated(host), long),
        71..=74 => (Fault::StorageStalls(one), short),
        75..=77 => (Fault::SlowRecovery(broker, long), 0),
        78..=82 => (Fault::WallJumps(host, rng.between(0, 1_201) as i64 - 600), 0),
        83..=85 => (Fault::ControllerMoves, 0),
        86..=87 => (Fault::HostDies(standby), long),
        88..=89 => (Fault::HostDies(standby), 0),
        90..=91 => (Fault::KafkaCrashes(broker), 0),
        92..=93 => (Fault::Pause(broker), 0),
        94 => (Fault::Resume, 0),
        95..=96 => (Fault::Ack, 0),
        97 => (Fault::Approve(broker), 0),
        _ => (Fault::Switchover(broker, host), 0),
    };
    Timed { at, lasts, what }
}

/// Two agents of which one stands still in the middle of an act long enough to be succeeded, and the like.
fn complicate(rng: &mut Rng, scenario: &mut Scenario, begin: Ms) {
    if rng.percent(30) {
        return blind_window(rng, scenario, begin);
    }
    let standby = scenario.brokers + rng.index(scenario.standbys);
    let frozen = if rng.percent(70) { Frozen::Host } else { Frozen::Agent };
    let lasts = rng.between(15_000, 40_000);
    let what = Fault::FreezesAtAct(standby, frozen, rng.between(1, ACTS), lasts);
    scenario.events.push(Timed { at: begin, lasts: 0, what });
}

/// All standbys are behind one switch, which fails around the moment at which it happens.
fn blind_window(rng: &mut Rng, scenario: &mut Scenario, begin: Ms) {
    let (at, lasts) = (begin.saturating_sub(rng.between(0, 3_000)), rng.between(2_000, 20_000));
    for standby in scenario.brokers..scenario.hosts() {
        scenario.events.push(Timed { at, lasts, what: Fault::Isolated(standby) });
    }
}

/// A broker is back before whoever decided to take it over gets to its first act.
fn grow_old(rng: &mut Rng, scenario: &mut Scenario, begin: Ms) {
    let broker = rng.index(scenario.brokers);
    let all = scenario.brokers..scenario.hosts();
    let event = |at, lasts, what| Timed { at, lasts, what };
    let away = rng.between(4_000, 7_000);
    scenario.events.push(event(begin, away, Fault::Freezes(broker, Frozen::Host)));
    let slow = Fault::LedgerFails(LedgerFault::Slow, None);
    scenario.events.push(event(begin, rng.between(4_000, 9_000), slow));
    let at = begin + rng.between(1_500, 4_500);
    let lasts = rng.between(12_000, 25_000);
    scenario.events.extend(all.map(|host| event(at, lasts, Fault::Freezes(host, Frozen::Host))));
}

/// A host boots, and the ledger's storage is mounted later.
fn miss_the_ledger(rng: &mut Rng, scenario: &mut Scenario, begin: Ms) {
    let host = rng.index(scenario.hosts());
    let away = rng.between(3_000, 25_000);
    scenario.events.push(Timed { at: begin, lasts: away, what: Fault::HostDies(host) });
    let lasts = away + rng.between(1_000, 30_000);
    scenario.events.push(Timed { at: begin, lasts, what: Fault::LedgerMissing(host) });
}

/// The standbys cannot reach one broker, for good; and long after that another one's host dies.
fn long_out_of_reach(scenario: &mut Scenario) {
    let standbys = scenario.brokers..scenario.hosts();
    let event = |at, what| Timed { at, lasts: 0, what };
    let cut = |host| event(QUIET, Fault::Cut(Node::Host(host), Node::Host(0)));
    scenario.events.extend(standbys.map(cut));
    scenario.events.push(event(QUIET + 30_000, Fault::HostDies(1)));
}

/// A broker's host dies while all standbys boot, so that nobody saw how it went and a person is waited for; and
/// long after that another one's.
fn long_dead(scenario: &mut Scenario) {
    let standbys = scenario.brokers..scenario.hosts();
    let dies = |at, lasts, host| Timed { at, lasts, what: Fault::HostDies(host) };
    scenario.events.extend(standbys.map(|host| dies(QUIET, 15_000, host)));
    scenario.events.extend([dies(QUIET + 500, 0, 0), dies(QUIET + 45_000, 0, 1)]);
}

/// All brokers' hosts lose power in the same moment, and start again one after the other.
fn lose_power(rng: &mut Rng, scenario: &mut Scenario) {
    let mut back = rng.between(10_000, 60_000);
    for host in 0..scenario.brokers {
        scenario.events.push(Timed { at: QUIET, lasts: back, what: Fault::HostDies(host) });
        back += rng.between(5_000, 20_000);
    }
}

/// The last standby was made from a copy of the first broker's home.
fn copy_the_first(scenario: &mut Scenario) {
    (scenario.twin, scenario.home_agents) = (true, true);
}

/// Kafka ends, and its next starts fail.
fn fail_again(rng: &mut Rng, scenario: &mut Scenario, begin: Ms) {
    let broker = rng.index(scenario.brokers);
    let fails = Fault::StartsFail(broker, rng.between(1, 5));
    scenario.events.push(Timed { at: begin, lasts: 0, what: fails });
    let at = begin + rng.between(0, 2_000);
    scenario.events.push(Timed { at, lasts: 0, what: Fault::KafkaCrashes(broker) });
}

/// A host dies, and the controllers have no leader from about then on, for longer than Kafka waits for them,
/// or not.
fn lose_the_quorum(rng: &mut Rng, scenario: &mut Scenario, begin: Ms) {
    let broker = rng.index(scenario.brokers);
    scenario.events.push(Timed { at: begin, lasts: 0, what: Fault::HostDies(broker) });
    let (at, lasts) = (begin + rng.between(0, 15_000), rng.between(5_000, 120_000));
    scenario.events.push(Timed { at, lasts, what: Fault::QuorumLost });
}

/// A host dies, and the next starts of its broker hang, or fail one after the other.
fn hang_again(rng: &mut Rng, scenario: &mut Scenario, begin: Ms) {
    let broker = rng.index(scenario.brokers);
    let starts = rng.between(1, 5);
    let hangs = rng.percent(50);
    let what = if hangs { Fault::StartsHang(broker, 1) } else { Fault::StartsFail(broker, starts) };
    scenario.events.push(Timed { at: begin, lasts: 0, what });
    scenario.events.push(Timed { at: begin, lasts: 0, what: Fault::HostDies(broker) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_scenario_twice() {
        for seed in 0..50 {
            assert_eq!(scenario(seed).to_string(), scenario(seed).to_string());
        }
    }

    #[test]
    fn scenarios_name_only_hosts_that_are_there() {
        for seed in 0..2_000 {
            let scenario = scenario(seed);
            let hosts = scenario.hosts();
            let fits = |event: &Timed| event.what.highest_host().is_none_or(|host| host < hosts);
            assert!(scenario.events.iter().all(fits), "{scenario}");
        }
    }
}
