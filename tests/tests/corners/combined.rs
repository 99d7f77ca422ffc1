//! The brokers are the controllers as well: with the broker a voter dies, and it may be the active one.
//! Without eligible leader replicas, which other stories have.

use anyhow::{Context, Result, bail, ensure};
use e2e::corner::{SESSION, spec, survivor, unregistered};
use e2e::kafka::ClusterSpec;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, eventually, story};

fn setup() -> Setup {
    let cluster = ClusterSpec {
        combined: true,
        format: ["--feature", "eligible.leader.replicas.version=0"].map(str::to_owned).to_vec(),
        ..spec()
    };
    Setup { cluster, policy: &[("restart_tries", "99")], ..Setup::default() }
}

#[test]
fn the_active_controller_dies_with_the_broker() {
    story("the_active_controller_dies_with_the_broker", |lab| tell(Scenario::begin(lab, &setup())?, true));
}

#[test]
fn another_controller_dies_with_the_broker() {
    story("another_controller_dies_with_the_broker", |lab| tell(Scenario::begin(lab, &setup())?, false));
}

fn tell(scenario: Scenario<'_>, active: bool) -> Result<()> {
    lead(&scenario, active)?;
    scenario.start_agents()?;
    let victim = scenario.victim()?.clone();
    let leads = scenario.cluster.wire(0)?.active_controller()?;
    ensure!((leads == VICTIM) == active, "controller {leads} is active by now");
    let rejoin = unregistered(&scenario, || victim.power_off())?;
    ensure!(rejoin.all_in_sync < 2.0 * SESSION.as_secs_f64(), "{rejoin:?}");
    scenario.journal_says(1, &["removed the dead broker's registration", "recovered"], PATIENCE)?;
    scenario.decided("healthy", PATIENCE)?;
    scenario.lab.note("its registration is removed while it lives, which it knows of as a controller");
    survivor(&scenario)?;
    scenario.ensure_runs_on("standby-1")?;
    scenario.lab.note("its vote moved with it: the others reach its controller where they look for it");
    let voters = scenario.cluster.controller_endpoints();
    let (_, voter) = voters.first().and_then(|voter| voter.split_once('@')).context("there is no voter")?;
    let voter = voter.replace(':', "/");
    let other = scenario.cluster.broker(VICTIM + 1)?.home()?;
    let said = other.run(&["bash", "-c", &format!(": < /dev/tcp/{voter}")])?;
    ensure!(said.code == 0, "{voter}: {}", said.stderr);
    scenario.verdict().map(drop)
}

/// Has the victim be the active controller, or not: whoever is wrong is restarted, and another one is
/// elected.
fn lead(scenario: &Scenario<'_>, wanted: bool) -> Result<()> {
    for _ in 0..12 {
        scenario.cluster.wait_complete(PATIENCE)?;
        let leads = scenario.cluster.wire(0)?.active_controller()?;
        if (leads == VICTIM) == wanted {
            return Ok(());
        }
        scenario.lab.note(format!("controller {leads} is active, which is not meant"));
        let node = scenario.cluster.broker(leads)?;
        scenario.strike(&Fault::StopKafka(node.home_name().to_owned()))?;
        node.process()?.wait(PATIENCE)?;
        eventually("the other two to elect one of them", PATIENCE, || {
            let now = scenario.cluster.wire(leads)?.active_controller()?;
            ensure!(now != leads, "controller {now} is still taken for the active one");
            Ok(())
        })?;
        node.start()?;
    }
    bail!("broker {VICTIM} is not as it is wanted after a dozen elections")
}
