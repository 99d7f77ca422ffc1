//! A node that is kept from new pods while the host that it is stands fenced. It is beside the fences of a host, and
//! none itself: a kubelet that is frozen or cut off keeps its containers running, whatever is written at its node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node, Taint};
use recovery::model::{Epoch, HostName, Machine};
use recovery::ports::{Fence, MOVED, Note, Proof, StepError, chain};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::client::{Cluster, Place};
use crate::fault::{Fault, User};
use crate::following::Following;
use crate::names::{is_name, place_problems};
use crate::others::{Others, READY_FOR};
use crate::whereabouts::{Fences, Whereabouts};

const DRIVER: &str = "kubernetes";
const USER: User = User { section: "host.kubernetes", role: "taint-rbac.yaml" };

/// The taint. Nothing else of the node is touched, so that lifting it leaves a person's cordon alone.
const KEY: &str = "understudy.dev/fenced";
/// Between the name of a node and that of a fence of it.
pub(crate) const OF: &str = ": ";
/// New pods go elsewhere, and those that are there are left alone.
const EFFECT: &str = "NoSchedule";

/// How long one question may take.
const ATTEMPT: Duration = Duration::from_secs(1);
/// How long a takeover waits for the taint: it is a courtesy, and the broker is down.
const IN_A_TAKEOVER: Duration = Duration::from_secs(1);
/// How long a fence waits to hear where the pod is: the broker is down, and to fence the wrong machine is worse.
const WHERE: Duration = Duration::from_secs(60);
/// How long a person waits.
const FOR_A_PERSON: Duration = Duration::from_secs(10);
/// After somebody else has written the node.
const AGAIN: Duration = Duration::from_millis(50);

/// The node of a Kubernetes cluster that the host is. Once a fence of the host is proven, the node gets the taint
/// `understudy.dev/fenced`, as a cordon does: no new pod is put on it until `understudy rejoin` lifts the fence. See
/// `docs/kubernetes.md`.
///
/// It proves nothing, and waits for nothing: the fences do, and a taint that cannot be written is told and no more.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesTaintConfig {
    /// The name of the node. Without it the host is a pod that may be on any `[[node]]`, and is fenced with the one that
    /// it is on; it has no `[[host.fence]]` then.
    #[serde(default)]
    pub node: Option<String>,
    /// The name of the pod that the host is, if it is one. While that pod is on another node than the fences act on, or
    /// nobody can see where it is, no takeover begins that would fence this host, and its fences prove nothing.
    #[serde(default)]
    pub pod: Option<String>,
    /// The namespace of the pod. Without it: that of the kubeconfig's context, or of this pod.
    #[serde(default)]
    pub namespace: Option<String>,
    /// A kubeconfig, as in `[ledger]`.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
}

impl KubernetesTaintConfig {
    /// Every bad value, as `key: what is wrong`.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(node) = self.node.as_ref().filter(|node| !is_name(node)) {
            problems
                .push(format!("node: `{node}` is not the name of a node; `kubectl get nodes` lists them"));
        }
        if self.node.is_none() && self.pod.is_none() {
            problems.push("names neither the `node` that the host is nor its `pod`".to_owned());
        }
        if let Some(pod) = self.pod.as_ref().filter(|pod| !is_name(pod)) {
            problems.push(format!("pod: `{pod}` is not the name of a pod"));
        }
        if self.pod.is_none() && self.namespace.is_some() {
            problems.push("namespace: is that of a pod, and there is no `pod`".to_owned());
        }
        problems.extend(place_problems(self.namespace.as_deref(), self.kubeconfig.as_deref()));
        problems
    }

    /// Where the pod is that `host` is, if it is one. `nodes`: those that it may be on, if no `node` is named.
    #[must_use]
    pub fn whereabouts(&self, host: &HostName, nodes: &BTreeSet<String>) -> Option<Arc<Whereabouts>> {
        let cluster = Arc::new(Whereabouts::cluster(self.kubeconfig.clone(), self.namespace.clone()));
        let fences = match &self.node {
            Some(node) => Fences::At(node.clone()),
            None => Fences::Follow(Others::new(self.kubeconfig.clone(), nodes, READY_FOR)),
        };
        Some(Arc::new(Whereabouts::new(host.clone(), self.pod.clone()?, fences, cluster)))
    }

    /// The same fence, with the taint beside it, and nothing fenced or proven unless the pod is seen where the fence
    /// acts.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(
        self,
        fence: Arc<dyn Fence>,
        whereabouts: Option<Arc<Whereabouts>>,
    ) -> Result<Tainted, Vec<String>> {
        let problems = self.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let node = self.node.ok_or_else(|| vec!["node: is missing".to_owned()])?;
        let cluster = Arc::new(Cluster::new(self.kubeconfig, None, ATTEMPT, USER));
        Ok(Tainted { fence, node, cluster, whereabouts, on: None, moves: false })
    }

    /// The fences of the nodes, each with the taint beside it, for a pod that may be on any of them.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn follow(
        self,
        nodes: &BTreeMap<String, Arc<dyn Fence>>,
        whereabouts: Arc<Whereabouts>,
    ) -> Result<Following, Vec<String>> {
        let problems = self.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let cluster = Arc::new(Cluster::new(self.kubeconfig, None, ATTEMPT, USER));
        let tainted = |(node, fence): (&String, &Arc<dyn Fence>)| {
            let (fence, cluster, whereabouts) = (fence.clone(), cluster.clone(), Some(whereabouts.clone()));
            (
                node.clone(),
                Tainted { fence, node: node.clone(), cluster, whereabouts, on: None, moves: false },
            )
        };
        Ok(Following { nodes: nodes.iter().map(tainted).collect(), whereabouts: whereabouts.clone() })
    }
}

/// A fence with a taint beside it; see [`KubernetesTaintConfig`]. Whatever is proven, the fence proves.
#[derive(Clone)]
pub struct Tainted {
    fence: Arc<dyn Fence>,
    pub(crate) node: String,
    cluster: Arc<Cluster>,
    whereabouts: Option<Arc<Whereabouts>>,
    /// The node with the pod that is fenced with it; `None` where the fence is the host's own.
    on: Option<Machine>,
    /// A proof of that node holds wherever the pod is by then.
    moves: bool,
}

impl Tainted {
    /// Where the pod is that the host is, in words; an error unless the fence acts there.
    async fn is_there(
        &self,
        action: &str,
        host: &HostName,
        limit: Duration,
    ) -> Result<Option<String>, StepError> {
        let Some(whereabouts) = &self.whereabouts else { return Ok(None) };
        let refused = |why| StepError::Refused { driver: DRIVER, action: format!("{action} {host}"), why };
        whereabouts.confirm(self.on.as_ref(), limit).await.map(Some).map_err(refused)
    }

    /// The same for a pod that is fenced with its node. `moves`: as in [`Fence::on`].
    pub(crate) fn of(&self, on: &Machine, moves: bool) -> Self {
        Self { on: Some(on.clone()), moves, ..self.clone() }
    }

    /// The name by which the device knows what it fences.
    fn device(&self, host: &HostName) -> HostName {
        if self.on.is_some() { HostName(self.node.clone()) } else { host.clone() }
    }

    /// What only the node has: the device that fences it, whatever is on it.
    pub(crate) async fn device_checks(&self) -> Vec<(String, Result<Note, StepError>)> {
        let node = HostName(self.node.clone());
        let mut checks = self.fence.checks(&node).await;
        checks.push((DRIVER.to_owned(), self.can_taint().await));
        checks.into_iter().map(|(rung, found)| (format!("{node}{OF}{rung}"), found)).collect()
    }

    /// Has the node have the taint of an epoch, or none. Returns whether that changed anything. `dry`: it does not.
    async fn set(&self, value: Option<&str>, dry: bool) -> Result<bool, String> {
        let taint = value.map(|value| Taint {
            key: KEY.to_owned(),
            value: Some(value.to_owned()),
            effect: EFFECT.to_owned(),
            ..Taint::default()
        });
        set_taint(&self.cluster, &self.node, KEY, taint, dry).await
    }

    async fn set_within(&self, value: Option<&str>, dry: bool, limit: Duration) -> Result<bool, String> {
        let late = || format!("the API server did not answer within {limit:?}");
        timeout(limit, self.set(value, dry)).await.map_err(|_| late())?
    }

    fn failed(&self, action: &str, why: String) -> StepError {
        let action = format!("{action} node {}", self.node);
        StepError::Failed { driver: DRIVER, action, source: why.into() }
    }

    async fn look(&self, host: &HostName) -> Result<Note, StepError> {
        let there = self.is_there("prove anything of", host, FOR_A_PERSON).await?;
        let there = there.map(|says| format!("{says}; ")).unwrap_or_default();
        let note = self.can_taint().await?;
        Ok(Note { text: format!("{there}{}", note.text), ..note })
    }

    async fn can_taint(&self) -> Result<Note, StepError> {
        let node = &self.node;
        match self.set_within(Some("check"), true, FOR_A_PERSON).await {
            Ok(_) => Ok(Note::new(format!("node {node} can be tainted, beside what the fences prove"))),
            Err(why) => Err(self.failed("see whether it can taint", why)),
        }
    }
}

/// Has a node have this taint of that key, or none. Returns whether that changed anything. `dry`: it does not.
pub(crate) async fn set_taint(
    cluster: &Cluster,
    name: &str,
    key: &str,
    taint: Option<Taint>,
    dry: bool,
) -> Result<bool, String> {
    let said = |fault: Fault| fault.to_string();
    loop {
        let (node, _) = cluster.find::<Node>(Place::Cluster, name).await.map_err(said)?;
        let absent =
            || format!("the cluster has no node {name}: correct its name; `kubectl get nodes` lists them");
        let node = node.ok_or_else(absent)?;
        let was = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let mut taints: Vec<Taint> = was.iter().filter(|taint| taint.key != key).cloned().collect();
        taints.extend(taint.clone());
        if taints == was && !dry {
            return Ok(false);
        }
        let patch = json!({
            "metadata": { "resourceVersion": node.metadata.resource_version },
            "spec": { "taints": taints },
        });
        if cluster.ask().patch::<Node>(Place::Cluster, name, &patch, dry).await.map_err(said)?.is_some() {
            return Ok(true);
        }
        sleep(AGAIN).await;
    }
}

#[async_trait]
impl Fence for Tainted {
    fn name(&self) -> &str {
        self.fence.name()
    }

    /// The taint comes after the fence, and its failure is a warning.
    async fn fence(&self, host: &HostName, epoch: Epoch) -> Result<Note, StepError> {
        self.is_there("fence", host, WHERE).await?;
        let note = self.fence.fence(&self.device(host), epoch).await?;
        Ok(match self.set_within(Some(&format!("epoch-{epoch}")), false, IN_A_TAKEOVER).await {
            Ok(_) => Note { text: format!("{}; its node {} is tainted", note.text, self.node), ..note },
            Err(why) => {
                let node = &self.node;
                note.warn([format!("node {node} is not tainted ({why}): `kubectl cordon {node}`")])
            }
        })
    }

    async fn prove(&self, host: &HostName, epoch: Epoch) -> Result<Proof, StepError> {
        let proof = self.fence.prove(&self.device(host), epoch).await?;
        let proof = Proof { host: host.clone(), ..proof };
        // After it: a pod that has gone elsewhere before that is seen.
        let there = match self.is_there("prove anything of", host, WHERE).await {
            Err(why) if self.moves => {
                return Ok(Proof { note: proof.note.with(MOVED, chain(&why)), ..proof });
            }
            there => there?,
        };
        let text = there.map(|says| format!("{}; {says}", proof.note.text));
        Ok(match text {
            Some(text) => Proof { note: Note { text, ..proof.note }, ..proof },
            None => proof,
        })
    }

    async fn lift(&self, host: &HostName) -> Result<Note, StepError> {
        let note = self.fence.lift(&self.device(host)).await?;
        let removed = self.set_within(None, false, FOR_A_PERSON).await;
        let removed = removed.map_err(|why| self.failed("take the taint off", why))?;
        let said = if removed { "lost its taint" } else { "has no taint of ours" };
        Ok(Note { text: format!("{}; its node {} {said}", note.text, self.node), ..note })
    }

    async fn check(&self, host: &HostName) -> Result<Note, StepError> {
        let note = self.fence.check(host).await?;
        let tainted = self.look(host).await?;
        Ok(Note { text: format!("{}; {}", note.text, tainted.text), ..note })
    }

    async fn checks(&self, host: &HostName) -> Vec<(String, Result<Note, StepError>)> {
        let mut checks = self.fence.checks(host).await;
        checks.push((DRIVER.to_owned(), self.look(host).await));
        checks
    }

    fn disbelieve(&self, rung: &str, why: &str) {
        self.fence.disbelieve(rung, why);
    }

    async fn has_power(&self, host: &HostName) -> Option<bool> {
        self.fence.has_power(&self.device(host)).await
    }

    fn leaves_running(&self) -> bool {
        self.fence.leaves_running()
    }

    async fn finish(&self, host: &HostName, epoch: Epoch) -> Result<Note, StepError> {
        self.is_there("stop", host, WHERE).await?;
        self.fence.finish(&self.device(host), epoch).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use fakes::kubernetes::{ADMIN, ControlPlane, STRANGER};
    use recovery::ports::chain;

    use super::*;
    use crate::bed::{delete_pod, make_pod};

    const RBAC: &str = include_str!("../../../deploy/kubernetes/taint-rbac.yaml");
    const HOST: &str = "kafka-1";

    /// A fence that does as it is told to, and notes what it was asked for.
    #[derive(Default)]
    struct Device {
        fails: bool,
        asked: Mutex<Vec<&'static str>>,
    }

    impl Device {
        fn answer(&self, what: &'static str) -> Result<Note, StepError> {
            self.asked.lock().unwrap().push(what);
            if self.fails {
                let (driver, action, why) = ("device", what.to_owned(), "it is broken".to_owned());
                return Err(StepError::Refused { driver, action, why });
            }
            Ok(Note::new(format!("device: {what}")))
        }
    }

    #[async_trait]
    impl Fence for Device {
        fn name(&self) -> &'static str {
            "device"
        }
        async fn fence(&self, _host: &HostName, _epoch: Epoch) -> Result<Note, StepError> {
            self.answer("fence")
        }
        async fn prove(&self, host: &HostName, _epoch: Epoch) -> Result<Proof, StepError> {
            let note = self.answer("prove")?;
            Ok(Proof { host: host.clone(), by: "device".to_owned(), note })
        }
        async fn lift(&self, _host: &HostName) -> Result<Note, StepError> {
            self.answer("lift")
        }
        async fn check(&self, _host: &HostName) -> Result<Note, StepError> {
            self.answer("check")
        }
    }

    fn tainted(plane: &ControlPlane, token: &str, device: Device) -> Tainted {
        let kubeconfig = Some(plane.kubeconfig(token, None));
        let config =
            KubernetesTaintConfig { node: Some("node-a".to_owned()), pod: None, namespace: None, kubeconfig };
        config.build(Arc::new(device), None).unwrap()
    }

    fn taints(plane: &ControlPlane) -> String {
        let path = "jsonpath={range .spec.taints[*]}{.key}={.value}:{.effect} {end}";
        let said = plane.kubectl(&["get", "node", "node-a", "-o", path], "").unwrap();
        // What the API server itself puts at a node that has never been ready.
        said.replace("node.kubernetes.io/not-ready=:NoSchedule ", "").trim().to_owned()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_node_is_tainted_while_its_host_is_fenced_and_nothing_is_proven_by_it() {
        let Some(plane) = ControlPlane::start() else { return };
        let (host, epoch) = (HostName::from(HOST), Epoch(7));
        plane.kubectl(&["create", "namespace", "kafka"], "").unwrap();
        plane.kubectl(&["apply", "-f", "-"], RBAC).unwrap();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}});
        plane.kubectl(&["apply", "-f", "-"], &node.to_string()).unwrap();
        plane.kubectl(&["taint", "node", "node-a", "dedicated=kafka:NoExecute"], "").unwrap();
        let own = "dedicated=kafka:NoExecute";
        let token = plane.token("understudy", "kafka").unwrap();
        let fence = tainted(&plane, &token, Device::default());
        check_until(&fence, &host, |checks| checks.iter().all(Result::is_ok)).await;
        assert_eq!(taints(&plane), own, "a check changes nothing");

        let note = fence.fence(&host, epoch).await.unwrap().text;
        assert_eq!(note, "device: fence; its node node-a is tainted");
        assert_eq!(taints(&plane), format!("{own} understudy.dev/fenced=epoch-7:NoSchedule"));
        fence.fence(&host, Epoch(8)).await.unwrap();
        assert_eq!(taints(&plane), format!("{own} understudy.dev/fenced=epoch-8:NoSchedule"));
        plane.kubectl(&["cordon", "node-a"], "").unwrap();
        fence.lift(&host).await.unwrap();
        assert!(taints(&plane).starts_with(own) && !taints(&plane).contains(KEY), "{}", taints(&plane));
        let cordoned = plane.kubectl(&["get", "node", "node-a", "-o", "jsonpath={.spec.unschedulable}"], "");
        assert_eq!(cordoned.unwrap(), "true", "a person's cordon stays");
        fence.lift(&host).await.unwrap();

        let broken = tainted(&plane, ADMIN, Device { fails: true, ..Device::default() });
        broken.fence(&host, epoch).await.unwrap_err();
        assert!(!taints(&plane).contains(KEY), "a host that is not fenced is left alone: {}", taints(&plane));
        plane.kubectl(&["taint", "node", "node-a", &format!("{KEY}=epoch-7:NoSchedule")], "").unwrap();
        broken.prove(&host, epoch).await.unwrap_err();
        without_each_right_it_is_told(&plane, &host, &token).await;
        what_cannot_be_tainted_is_fenced_all_the_same(&plane, &host).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_node_that_the_pod_has_left_is_not_fenced_and_proves_nothing() {
        let Some(plane) = ControlPlane::start() else { return };
        let (host, epoch) = (HostName::from(HOST), Epoch(7));
        plane.kubectl(&["create", "namespace", "kafka"], "").unwrap();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}});
        plane.kubectl(&["apply", "-f", "-"], &node.to_string()).unwrap();
        let config = KubernetesTaintConfig {
            node: Some("node-a".to_owned()),
            pod: Some("kafka-1-0".to_owned()),
            namespace: Some("kafka".to_owned()),
            kubeconfig: Some(plane.kubeconfig(ADMIN, None)),
        };
        let (device, whereabouts) =
            (Arc::new(Device::default()), config.whereabouts(&host, &BTreeSet::new()));
        let fence = config.build(device.clone(), whereabouts).unwrap();
        make_pod(&plane, Some("node-b"));
        let refused = [
            fence.fence(&host, epoch).await.unwrap_err(),
            fence.finish(&host, epoch).await.unwrap_err(),
            fence.prove(&host, epoch).await.unwrap_err(),
            fence.check(&host).await.unwrap_err(),
        ];
        for error in refused {
            let why = chain(&error);
            assert!(
                why.contains("pod kafka-1-0 is on node node-b") && why.contains("act on node-a"),
                "{why}"
            );
        }
        assert_eq!(*device.asked.lock().unwrap(), ["prove", "check"], "nothing was switched off");
        assert!(!taints(&plane).contains(KEY), "{}", taints(&plane));
        delete_pod(&plane);
        make_pod(&plane, Some("node-a"));
        fence.fence(&host, epoch).await.unwrap();
        let proof = fence.prove(&host, epoch).await.unwrap();
        assert!(proof.note.text.contains("pod kafka-1-0 is on node-a"), "{}", proof.note.text);
    }

    async fn check_until(
        fence: &Tainted,
        host: &HostName,
        is: impl Fn(&[Result<String, String>]) -> bool,
    ) -> Vec<Result<String, String>> {
        let begun = std::time::Instant::now();
        loop {
            let checks = fence.checks(host).await.into_iter();
            let said: Vec<_> =
                checks.map(|(_, said)| said.map(|note| note.text).map_err(|error| chain(&error))).collect();
            if is(&said) {
                return said;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{said:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn without_each_right_it_is_told(plane: &ControlPlane, host: &HostName, token: &str) {
        for (left, missing) in [("patch", "list"), ("list", "patch")] {
            let role = json!({"rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": [left]}]});
            let patch = ["patch", "clusterrole", "understudy-taint", "--type=merge", "-p", &role.to_string()];
            plane.kubectl(&patch, "").unwrap();
            let fence = tainted(plane, token, Device::default());
            let denied = format!("may not {missing} nodes of the cluster");
            let said = |checks: &[Result<String, String>]| {
                checks.iter().any(|said| said.as_ref().is_err_and(|why| why.contains(&denied)))
            };
            check_until(&fence, host, said).await;
        }
    }

    async fn what_cannot_be_tainted_is_fenced_all_the_same(plane: &ControlPlane, host: &HostName) {
        let stranger = tainted(plane, STRANGER, Device::default());
        let note = stranger.fence(host, Epoch(7)).await.unwrap();
        let warned = note.to_string();
        assert!(
            warned.contains("node node-a is not tainted") && warned.contains("kubectl cordon node-a"),
            "{warned}"
        );
        assert!(warned.contains("deploy/kubernetes/taint-rbac.yaml"), "{warned}");
        assert_eq!(stranger.prove(host, Epoch(7)).await.unwrap().by, "device");
        plane.freeze_api();
        let begun = std::time::Instant::now();
        let note = tainted(plane, ADMIN, Device::default()).fence(host, Epoch(7)).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        assert!(note.to_string().contains("did not answer within 1s"), "{note}");
        plane.thaw_api();
    }

    #[test]
    fn every_bad_value_is_told() {
        let problems = |text| toml::from_str::<KubernetesTaintConfig>(text).unwrap().problems().len();
        assert_eq!(problems("node = \"Node_A\"\nkubeconfig = \"k\""), 2);
        assert_eq!(problems("node = \"a\"\nnamespace = \"b\""), 1);
        assert_eq!(problems("node = \"a\"\npod = \"B\"\nnamespace = \"b.c\""), 2);
    }
}
