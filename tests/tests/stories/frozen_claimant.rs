//! The agent that has claimed a takeover stands still in the middle of it. Another standby goes on in its
//! place, and fences its host; and when it wakes up, everything it still wants to do is refused.

use anyhow::ensure;
use e2e::kafka::ClusterSpec;
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{Fault, Mode, Outlet, Storage, eventually, story};
use rustix::process::Signal;

#[test]
fn a_claimant_that_thaws_is_refused() {
    story("a_claimant_that_thaws_is_refused", |lab| {
        let scenario = Scenario::begin(
            lab,
            &Setup {
                cluster: ClusterSpec { storage: Storage::Fuse, ..ClusterSpec::default() },
                policy: &[("claim_silent_after", "9s")],
                standbys: 2,
                // The claimant's processes outlive the fence.
                fence: Outlet::Isolation,
                ..Setup::default()
            },
        )?;
        // At first only one is there to claim.
        let [claimant, other] = scenario.standbys.as_slice() else { anyhow::bail!("not two standbys") };
        for agent in [claimant, other] {
            agent.start()?;
            agent.wait_ready(PATIENCE)?;
        }
        other.running()?.signal(Signal::STOP)?;

        let plug = Outlet::Isolation.plug("b1");
        let hang = Fault::Switch { plug: plug.clone(), mode: Mode::Hang };
        let fenced = || lab.switch().count("off", &plug) > 0;
        scenario.recovered_after(PATIENCE, || {
            scenario.strike(&Fault::PowerOff("b1".to_owned()))?;
            eventually("the fence", PATIENCE, || if fenced() { Ok(()) } else { Err(scenario.journal()) })?;
            // Nothing more is to be had from the switch: the claimant stops where it is.
            scenario.strike(&hang)?;
            scenario.strike(&Fault::FreezeAgent("standby-1".to_owned()))?;
            ensure!(scenario.running_on()?.is_empty(), "it was too fast for us: {}", scenario.journal());
            hang.heal(lab)?;
            other.running()?.signal(Signal::CONT)
        })?;
        scenario.decided_by(other, "healthy", PATIENCE)?;
        scenario.ensure_runs_on("standby-2")?;
        let host = claimant.host();
        ensure!(host.has_lost_storage()? && !host.is_linked(), "the claimant's host was not fenced");

        // It wakes up, with a network, in the middle of what it was doing.
        let before = scenario.journal();
        host.heal()?;
        Fault::FreezeAgent("standby-1".to_owned()).heal(lab)?;
        scenario.decided_by(claimant, "healthy", PATIENCE)?;
        let status = scenario.status_of(claimant)?;
        ensure!(status["takeover"].is_null(), "it goes on all the same: {status}");
        ensure!(scenario.journal() == before, "it wrote to an epoch that is over: {}", scenario.journal());
        scenario.ensure_runs_on("standby-2")?;
        let addresses = host.addresses()?;
        ensure!(addresses.len() == 1, "it took the address: {addresses:?}");
        ensure!(scenario.epochs()?.len() == 2, "{:?}", scenario.epochs()?);
        scenario.cluster.wait_complete(PATIENCE)?;
        scenario.verdict()?;
        Ok(())
    });
}
