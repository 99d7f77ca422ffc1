//! What ONTAP's nodes remember of a host that was denied. Each node goes by an access cache of its own: an
//! order to flush it proves nothing, and what is read back of it does.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use ontap_client::{Client, Polarity};

use super::OntapExport;
use super::nodes::Nodes;
use super::survey::{Export, Survey, list};
use recovery::ports::chain;

/// So many requests at a time: ONTAP refuses what is too much (429).
pub(super) const AT_ONCE: usize = 8;

/// How long one entry may take to be read: whoever waits for it is to learn in time that it does not come.
const EACH: Duration = Duration::from_secs(5);

/// A node and an export policy.
pub(super) type Place = (String, String);

/// What was read back of the nodes' caches.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadBack {
    pub(super) nodes: Nodes,
    /// Nodes where it was read.
    read: BTreeSet<String>,
    /// Nodes that showed an entry of the host, whatever it leads to.
    seen: BTreeSet<String>,
    /// Those of them whose entry does not say whether it lets in.
    wordless: BTreeSet<String>,
    /// Where the host may be let in by what is remembered.
    open: BTreeSet<Place>,
    /// What could not be read, and whether that may pass.
    unread: Option<(String, bool)>,
}

impl OntapExport {
    /// Reads what every node remembers of the host.
    pub(super) async fn read_back(&self, client: &Client, survey: &Survey) -> ReadBack {
        let client = client.within(EACH.min(self.timeout / 2));
        ReadBack::of(&client, &self.svm, &survey.exports, &self.addresses).await
    }
}

impl ReadBack {
    async fn of(client: &Client, svm: &str, exports: &[Export], addresses: &[IpAddr]) -> Self {
        let nodes = match Nodes::of(client, svm).await {
            Ok(nodes) if nodes.serving.names.is_empty() => {
                return Self::unread(format!("no node of {svm} is known"), false);
            }
            Ok(nodes) => nodes,
            Err(error) => return Self::unread(chain(&error), error.is_passing()),
        };
        let mut asks = Vec::new();
        for export in exports {
            for address in addresses {
                asks.extend(nodes.up.iter().map(|node| (node.clone(), export.policy.clone(), *address)));
            }
        }
        let asks = asks.into_iter().map(|(node, policy, address)| async move {
            let entry = client.access_cache_entry(svm, &node, &policy, address).await;
            ((node, policy), entry)
        });
        let mut answers = stream::iter(asks).buffer_unordered(AT_ONCE);
        let mut read = Self { nodes: nodes.clone(), ..Self::default() };
        while let Some((place, entry)) = answers.next().await {
            match entry {
                Ok(None) => {
                    read.read.insert(place.0);
                }
                Ok(Some(entry)) => {
                    read.read.insert(place.0.clone());
                    read.seen.insert(place.0.clone());
                    if !matches!(entry.polarity, Some(Polarity::Positive | Polarity::Negative)) {
                        read.wordless.insert(place.0.clone());
                    }
                    if entry.polarity != Some(Polarity::Negative) {
                        read.open.insert(place);
                    }
                }
                // That it cannot pass outweighs that something else may.
                Err(error) => {
                    let passes = error.is_passing() && read.unread.as_ref().is_none_or(|(_, passes)| *passes);
                    read.unread = Some((format!("{}: {}", place.0, chain(&error)), passes));
                }
            }
        }
        read
    }

    fn unread(why: String, passes: bool) -> Self {
        Self { unread: Some((why, passes)), ..Self::default() }
    }

    /// Node and policy of each entry that may let the host in.
    pub(super) fn open(&self) -> &BTreeSet<Place> {
        &self.open
    }

    /// Nodes that showed an entry of the host.
    pub(super) fn seen(&self) -> &BTreeSet<String> {
        &self.seen
    }

    /// Nodes where it was read.
    pub(super) fn read(&self) -> &BTreeSet<String> {
        &self.read
    }

    /// Why something could not be read, though its node is up, and whether that may pass.
    pub(super) fn unreadable(&self) -> Option<(&str, bool)> {
        self.unread.as_ref().map(|(why, passes)| (why.as_str(), *passes))
    }

    /// Where an entry does not say whether it lets in, and what that means for a proof.
    pub(super) fn wordless(&self) -> Option<String> {
        let nodes: Vec<&String> = self.wordless.iter().collect();
        let what = || {
            format!(
                "an access cache entry on {} does not say whether it lets in (no `polarity`): one that is there \
                 again after \
                 the flush proves nothing, so a host that goes on knocking cannot be proven to be denied. Put another \
                 fence after this one",
                list(&nodes)
            )
        };
        (!nodes.is_empty()).then(what)
    }

    /// Why it proves nothing, and whether that may pass. `None`: no node lets the host in by what it
    /// remembers.
    pub(super) fn lacks(&self) -> Option<(String, bool)> {
        let cannot = |why: &str| format!("the access cache cannot be read back ({why})");
        if let Some((why, passes)) = &self.unread {
            return Some((cannot(why), *passes));
        }
        // A node may come back, or be taken over.
        if !self.nodes.unread.is_empty() {
            return Some((cannot(&self.nodes.unread.join("; ")), true));
        }
        let nodes: BTreeSet<&String> = self.open.iter().map(|(node, _)| node).collect();
        let nodes: Vec<&String> = nodes.into_iter().collect();
        let what = || format!("the access cache of {} may still let it in", list(&nodes));
        (!nodes.is_empty()).then(|| (what(), true))
    }

    /// `read back on node-01, node-02: no entry lets it in`.
    pub(super) fn words(&self) -> String {
        match self.lacks() {
            Some((what, _)) => what,
            None => {
                let nodes: Vec<&String> = self.read.iter().collect();
                format!("read back on {}: no entry lets it in", list(&nodes))
            }
        }
    }
}
