//! A fence device: a program that is told what to do in `key=value` lines and answers by its exit code.
//!
//! The API is that of the ClusterLabs fence agents (`FenceAgentAPI.md`): `off` exits with 0 when the host is
//! off; `status` exits with 0 for on, 2 for off and 1 when the device cannot be asked, and says so in a word.
//! A site's own program must say `on`, too: there are programs that exit with 0 whatever they are told.

pub(super) mod metadata;
mod power;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;

use self::power::{Power, Why};
use super::options::{Input, OptionValue};
use crate::command::{CommandError, ending, last_words, run};
use recovery::model::{Epoch, HostName, human};
use recovery::ports::{Fence, Note, Proof, StepError};

/// The detail of a [`Fence::check`] that says what was read, `on` or `off`.
pub const POWER: &str = "power";

/// How long `status` must read off, reading after reading, of a host that nobody could turn off. A host that is being
/// reset reads off for less: firmware holds a reset for a few seconds, and fence agents' `reboot` for some more.
pub(super) const STEADY: Duration = Duration::from_secs(10);

/// The options by which fence agents are told what a device calls the host.
const NAMING: [&str; 5] = ["plug", "port", "nodename", "uuid", "name"];

/// The options of fence agents that make `off` take longer, one after the other.
const WAITING: [&str; 3] = ["delay", "power_wait", "power_timeout"];

/// How long a reading may take that only looks for a contradiction.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Between two readings of `status`. A host takes a while to lose its power; every call costs a login.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A fence device, made by [`super::FenceAgentConfig`] or [`super::ExecConfig`].
#[derive(Debug)]
pub struct Device {
    pub(super) driver: &'static str,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) options: BTreeMap<String, OptionValue>,
    pub(super) timeout: Duration,
    /// A fence agent describes itself by `metadata`; a site's own program is told host and epoch instead,
    /// which a fence agent would not know.
    pub(super) is_fence_agent: bool,
    /// It cuts the host off its storage or its network, and the host lives on.
    pub(super) leaves_running: bool,
    /// [`STEADY`], but for tests.
    pub(super) steady: Duration,
}

/// What is wrong with the settings that all devices share, as `key: what is wrong`.
pub(super) fn problems(timeout: Duration, options: &BTreeMap<String, OptionValue>) -> Vec<String> {
    let mut problems = super::options::problems(options);
    if timeout.is_zero() {
        problems.push("timeout: must be longer than zero".to_owned());
    }
    problems
}

/// The answer to one call, without secrets.
struct Answer {
    code: Option<i32>,
    ending: String,
    stdout: String,
    stderr: String,
    at: Timestamp,
    took: Duration,
}

impl Answer {
    /// `exit code 1: connection refused`.
    fn words(&self) -> String {
        match last_words(&format!("{}\n{}", self.stdout, self.stderr)) {
            said if said.is_empty() => self.ending.clone(),
            said => format!("{}: {said}", self.ending),
        }
    }

    fn note(&self, text: String, device: &Device, action: &str) -> Note {
        Note::new(text)
            .with("device", device.program.display())
            .with("action", action)
            .with("ending", &self.ending)
            .with("stdout", last_words(&self.stdout))
            .with("stderr", last_words(&self.stderr))
            .with("at", self.at)
            .with("took", human(self.took))
    }
}

impl Device {
    /// Calls the program once. `purpose` completes "could not …" for people.
    async fn call(
        &self,
        action: &str,
        host: &HostName,
        epoch: Option<Epoch>,
        limit: Duration,
        purpose: &str,
    ) -> Result<Answer, StepError> {
        let input = Input::of(action, &self.options, &self.further(host, epoch), &self.arguments)
            .await
            .map_err(|error| self.failed(purpose, error))?;
        let at = Timestamp::now();
        match run(&self.program, &self.arguments, input.bytes(), limit).await {
            Ok(ended) => Ok(Answer {
                code: ended.status.code(),
                ending: ending(ended.status),
                stdout: input.redact(&ended.stdout),
                stderr: input.redact(&ended.stderr),
                at,
                took: ended.took,
            }),
            Err(CommandError::TimedOut { program, limit, said }) => {
                let said = match last_words(&input.redact(&said)) {
                    said if said.is_empty() => "it said nothing".to_owned(),
                    said => format!("its last words: {said}"),
                };
                let action = format!("{purpose} ({program} action={action} hung and was killed; {said})");
                Err(StepError::Unconfirmed { driver: self.driver, action, limit })
            }
            Err(error @ CommandError::NotStarted { .. }) => Err(self.failed(purpose, error)),
        }
    }

    fn further(&self, host: &HostName, epoch: Option<Epoch>) -> Vec<(&'static str, String)> {
        if self.is_fence_agent {
            return Vec::new();
        }
        let epoch = epoch.map(|epoch| ("understudy_epoch", epoch.to_string()));
        [("understudy_host", host.to_string())].into_iter().chain(epoch).collect()
    }

    /// What `status` says, where `host` may be called by its name or by its plug.
    fn power(&self, host: &HostName, answer: &Answer) -> Power {
        let plain = self.options.iter().filter_map(|(key, value)| match value {
            OptionValue::Plain(text) if NAMING.contains(&key.as_str()) => Some(text.as_str()),
            _ => None,
        });
        let names: Vec<&str> = plain.chain([host.0.as_str()]).collect();
        power::read(answer.code, &answer.stdout, &names, !self.is_fence_agent)
    }

    /// Waits up to `patience` for `status` to read off, and sees that it does so reading after reading, for long enough
    /// that the host is in no reset. `Err`: what it says instead.
    async fn is_steadily_off(
        &self,
        host: &HostName,
        epoch: Epoch,
        patience: Duration,
    ) -> Result<String, String> {
        let purpose = format!("see whether {host} is off already");
        let begun = Instant::now();
        let mut off: Option<Instant> = None;
        let mut asked = 0;
        loop {
            let status = self.call("status", host, Some(epoch), self.timeout, &purpose).await;
            let status = status.map_err(|error| recovery::ports::chain(&error))?;
            match (self.power(host, &status) == Power::Off, off) {
                (true, Some(since)) if since.elapsed() >= self.steady => {
                    return Ok(format!("it read off {} times in {}", asked + 1, human(self.steady)));
                }
                (true, since) => {
                    (off, asked) = (since.or_else(|| Some(Instant::now())), asked + 1);
                }
                (false, None) if begun.elapsed() < patience => {}
                (false, _) => return Err(format!("its status: {}", status.words())),
            }
            tokio::time::sleep(5 * POLL_INTERVAL).await;
        }
    }

    /// What `off` did to a host, in a few words.
    fn off(&self) -> &'static str {
        if self.leaves_running { "cut off" } else { "off" }
    }

    fn failed(&self, purpose: &str, error: impl std::error::Error + Send + Sync + 'static) -> StepError {
        StepError::Failed { driver: self.driver, action: purpose.to_owned(), source: Box::new(error) }
    }

    fn refused(&self, purpose: &str, why: String) -> StepError {
        StepError::Refused { driver: self.driver, action: purpose.to_owned(), why }
    }

    /// Why `host` counts as not fenced, and what to do.
    fn no_proof(&self, host: &HostName, last: &Answer, asked: usize, lasting: Duration) -> StepError {
        let (program, words) = (self.program.display(), last.words());
        let state = match self.power(host, last) {
            Power::On => "says that it is still on",
            Power::Off => "says that it is off",
            Power::Unknown(why) => why.remedy(),
        };
        let why = format!(
            "{program} action=status: {state} ({words}; asked {asked} times in {}). Missing: a status of off, \
             with that word and exit code 2. Look at the device, turn {host} off by hand, and try again when status \
             says off",
            human(lasting)
        );
        self.refused(&format!("prove that {host} is off"), why)
    }
}

#[async_trait]
impl Fence for Device {
    fn name(&self) -> &str {
        self.driver
    }

    async fn fence(&self, host: &HostName, epoch: Epoch) -> Result<Note, StepError> {
        let purpose = format!("turn {host} off");
        let program = self.program.display();
        let answer = match self.call("off", host, Some(epoch), self.timeout, &purpose).await {
            Ok(answer) => answer,
            // The order may have been given, and may yet be carried out.
            Err(error @ StepError::Unconfirmed { .. }) => {
                let steadily = self.is_steadily_off(host, epoch, self.timeout).await.map_err(|_| error)?;
                let text = format!("{program} was told to turn {host} off and did not return; {steadily}");
                return Ok(Note::new(text));
            }
            Err(error) => return Err(error),
        };
        let text = match answer.code {
            // Published agents give no order where they read off: somebody else may be resetting the host.
            Some(0) if answer.stdout.to_ascii_lowercase().contains("already off") => {
                let steadily = self.is_steadily_off(host, epoch, Duration::ZERO).await;
                let steadily = steadily.map_err(|status| self.refused(&purpose, status))?;
                format!("{program} found {host} off already; {steadily}")
            }
            Some(0) => format!("{program} turned {host} off in {}", human(answer.took)),
            // As a service processor answers for a host that has lost its power already.
            _ => {
                let said = answer.words();
                let why = |status| {
                    let look = "Look at the device and its options";
                    self.refused(
                        &purpose,
                        format!("{program} action=off ended with {said}; {status}. {look}"),
                    )
                };
                let steadily = self.is_steadily_off(host, epoch, Duration::ZERO).await.map_err(why)?;
                format!("{program} refused to turn {host} off ({said}); {steadily}")
            }
        };
        Ok(answer.note(text, self, "off"))
    }

    async fn prove(&self, host: &HostName, epoch: Epoch) -> Result<Proof, StepError> {
        let purpose = format!("prove that {host} is off");
        let begun = Instant::now();
        let mut last: Option<Answer> = None;
        let mut asked = 0;
        loop {
            asked += 1;
            let left = self.timeout.saturating_sub(begun.elapsed());
            let answer = match (self.call("status", host, Some(epoch), left, &purpose).await, last) {
                (Ok(answer), _) => answer,
                // Cut short by the deadline of all readings, so the one before it is what is known.
                (Err(StepError::Unconfirmed { .. }), Some(last)) => {
                    return Err(self.no_proof(host, &last, asked, begun.elapsed()));
                }
                (Err(error), _) => return Err(error),
            };
            if self.power(host, &answer) == Power::Off {
                let text =
                    format!("{} action=status reads that {host} is {}", self.program.display(), self.off());
                let note = answer.note(text, self, "status").with("asked", asked);
                return Ok(Proof { host: host.clone(), by: self.driver.to_owned(), note });
            }
            if begun.elapsed() + POLL_INTERVAL >= self.timeout {
                return Err(self.no_proof(host, &answer, asked, begun.elapsed()));
            }
            last = Some(answer);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn lift(&self, host: &HostName) -> Result<Note, StepError> {
        let purpose = format!("turn {host} on");
        let program = self.program.display();
        let answer = self.call("on", host, None, self.timeout, &purpose).await?;
        if answer.code != Some(0) {
            let why = format!("{program} action=on ended with {}", answer.words());
            return Err(self.refused(&purpose, why));
        }
        let begun = Instant::now();
        loop {
            let status = self.call("status", host, None, self.timeout, &purpose).await?;
            if self.power(host, &status) == Power::On {
                let text = format!("{program} action=status reads that {host} is on");
                return Ok(status.note(text, self, "on"));
            }
            if begun.elapsed() + POLL_INTERVAL >= self.timeout {
                let why = format!("{program} action=status still says off, or nothing ({})", status.words());
                return Err(self.refused(&purpose, why));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn check(&self, host: &HostName) -> Result<Note, StepError> {
        let purpose = format!("ask for the power state of {host}");
        let status = self.call("status", host, None, self.timeout, &purpose);
        let (status, fit) = tokio::join!(status, self.check_metadata(host));
        let status = status?;
        fit?;
        let program = self.program.display();
        match self.power(host, &status) {
            Power::On => {
                let note = status.note(format!("{program} reads that {host} is on"), self, "status");
                Ok(if self.leaves_running { note } else { note.with(POWER, "on") })
            }
            Power::Off => {
                let text = format!("{program} reads that {host} is {} now", self.off());
                let note = status.note(text, self, "status");
                Ok(if self.leaves_running { note } else { note.with(POWER, "off") })
            }
            Power::Unknown(why) => {
                let why = format!(
                    "{program} action=status ended with {}: {}. Look at the device and its options",
                    status.words(),
                    why.remedy()
                );
                Err(self.refused(&purpose, why))
            }
        }
    }

    async fn has_power(&self, host: &HostName) -> Option<bool> {
        if self.leaves_running {
            return None;
        }
        let status = self.call("status", host, None, READ_WITHIN, "read the power state").await.ok()?;
        match self.power(host, &status) {
            Power::On => Some(true),
            Power::Off => Some(false),
            // It may mean on, and this look is for what speaks against another fence's proof.
            Power::Unknown(Why::Silent) => Some(true),
            Power::Unknown(Why::Usage) if status.code == Some(0) => Some(true),
            Power::Unknown(_) => None,
        }
    }

    fn leaves_running(&self) -> bool {
        self.leaves_running
    }
}

impl Device {
    /// A fence agent must be able to turn a host off, and must not call off what it does not know.
    async fn check_metadata(&self, host: &HostName) -> Result<(), StepError> {
        if !self.is_fence_agent {
            return Ok(());
        }
        let purpose = "see what the fence agent says of itself";
        let answer = self.call("metadata", host, None, self.timeout, purpose).await?;
        let program = self.program.display();
        let refuse = |why: String| Err(self.refused(purpose, why));
        if answer.code != Some(0) || !metadata::lists_off(&answer.stdout) {
            let ending = &answer.ending;
            return refuse(format!(
                "{program} action=metadata ({ending}) does not list the action `off`; choose an agent that has it"
            ));
        }
        if metadata::is_fabric(&answer.stdout) && !self.leaves_running {
            return refuse(format!(
                "{program} cuts a host off its storage or its network and leaves it running, by its metadata \
                 (automatic=\"1\" of `on`): remove `leaves_running = false`"
            ));
        }
        let default = metadata::default_of(&answer.stdout, "missing_as_off");
        if default.is_some_and(metadata::is_yes) {
            return refuse(format!(
                "{program} calls a plug that it does not know off, whatever it is told (missing_as_off): it proves \
                 nothing; choose another agent"
            ));
        }
        self.check_limit(&answer.stdout, refuse)
    }

    /// The agent's own patience must end before ours, or it is killed while it waits for the host to go off.
    fn check_limit(
        &self,
        described: &str,
        refuse: impl Fn(String) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        let waits = WAITING.map(|option| (option, self.seconds(described, option)));
        let all: Duration = waits.iter().map(|(_, waits)| *waits).sum();
        if all < self.timeout {
            return Ok(());
        }
        let waits = waits.iter().filter(|(_, waits)| !waits.is_zero());
        refuse(format!(
            "{} may wait {} for the host to go off ({}), and is killed after {}: set timeout to more than that",
            self.program.display(),
            human(all),
            waits
                .map(|(option, waits)| format!("{option}={}", waits.as_secs_f64()))
                .collect::<Vec<_>>()
                .join(", "),
            human(self.timeout)
        ))
    }

    /// An option of seconds, as it is given or as the agent describes its default.
    fn seconds(&self, described: &str, option: &str) -> Duration {
        let given = self.options.iter().find(|(key, _)| key.replace('-', "_") == option);
        let text = match given {
            Some((_, OptionValue::Plain(text))) => Some(text.as_str()),
            Some(_) => None,
            None => metadata::default_of(described, option),
        };
        let seconds = text.and_then(|text| text.trim().trim_end_matches('s').parse().ok());
        seconds
            .filter(|seconds: &f64| *seconds > 0.0)
            .and_then(|s| Duration::try_from_secs_f64(s).ok())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
