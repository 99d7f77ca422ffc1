//! `rescheduling`: Kafka in pods that another controller makes, such as a StatefulSet's or Strimzi's. Once a node is
//! proven to be off, its pod is deleted by force, so that its controller makes it anew on another node at once; by
//! itself the cluster would wait for ever, for it cannot know that the containers ended.
//!
//! Deliberately absent: a start, a stop or a kill of Kafka. All that is its controller's and its kubelet's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Taint};
use recovery::model::{BrokerId, Epoch, Machine, ProcessState};
use recovery::ports::{BrokerHost, Note, Proof, StepError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use crate::client::{Cluster, Place};
use crate::fault::{Fault, User};
use crate::names::place_problems;
use crate::taint::set_taint;

const DRIVER: &str = "rescheduling";
const USER: User = User { section: "broker_host", role: "rescheduling-rbac.yaml" };

/// By it the cluster itself ends every pod of a node that is not ready, and gives its volumes free.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const EFFECT: &str = "NoExecute";

/// How long one question may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long the pod may take to be made anew, and to be put on a node.
const MADE_WITHIN: Duration = Duration::from_secs(120);
/// How long a person waits.
const FOR_A_PERSON: Duration = Duration::from_secs(10);
/// How long the taint may take, which is for the other pods of the node.
const TAINTED_WITHIN: Duration = Duration::from_secs(2);
/// Between two questions.
const AGAIN: Duration = Duration::from_millis(100);

/// In pods that another controller makes: a StatefulSet, Strimzi. Nothing is started here. Once the node of a broker's
/// pod is proven to be off, the pod is deleted by force, and its controller makes it anew on another node. The home of
/// each broker is its pod, by `[host.kubernetes]` with a `pod` and no `node`. See `docs/kubernetes.md`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReschedulingConfig {
    /// The namespace of the pods. Without it: that of the kubeconfig's context, or of this pod.
    #[serde(default)]
    pub namespace: Option<String>,
    /// A kubeconfig, as in `[ledger]`.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// Whether a node that is proven to be off gets the taint `node.kubernetes.io/out-of-service`, by which the cluster
    /// ends its other pods, too, and gives their volumes free. A person takes it off once the node is repaired.
    #[serde(default = "yes")]
    pub out_of_service: bool,
}

fn yes() -> bool {
    true
}

impl ReschedulingConfig {
    /// Every bad value, as `key: what is wrong`.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        place_problems(self.namespace.as_deref(), self.kubeconfig.as_deref())
    }

    /// The driver, for the pod of each broker.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self, pods: BTreeMap<BrokerId, String>) -> Result<Rescheduling, Vec<String>> {
        let problems = self.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let cluster = Cluster::new(self.kubeconfig, self.namespace, ATTEMPT, USER);
        Ok(Rescheduling { pods, cluster: Arc::new(cluster), out_of_service: self.out_of_service })
    }
}

/// Pods of another controller; see [`ReschedulingConfig`].
pub struct Rescheduling {
    pods: BTreeMap<BrokerId, String>,
    cluster: Arc<Cluster>,
    out_of_service: bool,
}

impl Rescheduling {
    fn refused(action: String, why: impl Into<String>) -> StepError {
        StepError::Refused { driver: DRIVER, action, why: why.into() }
    }

    fn pod_of(&self, broker: BrokerId) -> Result<&str, StepError> {
        let unknown = || Self::refused(format!("look at broker {broker}"), "no pod of it is configured");
        self.pods.get(&broker).map(String::as_str).ok_or_else(unknown)
    }

    async fn find(&self, pod: &str) -> Result<Option<Pod>, Fault> {
        Ok(self.cluster.find::<Pod>(Place::Own, pod).await?.0)
    }

    /// Its namesake that is on a node, once the one that was on `from` is gone.
    async fn anew(&self, pod: &str, from: &Machine) -> Result<String, Fault> {
        loop {
            let found = match self.find(pod).await {
                Err(fault) if fault.passes() => None,
                found => found?,
            };
            let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
            match found {
                Some(old) if uid(&old) == from.guest => {
                    self.cluster.ask().delete_by_force::<Pod>((pod, &from.guest), false).await?;
                    continue;
                }
                Some(new) => {
                    let node = new.spec.and_then(|spec| spec.node_name).filter(|node| !node.is_empty());
                    if let Some(node) = node {
                        return Ok(node);
                    }
                }
                None => {}
            }
            sleep(AGAIN).await;
        }
    }

    /// Has the cluster end whatever else was on the node.
    async fn take_out(&self, node: &str) -> Result<(), String> {
        let taint = Taint {
            key: OUT_OF_SERVICE.to_owned(),
            value: Some("nodeshutdown".to_owned()),
            effect: EFFECT.to_owned(),
            ..Taint::default()
        };
        let set = set_taint(&self.cluster, node, OUT_OF_SERVICE, Some(taint), false);
        let late = |_| format!("the API server did not answer within {TAINTED_WITHIN:?}");
        timeout(TAINTED_WITHIN, set).await.map_err(late)?.map(drop)
    }

    /// Who makes the pod, and whether its volumes come along.
    async fn look(&self, pod: &str) -> Result<String, String> {
        let said = |fault: Fault| fault.to_string();
        let found = self.find(pod).await.map_err(said)?.ok_or_else(|| format!("there is no pod {pod}"))?;
        let owner =
            found.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let owner = owner.ok_or_else(|| {
            format!("pod {pod} has no controller, such as a StatefulSet: nobody would make it anew")
        })?;
        let uid = found.metadata.uid.clone().unwrap_or_default();
        self.cluster.ask().delete_by_force::<Pod>((pod, &uid), true).await.map_err(said)?;
        for volume in found.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            if let Some(claim) = &volume.persistent_volume_claim {
                self.comes_along(&claim.claim_name).await?;
            }
        }
        Ok(format!("pod {pod} is made by {} {}, which would make it anew", owner.kind, owner.name))
    }

    /// An error if a volume of the pod is bound to its node.
    async fn comes_along(&self, claim: &str) -> Result<(), String> {
        let said = |fault: Fault| fault.to_string();
        let found = self.cluster.find::<PersistentVolumeClaim>(Place::Own, claim).await.map_err(said)?.0;
        let spec = found.and_then(|found| found.spec).ok_or_else(|| format!("there is no claim {claim}"))?;
        let shared = spec.access_modes.iter().flatten().any(|mode| mode == "ReadWriteMany");
        if !shared {
            return Err(format!(
                "the claim {claim} is not ReadWriteMany: another node would wait for the volume until the cluster has \
                 taken it from the old one, which it does once that has the taint {OUT_OF_SERVICE}"
            ));
        }
        let Some(volume) = spec.volume_name else { return Ok(()) };
        let found = self.cluster.find::<PersistentVolume>(Place::Cluster, &volume).await.map_err(said)?.0;
        let spec = found.and_then(|found| found.spec);
        let bound = spec.is_some_and(|spec| spec.node_affinity.is_some() || spec.local.is_some());
        if bound {
            return Err(format!(
                "the volume {volume} of claim {claim} is bound to one node: log dirs stay behind there"
            ));
        }
        Ok(())
    }
}

#[async_trait]
impl BrokerHost for Rescheduling {
    fn name(&self) -> &'static str {
        DRIVER
    }

    async fn render(&self, broker: BrokerId, _epoch: Epoch) -> Result<Note, StepError> {
        Err(Self::refused(format!("configure broker {broker}"), NOT_OURS))
    }

    async fn verify(&self, broker: BrokerId, _cluster_id: Option<&str>) -> Result<Note, StepError> {
        Err(Self::refused(format!("look at the log dirs of broker {broker}"), NOT_OURS))
    }

    async fn start(&self, broker: BrokerId, _: Epoch, _: &[Proof]) -> Result<Note, StepError> {
        Err(Self::refused(format!("start broker {broker}"), NOT_OURS))
    }

    async fn reschedule(
        &self,
        broker: BrokerId,
        from: &Machine,
        proofs: &[Proof],
    ) -> Result<Note, StepError> {
        let pod = self.pod_of(broker)?;
        let action = format!("have pod {pod} made anew on another node than {}", from.name);
        if proofs.is_empty() {
            return Err(Self::refused(action, format!("nothing is proven of {}", from.name)));
        }
        let tainted = match self.out_of_service {
            true => self.take_out(&from.name).await,
            false => Ok(()),
        };
        let warning = tainted.err().map(|why| {
            format!("node {} is not tainted {OUT_OF_SERVICE} ({why}): its other pods wait for it", from.name)
        });
        let node = match timeout(MADE_WITHIN, self.anew(pod, from)).await {
            Ok(Ok(node)) => node,
            Ok(Err(fault)) => {
                return Err(StepError::Failed { driver: DRIVER, action, source: Box::new(fault) });
            }
            Err(_) => return Err(StepError::Unconfirmed { driver: DRIVER, action, limit: MADE_WITHIN }),
        };
        if node == from.name {
            return Err(Self::refused(action, "it was put on that very node again, which is off"));
        }
        Ok(Note::new(format!("pod {pod} was made anew on {node}")).with("node", &node).warn(warning))
    }

    /// A pod that is there runs, as far as anybody but its kubelet can tell, which starts its Kafka again and again.
    async fn state(&self, broker: BrokerId) -> Result<ProcessState, StepError> {
        let pod = self.pod_of(broker)?;
        let action = format!("look at pod {pod}");
        match self.find(pod).await {
            Ok(Some(_)) => Ok(ProcessState::Running { pid: NO_PID }),
            Ok(None) => Err(Self::refused(action, "its controller has not made it anew yet")),
            Err(fault) => Err(StepError::Failed { driver: DRIVER, action, source: Box::new(fault) }),
        }
    }

    async fn bytes_read(&self, _broker: BrokerId, _pid: i32) -> Option<u64> {
        None
    }

    async fn stop(&self, broker: BrokerId, _limit: Duration) -> Result<Note, StepError> {
        Err(Self::refused(format!("stop broker {broker}"), NOT_OURS))
    }

    async fn kill(&self, broker: BrokerId, _pid: i32, _limit: Duration) -> Result<Note, StepError> {
        let why = "it serves without a registration, and its process is another node's: delete its pod";
        Err(Self::refused(format!("end broker {broker}"), why))
    }

    async fn end_fenced(&self, broker: BrokerId, _limit: Duration) -> Result<Note, StepError> {
        Err(Self::refused(format!("end broker {broker}"), NOT_OURS))
    }

    async fn prove_stopped(&self, broker: BrokerId, _epoch: Epoch) -> Result<Proof, StepError> {
        Err(Self::refused(format!("prove that broker {broker} is stopped"), NOT_OURS))
    }

    async fn check(&self, broker: BrokerId) -> Vec<Result<Note, StepError>> {
        let look = async {
            let pod = self.pod_of(broker)?;
            let action = || format!("see whether pod {pod} can be made anew");
            let late = |_| StepError::Unconfirmed { driver: DRIVER, action: action(), limit: FOR_A_PERSON };
            let found = timeout(FOR_A_PERSON, self.look(pod)).await.map_err(late)?;
            found.map(Note::new).map_err(|why| Self::refused(action(), why))
        };
        vec![look.await]
    }
}

const NOT_OURS: &str = "its pod is made and ended by a controller of its own, and Kafka in it by its kubelet";
/// No process of this host.
const NO_PID: i32 = 0;

#[cfg(test)]
mod tests {
    use std::thread;

    use fakes::kubernetes::{ADMIN, ControlPlane, STRANGER};
    use recovery::model::HostName;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::bed::{make_node, uid};

    const BROKER: BrokerId = BrokerId(1);
    const RBAC: &str = include_str!("../../../deploy/kubernetes/rescheduling-rbac.yaml");

    fn driver(plane: &ControlPlane, token: &str) -> Rescheduling {
        let config = ReschedulingConfig {
            namespace: Some("kafka".to_owned()),
            kubeconfig: Some(plane.kubeconfig(token, None)),
            out_of_service: true,
        };
        config.build([(BROKER, "kafka-1-0".to_owned())].into()).unwrap()
    }

    fn proof() -> [Proof; 1] {
        [Proof { host: HostName::from("kafka-1"), by: "switch".to_owned(), note: Note::new("off") }]
    }

    /// A StatefulSet of one, whose controller runs.
    fn make_set(plane: &ControlPlane, claims: &serde_json::Value) {
        let pod = json!({"containers": [{"name": "kafka", "image": "kafka"}], "volumes": claims});
        let labels = json!({"app": "kafka"});
        let set = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "kafka-1"},
            "spec": {
                "serviceName": "kafka", "replicas": 1, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        });
        plane.kubectl(&["-n", "kafka", "apply", "-f", "-"], &set.to_string()).unwrap();
        plane.await_that("its controller has made the pod", || !uid_or_none(plane).is_empty());
    }

    fn uid_or_none(plane: &ControlPlane) -> String {
        let get = ["-n", "kafka", "get", "pod", "kafka-1-0", "-o", "jsonpath={.metadata.uid}"];
        plane.kubectl(&get, "").unwrap_or_default()
    }

    /// As the scheduler does.
    fn bind(plane: &ControlPlane, node: &str) {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "kafka-1-0"},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        plane.kubectl(&["-n", "kafka", "create", "-f", "-"], &binding.to_string()).unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_pod_is_made_anew_by_its_own_controller_once_something_is_proven() {
        let Some(plane) = ControlPlane::start() else { return };
        let _controllers = plane.controllers("statefulset-controller");
        plane.kubectl(&["create", "namespace", "kafka"], "").unwrap();
        plane.kubectl(&["apply", "-f", "-"], RBAC).unwrap();
        make_node(&plane, "node-a", "True", 0);
        make_set(&plane, &json!([]));
        bind(&plane, "node-a");
        let token = plane.token("understudy", "kafka").unwrap();
        let driver = driver(&plane, &token);
        let from = Machine { name: "node-a".to_owned(), guest: uid(&plane) };
        let refused = driver.reschedule(BROKER, &from, &[]).await.unwrap_err();
        assert!(refused.to_string().contains("node-a"), "{refused}");
        assert_eq!(uid(&plane), from.guest, "nothing was proven, and it was deleted");
        let [Ok(checked)] = &driver.check(BROKER).await[..] else { panic!() };
        assert!(checked.text.contains("is made by StatefulSet kafka-1"), "{}", checked.text);

        let note = thread::scope(|scope| {
            scope.spawn(|| {
                plane.await_that("another pod", || {
                    ![String::new(), from.guest.clone()].contains(&uid_or_none(&plane))
                });
                bind(&plane, "node-b");
            });
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(driver.reschedule(BROKER, &from, &proof()))
            })
        });
        let note = note.unwrap();
        assert_eq!(note.text, "pod kafka-1-0 was made anew on node-b");
        assert!(note.warnings.is_empty(), "{:?}", note.warnings);
        let taints = ["get", "node", "node-a", "-o", "jsonpath={.spec.taints}"];
        assert!(plane.kubectl(&taints, "").unwrap().contains(OUT_OF_SERVICE));
        // Done again, as after a crash, it leaves the new one alone.
        let second = uid(&plane);
        driver.reschedule(BROKER, &from, &proof()).await.unwrap();
        assert_eq!(uid(&plane), second);
        assert!(matches!(driver.state(BROKER).await, Ok(ProcessState::Running { .. })));
        // It was put where it was: a node that is off and not tainted.
        let from = Machine { name: "node-b".to_owned(), guest: "another".to_owned() };
        let refused = driver.reschedule(BROKER, &from, &proof()).await.unwrap_err();
        assert!(matches!(refused, StepError::Refused { .. }), "{refused}");
        each_right_is_needed(&plane, &token).await;
    }

    async fn each_right_is_needed(plane: &ControlPlane, token: &str) {
        let stranger = driver(plane, STRANGER);
        let [Err(error)] = &stranger.check(BROKER).await[..] else { panic!() };
        let said = recovery::ports::chain(error);
        assert!(
            said.contains("may not list pods in namespace kafka") && said.contains("rescheduling-rbac.yaml"),
            "{said}"
        );
        let without = RBAC.replace("verbs: [list, delete]", "verbs: [list]");
        plane.kubectl(&["apply", "-f", "-"], &without).unwrap();
        let driver = driver(plane, token);
        let begun = Instant::now();
        loop {
            if let [Err(error)] = &driver.check(BROKER).await[..] {
                let said = recovery::ports::chain(error);
                assert!(said.contains("may not delete pods in namespace kafka"), "{said}");
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "it may delete pods without the right");
            sleep(AGAIN).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_pod_that_nobody_would_make_anew_or_whose_volume_stays_behind_is_told() {
        let Some(plane) = ControlPlane::start() else { return };
        let _controllers = plane.controllers("statefulset-controller");
        plane.kubectl(&["create", "namespace", "kafka"], "").unwrap();
        let driver = driver(&plane, ADMIN);
        let told = async || match &driver.check(BROKER).await[..] {
            [Err(error)] => recovery::ports::chain(error),
            other => panic!("{other:?}"),
        };
        assert!(told().await.contains("there is no pod kafka-1-0"));
        crate::bed::make_pod(&plane, None);
        let said = told().await;
        assert!(said.contains("has no controller"), "{said}");
        crate::bed::delete_pod(&plane);

        let claim = |mode: &str| {
            let claim = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": mode.to_lowercase()},
                "spec": {
                    "accessModes": [mode], "volumeName": "pv-1", "storageClassName": "",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            });
            plane.kubectl(&["-n", "kafka", "apply", "-f", "-"], &claim.to_string()).unwrap();
            json!([{"name": "logs", "persistentVolumeClaim": {"claimName": mode.to_lowercase()}}])
        };
        make_set(&plane, &claim("ReadWriteOnce"));
        let said = told().await;
        assert!(said.contains("readwriteonce is not ReadWriteMany"), "{said}");
        let delete = ["-n", "kafka", "delete", "statefulset", "kafka-1", "--wait=false"];
        plane.kubectl(&delete, "").unwrap();
        plane.await_that("the set is gone", || {
            plane.kubectl(&["-n", "kafka", "get", "sts", "kafka-1"], "").is_err()
        });
        crate::bed::delete_pod(&plane);
        let many = claim("ReadWriteMany");
        let local = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-1"},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "local": {"path": "/mnt"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-a"]},
                ]}]}},
            },
        });
        plane.kubectl(&["apply", "-f", "-"], &local.to_string()).unwrap();
        make_set(&plane, &many);
        let said = told().await;
        assert!(said.contains("pv-1 of claim readwritemany is bound to one node"), "{said}");
    }
}
