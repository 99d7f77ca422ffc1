//! The changes, each an ensure: what is as it must be is left alone, so that an attempt that broke off half
//! way is carried on by repeating it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use futures_util::future::join_all;
use ontap_client::{Client, LockQuery};

use super::survey::{Export, Look, list};
use super::witness::Flush;
use super::{OntapExport, ProofLevel, Purpose, marks};
use crate::model::{Epoch, HostName, human};
use crate::ports::{Note, StepError};

/// How often locks are broken again that have come back.
const LOCK_ROUNDS: usize = 3;

/// How often rules are changed again that somebody else was changing too.
const RULE_ROUNDS: usize = 3;

impl OntapExport {
    /// What is configured at ONTAP, if the host can be fenced by it. Nothing is changed before that is known
    /// of all volumes.
    pub(super) async fn survey(&self, client: &Client, purpose: &Purpose) -> Result<Vec<Export>, StepError> {
        let look = Look::at(client, &self.svm).await.map_err(|error| purpose.failed(error))?;
        let exports = look.survey(self).map_err(|all| purpose.refused(all.join("; ")))?;
        let shared: Vec<String> = exports.iter().filter_map(|e| e.shared_with(&self.addresses)).collect();
        if shared.is_empty() { Ok(exports) } else { Err(purpose.refused(shared.join("; "))) }
    }

    /// Takes the host out of every rule, then breaks its locks.
    pub(super) async fn deny(
        &self,
        client: &Client,
        host: &HostName,
        epoch: Epoch,
        purpose: &Purpose,
    ) -> Result<Note, StepError> {
        let (exports, emptied) = self.empty_rules(client, epoch, purpose).await?;
        // Before the locks: who is still let in from a cache would take them again.
        let flush = Flush::order(client, &self.svm).await;
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
            let exports = self.survey(client, purpose).await?;
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
        let exports = self.survey(client, purpose).await?;
        let (closed, open): (Vec<_>, Vec<_>) = exports.iter().partition(|export| export.clients.is_empty());
        // The epoch stays readable.
        let clients = |export: &Export| self.addresses.iter().chain(&export.marks).copied().collect();
        self.set_clients(client, &closed, clients, purpose).await?;
        // That it was refused is remembered as well; without the flush it is for a while.
        let flush = if closed.is_empty() { Flush::Not } else { Flush::order(client, &self.svm).await };
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

    /// Whether fencing would work, as far as that can be seen without doing it.
    pub(super) async fn preview(
        &self,
        client: &Client,
        host: &HostName,
        purpose: &Purpose,
    ) -> Result<Note, StepError> {
        let exports = self.survey(client, purpose).await?;
        let (locks, clients) = tokio::try_join!(self.locks(client), self.connected(client))
            .map_err(|error| purpose.failed(error))?;
        let flush = self.try_flush(client, purpose).await?;
        let owned: Vec<&Export> = exports.iter().filter(|export| export.admits(&self.addresses)).collect();
        let mut text = format!(
            "ONTAP can deny {host} ({}) its volumes: now it is let in to {} of {}",
            list(&self.addresses),
            owned.iter().map(|export| export.volumes.len()).sum::<usize>(),
            self.volumes.len()
        );
        if !owned.is_empty() && clients.is_empty() {
            text.push_str(
                ". WARNING: no client with these addresses is connected: see that they are those by which it mounts",
            );
        }
        text.push_str(&self.slow_list(client).await);
        text.push_str(". Not tried: changing rules and breaking locks");
        let rules: Vec<String> = exports.iter().map(Export::words).collect();
        Ok(Note::new(text)
            .with("rules", rules.join("; "))
            .with("locks", locks.len())
            .with("connected", clients.len())
            .with("access_cache", flush.words()))
    }

    /// It changes nothing but what the nodes remember, and where an account may not, nothing is ever proven.
    async fn try_flush(&self, client: &Client, purpose: &Purpose) -> Result<Flush, StepError> {
        if self.level < ProofLevel::Flushed {
            return Ok(Flush::Not);
        }
        match Flush::order(client, &self.svm).await {
            Flush::Failed { why, .. } => Err(purpose.refused(format!(
                "the access cache cannot be flushed, so nothing would ever be proven: {why}. Give the account the right \
                 to `vserver export-policy cache flush`, or choose proof = \"read_back\" if that is enough for you"
            ))),
            flush => Ok(flush),
        }
    }

    /// A list that is written down seldom shows a client as idle that is not.
    async fn slow_list(&self, client: &Client) -> String {
        if self.level < ProofLevel::Idle {
            return String::new();
        }
        match client.nfs_client_settings().await.map(|settings| settings.update) {
            Ok(Some(update)) if update > self.idle_for => format!(
                ". WARNING: ONTAP writes down who is connected every {} only: set idle_for to that or more, or what it \
                 proves is not worth much (`vserver nfs connected-clients` settings)",
                human(update)
            ),
            Ok(Some(_)) => String::new(),
            Ok(None) | Err(_) => ". How often ONTAP writes down who is connected, it does not say".to_owned(),
        }
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

    /// Breaks the host's locks in the volumes, and nobody else's. Returns how many there were.
    async fn break_locks(&self, client: &Client, purpose: &Purpose) -> Result<usize, StepError> {
        let mut broken = 0;
        let mut held = self.locks(client).await.map_err(|error| purpose.failed(error))?;
        for _ in 0..LOCK_ROUNDS {
            if held.is_empty() {
                return Ok(broken);
            }
            broken += held.len();
            let places: BTreeSet<(&str, &str)> = held
                .iter()
                .filter_map(|lock| Some((lock.volume.name.as_deref()?, lock.client_address.as_deref()?)))
                .collect();
            let acts = places.iter().map(|(volume, address)| {
                let (volume, client_address) = (Some(*volume), Some(*address));
                let which = LockQuery { volume, client_address, ..LockQuery::in_svm(&self.svm) };
                async move { client.break_locks(&which).await }
            });
            let done: Result<Vec<u64>, _> = join_all(acts).await.into_iter().collect();
            done.map_err(|error| purpose.failed(error))?;
            held = self.locks(client).await.map_err(|error| purpose.failed(error))?;
        }
        if held.is_empty() {
            return Ok(broken);
        }
        let why = format!(
            "{} of its locks are there again after {LOCK_ROUNDS} rounds of breaking them: it is still let in, or they \
             cannot be broken. Flush the access cache (`vserver export-policy cache flush -vserver {} -cache access`)",
            held.len(),
            self.svm
        );
        Err(purpose.refused(why))
    }
}
