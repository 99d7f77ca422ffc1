//! The machine of a broker stands still, kernel and all, with pages in its cache that the server does not have; it is taken
//! over from, and goes on as if nothing had happened.

use anyhow::ensure;
use e2e::nfs::scenario::{NfsScenario, NfsSetup, kafkas};
use e2e::scenario::PATIENCE;
use e2e::{eventually, story};

#[test]
fn what_a_thawed_machine_still_wants_to_write_is_refused() {
    story("what_a_thawed_machine_still_wants_to_write_is_refused", |lab| {
        let scenario = NfsScenario::begin(lab, &NfsSetup::default())?;
        let (agent, home) = (scenario.agent(), scenario.home.guest());
        scenario.start_agents()?;
        scenario.recovered_after(|| {
            let dirty = home.sh("grep -E '^(Dirty|Writeback):' /proc/meminfo")?;
            lab.note(format!(
                "b1 stands still with {}",
                dirty.split_whitespace().collect::<Vec<_>>().join(" ")
            ));
            home.freeze()
        })?;
        scenario.decided(agent, "healthy")?;
        scenario.ensure_one_owner("standby-1")?;
        scenario.note_phases(agent)?;
        scenario.flows(500)?;

        home.thaw()?;
        eventually("the thawed Kafka to end, as its storage refuses it", PATIENCE, || {
            let running = kafkas(home)?;
            ensure!(running.is_empty(), "{running:?} run");
            Ok(())
        })?;
        scenario.stays_out()
    });
}
