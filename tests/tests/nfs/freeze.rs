//! The machine of a broker stands still, kernel and all, with pages in its cache that the server does not
//! have; it is taken over from, and goes on as if nothing had happened. Or its Kafka alone stands still, and
//! the machine lives on behind the fence.

use anyhow::ensure;
use e2e::nfs::scenario::{NfsScenario, NfsSetup, kafkas};
use e2e::scenario::{PATIENCE, VICTIM};
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

#[test]
fn a_machine_that_lives_behind_its_fence_ends_its_kafka_and_gives_the_address_up() {
    story("a_machine_that_lives_behind_its_fence_ends_its_kafka_and_gives_the_address_up", |lab| {
        let scenario = NfsScenario::begin(lab, &NfsSetup::default())?;
        let (agent, home) = (scenario.agent(), scenario.home.guest());
        scenario.home.start()?;
        scenario.home.wait_ready(PATIENCE)?;
        scenario.start_agents()?;
        let address = scenario.cluster.broker(VICTIM)?.address().ip();
        scenario.recovered_after(|| {
            for process in kafkas(home)? {
                home.sh(&format!("kill -STOP {process}"))?;
            }
            Ok(())
        })?;
        scenario.decided(agent, "healthy")?;
        scenario.ensure_one_owner("standby-1")?;
        eventually("the agent at home to give everything up", PATIENCE, || {
            let (running, addresses) = (kafkas(home)?, home.sh("ip -4 -brief address")?);
            ensure!(running.is_empty(), "{running:?} run");
            ensure!(!addresses.contains(&format!("{address}/")), "the old host kept it:\n{addresses}");
            Ok(())
        })?;
        scenario.note_phases(agent)?;
        scenario.stays_out()
    });
}
