//! The instance that a host is: found by its id or by its tag, and compared, so that no other one is mistaken for it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use aws_sdk_ec2::types::{Filter, Instance, InstanceAutoRecoveryState, InstanceStateName};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::Ec2;
use crate::fault::Fault;

/// Which instance a host is.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InstanceConfig {
    /// A tag that this instance has and no other, such as `Name=kafka-1`. An instance without it is never taken for the
    /// host, whatever its id.
    pub tag: String,
    /// Its id, such as `i-0a1b2c3d4e5f60718`. Without it the tag finds the instance, and must then find one alone.
    pub id: Option<String>,
    /// Its first private address, which is compared too. A terminated instance has none any more.
    pub private_address: Option<Ipv4Addr>,
}

impl InstanceConfig {
    /// The checked form.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub(crate) fn build(self) -> Result<Named, Vec<String>> {
        let mut problems = Vec::new();
        if let Some(id) = &self.id {
            let hex = id.strip_prefix("i-").unwrap_or_default();
            if !matches!(hex.len(), 8 | 17) || !hex.chars().all(|c| c.is_ascii_hexdigit()) {
                problems.push(format!(
                    "instance.id: `{id}` is not the id of an instance, such as i-0a1b2c3d4e5f60718"
                ));
            }
        }
        let tag = self.tag.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
        match tag {
            Some((key, value)) if problems.is_empty() => Ok(Named {
                tag: (key.to_owned(), value.to_owned()),
                id: self.id,
                private_address: self.private_address,
            }),
            Some(_) => Err(problems),
            None => {
                let given = &self.tag;
                problems.push(format!("instance.tag: `{given}` is not key=value, such as Name=kafka-1"));
                Err(problems)
            }
        }
    }
}

/// How a host's instance is known.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    tag: (String, String),
    id: Option<String>,
    private_address: Option<Ipv4Addr>,
}

/// What counts of an instance.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Machine {
    pub(crate) id: String,
    pub(crate) state: InstanceStateName,
    /// When and why it came to that, in EC2's words; empty where it does not say.
    pub(crate) reason: String,
    pub(crate) private_address: Option<Ipv4Addr>,
    pub(crate) tags: BTreeMap<String, String>,
    /// Whether EC2 itself brings it back, on other hardware, where its own fails.
    pub(crate) recovers: bool,
}

/// Why no instance is taken for the host.
#[derive(Debug)]
pub(crate) enum NotFound {
    /// EC2 could not be asked.
    Fault(Fault),
    /// What it tells is not this host, and what to do.
    Other(String),
}

impl Machine {
    fn of(told: &Instance) -> Self {
        let state = told.state().and_then(|state| state.name()).cloned();
        let tags =
            told.tags().iter().filter_map(|tag| Some((tag.key()?.to_owned(), tag.value()?.to_owned())));
        let recovery = told.maintenance_options().and_then(|options| options.auto_recovery());
        Self {
            recovers: recovery == Some(&InstanceAutoRecoveryState::Default),
            id: told.instance_id().unwrap_or_default().to_owned(),
            state: state.unwrap_or_else(|| InstanceStateName::from("unknown")),
            reason: told.state_transition_reason().unwrap_or_default().to_owned(),
            private_address: told.private_ip_address().and_then(|address| address.parse().ok()),
            tags: tags.collect(),
        }
    }

    pub(crate) fn is_terminated(&self) -> bool {
        self.state == InstanceStateName::Terminated
    }

    /// Whether nothing runs on it, and nothing can until somebody starts it.
    pub(crate) fn is_off(&self) -> bool {
        is_off(&self.state)
    }

    /// The Auto Scaling group that it belongs to.
    fn group(&self) -> Option<&str> {
        self.tags.get("aws:autoscaling:groupName").map(String::as_str)
    }

    /// What may bring it back or replace it behind a fence, and what to do; as far as EC2's own API tells.
    pub(crate) fn comes_back(&self) -> Vec<String> {
        let replaced = self.group().map(|group| {
            format!(
                "the Auto Scaling group {group} replaces an instance that is stopped: take it out of the group, or \
                 suspend ReplaceUnhealthy"
            )
        });
        let recovered = self.recovers.then(|| {
            format!(
                "EC2 starts it again on other hardware where its own fails, in the middle of a takeover: run `aws ec2 \
                 modify-instance-maintenance-options --instance-id {} --auto-recovery disabled`",
                self.id
            )
        });
        replaced.into_iter().chain(recovered).collect()
    }
}

/// Whether an instance in this state is off. One that is `stopping` or `shutting-down` may still write.
pub(crate) fn is_off(state: &InstanceStateName) -> bool {
    matches!(state, InstanceStateName::Stopped | InstanceStateName::Terminated)
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}", self.id, self.state)?;
        if self.reason.is_empty() { Ok(()) } else { write!(f, " ({})", self.reason) }
    }
}

impl Named {
    /// The instance as EC2 tells of it now, compared with all that is known of the host.
    pub(crate) async fn find(&self, ec2: &Ec2, limit: Duration) -> Result<Machine, NotFound> {
        let (key, value) = &self.tag;
        let tag = Filter::builder().name(format!("tag:{key}")).values(value).build();
        let found = ec2.call(limit, |client| {
            let request = client.describe_instances();
            let request = match &self.id {
                Some(id) => request.instance_ids(id),
                None => request.filters(tag),
            };
            request.into_paginator().send().collect::<Result<Vec<_>, _>>()
        });
        let pages = found.await.map_err(NotFound::Fault)?;
        let instances = pages.iter().flat_map(|page| page.reservations()).flat_map(|of| of.instances());
        self.which(instances.map(Machine::of).collect()).map_err(NotFound::Other)
    }

    /// Which of `found` is the host; why none is.
    fn which(&self, found: Vec<Machine>) -> Result<Machine, String> {
        let (key, value) = &self.tag;
        if let Some(id) = &self.id {
            let found = found.into_iter().find(|machine| machine.id == *id);
            return self.compared(found.ok_or(format!("EC2 did not tell of {id}"))?);
        }
        let tagged = found.into_iter().filter(|machine| machine.tags.get(key) == Some(value));
        let (mut gone, mut live): (Vec<_>, Vec<_>) = tagged.partition(Machine::is_terminated);
        if live.len() > 1 {
            let ids: Vec<_> = live.iter().map(|machine| machine.id.as_str()).collect();
            let ids = ids.join(", ");
            return Err(format!(
                "{ids} have the tag {key}={value}: set instance.id, or give each host a tag of its own"
            ));
        }
        match live.pop().or_else(|| gone.pop()) {
            Some(machine) => self.compared(machine),
            None => Err(format!("no instance has the tag {key}={value}: correct instance.tag or ec2.region")),
        }
    }

    fn compared(&self, machine: Machine) -> Result<Machine, String> {
        let ((key, value), id) = (&self.tag, &machine.id);
        let has = machine.tags.get(key).map_or("no such tag".to_owned(), |has| format!("{key}={has}"));
        if machine.tags.get(key) != Some(value) {
            return Err(format!(
                "{id} is another machine: it has {has}, and this host has {key}={value}. Correct instance.id or \
                 instance.tag"
            ));
        }
        match (self.private_address, machine.private_address) {
            (Some(ours), Some(its)) if ours != its => Err(format!(
                "{id} is another machine: its private address is {its}, and this host's is {ours}. Correct \
                 instance.id or instance.private_address"
            )),
            (Some(ours), None) if !machine.is_terminated() => {
                Err(format!("{id} has no private address now, and this host has {ours}"))
            }
            _ => Ok(machine),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(id: &str, state: InstanceStateName, name: &str, address: Option<[u8; 4]>) -> Machine {
        let tags = [("Name".to_owned(), name.to_owned())].into();
        let private_address = address.map(Ipv4Addr::from);
        Machine { id: id.to_owned(), state, reason: String::new(), private_address, tags, recovers: false }
    }

    fn named(id: Option<&str>) -> Named {
        let private_address = Some(Ipv4Addr::new(10, 20, 0, 31));
        let config =
            InstanceConfig { tag: "Name=kafka-1".to_owned(), id: id.map(str::to_owned), private_address };
        config.build().unwrap()
    }

    #[test]
    fn an_instance_is_the_host_only_if_all_that_is_known_agrees() {
        use InstanceStateName::{Running, Stopped, Terminated};
        let (a, ours, other) = ("i-0000000a", Some([10, 20, 0, 31]), Some([10, 20, 0, 99]));
        for id in [Some(a), None] {
            let which = |machine| named(id).which(vec![machine]).map_err(|why| (id, why));
            which(machine(a, Running, "kafka-1", ours)).unwrap();
            which(machine(a, Stopped, "kafka-1", ours)).unwrap();
            which(machine(a, Terminated, "kafka-1", None)).unwrap();
            which(machine(a, Stopped, "kafka-1", other)).unwrap_err();
            which(machine(a, Stopped, "kafka-1", None)).unwrap_err();
            which(machine(a, Terminated, "kafka-2", None)).unwrap_err();
        }
        named(Some("i-0000000b")).which(vec![machine(a, Stopped, "kafka-1", ours)]).unwrap_err();
        named(None).which(Vec::new()).unwrap_err();
    }

    #[test]
    fn a_tag_finds_the_one_that_lives() {
        use InstanceStateName::{Running, Stopped, Terminated};
        let ours = Some([10, 20, 0, 31]);
        let (gone, live) =
            (machine("i-1", Terminated, "kafka-1", None), machine("i-2", Running, "kafka-1", ours));
        assert_eq!(named(None).which(vec![gone, live.clone()]).unwrap().id, "i-2");
        let two = vec![machine("i-1", Stopped, "kafka-1", ours), live];
        assert!(named(None).which(two).unwrap_err().starts_with("i-1, i-2 have the tag Name=kafka-1"));
    }

    #[test]
    fn only_stopped_and_terminated_are_off() {
        for (state, expected) in [
            ("stopped", true),
            ("terminated", true),
            ("stopping", false),
            ("shutting-down", false),
            ("pending", false),
            ("running", false),
            ("", false),
            ("rebooting", false),
        ] {
            assert_eq!(is_off(&InstanceStateName::from(state)), expected, "{state}");
        }
    }

    #[test]
    fn every_bad_value_is_told() {
        let config: InstanceConfig = toml::from_str("tag = \"kafka-1\"\nid = \"kafka-1\"").unwrap();
        let problems = config.build().unwrap_err();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(toml::from_str::<InstanceConfig>("id = \"i-0000000a\"").is_err(), "an id alone names nobody");
    }
}
