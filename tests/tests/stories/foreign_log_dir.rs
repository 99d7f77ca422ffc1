//! Log dirs that are not the broker's, or not there: refused before anything is written.

use std::fs;

use anyhow::{Result, ensure};
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM, contents};
use e2e::story;

#[test]
fn a_foreign_log_dir_is_refused() {
    story("a_foreign_log_dir_is_refused", |lab| {
        let scenario = Scenario::begin(lab, &Setup { mode: "observe", ..Setup::default() })?;
        let broker = scenario.cluster.broker(VICTIM)?;
        scenario.victim()?.power_off()?;
        let meta = broker.log_dir().join("meta.properties");
        let own = fs::read_to_string(&meta)?;
        let cluster_id = own.lines().find(|line| line.starts_with("cluster.id=")).unwrap_or_default();

        let other_cluster = own.replace(cluster_id, "cluster.id=AAAAAAAAAAAAAAAAAAAAAA");
        ensure!(other_cluster != own, "no cluster.id in {own}");
        fs::write(&meta, &other_cluster)?;
        refused(&scenario, &["cluster", "AAAAAAAAAAAAAAAAAAAAAA"])?;

        let other_node = own.replace("node.id=1", "node.id=2");
        ensure!(other_node != own, "no node.id in {own}");
        fs::write(&meta, &other_node)?;
        refused(&scenario, &["node", "2"])?;
        fs::write(&meta, &own)?;

        let mount = broker.mount_point();
        scenario.standby.unbind(&mount)?;
        refused(&scenario, &["mount"])?;
        let left = scenario.standby.run(&["ls", "-A", &mount])?;
        ensure!(left.stdout.is_empty(), "written below the missing mount: {left:?}");

        // All was said and done; with the right log dir it goes through.
        scenario.standby.bind(broker.log_dir(), &mount)?;
        scenario.cli(&["failover", "--broker", "1", "--yes"], 0)?;
        scenario.cluster.wait_complete(PATIENCE)?;
        scenario.verdict()?;
        Ok(())
    });
}

/// A takeover that is abandoned, says why, and leaves everything as it was.
fn refused(scenario: &Scenario, says: &[&str]) -> Result<()> {
    let log_dir = scenario.cluster.broker(VICTIM)?.log_dir();
    let before = contents(log_dir)?;
    let failover = scenario.cli(&["failover", "--broker", "1", "--yes"], 1)?;
    let said = failover.stdout + &failover.stderr;
    ensure!(said.contains("abandoned"), "{said}");
    for word in says {
        ensure!(said.contains(word), "{word:?} is not in:\n{said}");
    }
    scenario.ensure_not_started()?;
    ensure!(contents(log_dir)? == before, "something was written to the log dir");
    Ok(())
}
