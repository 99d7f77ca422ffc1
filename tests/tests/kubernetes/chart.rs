//! The chart: rendered, refused, installed in a namespace that enforces PodSecurity `restricted`, upgraded and
//! uninstalled. No broker is taken over here; `standby.rs` does that.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::kubernetes::kafka::{KubeKafka, LOG_DIRS, address, pod_of};
use e2e::kubernetes::{CHART, Kubernetes, Node, Pod, SHIPPED_IMAGE, helm};
use e2e::{Lab, eventually, story, story_within};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(900);
const SOON: Duration = Duration::from_secs(180);
const NAMESPACE: &str = "kafka";
const ACCOUNT: &str = "system:serviceaccount:kafka:standby";
/// Whatever the release made has it.
const OURS: &str = "app.kubernetes.io/instance=standby";
/// The pods, and the nodes that they are for.
const PODS: [(&str, &str); 2] = [("standby-a-0", "node-1"), ("standby-b-0", "node-3")];
const BROKER: i32 = 2;
/// The examples: the release of each, what its roles are, and what of them it goes without.
const EXAMPLES: [(&str, &str, &[&str], &str); 2] = [
    ("standby", "standby", &["ledger", "node", "pod", "service", "taint"], "nothing"),
    // No signal asks for a node's lease there.
    ("rescheduling", "rescue", &["ledger", "node", "pod", "rescheduling", "taint"], "[\"leases\"]"),
];

fn deploy(file: &str) -> PathBuf {
    Path::new(CHART).join("../..").join(file)
}

/// What helm makes of an example.
fn rendered(lab: &Lab, example: &str, release: &str) -> Result<String> {
    let values = deploy(&format!("helm/{example}-values.yaml")).display().to_string();
    helm(lab, None, &["template", release, CHART, "--namespace", NAMESPACE, "--values", &values])
}

#[test]
fn the_chart_is_linted_and_the_plain_manifests_are_what_it_renders() {
    story("the_chart_is_linted_and_the_plain_manifests_are_what_it_renders", |lab| {
        for (example, release, ..) in EXAMPLES {
            let values = deploy(&format!("helm/{example}-values.yaml")).display().to_string();
            let said = helm(lab, None, &["lint", "--strict", CHART, "--values", &values])?;
            ensure!(
                said.contains("1 chart(s) linted, 0 chart(s) failed") && !said.contains("WARN"),
                "{said}"
            );
            let ours = format!(
                "# Made of deploy/helm/{example}-values.yaml, which says how: do not edit.\n\
                 # The definitions of the ledger are in crd.yaml.\n{}",
                rendered(lab, example, release)?
            );
            let file = deploy(&format!("kubernetes/{example}.yaml"));
            if std::env::var_os("UPDATE_EXPECTED").is_some() {
                fs::write(&file, &ours)?;
            }
            let theirs = fs::read_to_string(&file).unwrap_or_default();
            ensure!(theirs == ours, "{} is old: run this story with UPDATE_EXPECTED=1", file.display());
        }
        Ok(())
    });
}

#[test]
fn values_that_make_no_sense_are_refused_in_a_sentence() {
    story("values_that_make_no_sense_are_refused_in_a_sentence", |lab| {
        let example = fs::read_to_string(deploy("helm/standby-values.yaml"))?;
        let file = lab.kept("values")?.join("values.yaml");
        let render = |values: &str| {
            fs::write(&file, values)?;
            helm(lab, None, &["template", "standby", CHART, "--values", &file.display().to_string()])
        };
        render(&example)?;
        for (from, to, expected) in [
            ("priorityClassName", "priorityClasName", "additional properties 'priorityClasName' not allowed"),
            ("  ports: [9092]", "  prots: [9092]", "at '/kafka': additional properties 'prots' not allowed"),
            ("  ports: [9092]", "  ports: [0]", "at '/kafka/ports/0': minimum: got 0, want 1"),
            ("standbys:\n", "standbys: []\nx:\n", "at '/standbys': minItems: got 0, want 1"),
            ("{claim: kafka-1-logs, ", "{claim: c, hostPath: /x, ", "at '/logDirs/0': 'oneOf' failed"),
            ("node: node-e}", "node: node-d}", "two are on node-d, and would be fenced and lost together"),
            ("config: |\n", "config: \"\"\nx: |\n", "additional properties 'x' not allowed"),
            ("mode = \"observe\"", "mode = ", "config: this is no TOML"),
            ("\"0.0.0.0:9095\"", "\"127.0.0.1:9095\"", "config: agent.listen: write \"0.0.0.0:9095\""),
            ("  host = \"$(POD_NAME)\"", "  host = \"a\"", "config: agent.host: write \"$(POD_NAME)\""),
            ("  pod = \"$(POD_NAME)\"", "  pod = \"a\"", "broker 1: address.pod: write \"$(POD_NAME)\""),
            ("driver = \"mounted\"", "driver = \"nfs\"", "broker 1: storage.driver: write \"mounted\""),
            ("  image: registry.example.com/kafka:4.3.1", "  image: \"\"", "kafka.image: give the image"),
            (
                "driver = \"kubernetes\"\n  template",
                "driver = \"rescheduling\"\n  template",
                "kafka, logDirs: leave",
            ),
            (
                "driver = \"kubernetes\"\n  template",
                "driver = \"systemd\"\n  template",
                "broker_host.driver: write",
            ),
            ("\nkafka:\n", "\nkafka: null\nx:\n", "missing property 'kafka'"),
            (
                "source = \"svm1.example.com:/kafka01\"",
                "grant = { svm = \"s\" }",
                "broker 1: storage.grant: the claim kafka-1-logs is mounted before a takeover",
            ),
        ] {
            let wrong = example.replacen(from, to, 1);
            ensure!(wrong != example, "the example has no {from:?}");
            match render(&wrong) {
                Ok(_) => bail!("{to:?} is accepted"),
                Err(error) => ensure!(error.to_string().contains(expected), "{to:?}: {error}"),
            }
        }
        let rescheduling = fs::read_to_string(deploy("helm/rescheduling-values.yaml"))?;
        render(&rescheduling)?;
        // A rule without names would be for every object.
        for (from, to, expected) in [
            ("  pod = ", "  node = ", "it names no pods for the role"),
            ("  [[node]]\n  name", "  [[node]]\n  title", "it names no nodes for the role"),
        ] {
            match render(&rescheduling.replace(from, to)) {
                Ok(_) => bail!("{to:?} is accepted"),
                Err(error) => ensure!(error.to_string().contains(expected), "{to:?}: {error}"),
            }
        }
        Ok(())
    });
}

#[test]
fn the_chart_is_installed_upgraded_and_uninstalled() {
    story_within("the_chart_is_installed_upgraded_and_uninstalled", LIMIT, |lab| {
        let kubernetes = Kubernetes::start(lab, 3)?;
        let digest = kubernetes.add_shipped(lab)?;
        ensure!(digest == kubernetes.add_shipped(lab)?, "a second image is another one than {digest}");
        lab.note(format!("the image is {digest}, twice"));
        let _kafka = KubeKafka::start(lab, &kubernetes)?;
        prepare(&kubernetes)?;
        let values = values(lab)?.display().to_string();
        accepted_strictly(lab, &kubernetes, &values)?;
        roles_are_those_of_the_files(lab, &kubernetes)?;
        let at = ["--namespace", NAMESPACE, "--values", &values];
        let said = helm(lab, Some(&kubernetes), &[&["install", "standby", CHART], &at[..]].concat())?;
        ensure!(said.contains("exec standby-a-0 -- understudy ledger init"), "{said}");
        let pods = runs(lab, &kubernetes)?;
        denied(&kubernetes)?;
        evictable(lab, &kubernetes, true)?;
        upgraded(lab, &kubernetes, &at, &pods)?;
        evictable(lab, &kubernetes, false)?;
        uninstalled(lab, &kubernetes)
    });
}

fn get(kubernetes: &Kubernetes, path: &str) -> Result<Value> {
    kubernetes.get(&format!("/api/v1/namespaces/{NAMESPACE}/{path}"))
}

/// What a cluster has before: a namespace that lets no pod have a right, volumes, a Service, the definition of a
/// PodMonitor with the fields that are used.
fn prepare(kubernetes: &Kubernetes) -> Result<()> {
    let volume = |name: &str, modes: &str, source: Value| {
        let mut spec = json!({
            "capacity": { "storage": "1Gi" }, "accessModes": [modes], "storageClassName": "by-hand",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": { "namespace": NAMESPACE, "name": name },
        });
        let (spec_map, source) =
            (spec.as_object_mut().context("no map")?, source.as_object().context("no map")?);
        spec_map.extend(source.clone());
        let metadata = json!({ "name": format!("of-{name}") });
        anyhow::Ok(
            json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec }),
        )
    };
    let mut objects = vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE, "labels": {
            "pod-security.kubernetes.io/enforce": "restricted",
        } } }),
        volume("logs", "ReadWriteMany", json!({ "hostPath": { "path": LOG_DIRS, "type": "Directory" } }))?,
        json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": "logs", "namespace": NAMESPACE },
            "spec": {
                "accessModes": ["ReadWriteMany"], "storageClassName": "by-hand",
                "resources": { "requests": { "storage": "1Gi" } },
            } }),
        json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "kafka-config", "namespace": NAMESPACE },
            "data": { "server.properties": "listeners=PLAINTEXT://0.0.0.0:9092\n" } }),
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "broker-2", "namespace": NAMESPACE },
            "spec": {
                "publishNotReadyAddresses": true, "ports": [{ "port": 9092 }],
                "selector": { "statefulset.kubernetes.io/pod-name": pod_of(BROKER) },
            } }),
        pod_monitors(),
    ];
    for (pod, node) in PODS {
        let place = "/srv/disk/state";
        let made = kubernetes.node(node)?.host().run(&["mkdir", "-p", place])?;
        ensure!(made.code == 0, "{}", made.stderr);
        let affinity = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": [node] },
        ] }] } });
        let local = json!({ "local": { "path": place }, "nodeAffinity": affinity });
        objects.push(volume(&format!("state-{pod}"), "ReadWriteOnce", local)?);
    }
    kubernetes.apply(&objects)
}

/// With the fields that are used, and no others.
fn pod_monitors() -> Value {
    let text = json!({ "type": "string" });
    let labels = json!({ "type": "object", "additionalProperties": text });
    let endpoint = json!({ "type": "object", "properties": { "port": text, "path": text, "scheme": text } });
    let spec = json!({ "type": "object", "properties": {
        "selector": { "type": "object", "properties": { "matchLabels": labels } },
        "podMetricsEndpoints": { "type": "array", "items": endpoint },
    } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "podmonitors.monitoring.coreos.com", "annotations": {
            "api-approved.kubernetes.io": "https://example.com/for-tests",
        } },
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": { "kind": "PodMonitor", "plural": "podmonitors", "singular": "podmonitor" },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": spec } } } }],
        },
    })
}

fn values(lab: &Lab) -> Result<PathBuf> {
    let config = format!(
        r#"mode = "observe"
[agent]
host = "$(POD_NAME)"
listen = "0.0.0.0:9095"
check_every = "5s"
[cluster]
bootstrap = ["{}", "{}", "{}"]
[ledger]
driver = "kubernetes"
[[host]]
name = "kafka-1"
[[host.fence]]
driver = "fence_agent"
agent = "/usr/sbin/fence_none"
[host.kubernetes]
node = "node-2"
pod = "kafka-1"
[kubernetes_node]
hosts = {{ kafka-1 = "node-2" }}
[kubernetes_pod]
pods = {{ 2 = "kafka-1" }}
[broker_host]
driver = "kubernetes"
template = "/etc/kafka/server.properties"
[[broker]]
id = {BROKER}
home = "kafka-1"
listener = "{}"
log_dirs = ["{LOG_DIRS}/broker-2"]
[broker.address]
driver = "kubernetes_service"
service = "broker-2"
pod = "$(POD_NAME)"
[broker.storage]
driver = "mounted"
local = true
"#,
        address(1),
        address(2),
        address(3),
        address(BROKER),
    );
    let (repository, tag) = SHIPPED_IMAGE.rsplit_once(':').context("no tag")?;
    let values = json!({
        "standbys": [{ "name": "a", "node": PODS[0].1 }, { "name": "b", "node": PODS[1].1 }],
        "logDirs": [{ "claim": "logs", "mountPath": LOG_DIRS }],
        "kafka": {
            "image": SHIPPED_IMAGE, "pullPolicy": "Never",
            "command": ["/usr/bin/understudy", "version", "{properties}"],
            "files": { "configMaps": ["kafka-config"] },
        },
        "image": { "repository": repository, "tag": tag, "pullPolicy": "Never" },
        "state": { "storageClassName": "by-hand" },
        "podMonitor": { "enabled": true }, "networkPolicy": { "enabled": true },
        "config": config,
    });
    let file = lab.kept("values")?.join("story.json");
    fs::write(&file, serde_json::to_vec_pretty(&values)?)?;
    Ok(file)
}

/// The API server itself finds nothing in the manifests that it does not know or that PodSecurity would refuse, and
/// says so of pods that mount of their nodes.
fn accepted_strictly(lab: &Lab, kubernetes: &Kubernetes, values: &str) -> Result<()> {
    let crd = deploy("kubernetes/crd.yaml").display().to_string();
    let apply = |more: &[&str]| {
        let arguments = ["template", "standby", CHART, "--namespace", NAMESPACE, "--values", values];
        let file = lab.kept("values")?.join("rendered.yaml");
        fs::write(&file, helm(lab, None, &[&arguments[..], more].concat())?)?;
        let strictly = ["apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", &crd];
        kubernetes.kubectl(&[&strictly[..], &["-f", &file.display().to_string()]].concat())
    };
    eventually("the definition of PodMonitors to be served", SOON, || apply(&[]))?;
    let mounts = apply(&["--set-json", r#"logDirs=[{"hostPath":"/srv/kafka","mountPath":"/srv/kafka"}]"#]);
    let rescheduling = deploy("kubernetes/rescheduling.yaml").display().to_string();
    let strictly = ["apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors"];
    kubernetes.kubectl(&[&strictly[..], &["-f", &rescheduling]].concat())?;
    let said = mounts.err().context("PodSecurity restricted accepts what mounts of its node")?.to_string();
    ensure!(said.contains("restricted") && said.contains("hostPath") && !said.contains("seccomp"), "{said}");
    Ok(())
}

/// Every role of the chart is that of the file for people, but for the names of objects.
fn roles_are_those_of_the_files(lab: &Lab, kubernetes: &Kubernetes) -> Result<()> {
    let rules = |file: &str| {
        let said = kubernetes.kubectl(&["apply", "--dry-run=client", "--output=json", "-f", file])?;
        let list: Value = serde_json::from_str(&said)?;
        let all = list["items"].as_array().cloned().context("no list")?;
        let roles = all.iter().filter(|one| one["kind"].as_str().is_some_and(|kind| kind.ends_with("Role")));
        let mut rules: Vec<String> = Vec::new();
        for role in roles {
            for rule in role["rules"].as_array().context("no rules")? {
                let [groups, what, verbs] = ["apiGroups", "resources", "verbs"].map(|key| &rule[key]);
                rules.push(format!("{} {groups} {what} {verbs}", role["kind"]));
            }
        }
        rules.sort();
        anyhow::Ok(rules)
    };
    for (example, release, needs, without) in EXAMPLES {
        let file = lab.kept("values")?.join("example.yaml");
        let rendered = rendered(lab, example, release)?;
        let roles: Vec<&str> = rendered.split("\n---\n").filter(|one| one.contains("Role\n")).collect();
        fs::write(&file, roles.join("\n---\n"))?;
        let mut files: Vec<String> = Vec::new();
        for role in needs {
            files.extend(rules(&deploy(&format!("kubernetes/{role}-rbac.yaml")).display().to_string())?);
        }
        files.retain(|rule| !rule.contains(without));
        files.sort();
        let chart = rules(&file.display().to_string())?;
        ensure!(chart == files, "{example}: the chart has {chart:#?}, and deploy/kubernetes {files:#?}");
    }
    Ok(())
}

fn pod(kubernetes: &Kubernetes, name: &str) -> Result<Pod> {
    get(kubernetes, &format!("pods/{name}")).map(Pod)
}

/// Whether a container of a pod is ready; an error if it was ever started again.
fn is_ready(pod: &Pod, container: &str) -> Result<bool> {
    let all = pod.0["status"]["containerStatuses"].as_array().context("no container was started")?;
    let one = all.iter().find(|one| one["name"] == container).context("no such container")?;
    ensure!(one["restartCount"] == 0, "{container} was started again: {one}");
    Ok(one["ready"] == true && one["state"]["running"].is_object())
}

/// Both pods run, with no right on their nodes; their agents see the cluster, and Kafka waits.
fn runs(lab: &Lab, kubernetes: &Kubernetes) -> Result<Vec<Pod>> {
    let first = PODS[0].0;
    let agent = ["--namespace", NAMESPACE, "exec", first, "--container", "understudy", "--"];
    let init = [&agent[..], &["/usr/bin/understudy", "ledger", "init"]].concat();
    let said = eventually("the ledger to be made", SOON, || kubernetes.kubectl(&init))?;
    lab.note(said.trim());
    let mut pods = Vec::new();
    for (name, node) in PODS {
        let pod = eventually(&format!("the agent in {name} to be ready"), SOON, || {
            let pod = pod(kubernetes, name)?;
            ensure!(is_ready(&pod, "understudy")?, "{}", pod.0["status"]);
            Ok::<_, anyhow::Error>(pod)
        })?;
        ensure!(pod.node() == node, "it is on {}", pod.node());
        ensure!(!is_ready(&pod, "kafka")? && !pod.is_ready(), "a Kafka that waits is ready");
        confined(kubernetes.node(node)?, &pod)?;
        // The daemon's own checks, which have tried each right: nothing is lacking but a fence agent.
        eventually("the daemon's own checks", SOON, || {
            let page = SocketAddr::from((pod.address()?, 9095));
            let (code, said) = e2e::get(page, "/readyz", Duration::from_secs(2))?;
            ensure!(code == 200 && said.contains("fence_none"), "it answers {code}: {said}");
            ensure!(!said.contains("bind the role") && !said.contains("no entry point"), "{said}");
            Ok(())
        })?;
        pods.push(pod);
    }
    Ok(pods)
}

/// By what the kernel says of the processes.
fn confined(node: &Node, pod: &Pod) -> Result<()> {
    for words in [["understudy", "run"], ["understudy", "enter"]] {
        let found = node.containers(&words)?;
        let [pid] = found[..] else { bail!("{} processes are {words:?} on {}", found.len(), node.name()) };
        let proc = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
        let status = fs::read_to_string(proc.join("status"))?;
        for line in
            ["Uid:\t1000\t1000\t1000\t1000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
        {
            ensure!(status.lines().any(|found| found == line), "{words:?} has no {line:?} in {status}");
        }
        let mounts = fs::read_to_string(proc.join("mountinfo"))?;
        let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).context("no root")?;
        ensure!(root.split(' ').nth(5).is_some_and(|options| options.starts_with("ro")), "{root}");
        let token = mounts.contains("/run/secrets/kubernetes.io/serviceaccount");
        ensure!(token == (words[1] == "run"), "{words:?}, and the account's token: {token}");
    }
    let capabilities = pod.0["spec"]["containers"][0]["securityContext"]["capabilities"]["drop"][0].as_str();
    ensure!(capabilities == Some("ALL"), "{capabilities:?}");
    Ok(())
}

/// What the account of the pods may do, and what it may not.
fn denied(kubernetes: &Kubernetes) -> Result<()> {
    let may = |verb: &str, what: &str, namespace: &str| {
        let who = format!("--as={ACCOUNT}");
        kubernetes.kubectl(&["auth", "can-i", verb, what, "--namespace", namespace, &who]).is_ok()
    };
    let cases = [
        (true, "create", "ledgerjournals.understudy.dev", NAMESPACE),
        (true, "update", "ledgercells.understudy.dev", NAMESPACE),
        (true, "patch", "services/broker-2", NAMESPACE),
        (true, "watch", "nodes/node-2", NAMESPACE),
        (true, "list", "leases.coordination.k8s.io/node-2", "kube-node-lease"),
        (true, "patch", "nodes/node-2", NAMESPACE),
        (false, "delete", "ledgerjournals.understudy.dev", NAMESPACE),
        (false, "delete", "ledgercells.understudy.dev", NAMESPACE),
        (false, "get", "ledgercells.understudy.dev", "default"),
        (false, "patch", "services/standby", NAMESPACE),
        (false, "patch", "services/broker-2", "default"),
        (false, "patch", "nodes/node-1", NAMESPACE),
        (false, "list", "leases.coordination.k8s.io/node-1", "kube-node-lease"),
        (false, "get", "secrets", NAMESPACE),
        (false, "delete", "pods", NAMESPACE),
        (false, "create", "pods/exec", NAMESPACE),
        (false, "create", "pods/eviction", NAMESPACE),
    ];
    for (expected, verb, what, namespace) in cases {
        ensure!(may(verb, what, namespace) == expected, "{verb} {what} in {namespace}: not {expected}");
    }
    // The same by its own token, and by acts.
    let token = kubernetes.kubectl(&["--namespace", NAMESPACE, "create", "token", "standby"])?;
    let with = format!("--token={}", token.trim());
    let act = |arguments: &[&str]| {
        kubernetes.kubectl(&[&[with.as_str(), "--namespace", NAMESPACE], arguments].concat())
    };
    let cell = "ledgercell/understudy.cell.identity";
    act(&["get", cell])?;
    for refused in [["delete", cell], ["get", "secrets"], ["get", "nodes"]] {
        let said = act(&refused).err().with_context(|| format!("{refused:?} is done"))?.to_string();
        ensure!(said.contains("Forbidden") && said.contains(ACCOUNT), "{refused:?}: {said}");
    }
    act(&["get", cell]).map(drop)
}

/// Whether the first pod would be evicted.
fn evictable(lab: &Lab, kubernetes: &Kubernetes, expected: bool) -> Result<()> {
    let name = PODS[0].0;
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name, "namespace": NAMESPACE },
        "deleteOptions": { "dryRun": ["All"] },
    });
    let file = lab.kept("values")?.join("eviction.json");
    fs::write(&file, eviction.to_string())?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction");
    let file = file.display().to_string();
    eventually(&format!("an eviction of {name} to be accepted: {expected}"), SOON, || {
        match (kubernetes.kubectl(&["create", "--raw", &path, "-f", &file]), expected) {
            (Ok(_), true) => Ok(()),
            (Err(error), false) if error.to_string().contains("disruption budget") => Ok(()),
            (Ok(said), false) => bail!("it is: {said}"),
            (Err(error), _) => Err(error),
        }
    })
}

/// An upgrade replaces no pod; one that a person deletes is made anew with what was changed, and the ledger knows it.
fn upgraded(lab: &Lab, kubernetes: &Kubernetes, at: &[&str], before: &[Pod]) -> Result<()> {
    // Something answers at that port of the pod: so Kafka counts as ready.
    let changed = ["--set", "kafka.ports={9095}", "--set", "terminationGracePeriodSeconds=30"];
    let said = helm(lab, Some(kubernetes), &[&["upgrade", "standby", CHART], at, &changed[..]].concat())?;
    ensure!(said.contains("Pods are not replaced by themselves"), "{said}");
    for (set, (name, _)) in ["standby-a", "standby-b"].iter().zip(PODS) {
        eventually(&format!("{set} to have a new revision"), SOON, || {
            let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{set}");
            let status = kubernetes.get(&path)?["status"].clone();
            ensure!(status["updateRevision"] != status["currentRevision"], "{status}");
            Ok(())
        })?;
        let (old, now) = (before.iter().map(Pod::uid), pod(kubernetes, name)?.uid());
        ensure!(old.into_iter().any(|uid| uid == now), "{name} was replaced");
    }
    let (name, _) = PODS[0];
    kubernetes.kubectl(&["--namespace", NAMESPACE, "delete", "pod", name])?;
    eventually(&format!("{name} to be ready, Kafka as well"), SOON, || {
        let pod = pod(kubernetes, name)?;
        ensure!(before.iter().all(|old| old.uid() != pod.uid()), "it is the old one");
        ensure!(pod.0["spec"]["terminationGracePeriodSeconds"] == 30, "it has the old values");
        ensure!(is_ready(&pod, "understudy")? && pod.is_ready(), "{}", pod.0["status"]);
        Ok(())
    })
}

/// Nothing is left but the ledger, its definitions and the pods' own state; nothing keeps the namespace from going.
fn uninstalled(lab: &Lab, kubernetes: &Kubernetes) -> Result<()> {
    helm(lab, Some(kubernetes), &["uninstall", "standby", "--namespace", NAMESPACE])?;
    let kinds = kubernetes.kubectl(&["api-resources", "--verbs=list", "--output=name"])?;
    let kinds = kinds.lines().filter(|kind| !kind.contains("metrics.k8s.io")).collect::<Vec<_>>().join(",");
    let list = ["get", &kinds, "--all-namespaces", "--selector", OURS, "--output=name"];
    let states = PODS.map(|(pod, _)| format!("persistentvolumeclaim/state-{pod}"));
    eventually("everything of the release to be gone", SOON, || {
        let left = kubernetes.kubectl(&list)?;
        let left: Vec<&str> = left.lines().filter(|line| !line.is_empty()).collect();
        ensure!(left == states, "{left:?} are left");
        Ok(())
    })?;
    let secrets = get(kubernetes, "secrets")?;
    ensure!(secrets["items"].as_array().is_some_and(Vec::is_empty), "{secrets}");
    let cells = kubernetes.get(&format!("/apis/understudy.dev/v1/namespaces/{NAMESPACE}/ledgercells"))?;
    ensure!(cells["items"].as_array().is_some_and(|all| !all.is_empty()), "the ledger is gone");
    kubernetes.kubectl(&["delete", "namespace", NAMESPACE, "--timeout=120s"]).map(drop)
}
