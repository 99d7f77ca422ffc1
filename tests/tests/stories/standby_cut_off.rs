//! The agent's own host is cut off: every broker looks dead to it, and it does nothing.

use std::time::Duration;

use anyhow::ensure;
use e2e::scenario::{Scenario, Setup};
use e2e::story;

#[test]
fn an_agent_that_is_cut_off_holds() {
    story("an_agent_that_is_cut_off_holds", |lab| {
        let scenario = Scenario::begin(lab, &Setup::default())?;
        scenario.start_agents()?;
        scenario.standby.cut()?;
        let held = scenario.decided("hold", Duration::from_secs(20))?;
        let reasons = held["decision"]["reasons"].to_string();
        ensure!(reasons.contains("isolated"), "held for another reason: {reasons}");
        let holds = scenario.agent.metric("understudy_holds_total{broker=\"1\",reason=\"isolated\"}")?;
        ensure!(holds.is_some_and(|n| n >= 1.0), "the hold is not counted: {holds:?}");
        let said = scenario.cli(&["status"], 3)?;
        ensure!(said.stdout.contains("cut off"), "`status` does not say why: {said:?}");
        // Long after a takeover would have been due.
        std::thread::sleep(Duration::from_secs(10));
        scenario.ensure_untouched()?;

        scenario.standby.heal()?;
        scenario.decided("healthy", Duration::from_secs(30))?;
        scenario.flows(1000)?;
        scenario.ensure_untouched()?;
        let history = scenario.cli(&["history", "--broker", "1"], 0)?.stdout;
        ensure!(history.contains("cut off"), "the hold is not in the history:\n{history}");
        scenario.verdict()?;
        Ok(())
    });
}
