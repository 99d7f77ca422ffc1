//! `kubernetes_node`: what the cluster says of the nodes of hosts.

mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use recovery::model::{Evidence, Fact, HostName, Moment};
use recovery::ports::{Clock, HealthSignal};
use schemars::JsonSchema;
use serde::Deserialize;

pub(crate) use self::state::ready_since;
use self::state::{Seen, state};
use crate::client::{Cluster, Place};
use crate::fault::{Fault, User};
use crate::names::{is_name, place_problems};
use crate::watched::{Sight, Watched};

const SIGNAL: &str = "kubernetes_node";
const USER: User = User { section: SIGNAL, role: "node-rbac.yaml" };

/// Where kubelets renew their leases.
const LEASES: Place = Place::Namespace("kube-node-lease");
/// How long a lease holds that does not say so: the default of a kubelet.
const LEASE: Duration = Duration::from_secs(40);
/// How long one question may take.
const ATTEMPT: Duration = Duration::from_secs(3);

/// What a Kubernetes cluster says of the nodes that hosts are: their conditions and taints, and the leases that their
/// kubelets renew every 10 s. See `docs/kubernetes.md`.
///
/// A node that is not ready, or whose lease is not renewed, only supports: a kubelet that is frozen or cut off leaves its
/// containers running, and Kafka in them. A node that the cloud's controller says is shut down, or has removed, counts
/// as off: the second witness of its host's death where the cluster of Kafka says nothing, and no proof. Nothing of this
/// is a sight of Kafka.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesNodeConfig {
    /// The name of the node that each host is, by the host's name.
    pub hosts: BTreeMap<String, String>,
    /// A kubeconfig, as in `[ledger]`.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// How often it is told what the watches have brought. The API server is asked only for a node whose lease has run
    /// out.
    #[serde(default = "five_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub period: Duration,
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

impl KubernetesNodeConfig {
    /// The signal, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self) -> Result<Nodes, Vec<String>> {
        let mut problems = Vec::new();
        if self.hosts.is_empty() {
            problems.push("hosts: names no host".to_owned());
        }
        let mut hosts = BTreeMap::new();
        for (host, node) in &self.hosts {
            if !is_name(node) {
                problems.push(format!(
                    "hosts.{host}: `{node}` is not the name of a node; `kubectl get nodes` lists them"
                ));
            } else if let Some(other) = hosts.insert(node, host) {
                problems.push(format!("hosts.{host}: node {node} is {other} already"));
            }
        }
        problems.extend(place_problems(None, self.kubeconfig.as_deref()));
        if self.period < Duration::from_secs(1) {
            problems.push("period: must be at least 1s: a lease is renewed every 10 s".to_owned());
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let cluster = Arc::new(Cluster::new(self.kubeconfig, None, ATTEMPT, USER));
        let watched = |(host, name): (String, String)| {
            let node = Watched::new(cluster.clone(), Place::Cluster, &name, |_| String::new());
            let lease = Watched::new(cluster.clone(), LEASES, &name, renewal);
            (HostName(host), Host { name, node, lease })
        };
        Ok(Nodes { hosts: self.hosts.into_iter().map(watched).collect(), period: self.period })
    }
}

/// What changes with each renewal.
fn renewal(lease: &Lease) -> String {
    let spec = lease.spec.as_ref();
    format!("{:?}", spec.and_then(|spec| spec.renew_time.as_ref()))
}

/// The signal; see [`KubernetesNodeConfig`].
#[derive(Debug)]
pub struct Nodes {
    hosts: BTreeMap<HostName, Host>,
    period: Duration,
}

#[derive(Debug)]
struct Host {
    /// Of the node.
    name: String,
    node: Watched<Node>,
    lease: Watched<Lease>,
}

/// What is told of a host: evidence or not, and what is wrong with seeing it.
type Told = (Option<(Moment, Fact)>, Vec<String>);

impl Host {
    /// What the watches have brought; asked anew if the lease has run out, for a watch may be dead.
    async fn see(&self) -> Result<(Sight<Node>, Sight<Lease>), Fault> {
        let (node, lease) = tokio::try_join!(self.node.settled(), self.lease.settled())?;
        if let Some((node, lease)) = node.zip(lease)
            && node.now.is_some()
            && lease.marked.elapsed() <= holds(&lease)
        {
            return Ok((node, lease));
        }
        tokio::try_join!(self.node.read(), self.lease.read())?;
        let read = self.node.sight().zip(self.lease.sight());
        read.ok_or_else(|| Fault::Setup("nothing was read".to_owned()))
    }

    async fn look(&self, host: &HostName, at: Moment, period: Duration) -> Told {
        let (node, lease) = match self.see().await {
            Ok(seen) => seen,
            Err(fault) => return (None, vec![format!("{host}: {fault}")]),
        };
        let trouble = [&node.trouble, &lease.trouble].into_iter().flatten();
        let mut blind: Vec<String> = trouble.map(|why| format!("{host}: {why}")).collect();
        let (silence, limit) = (lease.marked.elapsed(), holds(&lease));
        let seen = Seen { now: node.now.as_ref(), last: node.last.as_ref(), silence, limit };
        let Some(state) = state(&seen) else {
            let name = &self.name;
            blind.push(format!(
                "{host}: the cluster has no node {name}: correct {SIGNAL}.hosts.{host}; `kubectl get nodes` lists them"
            ));
            return (None, blind);
        };
        // A renewal is what shows that it lives.
        let (at, counts_for) = if silence <= limit && node.now.is_some() {
            (Moment(at.0.saturating_sub(silence)), limit + period)
        } else {
            (at, period * 2)
        };
        (Some((at, Fact::Machine { host: host.clone(), state, counts_for })), blind)
    }
}

/// For how long a renewal of the lease holds.
fn holds(lease: &Sight<Lease>) -> Duration {
    let spec = lease.last.as_ref().and_then(|lease| lease.spec.as_ref());
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
    seconds.and_then(|seconds| u64::try_from(seconds).ok()).map_or(LEASE, Duration::from_secs)
}

#[async_trait]
impl HealthSignal for Nodes {
    fn name(&self) -> &'static str {
        SIGNAL
    }

    fn period(&self) -> Duration {
        self.period
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let at = clock.now().mono;
        let looks = self.hosts.iter().map(|(host, watched)| watched.look(host, at, self.period));
        let (facts, blind): (Vec<_>, Vec<_>) = join_all(looks).await.into_iter().unzip();
        let mut blind = blind.concat();
        blind.dedup();
        let facts = facts.into_iter().flatten();
        // Last, because what is seen ends a blindness.
        let blind = (!blind.is_empty()).then(|| (at, Fact::Blind { why: blind.join("; ") }));
        facts.chain(blind).map(|(at, fact)| Evidence { signal: SIGNAL, at, fact }).collect()
    }
}
