//! `fence_agent`: any Pacemaker fence agent, by the API of the ClusterLabs fence agents.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::device::Device;
use super::options::OptionValue;

/// A Pacemaker fence agent: some eighty kinds of power switches, service processors and clouds.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FenceAgentConfig {
    /// The agent's program, as an absolute path, such as `/usr/sbin/fence_ipmilan`.
    pub agent: PathBuf,
    /// How long one call of the agent may take, and how long its `status` is asked until it says `off`.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// The agent's own options, by the names its `metadata` lists. A secret is given as `{ file = "…" }` or
    /// `{ env = "…" }`.
    #[serde(default)]
    pub options: BTreeMap<String, OptionValue>,
}

pub(super) fn default_timeout() -> Duration {
    Duration::from_secs(20)
}

impl FenceAgentConfig {
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
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::FenceConfig;
    use super::*;

    #[test]
    fn the_documented_section_is_accepted() {
        let text = r#"
            driver = "fence_agent"
            agent = "/usr/sbin/fence_ipmilan"
            timeout = "7s"
            [options]
            ip = "10.20.9.11"
            password = { file = "/etc/understudy/ipmi.password" }
        "#;
        let config: FenceConfig = toml::from_str(text).unwrap();
        assert!(matches!(&config, FenceConfig::FenceAgent(c) if c.timeout == Duration::from_secs(7)));
        assert_eq!(config.build().unwrap().name(), "fence_agent");
    }

    #[test]
    fn unknown_keys_and_bad_values_are_refused() {
        let error =
            toml::from_str::<FenceConfig>("driver = \"fence_agent\"\nagent = \"/a\"\ntimout = \"1s\"");
        assert!(error.unwrap_err().to_string().contains("timout"));
        let text =
            "driver = \"fence_agent\"\nagent = \"fence_ipmilan\"\ntimeout = \"0s\"\noptions.action = \"on\"";
        let problems = toml::from_str::<FenceConfig>(text).unwrap().build().err().unwrap();
        assert_eq!(problems.len(), 3, "{problems:?}");
    }
}
