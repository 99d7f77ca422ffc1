//! The other half: the new owner is let in, by the storage step, which comes after the proof.
//!
//! It is put in where nobody is let in, and nowhere else: whoever stands in a rule still has to be fenced
//! first. One request names the whole list, so that of two claimants who write at once one is let in, never
//! both.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ontap_client::{Client, Lock, LockKind, LockQuery};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use super::flush::Flush;
use super::survey::{Export, Survey, list};
use super::{OntapConfig, OntapExport, OntapExportConfig, ProofLevel, Purpose, marks};
use crate::moves;
use recovery::model::{Epoch, Grace, human};
use recovery::ports::{Note, StepError};

/// Lets this host in to the broker's volumes by ONTAP's export rules, before they are mounted, and takes it
/// out again after they were unmounted.
///
/// For brokers whose owner is fenced by `ontap_export`, on the first rung: a rule that still lets another
/// host in is not changed here, whatever else has proven that host fenced.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OntapGrantConfig {
    /// Where ONTAP is, and the account to use there.
    pub ontap: OntapConfig,
    /// The SVM that the volumes belong to.
    pub svm: String,
    /// The volumes of this broker, all of them. Their export policies must be those of no other volume.
    pub volumes: Vec<String>,
    /// Every address by which this host mounts them.
    pub addresses: Vec<IpAddr>,
    /// The export paths that are mounted, such as `/kafka01`: each must be in one of the volumes. Those of
    /// the mount sources are known without being named here.
    #[serde(default)]
    pub paths: Vec<String>,
    /// How long it may take.
    #[serde(default = "ten_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

impl OntapGrantConfig {
    /// What does it for a broker that mounts these sources (`server:/path`), ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self, sources: &[String]) -> Result<OntapGrant, Vec<String>> {
        let Self { ontap, svm, volumes, addresses, paths, timeout } = self;
        // Nothing is proven here.
        let (proof, idle_for) = (ProofLevel::ReadBack, timeout);
        let config = OntapExportConfig { ontap, svm, volumes, addresses, proof, idle_for, timeout };
        let path = |source: &String| source.rsplit_once(":/").map(|(_, path)| format!("/{path}"));
        let paths = sources.iter().filter_map(path).chain(paths).collect();
        Ok(OntapGrant(OntapExport { paths, ..config.build()? }))
    }
}

/// Kafka locks this file in every log dir; it is the only lock that it takes.
const KAFKA_LOCK: &str = ".lock";

/// How long may be asked what has moved: whoever waits for a lock wants to see it freed.
const GRACE_LIMIT: Duration = Duration::from_secs(2);

/// How often locks are broken again that have come back.
const LOCK_ROUNDS: usize = 3;

fn is_kafkas(lock: &Lock) -> bool {
    let named = lock.path.as_deref().is_some_and(|path| path.rsplit('/').next() == Some(KAFKA_LOCK));
    named && lock.kind == Some(LockKind::ByteRange)
}

/// See [`OntapGrantConfig`].
#[derive(Debug)]
pub struct OntapGrant(pub(super) OntapExport);

impl OntapGrant {
    /// See [`OntapExport::sparing_others`].
    #[must_use]
    pub fn sparing_others(self) -> Self {
        Self(self.0.sparing_others())
    }

    #[cfg(test)]
    pub(crate) async fn client(&self) -> Client {
        self.0.client(&self.purpose("see")).await.unwrap()
    }

    /// Ensures that this host is let in, alone, and that the epoch can be read.
    ///
    /// # Errors
    /// If anybody else is let in, or ONTAP does not do as it is told.
    pub async fn admit(&self, epoch: Epoch) -> Result<Note, StepError> {
        let purpose = self.purpose("let this host in to");
        self.0
            .within(&purpose, async {
                let client = self.0.client(&purpose).await?;
                self.put_in(&client, epoch, &purpose).await
            })
            .await
    }

    /// Breaks the locks on Kafka's `.lock` files in the broker's volumes, whoever holds them, and reads back
    /// that none is left. For a fence that leaves them behind, such as power: after the proof, and while no
    /// Kafka of the broker runs.
    ///
    /// # Errors
    /// If ONTAP does not do as it is told, or a lock is there again.
    pub async fn break_locks(&self) -> Result<Note, StepError> {
        let purpose = self.purpose("break the locks that are left in");
        self.0
            .within(&purpose, async {
                let client = self.0.client(&purpose).await?;
                self.break_kafkas(&client, &purpose).await
            })
            .await
    }

    /// Whether ONTAP shows that what serves the volumes has moved, so that it may grant no new lock for a
    /// while.
    pub async fn grace(&self) -> Option<Grace> {
        let purpose = self.purpose("see what moved of");
        let client = self.0.client(&purpose).await.ok()?.within(GRACE_LIMIT);
        let (svm, volumes) = (&self.0.svm, self.0.volumes.iter().map(String::as_str).collect::<Vec<_>>());
        let (places, grace) = tokio::join!(moves::places(&client, svm, &volumes), moves::grace(&client, svm));
        places.ok()?.grace((self.0.login.name(), svm), grace)
    }

    /// Ensures that this host is let in no more. Whoever else is let in stays so.
    ///
    /// # Errors
    /// If ONTAP does not do as it is told.
    pub async fn withdraw(&self) -> Result<Note, StepError> {
        let purpose = self.purpose("take this host out of the export rules of");
        self.0
            .within(&purpose, async {
                let client = self.0.client(&purpose).await?;
                self.take_out(&client, &purpose).await
            })
            .await
    }

    /// Whether the rules are such that a takeover could let this host in. Changes nothing.
    ///
    /// # Errors
    /// Everything that speaks against it.
    pub async fn check(&self) -> Result<Note, StepError> {
        let purpose = self.purpose("be sure of letting this host in to");
        self.0
            .within(&purpose, async {
                let client = self.0.client(&purpose).await?;
                let exports = self.own(&client, &purpose).await?.exports;
                let rules: Vec<String> = exports.iter().map(Export::words).collect();
                let text = format!(
                    "ONTAP can let this host in ({}); now: {}",
                    list(&self.0.addresses),
                    rules.join("; ")
                );
                Ok(Note::new(text))
            })
            .await
    }

    /// The exports, if they are those of the broker's volumes alone: whoever is let in to a clone of them by
    /// the way may write to that as well.
    async fn own(&self, client: &Client, purpose: &Purpose) -> Result<Survey, StepError> {
        let survey = self.0.survey(client, purpose).await?;
        match survey.exports.iter().find(|export| !export.strangers.is_empty()) {
            None => Ok(survey),
            Some(Export { policy, strangers, .. }) => Err(purpose.refused(format!(
                "export policy {policy} is that of {} too: give the broker's volumes a policy of their own, or name \
                 all of \
                 the broker's volumes in `volumes`",
                strangers.join(", ")
            ))),
        }
    }

    fn purpose(&self, act: &str) -> Purpose {
        Purpose(format!("{act} {}", self.0.volumes.join(", ")))
    }

    /// By their keys, for ONTAP does not always tell whose a lock is.
    async fn break_kafkas(&self, client: &Client, purpose: &Purpose) -> Result<Note, StepError> {
        let survey = self.0.survey(client, purpose).await?;
        let volumes: Vec<&str> = self.0.volumes.iter().map(String::as_str).collect();
        let held = async || {
            let all = client.locks(&LockQuery { volumes: &volumes, ..LockQuery::in_svm(&self.0.svm) }).await;
            let mut all = all.map_err(|error| purpose.failed(error))?;
            all.retain(|lock| survey.may_be_ours(&lock.volume) && is_kafkas(lock));
            Ok::<_, StepError>(all)
        };
        let mut found = held().await?;
        let mut broken = BTreeSet::new();
        for _ in 0..LOCK_ROUNDS {
            if found.is_empty() {
                break;
            }
            let uuids: Vec<&str> = found.iter().map(|lock| lock.uuid.as_str()).collect();
            client.break_these_locks(&self.0.svm, &uuids).await.map_err(|error| purpose.failed(error))?;
            broken.extend(found.into_iter().map(|lock| lock.uuid));
            found = held().await?;
        }
        if let Some(left) = found.first() {
            let path = left.path.as_deref().unwrap_or(KAFKA_LOCK);
            let why =
                format!("{path} is locked again after {LOCK_ROUNDS} rounds: its holder is still let in");
            return Err(purpose.refused(why));
        }
        let count = broken.len();
        Ok(Note::new(format!("{count} locks on {KAFKA_LOCK} were broken")).with("locks_broken", count))
    }

    async fn put_in(&self, client: &Client, epoch: Epoch, purpose: &Purpose) -> Result<Note, StepError> {
        let (ours, begun) = (&self.0.addresses, Instant::now());
        let exports = self.own(client, purpose).await?.exports;
        let taken: Vec<String> =
            exports.iter().filter(|e| !e.others(ours).is_empty()).map(Export::words).collect();
        if !taken.is_empty() {
            let why = format!(
                "somebody else is still let in ({}). ontap_export has to be the first fence of that host; if it is off \
                 for certain, take it out of the rule by hand",
                taken.join("; ")
            );
            return Err(purpose.refused(why));
        }
        let is_done = |export: &Export| {
            let marks: Vec<IpAddr> = export.marks.iter().copied().collect();
            ours.iter().all(|a| export.clients.contains(a)) && marks::epoch(&marks) == Some(epoch)
        };
        let todo: Vec<&Export> = exports.iter().filter(|export| !is_done(export)).collect();
        // Who stood still meanwhile may have been succeeded.
        if begun.elapsed() >= self.0.timeout {
            let why = format!("reading the rules took {}, and they may have changed", human(begun.elapsed()));
            return Err(purpose.refused(why));
        }
        let clients = |_: &Export| ours.iter().copied().chain(marks::of(epoch)).collect();
        self.0.set_clients(client, &todo, clients, purpose).await?;
        // That this host was refused may be remembered too; then its mount would be refused for a while.
        let flush = Flush::outdated(client, &self.0.svm, &todo, (ours, true)).await;
        let policies: Vec<&str> = exports.iter().map(|export| export.policy.as_str()).collect();
        let text = format!("{} is let in by {} export rules, alone", list(ours), exports.len());
        Ok(Note::new(text).with("policies", policies.join(", ")).with("access_cache", flush.words()))
    }

    async fn take_out(&self, client: &Client, purpose: &Purpose) -> Result<Note, StepError> {
        let exports = self.0.survey(client, purpose).await?.exports;
        let open: Vec<&Export> = exports.iter().filter(|e| e.admits(&self.0.addresses)).collect();
        // A rule wants clients. Without an epoch of a takeover it is that before the first one.
        let left = |export: &Export| match export.marks.is_empty() {
            true => marks::of(Epoch(0)).to_vec(),
            false => export.marks.iter().copied().collect(),
        };
        self.0.set_clients(client, &open, left, purpose).await?;
        let flush = Flush::outdated(client, &self.0.svm, &open, (&self.0.addresses, false)).await;
        let text = format!("{} was taken out of {} export rules", list(&self.0.addresses), open.len());
        Ok(Note::new(text).with("access_cache", flush.words()))
    }
}
