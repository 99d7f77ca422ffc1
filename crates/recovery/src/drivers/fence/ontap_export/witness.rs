//! What ONTAP shows of a host that was denied: rules, locks, cache, silence. What cannot be read is not
//! proven.

use std::sync::PoisonError;
use std::time::Duration;

use futures_util::future::try_join_all;
use ontap_client::{Client, Lock, LockQuery, NfsClient, NfsClientQuery, Reference};
use tokio::time::Instant;

use super::survey::Export;
use super::{OntapExport, ProofLevel, Purpose};
use crate::model::human;
use crate::ports::{StepError, chain};

/// What became of the access cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Flush {
    /// Nobody asked for it to be flushed.
    Not,
    /// ONTAP took the order, at this time. There is nothing to read back.
    Ordered(Instant),
    /// It did not, or nobody knows.
    Failed { why: String, may_come: bool },
}

impl Flush {
    /// Makes every node forget who was let in to the SVM.
    pub(super) async fn order(client: &Client, svm: &str) -> Self {
        match client.flush_access_cache(svm, None).await {
            Ok(()) => Self::Ordered(Instant::now()),
            // Sending it twice does no harm.
            Err(error) => {
                Self::Failed { may_come: error.is_passing() || error.is_unconfirmed(), why: chain(&error) }
            }
        }
    }

    pub(super) fn words(&self) -> String {
        match self {
            Self::Not => "not flushed".to_owned(),
            Self::Ordered(_) => "ordered to be flushed on every node".to_owned(),
            Self::Failed { why, .. } => format!("not flushed: {why}"),
        }
    }
}

/// Something that a proof lacks.
pub(super) struct Missing {
    pub(super) what: String,
    /// When it may be there, at the soonest; `None`: not by waiting.
    pub(super) soonest: Option<Duration>,
}

impl Missing {
    fn soon(what: String) -> Self {
        Self { what, soonest: Some(Duration::ZERO) }
    }

    fn never(what: String) -> Self {
        Self { what, soonest: None }
    }
}

/// What one look showed.
pub(super) struct Witness {
    pub(super) exports: Vec<Export>,
    pub(super) flush: Flush,
    /// Policies that let the host in.
    open: Vec<String>,
    locks: usize,
    connected: Vec<NfsClient>,
    /// When it was asked who is connected.
    asked: Instant,
}

impl OntapExport {
    /// Looks at everything. The cache is flushed once, after the rules were read to be closed and before the
    /// rest is looked at. An earlier flush is as good as long as the rules read as they did then, epoch and
    /// all.
    pub(super) async fn witness(
        &self,
        client: &Client,
        purpose: &Purpose,
        flush: &mut Flush,
    ) -> Result<Witness, StepError> {
        let exports = self.survey(client, purpose).await?;
        let open: Vec<String> =
            exports.iter().filter(|e| e.admits(&self.addresses)).map(|e| e.policy.clone()).collect();
        if self.level >= ProofLevel::Flushed && open.is_empty() && !matches!(flush, Flush::Ordered(_)) {
            *flush = match self.flushed_before(&exports) {
                Some(at) => Flush::Ordered(at),
                None => Flush::order(client, &self.svm).await,
            };
            if let Flush::Ordered(at) = flush {
                *self.flushed.lock().unwrap_or_else(PoisonError::into_inner) = Some((exports.clone(), *at));
            }
        }
        let asked = Instant::now();
        let (locks, connected) = tokio::try_join!(self.locks(client), self.connected(client))
            .map_err(|error| purpose.failed(error))?;
        Ok(Witness { exports, flush: flush.clone(), open, locks: locks.len(), connected, asked })
    }

    fn flushed_before(&self, exports: &[Export]) -> Option<Instant> {
        let flushed = self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        flushed
            .as_ref()
            .filter(|(then, at)| then == exports && at.elapsed() < self.timeout)
            .map(|(_, at)| *at)
    }

    /// The host's locks in the volumes, of whatever protocol. One request for each of its addresses.
    pub(super) async fn locks(&self, client: &Client) -> ontap_client::Result<Vec<Lock>> {
        let asks = self.addresses.iter().map(|address| async move {
            let address = address.to_string();
            client.locks(&LockQuery { client_address: Some(&address), ..LockQuery::in_svm(&self.svm) }).await
        });
        let all = try_join_all(asks).await?.into_iter().flatten();
        Ok(all.filter(|lock| self.may_be_ours(&lock.volume)).collect())
    }

    /// The host's entries for the volumes in the list of connected clients.
    pub(super) async fn connected(&self, client: &Client) -> ontap_client::Result<Vec<NfsClient>> {
        let asks = self.addresses.iter().map(|address| async move {
            let address = address.to_string();
            let which = NfsClientQuery { svm: &self.svm, volume: None, client_ip: Some(&address) };
            client.nfs_clients(&which).await
        });
        let all = try_join_all(asks).await?.into_iter().flatten();
        Ok(all.filter(|entry| self.may_be_ours(&entry.volume)).collect())
    }

    /// One of the volumes, a constituent of one (`NAME__0001`), or one that ONTAP does not name.
    pub(super) fn may_be_ours(&self, volume: &Reference) -> bool {
        let Some(name) = volume.name.as_deref() else { return true };
        let constituent = |ours: &str| name.strip_prefix(ours).is_some_and(|rest| rest.starts_with("__"));
        self.volumes.iter().any(|ours| ours == name || constituent(ours))
    }
}

impl Witness {
    /// What a proof of this level lacks.
    pub(super) fn missing(&self, level: ProofLevel, idle_for: Duration) -> Vec<Missing> {
        let mut missing = Vec::new();
        if !self.open.is_empty() {
            missing.push(Missing::never(format!("export policy {} lets it in", self.open.join(", "))));
        }
        if self.locks > 0 {
            missing.push(Missing::soon(format!("it holds {} locks", self.locks)));
        }
        if level >= ProofLevel::Flushed && self.open.is_empty() {
            match &self.flush {
                Flush::Ordered(_) => {}
                Flush::Failed { may_come: true, .. } => missing.push(Missing::soon(self.cache())),
                _ => missing.push(Missing::never(self.cache())),
            }
        }
        if level >= ProofLevel::Idle {
            missing.extend(self.busy(idle_for));
        }
        missing
    }

    fn cache(&self) -> String {
        format!("the access cache is {}", self.flush.words())
    }

    fn busy(&self, idle_for: Duration) -> Option<Missing> {
        let unknown = self.connected.iter().any(|entry| entry.idle.is_none());
        if unknown {
            return Some(Missing::soon("ONTAP does not say how long it has been idle".to_owned()));
        }
        // What it did before it could be denied says nothing, and nor does its silence then.
        let since = match self.flush {
            Flush::Ordered(at) => self.asked.saturating_duration_since(at),
            _ => Duration::ZERO,
        };
        let shown = self.idle().map_or(since, |idle| idle.min(since));
        (shown < idle_for).then(|| Missing {
            what: format!(
                "since the rules deny it, it is known to have been idle for {} only; {} are asked for",
                human(shown),
                human(idle_for)
            ),
            soonest: Some(idle_for.saturating_sub(shown)),
        })
    }

    /// Since its last operation, where ONTAP knows of one.
    fn idle(&self) -> Option<Duration> {
        self.connected.iter().filter_map(|entry| entry.idle).min()
    }

    pub(super) fn idle_words(&self) -> String {
        match (self.connected.is_empty(), self.idle()) {
            (true, _) => "not among the connected clients".to_owned(),
            (false, Some(idle)) => format!("idle for {}", human(idle)),
            (false, None) => "connected, idle for an unknown time".to_owned(),
        }
    }

    pub(super) fn words(&self) -> String {
        format!("access cache {}; {}", self.flush.words(), self.idle_words())
    }

    /// What nobody has shown, for whoever reads the history.
    pub(super) fn not_proven(&self, idle_for: Duration) -> String {
        let mut lacking = vec!["that a write of the host was denied (nobody tried one from there)"];
        match self.flush {
            Flush::Ordered(_) => lacking.push("that every node has carried out the flush"),
            _ => lacking.push("that no node's access cache lets it in"),
        }
        if self.busy(idle_for).is_some() {
            lacking.push("that it does nothing");
        }
        lacking.join("; ")
    }
}
