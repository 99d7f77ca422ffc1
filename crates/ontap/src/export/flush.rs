//! Orders to forget. They are worth trying and prove nothing, so nothing waits for them for long.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use ontap_client::{Client, FlushAnswer, Polarity};
use tokio::time::Instant;

use super::cache::{AT_ONCE, Place};
use super::nodes::Nodes;
use super::survey::Export;
use recovery::ports::chain;

/// How long one request may take.
const EACH: Duration = Duration::from_secs(2);

/// How long all of them may take.
const ALL: Duration = Duration::from_secs(3);

/// What became of the orders, to be told and never to be believed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Flush {
    ordered: BTreeSet<String>,
    unclear: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl Flush {
    /// Tells every node to forget who may access these exports.
    pub(super) async fn everywhere(client: &Client, svm: &str, exports: &[&Export]) -> Self {
        let until = Instant::now() + ALL;
        match places(client, svm, exports).await {
            Ok(places) => Self::until(until, client, svm, places).await,
            Err(failed) => failed,
        }
    }

    /// Tells those nodes to forget that remember otherwise: of hosts that are let in now, or are not. Where
    /// that cannot be read, too.
    pub(super) async fn outdated(
        client: &Client,
        svm: &str,
        exports: &[&Export],
        (addresses, let_in): (&[IpAddr], bool),
    ) -> Self {
        let until = Instant::now() + ALL;
        let places = match places(client, svm, exports).await {
            Ok(places) => places,
            Err(failed) => return failed,
        };
        let right = if let_in { Polarity::Positive } else { Polarity::Negative };
        let (reader, right) = (&client.within(EACH / 2), &right);
        let asks = places.into_iter().map(|place| async move {
            for address in addresses {
                // Half of the time is that of the orders.
                if Instant::now() + EACH > until {
                    return Some(place);
                }
                match reader.access_cache_entry(svm, &place.0, &place.1, *address).await {
                    Ok(None) => {}
                    Ok(Some(entry)) if entry.polarity.as_ref() == Some(right) => {}
                    Ok(Some(_)) | Err(_) => return Some(place),
                }
            }
            None
        });
        let found: Vec<_> = stream::iter(asks).buffer_unordered(AT_ONCE).collect().await;
        Self::until(until, client, svm, found.into_iter().flatten().collect()).await
    }

    /// Tells these nodes to forget who may access these policies.
    pub(super) async fn at(client: &Client, svm: &str, places: BTreeSet<Place>) -> Self {
        Self::until(Instant::now() + ALL, client, svm, places).await
    }

    async fn until(until: Instant, client: &Client, svm: &str, places: BTreeSet<Place>) -> Self {
        let orders = places.into_iter().map(|(node, policy)| async move {
            let left = until.saturating_duration_since(Instant::now());
            let answer = match left.is_zero() {
                true => None,
                false => Some(client.within(EACH.min(left)).flush_access_cache(svm, &node, &policy).await),
            };
            (node, answer)
        });
        let mut answers = stream::iter(orders).buffer_unordered(AT_ONCE);
        let mut flush = Self::default();
        while let Some((node, answer)) = answers.next().await {
            match answer {
                Some(Ok(FlushAnswer::Counted)) => flush.ordered.insert(node),
                Some(Ok(FlushAnswer::CountedForSvm)) => {
                    flush.ordered.insert(format!("{node} (all of {svm})"))
                }
                Some(Ok(FlushAnswer::Unclear(said))) => {
                    flush.unclear.insert(format!("{node} answered {said}"))
                }
                Some(Err(error)) => flush.failed.insert(format!("{node}: {}", chain(&error))),
                None => flush.failed.insert(format!("{node}: no time was left")),
            };
        }
        flush
    }

    /// `flush ordered on node-01; not flushed: node-02: permission denied`.
    pub(super) fn words(&self) -> String {
        let join = |items: &BTreeSet<String>| items.iter().cloned().collect::<Vec<_>>().join(", ");
        let mut parts = Vec::new();
        if !self.ordered.is_empty() {
            parts.push(format!("flush ordered on {}", join(&self.ordered)));
        }
        if !self.unclear.is_empty() {
            parts.push(format!("unclear whether flushed: {}", join(&self.unclear)));
        }
        if !self.failed.is_empty() {
            parts.push(format!("not flushed: {}", join(&self.failed)));
        }
        if parts.is_empty() { "nothing was flushed".to_owned() } else { parts.join("; ") }
    }
}

/// Every node with each of these policies.
async fn places(client: &Client, svm: &str, exports: &[&Export]) -> Result<BTreeSet<Place>, Flush> {
    if exports.is_empty() {
        return Ok(BTreeSet::new());
    }
    let nodes = Nodes::of(&client.within(EACH), svm).await;
    let nodes = nodes.map_err(|error| Flush { failed: [chain(&error)].into(), ..Flush::default() })?;
    let of = |export: &&Export| {
        let names = nodes.serving.names.iter();
        names.map(|node| (node.clone(), export.policy.clone())).collect::<Vec<_>>()
    };
    Ok(exports.iter().flat_map(of).collect())
}
