//! The nodes that a pod is not on, of those that it may be on: whether an earlier pod of its name may run there still.
//!
//! Who deletes a pod by force has its controller begin another one while the first one's containers may run on, and
//! nothing in the cluster tells of that later. A kubelet that lives ends them. So a node is clear of them once its
//! kubelet was ready for long enough since this agent first saw the pod that is there now. No clock but this host's has
//! a part in that: the times that nodes write are compared with each other, for being the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Node;
use recovery::model::human;

use crate::client::{Cluster, Place};
use crate::fault::{Fault, User};
use crate::node::ready_since;
use crate::watched::{Sight, Watched};

const USER: User = User { section: "host.kubernetes", role: "node-rbac.yaml" };

/// How long one question may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How long a kubelet has to be ready, besides what its pods get for their end: the cluster takes a dead one for ready
/// for 40 s by default.
pub(crate) const READY_FOR: Duration = Duration::from_secs(60);

/// All the nodes that a pod may be on.
#[derive(Debug)]
pub(crate) struct Others {
    nodes: BTreeMap<String, Watched<Node>>,
    ready_for: Duration,
    account: Mutex<Account>,
}

/// The nodes that are clear of what was before one pod.
#[derive(Debug)]
struct Account {
    pod: String,
    since: Instant,
    clear: BTreeSet<String>,
}

impl Others {
    pub(crate) fn new(kubeconfig: Option<PathBuf>, nodes: &BTreeSet<String>, ready_for: Duration) -> Self {
        let cluster = Arc::new(Cluster::new(kubeconfig, None, ATTEMPT, USER));
        let watched = |name: &String| Watched::new(cluster.clone(), Place::Cluster, name, mark);
        let nodes = nodes.iter().map(|name| (name.clone(), watched(name))).collect();
        let account = Account { pod: String::new(), since: Instant::now(), clear: BTreeSet::new() };
        Self { nodes, ready_for, account: Mutex::new(account) }
    }

    pub(crate) fn has(&self, node: &str) -> bool {
        self.nodes.contains_key(node)
    }

    /// Takes note of the pod that is there, and says on which nodes an earlier one may run. `grace`: what the pod gets
    /// for its end.
    pub(crate) async fn unclear(&self, node: &str, pod: &str, grace: Duration) -> Option<String> {
        let needs = self.ready_for + grace;
        let (since, clear) = self.account(pod);
        let left = self.nodes.iter().filter(|(name, _)| *name != node && !clear.contains(*name));
        let looked = left.map(|(name, node)| async move { (name, unready(node, since, needs).await) });
        let (unclear, clear): (Vec<_>, Vec<_>) =
            join_all(looked).await.into_iter().partition(|(_, unready)| unready.is_some());
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        if account.pod == pod {
            account.clear.extend(clear.into_iter().map(|(name, _)| name.clone()));
        }
        let told = unclear.into_iter().filter_map(|(name, why)| Some(format!("{name} {}", why?)));
        let told: Vec<String> = told.collect();
        (!told.is_empty()).then(|| {
            format!(
                "an earlier pod of the name may run elsewhere: {}. It takes {} of being ready since this pod is there: have \
                 the kubelet ready, or take the node out of [[node]] once its machine is off for good",
                told.join("; "),
                human(needs)
            )
        })
    }

    fn account(&self, pod: &str) -> (Instant, BTreeSet<String>) {
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        if account.pod != pod {
            *account = Account { pod: pod.to_owned(), since: Instant::now(), clear: BTreeSet::new() };
        }
        (account.since, account.clear.clone())
    }
}

/// Why a node is not clear yet, after its name.
async fn unready(node: &Watched<Node>, since: Instant, needs: Duration) -> Option<String> {
    let unseen = |fault: Fault| format!("cannot be seen ({fault})");
    let look = |sight: Option<Sight<Node>>| {
        let Some(sight) = sight else { return Some("has not been seen".to_owned()) };
        if let Some(why) = sight.trouble {
            return Some(format!("cannot be seen ({why})"));
        }
        match sight.now {
            None => Some("is no node of the cluster".to_owned()),
            Some(node) if mark(&node).is_empty() => Some("is not ready".to_owned()),
            Some(_) => {
                let lasting = sight.marked.max(since).elapsed();
                (lasting < needs).then(|| format!("was seen ready for {}", human(lasting)))
            }
        }
    };
    match node.settled().await {
        Err(fault) => return Some(unseen(fault)),
        Ok(sight) => {
            if let Some(why) = look(sight) {
                return Some(why);
            }
        }
    }
    // A watch may have been away meanwhile: the last word is a quorum's.
    match node.read().await {
        Err(fault) => Some(unseen(fault)),
        Ok(()) => look(node.sight()),
    }
}

/// Since when a node is ready; empty if it is not. Whatever comes in between makes it another one.
fn mark(node: &Node) -> String {
    ready_since(node).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use fakes::kubernetes::{ADMIN, ControlPlane, STRANGER};
    use recovery::model::{Fact, Machine, Place};
    use recovery::ports::HealthSignal;
    use tokio::time::sleep;

    use super::*;
    use crate::bed::{Still, delete_pod, make_node, make_pod, uid};
    use crate::whereabouts::{Fences, Places, Whereabouts};

    /// For the tests; a pod of theirs gets another second for its end.
    const READY_FOR: Duration = Duration::from_secs(2);
    const NEEDS: Duration = Duration::from_secs(3);

    fn following(plane: &ControlPlane, token: &str) -> Arc<Whereabouts> {
        let kubeconfig = Some(plane.kubeconfig(token, None));
        let nodes = ["node-a", "node-b"].map(str::to_owned).into();
        let others = Fences::Follow(Others::new(kubeconfig.clone(), &nodes, READY_FOR));
        let cluster = Whereabouts::cluster(kubeconfig, Some("kafka".to_owned())).into();
        Arc::new(Whereabouts::new("kafka-1".into(), "kafka-1-0".to_owned(), others, cluster))
    }

    async fn told(of: &Arc<Whereabouts>) -> Place {
        let evidence = Places::new(vec![of.clone()]).look(&Still).await;
        let Fact::Place { place, .. } = &evidence[0].fact else { panic!("{evidence:?}") };
        place.clone()
    }

    async fn told_until(of: &Arc<Whereabouts>, part: &str) -> Place {
        let begun = Instant::now();
        loop {
            let place = told(of).await;
            if place.says().contains(part) {
                return place;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{part}: {place:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn on(node: &str, uid: &str) -> Option<Machine> {
        Some(Machine { name: node.to_owned(), guest: uid.to_owned() })
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_pods_fences_are_its_nodes_once_no_earlier_pod_can_run_on_another() {
        let Some(plane) = ControlPlane::start() else { return };
        plane.kubectl(&["create", "namespace", "kafka"], "").unwrap();
        make_node(&plane, "node-a", "True", 0);
        make_node(&plane, "node-b", "Unknown", 0);
        make_pod(&plane, Some("node-a"));
        let (of, first) = (following(&plane, ADMIN), uid(&plane));
        let place = told_until(&of, "node-b is not ready").await;
        assert!(
            matches!(&place, Place::Astray { on: there, .. } if *there == on("node-a", &first)),
            "{place:?}"
        );
        assert!(place.says().contains("take the node out of [[node]]"), "{place:?}");

        let begun = Instant::now();
        make_node(&plane, "node-b", "True", 10);
        told_until(&of, "node-b was seen ready for").await;
        // It was away for a moment: what it was before counts no more.
        sleep(NEEDS / 2).await;
        let again = Instant::now();
        make_node(&plane, "node-b", "True", 20);
        let place = told_until(&of, "the fences of kafka-1 are those of that node").await;
        assert!(again.elapsed() >= NEEDS, "{:?} after it was ready again", again.elapsed());
        assert!(
            matches!(&place, Place::AtItsFence { on: there, .. } if *there == on("node-a", &first)),
            "{place:?}"
        );
        assert!(begun.elapsed() > NEEDS * 3 / 2);
        // What was before this pod does not come back.
        make_node(&plane, "node-b", "Unknown", 30);
        sleep(Duration::from_millis(500)).await;
        assert!(matches!(told(&of).await, Place::AtItsFence { .. }));
        assert_eq!(
            of.confirm(on("node-a", &first).as_ref(), NEEDS).await.unwrap(),
            "pod kafka-1-0 is on node-a"
        );
        another_pod_of_the_name_begins_anew(&plane, &of, &first).await;
    }

    async fn another_pod_of_the_name_begins_anew(plane: &ControlPlane, of: &Arc<Whereabouts>, first: &str) {
        make_node(plane, "node-a", "Unknown", 40);
        delete_pod(plane);
        let was = "is on no node, and was last on node-a";
        assert!(matches!(told_until(of, was).await, Place::AtItsFence { .. }));
        of.confirm(on("node-a", first).as_ref(), NEEDS).await.unwrap();
        // A person has deleted it by force, and its node is frozen: it may run there.
        make_pod(plane, Some("node-b"));
        let place = told_until(of, "node-a is not ready").await;
        let second = uid(plane);
        assert!(
            matches!(&place, Place::Astray { on: there, .. } if *there == on("node-b", &second)),
            "{place:?}"
        );
        // Nothing is proven of a pod by the node of another one.
        let why = of.confirm(on("node-a", first).as_ref(), NEEDS).await.unwrap_err();
        assert!(why.contains("was made anew") && why.contains("on node node-b"), "{why}");
        delete_pod(plane);
        make_pod(plane, Some("node-c"));
        let place = told_until(of, "which no [[node]] is").await;
        assert!(matches!(&place, Place::Astray { on: None, .. }), "{place:?}");
        assert!(of.confirm(None, NEEDS).await.unwrap_err().contains("the plan does not say"));

        let stranger = following(plane, STRANGER);
        let place = told(&stranger).await;
        assert!(matches!(place, Place::Unseen { .. }), "{place:?}");
        assert!(place.says().contains("may not list pods in namespace kafka"), "{place:?}");
    }
}
