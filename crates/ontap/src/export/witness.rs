//! What ONTAP shows of a host that was denied: rules, locks, caches, silence. What cannot be read is not
//! proven.

use std::sync::PoisonError;
use std::time::Duration;

use futures_util::future::try_join_all;
use ontap_client::{Client, Lock, LockQuery, NfsClient, NfsClientQuery};
use tokio::time::Instant;

use super::cache::ReadBack;
use super::control::Seen;
use super::flush::Flush;
use super::motion::{self, Motion};
use super::second::{Second, second};
use super::survey::{Export, Survey, list};
use super::{OntapExport, ProofLevel, Purpose};
use recovery::model::human;
use recovery::ports::{StepError, chain};

/// How long the locks may take of which nothing can be proven anyway.
const UNNAMED_LIMIT: Duration = Duration::from_secs(3);

/// Something that a proof lacks.
pub(super) struct Missing {
    pub(super) what: String,
    /// When it may be there, at the soonest; `None`: not by waiting.
    pub(super) soonest: Option<Duration>,
}

impl Missing {
    pub(super) fn soon(what: String) -> Self {
        Self { what, soonest: Some(Duration::ZERO) }
    }

    pub(super) fn never(what: String) -> Self {
        Self { what, soonest: None }
    }
}

/// Since when the rules and the nodes' caches are known to deny the host, and what the list of connected
/// clients has shown since. A takeover proves twice, and is silent once.
#[derive(Debug, Clone)]
pub(super) struct Silence {
    exports: Vec<Export>,
    since: Instant,
    motion: Motion,
}

/// What one look showed.
pub(super) struct Witness {
    pub(super) survey: Survey,
    pub(super) cache: Option<ReadBack>,
    seen: Option<Seen>,
    pub(super) flush: Flush,
    pub(super) second: Second,
    /// Policies that let the host in.
    open: Vec<String>,
    locks: usize,
    /// What is to be said of those whose volume ONTAP does not name.
    nameless: String,
    connected: Vec<NfsClient>,
    /// When it was asked who is connected.
    asked: Instant,
    silence: Option<Silence>,
    /// Locks of which nobody can know whether they are the host's, once they were asked for.
    pub(super) unnamed: Option<String>,
}

impl OntapExport {
    /// Looks at everything. What a node remembers is flushed where it may let the host in, once the rules
    /// were read to be closed, and read back before the rest is looked at.
    pub(super) async fn witness(&self, client: &Client, purpose: &Purpose) -> Result<Witness, StepError> {
        let survey = self.survey(client, purpose).await?;
        let open: Vec<String> = self.admitting(&survey).map(|export| export.policy.clone()).collect();
        let (mut cache, mut seen, mut flush) = (None, None, Flush::default());
        if self.level >= ProofLevel::Flushed && open.is_empty() {
            let mut read = self.read_back(client, &survey).await;
            if !read.open().is_empty() {
                self.keep(&read);
                flush = Flush::at(client, &self.svm, read.open().clone()).await;
                read = self.read_back(client, &survey).await;
            }
            self.keep(&read);
            if read.lacks().is_none() {
                seen = Some(self.seen(client, &survey, &read).await);
            }
            cache = Some(read);
        }
        let asked = Instant::now();
        let (locks, second) = tokio::join!(
            self.locks(client, &survey),
            second(client, &self.svm, &survey.exports, &self.addresses)
        );
        let locks = locks.map_err(|error| purpose.failed(error))?;
        let (nameless, locks) = (self.nameless(&locks), locks.len());
        let mut connected = Vec::new();
        let mut silence = None;
        if self.level >= ProofLevel::Idle && seen.as_ref().is_some_and(|seen| seen.lacks().is_none()) {
            let everybody = self.everybody(client).await.map_err(|error| purpose.failed(error))?;
            silence = Some(self.listen(&survey.exports, &everybody, asked));
            connected = self.of_host(&survey, everybody);
        }
        let unnamed = None;
        Ok(Witness {
            survey,
            cache,
            seen,
            flush,
            second,
            open,
            locks,
            nameless,
            connected,
            asked,
            silence,
            unnamed,
        })
    }

    pub(super) fn admitting<'s>(&self, survey: &'s Survey) -> impl Iterator<Item = &'s Export> {
        survey.exports.iter().filter(|export| export.admits(&self.addresses))
    }

    /// Goes on with the silence that began under the same rules, epoch and all, or begins a new one.
    fn listen(&self, exports: &[Export], everybody: &[NfsClient], asked: Instant) -> Silence {
        let mut kept = self.silence.lock().unwrap_or_else(PoisonError::into_inner);
        let before =
            kept.take().filter(|kept| kept.exports == exports && kept.since.elapsed() < self.timeout);
        let mut silence = before.unwrap_or_else(|| Silence {
            exports: exports.to_vec(),
            since: asked,
            motion: Motion::default(),
        });
        silence.motion.see(everybody, asked);
        *kept = Some(silence.clone());
        silence
    }

    /// What may be the host's locks in the volumes, of whatever protocol. Where nobody is let in all locks
    /// are asked for, since ONTAP may not name who holds them; where somebody is, those that name the host.
    pub(super) async fn locks(&self, client: &Client, survey: &Survey) -> ontap_client::Result<Vec<Lock>> {
        let (closed, open) = survey.closed_and_open();
        let (svm, closed, open) = (self.svm.as_str(), closed.as_slice(), open.as_slice());
        let unnamed = async {
            match closed {
                [] => Ok(Vec::new()),
                volumes => client.locks(&LockQuery { volumes, ..LockQuery::in_svm(svm) }).await,
            }
        };
        let addresses = self.addresses.iter().filter(|_| !open.is_empty());
        let named = try_join_all(addresses.map(|address| async move {
            let address = address.to_string();
            let which = LockQuery { volumes: open, client_address: Some(&address), ..LockQuery::in_svm(svm) };
            client.locks(&which).await
        }));
        let (unnamed, named) = tokio::try_join!(unnamed, named)?;
        let all = unnamed.into_iter().chain(named.into_iter().flatten());
        Ok(all.filter(|lock| survey.may_be_held_by(&self.addresses, lock)).collect())
    }

    /// What is to be said of locks whose volume ONTAP does not name.
    pub(super) fn nameless(&self, locks: &[Lock]) -> String {
        let count = locks.iter().filter(|lock| lock.volume.name.is_none()).count();
        if count == 0 {
            return String::new();
        }
        format!(
            " ({count} of them name no volume, and are broken only where they name this host: see `vserver locks show \
             -vserver {} -fields volume,path,protocol,client-address`)",
            self.svm
        )
    }

    /// Whether a lock that may be the host's is broken. One whose volume ONTAP does not name is where it names
    /// the host and the SVM: it was shown for these volumes, whose rules deny the host.
    pub(super) fn may_break(&self, lock: &Lock) -> bool {
        let names_host = || lock.client().is_some_and(|client| self.addresses.contains(&client));
        lock.volume.name.is_some() || (lock.svm.is_named(&self.svm) && names_host())
    }

    /// Locks that name nobody in volumes whose rules let another host in: they are left to that one, and are
    /// no reason to refuse, since every broker at work has some.
    pub(super) async fn unnamed(&self, client: &Client, survey: &Survey) -> Option<String> {
        let (_, open) = survey.closed_and_open();
        if open.is_empty() {
            return None;
        }
        let which = LockQuery { volumes: &open, ..LockQuery::in_svm(&self.svm) };
        match client.within(UNNAMED_LIMIT).locks(&which).await {
            Ok(all) => {
                let count =
                    all.iter().filter(|l| l.client().is_none() && survey.may_be_ours(&l.volume)).count();
                (count > 0).then(|| format!("{count} in {} name nobody", list(&open)))
            }
            Err(error) => Some(format!("those in {} cannot be read: {}", list(&open), chain(&error))),
        }
    }

    /// The whole list of connected clients of the SVM.
    pub(super) async fn everybody(&self, client: &Client) -> ontap_client::Result<Vec<NfsClient>> {
        client.nfs_clients(&NfsClientQuery { svm: &self.svm, volume: None, client_ip: None }).await
    }

    /// The host's entries for the volumes in the list of connected clients.
    pub(super) fn of_host(&self, survey: &Survey, everybody: Vec<NfsClient>) -> Vec<NfsClient> {
        let is_his = |entry: &NfsClient| {
            let address = entry.client_ip.as_deref().and_then(|ip| ip.parse::<std::net::IpAddr>().ok());
            address.is_none_or(|address| self.addresses.contains(&address.to_canonical()))
        };
        everybody.into_iter().filter(|entry| is_his(entry) && survey.may_be_ours(&entry.volume)).collect()
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
            let what = format!("{} locks may be its own{}", self.locks, self.nameless);
            missing.push(Missing::soon(what));
        }
        let against = [self.second.against(), self.second.differs()];
        missing.extend(against.into_iter().flatten().map(Missing::soon));
        if let Some((what, passes)) = self.cache.as_ref().and_then(ReadBack::lacks) {
            let what = format!("{what}; {}", self.flush.words());
            missing.push(if passes { Missing::soon(what) } else { Missing::never(what) });
        } else if let Some(why) = self.seen.as_ref().and_then(Seen::lacks) {
            missing.push(Missing::soon(why));
        } else if level >= ProofLevel::Idle && self.open.is_empty() {
            missing.extend(self.busy(idle_for));
        }
        missing
    }

    fn busy(&self, idle_for: Duration) -> Option<Missing> {
        if self.connected.iter().any(|entry| entry.idle.is_none()) {
            return Some(Missing::soon("ONTAP does not say how long it has been idle".to_owned()));
        }
        // What it did before it could be denied says nothing, and nor does its silence then.
        let since = self.silence.as_ref().map(|silence| self.asked.saturating_duration_since(silence.since));
        let since = since.unwrap_or_default();
        let shown = self.idle().map_or(since, |idle| idle.min(since));
        if shown < idle_for {
            let what = format!(
                "since it is denied, it is known to have been idle for {} only; {} are asked for",
                human(shown),
                human(idle_for)
            );
            return Some(Missing { what, soonest: Some(idle_for.saturating_sub(shown)) });
        }
        // A list that was written before the silence was long enough does not show it.
        let mut nodes = self.cache.as_ref().map(|read| read.nodes.with_lif()).unwrap_or_default();
        nodes.extend(self.connected.iter().map(motion::node));
        let still =
            self.silence.as_ref().map(|silence| silence.motion.still(nodes, silence.since + idle_for));
        let still = still.unwrap_or_default();
        (!still.is_empty()).then(|| {
            Missing::soon(format!(
                "the list of connected clients of {} has shown nothing new of anybody since, so that silence in it \
                 is none",
                list(&still)
            ))
        })
    }

    /// Since its last operation, where ONTAP knows of one.
    fn idle(&self) -> Option<Duration> {
        self.connected.iter().filter_map(|entry| entry.idle).min()
    }

    pub(super) fn idle_words(&self) -> String {
        match (&self.silence, self.connected.is_empty(), self.idle()) {
            (None, ..) => "not looked at".to_owned(),
            (_, true, _) => "not among the connected clients".to_owned(),
            (_, false, Some(idle)) => format!("idle for {}", human(idle)),
            (_, false, None) => "connected, idle for an unknown time".to_owned(),
        }
    }

    /// On which nodes entries are seen to be shown.
    pub(super) fn seen_words(&self) -> String {
        self.seen.as_ref().map_or_else(|| "not looked for".to_owned(), Seen::words)
    }

    /// `none`, or those of which nothing is known.
    pub(super) fn lock_words(&self) -> String {
        self.unnamed.as_ref().map_or_else(|| "none".to_owned(), |what| format!("none of its own; {what}"))
    }

    pub(super) fn cache_words(&self) -> String {
        self.cache.as_ref().map_or_else(|| "not read back".to_owned(), ReadBack::words)
    }

    /// What nobody has shown, for whoever reads the history.
    pub(super) fn not_proven(&self) -> String {
        let mut lacking =
            vec!["that a write of the host was denied (nobody tried one from there)".to_owned()];
        if self.cache.is_none() {
            lacking.push("that no node's access cache lets it in".to_owned());
        }
        lacking.extend(self.cache.iter().flat_map(|read| read.nodes.beyond()));
        lacking.extend(self.seen.as_ref().and_then(Seen::beyond));
        lacking.extend(self.survey.beyond());
        if let Some(unnamed) = &self.unnamed {
            let (_, open) = self.survey.closed_and_open();
            lacking.push(format!("that it holds no lock in {} ({unnamed})", list(&open)));
        }
        lacking.extend(self.second.lacking());
        if self.silence.is_none() {
            lacking.push("that it does nothing".to_owned());
        }
        lacking.join("; ")
    }
}
