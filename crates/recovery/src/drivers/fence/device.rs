//! A fence device: a program that is told what to do in `key=value` lines and answers by its exit code.
//!
//! The API is that of the ClusterLabs fence agents (`FenceAgentAPI.md`): `off` exits with 0 when the host is
//! off; `status` exits with 0 for on, 2 for off and 1 when the device cannot be asked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;

use super::options::{Input, OptionValue};
use crate::drivers::command::{CommandError, ending, last_words, run};
use crate::model::{Epoch, HostName, human};
use crate::ports::{Fence, Note, Proof, StepError};

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

/// What `status` says of a host.
#[derive(Debug, PartialEq, Eq)]
enum Power {
    On,
    Off,
    Unknown,
}

impl Answer {
    fn power(&self) -> Power {
        match self.code {
            Some(0) => Power::On,
            // A shell with a syntax error and a command line that is not understood exit with 2 as well, and
            // say so on stderr. That must not pass for a proof.
            Some(2) if self.stderr.trim().is_empty() || self.says_off() => Power::Off,
            _ => Power::Unknown,
        }
    }

    fn says_off(&self) -> bool {
        let words = self.stdout.split(|c: char| !c.is_ascii_alphanumeric());
        words.into_iter().any(|word| word.eq_ignore_ascii_case("off"))
    }

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

    fn failed(&self, purpose: &str, error: impl std::error::Error + Send + Sync + 'static) -> StepError {
        StepError::Failed { driver: self.driver, action: purpose.to_owned(), source: Box::new(error) }
    }

    fn refused(&self, purpose: &str, why: String) -> StepError {
        StepError::Refused { driver: self.driver, action: purpose.to_owned(), why }
    }

    /// Why `host` counts as not fenced, and what to do.
    fn no_proof(&self, host: &HostName, last: &Answer, asked: usize, lasting: Duration) -> StepError {
        let (program, words) = (self.program.display(), last.words());
        let state = match last.power() {
            Power::On => "says that it is still on",
            Power::Off | Power::Unknown => "does not say whether it is on or off",
        };
        let why = format!(
            "{program} action=status {state} ({words}; asked {asked} times in {}). Missing: a status of off, \
             exit code 2. Look at the device, turn {host} off by hand, and try again when status says off",
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
        let answer = self.call("off", host, Some(epoch), self.timeout, &purpose).await?;
        let program = self.program.display();
        if answer.code != Some(0) {
            let why = format!(
                "{program} action=off ended with {}. Look at the device and its options",
                answer.words()
            );
            return Err(self.refused(&purpose, why));
        }
        let text = format!("{program} turned {host} off in {}", human(answer.took));
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
            if answer.power() == Power::Off {
                let text = format!("{} action=status reads that {host} is off", self.program.display());
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
            if status.power() == Power::On {
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
        let (status, metadata) = tokio::join!(status, self.check_metadata(host));
        metadata?;
        let (status, program) = (status?, self.program.display());
        let text = match status.power() {
            Power::On => format!("{program} reads that {host} is on"),
            Power::Off => format!("{program} reads that {host} is off now"),
            Power::Unknown => {
                let why = format!(
                    "{program} action=status ended with {}; 0 (on) or 2 (off) would be an answer. Look at the \
                     device and its options",
                    status.words()
                );
                return Err(self.refused(&purpose, why));
            }
        };
        Ok(status.note(text, self, "status"))
    }
}

impl Device {
    /// A fence agent that cannot turn a host off is of no use: fabric agents may lack the action.
    async fn check_metadata(&self, host: &HostName) -> Result<(), StepError> {
        if !self.is_fence_agent {
            return Ok(());
        }
        let purpose = "see whether the fence agent can turn a host off";
        let answer = self.call("metadata", host, None, self.timeout, purpose).await?;
        if answer.code == Some(0) && lists_off(&answer.stdout) {
            return Ok(());
        }
        let why = format!(
            "{} action=metadata ({}) does not list the action `off`; choose an agent that has it",
            self.program.display(),
            answer.ending
        );
        Err(self.refused(purpose, why))
    }
}

/// Whether a fence agent's metadata has `<action name="off" …>`.
pub(super) fn lists_off(metadata: &str) -> bool {
    let actions = metadata.split("<action").skip(1);
    actions.filter_map(|rest| rest.split_once('>')).any(|(attributes, _)| {
        let mut words = attributes.split_whitespace();
        words.any(|word| matches!(word.trim_end_matches('/'), "name=\"off\"" | "name='off'"))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use futures_util::future::join_all;

    use super::*;
    use crate::ports::chain;

    const EPOCH: Epoch = Epoch(3);

    /// A device that is a shell script: `$action` is what it is told, `$told` all of its input.
    fn device(script: &str, timeout: Duration) -> Device {
        let prelude = "told=$(cat); action=$(echo \"$told\" | sed -n 's/^action=//p')";
        Device {
            driver: "fence_agent",
            program: PathBuf::from("/bin/sh"),
            arguments: vec!["-c".to_owned(), format!("{prelude}\n{script}")],
            options: toml::from_str("plug = \"7\"\npassword.env = \"PATH\"").unwrap(),
            timeout,
            is_fence_agent: true,
        }
    }

    fn quick(script: &str) -> Device {
        device(script, Duration::from_secs(1))
    }

    fn patient(script: &str) -> Device {
        device(script, Duration::from_secs(20))
    }

    fn host() -> HostName {
        HostName::from("kafka-1")
    }

    /// A power switch with memory: `off` takes effect a while after it was asked for.
    fn switch(dir: &Path) -> Device {
        patient(&format!(
            "cd {}
            case $action in
                off) (sleep 0.3; touch off) > /dev/null 2>&1 & echo 'Success: Powered OFF';;
                status) if [ -e off ]; then echo 'Status: OFF'; exit 2; else echo 'Status: ON'; fi;;
            esac",
            dir.display()
        ))
    }

    #[tokio::test]
    async fn a_switch_turns_off_and_is_read_until_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let switch = switch(dir.path());
        let note = switch.fence(&host(), EPOCH).await.unwrap();
        assert!(note.text.contains("turned kafka-1 off"), "{}", note.text);
        let proof = switch.prove(&host(), EPOCH).await.unwrap();
        assert_eq!((proof.host, proof.by.as_str()), (host(), "fence_agent"));
        assert_eq!(proof.note.details["stdout"], "Status: OFF");
        assert_eq!(proof.note.details["ending"], "exit code 2");
        assert!(proof.note.details["asked"].parse::<u32>().unwrap() > 1);
    }

    #[tokio::test]
    async fn on_unknown_and_failing_are_no_proof() {
        let scripts = [
            ("exit 0", "says that it is still on"),
            ("echo 'no route to the device' >&2; exit 1", "exit code 1: no route to the device"),
            ("exit 3", "does not say whether it is on or off"),
            ("kill -9 $$", "signal 9"),
        ];
        let proofs = scripts.map(|(script, said)| async move {
            (quick(script).prove(&host(), EPOCH).await.unwrap_err(), said)
        });
        for (error, said) in join_all(proofs).await {
            assert_eq!(error.kind(), "refused");
            let text = chain(&error);
            assert!(text.contains(said) && text.contains("Missing: a status of off"), "{text}");
        }
    }

    #[tokio::test]
    async fn a_program_that_breaks_with_code_2_is_no_proof() {
        // A real shell with a real syntax error.
        let error = quick("if then fi").prove(&host(), EPOCH).await.unwrap_err();
        assert!(chain(&error).contains("exit code 2"), "{}", chain(&error));
        // An agent that warns and still says what it read is believed.
        let agent = quick("echo 'weak cipher' >&2; echo 'Status: OFF'; exit 2");
        assert!(agent.prove(&host(), EPOCH).await.is_ok());
    }

    #[tokio::test]
    async fn a_device_that_hangs_is_unconfirmed_whatever_it_said() {
        let hung = quick("echo \"asking $PATH\"; sleep 1000");
        let host = host();
        let (fence, prove, check) =
            tokio::join!(hung.fence(&host, EPOCH), hung.prove(&host, EPOCH), hung.check(&host));
        for error in [fence.unwrap_err(), prove.unwrap_err(), check.unwrap_err()] {
            assert_eq!(error.kind(), "unconfirmed", "{error}");
            assert!(error.to_string().contains("asking ***"), "{error}");
            assert!(!error.to_string().contains(&std::env::var("PATH").unwrap()), "{error}");
        }
    }

    #[tokio::test]
    async fn a_device_that_hangs_at_last_is_reported_by_its_last_answer() {
        let dir = tempfile::tempdir().unwrap();
        let script =
            format!("cd {}; if [ -e asked ]; then sleep 1000; fi; touch asked", dir.path().display());
        let error = quick(&script).prove(&host(), EPOCH).await.unwrap_err();
        assert!(error.to_string().contains("says that it is still on"), "{error}");
    }

    #[tokio::test]
    async fn a_refused_off_says_what_the_device_said_without_secrets() {
        let error = quick("echo \"$told\" >&2; exit 1").fence(&host(), EPOCH).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("action=off | password=*** | plug=7"), "{text}");
        let known = |device: &Device| format!("{device:?}").contains(&std::env::var("PATH").unwrap());
        assert!(!known(&quick("")), "a secret in the debug text");
    }

    #[tokio::test]
    async fn a_sites_own_program_is_told_host_and_epoch() {
        let mut device = quick("echo \"$told\"; exit 2");
        let told = device.prove(&host(), EPOCH).await.unwrap().note.details["stdout"].clone();
        assert_eq!(told, "action=status | password=*** | plug=7");
        device.is_fence_agent = false;
        let told = device.prove(&host(), EPOCH).await.unwrap().note.details["stdout"].clone();
        let head = "action=status | understudy_host=kafka-1 | understudy_epoch=3 | ";
        assert!(told.starts_with(head), "{told}");
    }

    #[tokio::test]
    async fn check_wants_a_power_state_and_the_action_off() {
        let metadata = |actions: &str| {
            patient(&format!(
                "if [ $action = metadata ]; then echo '<actions>{actions}</actions>'; else exit 0; fi"
            ))
        };
        let note =
            metadata("<action name=\"on\" automatic=\"0\"/><action name=\"off\"/>").check(&host()).await;
        assert!(note.unwrap().text.contains("kafka-1 is on"));
        let error =
            metadata("<action name=\"on\"/><parameter name=\"off\"/>").check(&host()).await.unwrap_err();
        assert!(error.to_string().contains("does not list the action `off`"), "{error}");

        let mut own = patient("exit 1");
        own.is_fence_agent = false;
        let error = own.check(&host()).await.unwrap_err();
        assert!(error.to_string().contains("0 (on) or 2 (off) would be an answer"), "{error}");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_fails_at_once() {
        let mut device = patient("");
        device.program = PathBuf::from("/nonexistent/fence_agent");
        let error = device.prove(&host(), EPOCH).await.unwrap_err();
        assert_eq!(error.kind(), "failed");
        assert!(chain(&error).contains("/nonexistent/fence_agent could not be started"), "{}", chain(&error));
    }
}
