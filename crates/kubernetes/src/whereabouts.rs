//! Where the pod is that a host is. A host's fences prove something of the machine that they name, and a pod may have
//! been made anew on another node: then they would prove it of the wrong one.
//!
//! Of a pod that is gone, or has no node yet, the last sight counts: its containers may run on where they were, and a
//! new one of the name begins with `understudy guard`, which asks the ledger. A watch tells it; after a silence in
//! which another pod of the name may have come and gone, nothing is known. Before a fence, and before its proof, a
//! quorum is asked.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use recovery::model::{Evidence, Fact, HostName, Machine, Place};
use recovery::ports::{Clock, HealthSignal};
use tokio::time::{Instant, sleep};

use crate::client::{Cluster, Place as Scope};
use crate::fault::{Fault, User};
use crate::others::Others;
use crate::watched::{Sight, Watched};

const SIGNAL: &str = "kubernetes_place";
const USER: User = User { section: "host.kubernetes", role: "pod-rbac.yaml" };

/// How often it is told what the watches have brought.
const PERIOD: Duration = Duration::from_secs(5);
/// How long one question may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Between two questions.
const AGAIN: Duration = Duration::from_millis(200);
/// What a pod gets for its end that does not say how long: the default of Kubernetes.
const GRACE: Duration = Duration::from_secs(30);

/// The pod that a host is, and the node that the host's fences act on.
#[derive(Debug)]
pub struct Whereabouts {
    host: HostName,
    pod: String,
    fences: Fences,
    watched: Watched<Pod>,
}

/// What the fences of a host act on.
#[derive(Debug)]
pub(crate) enum Fences {
    /// On this node.
    At(String),
    /// On whichever of these it is.
    Follow(Others),
}

/// Where a pod is, as far as the cluster tells.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// It is there, on this node.
    On(Machine),
    /// It is on no node, and was last on this one.
    Last(Machine),
    /// It is on no node, and nobody has seen it on one.
    Never,
}

impl Whereabouts {
    pub(crate) fn new(host: HostName, pod: String, fences: Fences, cluster: Arc<Cluster>) -> Self {
        let watched = Watched::new(cluster, Scope::Own, &pod, seat);
        Self { host, pod, fences, watched }
    }

    /// The cluster that the pod is in.
    pub(crate) fn cluster(kubeconfig: Option<std::path::PathBuf>, namespace: Option<String>) -> Cluster {
        Cluster::new(kubeconfig, namespace, ATTEMPT, USER)
    }

    /// By the watch; asked for once.
    async fn watched(&self) -> Place {
        match self.watched.settled().await {
            Err(fault) => self.unseen(&fault.to_string()),
            Ok(sight) => match sight.as_ref().and_then(|sight| sight.trouble.as_ref()) {
                Some(why) => self.unseen(why),
                None => match (&self.fences, found(sight.as_ref())) {
                    (Fences::At(node), found) => self.place(node, &found),
                    (Fences::Follow(nodes), found) => {
                        self.followed(nodes, &found, grace(sight.as_ref())).await
                    }
                },
            },
        }
    }

    /// By a quorum, asked until it answers, for as long as `limit`. An error says why nothing may be fenced. A pod that
    /// is on no node, and was never seen on one, is no error: the signal holds every takeover for it, and a person who
    /// orders one all the same has looked. `on`: where a plan says that it was, if its fences follow it.
    pub(crate) async fn confirm(&self, on: Option<&Machine>, limit: Duration) -> Result<String, String> {
        let until = Instant::now() + limit;
        while let Err(fault) = self.read().await {
            if !fault.passes() || Instant::now() + AGAIN >= until {
                return Err(self.unseen(&fault.to_string()).says().to_owned());
            }
            sleep(AGAIN).await;
        }
        let found = found(self.watched.sight().as_ref());
        let Self { pod, .. } = self;
        match (&self.fences, on) {
            (Fences::At(node), _) => match self.place(node, &found) {
                Place::AtItsFence { says, .. } => Ok(says),
                Place::Astray { says, .. } => Err(says),
                Place::Unseen { .. } => {
                    Ok(format!("pod {pod} is on no node: that it was on {node} is the configuration's word"))
                }
            },
            (Fences::Follow(_), Some(on)) => match found {
                Found::On(there) if there == *on => Ok(format!("pod {pod} is on {}", on.name)),
                Found::Last(there) if there == *on => {
                    Ok(format!("pod {pod} is on no node, and was last on {}", on.name))
                }
                Found::Never => Ok(format!("pod {pod} is on no node, and was on {} by the plan", on.name)),
                Found::On(there) | Found::Last(there) => Err(format!(
                    "pod {pod} was made anew since this was decided, on node {}: what is proven of {} says nothing of it",
                    there.name, on.name
                )),
            },
            (Fences::Follow(_), None) => Err(format!("the plan does not say on which node pod {pod} was")),
        }
    }

    /// The node that the pod is on, by the watch.
    pub(crate) async fn machine(&self) -> Result<Machine, String> {
        match found(self.watched.settled().await.map_err(|fault| fault.to_string())?.as_ref()) {
            Found::On(machine) => Ok(machine),
            Found::Last(_) | Found::Never => Err(format!("pod {} is on no node", self.pod)),
        }
    }

    /// Of a pod whose fences follow it.
    async fn followed(&self, nodes: &Others, found: &Found, grace: Duration) -> Place {
        let Self { host, pod, .. } = self;
        let (machine, is) = match found {
            Found::On(machine) => (machine, "is on"),
            Found::Last(machine) => (machine, "is on no node, and was last on"),
            Found::Never => {
                let says = format!(
                    "pod {pod} is on no node, and this agent has not seen on which it was: find that out, and fence that \
                     node yourself"
                );
                return Place::Unseen { says };
            }
        };
        let there = format!("pod {pod} {is} {}", machine.name);
        if !nodes.has(&machine.name) {
            let says = format!(
                "{there}, which no [[node]] is: add one for it, with its fences, to every agent's configuration"
            );
            return Place::Astray { says, on: None };
        }
        match nodes.unclear(&machine.name, &machine.guest, grace).await {
            Some(why) => Place::Astray { says: format!("{there}, and {why}"), on: Some(machine.clone()) },
            None => {
                let says = format!("{there}, and the fences of {host} are those of that node");
                Place::AtItsFence { says, on: Some(machine.clone()) }
            }
        }
    }

    async fn read(&self) -> Result<(), Fault> {
        self.watched.read().await
    }

    /// Of a pod whose fences act on `node`.
    fn place(&self, node: &str, found: &Found) -> Place {
        let Self { host, pod, .. } = self;
        match found {
            Found::On(there) if there.name == node => {
                let says = format!("pod {pod} is on {node}, as the fences of {host} are");
                Place::AtItsFence { says, on: None }
            }
            Found::Last(there) if there.name == node => {
                let says =
                    format!("pod {pod} is on no node, and was last on {node}, as the fences of {host} are");
                Place::AtItsFence { says, on: None }
            }
            Found::On(there) | Found::Last(there) => {
                let was = if matches!(found, Found::On(_)) { "is on" } else { "was last on" };
                let there = &there.name;
                let says = format!(
                    "pod {pod} {was} node {there}, and the fences of {host} act on {node}: have the pod made on {node} \
                     again, or name {there} in [[host.fence]] and [host.kubernetes] of {host} in every agent's \
                     configuration"
                );
                Place::Astray { says, on: None }
            }
            Found::Never => {
                let says = format!(
                    "pod {pod} is on no node, and this agent has not seen on which it was: find that out, and if it \
                     was {node}, run `understudy failover`"
                );
                Place::Unseen { says }
            }
        }
    }

    fn unseen(&self, why: &str) -> Place {
        let Self { pod, fences, .. } = self;
        let says = match fences {
            Fences::At(node) => {
                format!("whether pod {pod} is on {node}, which its fences act on, cannot be seen: {why}")
            }
            Fences::Follow(_) => format!("where pod {pod} is, whose fences follow it, cannot be seen: {why}"),
        };
        Place::Unseen { says }
    }
}

/// The node that a pod was put on, and its uid; empty if it waits for a node.
fn seat(pod: &Pod) -> String {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty());
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    node.map(|node| format!("{node}/{uid}")).unwrap_or_default()
}

fn found(sight: Option<&Sight<Pod>>) -> Found {
    let machine = |seat: &str| {
        let (name, guest) = seat.split_once('/')?;
        Some(Machine { name: name.to_owned(), guest: guest.to_owned() })
    };
    let now = sight.and_then(|sight| machine(&seat(sight.now.as_ref()?)));
    let last = || sight.and_then(|sight| machine(sight.said.as_ref()?));
    now.map(Found::On).or_else(|| last().map(Found::Last)).unwrap_or(Found::Never)
}

/// What the pod gets for its end.
fn grace(sight: Option<&Sight<Pod>>) -> Duration {
    let pod = sight.and_then(|sight| sight.now.as_ref().or(sight.last.as_ref()));
    let seconds = pod.and_then(|pod| pod.spec.as_ref()?.termination_grace_period_seconds);
    seconds.and_then(|seconds| seconds.try_into().ok()).map_or(GRACE, Duration::from_secs)
}

/// The signal that tells where hosts are which are pods: one that is not on the node of its fences is not taken over.
#[derive(Debug)]
pub struct Places(Vec<Arc<Whereabouts>>);

impl Places {
    /// Of these hosts.
    #[must_use]
    pub fn new(all: Vec<Arc<Whereabouts>>) -> Self {
        Self(all)
    }
}

#[async_trait]
impl HealthSignal for Places {
    fn name(&self) -> &'static str {
        SIGNAL
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let at = clock.now().mono;
        let (mut facts, mut blind) = (Vec::new(), Vec::new());
        for (host, place) in
            join_all(self.0.iter().map(|one| async { (&one.host, one.watched().await) })).await
        {
            if let Place::Unseen { says } = &place {
                blind.push(format!("{host}: {says}"));
            }
            facts.push(Fact::Place { host: host.clone(), place, counts_for: PERIOD * 3 });
        }
        // Last, because what is seen ends a blindness.
        facts.extend((!blind.is_empty()).then(|| Fact::Blind { why: blind.join("; ") }));
        facts.into_iter().map(|fact| Evidence { signal: SIGNAL, at, fact }).collect()
    }
}

#[cfg(test)]
mod tests {
    use fakes::kubernetes::Fault::Refused;
    use fakes::kubernetes::{ADMIN, ControlPlane, STRANGER, Wire};

    use super::*;
    use crate::bed::{Still, delete_pod as delete, make_pod as make};
    use crate::watched::GAP;

    const RBAC: &str = include_str!("../../../deploy/kubernetes/pod-rbac.yaml");
    const SOON: Duration = Duration::from_secs(5);

    fn pod_of(plane: &ControlPlane, token: &str) -> Arc<Whereabouts> {
        let cluster = Whereabouts::cluster(Some(plane.kubeconfig(token, None)), Some("kafka".to_owned()));
        let fences = Fences::At("node-a".to_owned());
        Arc::new(Whereabouts::new("kafka-1".into(), "kafka-1-0".to_owned(), fences, cluster.into()))
    }

    /// The signal's word on the host, and if it is blind.
    async fn told(of: &Arc<Whereabouts>) -> (Place, bool) {
        let evidence = Places::new(vec![of.clone()]).look(&Still).await;
        let blind = evidence.iter().any(|one| matches!(one.fact, Fact::Blind { .. }));
        let Fact::Place { place, counts_for, .. } = &evidence[0].fact else { panic!("{evidence:?}") };
        assert!(*counts_for > PERIOD, "it would not count until the next look");
        (place.clone(), blind)
    }

    async fn told_until(of: &Arc<Whereabouts>, part: &str) -> Place {
        let begun = Instant::now();
        loop {
            let (place, _) = told(of).await;
            if place.says().contains(part) {
                return place;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{part}: {place:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_pod_that_is_elsewhere_is_told_and_nothing_is_confirmed_of_it() {
        let Some(plane) = ControlPlane::start() else { return };
        plane.kubectl(&["create", "namespace", "kafka"], "").unwrap();
        plane.kubectl(&["apply", "-f", "-"], RBAC).unwrap();
        let token = plane.token("understudy", "kafka").unwrap();
        let of = pod_of(&plane, &token);
        let place = told_until(&of, "this agent has not seen on which it was").await;
        assert!(matches!(place, Place::Unseen { .. }), "{place:?}");
        assert!(place.says().contains("understudy failover"), "{place:?}");
        let said = of.confirm(None, SOON).await.unwrap();
        assert!(said.contains("is the configuration's word"), "{said}");

        make(&plane, Some("node-a"));
        let place = told_until(&of, "is on node-a").await;
        assert!(matches!(place, Place::AtItsFence { .. }), "{place:?}");
        // Without its object its containers may run on, where they were.
        delete(&plane);
        let place = told_until(&of, "is on no node, and was last on node-a").await;
        assert!(matches!(place, Place::AtItsFence { .. }), "{place:?}");
        // Its controller makes it anew.
        make(&plane, None);
        of.confirm(None, SOON).await.unwrap();
        delete(&plane);
        make(&plane, Some("node-b"));
        // A quorum is asked, and no watch waited for.
        let why = of.confirm(None, SOON).await.unwrap_err();
        assert!(why.contains("is on node node-b, and the fences of kafka-1 act on node-a"), "{why}");
        assert!(why.contains("[host.kubernetes] of kafka-1 in every agent's configuration"), "{why}");
        assert_eq!(told_until(&of, "is on node node-b").await, Place::Astray { says: why, on: None });
        delete(&plane);
        let place = told_until(&of, "was last on node node-b").await;
        assert!(matches!(place, Place::Astray { .. }), "{place:?}");
        let why = of.confirm(None, SOON).await.unwrap_err();
        assert!(why.contains("was last on node node-b"), "{why}");
        what_cannot_be_seen_confirms_nothing(&plane, &of).await;
    }

    async fn what_cannot_be_seen_confirms_nothing(plane: &ControlPlane, of: &Arc<Whereabouts>) {
        make(plane, Some("node-a"));
        told_until(of, "is on node-a").await;
        let stranger = pod_of(plane, STRANGER);
        let why = stranger.confirm(None, SOON).await.unwrap_err();
        assert!(
            why.contains("may not list pods in namespace kafka") && why.contains("pod-rbac.yaml"),
            "{why}"
        );
        let (place, blind) = told(&stranger).await;
        assert!(blind && matches!(place, Place::Unseen { .. }), "{place:?}");

        plane.freeze_api();
        let begun = Instant::now();
        let why = of.confirm(None, Duration::from_millis(500)).await.unwrap_err();
        assert!(begun.elapsed() < ATTEMPT + SOON, "{:?}", begun.elapsed());
        assert!(why.contains("cannot be seen") && why.contains("did not answer"), "{why}");
        plane.thaw_api();
        // An API server that is back is waited for.
        of.confirm(None, Duration::from_secs(30)).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn after_a_silence_a_pod_that_is_gone_may_have_been_anywhere() {
        let Some(plane) = ControlPlane::start() else { return };
        plane.kubectl(&["create", "namespace", "kafka"], "").unwrap();
        let wire = Wire::to(&plane).await;
        let path = Some(plane.kubeconfig(ADMIN, Some(wire.url())));
        let cluster = Whereabouts::cluster(path, Some("kafka".to_owned()));
        let fences = Fences::At("node-a".to_owned());
        let of = Whereabouts::new("kafka-1".into(), "kafka-1-0".to_owned(), fences, cluster.into());
        let of = Arc::new(of);
        make(&plane, Some("node-a"));
        told_until(&of, "is on node-a").await;
        // The very pod that was there is where it was, however long nothing was heard.
        unheard(&plane, &wire, || ()).await;
        told_until(&of, "is on node-a").await;
        unheard(&plane, &wire, || delete(&plane)).await;
        let place = told_until(&of, "has not seen on which it was").await;
        assert!(matches!(place, Place::Unseen { .. }), "{place:?}");
        make(&plane, Some("node-a"));
        told_until(&of, "is on node-a").await;
    }

    /// Something happens while the watch is away for longer than [`GAP`].
    async fn unheard(plane: &ControlPlane, wire: &Wire, happens: impl FnOnce()) {
        // Watches end with the server, and none is begun anew.
        plane.kill_api();
        wire.set(Some(Refused(503, usize::MAX)));
        plane.start_api();
        tokio::task::block_in_place(|| plane.await_ready());
        let begun = Instant::now();
        happens();
        sleep((GAP + Duration::from_secs(1)).saturating_sub(begun.elapsed())).await;
        wire.set(None);
    }
}
