//! `ec2_status`: what EC2 says of the instances of hosts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_ec2::types::{
    EventCode, InstanceStateName, InstanceStatus, InstanceStatusSummary, SummaryStatus,
};
use recovery::model::{Evidence, Fact, HostName, MachineState};
use recovery::ports::{Clock, HealthSignal};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::fault::Fault;
use crate::instance::{InstanceConfig, Named, NotFound, is_off};
use crate::interface::Deadline;
use crate::{Ec2, Ec2Config};

const SIGNAL: &str = "ec2_status";

/// How long one look may take.
const LOOK_WITHIN: Duration = Duration::from_secs(15);
/// How often to look while a broker does not answer.
const ON_SUSPICION: Duration = Duration::from_secs(5);
/// How soon to look again after one look that did not see all, at the latest.
const AFTER_BLINDNESS: Duration = Duration::from_secs(60);
/// How long what EC2 says counts: looks that fail meanwhile make nobody forget it.
const COUNTS_FOR: Duration = Duration::from_secs(120);

/// What EC2 says of the instances of hosts: their state, its own checks of them, and what it has scheduled.
///
/// An instance that is off is the second witness of its host's death where the cluster says nothing of the broker. EC2's
/// checks lag by minutes, so they only support; and nothing of this is a sight of Kafka.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ec2StatusConfig {
    /// Which instance each host is, by the host's name.
    pub hosts: BTreeMap<String, InstanceConfig>,
    /// How often EC2 is asked while every guarded broker answers; one call for all hosts. Calls are counted against the
    /// account, which throttles them. While one does not answer, EC2 is asked at once and every 5 s.
    #[serde(default = "default_period", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub period: Duration,
    /// Where EC2 is asked.
    #[serde(default)]
    pub ec2: Ec2Config,
}

fn default_period() -> Duration {
    Duration::from_secs(300)
}

impl Ec2StatusConfig {
    /// The signal, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self) -> Result<Status, Vec<String>> {
        let mut problems = Vec::new();
        if self.hosts.is_empty() {
            problems.push("hosts: names no host".to_owned());
        }
        if self.period < ON_SUSPICION {
            problems.push("period: must be at least 5s, for EC2 throttles who asks more often".to_owned());
        }
        let mut hosts = BTreeMap::new();
        for (host, instance) in self.hosts {
            match instance.build() {
                Ok(named) => drop(hosts.insert(HostName(host), named)),
                Err(more) => problems.extend(more.into_iter().map(|why| format!("hosts.{host}.{why}"))),
            }
        }
        match self.ec2.build() {
            Ok(ec2) if problems.is_empty() => {
                let (known, is_blind) = Default::default();
                Ok(Status { hosts, period: self.period, ec2, known, is_blind })
            }
            Ok(_) => Err(problems),
            Err(more) => Err(problems.into_iter().chain(more).collect()),
        }
    }
}

/// The signal; see [`Ec2StatusConfig`].
#[derive(Debug)]
pub struct Status {
    hosts: BTreeMap<HostName, Named>,
    period: Duration,
    pub(crate) ec2: Ec2,
    /// The id of each host's instance, once it was compared with all that is known of the host.
    known: Mutex<BTreeMap<HostName, String>>,
    /// Whether the last look did not see all.
    is_blind: AtomicBool,
}

impl Status {
    fn known(&self) -> BTreeMap<HostName, String> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks up the instances of hosts that are not known. Returns what is wrong with some of them.
    async fn resolve(&self, deadline: Deadline) -> Vec<String> {
        let known = self.known();
        let mut blind = Vec::new();
        for (host, named) in self.hosts.iter().filter(|(host, _)| !known.contains_key(*host)) {
            match named.find(&self.ec2, deadline.call()).await {
                Ok(machine) => {
                    let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                    known.insert(host.clone(), machine.id);
                }
                Err(NotFound::Other(why)) => blind.push(format!("{host}: {why}")),
                Err(NotFound::Fault(fault)) => {
                    blind.push(format!("{host}: {}", fault.words("DescribeInstances", &self.ec2)));
                }
            }
            if deadline.left().is_zero() {
                break;
            }
        }
        blind
    }

    async fn statuses(&self, ids: Vec<String>, deadline: Deadline) -> Result<Vec<InstanceStatus>, Fault> {
        let request = self.ec2.call(deadline.call(), |client| {
            let request = client.describe_instance_status().set_instance_ids(Some(ids));
            request.include_all_instances(true).into_paginator().items().send().collect()
        });
        request.await
    }

    async fn see(&self) -> (Vec<(HostName, MachineState)>, Vec<String>) {
        let deadline = Deadline::of(LOOK_WITHIN);
        let mut blind = self.resolve(deadline).await;
        let known = self.known();
        if known.is_empty() {
            return (Vec::new(), blind);
        }
        let statuses = match self.statuses(known.values().cloned().collect(), deadline).await {
            Ok(statuses) => statuses,
            Err(fault) => {
                // One instance that EC2 does not know any more makes it refuse to tell of all.
                if fault.code().starts_with("InvalidInstanceID") {
                    self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
                }
                blind.push(fault.words("DescribeInstanceStatus", &self.ec2));
                return (Vec::new(), blind);
            }
        };
        let mut seen = Vec::new();
        for (host, id) in &known {
            match statuses.iter().find(|status| status.instance_id() == Some(id)) {
                Some(status) => seen.push((host.clone(), state(status))),
                None => blind.push(format!("{host}: EC2 does not tell of {id}")),
            }
        }
        self.forget_the_terminated(&statuses);
        (seen, blind)
    }

    /// Another instance may be the host next time.
    fn forget_the_terminated(&self, statuses: &[InstanceStatus]) {
        let terminated = |status: &&InstanceStatus| {
            status.instance_state().and_then(|state| state.name()) == Some(&InstanceStateName::Terminated)
        };
        let gone: Vec<&str> =
            statuses.iter().filter(terminated).filter_map(InstanceStatus::instance_id).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, id| !gone.contains(&id.as_str()));
    }
}

/// What the status of an instance says of its host.
fn state(status: &InstanceStatus) -> MachineState {
    match status.instance_state().and_then(|state| state.name()) {
        Some(InstanceStateName::Running) => match ails(status) {
            None => MachineState::Runs,
            Some(why) => MachineState::Ails { why },
        },
        Some(state) if is_off(state) => MachineState::Off { state: state.to_string() },
        Some(state) => MachineState::Changes { to: state.to_string() },
        None => MachineState::Changes { to: "unknown".to_owned() },
    }
}

/// What is wrong with an instance that runs.
fn ails(status: &InstanceStatus) -> Option<String> {
    let impaired = |summary: Option<&InstanceStatusSummary>| {
        summary.and_then(InstanceStatusSummary::status) == Some(&SummaryStatus::Impaired)
    };
    let system = impaired(status.system_status())
        .then(|| "EC2's check of the hardware and network below it fails".to_owned());
    let instance =
        impaired(status.instance_status()).then(|| "EC2's check of its own system fails".to_owned());
    let scheduled = status.events().iter().filter_map(|event| {
        // What was carried out or called off stays in the list for a while.
        let said = event.description().unwrap_or_default();
        let is_over = said.starts_with("[Completed]") || said.starts_with("[Canceled]");
        let what = match event.code()? {
            _ if is_over => return None,
            EventCode::InstanceRetirement => "is to be retired",
            EventCode::InstanceStop => "is to be stopped",
            EventCode::InstanceReboot | EventCode::SystemReboot => "is to be rebooted",
            EventCode::SystemMaintenance => "is to be maintained",
            _ => return None,
        };
        let at = event.not_before().map(|at| format!(" at {at}")).unwrap_or_default();
        Some(format!("it {what}{at}"))
    });
    let all: Vec<String> = system.into_iter().chain(instance).chain(scheduled).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[async_trait]
impl HealthSignal for Status {
    fn name(&self) -> &'static str {
        SIGNAL
    }

    fn period(&self) -> Duration {
        if self.is_blind.load(Ordering::Relaxed) { self.period.min(AFTER_BLINDNESS) } else { self.period }
    }

    fn period_on_suspicion(&self) -> Option<Duration> {
        Some(ON_SUSPICION)
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let at = clock.now().mono;
        let (seen, blind) = self.see().await;
        self.is_blind.store(!blind.is_empty(), Ordering::Relaxed);
        let facts =
            seen.into_iter().map(|(host, state)| Fact::Machine { host, state, counts_for: COUNTS_FOR });
        // Last, because what is seen ends a blindness.
        let blind = (!blind.is_empty()).then(|| Fact::Blind { why: blind.join("; ") });
        facts.chain(blind).map(|fact| Evidence { signal: SIGNAL, at, fact }).collect()
    }
}

#[cfg(test)]
mod tests;
