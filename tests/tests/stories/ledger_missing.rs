//! What answers in the ledger's place is not the ledger, or the agent that asks is not the host that it says
//! it is.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::agent::Agent;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::standby::{self, LEDGER};
use e2e::{Fault, Lab, Storage, eventually, story};
use toml::Table;

/// Waits until an agent's status says why it does not use the ledger.
fn distrusts(agent: &Agent, words: &str) -> Result<()> {
    eventually(&format!("an agent that says `{words}`"), PATIENCE, || {
        let status = agent.status()?;
        let why = status["blind"]["ledger"].as_str().unwrap_or_default();
        ensure!(why.contains(words), "{}", status["blind"]);
        Ok(())
    })
}

#[test]
fn an_old_home_that_boots_without_its_ledgers_mount_starts_no_kafka() {
    story("an_old_home_that_boots_without_its_ledgers_mount_starts_no_kafka", |lab| {
        let scenario = Scenario::begin(lab, &Setup { at_home: &[1], ..Setup::default() })?;
        let home = scenario.at_home.first().context("no agent at home")?;
        let broker = scenario.cluster.broker(VICTIM)?;
        scenario.start_agents()?;
        let dead = Fault::PowerOff("b1".to_owned());
        scenario.recovered_after(PATIENCE, || scenario.strike(&dead))?;
        scenario.decided("healthy", PATIENCE)?;

        dead.heal(lab)?;
        // The mount of the ledger did not come: what is left is the empty directory below it.
        home.host().unbind(LEDGER)?;
        let left = || home.host().run(&["ls", "-A", LEDGER]);
        ensure!(left()?.stdout.trim().is_empty() && left()?.code == 0, "{:?}", left()?);
        home.start()?;
        let Err(said) = broker.start_if_guard_allows(home)? else {
            anyhow::bail!("Kafka was started on the old host")
        };
        let words = format!("{}{}", said.stdout, said.stderr);
        ensure!(words.contains("holds no ledger") && words.contains("is its storage mounted?"), "{words}");
        ensure!(home.cli(&["check"])?.stdout.contains("holds no ledger"), "check does not tell");
        distrusts(home, "holds no ledger")?;
        scenario.ensure_runs_on("standby-1")?;
        scenario.flows(1000)?;
        ensure!(left()?.stdout.trim().is_empty(), "something was written: {:?}", left()?);
        scenario.verdict()?;
        Ok(())
    });
}

/// An agent on a host of its own, with a configuration that says it is another.
fn impostor(
    lab: &Lab,
    scenario: &Scenario,
    (name, address): (&str, &str),
    change: impl Fn(&mut Table),
) -> Result<Arc<Agent>> {
    let host = lab.host(name, address)?;
    standby::equip(lab, &scenario.cluster, &host, Storage::Bind)?;
    let mut config = standby::config(lab, &scenario.cluster, &host)?;
    change(&mut config);
    let agent = lab.idle_agent(&host, &config.to_string())?;
    // It never gets ready: what it reads is not its own.
    agent.start()?;
    Ok(agent)
}

#[test]
fn a_copied_name_or_home_claims_nothing_and_is_told() {
    story("a_copied_name_or_home_claims_nothing_and_is_told", |lab| {
        let scenario = Scenario::begin(lab, &Setup { at_home: &[1], ..Setup::default() })?;
        let home = scenario.at_home.first().context("no agent at home")?;
        scenario.start_agents()?;
        scenario.decided_by(home, "healthy", PATIENCE)?;
        let twin = impostor(lab, &scenario, ("twin", "10.77.0.41"), |config| {
            standby::set(config, "agent", "host", "b1");
        })?;
        let liar = impostor(lab, &scenario, ("liar", "10.77.0.42"), |config| {
            let brokers = config.get_mut("broker").and_then(|brokers| brokers.as_array_mut());
            for broker in
                brokers.into_iter().flatten().filter(|b| b["id"].as_integer() == Some(VICTIM.into()))
            {
                if let Some(broker) = broker.as_table_mut() {
                    broker.insert("home".to_owned(), "liar".into());
                }
            }
        })?;
        distrusts(&twin, "another machine has the name b1")?;
        distrusts(&liar, "home of broker 1 is liar, and b1 is registered")?;
        let guard = ["guard", "--broker", "1", "--wait", "0s"];
        // The one that has the name is the owner: what keeps a second Kafka from it is that the first one runs.
        for (agent, label) in [(&twin, "name_taken"), (&liar, "wrong_home"), (home, "kafka_runs")] {
            let said = agent.cli(&guard)?;
            ensure!(said.code == 3 && said.stderr.contains(label), "{said:?}");
        }
        ensure!(home.cli(&["check"])?.stdout.contains("another machine uses this host's name, b1"));

        // The owner loses its network: neither of the two restarts the broker in place, and the standby takes
        // it over.
        let cut = Fault::CutOff(vec!["b1".to_owned()]);
        scenario.recovered_after(PATIENCE, || scenario.strike(&cut))?;
        scenario.decided("healthy", PATIENCE)?;
        scenario.ensure_runs_on("standby-1")?;
        ensure!(scenario.epochs()?.len() == 1, "more than one claim: {:?}", scenario.epochs()?);
        ensure!(scenario.journal_of(1).contains(r#""by":"standby-1""#), "{}", scenario.journal_of(1));
        cut.heal(lab)?;
        scenario.verdict()?;
        Ok(())
    });
}
