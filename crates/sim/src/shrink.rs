//! Makes a scenario that breaks a promise smaller, for as long as it breaks the same one.

use crate::run::run;
use crate::scenario::Scenario;

/// Drops what is not needed, one thing at a time, until nothing more can be dropped.
#[must_use]
pub fn shrink(scenario: &Scenario) -> Scenario {
    let first = run(scenario, false);
    let Some(rule) = first.rule() else { return scenario.clone() };
    let still = |smaller: &Scenario| run(smaller, false).rule() == Some(rule);
    let mut best = scenario.clone();
    while let Some(smaller) = smaller(&best).into_iter().find(|candidate| still(candidate)) {
        best = smaller;
    }
    best
}

/// Every scenario that is one thing smaller.
fn smaller(scenario: &Scenario) -> Vec<Scenario> {
    let mut all = Vec::new();
    for index in 0..scenario.events.len() {
        let mut fewer = scenario.clone();
        fewer.events.remove(index);
        all.push(fewer);
    }
    let named = scenario.events.iter().filter_map(|event| event.what.highest_host()).max();
    if scenario.standbys > 1 && named.is_none_or(|host| host + 1 < scenario.hosts()) {
        let mut fewer = scenario.clone();
        fewer.standbys -= 1;
        fewer.fences.pop();
        fewer.drift.pop();
        all.push(fewer);
    }
    if scenario.home_agents {
        all.push(Scenario { home_agents: false, ..scenario.clone() });
    }
    if scenario.follows_from.is_some() {
        all.push(Scenario { follows_from: None, ..scenario.clone() });
    }
    if scenario.drift.iter().any(|drift| *drift != 0) {
        all.push(Scenario { drift: vec![0; scenario.hosts()], ..scenario.clone() });
    }
    all
}
