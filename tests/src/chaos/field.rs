//! The cluster that everything befalls: who has which broker, what the agents say, and bringing lost hosts
//! back.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::LIMIT;
use super::lookout::{Carriers, carriers};
use crate::agent::Agent;
use crate::scenario::Scenario;
use crate::{Lab, eventually};

/// The brokers of a marathon.
pub(super) const BROKERS: [i32; 3] = [1, 2, 3];

pub(super) struct Field<'a> {
    pub(super) lab: &'a Lab,
    pub(super) scenario: Scenario<'a>,
}

impl Field<'_> {
    /// All agents, standbys first.
    pub(super) fn agents(&self) -> impl Iterator<Item = &Arc<Agent>> {
        self.scenario.standbys.iter().chain(&self.scenario.at_home)
    }

    pub(super) fn agent_on(&self, host: &str) -> Result<&Arc<Agent>> {
        self.agents().find(|agent| agent.host().name() == host).with_context(|| format!("no agent on {host}"))
    }

    pub(super) fn home_of(&self, broker: i32) -> Result<String> {
        Ok(self.scenario.cluster.broker(broker)?.home_name().to_owned())
    }

    pub(super) fn carriers(&self) -> Carriers {
        carriers(&self.lab.hosts())
    }

    /// The host that runs `broker`; exactly one does.
    pub(super) fn carrier(&self, broker: i32) -> Result<String> {
        let found = self.carriers().remove(&broker).unwrap_or_default();
        ensure!(found.len() == 1, "broker {broker} runs on {found:?}");
        found
            .into_iter()
            .next()
            .map(|(host, _)| host)
            .with_context(|| format!("broker {broker} runs nowhere"))
    }

    /// No Kafka runs as `broker`.
    pub(super) fn ensure_nowhere(&self, broker: i32) -> Result<()> {
        let found = self.carriers().remove(&broker).unwrap_or_default();
        ensure!(found.is_empty(), "broker {broker} runs on {found:?}");
        Ok(())
    }

    /// The standbys that carry nothing, by rank.
    pub(super) fn free_standbys(&self) -> Vec<String> {
        let carriers = self.carriers();
        let busy = |host: &str| carriers.values().flatten().any(|(carrier, _)| carrier == host);
        let names = self.scenario.standbys.iter().map(|agent| agent.host().name().to_owned());
        names.filter(|name| !busy(name)).collect()
    }

    /// How often a host was switched off by a fence, so far.
    pub(super) fn fences(&self) -> usize {
        let requests = self.lab.switch().requests();
        requests.iter().filter(|request| request.starts_with("off ")).count()
    }

    /// Waits until an agent says of `broker` what passes `test`, which gets its part of `/v1/status`; returns
    /// whose.
    pub(super) fn any_says(
        &self,
        broker: i32,
        what: &str,
        test: impl Fn(&Value) -> bool,
    ) -> Result<&Arc<Agent>> {
        eventually(&format!("an agent to say of broker {broker}: {what}"), LIMIT, || {
            let mut said = String::new();
            for agent in self.agents().filter(|agent| agent.host().is_on()) {
                // One that is cut off, frozen or dead says nothing.
                let Ok(Some(status)) = agent.status().map(|status| part(&status, broker)) else { continue };
                if test(&status) {
                    return Ok(agent);
                }
                said += &format!("\n{}: {}", agent.host().name(), status["says"]);
            }
            Err(said)
        })
    }

    /// Waits until an agent holds for `reason`, by its label.
    pub(super) fn held(&self, broker: i32, reason: &'static str) -> Result<&Arc<Agent>> {
        self.any_says(broker, reason, |status| {
            let reasons = status["decision"]["reasons"].as_array().cloned().unwrap_or_default();
            status["decision"]["decision"] == "hold" && reasons.iter().any(|held| held["reason"] == reason)
        })
    }

    /// Waits until every broker is in every ISR and runs once, and every agent on a host with power finds all
    /// well.
    pub(super) fn settled(&self) -> Result<()> {
        let all_well = || {
            self.scenario.cluster.view()?.ensure_complete(BROKERS.len())?;
            BROKERS.iter().try_for_each(|broker| self.carrier(*broker).map(drop))?;
            self.agents().filter(|agent| agent.host().is_on()).try_for_each(|agent| content(agent))
        };
        eventually("every broker to be well and every agent content", LIMIT, || {
            all_well().inspect_err(|_| std::thread::sleep(Duration::from_millis(100)))
        })
    }

    /// Gives lost hosts their power back, sees their guards refuse what is no longer theirs, and lets them
    /// join again.
    pub(super) fn bring_back(&self) -> Result<()> {
        let lost: Vec<&Arc<Agent>> = self.agents().filter(|agent| !agent.host().is_on()).collect();
        for agent in &lost {
            agent.host().power_on()?;
        }
        for agent in self.agents().filter(|agent| !agent.running().is_ok_and(|process| process.is_running()))
        {
            agent.start()?;
        }
        for agent in lost {
            let name = agent.host().name();
            agent.wait_ready(LIMIT)?;
            // Their units start everything that this host ever had.
            for broker in BROKERS.into_iter().filter(|broker| self.serves(name, *broker)) {
                let carrier = self.carrier(broker)?;
                ensure!(carrier != name, "broker {broker} runs on {name}, which was just switched on");
                let said = agent.cli(&["guard", "--broker", &broker.to_string()])?;
                ensure!(said.code != 0, "the guard lets broker {broker} start on {name}; {carrier} has it");
            }
            eventually(&format!("{name} to join again"), LIMIT, || {
                let said = agent.cli(&["rejoin", "--yes"])?;
                ensure!(said.code == 0, "exit code {}\n{}{}", said.code, said.stdout, said.stderr);
                Ok(())
            })?;
            self.lab.note(format!("{name} is back, as a standby"));
        }
        self.settled()
    }

    /// Whether the agent on `host` may have this broker.
    fn serves(&self, host: &str, broker: i32) -> bool {
        let at_home = self.home_of(broker).is_ok_and(|home| home == host);
        at_home || self.scenario.standbys.iter().any(|agent| agent.host().name() == host)
    }
}

/// A broker's part of `/v1/status`, if the agent serves it.
fn part(status: &Value, broker: i32) -> Option<Value> {
    status["brokers"].as_array()?.iter().find(|found| found["id"] == broker).cloned()
}

/// It sees all its brokers well, and does nothing.
fn content(agent: &Agent) -> Result<()> {
    let (name, status) = (agent.host().name(), agent.status()?);
    let brokers = status["brokers"].as_array().context("no brokers in /v1/status")?;
    ensure!(!brokers.is_empty(), "the agent on {name} serves no broker");
    for broker in brokers {
        let well = broker["decision"]["decision"] == "healthy" && broker["takeover"].is_null();
        ensure!(well, "{name} says of broker {}: {}", broker["id"], broker["says"]);
    }
    Ok(())
}
