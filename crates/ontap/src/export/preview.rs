//! Whether fencing would work, as far as that can be seen without doing it.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use ontap_client::Client;
use tokio::time::Instant;

use super::cache::{AT_ONCE, ReadBack};
use super::control::{Seen, is_at_work};
use super::motion::Motion;
use super::nodes::Nodes;
use super::second::second;
use super::survey::{Export, Survey, list};
use super::{LOOK_AGAIN, OntapExport, ProofLevel, Purpose};
use recovery::model::{HostName, human};
use recovery::ports::{Note, StepError, chain};

/// How long one order to flush may take.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// An address of TEST-NET-1 that no client has, nor any mark of an epoch.
const NOBODY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 255));

impl OntapExport {
    /// Reads everything that a fence and its proof read, and tries to flush what nodes remember of an address
    /// that nobody has. What they remember of clients stays: the takeover of a host that is dead by then has
    /// to see its entries.
    pub(super) async fn preview(
        &self,
        client: &Client,
        host: &HostName,
        purpose: &Purpose,
    ) -> Result<Note, StepError> {
        let survey = self.survey(client, purpose).await?;
        let (locks, everybody) = tokio::try_join!(self.locks(client, &survey), self.everybody(client))
            .map_err(|error| purpose.failed(error))?;
        let clients = self.of_host(&survey, everybody);
        let owned: Vec<&Export> = self.admitting(&survey).collect();
        let at_work = !owned.is_empty() && (!locks.is_empty() || clients.iter().any(is_at_work));
        let (warnings, cache) = self.try_cache(client, &survey, at_work, purpose).await?;
        let second = second(client, &self.svm, &survey.exports, &self.addresses).await;
        self.try_list(client, purpose).await?;
        let mut note = Note::new(format!(
            "ONTAP can deny {host} ({}) its volumes: now it is let in to {} of {}",
            list(&self.addresses),
            owned.iter().map(|export| export.volumes.len()).sum::<usize>(),
            self.volumes.len()
        ));
        if !owned.is_empty() && clients.is_empty() {
            let why =
                "no client with these addresses is connected: see that they are those by which it mounts";
            note = note.warn([why.to_owned()]);
        }
        note = note.warn(strangers(&survey));
        if at_work && cache.as_ref().is_some_and(|(read, _)| read.seen().is_empty()) {
            let why = "no node shows an access cache entry of this host, though it is at work: see that these are the \
                       addresses by which it mounts";
            note = note.warn([why.to_owned()]);
        }
        note = note.warn(warnings.into_iter().chain(second.differs()));
        let mut beyond: Vec<String> = cache.iter().flat_map(|(read, _)| read.nodes.beyond()).collect();
        beyond.extend(cache.as_ref().and_then(|(_, seen)| seen.beyond()));
        for lacking in second.lacking().into_iter().chain(survey.beyond()).chain(beyond) {
            note.text.push_str(&format!(". Nothing shows {lacking}"));
        }
        note.text.push_str(
            ". Not tried: changing rules and breaking locks (`understudy ontap verify --try` does)",
        );
        let rules: Vec<String> = survey.exports.iter().map(Export::words).collect();
        let cache = cache.map(|(read, seen)| {
            let nodes: Vec<&String> = read.read().iter().collect();
            format!("can be read back on {}; {}", list(&nodes), seen.words())
        });
        Ok(note
            .with("rules", rules.join("; "))
            .with("locks", locks.len())
            .with("connected", clients.len())
            .with("access_cache", cache.unwrap_or_else(|| "not read back".to_owned())))
    }

    /// What cannot be read back is never proven, nor is "no entry" where entries are not seen to be shown.
    /// With what may be otherwise by the time of a takeover.
    async fn try_cache(
        &self,
        client: &Client,
        survey: &Survey,
        at_work: bool,
        purpose: &Purpose,
    ) -> Result<(Vec<String>, Option<(ReadBack, Seen)>), StepError> {
        if self.level < ProofLevel::Flushed {
            return Ok((Vec::new(), None));
        }
        let read = self.read_back(client, survey).await;
        if let Some((why, passes)) = read.unreadable() {
            let (when, advice) = match passes {
                true => ("now", "See that the node answers (`cluster show`), and check again"),
                false => (
                    "ever",
                    "Give the account the right to `vserver export-policy access-cache`, or choose proof = \
                     \"read_back\" if \
                     that is enough for you",
                ),
            };
            return Err(purpose.refused(format!(
                "the access cache cannot be read back, so nothing would {when} be proven: {why}. {advice}"
            )));
        }
        if let Some(why) = self.cannot_flush(client, survey, &read.nodes).await {
            return Err(purpose.refused(format!(
                "the access cache cannot be flushed, so a host that is at work could not be proven to be denied: \
                 {why}. Give \
                 the account the right to `vserver export-policy access-cache flush` (a check does not flush all of \
                 the \
                 SVM in its place)"
            )));
        }
        let mut warnings = Vec::new();
        if !read.nodes.unread.is_empty() {
            warnings.push(format!("nothing could be proven now: {}", read.nodes.unread.join("; ")));
        }
        warnings.extend(read.wordless());
        let seen = self.seen(client, survey, &read).await;
        match seen.lacks() {
            Some(why) if at_work => {
                return Err(purpose.refused(format!(
                    "{why}, though this host is at work: nothing would be proven. See what `understudy ontap \
                     verify` says of \
                     cache_by_node; put another fence after this one, or choose proof = \"read_back\" if that \
                     is enough for you"
                )));
            }
            Some(why) => warnings.push(format!(
                "{why}: a takeover that came now could prove nothing. Check again while this host is at work"
            )),
            None => {}
        }
        Ok((warnings, Some((read, seen))))
    }

    /// Why some node refuses to forget. It is told to forget somebody who is nobody: an order about a client
    /// would be missed by its next takeover.
    async fn cannot_flush(&self, client: &Client, survey: &Survey, nodes: &Nodes) -> Option<String> {
        let client = &client.within(FLUSH_LIMIT);
        let mut orders = Vec::new();
        for export in &survey.exports {
            orders.extend(nodes.up.iter().map(|node| (node.clone(), export.policy.clone())));
        }
        let orders = orders.into_iter().map(|(node, policy)| async move {
            let order = client.flush_access_cache_entry(&self.svm, &node, &policy, NOBODY).await;
            order.err().map(|error| format!("{node}: {}", chain(&error)))
        });
        let failed: Vec<_> = stream::iter(orders).buffer_unordered(AT_ONCE).collect().await;
        failed.into_iter().flatten().next()
    }

    /// Silence is worth something only where the list of connected clients is seen to be written anew.
    async fn try_list(&self, client: &Client, purpose: &Purpose) -> Result<(), StepError> {
        if self.level < ProofLevel::Idle {
            return Ok(());
        }
        let nodes = Nodes::of(client, &self.svm).await.map_err(|error| purpose.failed(error))?;
        let (begun, mut motion) = (Instant::now(), Motion::default());
        let patience = self.idle_for.max(4 * LOOK_AGAIN).min(self.timeout / 2);
        let still = loop {
            let asked = Instant::now();
            let everybody = self.everybody(client).await.map_err(|error| purpose.failed(error))?;
            motion.see(&everybody, asked);
            let still = motion.still(nodes.with_lif(), begun);
            if still.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > patience {
                break still;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        };
        let written = client.nfs_client_settings().await.ok().and_then(|settings| settings.update);
        let every = written
            .map(|every| format!(" (ONTAP says that it writes it every {} min)", every.as_secs() / 60));
        Err(purpose.refused(format!(
            "proof = \"idle\" would never be met: nothing moved within {} in the list of connected clients of {}{}. \
             Choose \
             proof = \"flushed\", or see that a client of {} is writing by each node while you check",
            human(patience),
            list(&still),
            every.unwrap_or_default(),
            self.svm
        )))
    }
}

/// Volumes that are denied together with ours; the storage step does not let a host in to them.
fn strangers(survey: &Survey) -> Option<String> {
    let shared = survey.exports.iter().filter(|export| !export.strangers.is_empty());
    let words = |export: &Export| format!("{} is that of {} too", export.policy, export.strangers.join(", "));
    let shared: Vec<String> = shared.map(words).collect();
    (!shared.is_empty()).then(|| {
        format!(
            "export policy {}: denying works, and a takeover will not let its host in: give them a policy of their own",
            shared.join("; ")
        )
    })
}
