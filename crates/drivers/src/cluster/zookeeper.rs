//! The registrations of a cluster with ZooKeeper: an ephemeral node for each broker, and one for the controller.
//!
//! Kafka of that time ends at once where its id is registered by another session, and a dead broker's session lasts
//! for 18 s by default. So what it left is removed after the proof, by the rule for `UnregisterBroker`:
//! once, right after it was read, and the controller's node with it if that is of the same session.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Deserializer};

use crate::clock::SystemClock;
use kafka::wire::WireError;
use kafka::{Dialer, ZooKeeper};
use recovery::model::{BrokerId, Endpoint};
use recovery::plan::unregister;
use recovery::ports::{Clock, Unregistered, chain};

/// ZooKeeper's own port for clients.
const PORT: u16 = 2181;
/// How long a session may last in which a few nodes are read and removed.
const LIMIT: Duration = Duration::from_secs(3);

/// Where ZooKeeper is, and what a cluster has there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZooKeeperConnect {
    servers: Vec<Endpoint>,
    /// Where the cluster's nodes begin: empty, or as `/kafka`.
    chroot: String,
}

/// A ZooKeeper, and how it is reached.
#[derive(Debug, Clone)]
pub struct ZooKeepers {
    connect: ZooKeeperConnect,
    dialer: Dialer,
}

impl fmt::Display for ZooKeepers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connect.fmt(f)
    }
}

impl FromStr for ZooKeeperConnect {
    type Err = String;

    /// Reads it as `zookeeper.connect` has it: `host:port,host:port/chroot`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (servers, chroot) = match text.split_once('/') {
            Some((servers, chroot)) => (servers, format!("/{}", chroot.trim_end_matches('/'))),
            None => (text, String::new()),
        };
        let chroot = if chroot == "/" { String::new() } else { chroot };
        let server = |server: &str| match server.parse::<Endpoint>() {
            Ok(endpoint) => Ok(endpoint),
            Err(_) if !server.is_empty() && !server.contains([':', ' ']) => {
                Ok(Endpoint { host: server.to_owned(), port: PORT })
            }
            Err(why) => Err(format!("`{server}` is no server: {why}")),
        };
        let servers = servers.split(',').map(str::trim).map(server).collect::<Result<_, _>>()?;
        Ok(Self { servers, chroot })
    }
}

impl<'de> Deserialize<'de> for ZooKeeperConnect {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for ZooKeeperConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
        write!(f, "{}{}", servers.join(","), self.chroot)
    }
}

impl ZooKeeperConnect {
    fn of_broker(&self, broker: BrokerId) -> String {
        format!("{}/brokers/ids/{broker}", self.chroot)
    }

    fn controller(&self) -> String {
        format!("{}/controller", self.chroot)
    }
}

impl ZooKeepers {
    /// Servers that are reached by `dialer`.
    #[must_use]
    pub fn new(connect: ZooKeeperConnect, dialer: Dialer) -> Self {
        Self { connect, dialer }
    }

    /// The brokers that are registered, and the one that is the controller, by a server that has caught up with the one
    /// that leads.
    ///
    /// # Errors
    /// In words: no server answers, or what it answers makes no sense.
    pub async fn look(&self) -> Result<(BTreeSet<BrokerId>, Option<BrokerId>), String> {
        let mut session = self.session().await?;
        let seen = self.seen(&mut session).await.map_err(|error| chain(&error));
        session.close().await;
        seen
    }

    /// Removes what the dead `broker` left, if those that share partitions with it are all registered.
    pub(super) async fn remove(&self, broker: BrokerId, sharing: &BTreeSet<BrokerId>) -> Unregistered {
        let begun = SystemClock.now().mono;
        let mut session = match self.session().await {
            Ok(session) => session,
            Err(why) => return Unregistered::NotSent { why },
        };
        let looked = async {
            let (registered, _) = self.seen(&mut session).await.map_err(|error| chain(&error))?;
            let registered: BTreeMap<_, _> = registered.into_iter().map(|id| (id, false)).collect();
            unregister::still_right(broker, sharing, &registered)?;
            let nodes = self.left_by(&mut session, broker).await.map_err(|error| chain(&error))?;
            unregister::fresh(SystemClock.now().mono.since(begun))?;
            Ok::<_, String>(nodes)
        };
        let outcome = match looked.await {
            Ok(nodes) => self.remove_all(&mut session, broker, nodes).await,
            Err(why) => Unregistered::NotSent { why },
        };
        session.close().await;
        outcome
    }

    async fn remove_all(
        &self,
        session: &mut ZooKeeper,
        broker: BrokerId,
        nodes: Vec<String>,
    ) -> Unregistered {
        let own = self.connect.of_broker(broker);
        let all: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let removed = match session.remove(&all).await {
            // None was: another controller may have been elected in between.
            Ok(false) if all.len() > 1 => session.remove(&[&own]).await,
            removed => removed,
        };
        match removed {
            Ok(_) => Unregistered::Gone,
            Err(error @ WireError::Code { .. }) => Unregistered::Refused { why: chain(&error) },
            Err(error) => Unregistered::NoAnswer { why: chain(&error) },
        }
    }

    /// What ends with the session of `broker`: its registration, and the controller's node if that is its own.
    async fn left_by(&self, session: &mut ZooKeeper, broker: BrokerId) -> Result<Vec<String>, WireError> {
        let own = self.connect.of_broker(broker);
        let Some(registered) = session.get(&own).await? else { return Ok(vec![own]) };
        let controller = session.get(&self.connect.controller()).await?;
        let both = controller.is_some_and(|controller| controller.session == registered.session);
        Ok(std::iter::once(own).chain(both.then(|| self.connect.controller())).collect())
    }

    async fn seen(
        &self,
        session: &mut ZooKeeper,
    ) -> Result<(BTreeSet<BrokerId>, Option<BrokerId>), WireError> {
        let ids = format!("{}/brokers/ids", self.connect.chroot);
        session.sync(&ids).await?;
        let names = session.children(&ids).await?.unwrap_or_default();
        let controller = session.get(&self.connect.controller()).await?;
        let id = |content: &[u8]| {
            let content: serde_json::Value = serde_json::from_slice(content).ok()?;
            i32::try_from(content["brokerid"].as_i64()?).ok().map(BrokerId)
        };
        let registered = names.iter().filter_map(|name| name.parse().ok().map(BrokerId)).collect();
        Ok((registered, controller.and_then(|node| id(&node.data))))
    }

    /// A session with the server that is the first to give one. Nobody waits for the others: one of them may have died
    /// with the broker.
    async fn session(&self) -> Result<ZooKeeper, String> {
        let asked = self.connect.servers.iter().map(|at| ZooKeeper::open(&self.dialer, at, LIMIT));
        let (mut asked, mut failures) = (asked.collect::<FuturesUnordered<_>>(), Vec::new());
        while let Some(opened) = asked.next().await {
            match opened {
                Ok(session) => return Ok(session),
                Err(error) => failures.push(chain(&error)),
            }
        }
        Err(format!("no server of ZooKeeper gives a session: {}", failures.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_kafka_has_it() {
        for (text, means) in [
            ("zk1:2181", "zk1:2181"),
            ("zk1, zk2:2182 ,10.0.0.3", "zk1:2181,zk2:2182,10.0.0.3:2181"),
            ("zk1:2181,zk2:2181/kafka/a", "zk1:2181,zk2:2181/kafka/a"),
            ("zk1:2181/", "zk1:2181"),
            ("[fd00::1]:2181/kafka/", "[fd00::1]:2181/kafka"),
        ] {
            assert_eq!(text.parse::<ZooKeeperConnect>().unwrap().to_string(), means, "{text}");
        }
        for text in ["", "zk1:2181,,zk2:2181", "zk1:port", "zk1 zk2", "/kafka"] {
            let why = text.parse::<ZooKeeperConnect>().unwrap_err();
            assert!(why.contains("is no server"), "{text}: {why}");
        }
        let nodes = "zk1/kafka".parse::<ZooKeeperConnect>().unwrap();
        assert_eq!(nodes.of_broker(BrokerId(7)), "/kafka/brokers/ids/7");
        assert_eq!(nodes.controller(), "/kafka/controller");
    }
}
