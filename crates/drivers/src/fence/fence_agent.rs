//! `fence_agent`: any Pacemaker fence agent, by the API of the ClusterLabs fence agents.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::device::metadata::{is_fabric, is_yes};
use super::device::{Device, STEADY};
use super::options::OptionValue;
use crate::command::run_now;

/// A Pacemaker fence agent: some eighty kinds of power switches, service processors and clouds.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FenceAgentConfig {
    /// The agent's program, as an absolute path, such as `/usr/sbin/fence_ipmilan`.
    pub agent: PathBuf,
    /// How long one call of the agent may take, and how long its `status` is asked until it says `off`. More than
    /// the agent's own `power_timeout`; an `off` that takes longer is killed, and what came of it is read.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// The agent's own options, by the names its `metadata` lists. A secret is given as `{ file = "…" }`,
    /// `{ env = "…" }` or `{ credential = "…" }`.
    #[serde(default)]
    pub options: BTreeMap<String, OptionValue>,
    /// Whether the host lives on once the agent says off: it is cut off its storage or its network, and no more
    /// (`fence_scsi`, `fence_mpath`, a switch's port). By default the agent's metadata says so.
    pub leaves_running: Option<bool>,
}

pub(super) fn default_timeout() -> Duration {
    Duration::from_secs(60)
}

/// How long the agent may take to describe itself when the drivers are made.
const DESCRIBED_WITHIN: Duration = Duration::from_secs(5);

impl FenceAgentConfig {
    /// Asks the agent itself, unless it is configured, whether it leaves hosts running: for some seconds at most.
    /// One that does not describe itself in time is taken for one that does: then its word says nothing about
    /// the host's power.
    pub fn ask_itself(&mut self) {
        if self.leaves_running.is_some() {
            return;
        }
        let network = self.options.iter().find(|(name, _)| name.replace('-', "_") == "network_fencing");
        let by_network = network.is_some_and(|(_, value)| match value {
            OptionValue::Plain(text) => is_yes(text),
            _ => true,
        });
        let described = run_now(&self.agent, b"action=metadata\n", DESCRIBED_WITHIN);
        self.leaves_running = Some(by_network || described.is_none_or(|text| is_fabric(&text)));
    }

    /// The driver, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self) -> Result<Device, Vec<String>> {
        let mut problems = super::device::problems(self.timeout, &self.options);
        if !self.agent.is_absolute() {
            problems.push(format!("agent: {} is not an absolute path", self.agent.display()));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Device {
            driver: "fence_agent",
            program: self.agent,
            arguments: Vec::new(),
            options: self.options,
            timeout: self.timeout,
            is_fence_agent: true,
            leaves_running: self.leaves_running.unwrap_or_default(),
            steady: STEADY,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use recovery::ports::Fence;

    use super::*;

    #[test]
    fn the_documented_section_is_accepted() {
        let text = r#"
            agent = "/usr/sbin/fence_ipmilan"
            timeout = "7s"
            [options]
            ip = "10.20.9.11"
            password = { file = "/etc/understudy/ipmi.password" }
        "#;
        let config: FenceAgentConfig = toml::from_str(text).unwrap();
        assert_eq!(config.timeout, Duration::from_secs(7));
        assert_eq!(config.build().unwrap().name(), "fence_agent");
    }

    #[test]
    fn unknown_keys_and_bad_values_are_refused() {
        let error = toml::from_str::<FenceAgentConfig>("agent = \"/a\"\ntimout = \"1s\"");
        assert!(error.unwrap_err().to_string().contains("timout"));
        let text = "agent = \"fence_ipmilan\"\ntimeout = \"0s\"\noptions.action = \"on\"";
        let problems = toml::from_str::<FenceAgentConfig>(text).unwrap().build().err().unwrap();
        assert_eq!(problems.len(), 3, "{problems:?}");
    }

    #[test]
    fn an_agent_says_itself_whether_it_leaves_hosts_running() {
        let dir = tempfile::tempdir().unwrap();
        let agent = |automatic: u8| {
            let path = dir.path().join(format!("fence_{automatic}"));
            let text = format!("#!/bin/sh\necho '<action name=\"on\" automatic=\"{automatic}\"/>'\n");
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path.display().to_string()
        };
        let leaves = |agent: &str, more: &str| {
            let text = format!("agent = \"{agent}\"\n{more}");
            let mut config = toml::from_str::<FenceAgentConfig>(&text).unwrap();
            config.ask_itself();
            config.leaves_running.unwrap_or_default()
        };
        let (power, fabric) = (agent(0), agent(1));
        assert!(leaves(&fabric, "") && !leaves(&power, ""));
        assert!(leaves(&power, "leaves_running = true") && !leaves(&fabric, "leaves_running = false"));
        assert!(leaves(&power, "options.network-fencing = \"1\""));
        assert!(leaves("/nonexistent/fence_x", ""), "nobody knows");
    }
}
