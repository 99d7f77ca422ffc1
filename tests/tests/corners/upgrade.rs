//! Hosts are upgraded one by one: the oldest supported agent and this one share a ledger, and each takes the
//! broker over after the other. What neither of them can read is refused, and nothing is done meanwhile.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use e2e::agent::{Agent, older_binary};
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{Fault, eventually, story};

#[test]
fn two_versions_take_over_from_each_other() {
    story("two_versions_take_over_from_each_other", |lab| {
        let scenario = Scenario::begin(lab, &Setup { standbys: 2, ..Setup::default() })?;
        let [first, newer] = scenario.standbys.as_slice() else { anyhow::bail!("not two standbys") };
        let config = fs::read_to_string(first.host().local().join("understudy.toml"))?;
        // A key that the older one does not know yet, and does without.
        let known = |line: &&str| line.trim() != "local = true";
        let config: Vec<&str> = config.lines().filter(known).collect();
        let config = config.join("\n");
        let older = lab.agent_of(&older_binary()?, first.host(), &config)?;
        newer.start()?;
        for agent in [older.as_ref(), newer.as_ref()] {
            agent.wait_ready(PATIENCE)?;
        }
        lab.note("the older agent, whose rank is better, takes over");
        scenario.recovered_after(PATIENCE, || scenario.strike(&Fault::PowerOff("b1".to_owned())))?;
        scenario.decided_by(newer, "healthy", PATIENCE)?;
        scenario.journal_says(1, &["recovered", "standby-1"], PATIENCE)?;

        lab.note("its host dies, and this one takes over by what the older one has written");
        let dead = Fault::PowerOff("standby-1".to_owned());
        let held = Newer::begin(&scenario)?;
        blind(newer, "was written by a newer understudy: upgrade this host")?;
        scenario.strike(&dead)?;
        let says = scenario.held_by(newer, "ledger_distrusted", PATIENCE)?;
        ensure!(says["decision"].to_string().contains("ledger_newer"), "another label: {says}");
        ensure!(scenario.epochs()?.len() == 1, "it has claimed in a ledger that it cannot read");
        scenario.recovered_after(PATIENCE, || held.end())?;
        scenario.journal_says(2, &["recovered", "standby-2"], PATIENCE)?;
        scenario.decided_by(newer, "healthy", PATIENCE)?;

        lab.note("the older one is back, and takes over by what this one has written");
        dead.heal(lab)?;
        older.start()?;
        older.wait_ready(PATIENCE)?;
        let said = older.cli(&["rejoin", "--yes"])?;
        ensure!(said.code == 0, "the older agent's host does not rejoin: {} {}", said.stdout, said.stderr);
        scenario.decided_by(&older, "healthy", PATIENCE)?;
        let held = Newer::begin(&scenario)?;
        blind(&older, "upgrade understudy on this host")?;
        scenario.strike(&Fault::PowerOff("standby-2".to_owned()))?;
        // It has no word of its own for what is newer yet.
        scenario.held_by(&older, "ledger_unreachable", PATIENCE)?;
        ensure!(scenario.epochs()?.len() == 2, "it has claimed in a ledger that it cannot read");
        scenario.recovered_after(PATIENCE, || held.end())?;
        scenario.journal_says(3, &["recovered", "standby-1"], PATIENCE)?;
        scenario.ensure_runs_on("standby-1")?;
        scenario.verdict().map(drop)
    });
}

/// The ledger of a version to come, for a while.
struct Newer {
    format: PathBuf,
    before: String,
}

impl Newer {
    fn begin(scenario: &Scenario) -> Result<Self> {
        let format = scenario.ledger.join("format");
        let before = fs::read_to_string(&format).context("the ledger has no format")?;
        let newer = before.replace('1', "2");
        ensure!(newer != before, "a newer format than any: {before}");
        fs::write(&format, newer)?;
        Ok(Self { format, before })
    }

    fn end(self) -> Result<()> {
        Ok(fs::write(&self.format, &self.before)?)
    }
}

/// Waits until an agent says why it does not read the ledger.
fn blind(agent: &Agent, words: &str) -> Result<()> {
    eventually(&format!("an agent that says `{words}`"), PATIENCE, || {
        let status = agent.status()?;
        ensure!(
            status["blind"]["ledger"].as_str().is_some_and(|why| why.contains(words)),
            "{}",
            status["blind"]
        );
        Ok(())
    })
}
