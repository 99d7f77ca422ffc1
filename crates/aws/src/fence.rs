//! `ec2_stop`: the instance of a host is stopped, and is read back as stopped.

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_ec2::types::{InstanceStateChange, InstanceStateName};
use recovery::model::{Epoch, HostName};
use recovery::ports::{Fence, Note, Proof, StepError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::fault::{DRY_RUN, Fault};
use crate::instance::{InstanceConfig, Machine, Named, NotFound, is_off};
use crate::interface::Deadline;
use crate::{Ec2, Ec2Config};

const DRIVER: &str = "ec2_stop";

/// The detail of a check that says what was read, `on` or `off`.
const POWER: &str = "power";

/// Between two readings of the state.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// After this long the order is given again: somebody else may have started the instance meanwhile.
const AGAIN: Duration = Duration::from_secs(10);

/// How long a reading may take that only looks for a contradiction.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Stops the instance of a host, by force and without waiting for its system to shut down.
///
/// Only a state of `stopped` or `terminated` that is read back, of the very instance that the host is, proves anything: EC2
/// accepts the order long before. A security group is no fence, because connections that it tracks live on.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ec2StopConfig {
    /// Which instance the host is.
    pub instance: InstanceConfig,
    /// How long the instance may take to stop. EC2 takes half a minute or so, and minutes where the hardware is ill.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// Where EC2 is asked.
    #[serde(default)]
    pub ec2: Ec2Config,
}

fn default_timeout() -> Duration {
    Duration::from_secs(120)
}

impl Ec2StopConfig {
    /// The driver, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self) -> Result<Stop, Vec<String>> {
        let mut problems = Vec::new();
        if self.timeout < Duration::from_secs(1) {
            problems.push("timeout: must be at least 1s".to_owned());
        }
        let named = self.instance.build().map_err(|more| problems.extend(more)).ok();
        let ec2 = self.ec2.build().map_err(|more| problems.extend(more)).ok();
        match (named, ec2) {
            (Some(named), Some(ec2)) if problems.is_empty() => {
                Ok(Stop { named, timeout: self.timeout, ec2, again: AGAIN })
            }
            _ => Err(problems),
        }
    }
}

/// The driver; see [`Ec2StopConfig`].
#[derive(Debug)]
pub struct Stop {
    named: Named,
    timeout: Duration,
    pub(crate) ec2: Ec2,
    /// [`AGAIN`], but for tests.
    again: Duration,
}

/// The orders of one attempt: the last one that EC2 accepted, and what it said then.
#[derive(Default)]
struct Ordered {
    at: Option<Instant>,
    state: Option<InstanceStateName>,
    trouble: Option<Fault>,
}

impl Ordered {
    fn is_due(&self, again: Duration) -> bool {
        self.at.is_none_or(|at| at.elapsed() >= again)
    }
}

/// The state that an instance has come to, as the answer to an order says.
fn current(changes: &[InstanceStateChange], id: &str) -> Option<InstanceStateName> {
    let change = changes.iter().find(|change| change.instance_id() == Some(id))?;
    change.current_state()?.name().cloned()
}

impl Stop {
    fn refused(&self, action: &str, why: String) -> StepError {
        StepError::Refused { driver: DRIVER, action: action.to_owned(), why }
    }

    fn fault(&self, action: &str, call: &str, fault: &Fault) -> StepError {
        fault.step(DRIVER, action, call, &self.ec2)
    }

    /// The instance as it is now. `Ok(Err)`: EC2 does not say at the moment.
    async fn read(&self, action: &str, deadline: Deadline) -> Result<Result<Machine, Fault>, StepError> {
        match self.named.find(&self.ec2, deadline.call()).await {
            Ok(machine) => Ok(Ok(machine)),
            Err(NotFound::Fault(fault)) if fault.passes() => Ok(Err(fault)),
            Err(NotFound::Fault(fault)) => Err(self.fault(action, "DescribeInstances", &fault)),
            Err(NotFound::Other(why)) => Err(self.refused(action, why)),
        }
    }

    /// The same, until EC2 says.
    async fn find(&self, action: &str, deadline: Deadline) -> Result<Machine, StepError> {
        loop {
            match self.read(action, deadline).await? {
                Ok(machine) => return Ok(machine),
                Err(fault) if deadline.left() <= POLL_INTERVAL => {
                    return Err(self.fault(action, "DescribeInstances", &fault));
                }
                Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Gives the order to stop, and returns the state that EC2 answers with.
    async fn stop(
        &self,
        id: &str,
        deadline: Deadline,
        dry_run: bool,
    ) -> Result<Option<InstanceStateName>, Fault> {
        let request = self.ec2.call(deadline.call(), |client| {
            let order = client.stop_instances().instance_ids(id).force(true).skip_os_shutdown(true);
            order.set_dry_run(dry_run.then_some(true)).send()
        });
        Ok(current(request.await?.stopping_instances(), id))
    }

    async fn start(&self, id: &str, deadline: Deadline) -> Result<(), Fault> {
        let request =
            self.ec2.call(deadline.call(), |client| client.start_instances().instance_ids(id).send());
        request.await.map(drop)
    }

    /// Orders the instance to stop, where that is due. An order that cannot be given in its state is none.
    async fn order(
        &self,
        machine: &Machine,
        ordered: &mut Ordered,
        action: &str,
        deadline: Deadline,
    ) -> Result<(), StepError> {
        match self.stop(&machine.id, deadline, false).await {
            Ok(state) => *ordered = Ordered { at: Some(Instant::now()), state, trouble: None },
            // It is on its way to being terminated, or it is.
            Err(fault) if fault.code() == "IncorrectInstanceState" => {
                *ordered = Ordered { at: Some(Instant::now()), state: None, trouble: Some(fault) };
            }
            Err(fault) if fault.passes() => ordered.trouble = Some(fault.or(ordered.trouble.take())),
            Err(fault) => return Err(self.fault(action, "StopInstances", &fault)),
        }
        Ok(())
    }

    fn late(&self, action: &str, ordered: &Ordered, last: &str, deadline: Deadline) -> StepError {
        match &ordered.trouble {
            Some(fault) if ordered.at.is_none() => self.fault(action, "StopInstances", fault),
            _ => {
                let action = format!(
                    "{action} (EC2 accepted the order; read last: {last}). Look at the instance in the console; an instance \
                     whose hardware is ill may stay in `stopping` for minutes"
                );
                StepError::Unconfirmed { driver: DRIVER, action, limit: deadline.limit }
            }
        }
    }

    /// What `DescribeInstanceStatus` says: another reading than that of `DescribeInstances`.
    async fn second(&self, id: &str, deadline: Deadline) -> Result<Option<InstanceStateName>, Fault> {
        let told = self.ec2.call(deadline.call(), |client| {
            client.describe_instance_status().instance_ids(id).include_all_instances(true).send()
        });
        let told = told.await?;
        let status = told.instance_statuses().iter().find(|status| status.instance_id() == Some(id));
        Ok(status.and_then(|status| status.instance_state()).and_then(|state| state.name()).cloned())
    }
}

fn note(machine: &Machine, text: String) -> Note {
    let note = Note::new(text).with("instance", &machine.id).with("state", machine.state.as_str());
    if machine.reason.is_empty() { note } else { note.with("transition", &machine.reason) }
}

#[async_trait]
impl Fence for Stop {
    fn name(&self) -> &str {
        DRIVER
    }

    /// The order is given even to an instance that reads `stopped`, and that reading counts once the answer to an order
    /// says the same: it may be older than a start.
    async fn fence(&self, host: &HostName, _epoch: Epoch) -> Result<Note, StepError> {
        let (action, deadline) = (format!("stop the instance of {host}"), Deadline::of(self.timeout));
        let mut machine = self.find(&action, deadline).await?;
        let mut ordered = Ordered::default();
        let mut last = machine.to_string();
        loop {
            if machine.is_terminated() {
                break;
            }
            let agree = ordered.state == Some(InstanceStateName::Stopped);
            if machine.is_off() && agree {
                break;
            }
            if machine.is_off() || ordered.is_due(self.again) {
                self.order(&machine, &mut ordered, &action, deadline).await?;
            }
            if deadline.left() <= POLL_INTERVAL {
                return Err(self.late(&action, &ordered, &last, deadline));
            }
            sleep(POLL_INTERVAL).await;
            match self.read(&action, deadline).await? {
                Ok(read) => (last, machine) = (read.to_string(), read),
                Err(fault) => last = fault.words("DescribeInstances", &self.ec2),
            }
        }
        Ok(note(&machine, format!("{host} was ordered to stop, and {machine}")))
    }

    async fn prove(&self, host: &HostName, _epoch: Epoch) -> Result<Proof, StepError> {
        let (action, deadline) = (format!("prove that {host} is stopped"), Deadline::of(self.timeout));
        loop {
            let machine = self.find(&action, deadline).await?;
            let second = self.second(&machine.id, deadline).await;
            let agrees = match &second {
                Ok(Some(state)) => is_off(state),
                // A terminated instance is soon no more in that answer.
                Ok(None) => machine.is_terminated(),
                Err(fault) if fault.code().starts_with("InvalidInstanceID") => machine.is_terminated(),
                Err(fault) if fault.passes() => false,
                Err(fault) => return Err(self.fault(&action, "DescribeInstanceStatus", fault)),
            };
            if machine.is_off() && agrees {
                let note = note(&machine, format!("EC2 reads that {machine}, and it is {host}"));
                return Ok(Proof { host: host.clone(), by: DRIVER.to_owned(), note });
            }
            let runs = matches!(machine.state, InstanceStateName::Running | InstanceStateName::Pending);
            if runs || deadline.left() <= POLL_INTERVAL {
                let why = match second {
                    Err(fault) => fault.words("DescribeInstanceStatus", &self.ec2),
                    Ok(second) => {
                        let second = second.map_or("nothing".to_owned(), |state| state.to_string());
                        format!(
                            "{machine} (by its status: {second}). Missing: a state of stopped or terminated. Stop it in the \
                             console, and try again when it is stopped"
                        )
                    }
                };
                return Err(self.refused(&action, why));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn lift(&self, host: &HostName) -> Result<Note, StepError> {
        let (action, deadline) = (format!("start the instance of {host}"), Deadline::of(self.timeout));
        let mut ordered = Ordered::default();
        loop {
            let machine = self.find(&action, deadline).await?;
            match machine.state {
                InstanceStateName::Running => {
                    return Ok(note(&machine, format!("EC2 reads that {machine}, and it is {host}")));
                }
                InstanceStateName::Terminated | InstanceStateName::ShuttingDown => {
                    let why = format!("{machine}, for good: launch another instance for {host}");
                    return Err(self.refused(&action, why));
                }
                InstanceStateName::Stopped if ordered.is_due(self.again) => {
                    match self.start(&machine.id, deadline).await {
                        Ok(()) => ordered.at = Some(Instant::now()),
                        // What was read is older than what EC2 does.
                        Err(fault) if fault.passes() || fault.code() == "IncorrectInstanceState" => {
                            ordered.trouble = Some(fault);
                        }
                        Err(fault) => return Err(self.fault(&action, "StartInstances", &fault)),
                    }
                }
                _ => {}
            }
            if deadline.left() <= POLL_INTERVAL {
                return Err(match (ordered.at, ordered.trouble) {
                    (None, Some(fault)) => self.fault(&action, "StartInstances", &fault),
                    _ => {
                        let action = format!("{action} (read last: {machine})");
                        StepError::Unconfirmed { driver: DRIVER, action, limit: deadline.limit }
                    }
                });
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn check(&self, host: &HostName) -> Result<Note, StepError> {
        let (action, deadline) =
            (format!("see whether the instance of {host} can be stopped"), Deadline::of(READ_WITHIN));
        let machine = self.find(&action, deadline).await?;
        if machine.is_terminated() {
            return Ok(note(&machine, format!("{machine}, and was {host}")).with(POWER, "off"));
        }
        match self.stop(&machine.id, deadline, true).await {
            Err(fault) if fault.code() == DRY_RUN => {}
            Err(fault) => return Err(self.fault(&action, "StopInstances", &fault)),
            Ok(_) => {
                let why =
                    "EC2 carried out what was to be tried only (DryRun): is ec2.endpoint an EC2?".to_owned();
                return Err(self.refused(&action, why));
            }
        }
        let text = format!("{machine}, it is {host}, and this host may stop it");
        let power = if machine.is_off() { "off" } else { "on" };
        Ok(note(&machine, text).warn(machine.comes_back()).with(POWER, power))
    }

    async fn has_power(&self, _host: &HostName) -> Option<bool> {
        let machine = self.named.find(&self.ec2, READ_WITHIN).await.ok()?;
        match &machine.state {
            InstanceStateName::Pending
            | InstanceStateName::Running
            | InstanceStateName::Stopping
            | InstanceStateName::ShuttingDown => Some(true),
            state if is_off(state) => Some(false),
            _ => None,
        }
    }

    /// The order is given first: a reading alone may be old.
    async fn finish(&self, host: &HostName, epoch: Epoch) -> Result<Note, StepError> {
        self.fence(host, epoch).await?;
        Ok(self.prove(host, epoch).await?.note)
    }
}

#[cfg(test)]
mod tests;
