//! `kubernetes_pod`: what becomes of brokers' own pods, for people.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod};
use recovery::model::{BrokerId, Evidence, Fact};
use recovery::ports::{Clock, HealthSignal};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::client::{Cluster, Place};
use crate::fault::User;
use crate::names::{is_label, is_name, place_problems};
use crate::watched::Watched;

const SIGNAL: &str = "kubernetes_pod";
const USER: User = User { section: SIGNAL, role: "pod-rbac.yaml" };

/// How long one question may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// The reason of a container that was ended because it had more memory than its limit.
const OUT_OF_MEMORY: &str = "OOMKilled";

/// What a Kubernetes cluster says of brokers' own pods: whether Kafka's container runs, and how it ended. See
/// `docs/kubernetes.md`.
///
/// It is the last word of the pod's kubelet, and stands in the evidence for people: it decides nothing.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesPodConfig {
    /// The name of each broker's own pod, by the broker's id.
    pub pods: BTreeMap<String, String>,
    /// The name of the container that Kafka runs in.
    #[serde(default = "kafka")]
    pub container: String,
    /// The namespace of the pods. Without it: that of the kubeconfig's context, or of this pod.
    #[serde(default)]
    pub namespace: Option<String>,
    /// A kubeconfig, as in `[ledger]`.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// How often it is told what the watches have brought.
    #[serde(default = "five_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub period: Duration,
}

fn kafka() -> String {
    "kafka".to_owned()
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

impl KubernetesPodConfig {
    /// The signal, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self) -> Result<Pods, Vec<String>> {
        let mut problems = Vec::new();
        if self.pods.is_empty() {
            problems.push("pods: names no pod".to_owned());
        }
        let mut pods = BTreeMap::new();
        for (broker, pod) in self.pods {
            match broker.parse().map(BrokerId) {
                Ok(id) if is_name(&pod) => drop(pods.insert(id, pod)),
                Ok(_) => problems.push(format!("pods.{broker}: `{pod}` is not the name of a pod")),
                Err(_) => {
                    problems
                        .push(format!("pods.{broker}: is not a node id; write it as \"1\" = \"kafka-1-0\""));
                }
            }
        }
        if !is_label(&self.container, 63) {
            problems.push(format!("container: `{}` is not the name of a container", self.container));
        }
        problems.extend(place_problems(self.namespace.as_deref(), self.kubeconfig.as_deref()));
        if self.period < Duration::from_secs(1) {
            problems.push("period: must be at least 1s".to_owned());
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let cluster = Arc::new(Cluster::new(self.kubeconfig, self.namespace, ATTEMPT, USER));
        let watched = |(broker, name): (BrokerId, String)| {
            let watched = Watched::new(cluster.clone(), Place::Own, &name, |_| String::new());
            (broker, (name, watched))
        };
        let pods = pods.into_iter().map(watched).collect();
        Ok(Pods { pods, container: self.container, period: self.period })
    }
}

/// The signal; see [`KubernetesPodConfig`].
#[derive(Debug)]
pub struct Pods {
    pods: BTreeMap<BrokerId, (String, Watched<Pod>)>,
    container: String,
    period: Duration,
}

impl Pods {
    async fn look_at(&self, broker: BrokerId, name: &str, pod: &Watched<Pod>) -> Result<Fact, String> {
        let sight = pod.settled().await.map_err(|fault| format!("broker {broker}: {fault}"))?;
        if let Some(why) = sight.as_ref().and_then(|sight| sight.trouble.as_ref()) {
            return Err(format!("broker {broker}: {why}"));
        }
        let says = says(name, &self.container, sight.and_then(|sight| sight.now).as_ref());
        Ok(Fact::Remark { broker, says, counts_for: self.period * 2 })
    }
}

#[async_trait]
impl HealthSignal for Pods {
    fn name(&self) -> &'static str {
        SIGNAL
    }

    fn period(&self) -> Duration {
        self.period
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let at = clock.now().mono;
        let looks = self.pods.iter().map(|(broker, (name, pod))| self.look_at(*broker, name, pod));
        let (mut facts, mut blind) = (Vec::new(), Vec::new());
        for seen in join_all(looks).await {
            match seen {
                Ok(fact) => facts.push(fact),
                Err(why) => blind.push(why),
            }
        }
        // Last, because what is seen ends a blindness.
        facts.extend((!blind.is_empty()).then(|| Fact::Blind { why: blind.join("; ") }));
        facts.into_iter().map(|fact| Evidence { signal: SIGNAL, at, fact }).collect()
    }
}

/// One line for people.
fn says(name: &str, container: &str, pod: Option<&Pod>) -> String {
    let Some(pod) = pod else { return format!("Kubernetes: there is no pod {name}") };
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let on = node.map_or("on no node yet".to_owned(), |node| format!("on {node}"));
    let deleted = if pod.metadata.deletion_timestamp.is_some() { ", which is being deleted," } else { "" };
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    let status = statuses.unwrap_or_default().iter().find(|status| status.name == container);
    let does = match status {
        Some(status) => does(status),
        None => {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Unknown");
            format!("has no state yet; the pod is {phase}")
        }
    };
    format!("Kubernetes, by the kubelet's last word: container {container} of {name}{deleted} {on} {does}")
}

fn does(status: &ContainerStatus) -> String {
    let ended = |state: Option<&ContainerState>| state.and_then(|state| state.terminated.as_ref()).map(end);
    let before =
        || ended(status.last_state.as_ref()).map(|end| format!("; before that it {end}")).unwrap_or_default();
    let state = status.state.as_ref();
    if let Some(end) = ended(state) {
        return end;
    }
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        let reason = waiting.reason.as_deref().unwrap_or("no reason is told");
        return format!("waits to be started ({reason}){}", before());
    }
    let ready = if status.ready { "" } else { ", and is not ready" };
    match status.restart_count {
        0 => format!("runs{ready}"),
        1 => format!("runs{ready}, restarted once{}", before()),
        n => format!("runs{ready}, restarted {n} times{}", before()),
    }
}

fn end(terminated: &ContainerStateTerminated) -> String {
    let at = terminated.finished_at.as_ref().map(|at| format!(" at {}", at.0)).unwrap_or_default();
    let code = terminated.exit_code;
    match terminated.reason.as_deref() {
        Some(OUT_OF_MEMORY) => format!("was killed for its memory (OOMKilled, exit code {code}){at}"),
        Some(reason) => format!("ended with exit code {code} ({reason}){at}"),
        None => format!("ended with exit code {code}{at}"),
    }
}

#[cfg(test)]
mod tests {
    use fakes::kubernetes::{ControlPlane, STRANGER};
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::*;
    use crate::bed::{Still, delete_pod, make_pod};

    const RBAC: &str = include_str!("../../../deploy/kubernetes/pod-rbac.yaml");

    fn signal(plane: &ControlPlane, token: &str) -> Pods {
        let config = KubernetesPodConfig {
            pods: [("1".to_owned(), "kafka-1-0".to_owned())].into(),
            container: kafka(),
            namespace: Some("kafka".to_owned()),
            kubeconfig: Some(plane.kubeconfig(token, None)),
            period: five_seconds(),
        };
        config.build().unwrap()
    }

    /// What it tells, or why it is blind.
    async fn look(signal: &Pods) -> String {
        let [Evidence { fact, .. }] = &signal.look(&Still).await[..] else { panic!("one pod, one fact") };
        match fact {
            Fact::Remark { broker: BrokerId(1), says, .. } => says.clone(),
            Fact::Blind { why } => why.clone(),
            other => panic!("{other:?}"),
        }
    }

    async fn look_until(signal: &Pods, part: &str) -> String {
        let begun = std::time::Instant::now();
        loop {
            let said = look(signal).await;
            if said.contains(part) {
                return said;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{part}: {said}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// As a kubelet writes it.
    fn container(plane: &ControlPlane, restarts: i32, state: &Value, last: &Value) {
        let status = json!({
            "name": "kafka", "image": "kafka", "imageID": "", "ready": false, "restartCount": restarts,
            "state": state, "lastState": last,
        });
        let patch = json!({"status": {"phase": "Running", "containerStatuses": [status]}}).to_string();
        let args = [
            "-n",
            "kafka",
            "patch",
            "pod",
            "kafka-1-0",
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        plane.kubectl(&args, "").unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn what_becomes_of_a_pod_is_told() {
        let Some(plane) = ControlPlane::start() else { return };
        plane.kubectl(&["create", "namespace", "kafka"], "").unwrap();
        plane.kubectl(&["apply", "-f", "-"], RBAC).unwrap();
        let token = plane.token("understudy", "kafka").unwrap();
        let signal = signal_until_allowed(&plane, &token).await;
        assert_eq!(look(&signal).await, "Kubernetes: there is no pod kafka-1-0");
        make_pod(&plane, Some("node-a"));
        look_until(&signal, "on node-a has no state yet; the pod is Pending").await;

        container(&plane, 0, &json!({"running": {"startedAt": "2026-11-25T03:00:00Z"}}), &json!({}));
        let said = look_until(&signal, "runs").await;
        let whole = "Kubernetes, by the kubelet's last word: container kafka of kafka-1-0 on node-a runs, and is not ready";
        assert_eq!(said, whole);
        let end = |code: i32, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason, "finishedAt": "2026-11-25T03:05:00Z"}});
        container(&plane, 0, &end(137, OUT_OF_MEMORY), &json!({}));
        look_until(&signal, "was killed for its memory (OOMKilled, exit code 137) at 2026-11-25T03:05:00Z")
            .await;
        container(&plane, 1, &json!({"waiting": {"reason": "CrashLoopBackOff"}}), &end(1, "Error"));
        let waits =
            "waits to be started (CrashLoopBackOff); before that it ended with exit code 1 (Error) at";
        look_until(&signal, waits).await;
        container(&plane, 2, &json!({"running": {}}), &end(137, OUT_OF_MEMORY));
        look_until(&signal, "restarted 2 times; before that it was killed for its memory").await;
        plane.kubectl(&["-n", "kafka", "delete", "pod", "kafka-1-0", "--wait=false"], "").unwrap();
        look_until(&signal, "of kafka-1-0, which is being deleted, on node-a").await;
        delete_pod(&plane);
        look_until(&signal, "there is no pod kafka-1-0").await;
        without_each_right_it_is_told(&plane, &token).await;
    }

    /// Roles reach the API server's parts one by one.
    async fn signal_until_allowed(plane: &ControlPlane, token: &str) -> Pods {
        let begun = std::time::Instant::now();
        loop {
            let signal = signal(plane, token);
            let said = look(&signal).await;
            if !said.contains("may not") {
                return signal;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{said}");
        }
    }

    async fn without_each_right_it_is_told(plane: &ControlPlane, token: &str) {
        for (left, missing) in [("watch", "list"), ("list", "watch")] {
            let role = json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": [left]}]});
            let patch = role.to_string();
            plane
                .kubectl(
                    &["-n", "kafka", "patch", "role", "understudy-pods", "--type=merge", "-p", &patch],
                    "",
                )
                .unwrap();
            let expected = format!("broker 1: these credentials may not {missing} pods in namespace kafka");
            let begun = std::time::Instant::now();
            loop {
                let said = look(&signal(plane, token)).await;
                if said.contains(&expected) && said.contains("deploy/kubernetes/pod-rbac.yaml") {
                    break;
                }
                assert!(begun.elapsed() < Duration::from_secs(30), "{said}");
                sleep(Duration::from_millis(100)).await;
            }
        }
        let said = look(&signal(plane, STRANGER)).await;
        assert!(said.contains("may not list pods"), "{said}");
    }

    #[test]
    fn every_bad_value_is_told() {
        let text = "pods = { a = \"b\", 1 = \"C\" }\ncontainer = \"a.b\"\nnamespace = \"a.b\"\nkubeconfig = \"k\"\nperiod = \"1ms\"";
        let problems = toml::from_str::<KubernetesPodConfig>(text).unwrap().build().unwrap_err();
        assert_eq!(problems.len(), 6, "{problems:?}");
    }
}
