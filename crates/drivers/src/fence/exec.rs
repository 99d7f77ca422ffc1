//! `exec`: a program of the site's own, called as a fence agent is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::device::{Device, STEADY};
use super::options::OptionValue;

/// A program of the site's own; its contract is with the section that names it, for the reference page.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecConfig {
    /// The program, as an absolute path, and its arguments.
    pub command: Vec<String>,
    /// How long one call of the program may take, and how long its `status` is asked until it says `off`.
    #[serde(default = "super::fence_agent::default_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// Told to the program on its standard input. A secret is given as `{ file = "…" }`, `{ env = "…" }` or
    /// `{ credential = "…" }`.
    #[serde(default)]
    pub options: BTreeMap<String, OptionValue>,
    /// Whether the host lives on once the program says off: it is cut off its storage or its network, and no more.
    #[serde(default)]
    pub leaves_running: bool,
}

impl ExecConfig {
    /// The driver, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self) -> Result<Device, Vec<String>> {
        let mut problems = super::device::problems(self.timeout, &self.options);
        let mut words = self.command.into_iter();
        let program = words.next().unwrap_or_default();
        if !Path::new(&program).is_absolute() {
            problems.push(format!("command: `{program}` is not an absolute path"));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Device {
            driver: "exec",
            program: PathBuf::from(program),
            arguments: words.collect(),
            options: self.options,
            timeout: self.timeout,
            is_fence_agent: false,
            leaves_running: self.leaves_running,
            steady: STEADY,
        })
    }
}

#[cfg(test)]
mod tests {
    use recovery::ports::Fence;

    use super::*;

    #[test]
    fn the_documented_section_is_accepted() {
        let text = r#"
            command = ["/usr/local/sbin/site-fence", "--verbose"]
            options.plug = "kafka-2"
        "#;
        let config: ExecConfig = toml::from_str(text).unwrap();
        assert_eq!(config.build().unwrap().name(), "exec");
    }

    #[test]
    fn a_command_must_be_there_and_absolute() {
        for text in ["command = []", "command = [\"site-fence\"]"] {
            let problems = toml::from_str::<ExecConfig>(text).unwrap().build().err().unwrap();
            assert_eq!(problems.len(), 1, "{problems:?}");
        }
    }
}
