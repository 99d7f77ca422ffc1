//! The changes, each an ensure: what is as it must be is left alone, so that an attempt that broke off half
//! way is carried on by repeating it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use futures_util::future::join_all;
use ontap_client::Client;

use super::flush::Flush;
use super::survey::{Export, Look, Survey, list};
use super::{OntapExport, ProofLevel, Purpose, marks};
use recovery::model::{Epoch, HostName};
use recovery::ports::{Note, StepError};

/// How often locks are broken again that have come back.
const LOCK_ROUNDS: usize = 3;

/// How often rules are changed again that somebody else was changing too.
const RULE_ROUNDS: usize = 3;

impl OntapExport {
    /// What is configured at ONTAP, if the host can be fenced by it. Nothing is changed before that is known
    /// of all volumes.
    pub(super) async fn survey(&self, client: &Client, purpose: &Purpose) -> Result<Survey, StepError> {
        let volumes: Vec<&str> = self.volumes.iter().map(String::as_str).collect();
        let look = Look::at(client, &self.svm, &volumes).await.map_err(|error| purpose.failed(error))?;
        let exports = look.survey(self).map_err(|all| purpose.refused(all.join("; ")))?;
        let shared: Vec<String> = exports.iter().filter_map(|e| e.shared_with(&self.addresses)).collect();
        if shared.is_empty() { Ok(look.with(exports)) } else { Err(purpose.refused(shared.join("; "))) }
    }

    /// Takes the host out of every rule, then breaks its locks.
    pub(super) async fn deny(
        &self,
        client: &Client,
        host: &HostName,
        epoch: Epoch,
        purpose: &Purpose,
    ) -> Result<Note, StepError> {
        if self.level >= ProofLevel::Flushed {
            let survey = self.survey(client, purpose).await?;
            self.look_before(client, &survey).await;
        }
        let (exports, emptied) = self.empty_rules(client, epoch, purpose).await?;
        // Before the locks: who is still let in from a cache would take them again.
        let flush = Flush::everywhere(client, &self.svm, &exports.iter().collect::<Vec<_>>()).await;
        let broken = self.break_locks(client, purpose).await?;
        let text = format!(
            "{host} ({}) was taken out of {} of {} export rules, and {broken} locks of it were broken",
            list(&self.addresses),
            emptied,
            exports.len()
        );
        let policies: Vec<&str> = exports.iter().map(|export| export.policy.as_str()).collect();
        Ok(Note::new(text)
            .with("policies", policies.join(", "))
            .with("locks_broken", broken)
            .with("access_cache", flush.words()))
    }

    /// Until no rule lets the host in; returns how many were changed here. Takeovers of two brokers of one
    /// host empty the same rules at the same time, and then whoever comes second finds a rule changed, and
    /// nothing left to do.
    async fn empty_rules(
        &self,
        client: &Client,
        epoch: Epoch,
        purpose: &Purpose,
    ) -> Result<(Vec<Export>, usize), StepError> {
        let mut rounds = 1;
        loop {
            let exports = self.survey(client, purpose).await?.exports;
            let open: Vec<&Export> = exports.iter().filter(|export| export.admits(&self.addresses)).collect();
            let emptied = open.len();
            match self.set_clients(client, &open, |_| marks::of(epoch).to_vec(), purpose).await {
                Ok(()) => return Ok((exports, emptied)),
                Err(error) if rounds == RULE_ROUNDS => return Err(error),
                Err(_) => rounds += 1,
            }
        }
    }

    /// Puts the host back wherever nobody else is let in.
    pub(super) async fn readmit(
        &self,
        client: &Client,
        host: &HostName,
        purpose: &Purpose,
    ) -> Result<Note, StepError> {
        let exports = self.survey(client, purpose).await?.exports;
        let (closed, open): (Vec<_>, Vec<_>) = exports.iter().partition(|export| export.clients.is_empty());
        // The epoch stays readable.
        let clients = |export: &Export| self.addresses.iter().chain(&export.marks).copied().collect();
        self.set_clients(client, &closed, clients, purpose).await?;
        // That it was refused is remembered as well; without the flush it is for a while.
        let flush = Flush::outdated(client, &self.svm, &closed, (&self.addresses, true)).await;
        let left: Vec<String> =
            open.iter().filter(|export| !export.admits(&self.addresses)).map(|e| e.words()).collect();
        let left = if left.is_empty() {
            String::new()
        } else {
            format!("; left to their owners: {}", left.join("; "))
        };
        let text = format!("{host} is let in again by {} export rules{left}", closed.len());
        Ok(Note::new(text).with("access_cache", flush.words()))
    }

    /// Side by side, each in one request and read back.
    pub(super) async fn set_clients(
        &self,
        client: &Client,
        exports: &[&Export],
        clients: impl Fn(&Export) -> Vec<IpAddr>,
        purpose: &Purpose,
    ) -> Result<(), StepError> {
        let changes = exports.iter().map(|export| {
            let clients: Vec<String> = clients(export).iter().map(ToString::to_string).collect();
            async move {
                let clients: Vec<&str> = clients.iter().map(String::as_str).collect();
                client.replace_clients(export.id, &export.rule, &clients).await
            }
        });
        let done = join_all(changes).await;
        let results = exports.iter().zip(&done);
        let failed: Vec<&str> =
            results.filter(|(_, done)| done.is_err()).map(|(export, _)| export.policy.as_str()).collect();
        let failed = failed.join(", ");
        let Some(error) = done.into_iter().find_map(Result::err) else { return Ok(()) };
        let action = format!(
            "{} (the rule of export policy {failed} could not be changed, or not surely; repeating it carries on)",
            purpose.0
        );
        Err(Purpose(action).failed(error))
    }

    /// Breaks what may be the host's locks in the volumes, one by one, and nobody else's. Returns how many
    /// there were.
    ///
    /// Where ONTAP does not name the holder, the rules are read once more after the lock was seen: if they
    /// let somebody in by then, it may be that one's.
    async fn break_locks(&self, client: &Client, purpose: &Purpose) -> Result<usize, StepError> {
        let mut broken = BTreeSet::new();
        let mut survey = self.survey(client, purpose).await?;
        for round in 0..=LOCK_ROUNDS {
            let held = self.locks(client, &survey).await.map_err(|error| purpose.failed(error))?;
            if held.is_empty() {
                return Ok(broken.len());
            }
            if round == LOCK_ROUNDS {
                let why = format!(
                    "{} of its locks are there still, or again, after {LOCK_ROUNDS} rounds of breaking them: it is \
                     still let \
                     in, or they cannot be broken{}",
                    held.len(),
                    self.nameless(&held)
                );
                return Err(purpose.refused(why));
            }
            survey = self.survey(client, purpose).await?;
            let still = held
                .iter()
                .filter(|lock| self.may_break(lock) && survey.may_be_held_by(&self.addresses, lock));
            let uuids: Vec<&str> = still.map(|lock| lock.uuid.as_str()).collect();
            let done = client.break_these_locks(&self.svm, &uuids).await;
            done.map_err(|error| purpose.failed(error))?;
            broken.extend(uuids.into_iter().map(str::to_owned));
        }
        Ok(broken.len())
    }
}
