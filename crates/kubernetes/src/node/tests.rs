//! The signal on a real API server: nodes and leases are written as kubelets and controllers write them.

use fakes::kubernetes::{ADMIN, ControlPlane, STRANGER, Wire};
use recovery::model::{MachineState, Now};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;

const RBAC: &str = include_str!("../../../../deploy/kubernetes/node-rbac.yaml");

/// A clock that starts with the process.
struct Ticking(std::time::Instant);

#[async_trait]
impl Clock for Ticking {
    fn now(&self) -> Now {
        let mono = Moment(Duration::from_secs(1000) + self.0.elapsed());
        Now { mono, wall: "2026-11-25T03:00:00Z".parse().unwrap() }
    }
    async fn sleep(&self, _duration: Duration) {}
}

/// A cluster with a node whose lease holds for two seconds.
struct Site {
    plane: ControlPlane,
    clock: Ticking,
}

impl Site {
    fn start() -> Option<Self> {
        let plane = ControlPlane::start()?;
        plane.kubectl(&["create", "namespace", "kafka"], "").unwrap();
        plane.kubectl(&["apply", "-f", "-"], RBAC).unwrap();
        let site = Self { plane, clock: Ticking(std::time::Instant::now()) };
        site.plane.await_that("there is a namespace for leases", || {
            site.plane.kubectl(&["get", "namespace", "kube-node-lease"], "").is_ok()
        });
        site.make("node-a");
        Some(site)
    }

    fn make(&self, name: &str) {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"providerID": format!("cloud:///{name}")},
        });
        self.plane.kubectl(&["apply", "-f", "-"], &node.to_string()).unwrap();
        self.ready("True");
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 2},
        });
        self.plane.kubectl(&["apply", "-f", "-"], &lease.to_string()).unwrap();
        self.renew();
    }

    fn ready(&self, status: &str) {
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}}).to_string();
        let args = ["patch", "node", "node-a", "--subresource=status", "--type=strategic", "-p", &patch];
        self.plane.kubectl(&args, "").unwrap();
    }

    /// As its kubelet does.
    fn renew(&self) {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let patch = json!({"spec": {"renewTime": now}}).to_string();
        let args = ["-n", "kube-node-lease", "patch", "lease", "node-a", "--type=merge", "-p", &patch];
        self.plane.kubectl(&args, "").unwrap();
    }

    fn signal(&self, token: &str, node: &str) -> Nodes {
        self.signal_by(token, node, None)
    }

    fn signal_by(&self, token: &str, node: &str, url: Option<&str>) -> Nodes {
        let config = KubernetesNodeConfig {
            hosts: [("kafka-1".to_owned(), node.to_owned())].into(),
            kubeconfig: Some(self.plane.kubeconfig(token, url)),
            period: Duration::from_secs(1),
        };
        config.build().unwrap()
    }

    /// What it says of kafka-1, how old that is, and why it is blind.
    async fn look(&self, signal: &Nodes) -> (Option<(MachineState, Duration)>, Option<String>) {
        let (mut state, mut blind) = (None, None);
        let began = self.clock.now().mono;
        for evidence in signal.look(&self.clock).await {
            match evidence.fact {
                Fact::Machine { host, state: said, .. } => {
                    assert_eq!(host.0, "kafka-1");
                    state = Some((said, began.0.saturating_sub(evidence.at.0)));
                }
                Fact::Blind { why } => blind = Some(why),
                other => panic!("{other:?}"),
            }
        }
        (state, blind)
    }

    /// Looks until it says that.
    async fn look_until(&self, signal: &Nodes, what: &str, is: impl Fn(&MachineState) -> bool) -> Duration {
        let begun = std::time::Instant::now();
        loop {
            let (said, blind) = self.look(signal).await;
            match &said {
                Some((state, age)) if is(state) => return *age,
                _ => assert!(begun.elapsed() < Duration::from_secs(30), "{what}: {said:?} {blind:?}"),
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

fn is_silent(state: &MachineState) -> bool {
    state.to_string().contains("has not renewed its lease")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_becomes_of_a_node_is_told() {
    let Some(site) = Site::start() else { return };
    let token = site.plane.token("understudy", "kafka").unwrap();
    let signal = site.signal(&token, "node-a");
    let runs = |state: &MachineState| *state == MachineState::Runs;
    site.renew();
    site.look_until(&signal, "it runs", runs).await;
    let age = site.look_until(&signal, "its lease runs out", is_silent).await;
    assert!(age < Duration::from_millis(500), "read anew by this very look, and not {age:?} ago");
    site.renew();
    let age = site.look_until(&signal, "it is heard again", runs).await;
    assert!(age < Duration::from_secs(3), "dated by the renewal: {age:?}");

    // No look tells a state that ended before the renewal that it goes by.
    site.plane.freeze_api();
    sleep(Duration::from_millis(2100)).await;
    let (said, blind) = site.look(&signal).await;
    assert_eq!(said, None, "an API server that is frozen says nothing");
    assert!(blind.unwrap().contains("did not answer within"));
    site.plane.thaw_api();
    site.look_until(&signal, "it is silent, and the API server is heard", is_silent).await;

    site.ready("Unknown");
    site.plane.kubectl(&["taint", "node", "node-a", &format!("{SHUTDOWN}:NoSchedule")], "").unwrap();
    let off = |state: &MachineState| matches!(state, MachineState::Off { .. });
    let age = site.look_until(&signal, "it is shut down", off).await;
    assert!(age < Duration::from_millis(500), "{age:?}");
    site.plane.kubectl(&["taint", "node", "node-a", &format!("{SHUTDOWN}-")], "").unwrap();
    site.look_until(&signal, "nobody says that it is shut down", is_silent).await;
    site.plane.kubectl(&["delete", "node", "node-a"], "").unwrap();
    let removed = |state: &MachineState| off(state) && state.to_string().contains("no node any more");
    site.look_until(&signal, "it was removed", removed).await;
    site.make("node-a");
    site.look_until(&signal, "it is there again", runs).await;
}

const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_calm_nothing_is_asked() {
    let Some(site) = Site::start() else { return };
    let wire = Wire::to(&site.plane).await;
    let signal = site.signal_by(ADMIN, "node-a", Some(wire.url()));
    let runs = |state: &MachineState| *state == MachineState::Runs;
    site.renew();
    site.look_until(&signal, "it runs", runs).await;
    let watches = || wire.asked().iter().filter(|asked| asked.contains("watch=true")).count();
    site.plane.await_that("node and lease are watched", || watches() == 2);
    let asked = wire.asked().len();
    for _ in 0..10 {
        site.renew();
        site.look_until(&signal, "it runs", runs).await;
        sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(wire.asked()[asked..], [""; 0], "ten renewals, and longer than one holds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn where_it_cannot_see_it_says_so() {
    let Some(site) = Site::start() else { return };
    let (said, blind) = site.look(&site.signal(ADMIN, "node-z")).await;
    assert_eq!(said, None);
    let blind = blind.unwrap();
    assert!(blind.contains("no node node-z: correct kubernetes_node.hosts.kafka-1"), "{blind}");

    let (said, blind) = site.look(&site.signal(STRANGER, "node-a")).await;
    assert_eq!(said, None);
    let blind = blind.unwrap();
    assert!(blind.contains("may not list ") && blind.contains("deploy/kubernetes/node-rbac.yaml"), "{blind}");
    without_each_right_it_is_told(&site).await;

    site.plane.kill_api();
    let (said, blind) = site.look(&site.signal(ADMIN, "node-a")).await;
    assert_eq!(said, None);
    assert!(blind.unwrap().contains("did not answer"));
}

/// The roles of the manifest, of which nothing can be left out.
async fn without_each_right_it_is_told(site: &Site) {
    let token = site.plane.token("understudy", "kafka").unwrap();
    let roles = [
        ("clusterrole", "", "nodes", "nodes of the cluster"),
        ("role", "coordination.k8s.io", "leases", "leases.coordination.k8s.io in namespace kube-node-lease"),
    ];
    for (kind, group, resource, place) in roles {
        for (left, missing) in [("watch", "list"), ("list", "watch")] {
            site.plane.kubectl(&["apply", "-f", "-"], RBAC).unwrap();
            let role: Value =
                json!({"rules": [{"apiGroups": [group], "resources": [resource], "verbs": [left]}]});
            let patch = role.to_string();
            let args =
                ["-n", "kube-node-lease", "patch", kind, "understudy-nodes", "--type=merge", "-p", &patch];
            site.plane.kubectl(&args, "").unwrap();
            let expected = format!("may not {missing} {place}");
            let begun = std::time::Instant::now();
            loop {
                let (_, blind) = site.look(&site.signal(&token, "node-a")).await;
                if blind.as_ref().is_some_and(|why| why.contains(&expected)) {
                    break;
                }
                sleep(Duration::from_millis(100)).await;
                assert!(begun.elapsed() < Duration::from_secs(30), "{expected}: {blind:?}");
            }
        }
    }
}

#[test]
fn every_bad_value_is_told() {
    let text = "period = \"1ms\"\nkubeconfig = \"kubeconfig\"\nhosts = { kafka-1 = \"Node_A\", a = \"n\", b = \"n\" }";
    let problems = toml::from_str::<KubernetesNodeConfig>(text).unwrap().build().unwrap_err();
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert!(problems[0].starts_with("hosts.b: node n is a already"), "{problems:?}");
    assert!(problems[1].starts_with("hosts.kafka-1: `Node_A` is not the name of a node"), "{problems:?}");
}
