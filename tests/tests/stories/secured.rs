//! A cluster with TLS, logins and rights: `SASL_SSL` with SCRAM for clients and the agent, certificates of both
//! sides between the nodes, `StandardAuthorizer`, and no super user but the nodes. Its agent does what it does
//! elsewhere; and where it is not let in, it holds.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use drivers::ledger::LedgerConfig;
use e2e::kafka::{AGENT_PASSWORD, ClusterSpec, Security, Signer, Standing};
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, eventually, story};
use recovery::model::BrokerId;
use recovery::ports::chain;

/// How long a login is good for, in milliseconds: a connection that is older has to log in anew.
const LOGIN_MS: &str = "3000";

#[test]
fn secured_cluster() {
    story("secured_cluster", |lab| {
        let scenario = Scenario::begin(lab, &setup(Security::SaslSsl, &[]))?;
        scenario.start_agents()?;
        scenario.flows(1000)?;
        is_taken_over(&scenario)?;
        scenario.verdict().map(drop)
    });
}

#[test]
fn wrong_password() {
    story("wrong_password", |lab| {
        let scenario = Scenario::begin(lab, &setup(Security::SaslSsl, &[]))?;
        let secured = scenario.cluster.secured()?;
        secured.password_of_agent("of-somebody-else")?;
        scenario.agent.start()?;
        says(&scenario, &["no login at", "Authentication failed", "agent.password"])?;
        scenario.cli(&["check"], 1)?;

        // What it cannot see it does not judge, nor what dies meanwhile.
        scenario.strike(&Fault::PowerOff("b1".to_owned()))?;
        let gone = scenario.cluster.watch(VICTIM);
        gone.wait("to be gone", PATIENCE, |standing| !standing.listed)?;
        says(&scenario, &["no login at"])?;
        // Several times what it would wait before it acts.
        std::thread::sleep(Duration::from_secs(10));
        says(&scenario, &["no login at"])?;
        scenario.ensure_untouched()?;
        scenario.held_by(&scenario.agent, "metadata_blind", PATIENCE)?;

        // With the right one it sees, and cannot know how the broker went: that it leaves to a person.
        secured.password_of_agent(AGENT_PASSWORD)?;
        scenario.held_by(&scenario.agent, "never_listed", PATIENCE)?;
        scenario.ensure_untouched()?;
        scenario.cli(&["failover", "--broker", "1", "--yes"], 0)?;
        gone.wait("to be back", PATIENCE, Standing::is_complete)?;
        scenario.ensure_runs_on("standby-1")?;
        scenario.verdict().map(drop)
    });
}

#[test]
fn certificate_rotates() {
    story("certificate_rotates", |lab| {
        let scenario = Scenario::begin(lab, &setup(Security::MutualSaslSsl, &[]))?;
        let (cluster, secured) = (&scenario.cluster, scenario.cluster.secured()?);
        scenario.start_agents()?;
        scenario.flows(1000)?;

        // The brokers change before the agent is told: it does not trust them, and holds.
        cluster.brokers().iter().try_for_each(|node| secured.show_node(node, Signer::Second))?;
        cluster.read_stores_anew()?;
        says(&scenario, &["no authority in", "agent-ca.pem"])?;
        scenario.ensure_untouched()?;
        secured.trust_by_agent(&[Signer::First, Signer::Second])?;
        sees_again(&scenario)?;

        // Its own certificate is taken no more, and then it has another.
        secured.trust_by_nodes(&[Signer::Second])?;
        cluster.read_stores_anew()?;
        says(&scenario, &["refused our certificate", "agent.pem"])?;
        scenario.ensure_untouched()?;
        secured.show_agent(Signer::Second)?;
        sees_again(&scenario)?;

        scenario.flows(1000)?;
        is_taken_over(&scenario)?;
        scenario.verdict().map(drop)
    });
}

#[test]
fn password_rotates() {
    story("password_rotates", |lab| {
        let scenario =
            Scenario::begin(lab, &setup(Security::SaslSsl, &[("connections.max.reauth.ms", LOGIN_MS)]))?;
        let (cluster, secured) = (&scenario.cluster, scenario.cluster.secured()?);
        scenario.start_agents()?;
        scenario.flows(1000)?;

        cluster.change_password_of_agent("gw7-the-next-one")?;
        says(&scenario, &["no login at", "agent.password"])?;
        scenario.ensure_untouched()?;
        secured.password_of_agent("gw7-the-next-one")?;
        sees_again(&scenario)?;

        scenario.flows(1000)?;
        is_taken_over(&scenario)?;
        scenario.verdict().map(drop)
    });
}

#[test]
fn tokens_of_a_provider() {
    story("tokens_of_a_provider", |lab| {
        let scenario = Scenario::begin(lab, &setup(Security::Tokens, &[]))?;
        let provider = scenario.cluster.secured()?.provider()?;
        scenario.start_agents()?;
        scenario.cli(&["check"], 0)?;
        scenario.flows(1000)?;
        // Brokers end a connection with its token, and the agent has another one by then.
        let given = provider.given();
        eventually("three more tokens", PATIENCE, || {
            let blind = &scenario.agent.status()?["blind"];
            ensure!(blind.as_object().is_some_and(serde_json::Map::is_empty), "{blind}");
            ensure!(provider.given() >= given + 3, "{} were given", provider.given());
            Ok(())
        })?;

        // Without one it is blind, and acts on nothing.
        provider.freeze()?;
        says(&scenario, &["sasl.token_endpoint"])?;
        scenario.ensure_untouched()?;
        provider.thaw()?;
        sees_again(&scenario)?;

        scenario.flows(1000)?;
        is_taken_over(&scenario)?;
        scenario.verdict().map(drop)
    });
}

#[test]
fn missing_rights_are_told_as_the_commands_that_give_them() {
    story("missing_rights_are_told_as_the_commands_that_give_them", |lab| {
        let without = Setup { rights: false, ..setup(Security::SaslSsl, &[]) };
        let scenario = Scenario::begin(lab, &without)?;
        let said = scenario.cli(&["check"], 1)?.stdout;
        let told = said.lines().filter_map(|line| line.trim().strip_prefix("do: kafka-acls "));
        // To controllers the agent is who its certificate says.
        let told = told.map(|line| line.replace("NAME OF ITS CERTIFICATE", "understudy").replace('\'', ""));
        let commands: BTreeSet<String> = told.collect();
        ensure!(commands.len() >= 5, "{said}");
        for command in &commands {
            let words: Vec<&str> = command.split_whitespace().skip_while(|word| *word != "--add").collect();
            scenario.cluster.tool("org.apache.kafka.tools.AclCommand", &words)?;
        }
        let said = scenario.cli(&["check"], 0)?.stdout;
        ensure!(!said.contains("missing, for") && !said.contains("not known"), "{said}");
        // That was all.
        scenario.start_agents()?;
        is_taken_over(&scenario)?;
        scenario.verdict().map(drop)
    });
}

/// The very words of a broker that refuses the login of a ledger's client, and of one that is not trusted.
#[test]
fn a_ledger_that_is_not_let_in_says_why() {
    story("a_ledger_that_is_not_let_in_says_why", |lab| {
        let cluster = lab.kafka(setup(Security::SaslSsl, &[]).cluster)?;
        let secured = cluster.secured()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let nodes: Vec<_> = cluster.brokers().iter().map(|node| node.address().to_string()).collect();
        let config = serde_json::json!({
            "driver": "kafka",
            "bootstrap": nodes,
            "topic": "_understudy_ledger",
            "timeout": "6s",
            "security": serde_json::to_value(secured.login_of_agent())?,
        });
        let config: LedgerConfig = serde_json::from_value(config)?;
        let ledger = config.open().map_err(|problems| anyhow!("{problems:?}"))?;
        let says = || -> Result<String> {
            let error =
                runtime.block_on(ledger.latest(BrokerId(VICTIM))).err().context("it read a ledger")?;
            Ok(chain(&error))
        };
        ensure!(says()?.contains("there is no such topic"), "it is let in: {}", says()?);

        secured.password_of_agent("of-somebody-else")?;
        let said = says()?;
        for word in ["sasl_ssl://", "Authentication failed", "SCRAM", "correct the user or the password"] {
            ensure!(said.contains(word), "{word} is not said: {said}");
        }
        ensure!(!said.contains("of-somebody-else"), "{said}");

        secured.password_of_agent(AGENT_PASSWORD)?;
        secured.trust_by_agent(&[Signer::Second])?;
        let said = says()?;
        for word in ["sasl_ssl://", "certificate verify failed", "correct the certificates"] {
            ensure!(said.contains(word), "{word} is not said: {said}");
        }
        secured.trust_by_agent(&[Signer::First])?;
        ensure!(says()?.contains("there is no such topic"), "it is let in again: {}", says()?);
        Ok(())
    });
}

fn setup(security: Security, properties: &[(&str, &str)]) -> Setup {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let properties = properties.iter().map(owned).collect();
    Setup { cluster: ClusterSpec { security, properties, ..ClusterSpec::default() }, ..Setup::default() }
}

/// Its host dies, and it is back on the standby, once.
fn is_taken_over(scenario: &Scenario<'_>) -> Result<()> {
    scenario.recovered_after(PATIENCE, || scenario.strike(&Fault::PowerOff("b1".to_owned())))?;
    scenario.decided("healthy", PATIENCE)?;
    scenario.ensure_runs_on("standby-1")?;
    ensure!(scenario.epochs()?.len() == 1, "one fault, one takeover: {:?}", scenario.epochs()?);
    Ok(())
}

/// Waits until every signal of the agent sees.
fn sees_again(scenario: &Scenario<'_>) -> Result<()> {
    eventually("every signal to see", PATIENCE, || {
        let (_, metrics) = scenario.agent.get("/metrics")?;
        let signals = metrics.lines().filter(|line| line.starts_with("understudy_signal_blind{"));
        let blind: Vec<&str> = signals.clone().filter(|line| !line.ends_with(" 0")).collect();
        ensure!(signals.count() > 0 && blind.is_empty(), "{blind:?}");
        Ok(())
    })
}

/// Waits until the agent's signals say all of `words`.
fn says(scenario: &Scenario<'_>, words: &[&str]) -> Result<()> {
    eventually(&format!("the agent to say {words:?}"), PATIENCE, || {
        let blind = scenario.agent.status()?["blind"].to_string();
        ensure!(words.iter().all(|word| blind.contains(word)), "{blind}");
        Ok(())
    })
    .context("the agent does not tell")
}
