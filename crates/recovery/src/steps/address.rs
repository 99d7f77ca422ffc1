//! A host whose storage alone is denied lives on, and answers for the broker's address.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Context, LOOK_AGAIN};
use crate::model::{HostName, Note};
use crate::ports::{Address, StepError, chain};

/// How long the old host's own agent may take to read in the ledger that the host is out, to end Kafka and to
/// give the address up. Several times what it needs while it and its ledger are well.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(10);

/// How long a host that is off may seem to answer: frames that were on their way.
const SILENT_WITHIN: Duration = Duration::from_secs(2);

impl Context<'_> {
    /// Waits for `hosts` to give the address up, and stops them where they do not.
    pub(super) async fn free_address(
        &self,
        address: &dyn Address,
        hosts: &BTreeSet<HostName>,
    ) -> Result<Note, StepError> {
        let Some(first) = address.holder().await? else {
            return Ok(Note::new("no other host answers for the address"));
        };
        if self.silent_within(address, GIVEN_UP_WITHIN).await?.is_none() {
            return Ok(Note::new("the host that had the address has given it up").with("was_at", first));
        }
        let mut said = Vec::new();
        let mut stopped = false;
        for host in hosts {
            match self.fence(host)?.finish(host, self.plan.epoch).await {
                Ok(note) => {
                    stopped = true;
                    said.push(note.to_string());
                }
                Err(error) => said.push(chain(&error)),
            }
        }
        let said = said.join("; ");
        let limit = if stopped { SILENT_WITHIN } else { Duration::ZERO };
        match self.silent_within(address, limit).await? {
            None => {
                Ok(Note::new(format!("nobody answers for the address any more: {said}"))
                    .with("was_at", first))
            }
            Some(mac) => {
                let names: Vec<String> = hosts.iter().map(ToString::to_string).collect();
                let (driver, action) = ("understudy", "have the address given up".to_owned());
                let why = format!(
                    "the host at {mac} still answers for it, and is to be {}, which is denied the storage and lives: its agent has not \
                     given the address up within {} s, and: {said}. No other standby can do better: turn that host off, or \
                     take the address off it (`ip address del`)",
                    names.join(" or "),
                    GIVEN_UP_WITHIN.as_secs()
                );
                Err(StepError::Refused { driver, action, why })
            }
        }
    }

    /// Who still answers once nobody did or the limit is over.
    async fn silent_within(
        &self,
        address: &dyn Address,
        limit: Duration,
    ) -> Result<Option<String>, StepError> {
        let clock = &self.ports.clock;
        let begun = clock.now().mono;
        loop {
            let holder = address.holder().await?;
            if holder.is_none() || clock.now().mono.since(begun) >= limit {
                return Ok(holder);
            }
            clock.sleep(LOOK_AGAIN).await;
        }
    }

    /// Carries out what is left of a fence whose proof was enough for the start.
    pub(super) async fn finish_fence(
        &self,
        address: &dyn Address,
        host: &HostName,
    ) -> Result<Note, StepError> {
        match self.fence(host)?.finish(host, self.plan.epoch).await {
            Ok(note) => Ok(note),
            Err(error) => match address.holder().await? {
                // It gave the address up, or is gone: nothing of it answers a client.
                None => Ok(Note::new(format!(
                    "nobody else answers for the address; {host} itself may live: {}",
                    chain(&error)
                ))),
                Some(mac) => {
                    let (driver, action) = ("understudy", format!("end the fence of {host}"));
                    let why = format!(
                        "the old host may still answer, for {mac} says to have the address: {}",
                        chain(&error)
                    );
                    Err(StepError::Refused { driver, action, why })
                }
            },
        }
    }
}
