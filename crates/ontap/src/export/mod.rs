//! `ontap_export`: the storage itself lets a host in or not. Each broker's volumes have an export policy of
//! their own, with one rule for the addresses by which the owner mounts them.
//!
//! Fencing takes the host's addresses out of the rule, in one request for each policy, and puts none of
//! another host in: the new owner is let in later, by the storage step, once there is proof. So there is no
//! moment at which two hosts are let in. ONTAP wants a rule to have clients, so addresses that nobody can
//! have are left in it; they carry the epoch (see `marks.rs`). An epoch counts one broker's owners, and a
//! host may own several brokers, so what is read there is for people and never compared.
//!
//! Each node goes by an access cache of its own, and an entry that is past its time is still used once more
//! while it is renewed. So no time that passes proves anything about a host that stood still; the caches are
//! flushed, and what is read back of them is the proof, beside an entry that was seen: "none" is also the
//! answer of a command that shows this account nothing (see `control.rs`). What is assumed of ONTAP, with
//! sources, is in `docs/ontap-assumptions.md`.

mod cache;
mod control;
mod ensure;
mod flush;
mod grant;
mod marks;
mod motion;
mod nodes;
mod preview;
mod second;
mod survey;
#[cfg(test)]
mod tests;
mod witness;

use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ontap_client::Client;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::control::Control;
pub use self::grant::{OntapGrant, OntapGrantConfig};
pub use self::marks::is_mark;
pub use self::nodes::{ServingNodes, serving_nodes};
use self::survey::list;
pub use self::survey::{of_trident, single_address};
use self::witness::{Silence, Witness};
use crate::login::{Login, OntapConfig};
use recovery::model::{Epoch, HostName, human};
use recovery::ports::{Fence, Note, Proof, StepError};

const DRIVER: &str = "ontap_export";

/// Between two looks at what is still missing for a proof.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Denies a host its volumes, by ONTAP's export rules.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OntapExportConfig {
    /// Where ONTAP is, and the account to use there.
    pub ontap: OntapConfig,
    /// The SVM that the volumes belong to.
    pub svm: String,
    /// Every volume that this host may own: those of every broker that lives here, or may move here. Export
    /// policies that they have must be those of no other volume.
    pub volumes: Vec<String>,
    /// Every address by which this host mounts them. That need not be an address of the broker.
    pub addresses: Vec<IpAddr>,
    /// What is enough as proof. `read_back`: the rules let the host in no more, and no lock may be its own.
    /// `flushed`: besides, what every node of ONTAP remembers of the host was read back, and lets it in
    /// nowhere. `idle`: besides, `idle_for` has passed since, in which ONTAP's list of connected clients
    /// shows nothing of the host and something of others: a takeover takes that much longer, and ONTAP may
    /// write that list every 1 to 8 hours only, so that it is never met. With `read_back` a node may let the
    /// host in for an hour.
    #[serde(default)]
    pub proof: ProofLevel,
    /// See `proof`. Kafka that lives and is let in writes to every log dir within 5 s
    /// (`replica.high.watermark.checkpoint.interval.ms`), so it should be longer than that.
    #[serde(default = "six_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub idle_for: Duration,
    /// How long fencing may take, and how long it is tried to prove it. Longer than `idle_for`.
    #[serde(default = "thirty_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
}

/// What is enough as proof.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProofLevel {
    /// The rules, and no locks.
    ReadBack,
    /// And the access caches.
    #[default]
    Flushed,
    /// And silence.
    Idle,
}

fn six_seconds() -> Duration {
    Duration::from_secs(6)
}

fn thirty_seconds() -> Duration {
    Duration::from_secs(30)
}

impl OntapExportConfig {
    /// The driver, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self) -> Result<OntapExport, Vec<String>> {
        let mut problems = self.problems();
        let login = Login::of(&self.ontap).map_err(|more| problems.extend(more));
        match login {
            Ok(login) if problems.is_empty() => Ok(OntapExport {
                login,
                svm: self.svm,
                volumes: self.volumes,
                addresses: self.addresses.iter().map(IpAddr::to_canonical).collect(),
                paths: Vec::new(),
                level: self.proof,
                silence: Mutex::default(),
                control: Mutex::default(),
                idle_for: self.idle_for,
                timeout: self.timeout,
                spares_others: false,
            }),
            _ => Err(problems),
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut problem = |key: &str, why: &str| problems.push(format!("{key}: {why}"));
        if self.svm.is_empty() {
            problem("svm", "must not be empty");
        }
        if self.volumes.is_empty() || self.volumes.iter().any(String::is_empty) {
            problem("volumes", "name every volume that this host may own");
        }
        if self.volumes.iter().collect::<BTreeSet<_>>().len() < self.volumes.len() {
            problem("volumes", "one of them is named twice");
        }
        if self.addresses.is_empty() {
            problem("addresses", "name every address by which this host mounts the volumes");
        }
        if self.addresses.iter().any(|a| is_mark(&a.to_canonical()) || a.is_unspecified()) {
            problem("addresses", "one of them is an address that no host can have");
        }
        if self.idle_for.is_zero() {
            problem("idle_for", "must be longer than zero");
        }
        if self.timeout < Duration::from_secs(1) {
            problem("timeout", "must be a second or longer");
        }
        if self.proof == ProofLevel::Idle && self.timeout <= self.idle_for {
            problem("timeout", "must be longer than idle_for, which begins when the rules have been changed");
        }
        problems
    }
}

/// The driver; see [`OntapExportConfig`].
#[derive(Debug)]
pub struct OntapExport {
    login: Login,
    svm: String,
    volumes: Vec<String>,
    addresses: Vec<IpAddr>,
    /// Export paths that have to be in these volumes.
    paths: Vec<String>,
    level: ProofLevel,
    /// For `idle`.
    silence: Mutex<Option<Silence>>,
    /// For `flushed`.
    control: Mutex<Control>,
    idle_for: Duration,
    timeout: Duration,
    /// See [`OntapExport::sparing_others`].
    spares_others: bool,
}

/// What an act is for, to say so when it fails.
struct Purpose(String);

impl Purpose {
    fn refused(&self, why: impl Into<String>) -> StepError {
        StepError::Refused { driver: DRIVER, action: self.0.clone(), why: why.into() }
    }

    fn failed(&self, source: impl Into<recovery::ports::BoxError>) -> StepError {
        StepError::Failed { driver: DRIVER, action: self.0.clone(), source: source.into() }
    }
}

fn unproven(host: &HostName, purpose: &Purpose, what: &str, looked: Duration) -> StepError {
    purpose.refused(format!(
        "{what} (looked for {}). Not proven, so nothing may be started: fence {host} in another way, or do what is \
         missing \
         by hand and try again",
        human(looked)
    ))
}

impl OntapExport {
    /// The same, for a trial: where the account may not have one policy's entries flushed, it does not flush
    /// those of the whole SVM, and so of every client of it, in their place.
    #[must_use]
    pub fn sparing_others(self) -> Self {
        Self { spares_others: true, ..self }
    }

    async fn client(&self, purpose: &Purpose) -> Result<Client, StepError> {
        let client = self.login.client(self.timeout).await.map_err(|error| purpose.failed(error))?;
        Ok(if self.spares_others { client.sparing_others() } else { client })
    }

    async fn within<T>(
        &self,
        purpose: &Purpose,
        work: impl Future<Output = Result<T, StepError>>,
    ) -> Result<T, StepError> {
        let limit = self.timeout;
        let action = || purpose.0.clone();
        tokio::time::timeout(limit, work)
            .await
            .unwrap_or_else(|_| Err(StepError::Unconfirmed { driver: DRIVER, action: action(), limit }))
    }

    /// Reads anew until nothing is missing, or what is missing cannot come by waiting. `last`: what was
    /// missing when it was last looked, for whoever runs out of time.
    async fn proof(
        &self,
        host: &HostName,
        purpose: &Purpose,
        last: &Mutex<Option<String>>,
    ) -> Result<Note, StepError> {
        let begun = Instant::now();
        let client = self.client(purpose).await?;
        loop {
            let mut witness = self.witness(&client, purpose).await?;
            let missing = witness.missing(self.level, self.idle_for);
            if missing.is_empty() {
                witness.unnamed = self.unnamed(&client, &witness.survey).await;
                return Ok(self.proven(host, &witness));
            }
            // None: something is missing that no time brings.
            let wait = missing.iter().map(|missing| missing.soonest).collect::<Option<Vec<Duration>>>();
            let wait = wait.and_then(|all| all.into_iter().max()).map(|soonest| soonest.max(LOOK_AGAIN));
            let what: Vec<&str> = missing.iter().map(|missing| missing.what.as_str()).collect();
            let what = what.join("; ");
            let Some(wait) = wait.filter(|wait| begun.elapsed() + *wait < self.timeout) else {
                return Err(unproven(host, purpose, &what, begun.elapsed()));
            };
            *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
            tokio::time::sleep(wait).await;
        }
    }

    fn proven(&self, host: &HostName, witness: &Witness) -> Note {
        let (closed, open) = witness.survey.closed_and_open();
        let locks = match (closed.is_empty(), witness.unnamed.is_some()) {
            (_, false) => "and it holds no lock there".to_owned(),
            (false, true) => format!("and it holds no lock in {}", list(&closed)),
            (true, true) => format!("and no lock in {} names it", list(&open)),
        };
        let text = format!(
            "no export rule of {} lets {host} ({}) in, {locks}; access caches: {}",
            self.volumes.join(", "),
            list(&self.addresses),
            witness.cache_words()
        );
        let rules: Vec<String> = witness.survey.exports.iter().map(survey::Export::words).collect();
        Note::new(text)
            .with("rules", rules.join("; "))
            .with("locks", witness.lock_words())
            .with("access_cache", witness.cache_words())
            .with("entries_seen", witness.seen_words())
            .with("check_access", witness.second.words())
            .with("idle", witness.idle_words())
            .with("not_proven", witness.not_proven())
    }
}

#[async_trait]
impl Fence for OntapExport {
    fn leaves_running(&self) -> bool {
        true
    }

    fn name(&self) -> &str {
        DRIVER
    }

    async fn fence(&self, host: &HostName, epoch: Epoch) -> Result<Note, StepError> {
        let purpose = Purpose(format!("deny {host} its volumes"));
        self.within(&purpose, async {
            let client = self.client(&purpose).await?;
            self.deny(&client, host, epoch, &purpose).await
        })
        .await
    }

    async fn prove(&self, host: &HostName, _epoch: Epoch) -> Result<Proof, StepError> {
        let purpose = Purpose(format!("prove that {host} is denied its volumes"));
        let last = Mutex::default();
        let note = match self.within(&purpose, self.proof(host, &purpose, &last)).await {
            Err(late @ StepError::Unconfirmed { .. }) => {
                let last = last.into_inner().unwrap_or_else(PoisonError::into_inner);
                return Err(last.map_or(late, |what| unproven(host, &purpose, &what, self.timeout)));
            }
            note => note?,
        };
        Ok(Proof { host: host.clone(), by: DRIVER.to_owned(), note })
    }

    async fn lift(&self, host: &HostName) -> Result<Note, StepError> {
        let purpose = Purpose(format!("let {host} in to its volumes again"));
        self.within(&purpose, async {
            let client = self.client(&purpose).await?;
            self.readmit(&client, host, &purpose).await
        })
        .await
    }

    async fn check(&self, host: &HostName) -> Result<Note, StepError> {
        let purpose = Purpose(format!("be sure of denying {host} its volumes"));
        self.within(&purpose, async {
            let client = self.client(&purpose).await?;
            self.preview(&client, host, &purpose).await
        })
        .await
    }
}
