//! `all_of`: several devices that are one fence, such as the outlets of a host with two power supplies.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures_util::future::join_all;
use schemars::JsonSchema;
use secrets::names_a_secret;
use serde::Deserialize;

use super::device::{Device, POWER};
use super::exec::ExecConfig;
use super::fence_agent::FenceAgentConfig;
use super::options::OptionValue;
use recovery::model::{Epoch, HostName};
use recovery::ports::{Fence, Note, Proof, StepError, chain};

/// Several devices, each with the settings that it has as a fence of its own.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllOfConfig {
    /// The devices, two or more.
    pub device: Vec<DeviceConfig>,
}

/// One device of several.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(tag = "driver", rename_all = "snake_case")]
pub enum DeviceConfig {
    /// A Pacemaker fence agent.
    FenceAgent(FenceAgentConfig),
    /// A program of the site's own.
    Exec(ExecConfig),
}

/// Names of options that older fence agents have for what newer ones call otherwise.
const OLD_NAMES: [(&str, &str); 2] = [("ipaddr", "ip"), ("port", "plug")];

impl DeviceConfig {
    /// What it switches: its program with what that is told, but for secrets, logins and how long to wait.
    #[must_use]
    pub fn which(&self) -> (Vec<String>, BTreeMap<String, String>) {
        let (program, options) = match self {
            Self::FenceAgent(config) => (vec![config.agent.display().to_string()], &config.options),
            Self::Exec(config) => (config.command.clone(), &config.options),
        };
        let besides = ["timeout", "delay", "wait", "retry", "login", "user", "verbose", "debug"];
        let tells = |name: &str| !besides.iter().any(|word| name.contains(word));
        let options = options.iter().filter_map(|(name, value)| {
            let value = match value {
                OptionValue::Plain(value) => value.clone(),
                _ if names_a_secret(name) => return None,
                elsewhere => format!("{elsewhere:?}"),
            };
            let name = name.replace('-', "_");
            let name = OLD_NAMES.iter().find(|(old, _)| *old == name).map_or(&*name, |(_, new)| new);
            tells(name).then(|| (name.to_owned(), value))
        });
        (program, options.collect())
    }

    fn build(self) -> Result<Device, Vec<String>> {
        match self {
            Self::FenceAgent(config) => config.build(),
            Self::Exec(config) => config.build(),
        }
    }
}

impl AllOfConfig {
    /// The driver, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self) -> Result<AllOf, Vec<String>> {
        let mut problems = Vec::new();
        if self.device.len() < 2 {
            problems.push("device: all of one device, or none, is no fence of several; add another, or make it a fence \
                           of its own".to_owned());
        }
        problems.extend(self.twice());
        let mut devices = Vec::new();
        for (index, device) in self.device.into_iter().enumerate() {
            match device.build() {
                Ok(device) => devices.push(device),
                Err(found) => problems.extend(found.into_iter().map(|why| format!("device[{index}].{why}"))),
            }
        }
        if problems.is_empty() { Ok(AllOf { devices }) } else { Err(problems) }
    }

    /// The device that is another one's: then one of the outlets is never switched, and read twice.
    fn twice(&self) -> Option<String> {
        let which: Vec<_> = self.device.iter().map(DeviceConfig::which).collect();
        let index = (0..which.len()).find(|n| which[..*n].contains(&which[*n]))?;
        let first = which.iter().position(|device| *device == which[index])?;
        Some(format!(
            "device[{index}]: is the same device as device[{first}], so that what is behind the other outlet would never be \
             switched off: write its own address or plug"
        ))
    }

    /// Whether one of them cuts the host off and no more: the host lives on, and may answer for its address.
    #[must_use]
    pub fn leaves_running(&self) -> bool {
        self.device.iter().any(|device| match device {
            DeviceConfig::FenceAgent(config) => config.leaves_running.unwrap_or_default(),
            DeviceConfig::Exec(config) => config.leaves_running,
        })
    }

    /// Asks those that are fence agents for their metadata: for some seconds at most.
    pub fn ask_themselves(&mut self) {
        for device in &mut self.device {
            if let DeviceConfig::FenceAgent(config) = device {
                config.ask_itself();
            }
        }
    }
}

/// Devices that must all be proven.
#[derive(Debug)]
pub struct AllOf {
    devices: Vec<Device>,
}

impl AllOf {
    fn label(&self, index: usize) -> String {
        format!(
            "{} ({} of {} that must all be off)",
            self.devices[index].name(),
            index + 1,
            self.devices.len()
        )
    }

    /// What all devices said; or what those did that failed.
    fn all<T>(
        &self,
        action: &str,
        answers: Vec<Result<T, StepError>>,
        note: fn(T) -> Note,
    ) -> Result<Note, StepError> {
        let (mut all, mut failed) = (Note::default(), Vec::new());
        for (index, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(answer) => {
                    let mut said = note(answer);
                    let details = std::mem::take(&mut said.details).into_iter();
                    said.details =
                        details.map(|(name, value)| (format!("{name}_{}", index + 1), value)).collect();
                    all = all.and(said);
                }
                Err(error) => failed.push(format!("{}: {}", self.label(index), chain(&error))),
            }
        }
        if failed.is_empty() {
            return Ok(all);
        }
        let why = format!("{}. The others alone are no fence", failed.join("; "));
        Err(StepError::Refused { driver: "all_of", action: action.to_owned(), why })
    }
}

#[async_trait]
impl Fence for AllOf {
    fn name(&self) -> &'static str {
        "all_of"
    }

    async fn fence(&self, host: &HostName, epoch: Epoch) -> Result<Note, StepError> {
        let answers = join_all(self.devices.iter().map(|device| device.fence(host, epoch))).await;
        self.all(&format!("turn {host} off"), answers, |note| note)
    }

    async fn prove(&self, host: &HostName, epoch: Epoch) -> Result<Proof, StepError> {
        let answers = join_all(self.devices.iter().map(|device| device.prove(host, epoch))).await;
        let note = self.all(&format!("prove that {host} is off"), answers, |proof| proof.note)?;
        Ok(Proof { host: host.clone(), by: self.name().to_owned(), note })
    }

    async fn lift(&self, host: &HostName) -> Result<Note, StepError> {
        let answers = join_all(self.devices.iter().map(|device| device.lift(host))).await;
        self.all(&format!("turn {host} on"), answers, |note| note)
    }

    async fn check(&self, host: &HostName) -> Result<Note, StepError> {
        let answers = join_all(self.devices.iter().map(|device| device.check(host))).await;
        let off = |note: &Note| note.details.get(POWER).is_some_and(|power| power == "off");
        let n_off = answers.iter().filter(|answer| answer.as_ref().is_ok_and(off)).count();
        let (all, action) = (answers.len(), format!("ask for the power state of {host}"));
        let note = self.all(&action, answers, |note| note)?;
        if n_off > 0 && n_off < all {
            let why = format!("{n_off} of {all} devices say off, the others on: {}", note.text);
            return Err(StepError::Refused { driver: "all_of", action, why });
        }
        Ok(note.with(POWER, if n_off == all { "off" } else { "on" }))
    }

    async fn has_power(&self, host: &HostName) -> Option<bool> {
        let read = join_all(self.devices.iter().map(|device| device.has_power(host))).await;
        match read.contains(&Some(true)) {
            true => Some(true),
            false => read.iter().all(|power| *power == Some(false)).then_some(false),
        }
    }

    fn leaves_running(&self) -> bool {
        self.devices.iter().any(Device::leaves_running)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Two outlets of one host, whose states are files.
    fn outlets(dir: &Path, second: &str) -> AllOf {
        let device = |outlet: &str, script: &str| {
            format!(
                "[[device]]\ndriver = \"exec\"\ntimeout = \"2s\"\ncommand = [\"/bin/sh\", \"-c\", '''\n\
                 cd {}; a=$(sed -n s/^action=//p); {script}\ncase $a in off) touch {outlet}; exit 0;; status) \
                 [ -e {outlet} ] && {{ echo off; exit 2; }}; echo on; exit 0;; esac; exit 1''']\n",
                dir.display()
            )
        };
        let text = format!("{}{}", device("a", ""), device("b", second));
        toml::from_str::<AllOfConfig>(&text).unwrap().build().unwrap()
    }

    #[test]
    fn a_device_that_is_there_twice_is_refused() {
        let device = |more: &str| {
            format!("[[device]]\ndriver = \"fence_agent\"\nagent = \"/usr/sbin/fence_apc\"\n{more}\n")
        };
        let first = device("options = { ip = \"10.9.9.1\", plug = \"1\", password = { env = \"A\" } }");
        let built = |second: &str| {
            let text = format!("{first}{}", device(second));
            toml::from_str::<AllOfConfig>(&text).unwrap().build().map(drop)
        };
        for same in [
            "options = { ip = \"10.9.9.1\", plug = \"1\", password = { env = \"B\" } }",
            "options = { ip = \"10.9.9.1\", ipaddr = \"10.9.9.1\", port = \"1\", login = \"admin\" }",
            "timeout = \"9s\"\noptions = { ip = \"10.9.9.1\", plug = \"1\", power_timeout = \"9\" }",
        ] {
            let problems = built(same).unwrap_err();
            assert!(problems[0].starts_with("device[1]: is the same device as device[0]"), "{problems:?}");
        }
        assert_eq!(built("options = { ip = \"10.9.9.2\", plug = \"1\" }"), Ok(()));
        assert_eq!(built("options = { ip = \"10.9.9.1\", plug = \"2\" }"), Ok(()));
    }

    fn host() -> HostName {
        HostName::from("kafka-1")
    }

    #[tokio::test]
    async fn every_outlet_is_switched_off_and_proven() {
        let dir = tempfile::tempdir().unwrap();
        let fence = outlets(dir.path(), "");
        assert!(fence.prove(&host(), Epoch(1)).await.is_err(), "both are on");
        fence.fence(&host(), Epoch(1)).await.unwrap();
        assert!(dir.path().join("a").exists() && dir.path().join("b").exists());
        let proof = fence.prove(&host(), Epoch(1)).await.unwrap();
        assert_eq!(proof.by, "all_of");
    }

    #[tokio::test]
    async fn one_outlet_of_two_is_no_proof() {
        let dir = tempfile::tempdir().unwrap();
        let fence = outlets(dir.path(), "[ $a = off ] && exit 1");
        let error = fence.fence(&host(), Epoch(1)).await.unwrap_err().to_string();
        assert!(error.contains("2 of 2 that must all be off"), "{error}");
        let error = fence.prove(&host(), Epoch(1)).await.unwrap_err().to_string();
        assert!(error.contains("still on") && error.contains("no fence"), "{error}");
        let error = fence.check(&host()).await.unwrap_err().to_string();
        assert!(error.contains("1 of 2 devices say off"), "{error}");
    }

    #[test]
    fn one_device_is_not_several_and_each_is_checked() {
        let build = |text: &str| toml::from_str::<AllOfConfig>(text).unwrap().build().unwrap_err();
        assert_eq!(build("[[device]]\ndriver = \"exec\"\ncommand = [\"/a\"]").len(), 1);
        let two = "[[device]]\ndriver = \"exec\"\ncommand = [\"a\"]\n[[device]]\ndriver = \"exec\"\ncommand = [\"/b\"]";
        let problems = build(two);
        assert!(problems[0].starts_with("device[0].command: "), "{problems:?}");
    }
}
