//! A host stands still with everything on it, is taken for dead and taken over from; and then it goes on, as
//! if nothing had happened, with a broker in its memory that believes to lead half of the partitions.

use anyhow::ensure;
use e2e::kafka::ClusterSpec;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, LOG_DIRS, Outlet, Storage, eventually, story};

#[test]
fn a_host_that_thaws_after_the_takeover_does_no_harm() {
    story("a_host_that_thaws_after_the_takeover_does_no_harm", |lab| {
        let scenario = Scenario::begin(
            lab,
            &Setup {
                cluster: ClusterSpec { storage: Storage::Fuse, ..ClusterSpec::default() },
                policy: &[("hung_after", "6s")],
                // Nothing kills the frozen processes: only storage and link are taken away.
                fence: Outlet::Isolation,
                // While two hosts answer at one address, the old Kafka may answer a producer with sequence numbers
                // that it does not know, which ends an idempotent client.
                begins_anew: true,
                ..Setup::default()
            },
        )?;
        scenario.start_agents()?;
        let victim = scenario.victim()?.clone();
        scenario.recovered_after(PATIENCE, || scenario.strike(&Fault::Freeze("b1".to_owned())))?;
        scenario.decided("healthy", PATIENCE)?;
        ensure!(victim.has_lost_storage()? && !victim.is_linked(), "the old host was not fenced");
        let mut both = scenario.running_on()?;
        both.sort();
        ensure!(both == ["b1", "standby-1"], "the frozen broker and the new one: {both:?}");
        scenario.flows(1000)?;

        // Somebody plugs the link in again, and the host wakes up, while records are written. It has the
        // broker's address too, as the new owner has.
        victim.heal()?;
        Fault::Freeze("b1".to_owned()).heal(lab)?;
        eventually("the zombie to give up, as it has no storage", PATIENCE, || {
            let zombies = victim.processes(&["kafka.Kafka"])?;
            ensure!(zombies.is_empty(), "{zombies:?} run");
            Ok(())
        })?;
        let probe = format!("{LOG_DIRS}/broker{VICTIM}/probe");
        let refused = victim.run(&["touch", &probe])?;
        ensure!(refused.code != 0, "the old host can write: {refused:?}");
        // Two hosts must not answer for one address: whoever plugged it in sees that, and pulls it again.
        victim.cut()?;
        lab.forget_neighbour("10.77.0.11".parse()?)?;

        scenario.ensure_runs_on("standby-1")?;
        scenario.cluster.wait_complete(PATIENCE)?;
        scenario.decided("healthy", PATIENCE)?;
        ensure!(scenario.epochs()?.len() == 1, "one fault, one takeover");
        scenario.verdict()?;
        Ok(())
    });
}
