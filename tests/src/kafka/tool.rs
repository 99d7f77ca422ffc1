//! Kafka's own command line tools, as an administrator runs them.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::secured::AGENT;
use super::{Cluster, Jvm, Kafka};
use crate::eventually;

impl Cluster {
    /// Runs one of Kafka's tools to its end, by the class that it is; of a secured cluster it is an
    /// administrator. Returns what it said.
    ///
    /// # Errors
    /// When it fails; with what it said.
    pub fn tool(&self, main: &str, arguments: &[&str]) -> Result<String> {
        let (bootstrap, login) = match self.secured() {
            Ok(secured) => (self.between(), Some(secured.tool_properties())),
            Err(_) => (self.bootstrap(), None),
        };
        let mut all = vec!["--bootstrap-server", bootstrap.as_str()];
        all.extend(login.iter().flat_map(|file| ["--command-config", file.as_str()]));
        all.extend(arguments);
        let log4j = self.artifacts().join("conf/log4j2.properties");
        let command = Kafka::home()?.command(&Jvm::quick("128m"), &log4j, main, &all);
        let (program, arguments) = command.split_first().context("an empty command")?;
        let output = Command::new(program).args(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{main}: {said}\n{}", String::from_utf8_lossy(&output.stderr));
        Ok(said)
    }

    /// Has each partition of a topic on these brokers, and waits until it is on no other.
    ///
    /// # Errors
    /// When Kafka's tool fails, or two minutes have passed.
    pub fn reassign(&self, topic: &str, partitions: i32, replicas: &[i32]) -> Result<()> {
        let wanted =
            |partition| serde_json::json!({ "topic": topic, "partition": partition, "replicas": replicas });
        let partitions: Vec<_> = (0..partitions).map(wanted).collect();
        let plan = self.artifacts().join("conf/reassignment.json");
        fs::write(&plan, serde_json::json!({ "version": 1, "partitions": partitions }).to_string())?;
        let plan = plan.display().to_string();
        let main = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand";
        self.tool(main, &["--reassignment-json-file", &plan, "--execute"])?;
        eventually(&format!("{topic} to be on {replicas:?}"), Duration::from_secs(120), || {
            let view = self.view()?;
            for partition in view.partitions.iter().filter(|partition| partition.topic == topic) {
                let (mut assigned, mut isr) = (partition.replicas.clone(), partition.isr.clone());
                assigned.sort_unstable();
                isr.sort_unstable();
                ensure!(assigned == replicas && isr == replicas, "{partition:?}");
            }
            Ok(())
        })
    }

    /// Changes the agent's password, to Kafka.
    ///
    /// # Errors
    /// When Kafka's tool fails.
    pub fn change_password_of_agent(&self, password: &str) -> Result<()> {
        let config = format!("SCRAM-SHA-512=[password={password}]");
        let of_agent = ["--alter", "--entity-type", "users", "--entity-name", AGENT, "--add-config", &config];
        self.tool("kafka.admin.ConfigCommand", &of_agent).map(drop)
    }
}
