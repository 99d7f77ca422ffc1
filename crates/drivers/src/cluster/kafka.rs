//! The cluster, by Kafka's own protocol: who is in sync, told by a broker other than the one in question;
//! preferred leaders; and the one dangerous request, `UnregisterBroker`.
//!
//! `UnregisterBroker` carries no epoch. Passed on by a broker it may be applied seconds after the sender gave
//! up, and then it hits the broker's *new* incarnation. So it is sent once, on a connection to the active
//! controller's own listener that has just proven to be that, and never again whatever comes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::UnregisterBrokerRequest;
use serde::Deserialize;
use tokio::time::timeout;

use super::advertised::Dialled;
use super::registration::{self, Told};
use super::zookeeper::{ZooKeeperConnect, ZooKeepers};
use crate::certificate::CertificateFile;
use crate::clock::SystemClock;
use crate::health_signal::peer::Peer;
use kafka::security::SecurityConfig;
use kafka::wire::{Connection, Controller, MetadataSeen, Registration, Topics, WireError};
use kafka::{Dialer, Dialers};
use recovery::model::{BrokerId, Endpoint, PartitionView};
use recovery::plan::unregister;
use recovery::ports::{Clock, Cluster, Note, Reach, Standing, StepError, Unregistered, chain};

pub(super) const DRIVER: &str = "kafka";
/// A broker that lives says who the others are within milliseconds. After this long the next one is asked as
/// well.
const HEDGE: Duration = Duration::from_millis(30);
/// How long a broker may take to be connected to and to say which versions it offers.
pub(super) const OPEN_LIMIT: Duration = Duration::from_millis(500);
/// How long an answer may take. The metadata of a very large cluster is tens of megabytes.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long the controller may take over `UnregisterBroker`, which it writes to its log first. Past this the
/// broker is started without knowing: waiting on would cost more than the old session's remainder.
const UNREGISTER_LIMIT: Duration = Duration::from_secs(3);

/// How the cluster is reached.
#[derive(Debug, Clone, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// Brokers to begin with, as `host:port`; the others are learnt from them. Name at least three where
    /// there are as many, and addresses rather than names: looking at the cluster should not depend on DNS.
    #[schemars(with = "Vec<String>")]
    pub bootstrap: Vec<Endpoint>,
    /// The KRaft controllers' own listeners, as `node-id@host:port`. With them a dead broker's registration
    /// is removed as soon as the fence is proven; without them a takeover waits for its session to expire.
    /// They have the last word on whether a broker has lost its registration, and before Kafka 4.0 the only
    /// one: while none of them answers, no such broker is started again. Leave empty with ZooKeeper.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub controllers: Vec<Controller>,
    /// Where the ZooKeeper of a cluster without KRaft is, as `zookeeper.connect` in `server.properties` has it, such as
    /// `zk1:2181,zk2:2181,zk3:2181/kafka`. With it the nodes that a dead broker left there are removed as soon as the
    /// fence is proven; without it Kafka of that time ends each time it is started, until their session has expired.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub zookeeper: Option<ZooKeeperConnect>,
    /// The cluster's id, as in every `meta.properties`. When given, another cluster at the bootstrap
    /// addresses is refused.
    #[serde(default)]
    pub id: Option<String>,
    /// How the brokers' listeners are secured, for every connection of the agent to them: what it probes, reads
    /// and asks for. Without the section they are `PLAINTEXT`.
    #[serde(default)]
    pub security: Option<SecurityConfig>,
    /// The same for the controllers' own listeners, where they are secured otherwise than the brokers'.
    #[serde(default)]
    pub controllers_security: Option<SecurityConfig>,
    /// How ZooKeeper is secured, where it is. Its TLS listener (`secureClientPort`) has `protocol = "SSL"`. A login by
    /// DIGEST-MD5 makes it `SASL_SSL`, or `SASL_PLAINTEXT` at a `clientPort`. With `zookeeper.set.acl=true` only the
    /// brokers' own identity may remove what one of them left: log in by the name in the section `Client` of their JAAS
    /// file or, without one, show a certificate of the same subject as theirs.
    #[serde(default)]
    pub zookeeper_security: Option<SecurityConfig>,
}

/// Where it stands in the configuration how listeners are secured.
const SECURITY: &str = "cluster.security";
/// The same for the controllers' own.
const CONTROLLERS_SECURITY: &str = "cluster.controllers_security";
/// The same for ZooKeeper.
const ZOOKEEPER_SECURITY: &str = "cluster.zookeeper_security";

impl ClusterConfig {
    /// What its listeners are reached with.
    #[must_use]
    pub fn dialers(&self) -> Dialers {
        let brokers = self.security.as_ref().map(|config| Dialer::secured(config, SECURITY));
        let brokers = brokers.unwrap_or_else(Dialer::plaintext);
        let controllers = self.controllers_security.as_ref();
        let controllers = controllers.map(|config| Dialer::secured(config, CONTROLLERS_SECURITY));
        Dialers { controllers: controllers.unwrap_or_else(|| brokers.clone()), brokers }
    }

    /// The ZooKeeper of a cluster that has one.
    #[must_use]
    pub fn zookeepers(&self) -> Option<ZooKeepers> {
        let secured = self.zookeeper_security.as_ref();
        let dialer = secured.map(|config| Dialer::secured(config, ZOOKEEPER_SECURITY));
        let connect = self.zookeeper.clone()?;
        Some(ZooKeepers::new(connect, dialer.unwrap_or_else(Dialer::plaintext)))
    }

    /// The files with certificates that it needs.
    pub fn certificates(&self) -> impl Iterator<Item = CertificateFile> + '_ {
        let all = self.security.iter().chain(&self.controllers_security).chain(&self.zookeeper_security);
        all.flat_map(CertificateFile::of)
    }

    /// Everything that is wrong with it, as `key: reason`.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.bootstrap.is_empty() {
            problems.push("cluster.bootstrap: name at least one broker, as host:port".to_owned());
        }
        let mut known = BTreeMap::new();
        for controller in &self.controllers {
            if let Some(other) = known.insert(controller.id, controller) {
                let id = controller.id;
                problems.push(format!(
                    "cluster.controllers: {other} and {controller} have the same node id {id}"
                ));
            }
        }
        if self.zookeeper.is_some() && !self.controllers.is_empty() {
            problems.push(
                "cluster.zookeeper: there are cluster.controllers as well; leave out the one that the brokers' own \
                 server.properties does not have (zookeeper.connect, or process.roles)"
                    .to_owned(),
            );
        }
        if self.id.as_deref().is_some_and(|id| id.trim().is_empty()) {
            problems.push(
                "cluster.id: is empty; give the id that meta.properties has, or leave it out".to_owned(),
            );
        }
        let secured = [(SECURITY, &self.security), (CONTROLLERS_SECURITY, &self.controllers_security)];
        for (section, config) in secured {
            problems.extend(config.iter().flat_map(|config| config.problems(section)));
        }
        if self.controllers_security.is_some() && self.controllers.is_empty() {
            problems.push(format!(
                "{CONTROLLERS_SECURITY}: there are no cluster.controllers; name them, or remove the section"
            ));
        }
        if let Some(config) = &self.zookeeper_security {
            problems.extend(config.problems_with_zookeeper(ZOOKEEPER_SECURITY));
            if self.zookeeper.is_none() {
                problems.push(format!(
                    "{ZOOKEEPER_SECURITY}: there is no cluster.zookeeper; name it, or remove the section"
                ));
            }
        }
        problems
    }
}

/// A Kafka cluster.
#[derive(Debug)]
pub struct KafkaCluster {
    pub(super) dialers: Dialers,
    config: ClusterConfig,
    zookeeper: Option<ZooKeepers>,
    /// The guarded brokers' listeners.
    listeners: BTreeMap<BrokerId, Endpoint>,
    known: Mutex<Known>,
    /// The agents on other hosts.
    pub(super) peers: Vec<Arc<Peer>>,
    pub(super) dialled: Dialled,
}

/// What earlier answers taught.
#[derive(Debug, Default)]
struct Known {
    brokers: BTreeMap<BrokerId, Endpoint>,
    /// The broker that answered last is asked first, so that dead ones cost their deadline once.
    good: Option<BrokerId>,
}

impl KafkaCluster {
    /// The cluster of `config`, with the listeners of the guarded brokers.
    ///
    /// # Errors
    /// Everything that is wrong with `config`, as `key: reason`.
    pub fn new(
        dialers: Dialers,
        config: ClusterConfig,
        listeners: BTreeMap<BrokerId, Endpoint>,
    ) -> Result<Self, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let (known, peers, dialled) = (Mutex::default(), Vec::new(), Dialled::default());
        let zookeeper = config.zookeepers();
        Ok(Self { dialers, config, zookeeper, listeners, known, peers, dialled })
    }

    /// Has these agents dial what the cluster advertises as well.
    #[must_use]
    pub fn with_peers(self, peers: Vec<Arc<Peer>>) -> Self {
        Self { peers, ..self }
    }

    /// The listener of a guarded broker.
    pub(super) fn listener(&self, broker: BrokerId) -> Option<Endpoint> {
        self.listeners.get(&broker).cloned()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a connection to a broker other than `broker`, identified by the address that the cluster itself
    /// advertises for it, and reads `topics` there.
    pub(super) async fn survivor(
        &self,
        broker: Option<BrokerId>,
        topics: Topics<'_>,
    ) -> Result<(BrokerId, Connection, MetadataSeen), Vec<String>> {
        let mut failures = Vec::new();
        for learnt_anew in [false, true] {
            if learnt_anew {
                self.learn().await?;
            }
            let (mut brokers, good) = {
                let known = self.known();
                (known.brokers.clone().into_iter().collect::<Vec<_>>(), known.good)
            };
            brokers.retain(|(id, _)| Some(*id) != broker);
            brokers.sort_by_key(|(id, _)| Some(*id) != good);
            match first_to_answer(&self.dialers.brokers, brokers, topics).await {
                Ok((id, connection, seen)) => {
                    *self.known() = Known { brokers: seen.brokers.clone(), good: Some(id) };
                    return Ok((id, connection, seen));
                }
                Err(failed) => failures.extend(failed),
            }
        }
        Err(failures)
    }

    /// Learns the brokers' addresses from the first bootstrap server that answers.
    async fn learn(&self) -> Result<(), Vec<String>> {
        let servers = self.config.bootstrap.iter().map(|endpoint| ((), endpoint.clone())).collect();
        let ((), _, seen) = first_to_answer(&self.dialers.brokers, servers, Topics::None).await?;
        self.known().brokers = seen.brokers;
        Ok(())
    }

    /// The active controller. Only the active one answers `DescribeQuorum` without an error code. Nobody
    /// waits for the others: one of them may have died with the broker.
    pub(super) async fn active_controller(&self) -> Result<Connection, String> {
        if self.config.controllers.is_empty() {
            return Err("no controllers are configured (cluster.controllers)".to_owned());
        }
        let asked = self.config.controllers.iter().map(|controller| async move {
            let mut connection = self.dialers.controllers.open(&controller.listener, OPEN_LIMIT).await?;
            let said = connection.describe_quorum(OPEN_LIMIT).await?;
            connection.version::<UnregisterBrokerRequest>()?;
            Ok::<_, WireError>((controller, BrokerId(said.leader_id.0), connection))
        });
        let (mut asked, mut failures) = (asked.collect::<FuturesUnordered<_>>(), Vec::new());
        while let Some(came) = asked.next().await {
            match came {
                Ok((controller, leader, connection)) if leader == controller.id => return Ok(connection),
                Ok((controller, leader, _)) => failures.push(format!(
                    "{} is configured as controller {} and says that {leader} is the active one",
                    controller.listener, controller.id
                )),
                Err(error) => failures.push(chain(&error)),
            }
        }
        Err(format!("the active controller was not found: {}", failures.join("; ")))
    }

    /// Whether the registrations are such that removing `broker`'s is right, by a surviving broker's account:
    /// controllers do not tell them.
    async fn check_registrations(
        &self,
        broker: BrokerId,
        sharing: &BTreeSet<BrokerId>,
    ) -> Result<(), String> {
        let survivor = self.survivor(Some(broker), Topics::None).await;
        let (via, mut connection, _) = survivor.map_err(|failures| no_survivor(broker, &failures))?;
        let seen = connection.describe_cluster(ANSWER_LIMIT).await.map_err(|error| chain(&error))?;
        let fenced = seen.brokers.into_iter().map(|(id, is)| (id, is == Registration::Fenced)).collect();
        unregister::still_right(broker, sharing, &fenced).map_err(|why| format!("{why} (by {via})"))
    }

    /// Asks any broker but `broker`.
    pub(super) async fn via(
        &self,
        broker: Option<BrokerId>,
        topics: Topics<'_>,
        action: impl Fn() -> String,
    ) -> Result<(BrokerId, Connection, MetadataSeen), StepError> {
        self.survivor(broker, topics).await.map_err(|failures| {
            let why = match broker {
                Some(broker) => no_survivor(broker, &failures),
                None => format!("no broker answers: {}", failures.join("; ")),
            };
            StepError::Failed { driver: DRIVER, action: action(), source: why.into() }
        })
    }
}

/// The first of `endpoints` that answers, asked in turn: the next one once those before it have failed, or
/// been silent for a moment. The first in line may be the broker that is being taken over.
async fn first_to_answer<T: Copy>(
    dialer: &Dialer,
    endpoints: Vec<(T, Endpoint)>,
    topics: Topics<'_>,
) -> Result<(T, Connection, MetadataSeen), Vec<String>> {
    let (mut next, mut asked, mut failures) = (endpoints.into_iter(), FuturesUnordered::new(), Vec::new());
    // Who reads all partitions may take his time.
    let moment = if matches!(topics, Topics::None) { HEDGE } else { OPEN_LIMIT };
    loop {
        asked.extend(
            next.next()
                .map(|(who, endpoint)| async move { (who, metadata(dialer, &endpoint, topics).await) }),
        );
        let answer =
            if next.len() > 0 { timeout(moment, asked.next()).await } else { Ok(asked.next().await) };
        match answer {
            Ok(Some((who, Ok((connection, seen))))) => return Ok((who, connection, seen)),
            Ok(Some((_, Err(error)))) => failures.push(chain(&error)),
            Ok(None) => return Err(failures),
            Err(_elapsed) => {}
        }
    }
}

async fn metadata(
    dialer: &Dialer,
    endpoint: &Endpoint,
    topics: Topics<'_>,
) -> Result<(Connection, MetadataSeen), WireError> {
    let mut connection = dialer.open(endpoint, OPEN_LIMIT).await?;
    let seen = connection.metadata(topics, ANSWER_LIMIT).await?;
    Ok((connection, seen))
}

fn no_survivor(broker: BrokerId, failures: &[String]) -> String {
    let failures =
        if failures.is_empty() { "the cluster lists no other".to_owned() } else { failures.join("; ") };
    format!("no broker other than {broker} answers: {failures}")
}

/// The partitions that `broker` leads.
pub(super) fn leads(view: &PartitionView, broker: BrokerId) -> impl Iterator<Item = (&str, i32)> {
    let led = view.partitions.iter().filter(move |p| p.leader == Some(broker));
    led.map(|p| (p.topic.as_str(), p.partition))
}

#[async_trait]
impl Cluster for KafkaCluster {
    async fn id(&self) -> Result<String, StepError> {
        let action = || "read the cluster's id".to_owned();
        let (via, connection, seen) = match (self.via(None, Topics::None, action).await, &self.config.id) {
            (Ok(told), _) => told,
            // Nobody can be asked; the configuration says what it must be.
            (Err(_), Some(configured)) => return Ok(configured.clone()),
            (Err(error), None) => return Err(error),
        };
        let refused = |why| StepError::Refused { driver: DRIVER, action: action(), why };
        let at = connection.at();
        let said =
            seen.cluster_id.ok_or_else(|| refused(format!("broker {via} at {at} does not tell it")))?;
        match &self.config.id {
            Some(configured) if *configured != said => Err(refused(format!(
                "broker {via} at {at} belongs to cluster {said}, and cluster.id is {configured}: one of \
                 cluster.bootstrap and cluster.id is wrong"
            ))),
            _ => Ok(said),
        }
    }

    async fn standing(&self, broker: BrokerId) -> Result<Standing, StepError> {
        let action = || format!("see how broker {broker} stands");
        let own = async {
            match self.listeners.get(&broker) {
                Some(listener) => self.dialers.brokers.open(listener, OPEN_LIMIT).await.is_ok(),
                None => false,
            }
        };
        let (answers, told) = tokio::join!(own, self.via(Some(broker), Topics::All, action));
        let (via, _, seen) = told?;
        let replicas = seen.partitions.of(broker).count();
        let in_isr = seen.partitions.of(broker).filter(|p| p.isr.contains(&broker)).count();
        let listed = seen.brokers.get(&broker).filter(|_| answers && in_isr == replicas);
        let advertised = match listed {
            Some(at) => Some(self.advertised(broker, at, &seen).await),
            None => None,
        };
        Ok(Standing {
            listed: seen.brokers.contains_key(&broker),
            replicas,
            in_isr,
            leads: leads(&seen.partitions, broker).count(),
            alone: seen.partitions.of(broker).filter(|p| p.replicas.len() == 1).count(),
            answers,
            advertised,
            via,
        })
    }

    async fn reach(&self, broker: BrokerId) -> Reach {
        self.dial_for_a_peer(broker).await
    }

    async fn partitions(&self) -> Result<PartitionView, StepError> {
        let action = || "read the partitions".to_owned();
        let (_, _, seen) = self.via(None, Topics::All, action).await?;
        Ok(seen.partitions)
    }

    async fn quorum(&self) -> Result<(), StepError> {
        self.find_quorum().await
    }

    async fn behind(&self, broker: BrokerId) -> Result<u64, StepError> {
        self.bytes_behind(broker).await
    }

    async fn registered(&self, broker: BrokerId) -> Result<bool, StepError> {
        let action = || format!("see whether broker {broker} is registered");
        let failed = |why: String| StepError::Failed { driver: DRIVER, action: action(), source: why.into() };
        if let Some(zookeeper) = &self.zookeeper {
            return zookeeper
                .look()
                .await
                .map(|(registered, _)| registered.contains(&broker))
                .map_err(failed);
        }
        let (_, _, seen) = self.via(Some(broker), Topics::None, action).await?;
        let why =
            match registration::ask(&self.dialers, broker, &seen.brokers, &self.config.controllers).await {
                Told::Registered => return Ok(true),
                Told::Unregistered => return Ok(false),
                Told::Untold => {
                    "brokers before 4.0 do not tell that from one that is fenced (name cluster.controllers)"
                        .to_owned()
                }
                Told::Unknown { why } => why,
            };
        Err(failed(why))
    }

    async fn unregister(&self, broker: BrokerId, sharing: &BTreeSet<BrokerId>) -> Unregistered {
        if let Some(zookeeper) = &self.zookeeper {
            return zookeeper.remove(broker, sharing).await;
        }
        let begun = SystemClock.now().mono;
        let looks = tokio::try_join!(self.active_controller(), self.check_registrations(broker, sharing));
        let mut controller = match looks {
            Ok((connection, ())) => connection,
            Err(why) => return Unregistered::NotSent { why },
        };
        if let Err(why) = unregister::fresh(SystemClock.now().mono.since(begun)) {
            return Unregistered::NotSent { why };
        }
        match controller.unregister_broker(broker, UNREGISTER_LIMIT).await {
            Ok(()) => Unregistered::Gone,
            Err(error) => match error.code() {
                Some(code) if code == ResponseError::BrokerIdNotRegistered.code() => Unregistered::Gone,
                Some(_) => Unregistered::Refused { why: chain(&error) },
                None => Unregistered::NoAnswer { why: chain(&error) },
            },
        }
    }

    async fn elect_preferred(&self, broker: BrokerId) -> Result<Note, StepError> {
        self.give_back(broker).await
    }
}

#[cfg(test)]
mod tests;
