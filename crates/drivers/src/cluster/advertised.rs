//! Whether what the cluster advertises for a broker leads to that broker: clients go nowhere else.
//!
//! It is dialled from here, and by the agents on other hosts, each of which dials what *its* surviving broker
//! says: who asks names a broker, and no address. A peer that cannot be asked, does not know this question, or
//! cannot see the cluster itself, says nothing.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::kafka::{ANSWER_LIMIT, KafkaCluster, OPEN_LIMIT};
use kafka::Dialer;
use kafka::wire::{MetadataSeen, Topics, WireError};
use recovery::model::{BrokerId, Endpoint, HostName};
use recovery::ports::{Advertised, Reach, chain};

/// The page that answers a peer, followed by the broker's node id.
pub const PATH: &str = "/v1/reach/";

/// How long finding a surviving broker may take for a peer, and then the dial. Both together stay below what
/// the peer waits for ([`crate::health_signal::peer`]).
const FOR_A_PEER: Duration = Duration::from_secs(1);

/// What `/v1/reach/N` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachPage {
    /// The host that answers.
    pub host: HostName,
    /// What it found.
    #[serde(flatten)]
    pub found: Reach,
}

/// The brokers that are being dialled for peers.
#[derive(Debug, Default)]
pub(super) struct Dialled(Mutex<BTreeSet<BrokerId>>);

/// One of them, for as long as it lasts: also until the peer has hung up.
struct Dialling<'a>(&'a Dialled, BrokerId);

impl Dialled {
    fn begin(&self, broker: BrokerId) -> Option<Dialling<'_>> {
        let mut dialled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Made only if it is the only one: it takes the broker off again when it goes.
        dialled.insert(broker).then(|| Dialling(self, broker))
    }
}

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

impl KafkaCluster {
    /// Dials `at`, which the cluster that told `seen` advertises for `broker`, as a client would, and has the
    /// peers do so.
    pub(super) async fn advertised(
        &self,
        broker: BrokerId,
        at: &Endpoint,
        seen: &MetadataSeen,
    ) -> Advertised {
        let mut advertised = Advertised {
            at: at.clone(),
            fails: dial(&self.dialers.brokers, broker, at, seen).await,
            reached_by: BTreeSet::new(),
        };
        if advertised.fails.is_some() {
            return advertised;
        }
        // One that has just not answered another question would only be waited for.
        let asked = self.peers.iter().filter(|peer| peer.is_there());
        let asked = asked.map(|peer| async move { (peer.host(), peer.reach(broker).await) });
        for (host, said) in join_all(asked).await {
            match said {
                Ok(Reach::Reached { .. }) => drop(advertised.reached_by.insert(host.into())),
                Ok(Reach::Unreached { at: theirs, why }) => {
                    let sent =
                        if theirs == *at { String::new() } else { format!(", which is sent to {theirs},") };
                    advertised.fails =
                        Some(format!("the agent on {host}{sent} does not reach the broker there: {why}"));
                }
                Ok(Reach::Untold { why }) => tracing::debug!(peer = host, why, "a peer does not tell"),
                Err(error) => tracing::debug!(peer = host, error = chain(&error), "a peer does not tell"),
            }
        }
        advertised
    }

    /// What a peer is told.
    pub(super) async fn dial_for_a_peer(&self, broker: BrokerId) -> Reach {
        let untold = |why: String| Reach::Untold { why };
        let Some(_dialling) = self.dialled.begin(broker) else {
            return untold(format!("broker {broker} is being dialled for somebody else"));
        };
        // A surviving broker is itself found where the cluster says: one who reaches none has no say.
        let told = match timeout(FOR_A_PEER, self.survivor(Some(broker), Topics::None)).await {
            Ok(Ok((_, _, seen))) => seen,
            Ok(Err(failures)) => return untold(format!("no other broker answers: {}", failures.join("; "))),
            Err(_) => return untold(format!("no other broker answers within {FOR_A_PEER:?}")),
        };
        let Some(at) = told.brokers.get(&broker).cloned() else {
            return untold(format!("the cluster does not list broker {broker}"));
        };
        if at.host.parse().is_ok_and(|ip: IpAddr| !ip.is_loopback() && is_own(ip)) {
            return untold(format!("{} is an address of this host", at.host));
        }
        let fails = timeout(FOR_A_PEER, dial(&self.dialers.brokers, broker, &at, &told)).await;
        match fails.unwrap_or_else(|_| Some(format!("no answer within {FOR_A_PEER:?}"))) {
            None => Reach::Reached { at },
            Some(why) => Reach::Unreached { at, why },
        }
    }
}

/// Whether this host has `ip`: then it talks to it from that very address. Sends nothing.
pub(super) fn is_own(ip: IpAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { [0; 4].into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        // Any port will do.
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    from.is_ok_and(|from| from.ip() == ip)
}

/// Why `at` does not lead to `broker`; `None` if it does.
async fn dial(dialer: &Dialer, broker: BrokerId, at: &Endpoint, seen: &MetadataSeen) -> Option<String> {
    ask(dialer, broker, at, seen).await.unwrap_or_else(|error| Some(chain(&error)))
}

/// What is wrong with whoever answers there; `None` if it is the broker.
async fn ask(
    dialer: &Dialer,
    broker: BrokerId,
    at: &Endpoint,
    seen: &MetadataSeen,
) -> Result<Option<String>, WireError> {
    let mut connection = dialer.open(at, OPEN_LIMIT).await?;
    let said = connection.metadata(Topics::None, ANSWER_LIMIT).await?;
    if said.cluster_id != seen.cluster_id {
        let theirs = said.cluster_id.unwrap_or_else(|| "none".to_owned());
        return Ok(Some(format!("a broker of another cluster ({theirs}) answers there")));
    }
    let another = || Some(format!("another broker than {broker} answers there"));
    let alike = seen.brokers.iter().any(|(id, theirs)| *id != broker && theirs == at);
    Ok(match connection.is_broker(broker, ANSWER_LIMIT).await? {
        Some(true) => None,
        Some(false) => another(),
        // It may not be asked by this client: then nobody else may advertise the same.
        None => another().filter(|_| alike),
    })
}
