//! A power fence and an NFS server that keeps a dead client's locks for a minute: the takeover says what it
//! waits for, starts Kafka once when the lock is free, and nobody has to do anything.

use anyhow::ensure;
use e2e::nfs::scenario::{NfsScenario, NfsSetup};
use e2e::scenario::PATIENCE;
use e2e::{eventually, story};

/// What filers have by default: ONTAP 30 s, with a grace period on top; others up to 90 s.
const LEASE: u32 = 60;

#[test]
fn a_dead_machines_lock_outlives_it_for_its_lease_and_no_longer() {
    story("a_dead_machines_lock_outlives_it_for_its_lease_and_no_longer", |lab| {
        let setup = NfsSetup { power_and_lease: Some(LEASE), ..NfsSetup::default() };
        let scenario = NfsScenario::begin(lab, &setup)?;
        let agent = scenario.agent();
        let checked = agent.cli(&["check"])?.stdout;
        ensure!(checked.contains("lease"), "`check` does not say what the lease costs:\n{checked}");
        scenario.start_agents()?;
        let plan = agent.cli(&["plan", "--broker", "1"])?.stdout;
        ensure!(plan.contains("lease"), "`plan` does not reckon with the lease:\n{plan}");

        let rejoin = scenario.recovered_after(|| {
            scenario.home.guest().crash()?;
            eventually("`status` to say what is waited for", PATIENCE, || {
                let status = agent.cli(&["status"])?.stdout;
                ensure!(status.contains(".lock") && status.contains("at most"), "{status}");
                Ok(())
            })
        })?;
        lab.note(format!("with a lease of {LEASE} s: {rejoin:.1?}"));
        scenario.decided(agent, "healthy")?;
        scenario.ensure_runs_on(agent)?;
        let history = scenario.note_phases(agent)?;
        let starts = history.matches("start_broker: done").count();
        ensure!(starts == 1, "Kafka was started {starts} times:\n{history}");
        ensure!(scenario.epochs()? == ["epoch-1.journal"], "{:?}", scenario.epochs()?);
        scenario.verdict()?;
        Ok(())
    });
}
