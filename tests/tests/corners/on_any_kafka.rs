//! Corners that do not depend on the release: told on each Kafka that is supported, so nothing here asks what
//! only a newer one tells.

use anyhow::ensure;
use e2e::corner::{Alone, SESSION, next_epoch, spec, survivor};
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{Fault, story};

#[test]
fn a_broker_is_back_before_its_session_would_have_ended() {
    story("a_broker_is_back_before_its_session_would_have_ended", |lab| {
        let setup = Setup { cluster: spec(), policy: &[("restart_tries", "99")], ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        scenario.start_agents()?;
        let alone = Alone::begin(&scenario.cluster)?;
        let victim = scenario.victim()?.clone();
        let rejoin = scenario.recovered_after(PATIENCE, || victim.power_off())?;
        alone.end()?;
        ensure!(rejoin.gone < SESSION.as_secs_f64() - 2.0, "it waited for its session: {rejoin:?}");
        scenario.journal_says(1, &["removed the dead broker's registration", "recovered"], PATIENCE)?;
        scenario.decided("healthy", PATIENCE)?;

        lab.note("it is stopped cleanly");
        let epoch = next_epoch(&scenario)?;
        scenario.recovered_after(PATIENCE, || {
            scenario.strike(&Fault::StopKafka("standby-1".to_owned()))?;
            scenario.held_by(&scenario.agent, "stopped_cleanly", PATIENCE)?;
            scenario.cli(&["failover", "--broker", "1", "--yes"], 0).map(drop)
        })?;
        scenario.journal_says(epoch, &["not used: ", "stopped cleanly", "recovered"], PATIENCE)?;
        scenario.decided("healthy", PATIENCE)?;

        lab.note("its registration is removed while it lives");
        survivor(&scenario)?;
        scenario.verdict()?;
        Ok(())
    });
}
