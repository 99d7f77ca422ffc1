//! The driver on a real API server, whose own controller keeps the slices of Services.

use fakes::kubernetes::{ADMIN, ControlPlane, Controllers, Fault, STRANGER, Wire};
use recovery::ports::chain;
use serde_json::Value;

use super::*;

const NAMESPACE: &str = "kafka";
const LABEL: &str = "statefulset.kubernetes.io/pod-name";
const RBAC: &str = include_str!("../../../../deploy/kubernetes/service-rbac.yaml");

/// A cluster with a Service that selects the pod kafka-1-0, and a pod standby-0.
struct Site {
    plane: ControlPlane,
    controllers: Option<Controllers>,
    token: String,
}

impl Site {
    fn start() -> Option<Self> {
        let plane = ControlPlane::start()?;
        plane.kubectl(&["create", "namespace", NAMESPACE], "").unwrap();
        plane.kubectl(&["apply", "-f", "-"], RBAC).unwrap();
        let token = plane.token("understudy", NAMESPACE).unwrap();
        let controllers = Some(plane.controllers("endpointslice-controller"));
        let site = Self { plane, controllers, token };
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}});
        site.apply(&node);
        site.pod("kafka-1-0", "kafka-1-0", "10.0.0.11");
        site.pod("standby-0", "standby-0", "10.0.0.21");
        site.apply(&service(&json!({LABEL: "kafka-1-0"}), true));
        site.plane.await_that("the Service leads to its broker", || site.leads_to() == ["kafka-1-0"]);
        Some(site)
    }

    fn kubectl(&self, args: &[&str]) -> String {
        self.plane.kubectl(&[&["-n", NAMESPACE], args].concat(), "").unwrap()
    }

    fn apply(&self, object: &Value) {
        self.plane.kubectl(&["-n", NAMESPACE, "apply", "-f", "-"], &object.to_string()).unwrap();
    }

    /// A pod as a kubelet tells of it whose Kafka waits: it has an address, and is not ready.
    fn pod(&self, name: &str, label: &str, ip: &str) {
        self.apply(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {LABEL: label}},
            "spec": {"nodeName": "node-a", "containers": [{"name": "kafka", "image": "kafka"}]},
        }));
        let status = json!({"status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "False"}],
        }});
        let patch = status.to_string();
        self.kubectl(&["patch", "pod", name, "--subresource=status", "--type=merge", "-p", &patch]);
    }

    /// The pods to which connections go.
    fn leads_to(&self) -> Vec<String> {
        let slices =
            self.kubectl(&["get", "endpointslices", "-l", &format!("{OF_SERVICE}=kafka-1"), "-o", "json"]);
        let slices: Value = serde_json::from_str(&slices).unwrap();
        let all = slices["items"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        let ready = all.filter(|one| one["conditions"]["ready"] == json!(true));
        ready.map(|one| one["targetRef"]["name"].as_str().unwrap_or("?").to_owned()).collect()
    }

    /// As a person does it, or somebody's tool.
    fn select(&self, pod: &str) {
        let patch = json!({"spec": {"selector": {LABEL: pod}}}).to_string();
        self.kubectl(&["patch", "service", "kafka-1", "-p", &patch]);
    }

    fn selects(&self) -> String {
        let path = "jsonpath={.spec.selector}";
        self.kubectl(&["get", "service", "kafka-1", "-o", path])
    }

    fn config(&self, pod: &str, token: &str) -> KubernetesServiceConfig {
        KubernetesServiceConfig {
            service: "kafka-1".to_owned(),
            pod: pod.to_owned(),
            label: LABEL.to_owned(),
            namespace: Some(NAMESPACE.to_owned()),
            kubeconfig: Some(self.plane.kubeconfig(token, None)),
            timeout: Duration::from_secs(20),
        }
    }

    fn address(&self, pod: &str) -> ServiceAddress {
        self.config(pod, &self.token).build().unwrap()
    }
}

fn service(selector: &Value, publish: bool) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kafka-1"},
        "spec": {"selector": selector, "publishNotReadyAddresses": publish, "ports": [{"port": 9092}]},
    })
}

const E7: Epoch = Epoch(7);

fn said<T: std::fmt::Debug>(result: Result<T, StepError>) -> String {
    chain(&result.unwrap_err())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn moves_a_service_and_gives_it_up() {
    let Some(site) = Site::start() else { return };
    let (home, standby) = (site.address("kafka-1-0"), site.address("standby-0"));
    assert!(home.here().await.unwrap() && !standby.here().await.unwrap());
    let note = standby.check().await.unwrap().text;
    assert!(note.contains("it selects kafka-1-0") && note.contains("kafka-1-0 (10.0.0.11)"), "{note}");
    assert_eq!(site.leads_to(), ["kafka-1-0"], "a check changes nothing");

    let note = standby.acquire(E7).await.unwrap();
    assert_eq!(site.leads_to(), ["standby-0"]);
    assert!(note.details.contains_key(PLACED) && note.text.contains("10.0.0.21 alone"), "{note:?}");
    assert!(standby.here().await.unwrap());
    assert_eq!(standby.holder().await.unwrap(), None);
    let begun = Instant::now();
    while home.here().await.unwrap() {
        assert!(begun.elapsed() < Duration::from_secs(30), "home's watch tells it");
        sleep(Duration::from_millis(50)).await;
    }
    let again = standby.acquire(E7).await.unwrap();
    assert!(!again.details.contains_key(PLACED), "it was here: {again:?}");

    // One that has it no more gives nothing up.
    let note = home.release().await.unwrap().text;
    assert!(note.ends_with("selects standby-0"), "{note}");
    assert_eq!(site.leads_to(), ["standby-0"]);
    standby.release().await.unwrap();
    assert!(!standby.here().await.unwrap(), "at once, and not when its watch says so");
    site.plane.await_that("it leads nowhere", || site.leads_to().is_empty());
    standby.release().await.unwrap();
    home.acquire(E7).await.unwrap();
    assert_eq!(site.leads_to(), ["kafka-1-0"]);
    a_lost_answer_moves_it_once(&site).await;
    an_old_version_is_not_patched(&site).await;
    two_that_move_it_at_once_are_one(&site).await;
    what_is_not_confirmed_is_told(&site).await;
}

async fn a_lost_answer_moves_it_once(site: &Site) {
    let wire = Wire::to(&site.plane).await;
    let kubeconfig = Some(site.plane.kubeconfig(&site.token, Some(wire.url())));
    let standby = KubernetesServiceConfig { kubeconfig, ..site.config("standby-0", &site.token) };
    wire.set(Some(Fault::Lost(1)));
    let note = standby.build().unwrap().acquire(E7).await.unwrap();
    assert!(note.details.contains_key(PLACED), "it was not here before: {note:?}");
    assert_eq!(site.leads_to(), ["standby-0"]);
    site.address("kafka-1-0").acquire(E7).await.unwrap();
}

/// One who read before somebody else wrote moves nothing.
async fn an_old_version_is_not_patched(site: &Site) {
    let standby = site.address("standby-0");
    let asking = standby.cluster.ask();
    let (read, _) = standby.service(&asking, "").await.ok().unwrap();
    site.select("kafka-2-0");
    assert!(!standby.select(&asking, &read, "standby-0", false).await.unwrap());
    assert!(site.selects().contains("kafka-2-0"), "{}", site.selects());
    site.select("kafka-1-0");
    site.plane.await_that("the Service leads to its broker", || site.leads_to() == ["kafka-1-0"]);
}

/// The slower one reads that, and says so or moves it after.
async fn two_that_move_it_at_once_are_one(site: &Site) {
    for _ in 0..10 {
        let (home, standby) = (site.address("kafka-1-0"), site.address("standby-0"));
        let (one, other) = tokio::join!(home.acquire(E7), standby.acquire(E7));
        let winners: Vec<&str> = [(&one, "kafka-1-0"), (&other, "standby-0")]
            .into_iter()
            .filter_map(|(result, pod)| result.is_ok().then_some(pod))
            .collect();
        let selected = site.selects();
        assert!(winners.iter().any(|pod| selected.contains(pod)), "{selected} {one:?} {other:?}");
        for lost in [one, other].into_iter().filter_map(Result::err) {
            let why = chain(&lost);
            assert!(why.contains("find out who else writes its selector"), "{why}");
        }
    }
}

async fn what_is_not_confirmed_is_told(site: &Site) {
    site.address("kafka-1-0").acquire(E7).await.unwrap();
    let config =
        KubernetesServiceConfig { timeout: Duration::from_secs(3), ..site.config("standby-0", &site.token) };
    // An endpoint that somebody has written by hand stays.
    site.apply(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "by-hand", "labels": {OF_SERVICE: "kafka-1"}},
        "endpoints": [{"addresses": ["192.0.2.1"]}], "ports": [{"port": 9092}],
    }));
    let standby = config.clone().build().unwrap();
    let why = said(standby.acquire(E7).await);
    assert!(why.contains("no pod (192.0.2.1)") && why.contains("within 3s"), "{why}");
    assert_eq!(standby.holder().await.unwrap().unwrap(), "no pod (192.0.2.1)");
    site.kubectl(&["delete", "endpointslice", "by-hand"]);
    standby.acquire(E7).await.unwrap();

    site.plane.freeze_api();
    let begun = Instant::now();
    let why = said(config.build().unwrap().acquire(E7).await);
    assert!(why.contains("did not answer") && begun.elapsed() < Duration::from_secs(8), "{why}");
    site.plane.thaw_api();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_a_controller_nothing_has_moved() {
    let Some(mut site) = Site::start() else { return };
    site.controllers = None;
    let config =
        KubernetesServiceConfig { timeout: Duration::from_secs(3), ..site.config("standby-0", &site.token) };
    let why = said(config.build().unwrap().acquire(E7).await);
    assert!(why.contains("kafka-1-0 (10.0.0.11)") && why.contains("controller manager runs"), "{why}");
    site.select("kafka-1-0");
    let standby = site.address("standby-0");
    let meddle = async {
        while !site.selects().contains("standby-0") {
            sleep(Duration::from_millis(20)).await;
        }
        site.select("kafka-2-0");
    };
    let (moved, ()) = tokio::join!(standby.acquire(E7), meddle);
    let why = said(moved);
    assert!(
        why.contains("it selected this pod and then kafka-2-0: find out who else writes its selector"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_cannot_be_moved_is_one_sentence() {
    let Some(site) = Site::start() else { return };
    let standby = site.address("standby-0");
    let both = async |part: &str| {
        for why in [said(standby.check().await), said(standby.acquire(E7).await)] {
            assert!(why.contains(part), "{why}");
        }
        assert!(site.selects().contains("kafka-1-0"), "nothing was changed: {}", site.selects());
    };
    site.apply(&service(&json!({LABEL: "kafka-1-0", "app": "kafka"}), true));
    both("the Service kafka-1 selects by app=kafka as well").await;
    site.kubectl(&[
        "patch",
        "service",
        "kafka-1",
        "--type=json",
        "-p",
        r#"[{"op":"remove","path":"/spec/selector/app"}]"#,
    ]);
    site.pod("other-0", "standby-0", "10.0.0.31");
    both("would select 2 pods, other-0 and standby-0, which have all the label").await;
    site.kubectl(&["delete", "pod", "standby-0", "--force", "--grace-period=0"]);
    both("is that of other-0, which is not this pod").await;
    site.kubectl(&["delete", "pod", "other-0", "--force", "--grace-period=0"]);
    both("no pod has the label statefulset.kubernetes.io/pod-name=standby-0").await;
    site.pod("standby-0", "standby-0", "10.0.0.21");
    standby.check().await.unwrap();

    let patch = json!({"spec": {"publishNotReadyAddresses": false}}).to_string();
    site.kubectl(&["patch", "service", "kafka-1", "-p", &patch]);
    let why = said(standby.check().await);
    assert!(why.contains("set spec.publishNotReadyAddresses to true"), "{why}");
    without_each_right_it_is_told(&site).await;
    let stranger = site.config("standby-0", STRANGER).build().unwrap();
    let why = said(stranger.acquire(E7).await);
    assert!(why.contains("may not list pods in namespace kafka"), "{why}");
    assert!(why.contains("deploy/kubernetes/service-rbac.yaml"), "{why}");
    site.kubectl(&["delete", "service", "kafka-1"]);
    let why = said(standby.check().await);
    assert!(why.contains("there is no Service kafka-1 in namespace kafka"), "{why}");
    site.plane.kill_api();
    let config =
        KubernetesServiceConfig { timeout: Duration::from_secs(1), ..site.config("standby-0", ADMIN) };
    let why = said(config.build().unwrap().here().await);
    assert!(why.contains("did not answer"), "{why}");
}

/// The role of the manifest, of which nothing can be left out.
async fn without_each_right_it_is_told(site: &Site) {
    let rules = [
        ("", "services", &["get", "list", "watch", "patch"][..]),
        ("", "pods", &["list"][..]),
        ("discovery.k8s.io", "endpointslices", &["list"][..]),
    ];
    for (group, resource, verbs) in rules {
        for verb in verbs {
            site.apply(&service(&json!({LABEL: "kafka-1-0"}), true));
            let without = rules.iter().map(|(of, all, verbs)| {
                // A rule has a verb at least.
                let left = verbs.iter().filter(|one| *all != resource || *one != verb).chain([&"delete"]);
                let left: Vec<_> = left.collect();
                json!({"apiGroups": [of], "resources": [all], "verbs": left})
            });
            let role = json!({"rules": without.collect::<Vec<_>>()}).to_string();
            site.kubectl(&["patch", "role", "understudy-service", "--type=merge", "-p", &role]);
            let dot = if group.is_empty() { "" } else { "." };
            let denied = format!("may not {verb} {resource}{dot}{group} in namespace kafka");
            let begun = Instant::now();
            loop {
                let why = site.address("standby-0").check().await.err().map(|error| chain(&error));
                if why.as_ref().is_some_and(|why| why.contains(&denied)) {
                    break;
                }
                assert!(begun.elapsed() < Duration::from_secs(30), "{denied}: {why:?}");
            }
        }
    }
    site.plane.kubectl(&["apply", "-f", "-"], RBAC).unwrap();
}

#[test]
fn every_bad_value_is_told() {
    let text = "service = \"Kafka\"\npod = \"a_b\"\nlabel = \"a=b\"\nnamespace = \"a.b\"\nkubeconfig = \"k\"\ntimeout = \"1ms\"";
    let problems = toml::from_str::<KubernetesServiceConfig>(text).unwrap().build().unwrap_err();
    assert_eq!(problems.len(), 6, "{problems:?}");
}
