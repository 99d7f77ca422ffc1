//! A person on the standby does it: `plan` shows, `failover` shows and does.

use std::io::ErrorKind;

use anyhow::ensure;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{SilentClient, story};

#[test]
fn a_person_fails_a_broker_over() {
    story("a_person_fails_a_broker_over", |lab| {
        let setup = Setup { mode: "observe", at_home: &[VICTIM], peers: true, ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        let silent = SilentClient::connect(scenario.cluster.broker(VICTIM)?.address())?;
        scenario.start_agents()?;
        silent.is_known_to(&scenario.agent)?;

        // The standby is ready, and says so of everything a takeover needs.
        let checked = scenario.cli(&["check"], 0)?.stdout;
        for word in ["peer b1: clients", "ledger", "fence of b1", "eth0", "java", "template", "cluster"] {
            ensure!(checked.to_lowercase().contains(word), "`check` does not mention {word}:\n{checked}");
        }

        // A healthy broker is not failed over by mistake.
        let refused = scenario.cli(&["failover", "--broker", "1", "--yes"], 3)?;
        ensure!(refused.stderr.contains("answers") || refused.stdout.contains("answers"), "{refused:?}");
        scenario.ensure_untouched()?;

        let victim = scenario.victim()?.clone();
        scenario.recovered_after(PATIENCE, || {
            victim.power_off()?;
            let plan = scenario.cli(&["plan", "--broker", "1"], 0)?;
            ensure!(plan.stdout.contains("fence b1"), "{plan:?}");
            scenario.ensure_untouched()?;
            let failover = scenario.cli(&["failover", "--broker", "1", "--yes"], 0)?;
            let said = failover.stdout + &failover.stderr;
            let at = |word: &str| said.find(word).ok_or_else(|| anyhow::anyhow!("no {word:?} in:\n{said}"));
            ensure!(
                at("takeover of broker 1: b1 -> standby-1")? < at("time-to-ISR")?,
                "the plan comes first:\n{said}"
            );
            Ok(())
        })?;
        // The daemon knew who was connected to the host that died, and the command asked it.
        let (ended_by, _) = silent.ended()?;
        ensure!(ended_by == ErrorKind::ConnectionReset, "the silent client was left to wait: {ended_by}");
        ensure!(scenario.kafkas()?.len() == 1, "Kafka outlives the command that started it");
        scenario.verdict()?;
        Ok(())
    });
}
